"""One schedule: a world, a load, faults that the seed decides, and a report of the findings."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar
from unittest.mock import patch

import structlog

from stream.engine import partition_input, partition_task, restore
from stream.services import feed_service
from tests.chaos.load import Questions
from tests.simulation.broker import Broker
from tests.simulation.clients import MAX_POLL_INTERVAL_MS
from tests.simulation.clock import VirtualLoop, virtual_time
from tests.simulation.events import load, trouble
from tests.simulation.world import PATIENCE, World

IDLE = 0.1
"""The share of schedules that begin with minutes in which nothing happens."""
JOINING = 10.0
"""Seconds after which the first services have their partitions."""


@dataclass(frozen=True)
class Report:
    """The faults that one schedule injected, and its findings."""

    seed: int
    world: str
    injected: Counter[str]
    violations: list[str]
    figures: Counter[str]
    digest: str
    """The digest of every record at its offset, whether committed or not."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {dict(self.injected)}", *(f"  found: {one}" for one in self.violations)]
        return "\n".join(
            [*lines, f"  again: python -m tests.simulation --world {self.world} --seed {self.seed} --schedules 1"]
        )


async def _idle(world: World) -> None:
    """Start spares, and wait for longer than the client library's limit between two fetches."""
    await asyncio.sleep(JOINING)
    world.start("budget")
    world.start("worker")
    await asyncio.sleep(1.1 * MAX_POLL_INTERVAL_MS / 1000)
    world.injected["idle stretch"] += 1


async def _play(world: World, seed: int) -> list[str]:
    world.start("budget")
    for _ in range(world.chance.randint(1, 2)):
        world.start("worker")
    if world.chance.random() < IDLE:
        await _idle(world)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(load(world, Questions(world.streams, seed)), trouble(world))
    world.faults.cease()
    return await world.settle() or world.examine()


def play(seed: int) -> Report:
    """Run one schedule; equal seeds give equal runs."""
    return played(
        "queries",
        seed,
        World,
        lambda world: _play(world, seed),
        lambda world: {"questions": len(world.asked), "busy": world.busy()},
    )


class Simulated(Protocol):
    """The interface of all worlds."""

    broker: Broker
    injected: Counter[str]


W = TypeVar("W", bound=Simulated)


def played(
    name: str,
    seed: int,
    make: Callable[[VirtualLoop, int], W],
    story: Callable[[W], Coroutine[object, object, list[str]]],
    figures: Callable[[W], Mapping[str, int]],
) -> Report:
    """Make the world of a seed, run its story in virtual time, and report the story's findings and the figures."""
    with quiet(), virtual_time() as loop, lazily():
        world = make(loop, seed)
        try:
            violations = loop.run_until_complete(story(world))
        except Exception as error:  # noqa: BLE001  (whatever stops a schedule is a finding)
            violations = [f"{type(error).__name__}: {error}"]
        broker = world.broker
        counted = Counter(
            aborted=broker.aborted,
            expired=broker.expired,
            fenced=broker.fenced,
            seconds=int(loop.time()),
            **figures(world),
        )
        # The tasks that still run are cancelled at the end, in an order that the seed does not decide.
        digest = broker.digest()
    return Report(seed, name, world.injected, violations, counted, digest)


@contextmanager
def lazily() -> Iterator[None]:
    """Make idle rounds and empty fetches rare, for speed. Standby copies begin at once and lag, so that their heirs must read much."""
    with (
        patch.object(partition_task, "IDLE_MS", 2000),
        patch.object(partition_input, "FETCH_WAIT_MS", 2000),
        patch.object(feed_service, "CONTROL_WAIT_MS", 2000),
        patch.object(restore, "COPY_START_SECONDS", 0.3),
        patch.object(restore, "COPY_PAUSE_SECONDS", 3.0),
    ):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the engine's log, because thousands of schedules would fill the screen with it."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
