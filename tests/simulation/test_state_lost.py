"""If a changelog is lost or rolled back and the group's offsets are not, no stream begins again."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from aiokafka import TopicPartition

from schemas import CloseStream, ExtendStream, HaltSource, OpenStream
from stream.processing.topic_names import partition_of
from tests.chaos.load import Questions
from tests.simulation.cast import PARTITIONS, group_of
from tests.simulation.logs import Log
from tests.simulation.world import Service, World, perform

Damage = Literal["lost", "set back"]
LATER = 60.0
"""Virtual seconds, long enough for several restores."""


async def _work(world: World) -> Service:
    """Let a worker answer some questions and leave, while the budget service stays.

    With a witness, services refuse what was lost instead (``test_rolled_back``).
    """
    world.witness = None
    world.start("budget")
    worker = world.start("worker")
    questions = Questions(world.streams, seed=1)
    for _ in range(10 * len(world.streams)):
        world.ask(*questions.next())
    assert await world.settle() == []
    return worker


async def _leave(worker: Service) -> None:
    worker.leaving = True
    worker.engine.stop()
    await asyncio.sleep(LATER)


def _answers(world: World, number: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in world.broker.committed(world.topics.answers, number)]


def _refuses(answer: bytes | None) -> bool:
    return json.loads(answer or b"")["outcome"] in {"halted", "rejected"}


def _damage(world: World, damage: Damage, topic: str) -> None:
    """Reduce each changelog to its first half, or empty it."""
    if damage == "lost":
        world.broker.recreate(topic)
        return
    for place in [place for place in world.broker.logs if place.topic == topic]:
        log = world.broker.logs[place]
        kept = log.committed()[: len(log.entries) // 2]
        older = Log(log.topic, place.partition)
        for record in kept:
            older.append([(record.key or b"", record.value, record.headers)], record.timestamp)
        world.broker.logs[place] = older


def _forget_first_queries(world: World) -> None:
    """Delete the first queries, as retention does."""
    for number in range(PARTITIONS):
        log = world.broker.logs[TopicPartition(world.topics.queries, number)]
        log.start = log.end - 1
        log.entries = [entry for entry in log.entries if entry.offset >= log.start]


@pytest.mark.parametrize("damage", ["lost", "set back"])
@pytest.mark.parametrize("seed", range(4))
def test_open_streams_repeat_their_answers_byte_for_byte(seed: int, damage: Damage) -> None:
    async def scene(world: World) -> None:
        await _leave(await _work(world))
        first = [_answers(world, number) for number in range(PARTITIONS)]
        _damage(world, damage, world.topics.state)
        world.start("worker")
        await asyncio.sleep(LATER)
        repeated: list[bool] = []
        for number, before in enumerate(first):
            again = _answers(world, number)[len(before) :]
            assert again, "the worker must answer what its state does not know"
            pairs = list(zip(again, before[-len(again) :], strict=True))
            # Streams that control has ended since do not answer any more; all other streams give the same answers.
            assert all(now == then or _refuses(now[1]) for now, then in pairs)
            repeated += [now == then and not _refuses(now[1]) for now, then in pairs]
            assert damage == "set back" or len(again) == len(before)
        assert any(repeated)

    perform(scene, seed)


@pytest.mark.parametrize("damage", ["lost", "set back"])
def test_extended_stream_answers_nothing_again_until_it_has_ended(damage: Damage) -> None:
    async def scene(world: World) -> None:
        worker = await _work(world)
        spec = world.streams[0]
        number = partition_of(spec.stream.encode(), PARTITIONS)
        more = ExtendStream(request="more", source=spec.source, stream=spec.stream, epsilon=spec.epsilon)
        world.request(more)
        assert await world.settle() == []
        await _leave(worker)
        before = len(_answers(world, number))
        _damage(world, damage, world.topics.state)
        world.start("worker")
        await asyncio.sleep(LATER)
        assert len(_answers(world, number)) == before

        world.request(CloseStream(request="end", source=spec.source, stream=spec.stream))
        await asyncio.sleep(LATER)
        again = _answers(world, number)[before:]
        assert again, "the other streams bring the state up to date"
        assert all(_refuses(value) for key, value in again if key == spec.stream.encode())

    perform(scene)


@pytest.mark.parametrize("damage", ["lost", "set back"])
def test_nothing_is_answered_if_needed_queries_are_gone(damage: Damage) -> None:
    async def scene(world: World) -> None:
        questions = Questions(world.streams, seed=2)
        await _leave(await _work(world))
        before = [len(_answers(world, number)) for number in range(PARTITIONS)]
        _damage(world, damage, world.topics.state)
        _forget_first_queries(world)
        for spec in world.streams:
            world.ask(*questions.next(spec))
        world.start("worker")
        await asyncio.sleep(LATER)
        assert [len(_answers(world, number)) for number in range(PARTITIONS)] == before

        for source in {spec.source for spec in world.streams}:
            world.request(HaltSource(request=f"halt-{source}", source=source, reason="state lost"))
        await asyncio.sleep(LATER)
        world.broker.group(group_of("worker")).offsets.clear()
        await asyncio.sleep(LATER)
        for number, count in enumerate(before):
            later = _answers(world, number)[count:]
            assert later, "once the streams are halted, the queries that waited are answered"
            assert all(_refuses(value) for _, value in later)

    perform(scene)


@pytest.mark.parametrize("seed", range(4))
def test_stream_defined_after_the_restore_continues(seed: int) -> None:
    async def scene(world: World) -> None:
        worker, control = await _work(world), world.topics.control
        events = [record for number in range(PARTITIONS) for record in world.broker.committed(control, number)]
        await _leave(worker)
        world.broker.recreate(control)
        world.start("worker")
        await asyncio.sleep(LATER)
        for record in events:
            world.broker.append(control, record.partition, record.key or b"", record.value)
        await asyncio.sleep(LATER)
        questions = Questions(world.streams, seed=4)
        for spec in world.streams:
            identifier, stream, value = questions.next(spec)
            later = f"later-{identifier}"
            world.ask(later, stream, value.replace(identifier.encode(), later.encode()))
        assert await world.settle() == []
        assert world.examine() == []

    perform(scene, seed)


@pytest.mark.parametrize("damage", ["lost", "set back"])
def test_budget_service_without_its_ledger_grants_nothing_twice(damage: Damage) -> None:
    async def scene(world: World) -> None:
        ledger, control = TopicPartition(world.topics.ledger, 0), TopicPartition(world.topics.control, 0)
        budget = world.start("budget")
        world.start("worker")
        questions = Questions(world.streams, seed=3)
        for _ in range(10 * len(world.streams)):
            world.ask(*questions.next())
        assert await world.settle() == []
        await _leave(budget)
        _damage(world, damage, world.topics.ledger)
        before = [len(world.broker.committed(*place)) for place in (ledger, control)]
        for spec in world.streams:
            again = spec.model_copy(update={"stream": f"{spec.stream}-again"})
            world.request(OpenStream(request=f"open-{again.stream}", stream=again))
        world.start("budget")
        await asyncio.sleep(LATER)
        assert [len(world.broker.committed(*place)) for place in (ledger, control)] == before

    perform(scene)
