"""A partition that does not get ready delays no other partition, and its service reports it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition

from stream.processing.protocol import Record
from tests.chaos.load import Questions
from tests.simulation.broker import Broker
from tests.simulation.cast import group_of
from tests.simulation.clients import SimulatedConsumer
from tests.simulation.schedule import play
from tests.simulation.stopping_mutations import restores_that_an_order_to_stop_does_not_end
from tests.simulation.world import Service, World, perform

STUCK = 0
"""The partition that does not get ready; the range assignor gives it to the first worker."""
WHILE = 90.0
"""Virtual seconds between the starts of two workers: longer than a restore may stand still and count as healthy."""


@contextmanager
def _fences_that_do_not_end() -> Iterator[None]:
    """Block fences, as if the predecessor's transaction had written to a partition that has no leader now."""
    initialize = Broker.initialize

    def never(self: Broker, name: str) -> int | None:
        return None if name == f"{group_of('worker')}-{STUCK}" else initialize(self, name)

    with patch.object(Broker, "initialize", never):
        yield


@contextmanager
def _fetches_that_bring_nothing() -> Iterator[None]:
    """Let fetches return no records, as if the changelog's leader had gone after it answered with the changelog's end."""
    fetch = SimulatedConsumer._fetch

    def without(
        self: SimulatedConsumer, partitions: list[TopicPartition], limit: int
    ) -> dict[TopicPartition, list[Record]]:
        there = [one for one in partitions if not (one.topic.endswith(".state") and one.partition == STUCK)]
        return fetch(self, there, limit)

    with patch.object(SimulatedConsumer, "_fetch", without):
        yield


@contextmanager
def _compaction_between_fetches(found: Counter[str]) -> Iterator[None]:
    """Compact the changelog before each fetch of a restore, so that records, even the last ones, disappear."""
    fetch, chance = SimulatedConsumer._fetch, random.Random(1)

    def compacted(
        self: SimulatedConsumer, partitions: list[TopicPartition], limit: int
    ) -> dict[TopicPartition, list[Record]]:
        partitions = list(partitions)
        for one in partitions if self._group is None else ():
            if one.topic.endswith((".state", ".ledger")):
                log, position = self._broker.logs[one], self._assigned.get(one, 0)
                behind = {entry.offset for entry in log.entries if entry.offset >= position}
                log.compact(chance)
                found["behind"] += len(behind - {entry.offset for entry in log.entries})
        return fetch(self, partitions, limit)

    with patch.object(SimulatedConsumer, "_fetch", compacted):
        yield


Hitch = Callable[[], AbstractContextManager[None]]


async def _workers_join(world: World, hitch: Hitch) -> list[str]:
    """Return the violations if workers join one by one while a partition does not get ready, and after it is ready."""
    world.broker.append(world.topics.state, STUCK, b"@nothing", None)
    world.start("budget")
    violations = []
    with hitch():
        holder = world.start("worker")
        for joined in range(3):
            if joined:
                world.start("worker")
            await asyncio.sleep(WHILE)
            violations += _amiss(world, holder)
    questions = Questions(world.streams, 0)
    for _ in range(10):
        world.ask(*questions.next())
    return violations + (await world.settle() or world.examine())


def _amiss(world: World, holder: Service) -> list[str]:
    broker, members = world.broker, world.broker.listed(group_of("worker"))
    found = [f"no member: {one.process.name}" for one in world.workers() if one.process.name not in members]
    found += [
        f"nobody has partition {number}"
        for number in range(broker.partitions[world.topics.queries])
        if number != STUCK and world.owner(number) is None
    ]
    for one in world.workers():
        if (one is holder) is not (f"[{STUCK}]" in one.engine.health.not_ready_reason):
            found.append(f"{one.process.name} lacks {one.engine.health.not_ready_reason!r}")
    return found


@pytest.mark.parametrize("hitch", [_fences_that_do_not_end, _fetches_that_bring_nothing])
def test_partition_that_stays_unready_delays_no_other(hitch: Hitch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its service reports it."""
    story = partial(_workers_join, hitch=hitch)
    assert perform(story) == []
    with restores_that_an_order_to_stop_does_not_end():
        assert any("no member" in one for one in perform(story))
    capsys.readouterr()


def test_restore_survives_compaction_of_its_topic() -> None:
    """In schedules with all other faults, compaction during a restore loses no state and ends no restore early."""
    found: Counter[str] = Counter()
    with _compaction_between_fetches(found):
        reports = [play(seed) for seed in range(6)]
        assert not [str(report) for report in reports if report.violations]
    assert found["behind"] > 50
