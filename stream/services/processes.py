"""Runs Sotto's services as child processes that never outlive their parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from pydantic import SecretStr

from stream.diagnostics import get_logger
from stream.engine.health import ServiceName
from stream.kafka.client.broker_connections import wait_for_stop
from stream.settings import (
    KEY_FILE_VARIABLE,
    MAX_PORT,
    MONITOR_NAMES_VARIABLES,
    MONITOR_TOKEN_VARIABLES,
    NOISE_KEY_VARIABLES,
    Settings,
    environment_without,
    variable_of,
)

RoleName = Literal["worker", "budget", "feed", "monitor", "alerts"]

PROGRAM = "sotto"
"""The module that services run."""
STOP_SECONDS = 15.0
"""Seconds for a service to finish its batch and leave its group."""
LOG_BYTES = 5_000_000
"""Size at which a log is rotated; one old log is kept."""


class Service:
    """A service in its own process.

    The service stops when its standard input closes, which happens whenever this process ends. Ctrl-C
    does not reach it, so that this process can stop all services in order.
    """

    def __init__(self, role: RoleName, settings: Settings, key_file: Path | None, log: Path) -> None:
        """``key_file`` is None for a service that must not have the noise key."""
        # Defaults are not passed on: an explicit setting would count as the user's choice.
        passed_settings = {
            variable_of(name): str(value.get_secret_value() if isinstance(value, SecretStr) else value)
            for name, value in settings.model_dump(exclude_unset=True).items()
        }
        # Settings are passed in the environment: every user of the machine can read command lines.
        dropped_variables = NOISE_KEY_VARIABLES | MONITOR_TOKEN_VARIABLES
        if role != "monitor":
            dropped_variables |= MONITOR_NAMES_VARIABLES
        environment = environment_without(dropped_variables, {**os.environ, **passed_settings})
        if key_file is not None:
            environment[KEY_FILE_VARIABLE] = str(key_file)
        self.role = role
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _open_private_log(log) as output:
            self._process = start_sotto(["serve", role, "--stop-with-stdin", "--json-logs"], environment, output)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the service runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the service without an order to stop, as a power cut would."""
        self._process.kill()
        self._process.wait()

    def rotate_large_log(self) -> None:
        """Rotate a log larger than ``LOG_BYTES``; lines written during the copy are lost."""
        if self.log.stat().st_size <= LOG_BYTES:
            return
        previous = self.log.with_name(f"{self.log.name}.1")
        with self.log.open("rb") as grown, _open_private_log(previous) as kept:
            kept.truncate(0)
            shutil.copyfileobj(grown, kept)
        os.truncate(self.log, 0)  # the service has opened the log for appending, so it continues at the new end

    def ask_to_stop(self) -> None:
        """Order the service to stop, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Order the service to stop, and kill it if it does not stop in time."""
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


def start_sotto(
    arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start ``sotto`` with these arguments in a new session, with a pipe as its standard input."""
    return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
        [sys.executable, "-P", "-m", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
    )


def _open_private_log(log: Path) -> BinaryIO:
    """Open a log for appending; only its owner may read or write it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)  # a log of an earlier version may have other permissions
    return os.fdopen(descriptor, "ab")


RESTART_PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before a failed process is restarted, by its number of failures in a row."""
STEADY_SECONDS: Final = 30.0
"""Seconds after which a running process counts as started successfully."""

log = get_logger("replicas")


class ReplicaError(RuntimeError):
    """The processes cannot run as requested; the message has the reason."""


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def metrics_ports(first: int, count: int) -> Sequence[int]:
    """Return consecutive metrics ports from ``first`` on; zeros if ``first`` is 0."""
    if first and first + count - 1 > MAX_PORT:
        raise ReplicaError(
            f"{variable_of('metrics_port')}: {count} processes need the ports from {first} on; give at most {MAX_PORT - count + 1}"
        )
    return range(first, first + count) if first else (0,) * count


class Replicas:
    """Runs ``count`` workers or feeds, each as ``sotto serve ROLE`` with ``arguments``.

    The processes get this process's environment without the monitor's tokens, and write to its
    standard error. A feed's environment has no noise key. A worker's environment has none either if the
    worker's arguments name the key's file.
    Process n has the metrics port ``metrics_port + n`` and keeps its name in the group after a restart.
    No process outlives this one.

    Raises:
        ReplicaError: there are too few metrics ports.
    """

    def __init__(self, settings: Settings, role: ServiceName, count: int, arguments: Sequence[str] = ()) -> None:
        self._ports = metrics_ports(settings.metrics_port, count)
        self._role = role
        self._settings = settings
        self._count = count
        self._command = [sys.executable, "-P", "-m", PROGRAM, "serve", role, "--stop-with-stdin", *arguments]
        self._dropped_variables = MONITOR_TOKEN_VARIABLES | MONITOR_NAMES_VARIABLES
        if "--key-file" in arguments or role == "feed":
            self._dropped_variables |= NOISE_KEY_VARIABLES
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Order every process to finish its batches and leave the group."""
        self._stopping.set()

    def environment(self, number: int) -> dict[str, str]:
        """Return the environment of process ``number``."""
        environment = environment_without(self._dropped_variables)
        name = self._settings.instance or f"{socket.gethostname()}-{os.getpid()}"
        environment[variable_of("instance")] = f"{name}-{number}"
        if port := self._ports[number]:
            environment[variable_of("metrics_port")] = str(port)
        return environment

    async def run(self) -> None:
        """Run until all processes have stopped, and restart failed processes.

        Raises:
            ReplicaError: a process failed at its start repeatedly; the other processes have been stopped.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count):
                    group.create_task(self._keep_running(number))
        except BaseExceptionGroup as errors:
            failed, others = errors.split(ReplicaError)
            if failed is None or others is not None:
                raise
            raise failed.exceptions[0] from None

    async def _keep_running(self, number: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_process(number)
            if self._stopping.is_set() or status == 0:
                return
            failures = 1 if time.monotonic() - began >= STEADY_SECONDS else failures + 1
            log.error("process ended", role=self._role, process=number, status=status, failures=failures)
            if failures > len(RESTART_PAUSES):
                raise ReplicaError(
                    f"{self._role} process {number} failed {failures} times at its start; see its log above"
                )
            await wait_for_stop(self._stopping, RESTART_PAUSES[failures - 1])

    async def _run_process(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=sys.stderr,
            env=self.environment(number),
            start_new_session=True,  # Ctrl-C reaches only the parent, which passes the order on
        )
        log.info("process started", role=self._role, process=number, pid=process.pid)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await _end_process(process, ended)
        return ended.result()


async def _end_process(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    if process.returncode is None:
        process.terminate()
        done, _ = await asyncio.wait({ended}, timeout=STOP_SECONDS)
        if not done:
            process.kill()
    await ended
