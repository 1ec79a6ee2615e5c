"""Reads the trail and the answers with consumers that begin near the end of a topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from stream.engine.restore import READ_TIMEOUT_MS, readable, reader, require_visible
from stream.log import get_logger
from stream.monitor.api.budget_models import MAX_HELD_ENTRIES
from stream.monitor.state.budget_history import PACE_WINDOWS, TrailState
from stream.monitor.state.monitor_alerts import Alerts
from stream.monitor.state.monitor_tables import MonitorTables
from stream.processing.topic_names import Topics
from stream.settings import Settings

LOOK_BACK_SECONDS: Final = 7 * 86_400
"""Largest age, in seconds, of answers that are read at the start."""
LOOK_BACK_RECORDS: Final = 500_000
"""Most answers per partition, and most records of the trail, that are read at the start."""
_RETRY_SECONDS: Final = 5.0
_EARLIER_BATCH: Final = 500
"""Most earlier entries of the trail that are added at once: some milliseconds of the event loop."""
_POLL_SECONDS: Final = 0.25

log = get_logger("monitor")


def choose_start(first: int, recent: int, end: int) -> int:
    """Return the trail's offset to begin at; ``recent`` is that of the first entry that a forecast needs.

    The list is complete too, unless most entries are notes of spending. About every second offset is the
    marker of a transaction.
    """
    return max(min(recent, end - 2 * MAX_HELD_ENTRIES), end - LOOK_BACK_RECORDS, first)


class TrailReader:
    """Reads the trail into the tables: its end, then each new entry, and at last the entries before its end."""

    def __init__(
        self, settings: Settings, topics: Topics, tables: MonitorTables, is_ready: Callable[[], bool]
    ) -> None:
        """Create it; the earlier entries are read once ``is_ready`` returns True."""
        self._settings = settings
        self._trail = TopicPartition(topics.trail, 0)
        self._tables = tables
        self._is_ready = is_ready
        self._start: int | None = None
        """The offset at which reading began; the earlier entries end before it."""
        self._position = 0
        self._earlier: TrailState | None = None
        self._earlier_position = 0
        self.unread_offsets: int | None = None
        """Number of unread offsets that existed at the start; None while unknown."""

    async def run(self) -> NoReturn:
        """Read until cancelled; after an error continue at the same offset.

        A consumer that stops may swallow a cancellation, so this task itself uses none.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._retry(self._read_new))
            group.create_task(self._retry(self._read_earlier))
        raise AssertionError("new entries are read until the task is cancelled")

    async def _retry(self, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await read()
            except TopicAuthorizationFailedError:
                log.error("no permission to read the trail; see 'sotto topics acl --role monitor'")  # noqa: TRY400
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("reading the trail restarts", error=type(error).__name__)
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read_new(self) -> None:
        async with reader(self._settings, fetch_max_wait_ms=100) as consumer:
            await require_visible(consumer, self._trail.topic)
            consumer.assign([self._trail])
            end = (await consumer.end_offsets([self._trail]))[self._trail]
            if self._start is None:
                self._start = self._position = await self._find_start(consumer, end)
            consumer.seek(self._trail, self._position)
            while True:
                fetched = await consumer.getmany(
                    self._trail, timeout_ms=500, max_records=self._settings.batch_events
                )
                for record in readable(fetched.get(self._trail, ())):
                    self._tables.add_record(record)
                self._position = await consumer.position(self._trail)
                if self.unread_offsets != 0:
                    self.unread_offsets = max(end - self._position, 0)
                await asyncio.sleep(0)

    async def _find_start(self, consumer: Any, end: int) -> int:
        """Return the offset to begin at; if it is not the first one, make the tables' trail begin there."""
        first: int = (await consumer.beginning_offsets([self._trail]))[self._trail]
        since = round((time.time() - max(PACE_WINDOWS)) * 1000)
        recent = (await consumer.offsets_for_times({self._trail: since}))[self._trail]
        start = choose_start(first, end if recent is None else recent.offset, end)
        if start > first:
            self._tables.trail = TrailState(is_whole=False)
        self._earlier_position = first
        return start

    async def _read_earlier(self) -> None:
        """Read and check the entries before those of the start, in at most half of the event loop's time."""
        while self._start is None or not self._is_ready():  # noqa: ASYNC110  (a start ends once)
            await asyncio.sleep(_POLL_SECONDS)
        if self._earlier_position == self._start:
            return
        tables = self._tables
        if (earlier := self._earlier) is None:
            earlier = self._earlier = TrailState(room=tables.trail.room)
        async with reader(self._settings, fetch_max_wait_ms=100) as consumer:
            consumer.assign([self._trail])
            consumer.seek(self._trail, self._earlier_position)
            while self._earlier_position < self._start:
                fetched = await consumer.getmany(
                    self._trail, timeout_ms=READ_TIMEOUT_MS, max_records=_EARLIER_BATCH
                )
                began = time.perf_counter()
                for record in readable(fetched.get(self._trail, ())):
                    if record.offset < self._start:
                        tables.add_earlier_entry(earlier, record.value or b"")
                self._earlier_position = await consumer.position(self._trail)
                await asyncio.sleep(time.perf_counter() - began)
        tables.join_trail(earlier)
        log.info("the whole trail is read", entries=tables.trail.entries)


class AlertReader:
    """Reads answers into the alerts; after an error it continues at the same offsets."""

    def __init__(self, settings: Settings, topics: Topics, alerts: Alerts) -> None:
        self._settings = settings
        self._partitions = [TopicPartition(topics.answers, number) for number in range(topics.partitions)]
        self._alerts = alerts
        self._positions: dict[TopicPartition, int] = {}

    async def run(self) -> NoReturn:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except TopicAuthorizationFailedError:
                log.error(  # noqa: TRY400
                    "no permission to read answers, so no alerts are shown; see 'sotto topics acl --role monitor'"
                )
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("reading answers restarts", error=type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        async with reader(self._settings, fetch_max_wait_ms=100) as consumer:
            await require_visible(consumer, self._partitions[0].topic)
            consumer.assign(self._partitions)
            ends = await self._seek_to_first(consumer)
            while True:
                fetched = await consumer.getmany(timeout_ms=500, max_records=self._settings.batch_events)
                for partition, records in fetched.items():
                    for record in readable(records):
                        self._alerts.add_answer(record)
                    self._positions[partition] = records[-1].offset + 1
                    await asyncio.sleep(0)
                if not self._alerts.complete:
                    read = [await consumer.position(one) >= end for one, end in ends.items()]
                    self._alerts.complete = all(read)
                    if self._alerts.complete:
                        self._alerts.mark_changed()

    async def _seek_to_first(self, consumer: Any) -> dict[TopicPartition, int]:
        """Seek to the first unread answers and return the end offsets.

        At the start, these are the oldest answers within the look-back.
        """
        ends: dict[TopicPartition, int] = await consumer.end_offsets(self._partitions)
        since = round((time.time() - LOOK_BACK_SECONDS) * 1000)
        offsets = await consumer.offsets_for_times(dict.fromkeys(self._partitions, since))
        for partition, end in ends.items():
            look_back_start = end if offsets[partition] is None else offsets[partition].offset
            start = self._positions.get(partition, max(look_back_start, end - LOOK_BACK_RECORDS, 0))
            consumer.seek(partition, min(start, end))
        return ends
