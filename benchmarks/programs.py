"""Programs under test: child processes that end with the benchmark, with their output in a file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from stream.settings import KEY_VARIABLE, Settings

STOP_SECONDS = 20.0
"""Seconds that a program may take to end after SIGTERM."""

_LOG_TAIL = 600


class ProgramError(RuntimeError):
    """A program ended too early; the message ends with its last output."""


class Program:
    """A running child process. Leaving the context asks it to end, and insists after a while."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._name = " ".join(map(str, command))
        self.cpu_seconds = 0.0
        self.started = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(variables or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def check(self) -> None:
        """Raise ProgramError if it has ended."""
        if (status := self._process.poll()) is not None:
            tail = self.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
            raise ProgramError(f"{self._name} ended with status {status}; {self.log} ends so:\n{tail}")

    def kill(self) -> None:
        """End it like a power cut."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it by SIGTERM, or by SIGKILL if it does not end, and note its processor time."""
        if self._process.returncode is not None:
            return
        before = _children_seconds()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.cpu_seconds = _children_seconds() - before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def service(role: str, settings: Settings, noise_key: str, log: Path, options: Sequence[str] = ()) -> Program:
    """A Sotto service, started as an operator would start it; its processor time is that of all its processes."""
    variables = {f"SOTTO_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    command = [sys.executable, "-m", "sotto", "serve", role, "--json-logs", *options]
    return Program(command, log, {**variables, KEY_VARIABLE: noise_key})


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def session_seconds(leader: int) -> float:
    """Processor time so far of a program and of the processes that it has started."""
    seconds = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.getsid(int(entry.name)) == leader:
                seconds += processor_seconds(int(entry.name))
    return seconds


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
