"""Reads committed answers from the log: those of one stream, or those of all streams for ``watch``.

``AnswerLog`` reads all answers of a stream, or a page of them, newest first. A page is read in blocks of offsets,
from the end of the stream's partition backwards. Other streams' answers are in the same partition, so a page ends
after ``MAX_PAGE_BYTES`` even if it is not full.

Each call of ``watch`` has a separate consumer of all answers. It also reads the ledger, from which it learns the
ends of streams.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError

from schemas.wire import MalformedEventError
from stream.client.kafka_connection import KafkaConnection
from stream.client.ledger_reader import OpeningReader
from stream.engine.restore import create_reader, read_span, read_to_end, require_visible, select_readable
from stream.processing.topic_names import Topics, partition_of
from stream.questions import Result
from stream.questions.alert_states import Notice
from stream.questions.stream_watch import Watch
from stream.settings import Settings

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records after which no further block of a page is read.

If the first block of a page exceeds this, a smaller block is read in its place, down to one record of any
size, so that each page makes progress.
"""

_FIRST_BLOCK_OFFSETS: Final = 64
_BLOCK_GROWTH: Final = 4
"""Factor from the size of a block to the next one's."""
_BLOCK_SHRINKING: Final = 8
"""Divisor of the size of a first block that is too large."""
_FETCH_BYTES: Final = 256 * 1024
"""Bytes of one fetch, which may reach beyond the block."""
_FETCHED_RECORDS: Final = 500
_CLOCK_SKEW_SECONDS: Final = 600.0
"""Maximum number of seconds by which two brokers' clocks may differ."""


class LoggedAnswer(NamedTuple):
    """An answer with its offset and its commit time in Unix seconds."""

    time: float
    offset: int
    result: Result


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """Answers, newest first.

    ``before`` is the offset before which the next page begins; None if no older answers exist. ``oldest_read`` is the
    time of the oldest record that was read, of any stream. ``preceding`` is the answer before the page's oldest answer,
    if it was read. Answers that cannot be decoded are left out; ``unreadable`` is their number.
    """

    answers: Sequence[LoggedAnswer]
    before: int | None
    oldest_read: float | None
    preceding: LoggedAnswer | None
    unreadable: int


