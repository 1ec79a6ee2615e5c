"""A step of a feed costs as much for one event as for hundreds: after a few it lets others come."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from stream.kafka import partition
from stream.kafka.partition import FEW_EVENTS
from tests.unit.kafka.tasks import task_of_a_worker

TURNS = 20


def fetched(count: int) -> Any:
    return {TopicPartition("events", 0): [cast(Any, object())] * count} if count else {}


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [0, FEW_EVENTS, 5 * FEW_EVENTS])
async def test_nothing_and_many_events_are_followed_by_the_next_step_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(partition, "GATHERING_SECONDS", 3600.0)
    task = task_of_a_worker()
    letting = asyncio.create_task(task._let_gather(fetched(count)))
    await turns()
    assert letting.done()


@pytest.mark.parametrize("count", [1, FEW_EVENTS - 1])
async def test_a_few_events_are_followed_by_a_wait_that_an_order_to_stop_ends(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(partition, "GATHERING_SECONDS", 3600.0)
    task = task_of_a_worker()
    letting = asyncio.create_task(task._let_gather(fetched(count)))
    await turns()
    assert not letting.done()
    task.stop()
    await letting


async def test_a_wait_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "GATHERING_SECONDS", 0.001)
    await task_of_a_worker()._let_gather(fetched(1))
