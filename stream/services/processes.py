"""Running Sotto's own services as child processes that never outlive their parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self

from pydantic import SecretStr

from stream.engine.task_status import ServiceName
from stream.environment import KEY_FILE_VARIABLE, MONITOR_NAMES, MONITOR_TOKEN, NOISE_KEY, without
from stream.log import get_logger
from stream.settings import LAST_PORT, Settings, variable

RoleName = Literal["worker", "budget", "feed", "monitor", "alerts"]

STOP_SECONDS = 15.0
"""How long a service may take to finish its batch and leave its group."""
LOG_BYTES = 5_000_000
"""Size from which on a log is moved aside; the last one that was is kept, so that a service has twice this at most."""


class Service:
    """A service in a process of its own.

    It stops when its standard input closes, which happens however this process ends; Ctrl-C does not reach it, so
    that the parent can stop everything in order.
    """

    def __init__(self, role: RoleName, settings: Settings, key_file: Path | None, log: Path) -> None:
        """Take the noise key's file, None for a service that must not have the key."""
        # What was not told is not told on: a default is not a wish, such as that for one replica.
        given = {variable(name): _text(value) for name, value in settings.model_dump(exclude_unset=True).items()}
        # Settings go through the environment: a command line can be read by everybody on the machine.
        needless = NOISE_KEY | MONITOR_TOKEN if role == "monitor" else NOISE_KEY | MONITOR_TOKEN | MONITOR_NAMES
        environment = without(needless, {**os.environ, **given})
        if key_file is not None:
            environment[KEY_FILE_VARIABLE] = str(key_file)
        self.role = role
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _owners_alone(log) as output:
            self._process = started(["serve", role, "--stop-with-stdin", "--json-logs"], environment, output)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def keep_log_small(self) -> None:
        """Move a log that has grown beyond ``LOG_BYTES`` aside, in place of the one that was moved before.

        What is written between the copy and the cut is lost.
        """
        if self.log.stat().st_size <= LOG_BYTES:
            return
        previous = self.log.with_name(f"{self.log.name}.1")
        with self.log.open("rb") as grown, _owners_alone(previous) as kept:
            kept.truncate(0)
            shutil.copyfileobj(grown, kept)
        os.truncate(self.log, 0)  # the service appends, so that it goes on at the beginning

    def ask_to_stop(self) -> None:
        """Tell it to finish, and do not wait."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to finish, and end it by force if it does not."""
        self.ask_to_stop()
        if self._process.poll() is None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def started(arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own, with a pipe for its input."""
    return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
        [sys.executable, "-P", "-m", "stream.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
    )


def _owners_alone(log: Path) -> BinaryIO:
    """A log to append to, that nobody but its owner may read."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)  # it may be there from an earlier version
    return os.fdopen(descriptor, "ab")


def _text(value: Any) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


BACKOFF: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before a process that failed is started again, after failures in a row."""
STEADY: Final = 30.0
"""A process that lived so many seconds has not failed at its start."""

log = get_logger("replicas")


class ReplicaError(RuntimeError):
    """The processes cannot be run as asked; the message says why."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def metrics_ports(first: int, count: int) -> Sequence[int]:
    """A port for each process's figures, counted on from the first; 0, for none, where that is 0. ReplicaError if they do not suffice."""
    if first and first + count - 1 > LAST_PORT:
        raise ReplicaError(
            f"{variable('metrics_port')}: {count} processes need the ports from {first} on; give {LAST_PORT - count + 1} at most"
        )
    return range(first, first + count) if first else (0,) * count


class Replicas:
    """Runs ``count`` workers or feeds, each ``sotto serve ROLE`` with this process's environment and some arguments.

    Of the environment they are not given the monitor's tokens, nor another noise key than the file in the arguments.
    They write to this process's standard error. Process n of them has the metrics port ``settings.metrics_port + n``, and
    keeps its name in the group when it is started again. None outlives this process, however it ends.

    Raises:
        ReplicaError: the metrics ports do not suffice.
    """

    def __init__(self, settings: Settings, role: ServiceName, count: int, arguments: Sequence[str] = ()) -> None:
        self._ports = metrics_ports(settings.metrics_port, count)
        self._role = role
        self._settings = settings
        self._count = count
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "stream.cli",
            "serve",
            role,
            "--stop-with-stdin",
            *arguments,
        ]
        needless = MONITOR_TOKEN | MONITOR_NAMES
        self._needless = needless | NOISE_KEY if "--key-file" in arguments or role == "feed" else needless
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have every process finish its batches and leave the group."""
        self._stopping.set()

    def environment(self, number: int) -> dict[str, str]:
        """What process ``number`` is told."""
        environment = without(self._needless)
        name = self._settings.instance or f"{socket.gethostname()}-{os.getpid()}"
        environment[variable("instance")] = f"{name}-{number}"
        if port := self._ports[number]:
            environment[variable("metrics_port")] = str(port)
        return environment

    async def run(self) -> None:
        """Return once all have stopped, on this order or on their own. What fails is started again.

        Raises:
            ReplicaError: one failed at its start again and again; the others have been stopped.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count):
                    group.create_task(self._keep(number))
        except BaseExceptionGroup as errors:
            failed, others = errors.split(ReplicaError)
            if failed is None or others is not None:
                raise
            raise failed.exceptions[0] from None

    async def _keep(self, number: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._live(number)
            if self._stopping.is_set() or status == 0:
                return
            failures = 1 if time.monotonic() - began >= STEADY else failures + 1
            log.error("process ended", role=self._role, process=number, status=status, failures=failures)
            if failures > len(BACKOFF):
                raise ReplicaError(
                    f"{self._role} process {number} failed {failures} times at its start; see its log above"
                )
            await self._stopped_within(BACKOFF[failures - 1])

    async def _live(self, number: int) -> int:
        """Run one process to its end, or until told to stop; gives its exit status."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr,
            env=self.environment(number),
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes the order on.
        )
        log.info("process started", role=self._role, process=number, pid=process.pid)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await _end(process, ended)
        return ended.result()

    async def _stopped_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    """Ask a process to finish, and end it by force if it does not."""
    if process.returncode is None:
        process.terminate()
        done, _ = await asyncio.wait({ended}, timeout=STOP_SECONDS)
        if not done:
            process.kill()
    await ended
