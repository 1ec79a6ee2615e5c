"""Builds the real image, and runs its programs from its file system, without a container daemon.

Buildah uses only a chroot here: its programs have the image's files, user and environment, but the machine's network and
processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.release.environments import PROJECT
from tests.release.systems import install_system, lacking_for_base

BASE = "localhost/base"
CERTIFICATES = Path("/etc/ssl/certs")
STOP_SECONDS = 30.0


def missing() -> str | None:
    """Return what this machine lacks for building images; None if nothing."""
    if os.geteuid() != 0:
        return "building an image in a chroot takes root"
    if shutil.which("buildah") is None:
        return "buildah not installed (Debian, Ubuntu: apt install buildah)"
    return lacking_for_base()


@dataclass(frozen=True)
class Builder:
    """Buildah with a separate store in ``folder``."""

    folder: Path

    def __call__(self, *arguments: str) -> str:
        """Run buildah to its end, and return its output."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, timeout=1800)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return ["buildah", "--storage-driver", self._driver, *self._places, *arguments]

    @property
    def _places(self) -> tuple[str, ...]:
        return ("--root", str(self.folder / "store"), "--runroot", str(self.folder / "run"))

    @cached_property
    def _driver(self) -> str:
        """The storage driver: overlay mounts if the system supports them, otherwise full copies of the layers."""
        tried = ["buildah", "--storage-driver", "overlay", *self._places, "info"]
        return "overlay" if subprocess.run(tried, capture_output=True, check=False).returncode == 0 else "vfs"

    def remove(self) -> None:
        """Remove the store: its mounts and its files."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            subprocess.run([shutil.which("umount") or "umount", mount], check=True)
        shutil.rmtree(self.folder)

    def make_base(self) -> None:
        """Make an image of Debian with Python and its venv module."""
        container = self("from", "scratch")
        install_system(Path(self("mount", container)))
        self("commit", "--rm", container, BASE)

    def build(self) -> str:
        """Build this tree's Dockerfile, and return the image's number."""
        trusted = [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.is_dir() else []
        arguments = ["--isolation=chroot", "--pull-never", f"--build-arg=BASE={BASE}", *trusted]
        return self("build", *arguments, "--quiet", str(PROJECT)).splitlines()[-1]


@dataclass(frozen=True)
class Container:
    """A container of an image; ``files`` is its file system."""

    builder: Builder
    name: str
    files: Path

    def command(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, volumes: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line that runs a program in the container as the image's user."""
        given = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        mounted = [f"--volume={volume}" for volume in volumes]
        return self.builder.command("run", "--isolation=chroot", *given, *mounted, self.name, "--", *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(self.command(arguments), capture_output=True, text=True, check=False, timeout=300)

    @contextmanager
    def serving(
        self, *arguments: str, environment: Mapping[str, str], volumes: Sequence[str], log: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program during the test; it and its children are ended by SIGTERM, or by SIGKILL if they do not end."""
        with log.open("wb") as output:
            started = subprocess.Popen(
                self.command(arguments, environment, volumes),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                yield started
            finally:
                self._end(started)

    @staticmethod
    def _end(started: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + STOP_SECONDS
            try:
                os.killpg(started.pid, number)
                while time.monotonic() < until:
                    started.poll()
                    os.killpg(started.pid, 0)
                    time.sleep(0.1)
            except ProcessLookupError:
                break
        started.wait(STOP_SECONDS)


@contextmanager
def container_of(builder: Builder, image: str) -> Iterator[Container]:
    """Yield a container of an image, and remove it afterwards."""
    name = builder("from", "--pull-never", image)
    try:
        yield Container(builder, name, Path(builder("mount", name)))
    finally:
        builder("rm", name)
