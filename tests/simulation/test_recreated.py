"""After input topics are deleted and created again, no record is skipped, and streams halt rather than answer again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from schemas import HaltSource, StreamSpec
from tests.chaos.load import Questions
from tests.simulation.cast import CASTS, PARTITIONS, cast
from tests.simulation.world import World, perform


async def _answers_after_recreation(
    world: World, *, running: bool, before: int, after: Sequence[StreamSpec | None]
) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the answers to the questions of a new topic, and their ids.

    ``before`` questions per stream are asked before the topic is created again, and one of each of ``after`` at once after it.
    """
    questions = Questions(world.streams, seed=1)
    world.start("budget")
    worker = world.start("worker")
    for _ in range(before * len(world.streams)):
        world.ask(*questions.next())
    assert await world.settle() == []
    if not running:
        worker.leaving = True
        worker.engine.stop()
        await asyncio.sleep(30.0)
    world.broker.recreate(world.topics.queries)
    first = len(world.asked)
    for spec in after:
        world.ask(*questions.next(spec))
    if not running:
        world.start("worker")
    assert await world.settle() == []
    asked = set(world.asked[first:])
    answers = [
        json.loads(record.value or b"")
        for number in range(PARTITIONS)
        for record in world.broker.committed(world.topics.answers, number)
    ]
    return [answer for answer in answers if answer["id"] in asked], asked


async def _outcomes_after_recreation(world: World, *, running: bool) -> dict[str, str]:
    """Return each stream's outcome for the first question of the new topic."""
    answers, _ = await _answers_after_recreation(world, running=running, before=10, after=world.streams)
    return {answer["stream"]: answer["outcome"] for answer in answers}


async def _answers_after_growth(world: World, *, running: bool) -> tuple[Counter[str], set[str]]:
    """Return how often each question of a new topic is answered if it grows past the old offsets at once, and the asked questions."""
    after = [None] * 12 * len(world.streams)
    answers, asked = await _answers_after_recreation(world, running=running, before=4, after=after)
    return Counter(answer["id"] for answer in answers), asked


@pytest.mark.parametrize("running", [True, False], ids=["while a worker reads it", "while nobody reads it"])
@pytest.mark.parametrize("seed", range(4))
def test_queries_created_again_are_answered_once_each(seed: int, running: bool) -> None:
    """A new topic that has grown past the old offsets is read from its beginning: every question has one answer."""
    answered, asked = perform(partial(_answers_after_growth, running=running), seed)
    assert answered == Counter(asked)


async def _decided_after_recreation(world: World) -> list[str]:
    """Return the requests with a receipt, among requests before and after the topic was created again."""
    world.start("budget")
    world.start("worker")
    for number in range(5):
        world.request(HaltSource(request=f"before-{number}", source=f"no-{number}", reason="gone"))
    assert await world.settle() == []
    world.broker.recreate(world.topics.requests)
    for number in range(20):
        world.request(HaltSource(request=f"after-{number}", source=f"no-{number}", reason="gone"))
    assert await world.settle() == []
    records = world.broker.committed(world.topics.ledger, 0)
    receipts = [
        json.loads(record.value or b"") for record in records if (record.key or b"").startswith(b"receipt|")
    ]
    return [receipt["request"] for receipt in receipts if receipt["request"].startswith(("before-", "after-"))]


@pytest.mark.parametrize("seed", range(2))
def test_requests_created_again_are_all_decided(seed: int) -> None:
    """The budget service reads a new topic of requests from its beginning, although it has grown past the old offsets."""
    decided = perform(_decided_after_recreation, seed)
    assert Counter(decided) == Counter(
        [f"before-{one}" for one in range(5)] + [f"after-{one}" for one in range(20)]
    )


@pytest.mark.parametrize("running", [True, False], ids=["while a worker reads it", "while nobody reads it"])
@pytest.mark.parametrize("seed", range(4))
def test_streams_halt_rather_than_answer_again(seed: int, running: bool) -> None:
    outcomes = perform(partial(_outcomes_after_recreation, running=running), seed)
    assert outcomes.keys() == {spec.stream for spec in cast(seed % CASTS)}
    assert "halted" in outcomes.values()
    assert set(outcomes.values()) <= {"halted", "rejected"}, "a malformed question is rejected, no other answered"
