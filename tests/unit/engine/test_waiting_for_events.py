"""A feed's step costs as much for one event as for hundreds, so after a few events it waits for more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from stream.engine import partition_task
from stream.engine.partition_task import CLOSING_SECONDS, FEW_EVENTS
from stream.processing.protocol import TimedProcessor
from tests.unit.engine.tasks import task_of_a_worker

TURNS = 20
PATIENCE = 30.0
NOW = 1_000_000.0


def processor(closes: float | None = None) -> TimedProcessor:
    """Return a processor whose next window is closed by an event in so many seconds, or by no time."""
    return cast(TimedProcessor, SimpleNamespace(closing_timestamp=None if closes is None else NOW + closes))


def fetched_records(count: int) -> Any:
    return {TopicPartition("events", 0): [cast(Any, object())] * count} if count else {}


async def run_loop_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [0, 1, FEW_EVENTS - 1, FEW_EVENTS, 5 * FEW_EVENTS])
async def test_wait_for_more_events_waits_only_after_few_events_until_stop(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(partition_task, "GATHERING_SECONDS", 3600.0)
    task = task_of_a_worker()
    waiting = asyncio.create_task(task._wait_for_more_events(processor(), fetched_records(count)))
    await run_loop_turns()
    assert waiting.done() is (count not in range(1, FEW_EVENTS))
    task.stop()
    await waiting


async def test_wait_for_more_events_wait_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_task, "GATHERING_SECONDS", 0.05)
    waiting = asyncio.create_task(task_of_a_worker()._wait_for_more_events(processor(), fetched_records(1)))
    await run_loop_turns()
    assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        await waiting


@pytest.mark.parametrize(
    ("closes", "waits"),
    [(3000.0, True), (-2 * CLOSING_SECONDS, True), (-3000.0, True), (0.0, False), (-CLOSING_SECONDS / 2, False)],
)
async def test_wait_for_more_events_does_not_wait_when_window_may_close(
    monkeypatch: pytest.MonkeyPatch, closes: float, waits: bool
) -> None:
    monkeypatch.setattr(partition_task, "GATHERING_SECONDS", 3600.0)
    task = task_of_a_worker(lambda: NOW)
    waiting = asyncio.create_task(task._wait_for_more_events(processor(closes), fetched_records(1)))
    await run_loop_turns()
    assert waiting.done() is not waits
    task.stop()
    await waiting


async def test_wait_for_more_events_waits_at_most_until_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_task, "GATHERING_SECONDS", 3600.0)
    waiting = asyncio.create_task(
        task_of_a_worker(lambda: NOW)._wait_for_more_events(processor(0.05), fetched_records(1))
    )
    await run_loop_turns()
    assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        await waiting
