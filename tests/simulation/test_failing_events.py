"""Faults of Sotto itself: valid questions are retried and never refused, and a partition that cannot continue reports it."""

from __future__ import annotations

import asyncio
import json

import pytest

from stream.engine.batch_loop import FAILURES_UNTIL_NOT_READY
from tests.chaos.load import Questions
from tests.simulation.world import World, perform

MANY = 1000
"""More failures than a schedule has time for."""


def _ask(world: World, questions: Questions, failures: int) -> bytes:
    identifier, stream, value = questions.next()
    world.failures[value] = failures
    world.ask(identifier, stream, value)
    return value


async def _transient(world: World) -> list[str]:
    world.start("budget")
    world.start("worker")
    questions = Questions(world.streams, 0)
    for number in range(20):
        _ask(world, questions, failures=3 if number % 7 == 0 else 0)
    return await world.settle() or world.examine()


def test_worker_answers_a_question_that_failed_three_times() -> None:
    """The checker finds one answer to each question and no dead letter that it does not expect."""
    assert perform(_transient) == []


async def _lasting(world: World) -> list[str]:
    world.start("budget")
    worker = world.start("worker")
    questions = Questions(world.streams, 0)
    value = _ask(world, questions, failures=MANY)
    for _ in range(10):
        _ask(world, questions, failures=0)
    await asyncio.sleep(60.0)
    assert MANY - world.failures[value] >= FAILURES_UNTIL_NOT_READY
    assert "no later record is processed, and nothing is lost" in worker.engine.health.not_ready_reason
    assert "ZeroDivisionError in cast.py" in worker.engine.health.not_ready_reason
    answered = {
        json.loads(record.value or b"")["id"]
        for partition in range(world.topics.partitions)
        for record in world.broker.committed(world.topics.answers, partition)
    }
    assert json.loads(value)["id"] not in answered
    world.failures[value] = 0
    await asyncio.sleep(90.0)
    assert worker.engine.health.not_ready_reason == ""
    return await world.settle() or world.examine()


def test_worker_is_not_ready_while_a_question_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """After some tries, /readyz names the record and the place of the error; after its correction every question is answered."""
    assert perform(_lasting) == []
    assert "queries" in capsys.readouterr().out
