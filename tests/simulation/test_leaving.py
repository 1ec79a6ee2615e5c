"""A worker that is told to stop while partitions are on their way to it leaves, and does not take them."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from stream.kafka.partition import PartitionTask
from tests.simulation.cast import group_of
from tests.simulation.mutations import partitions_taken_while_leaving
from tests.simulation.world import World, perform

SEEDS = range(5)
LONG_BATCH = 2.0
"""Virtual seconds that a task has its batch in hand when it is told to stop."""


async def _leaves(world: World) -> bool:
    """Whether a worker ends that is told to stop as soon as another one joins, and has taken nothing in between."""
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


def _all_leave() -> bool:
    left = []
    for seed in SEEDS:
        with patch.object(PartitionTask, "stop", _stop_after_a_long_batch):
            left.append(perform(_leaves, seed))
    return all(left)


def test_a_worker_told_to_stop_in_the_middle_of_a_rebalance_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    assert _all_leave()
    with partitions_taken_while_leaving():
        assert not _all_leave()
    capsys.readouterr()
