"""Reads whole topics, and follows the ledger to keep a view of it and the openings of streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError

from schemas import Calibration, LedgerRecord, Source, StreamSpec, ledger_codec
from stream.budget.receipts import RECEIPT_KEY_PREFIX
from stream.caches import ENTRY_BYTES, RecentCache
from stream.client.kafka_connection import KafkaConnection, translate_errors
from stream.client.ledger_view import LedgerView
from stream.engine.restore import TopicWentBackError, create_reader, read_span, read_to_end, require_visible
from stream.errors import Forbidden, SottoError, Unknown
from stream.questions import Result
from stream.questions.first_windows import MissedEvents, missed_in_window
from stream.questions.stream_watch import (
    StreamOpening,
    add_if_changed,
    describe_record_bound,
    parse_opening,
    split_ledger_key,
)


async def read_topic(
    connection: KafkaConnection, topic: str, partitions: Iterable[int] = (0,)
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield a topic's committed records in batches, partition by partition."""
    async with connection.reader(topic) as consumer:
        for number in partitions:
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                yield records


async def read_latest_first(
    connection: KafkaConnection, topic: str, number: int = 0
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield the committed records of a partition in batches, the latest record first.

    Compaction deletes records but not their offsets. So if a batch has few records, the next batch covers
    twice as many offsets.
    """
    async with connection.reader(topic) as consumer:
        partition, most = TopicPartition(topic, number), connection.settings.batch_events
        consumer.assign([partition])
        first = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        span = most
        while end > first:
            start = max(first, end - span)
            found: list[ConsumerRecord] = []
            async for records in read_span(consumer, partition, start, end, most):
                found += records
            yield found[::-1]
            end = start
            span = most if 2 * len(found) > most else 2 * span


async def read_ledger_records(connection: KafkaConnection) -> list[LedgerRecord]:
    """Return the ledger's latest record for each key, without receipts."""
    latest: dict[bytes, bytes | None] = {}
    async for records in read_topic(connection, connection.topics.ledger):
        latest.update(
            (record.key, record.value)
            for record in records
            if not (record.key or b"").startswith(RECEIPT_KEY_PREFIX)
        )
    return [ledger_codec.decode(value) for value in latest.values() if value is not None]


class LedgerFollower:
    """Reads all records of the ledger once, and later only new records; call ``stop`` at the end."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._consumer: Any = None
        self._read_to: int | None = None
        self._stops = 0

    async def read_new(self) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
        """Yield the records up to the present end that have not been yielded.

        Raises:
            TopicWentBackError: the topic was recreated; the next call reads it from the beginning.
        """
        ledger = TopicPartition(self._connection.topics.ledger, 0)
        consumer = await self._start(ledger.topic)
        try:
            async for records in read_to_end(
                consumer, ledger, self._connection.settings.batch_events, self._read_to
            ):
                yield records
                self._read_to = records[-1].offset + 1
            self._read_to = await consumer.position(ledger)
        except TopicWentBackError:
            self.restart()
            raise
        consumer.pause(ledger)

    def restart(self) -> None:
        """Make the next call of ``read_new`` begin at the beginning."""
        self._read_to = None

    async def stop(self) -> None:
        """Stop the consumer; a running read fails."""
        self._stops += 1
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _start(self, topic: str) -> Any:
        if self._consumer is None:
            # Kafka answers a connection's requests in turn, so a fetch that waits for records delays other requests.
            consumer, stops = create_reader(self._connection.settings, fetch_max_wait_ms=1), self._stops
            try:
                await consumer.start()
                await require_visible(consumer, topic)
            except BaseException:
                await consumer.stop()
                raise
            if self._stops != stops:
                await consumer.stop()
                raise ConsumerStoppedError
            self._consumer = consumer
        return self._consumer


MAX_LEDGER_WAIT_SECONDS: Final = 5.0
"""Maximum number of seconds that a question waits for a read of the ledger; afterwards the read continues."""

MAX_VIEW_AGE_SECONDS: Final = 12 * 3600.0
"""Seconds without a read after which a view is read again from the beginning.

Kafka keeps a record that deletes a key for 24 hours. A view that did not read this record would keep the key.
"""

_MAX_ABSENT: Final = 1 << 12
_RETRY_ABSENT_SECONDS: Final = 1.0
"""Seconds before a stream that was not in the ledger is looked up again."""

_MAX_CACHED_STREAMS: Final = 10_000
"""Maximum number of streams whose sources are kept decoded."""

_MAX_CACHED_SPECS: Final = 1_000
"""Maximum number of standing streams whose definitions are kept decoded."""


class FollowedLedger:
    """A client's view of the ledger. The first call reads all records, and each later call the new records."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._follower = LedgerFollower(connection)
        self._view: LedgerView | None = None
        self._lock = asyncio.Lock()
        self._reads_begun = 0
        self._last_complete_read = 0
        self._complete_at = 0.0
        self._source_names: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._specs: RecentCache[str, tuple[StreamSpec, MissedEvents | None]] = RecentCache(_MAX_CACHED_SPECS // 2)
        self._calibrations: RecentCache[str, Calibration] = RecentCache(_MAX_CACHED_STREAMS // 2)
        self._absent: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_started = 0.0
        self._forbidden = False

    async def read(self) -> LedgerView:
        """Return the view with all records that were committed before this call."""
        reads_begun = self._reads_begun
        async with self._lock:
            self._connection.require_open()
            if (view := self._view) is None:
                view = self._view = LedgerView()
                self._complete_at = time.monotonic()
            # The first call that gets the lock reads; calls that have waited for the lock share this read.
            if self._last_complete_read <= reads_begun:
                self._reads_begun = number = self._reads_begun + 1
                if time.monotonic() - self._complete_at > MAX_VIEW_AGE_SECONDS:
                    self._clear(view)
                await self._add_new_records(view)
                self._last_complete_read, self._complete_at = number, time.monotonic()
            return view

    async def find_source(self, stream: str) -> Source | None:
        """Return the source of a stream; None if it is unknown or the ledger may not be read.

        A stream's source and its definition never change, so only an unknown stream needs a read.
        """
        if not self._knows(stream) and not self._forbidden and not self._is_absent(stream):
            await self._read_for_question()
            if not self._knows(stream) and self._reading is None:
                if len(self._absent) >= _MAX_ABSENT:
                    self._absent.clear()
                self._absent[stream] = time.monotonic()
        return self._sources[self._source_names[stream]] if self._knows(stream) else None

    def calibration_of(self, stream: str, source: Source) -> Calibration | None:
        """Return a stream's calibration; None if its grant is not in the view.

        Openings do not change, so only the first call for a stream decodes its grant.
        """
        if (known := self._calibrations.get(stream)) is None and self._view is not None:
            with suppress(Unknown):
                known = self._view.grant(source.source, stream).calibration
                self._calibrations.put(stream, known)
        return known

    async def add_stream(self, result: Result) -> Result:
        """Add the stream's definition to the answer of a window, if the ledger may be read."""
        if result.lacks_stream:
            source, name = await self.find_source(result.stream), result.stream
            if source is not None and self._view is not None:
                if (known := self._specs.get(name)) is None:
                    spec = self._view.grant(source.source, name).spec
                    known = spec, self._view.missed_events(spec)
                    self._specs.put(name, known)
                missed = missed_in_window(result, known[1])
                return result.with_stream(known[0], source, self.calibration_of(name, source), missed)
        return result

    async def stop(self) -> None:
        """Cancel the present read, stop the consumer and free the view."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._view = None  # a read that runs keeps the view and fails at its consumer
        await self._follower.stop()
        self._follower.restart()

    def _knows(self, stream: str) -> bool:
        if stream in self._source_names:
            return True
        if self._view is None or (name := self._view.source_name_of(stream)) is None:
            return False
        if name not in self._sources:
            try:
                self._sources[name] = self._view.source(name).source
            except Unknown:
                return False  # compaction may put a grant before its source's record, which is not read yet
        if len(self._source_names) >= _MAX_CACHED_STREAMS:
            self._source_names = {}
            self._sources = {name: self._sources[name]}
        self._source_names[stream] = name
        return True

    def _is_absent(self, stream: str) -> bool:
        if (since := self._absent.get(stream)) is None:
            return False
        if time.monotonic() - since < _RETRY_ABSENT_SECONDS:
            return True
        self._absent.clear()
        return False

    async def _read_for_question(self) -> None:
        """Start a read of the ledger unless one runs; wait for its end, at most ``MAX_LEDGER_WAIT_SECONDS``."""
        if self._reading is None:
            self._read_started = time.monotonic()
            self._reading = asyncio.create_task(self._read_and_handle_errors())
        left = self._read_started + MAX_LEDGER_WAIT_SECONDS - time.monotonic()
        if left > 0:
            await asyncio.wait([self._reading], timeout=left)

    async def _read_and_handle_errors(self) -> None:
        try:
            with translate_errors():
                await self.read()
        except Forbidden:
            self._forbidden = True
        except (SottoError, TopicWentBackError, OSError):
            pass  # a question can be asked without its source: only groups and warnings are missing then
        finally:
            self._reading = None

    async def _add_new_records(self, view: LedgerView) -> None:
        for is_retry in (False, True):
            try:
                async for records in self._follower.read_new():
                    view.add(records)
            except TopicWentBackError:
                self._clear(view)
                if is_retry:
                    raise
            else:
                return

    def _clear(self, view: LedgerView) -> None:
        self._follower.restart()
        view.clear()


_UNWANTED_BYTES: Final = 8 << 20
"""Maximum size in bytes of the stream names remembered as unwanted; forgotten names are looked up again."""

_RETIRED_BYTES: Final = 8 << 20
"""Maximum size in bytes of the openings that a reader keeps after their streams have left the ledger."""


class OpeningReader:
    """Reads the openings of the streams that ``is_wanted`` accepts; call ``stop`` at the end.

    A retired stream leaves the ledger. Its answers may be read later, so a cache keeps its opening.
    """

    def __init__(self, connection: KafkaConnection, is_wanted: Callable[[str, str], bool]) -> None:
        self.sources: dict[str, str] = {}
        """The contribution bound of each source of the ledger, in words, as of the last ``read``."""
        self._follower = LedgerFollower(connection)
        self._is_wanted = is_wanted
        self._found: dict[str, StreamOpening] = {}
        self._unwanted: RecentCache[str, bool] = RecentCache(_UNWANTED_BYTES // 2, "unwanted streams")
        self._retired: RecentCache[str, StreamOpening] = RecentCache(_RETIRED_BYTES // 2, "retired streams")
        self._lock = asyncio.Lock()

    async def find_opening(self, stream: str) -> StreamOpening | None:
        """Return the opening of a stream that has answered; None if the stream is not wanted."""
        known = self._find_known(stream)
        if known is None and not self._unwanted.get(stream):
            await self.read()
            if (known := self._find_known(stream)) is None:
                # A stream that has answered stays in the ledger until it is retired, so this stream was not wanted.
                self._unwanted.put(stream, True, ENTRY_BYTES + len(stream))
        return known

    async def read(self) -> list[StreamOpening]:
        """Read the ledger's new records; return the openings that are new or changed."""
        async with self._lock:
            try:
                return await self._read_new()
            except TopicWentBackError:
                return await self._read_new()

    def openings(self) -> list[StreamOpening]:
        """Return all openings, as of the last ``read``."""
        return list(self._found.values())

    async def stop(self) -> None:
        """Stop the consumer."""
        await self._follower.stop()

    async def _read_new(self) -> list[StreamOpening]:
        changed: dict[str, StreamOpening] = {}
        async for records in self._follower.read_new():
            for record in records:
                kind, source, stream = split_ledger_key(record.key)
                if record.value is None:
                    self._forget(kind, source, stream)
                elif kind == "source":
                    self.sources[source] = describe_record_bound(record.value)
                opening = parse_opening(record.key, record.value, record.timestamp, self._is_wanted)
                if opening is not None and add_if_changed(self._found, opening):
                    changed[opening.stream] = opening
        return list(changed.values())

    def _find_known(self, stream: str) -> StreamOpening | None:
        return self._found.get(stream) or self._retired.get(stream)

    def _forget(self, kind: str, source: str, stream: str) -> None:
        if kind == "source":
            self.sources.pop(source, None)
        elif kind == "grant" and (opening := self._found.pop(stream, None)) is not None:
            self._retired.put(
                stream, opening, 2 * ENTRY_BYTES + len(opening.reason or "") + len(opening.terms.condition or "")
            )
