"""What streams are about, as a client knows it: the public definition of each one's source."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiokafka import TopicPartition

from schemas import MAX_RECORD_BYTES, LedgerRecord, Source, SourceRecord
from schemas.wire import Codec
from stream.client.connection import Connection
from stream.client.failures import translated
from stream.errors import Forbidden, SottoError
from stream.kafka.restore import TopicWentBackError, read_to_end
from stream.processors.topics import LEDGER_PARTITIONS

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)

PATIENCE: Final = 5.0
"""Seconds that questions wait for one reading of the ledger; one with a million streams takes longer, and goes on meanwhile."""

_ABSENT: Final = 1.0
"""Seconds after which a stream that the ledger did not know is looked up again."""


class Definitions:
    """Reads the ledger when a stream is first asked for, and from then on only what has come to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._source_of: dict[str, str] = {}
        self._values: dict[str, bytes] = {}
        self._sources: dict[str, Source] = {}
        self._read_to: dict[int, int] = {}
        self._absent: dict[str, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self._began = 0.0
        self._forbidden = False

    async def of(self, stream: str) -> Source | None:
        """The source of a stream; None if it is not known, not known yet, or not for this principal to know."""
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
        """Compaction can leave a source's record behind the grants of its streams: one may be read without the other."""
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
        """Wait for the reading under way, or for one that begins now."""
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
            # What is asked does not hang on it; whoever must know reads the ledger and is told.
            self._read_to.clear()
        finally:
            self._reading = None

    async def _read_ledger(self) -> None:
        topic = self._connection.topics.ledger
        async with self._connection.reader(topic) as consumer:
            for number in range(LEDGER_PARTITIONS):
                partition = TopicPartition(topic, number)
                start = self._read_to.get(number)
                async for records in read_to_end(
                    consumer, partition, self._connection.settings.batch_events, start
                ):
                    for record in records:
                        self._take(record.key, record.value)
                self._read_to[number] = await consumer.position(partition)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        kind, _, rest = (key or b"").partition(b"|")
        if value is None:
            return
        if kind == b"source":
            name = rest.decode()
            # A name stands for one definition for ever; its later records differ in their budget alone.
            if name not in self._sources:
                self._values[name] = value
        elif kind == b"grant":
            source, _, stream = rest.partition(b"|")
            self._source_of[stream.decode()] = source.decode()
