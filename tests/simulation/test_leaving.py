"""A worker that is told to stop during a rebalance leaves its group without taking its new partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition

from schemas import OpenStream
from stream.engine.partition_task import PartitionTask
from stream.engine.writer import Writer
from stream.processing.protocol import Outputs
from tests.chaos.load import Questions
from tests.simulation import broker
from tests.simulation.cast import group_of
from tests.simulation.clients import SimulatedConsumer
from tests.simulation.stopping_mutations import (
    partitions_taken_while_leaving,
    refused_while_stopping,
    tasks_out_of_view_while_they_stop,
)
from tests.simulation.world import World, perform

SEEDS = range(5)
EARLY_SEEDS = range(20)
LONG_BATCH = 2.0
"""Virtual seconds that a task still needs for its batch when it is told to stop."""
SLOW_COMMIT = 3.0
"""Virtual seconds that a commit takes while a worker leaves."""

_stop_at_once = SimulatedConsumer.stop


async def _leaves(world: World) -> bool:
    """Return whether a worker ends if it is told to stop as soon as another worker joins, without taking questions in between."""
    leaving = world.start("worker")
    await asyncio.sleep(10.0)
    world.start("worker")
    while not world.broker.group(group_of("worker")).rebalancing:
        await asyncio.sleep(0.01)
    leaving.leaving = True
    leaving.engine.stop()
    await asyncio.sleep(30.0)
    return leaving.task.done() and not leaving.engine._tasks


def _stop_after_a_long_batch(task: PartitionTask) -> None:
    asyncio.get_running_loop().call_later(LONG_BATCH, task._stopping.set)


async def _stop_after_the_rebalance(consumer: SimulatedConsumer) -> None:
    """Leave like aiokafka, which first finishes a rebalance that is under way."""
    await consumer._settled.wait()
    await _stop_at_once(consumer)


def _all_leave() -> bool:
    left = []
    for seed in SEEDS:
        with (
            patch.object(PartitionTask, "stop", _stop_after_a_long_batch),
            patch.object(SimulatedConsumer, "stop", _stop_after_the_rebalance),
        ):
            left.append(perform(_leaves, seed))
    return all(left)


def test_worker_stopped_during_a_rebalance_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    assert _all_leave()
    with partitions_taken_while_leaving():
        assert not _all_leave()
    capsys.readouterr()


class _SlowCommits:
    """Makes commits slow once ``slow`` is set, and counts the writers that are closed during a commit."""

    def __init__(self) -> None:
        self.slow = False
        self.cut = 0
        self.committing: list[Writer] = []

    def watch(self) -> AbstractContextManager[object]:
        commit, close = Writer.commit, Writer.close

        async def slowly(writer: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
            self.committing.append(writer)
            try:
                await asyncio.sleep(SLOW_COMMIT if self.slow else 0.0)
                await commit(writer, outputs, positions)
            finally:
                self.committing.remove(writer)

        async def counted(writer: Writer) -> None:
            self.cut += writer in self.committing
            await close(writer)

        return patch.multiple(Writer, commit=slowly, close=counted)


def _cut_while_leaving() -> int:
    """Return how many commits were cut off because a worker joined just after another worker was told to stop."""
    commits = _SlowCommits()

    async def scene(world: World) -> bool:
        world.start("budget")
        leaving = world.start("worker")
        await asyncio.sleep(10.0)
        commits.slow = True
        questions = Questions(world.streams, 0)
        for _ in range(12):
            world.ask(*questions.next())
        while not commits.committing:
            await asyncio.sleep(0.01)
        leaving.leaving = True
        leaving.engine.stop()
        world.start("worker")
        await asyncio.sleep(20.0)
        return leaving.task.done()

    with commits.watch():
        assert perform(scene)
    return commits.cut


def test_rebalance_while_a_worker_leaves_interrupts_no_commit() -> None:
    assert _cut_while_leaving() == 0
    with tasks_out_of_view_while_they_stop():
        assert _cut_while_leaving() > 0


async def _asked_too_early(world: World) -> list[str]:
    """Return the violations after a worker had to stop for a rebalance before the opening for which its queries waited arrived."""
    world.start("budget")
    world.start("worker")
    await asyncio.sleep(10.0)
    spec = world.streams[0].model_copy(update={"stream": "opened-later"})
    world.request(OpenStream(request="open", stream=spec))
    while not world.has_receipt("open"):
        await asyncio.sleep(0.01)
    questions = Questions(world.streams, 0)
    for _ in range(3):
        world.ask(*questions.next(spec))
    world.start("worker")
    return await world.settle() or world.examine()


def _violations_of_early_questions() -> list[str]:
    with patch.object(broker, "MARKER_DELAYS", (4.0,)):
        return [violation for seed in EARLY_SEEDS for violation in perform(_asked_too_early, seed)]


def test_worker_stopped_during_an_opening_refuses_nothing() -> None:
    assert _violations_of_early_questions() == []
    with refused_while_stopping():
        assert _violations_of_early_questions() != []
