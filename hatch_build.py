"""Builds the kernel's C into a library beside it, where there is a compiler; an installation without one does all in Python.

``python hatch_build.py`` builds it in this source tree. ``CC`` names the compiler; without it that is ``cc``, ``gcc`` or ``clang``
on the path, or else the package ziglang where that is installed. ``SOTTO_KERNEL=off`` leaves it out: the wheel is then one for
every platform.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

KERNEL = Path(__file__).parent / "stream" / "kernel"
SOURCES = sorted(KERNEL.glob("*.c"))
OPTIONS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-Wno-psabi")


class KernelBuild(BuildHookInterface):  # type: ignore[misc,valid-type]  # hatchling need not be installed
    """Adds the compiled kernel to a wheel, which is then one for this platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built, or an editable install."""
        unwanted = os.environ.get("SOTTO_KERNEL", "").casefold() == "off"
        if self.target_name != "wheel" or unwanted or (library := build()) is None:
            return
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["force_include"][str(library)] = f"stream/kernel/{library.name}"


def compiler() -> list[str] | None:
    """The command that compiles C here; None if there is none."""
    if given := os.environ.get("CC"):
        return shlex.split(given)
    if found := next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None):
        return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def build(target: Path | None = None) -> Path | None:
    """Compile the kernel, to stand beside its source unless told otherwise; None if there is no compiler, or if it fails."""
    target = target or KERNEL / "kernel.so"
    if (command := compiler()) is None:
        print("no C compiler: the kernel is not built, workers do its work in Python", file=sys.stderr)
        return None
    read = sorted([*SOURCES, *KERNEL.glob("*.h")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in read)).hexdigest()
    # Exchanged in one step: a process that has the old one loaded keeps it.
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        sources = map(str, SOURCES)
        subprocess.run([*command, *OPTIONS, f'-DSOURCE="{digest}"', *sources, "-o", str(made)], check=True)
        made.replace(target)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the kernel is not built, workers do its work in Python: {error}", file=sys.stderr)
        return None
    finally:
        made.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    sys.exit(build() is None)
