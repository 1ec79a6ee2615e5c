"""An input topic that is deleted and made anew while workers read it: streams halt rather than answer again."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest

from tests.chaos.load import Questions
from tests.simulation.cast import CASTS, PARTITIONS, cast
from tests.simulation.world import World, perform


async def _outcomes_after_recreation(world: World, *, running: bool) -> dict[str, str]:
    """How each stream answers the first question of the new topic."""
    questions = Questions(world.streams, seed=1)
    world.start("budget")
    worker = world.start("worker")
    for _ in range(10 * len(world.streams)):
        world.ask(*questions.next())
    assert await world.settle() == []
    if not running:
        worker.leaving = True
        worker.engine.stop()
        await asyncio.sleep(30.0)
    world.broker.recreate(world.topics.queries)
    before = len(world.asked)
    for spec in world.streams:
        world.ask(*questions.next(spec))
    if not running:
        world.start("worker")
    assert await world.settle() == []
    asked = set(world.asked[before:])
    answers = [
        json.loads(record.value or b"")
        for number in range(PARTITIONS)
        for record in world.broker.committed(world.topics.answers, number)
    ]
    return {answer["stream"]: answer["outcome"] for answer in answers if answer["id"] in asked}


@pytest.mark.parametrize("running", [True, False], ids=["while a worker reads it", "while nobody reads it"])
@pytest.mark.parametrize("seed", range(4))
def test_streams_halt_rather_than_answer_again(seed: int, running: bool) -> None:
    outcomes = perform(partial(_outcomes_after_recreation, running=running), seed)
    assert outcomes.keys() == {spec.stream for spec in cast(seed % CASTS)}
    assert "halted" in outcomes.values()
    assert set(outcomes.values()) <= {"halted", "rejected"}, "a malformed question is rejected, no other answered"
