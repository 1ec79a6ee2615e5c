"""After all topics and offsets are rolled back together, nothing is granted, and no stream answers other questions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiokafka import TopicPartition

from schemas import OpenStream
from tests.chaos.load import Questions
from tests.simulation.cast import PARTITIONS, group_of
from tests.simulation.logs import Log
from tests.simulation.world import ANCHORED as REMAINDERS
from tests.simulation.world import Service, World, perform

LATER = 60.0
"""Virtual seconds, long enough for anchors and several restores."""
SEEDS = tuple(seed for seed in range(54) if seed % 9 in REMAINDERS)


class Backup:
    """A copy of the logs and of the groups' offsets at one moment."""

    def __init__(self, world: World) -> None:
        self._logs = {place: _copy(log) for place, log in world.broker.logs.items()}
        self._offsets = {name: dict(group.offsets) for name, group in world.broker.groups.items()}

    def restore(self, world: World) -> None:
        world.broker.logs.update({place: _copy(log) for place, log in self._logs.items()})
        for name, offsets in self._offsets.items():
            world.broker.group(name).offsets = dict(offsets)


def _copy(log: Log) -> Log:
    return replace(log, entries=list(log.entries), open={}, ended=dict(log.ended), removed=[], awaited={})


async def _ask(world: World, seed: int) -> None:
    questions = Questions(world.streams, seed)
    for _ in range(6 * len(world.streams)):
        world.ask(*questions.next())
    assert await world.settle() == []


async def _leave(*services: Service) -> None:
    for service in services:
        service.leaving = True
        service.engine.stop()
    await asyncio.sleep(LATER)


async def _set_back(world: World) -> tuple[list[int], Service, Service]:
    """Roll a world back to an earlier state, start its services, and ask other questions at the old offsets."""
    services = world.start("budget"), world.start("worker")
    await _ask(world, seed=1)
    backup = Backup(world)
    await _ask(world, seed=2)
    if world.witness is not None:
        world.witness.failure_rate = 0.0
    await asyncio.sleep(LATER)
    await _leave(*services)
    backup.restore(world)
    before = [len(world.broker.committed(world.topics.answers, number)) for number in range(PARTITIONS)]
    questions = Questions(world.streams, seed=3)
    for _ in range(6 * len(world.streams)):
        world.ask(*questions.next())
    restarted = world.start("budget"), world.start("worker")
    spec = world.streams[0].model_copy(update={"stream": "late"})
    world.request(OpenStream(request="late", stream=spec))
    await asyncio.sleep(LATER)
    answered = [len(world.broker.committed(world.topics.answers, number)) for number in range(PARTITIONS)]
    return [now - then for now, then in zip(answered, before, strict=True)], *restarted


@pytest.mark.parametrize("seed", SEEDS)
def test_installation_set_back_grants_and_answers_nothing(seed: int) -> None:
    """Services stay up, and report the finding at /readyz."""

    async def scene(world: World) -> None:
        answered, budget, worker = await _set_back(world)
        assert answered == [0] * PARTITIONS
        assert not world.has_receipt("late")
        for service in (budget, worker):
            assert service in world.services
            assert "anchored" in service.engine.health.not_ready_reason
            assert service.engine.metrics.rolled_back._value.get() > 0

    perform(scene, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_installation_without_witness_answers_again(seed: int) -> None:
    """Without a witness nothing notices the rollback, so the test above can fail."""

    async def scene(world: World) -> None:
        world.witness = None
        answered, _, _ = await _set_back(world)
        assert sum(answered) > 0
        assert world.has_receipt("late")

    perform(scene, seed)


def test_partition_that_lost_nothing_continues() -> None:
    """Only partitions behind their anchors are refused."""

    async def scene(world: World) -> None:
        services = world.start("budget"), world.start("worker")
        await _ask(world, seed=1)
        backup = Backup(world)
        await _ask(world, seed=2)
        await asyncio.sleep(LATER)
        await _leave(*services)
        place = TopicPartition(world.topics.state, 1)
        world.broker.logs[place] = backup._logs[place]
        world.broker.group(group_of("worker")).offsets.pop(TopicPartition(world.topics.queries, 1), None)
        before = [len(world.broker.committed(world.topics.answers, number)) for number in range(PARTITIONS)]
        questions = Questions(world.streams, seed=3)
        for _ in range(6 * len(world.streams)):
            world.ask(*questions.next())
        world.start("budget")
        world.start("worker")
        await asyncio.sleep(LATER)
        after = [len(world.broker.committed(world.topics.answers, number)) for number in range(PARTITIONS)]
        assert after[0] > before[0]
        assert after[1] == before[1]

    perform(scene, SEEDS[0])
