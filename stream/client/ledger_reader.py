"""Reads whole topics, and finds sources and openings of streams in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final

from aiokafka import ConsumerRecord, TopicPartition

from schemas import MAX_RECORD_BYTES, LedgerRecord, Source, SourceRecord
from schemas.wire import Codec
from stream.budget.receipts import RECEIPT_KEY_PREFIX
from stream.client.kafka_connection import Connection, translate_errors
from stream.engine.restore import TopicWentBackError, read_to_end, reader, require_visible
from stream.errors import Forbidden, SottoError
from stream.questions.stream_watch import (
    StreamOpening,
    add_if_changed,
    describe_record_bound,
    parse_opening,
    parse_source_name,
)

_ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def read_topic(
    connection: Connection, topic: str, partitions: Iterable[int] = (0,)
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield a topic's committed records in batches, partition by partition."""
    async with connection.reader(topic) as consumer:
        for number in partitions:
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                yield records


async def read_ledger_records(connection: Connection) -> list[LedgerRecord]:
    """Return the ledger's latest record for each key, without receipts."""
    latest: dict[bytes, bytes | None] = {}
    async for records in read_topic(connection, connection.topics.ledger):
        latest.update(
            (record.key, record.value)
            for record in records
            if not (record.key or b"").startswith(RECEIPT_KEY_PREFIX)
        )
    return [_ledger_codec.decode(value) for value in latest.values() if value is not None]


MAX_LEDGER_WAIT_SECONDS: Final = 5.0
"""Most seconds that a question waits for a read of the ledger; the read continues after them."""

_RETRY_ABSENT_SECONDS: Final = 1.0
"""Seconds before a stream that was not in the ledger is looked up again."""


class SourceLookup:
    """Finds the source of a stream; reads the ledger at the first lookup, then only new records."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._source_names: dict[str, str] = {}
        self._source_values: dict[str, bytes] = {}
        self._sources: dict[str, Source] = {}
        self._read_to: int | None = None
        self._absent: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_started = 0.0
        self._forbidden = False

    async def find_source(self, stream: str) -> Source | None:
        """Return the source of a stream; None if it is unknown or the ledger may not be read."""
        if not self._knows(stream) and not self._forbidden and not self._is_absent(stream):
            await self._read()
            if not self._knows(stream) and self._reading is None:
                self._absent[stream] = time.monotonic()
        return self._parse_source(stream)

    async def stop(self) -> None:
        """Cancel the present read of the ledger."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _is_absent(self, stream: str) -> bool:
        if (since := self._absent.get(stream)) is None:
            return False
        if time.monotonic() - since < _RETRY_ABSENT_SECONDS:
            return True
        self._absent.clear()
        return False

    def _knows(self, stream: str) -> bool:
        # Compaction may put a grant before its source's record, so the source may not be read yet.
        name = self._source_names.get(stream)
        return name in self._sources or name in self._source_values

    def _parse_source(self, stream: str) -> Source | None:
        if not self._knows(stream):
            return None
        name = self._source_names[stream]
        if name not in self._sources:
            entry = _ledger_codec.decode(self._source_values.pop(name))
            if not isinstance(entry, SourceRecord):
                return None
            self._sources[name] = entry.source
        return self._sources[name]

    async def _read(self) -> None:
        """Start to read the ledger unless a read runs; wait for its end, but not longer than the maximum."""
        if self._reading is None:
            self._read_started = time.monotonic()
            self._reading = asyncio.create_task(self._read_and_handle_errors())
        left = self._read_started + MAX_LEDGER_WAIT_SECONDS - time.monotonic()
        if left > 0:
            await asyncio.wait([self._reading], timeout=left)

    async def _read_and_handle_errors(self) -> None:
        try:
            with translate_errors():
                await self._read_ledger()
        except Forbidden:
            self._forbidden = True
        except (SottoError, TopicWentBackError, OSError):
            # A question can be asked without its source: only groups and warnings are missing then.
            self._read_to = None
        finally:
            self._reading = None

    async def _read_ledger(self) -> None:
        partition = TopicPartition(self._connection.topics.ledger, 0)
        batch_events = self._connection.settings.batch_events
        async with self._connection.reader(partition.topic) as consumer:
            async for records in read_to_end(consumer, partition, batch_events, self._read_to):
                for record in records:
                    self._add_record(record.key, record.value)
            self._read_to = await consumer.position(partition)

    def _add_record(self, key: bytes | None, value: bytes | None) -> None:
        kind, _, name_bytes = (key or b"").partition(b"|")
        if value is None:
            return
        if kind == b"source":
            name = name_bytes.decode()
            # A definition never changes; later records differ only in their budget.
            if name not in self._sources:
                self._source_values[name] = value
        elif kind == b"grant":
            source, _, stream = name_bytes.partition(b"|")
            self._source_names[stream.decode()] = source.decode()


class OpeningReader:
    """Reads the openings of the streams that ``is_wanted`` accepts; call ``stop`` at the end."""

    def __init__(self, connection: Connection, is_wanted: Callable[[str, str], bool]) -> None:
        self.sources: dict[str, str] = {}
        """Each source of the ledger, with its contribution bound in words, as of the last ``read``."""
        self._connection = connection
        self._is_wanted = is_wanted
        self._found: dict[str, StreamOpening] = {}
        self._unwanted: set[str] = set()
        self._read_to: int | None = None
        self._reading = asyncio.Lock()
        self._consumer: Any = None

    async def find_opening(self, stream: str) -> StreamOpening | None:
        """Return the opening of a stream that has answered; None if the stream is not wanted."""
        if stream not in self._found and stream not in self._unwanted:
            await self.read()
            if stream not in self._found:
                # The ledger has every stream that has answered, so this one was not wanted.
                self._unwanted.add(stream)
        return self._found.get(stream)

    async def read(self) -> list[StreamOpening]:
        """Read the ledger's new records; return the openings that are new or changed."""
        async with self._reading:
            consumer = await self._start()
            try:
                return await self._read_new(consumer)
            except TopicWentBackError:
                self._read_to = None
                return await self._read_new(consumer)

    def openings(self) -> list[StreamOpening]:
        """Return all openings, as of the last ``read``."""
        return list(self._found.values())

    async def stop(self) -> None:
        """Stop the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _start(self) -> Any:
        if self._consumer is None:
            consumer = reader(self._connection.settings)
            try:
                await consumer.start()
                await require_visible(consumer, self._connection.topics.ledger)
            except BaseException:
                await consumer.stop()
                raise
            self._consumer = consumer
        return self._consumer

    async def _read_new(self, consumer: Any) -> list[StreamOpening]:
        changed: dict[str, StreamOpening] = {}
        ledger = TopicPartition(self._connection.topics.ledger, 0)
        async for records in read_to_end(consumer, ledger, self._connection.settings.batch_events, self._read_to):
            for record in records:
                if (source := parse_source_name(record.key)) is not None:
                    self.sources[source] = describe_record_bound(record.value)
                opening = parse_opening(record.key, record.value, record.timestamp, self._is_wanted)
                if opening is not None and add_if_changed(self._found, opening):
                    changed[opening.stream] = opening
        self._read_to = await consumer.position(ledger)
        return list(changed.values())
