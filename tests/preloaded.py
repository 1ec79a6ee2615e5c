"""Forks services and commands from a process that has already imported most of their modules.

They are separate processes that can be signalled and killed, with the given environment, folder and log; only Python
and its modules are not loaded again. This file, run as a program, is the process that forks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Self
from unittest.mock import patch

# Without polars: it has threads, which a fork does not copy.
SERVICES = (
    "stream.cli.service_commands",
    "stream.cli.monitor_commands",
    "stream.engine.group_engine",
    "stream.services.feed_service",
    "stream.services.runner",
    "stream.monitor.api.server",
    "sqlglot",
    "scipy.optimize",
    "scipy.special",
    "uvloop",
)
# Without stream.cli: it reads the terminal's width when it is imported.
COMMANDS = (
    "typer.rich_utils",
    "rich.table",
    "stream.engine.restore",
    "stream.kafka.topic_creation",
    "stream.privacy.planning.plans",
    "scipy.optimize",
    "scipy.special",
)
# Without the main module, because it confines the process before it imports modules such as polars.
READERS = (
    "stream.tables.readers.reading_protocol",
    "stream.tables.readers.csv_files",
    "stream.tables.readers.lake_files",
)
CLI = "sotto"
MESSAGE_BYTES = 128 * 1024
PAUSE = 0.005
PROGRAM_SECONDS = 600.0
"""Seconds in which a program must end, even on a very busy machine."""


class Forked:
    """A forked process, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, parent: _Parent, pid: int, stdin: BinaryIO, stdout: BinaryIO | None = None) -> None:
        self._parent = parent
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._parent.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("sotto", timeout or 0.0)
            time.sleep(PAUSE)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless ``poll`` has seen the end: only then may another process have the number."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def preloaded_services() -> Iterator[None]:
    """Fork the processes that ``Service`` starts in this block, if the system supports it."""
    if not hasattr(socket, "SOCK_SEQPACKET"):
        yield
        return
    from stream.services import processes  # noqa: PLC0415  (the forking process must not import it)

    def forked(arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> Forked:
        return _parent(SERVICES, _from_the_start(environment)).fork(arguments, environment, log)

    with patch.object(processes, "start_sotto", forked):
        yield


@contextmanager
def preloaded_readers() -> Iterator[None]:
    """Fork the processes that read tables for this one in this block, if the system supports it.

    They start as usual if a test replaces their program, their modules or ``Popen``.
    """
    from stream.tables.readers import table_reading  # noqa: PLC0415  (the forking process must not import it)

    usual, program, popen = table_reading._start_process, table_reading.READING_PROCESS, subprocess.Popen

    def forked(source: Any) -> Any:
        environment = table_reading._environment(source)
        own = (table_reading.READING_PROCESS, subprocess.Popen) != (program, popen)
        if own or "PYTHONPATH" in environment or not hasattr(socket, "SOCK_SEQPACKET"):
            return usual(source)
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as output, Path(os.devnull).open("wb") as errors:
            parent = _parent(READERS, _from_the_start(environment))
            process = parent.fork([], environment, output, errors, program=program)
        process.stdout = os.fdopen(reading, "rb")
        return process

    with patch.object(table_reading, "_start_process", forked):
        yield


def command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout: float = PROGRAM_SECONDS,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a separate process with empty standard input, forked if the system supports it."""
    if not hasattr(socket, "SOCK_SEQPACKET"):
        return subprocess.run(
            [sys.executable, "-m", "sotto", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout,
            cwd=folder,
        )
    with TemporaryFile() as out, TemporaryFile() as errors:
        forked = _parent(COMMANDS, _from_the_start(environment)).fork(
            arguments, environment, out, errors, folder=folder
        )
        forked.stdin.close()
        try:
            status = forked.wait(timeout)
        except subprocess.TimeoutExpired:
            forked.kill()
            raise
        said = []
        for file in (out, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(["sotto", *arguments], status, *said)


class _Parent:
    """The process from which others are forked; it ends with this one."""

    def __init__(self, modules: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> None:
        self._one_at_a_time = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno()), *modules],
                pass_fds=[other.fileno()],
                # A fork does not copy numpy's threads either.
                env={
                    **{name: value for name, value in os.environ.items() if not _counts_from_the_start(name)},
                    **dict(environment),
                    "OPENBLAS_NUM_THREADS": "1",
                },
                start_new_session=True,
            )

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *logs: BinaryIO,
        folder: Path | None = None,
        program: str = CLI,
    ) -> Forked:
        """Start a process in a folder; it writes to one log, or its output and its errors to two."""
        reading, writing = os.pipe()
        try:
            message = [program, list(arguments), dict(environment), str(folder or Path.cwd())]
            pid = self._asked(message, [reading, logs[0].fileno(), logs[-1].fileno()])
        finally:
            os.close(reading)
        return Forked(self, pid, os.fdopen(writing, "wb"))

    def ended(self, pid: int) -> int | None:
        """Return the exit status of a child that has ended, or None; its number is free afterwards."""
        status: int | None = self._asked([pid], [])
        return status

    def _asked(self, message: Any, descriptors: list[int]) -> Any:
        with self._one_at_a_time:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
            return json.loads(self._socket.recv(MESSAGE_BYTES))


@cache
def _parent(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> _Parent:
    return _Parent(modules, environment)


def _from_the_start(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that the forking process must start with, as they affect imports."""
    return tuple(sorted(one for one in environment.items() if _counts_from_the_start(one[0])))


def _counts_from_the_start(name: str) -> bool:
    return name == "PYTHONPATH" or name.startswith("CRIPPLED_")


def _serve(asked: socket.socket) -> list[str] | None:
    """Fork on each request; in the child, return its program and arguments."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, 3)
        if not message:
            return None
        match json.loads(message):
            case [int(pid)]:
                found, status = os.waitpid(pid, os.WNOHANG)
                asked.send(json.dumps(os.waitstatus_to_exitcode(status) if found else None).encode())
            case [program, arguments, environment, folder]:
                pid = os.fork()
                if pid == 0:
                    asked.close()
                    os.chdir(folder)
                    _become(environment, *descriptors)
                    return [program, *arguments]
                for descriptor in descriptors:
                    os.close(descriptor)
                asked.send(json.dumps(pid).encode())


def _become(environment: dict[str, str], *files: int) -> None:
    os.setsid()
    for place, descriptor in enumerate(files):
        os.dup2(descriptor, place)
    for descriptor in files:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    assert "polars" not in sys.modules
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        sys.argv = ["sotto", *asked[1:]]
        runpy.run_module(asked[0], run_name="__main__", alter_sys=True)
