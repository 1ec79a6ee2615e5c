"""Compiles the kernel's C sources to a library in their folder; without a compiler, the build requires the package ziglang.

``python hatch_build.py`` does so in this source tree. ``CC`` names the compiler; without it, the first of ``cc``, ``gcc``, ``clang``
and ziglang that can compile the kernel is used. ``SOTTO_KERNEL=off`` skips the kernel, so that the wheel fits every platform.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

KERNEL = Path(__file__).parent / "stream" / "kernel"
SOURCES = sorted(KERNEL.glob("*.c"))
OPTIONS = ["-std=gnu11", "-O3", "-shared", "-fPIC", "-Wno-psabi"]
if platform.machine() in {"x86_64", "AMD64"}:
    OPTIONS.append(
        "-mcrc32"
    )  # for clang; the function that uses these instructions is called on processors with them only
PORTABLE = "-mcpu=baseline"
"""Zig otherwise uses this processor's instructions, with which others end at the first call."""
COMPILER = "ziglang>=0.13"


class KernelBuild(BuildHookInterface):  # type: ignore[misc,valid-type]  # hatchling need not be installed
    """Adds the compiled kernel to a wheel, which then fits this platform only."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Require the package ziglang if no compiler of this machine can compile the kernel."""
        if _is_unwanted():
            return []
        with TemporaryDirectory() as folder:
            return [COMPILER] if build(Path(folder) / "kernel.so") is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernel before a wheel or an editable install is built."""
        if self.target_name != "wheel" or _is_unwanted():
            return
        if (library := build()) is None:
            raise RuntimeError(
                "no C compiler builds the kernel; install one, or set SOTTO_KERNEL=off to run in Python"
            )
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"
            build_data["force_include"][str(library)] = f"stream/kernel/{library.name}"


def platform_tag() -> str:
    """Return the platform of a wheel with the kernel, which is built for one processor family even by a universal Python."""
    name = sysconfig.get_platform().replace("universal2", platform.machine())
    return name.replace("-", "_").replace(".", "_")


def _is_unwanted() -> bool:
    return os.environ.get("SOTTO_KERNEL", "").casefold() == "off"


def compilers() -> Iterator[list[str]]:
    """Yield the commands that may compile C on this machine for any processor of its family."""
    found = [[path] for path in map(shutil.which, ("cc", "gcc", "clang")) if path]
    if given := os.environ.get("CC"):
        found = [shlex.split(given)]
    if find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "cc"])
    for command in found:
        is_zig = any(Path(word).name in {"zig", "ziglang"} for word in command)
        yield [*command, PORTABLE] if is_zig else command


def build(target: Path | None = None) -> Path | None:
    """Compile the kernel to ``target`` (by default in its folder), and return the file; None if no compiler can."""
    target = target or KERNEL / "kernel.so"
    read = sorted([*SOURCES, *KERNEL.glob("*.h")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in read)).hexdigest()
    # Replaced in one step: a process that has loaded the old file keeps it.
    made = target.with_name(f"{target.name}.{os.getpid()}")
    for command in compilers():
        try:
            sources = map(str, SOURCES)
            subprocess.run([*command, *OPTIONS, f'-DSOURCE="{digest}"', *sources, "-o", str(made)], check=True)
            made.replace(target)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{' '.join(command)} does not build the kernel: {error}", file=sys.stderr)
        else:
            return target
        finally:
            made.unlink(missing_ok=True)
    print("no C compiler builds the kernel; install one, or the package ziglang", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(build() is None)