class AnswerLog:
    """Reads a stream's answers with a separate consumer for each call."""

    def __init__(
        self, settings: Settings, topics: Topics, open_reader: Callable[..., Any] = create_reader
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._open_reader = open_reader

    async def read_all(self, stream: str) -> list[Result]:
        """Return the stream's answers up to now, oldest first; raise MalformedEventError if one is unreadable."""
        key = stream.encode()
        found: list[Result] = []
        async with self._open_reader(self._settings) as consumer:
            await require_visible(consumer, self._topics.answers)
            async for records in read_to_end(consumer, self._partition(key), self._settings.batch_events):
                found.extend(Result.read(record.value) for record in records if record.key == key)
        return found

    async def read_page(
        self,
        stream: str,
        limit: int,
        *,
        before: int | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> AnswerPage:
        """Return the newest answers before an offset and before the time ``until``.

        The caller asserts that the stream has no answers before the time ``since``; the search starts there.
        """
        key = stream.encode()
        partition = self._partition(key)
        async with self._open_reader(self._settings, max_partition_fetch_bytes=_FETCH_BYTES) as consumer:
            await require_visible(consumer, self._topics.answers)
            consumer.assign([partition])
            page = _PageReader(consumer, partition, key, limit)
            first = (await consumer.beginning_offsets([partition]))[partition]
            end = (await consumer.end_offsets([partition]))[partition]
            if since is not None:
                first = max(first, await page.offset_at(since - _CLOCK_SKEW_SECONDS, end))
            if until is not None:
                end = min(end, await page.offset_at(until, end))
            return await page.read(first, end if before is None else min(end, before))

    def _partition(self, key: bytes) -> TopicPartition:
        return TopicPartition(self._topics.answers, partition_of(key, self._topics.partitions))


@dataclass(slots=True)
class _PageReader:
    consumer: Any
    partition: TopicPartition
    key: bytes
    limit: int
    found: list[LoggedAnswer] = field(default_factory=list)
    bytes_read: int = 0
    oldest_read: float | None = None
    unreadable: int = 0

    async def offset_at(self, time: float, end: int) -> int:
        """Return the offset of the first record at or after a time; ``end`` if there is none."""
        asked = {self.partition: max(round(time * 1000), 0)}
        found = (await self.consumer.offsets_for_times(asked))[self.partition]
        return end if found is None else int(found.offset)

    async def read(self, first: int, end: int) -> AnswerPage:
        """Read blocks backwards from ``end`` until the page is full, the bytes are used up or the log begins."""
        size, blocks, start_of_page = _FIRST_BLOCK_OFFSETS, 0, end
        while first < end and len(self.found) <= self.limit and (self.bytes_read < MAX_PAGE_BYTES or not blocks):
            start = max(first, end - size)
            left = MAX_PAGE_BYTES - (self.bytes_read if blocks else 0)
            block = await self._read_block(start, end, math.inf if end - start == 1 else left)
            if block is None:
                if blocks:
                    break
                size = max((end - start) // _BLOCK_SHRINKING, 1)
                continue
            self.found += reversed(block)
            end, blocks = start, blocks + 1
            bytes_per_offset = max(self.bytes_read / (start_of_page - end), 1.0)
            size = max(min(size * _BLOCK_GROWTH, int((MAX_PAGE_BYTES - self.bytes_read) / bytes_per_offset)), 1)
        kept, preceding = self.found[: self.limit], self.found[self.limit : self.limit + 1]
        more = kept[-1].offset if preceding else end if first < end else None
        return AnswerPage(kept, more, self.oldest_read, preceding[0] if preceding else None, self.unreadable)

    async def _read_block(self, start: int, end: int, most_bytes: float) -> list[LoggedAnswer] | None:
        """Return the stream's answers from ``start`` to ``end``; None if the block exceeds ``most_bytes``."""
        answers: list[LoggedAnswer] = []
        oldest: float | None = None
        unreadable, bytes_before = 0, self.bytes_read
        async with aclosing(read_span(self.consumer, self.partition, start, end, _FETCHED_RECORDS)) as batches:
            async for records in batches:
                for record in records:
                    self.bytes_read += len(record.value or b"") + len(record.key or b"")
                    oldest = record.timestamp / 1000 if oldest is None else oldest
                    if record.key != self.key:
                        continue
                    try:
                        answer = LoggedAnswer(record.timestamp / 1000, record.offset, Result.read(record.value))
                    except MalformedEventError:
                        unreadable += 1
                    else:
                        answers.append(answer)
                if self.bytes_read - bytes_before > most_bytes:
                    return None
        self.oldest_read = self.oldest_read if oldest is None else oldest
        self.unreadable += unreadable
        return answers


LEDGER_READ_SECONDS: Final = 2.0
"""Seconds between two reads of the ledger for new and ended streams."""


async def watch_notices(
    connection: KafkaConnection, watch: Watch, *, from_beginning: bool
) -> AsyncGenerator[Notice, None]:
    """Yield the notices of watched streams until cancelled.

    Notices of one stream come in the order of its answers. With ``from_beginning``, the ends of streams
    come after all answers that exist at the start.
    """
    consumer = await connection.open_answers_consumer(from_beginning=from_beginning)
    openings = OpeningReader(connection, watch.wants)
    try:
        unread_ends = await consumer.end_offsets(consumer.assignment()) if from_beginning else {}
        caught_up = not from_beginning
        for notice in watch.first_notices(
            await openings.read(), openings.sources.keys(), from_beginning=from_beginning
        ):
            yield notice
        ledger_read_at = time.monotonic()
        while True:
            fetched = await consumer.getmany(timeout_ms=500, max_records=connection.settings.batch_events)
            for records in fetched.values():
                for record in filter(watch.may_matter, select_readable(records)):
                    opening = await openings.find_opening(record.key.decode(errors="replace"))
                    for notice in (
                        watch.notices_of(record, opening, openings.sources.get(opening.source, ""))
                        if opening is not None
                        else ()
                    ):
                        yield notice
            unread_ends = {one: end for one, end in unread_ends.items() if await consumer.position(one) < end}
            if unread_ends:
                continue
            if not caught_up or time.monotonic() - ledger_read_at >= LEDGER_READ_SECONDS:
                try:
                    new_openings = await openings.read()
                except KafkaTimeoutError:
                    continue  # the brokers are silent, as 'sotto watch' says; a later read finds the same records
                for notice in watch.end_notices(new_openings if caught_up else openings.openings()):
                    yield notice
                caught_up, ledger_read_at = True, time.monotonic()
    finally:
        await asyncio.gather(consumer.stop(), openings.stop())
