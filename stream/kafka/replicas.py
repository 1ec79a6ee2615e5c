"""Several workers or feeds on one machine: a process each, since one Python process is one core."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from stream.environment import MONITOR_NAMES, MONITOR_TOKEN, NOISE_KEY, without
from stream.kafka.processes import STOP_SECONDS
from stream.kafka.roles import ServiceName
from stream.log import get_logger
from stream.settings import LAST_PORT, Settings, variable

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
