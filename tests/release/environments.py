"""Distributions built from this tree, and empty environments in which they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Distributions:
    """The files that ``make dist`` makes."""

    wheel: Path
    source: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment, outside this tree."""

    folder: Path

    @property
    def packages(self) -> Path:
        """The folder of its packages."""
        [found] = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs for a user with an empty home folder; the variables contain nothing of this tree or of Sotto."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return _run([str(self.folder / "bin" / program), *arguments], self.folder, HOME=str(home))


def _run(command: Sequence[str], folder: Path, **others: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SOTTO_", "PYTHON")) and name != "VIRTUAL_ENV"
    }
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**kept, "COLUMNS": "100", **others},
        timeout=600,
    )


def build(folder: Path) -> Distributions:
    """Build the source distribution, and the wheel from it."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(PROJECT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distributions(wheel, source)


@contextmanager
def install(wheel: Path, python: str, extras: str = "all") -> Iterator[Environment]:
    """Yield a new environment with the wheel and its requirements; it is deleted afterwards, because it is large."""
    with TemporaryDirectory() as folder:
        environment = Environment(Path(folder) / "environment")
        subprocess.run([python, "-m", "venv", "--without-pip", str(environment.folder)], check=True, cwd=folder)
        pip = [sys.executable, "-m", "pip", "--python", str(environment.folder / "bin/python")]
        options = ["--quiet", "--no-compile", "--disable-pip-version-check"]
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        installed = _run([*pip, "install", *options, wanted], environment.folder)
        assert installed.returncode == 0, installed.stderr
        yield environment


def find_python(version: str) -> str | None:
    """Return an interpreter of this version on this machine that can make environments."""
    found = [shutil.which(f"python{version}")]
    found += map(str, sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")))
    code = f"import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for python in filter(None, found):
        if not subprocess.run([python, "-c", code], capture_output=True, check=False, cwd=Path.home()).returncode:
            return python
    return None
