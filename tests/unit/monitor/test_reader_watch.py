"""The monitor is ready only while its own readers follow the ends that another client sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream.monitor import reader_watch
from stream.monitor.api.models import Readiness
from stream.monitor.monitor_service import CONTACT_SECONDS, _readiness
from stream.monitor.reader_watch import ReaderWatch
from stream.settings import Settings

STATUS, TRAIL = TopicPartition("status", 0), TopicPartition("trail", 0)
LONG = CONTACT_SECONDS + 1


def make_watch() -> ReaderWatch:
    return ReaderWatch(Settings(), [])


def readiness(watch: ReaderWatch) -> Readiness:
    reader: Any = SimpleNamespace(unread_offsets=0)
    groups: Any = SimpleNamespace(answered_at=time.monotonic(), fault="")
    return _readiness(reader, reader, groups, watch)


def test_monitor_is_not_ready_while_a_reader_gets_no_records() -> None:
    """One partition suffices, even if the others are read; the reason names the remedy."""
    watch, now = make_watch(), time.monotonic()
    watch.add_ends({STATUS: 5, TRAIL: 3}, {STATUS: 6, TRAIL: 3}, now - LONG)
    assert watch.longest_wait == 0.0
    watch.add_ends({STATUS: 5, TRAIL: 9}, {STATUS: 6, TRAIL: 9}, now)
    found = readiness(watch)
    assert not found.ready
    assert "restart the monitor if certificates or passwords were changed" in str(found.reason)
    watch.add_ends({STATUS: 6, TRAIL: 9}, {STATUS: 6, TRAIL: 9}, now)
    assert readiness(watch) == Readiness(ready=True, behind=0)


def test_monitor_stays_ready_with_idle_topics() -> None:
    """Topics without new records, or without any, are up to date; a wait begins with the first new record."""
    watch, now = make_watch(), time.monotonic()
    for seconds in (1000.0, LONG, 1.0):
        watch.add_ends({STATUS: 0, TRAIL: 5}, {STATUS: 0, TRAIL: 5}, now - seconds)
    watch.add_ends({STATUS: 0, TRAIL: 5}, {STATUS: 1, TRAIL: 5}, now)
    assert readiness(watch).ready
    assert watch.longest_wait == 0.0


def test_monitor_stays_ready_while_a_slow_reader_moves() -> None:
    watch, now = make_watch(), time.monotonic()
    for position, seconds in enumerate((3 * LONG, 2 * LONG, LONG, 0.0)):
        watch.add_ends({STATUS: position}, {STATUS: 1000}, now - seconds)
        assert watch.longest_wait == 0.0
    assert readiness(watch).ready


def test_monitor_is_not_ready_after_a_topic_was_set_back() -> None:
    """Later records do not bring the lost ones back, so the monitor must be restarted; a short lag of an end is none."""
    watch, now = make_watch(), time.monotonic()
    for end, seconds, is_ready in (
        (5, 90.0, True),
        (4, 80.0, True),
        (5, 70.0, True),
        (3, 60.0, True),
        (4, 30.0, False),
    ):
        watch.add_ends({TRAIL: min(5, end)}, {TRAIL: end}, now - seconds)
        assert (watch.set_back is None) == is_ready
    watch.add_ends({TRAIL: 9}, {TRAIL: 9}, now)
    assert (
        readiness(watch).reason
        == "trail was set back behind records that the monitor has read, so figures may be old: restart the monitor"
    )


def test_monitor_is_not_ready_without_recent_comparison() -> None:
    watch = make_watch()
    assert readiness(watch) == Readiness(ready=False, behind=0, reason="Kafka does not answer")
    watch.add_ends({}, {}, time.monotonic() - LONG)
    assert not readiness(watch).ready
    watch.add_ends({}, {}, time.monotonic())
    assert readiness(watch).ready


async def test_monitor_is_not_ready_while_kafka_refuses_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the missing right, also if the right is taken away later; no position is compared meanwhile."""
    consumer: Any = SimpleNamespace(end_offsets=AsyncMock(return_value={}))
    monkeypatch.setattr(reader_watch, "create_reader", lambda _: nullcontext(consumer))
    monkeypatch.setattr(reader_watch, "CHECK_SECONDS", 0.001)
    refusal = TopicAuthorizationFailedError("answers")
    reader: Any = SimpleNamespace(positions=AsyncMock(side_effect=refusal))
    watch = ReaderWatch(Settings(), [reader])
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(watch.run())
        await wait_until(lambda: readiness(watch).reason == reader_watch.REFUSED)
        reader.positions.side_effect = None
        reader.positions.return_value = {}
        await wait_until(lambda: readiness(watch).ready)
        task.cancel()
    assert watch.fault == reader_watch.SILENT


async def wait_until(is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        await asyncio.sleep(0.001)
