"""A batch of costly questions is divided by its work, committed piece by piece, and bounded so that other streams do not wait long."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition

from schemas import HaltStream
from stream.processing.topic_names import partition_of
from stream.worker import worker_processor as queries
from stream.worker.fair_shares import NO_LIMITS, SECOND, Work, WorkEstimator
from tests.chaos.load import event, question
from tests.simulation.cast import LIMITS, PARTITIONS
from tests.simulation.world import Service, World, perform

PIECE = SECOND // 2000
"""The work of a few questions of these tests."""
BURST = 200
PLAIN = ("stream-0", "stream-1")
UNENDING = ("histogram", "lazy_histogram", "sparse_project", "pmw")
"""Mechanisms that answer every question of the burst."""


@contextmanager
def small_pieces() -> Iterator[None]:
    with patch.object(queries, "MAX_BATCH_WORK", PIECE):
        yield


def _burst(world: World) -> str:
    """Ask one stream over the table many more questions than its partition accepts, and another stream one question."""
    spec = next(one for one in world.streams if one.mechanism.kind in UNENDING)
    chance = random.Random(1)
    for number in range(BURST):
        asked = question(spec.mechanism.kind, chance, on_table=True)
        world.ask(f"greedy-{number}", spec.stream, event(f"greedy-{number}", spec.stream, asked))
    home = partition_of(spec.stream.encode(), PARTITIONS)
    neighbor = next((one for one in PLAIN if partition_of(one.encode(), PARTITIONS) == home), PLAIN[0])
    world.ask("neighbor", neighbor, event("neighbor", neighbor, {"value": 0.0}))
    return spec.stream


def _reached(world: World, stream: str) -> list[int]:
    """Return the positions that were committed in a stream's partition, in order."""
    log = world.broker.logs[TopicPartition(world.topics.state, partition_of(stream.encode(), PARTITIONS))]
    return [json.loads(record.value or b"")["offset"] for record in log.committed() if record.key == b"@progress"]


def _outcomes(world: World, stream: str) -> list[str]:
    answers = world.broker.committed(world.topics.answers, partition_of(stream.encode(), PARTITIONS))
    found = [json.loads(record.value or b"") for record in answers if record.key == stream.encode()]
    return [one.get("reason", one["outcome"]).partition(":")[0] for one in found]


@contextmanager
def _works() -> Iterator[list[int]]:
    """Yield a list that gets the work of each examined question."""
    found: list[int] = []
    estimate = WorkEstimator.estimate

    def recorded(self: WorkEstimator, slot: int, query: Any) -> Work:
        work = estimate(self, slot, query)
        found.append(work.batch)
        return work

    with patch.object(WorkEstimator, "estimate", recorded):
        yield found


async def _started(world: World) -> Service:
    world.start("budget")
    worker = world.start("worker")
    await asyncio.sleep(10.0)
    return worker


async def _bounded(world: World) -> None:
    await _started(world)
    greedy = _burst(world)
    with _works() as works:
        assert await world.settle() == []
    outcomes = _outcomes(world, greedy)
    assert outcomes.count("busy") > BURST // 2
    assert outcomes[0] != "busy"
    assert [*_outcomes(world, PLAIN[0]), *_outcomes(world, PLAIN[1])] == ["below"]
    # A piece ends with the question that brings its work to the limit of a piece.
    largest = max(works)
    assert len(_reached(world, greedy)) >= (LIMITS.outstanding // 2 - largest) / (PIECE + largest)
    assert world.examine() == []


@pytest.mark.parametrize("seed", range(4))
def test_greedy_stream_is_busy_and_its_neighbor_is_answered(seed: int) -> None:
    with small_pieces():
        perform(_bounded, seed)


async def _interrupted(world: World, how: str) -> None:
    worker = await _started(world)
    greedy = _burst(world)
    while len(_reached(world, greedy)) < 3:
        await asyncio.sleep(0.005)
    answered = len(_outcomes(world, greedy))
    assert answered < BURST
    if how == "killed":
        worker.process.kill()
    else:
        worker.leaving = True
        worker.engine.stop()
        world.start("worker")
    await asyncio.sleep(2.0)
    if how == "told to stop":
        assert worker.task.done()
    assert await world.settle() == []
    assert world.examine() == []


@pytest.mark.parametrize("how", ["killed", "told to stop"])
@pytest.mark.parametrize("seed", range(3))
def test_backlog_continues_at_its_commit(seed: int, how: str) -> None:
    with small_pieces():
        perform(lambda world: _interrupted(world, how), seed, NO_LIMITS)


async def _halted(world: World) -> None:
    await _started(world)
    greedy = _burst(world)
    while len(_reached(world, greedy)) < 2:
        await asyncio.sleep(0.005)
    world.request(HaltStream(request="stop", source="people", stream=greedy))
    assert await world.settle() == []
    outcomes = _outcomes(world, greedy)
    assert (outcomes[0], outcomes[-1]) == ("answer", "halted on request")
    assert world.examine() == []


def test_halt_does_not_wait_for_the_end_of_a_backlog() -> None:
    with small_pieces():
        perform(_halted, 3, NO_LIMITS)
