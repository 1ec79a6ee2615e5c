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
from stream.client.kafka_connection import Connection, translated
from stream.engine.restore import TopicWentBackError, read_to_end, reader, require_visible
from stream.errors import Forbidden, SottoError
from stream.questions.stream_watch import StreamOpening, counted_of, is_news, opening_of, source_of

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def read_topic(
    connection: Connection, topic: str, partitions: Iterable[int] = (0,)
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield a topic's committed records in batches, partition by partition."""
    async with connection.reader(topic) as consumer:
        for number in partitions:
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                yield records


async def read_accounts(connection: Connection) -> list[LedgerRecord]:
    """Return the ledger's latest record for each key, without receipts."""
    latest: dict[bytes, bytes | None] = {}
    async for records in read_topic(connection, connection.topics.ledger):
        latest.update(
            (record.key, record.value)
            for record in records
            if not (record.key or b"").startswith(RECEIPT_KEY_PREFIX)
        )
    return [_ledger.decode(value) for value in latest.values() if value is not None]


PATIENCE: Final = 5.0
"""Most seconds that a question waits for a read of the ledger; the read itself continues."""

_ABSENT: Final = 1.0
"""Seconds until a stream that is not in the ledger is looked up again."""


class KnownSources:
    """Finds the source of a stream; reads the ledger at the first lookup, then only new records."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._source_of: dict[str, str] = {}
        self._values: dict[str, bytes] = {}
        self._sources: dict[str, Source] = {}
        self._read_to: int | None = None
        self._absent: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self._began = 0.0
        self._forbidden = False

    async def of(self, stream: str) -> Source | None:
        """Return the source of a stream; None if it is unknown or the ledger may not be read."""
        if not self._knows(stream) and not self._forbidden and not self._is_absent(stream):
            await self._read()
            if not self._knows(stream) and self._reading is None:
                self._absent[stream] = time.monotonic()
        return self._find(stream)

    async def stop(self) -> None:
        """Cancel the reading under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _is_absent(self, stream: str) -> bool:
        if (since := self._absent.get(stream)) is None:
            return False
        if time.monotonic() - since < _ABSENT:
            return True
        self._absent.clear()
        return False

    def _knows(self, stream: str) -> bool:
        # After compaction, a grant may precede its source's record: the source may not be read yet.
        name = self._source_of.get(stream)
        return name in self._sources or name in self._values

    def _find(self, stream: str) -> Source | None:
        if not self._knows(stream):
            return None
        name = self._source_of[stream]
        if name not in self._sources:
            entry = _ledger.decode(self._values.pop(name))
            if not isinstance(entry, SourceRecord):
                return None
            self._sources[name] = entry.source
        return self._sources[name]

    async def _read(self) -> None:
        """Start a read of the ledger if none runs, and wait until it ends or is ``PATIENCE`` s old."""
        if self._reading is None:
            self._began = time.monotonic()
            self._reading = asyncio.create_task(self._read_on())
        left = self._began + PATIENCE - time.monotonic()
        if left > 0:
            await asyncio.wait([self._reading], timeout=left)

    async def _read_on(self) -> None:
        try:
            with translated():
                await self._read_ledger()
        except Forbidden:
            self._forbidden = True
        except (SottoError, TopicWentBackError, OSError):
            # A question needs no source; calls that need the ledger report the error themselves.
            self._read_to = None
        finally:
            self._reading = None

    async def _read_ledger(self) -> None:
        partition = TopicPartition(self._connection.topics.ledger, 0)
        batch = self._connection.settings.batch_events
        async with self._connection.reader(partition.topic) as consumer:
            async for records in read_to_end(consumer, partition, batch, self._read_to):
                for record in records:
                    self._add(record.key, record.value)
            self._read_to = await consumer.position(partition)

    def _add(self, key: bytes | None, value: bytes | None) -> None:
        kind, _, rest = (key or b"").partition(b"|")
        if value is None:
            return
        if kind == b"source":
            name = rest.decode()
            # A definition never changes; later records differ only in their budget.
            if name not in self._sources:
                self._values[name] = value
        elif kind == b"grant":
            source, _, stream = rest.partition(b"|")
            self._source_of[stream.decode()] = source.decode()


class Openings:
    """Reads the openings of ``wanted`` streams from the ledger; call ``stop`` at the end."""

    def __init__(self, connection: Connection, wanted: Callable[[str, str], bool]) -> None:
        self.sources: dict[str, str] = {}
        """The contribution bound of each source in words, as of the last ``read``."""
        self._connection = connection
        self._wanted = wanted
        self._found: dict[str, StreamOpening] = {}
        self._others: set[str] = set()
        self._read_to: int | None = None
        self._reading = asyncio.Lock()
        self._consumer: Any = None

    async def of(self, stream: str) -> StreamOpening | None:
        """Return the opening of a stream that has answered; None if the stream is not wanted."""
        if stream not in self._found and stream not in self._others:
            await self.read()
            if stream not in self._found:
                # Each stream that has answered is in the ledger; if it is not found, it is not wanted.
                self._others.add(stream)
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

    def known(self) -> list[StreamOpening]:
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
                if (source := source_of(record.key)) is not None:
                    self.sources[source] = counted_of(record.value)
                opening = opening_of(record.key, record.value, record.timestamp, self._wanted)
                if opening is not None and is_news(self._found, opening):
                    changed[opening.stream] = opening
        self._read_to = await consumer.position(ledger)
        return list(changed.values())
