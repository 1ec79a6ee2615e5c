"""Reads the current ledger, status, trail and dead letters, and sends budget requests."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import ConsumerRecord, TopicPartition

from schemas import (
    MAX_RECORD_BYTES,
    AllotmentRecord,
    GrantRecord,
    LedgerRecord,
    Population,
    PopulationRecord,
    Receipt,
    Request,
    Source,
    SourceRecord,
    StreamStatus,
)
from schemas.wire import Codec
from stream.client.kafka_connection import Connection, translated
from stream.engine.restore import TopicWentBackError, read_to_end
from stream.errors import Forbidden, SottoError, Unknown
from stream.formatting import did_you_mean
from stream.privacy.composition.costs import shown_grant
from stream.processing.receipts import RECEIPT_PREFIX
from stream.processing.topic_names import LEDGER_PARTITIONS, partition_of
from stream.questions.dead_letter_records import DeadLetter, read_dead_letter
from stream.questions.question_forms import REQUEST_TIMEOUT, allotting, is_of, joining, registration

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)

_SOURCE = b"source|"
_BUDGETS = (_SOURCE, b"population|", b"allotment|")


@dataclass
class LedgerView:
    """The ledger's records by name; ``other_sources`` are names of sources that were not read."""

    sources: dict[str, SourceRecord] = field(default_factory=dict)
    grants: dict[str, GrantRecord] = field(default_factory=dict)
    populations: dict[str, PopulationRecord] = field(default_factory=dict)
    allotted: dict[bytes, AllotmentRecord] = field(default_factory=dict)
    other_sources: set[str] = field(default_factory=set)

    @property
    def allotments(self) -> list[AllotmentRecord]:
        """All allotments."""
        return list(self.allotted.values())

    def population(self, name: str) -> PopulationRecord:
        """Return a population; ``Unknown`` if it is not registered."""
        if name not in self.populations:
            hint = did_you_mean(name, self.populations) or "; register it with 'sotto population register'"
            raise Unknown(f"population '{name}' is not registered{hint}")
        return self.populations[name]

    def source(self, name: str) -> SourceRecord:
        """Return a source; ``Unknown`` if it is not registered."""
        if name not in self.sources:
            hint = (
                did_you_mean(name, {*self.sources, *self.other_sources}) or "; register it with 'sotto source add'"
            )
            raise Unknown(f"source '{name}' is not registered{hint}")
        return self.sources[name]


async def read_ledger(connection: Connection, source: str | None = None) -> LedgerView:
    """Read all budgets and grants of the ledger, or one source with its grants."""
    found = LedgerView()
    one = None if source is None else f"source|{source}".encode()
    of_source = f"grant|{source or ''}{'|' if source is not None else ''}".encode()
    async for record in _records(connection, LEDGER_PARTITIONS):
        is_source = record.key == one if one is not None else record.key.startswith(_BUDGETS)
        if record.value is None or not (is_source or record.key.startswith(of_source)):
            if record.value is not None and record.key.startswith(_SOURCE):
                found.other_sources.add(record.key.removeprefix(_SOURCE).decode())
            continue
        entry = _ledger.decode(record.value)
        if isinstance(entry, SourceRecord):
            found.sources[entry.source.source] = entry
        elif isinstance(entry, GrantRecord):
            found.grants[entry.spec.stream] = shown_grant(entry)
        elif isinstance(entry, PopulationRecord):
            found.populations[entry.population.population] = entry
        elif isinstance(entry, AllotmentRecord):
            found.allotted[record.key] = entry
    return found


async def read_digests(connection: Connection, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
    """Read the last status of each stream that has one, with its Unix time in seconds.

    A worker that restores a partition invalidates the refusals of the previous worker, which may have
    lacked a table or key that this one has.
    """
    wanted = {stream.encode(): stream for stream in streams}
    found: dict[str, tuple[StreamStatus, float]] = {}
    topics = connection.topics
    async with connection.reader(topics.status) as consumer:
        for number in sorted({partition_of(key, topics.partitions) for key in wanted}):
            partition, restored = TopicPartition(topics.status, number), f"@worker|{number}".encode()
            refused: set[str] = set()
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                for record in records:
                    if record.value is not None and (stream := wanted.get(record.key)) is not None:
                        found[stream] = (_statuses.decode(record.value), record.timestamp / 1000)
                        if found[stream][0].refused is not None:
                            refused.add(stream)
                    elif record.key == restored:
                        found |= {stream: _unrefused(*found[stream]) for stream in refused}
                        refused.clear()
    return found


def _unrefused(digest: StreamStatus, written: float) -> tuple[StreamStatus, float]:
    return digest.model_copy(update={"refused": None}), written


async def _records(connection: Connection, partitions: int) -> AsyncIterator[ConsumerRecord]:
    topic = connection.topics.ledger
    async with connection.reader(topic) as consumer:
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                for record in records:
                    yield record


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


class BudgetCalls(ABC):
    """The client's calls for populations and allotments."""

    @abstractmethod
    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and return its receipt."""

    @abstractmethod
    async def _ledger(self) -> LedgerView: ...

    async def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population; ``Refused`` if its name has another definition."""
        return await self.request(registration(new_id, population))

    async def join(self, source: str, population: str) -> Receipt:
        """Add a source to a population for good; ``Refused`` if its grants exceed that budget."""
        return await self.request(joining(new_id, source, population))

    async def allot(
        self,
        allotment: str,
        epsilon: float,
        delta: float | None = None,
        *,
        source: str | None = None,
        population: str | None = None,
        analysts: Sequence[str] = (),
    ) -> Receipt:
        """Create or change an allotment: the analysts' part of a source's or population's budget.

        Without ``analysts``, the allotment is for the analyst of the same name. ``Refused`` if the
        amount is below the analysts' present grants.
        """
        return await self.request(allotting(new_id, allotment, epsilon, delta, source, population, analysts))

    async def list_populations(self) -> list[PopulationRecord]:
        """Return all registered populations with their budgets."""
        return list((await self._ledger()).populations.values())

    async def population(self, population: str) -> PopulationRecord:
        """Return a population's budget; ``Unknown`` if it is not registered."""
        return (await self._ledger()).population(population)

    async def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """Return the allotments of a source or population, or all allotments."""
        return [one for one in (await self._ledger()).allotments if is_of(one, source, population)]


async def read_trail(connection: Connection) -> AsyncGenerator[Sequence[bytes], None]:
    """Yield the bytes of the trail's committed entries in batches, oldest first."""
    topic = connection.topics.trail
    async with connection.reader(topic) as consumer:
        for number in range(LEDGER_PARTITIONS):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                yield [record.value or b"" for record in records]


async def read_accounts(connection: Connection) -> list[LedgerRecord]:
    """Read all records of the ledger except receipts."""
    latest: dict[bytes, bytes | None] = {}
    topic = connection.topics.ledger
    async with connection.reader(topic) as consumer:
        for number in range(LEDGER_PARTITIONS):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                latest.update((record.key, record.value) for record in records if is_account(record.key or b""))
    return [_ledger.decode(value) for value in latest.values() if value is not None]


def is_account(key: bytes) -> bool:
    """Check that a key of the ledger is not a receipt's."""
    return not key.startswith(RECEIPT_PREFIX)


async def read_dead_letters(connection: Connection) -> AsyncGenerator[DeadLetter, None]:
    """Yield the committed dead letters, partition by partition."""
    topic = connection.topics.rejected
    async with connection.reader(topic) as consumer:
        for number in range(connection.topics.partitions):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                for record in records:
                    yield read_dead_letter(record)


PATIENCE: Final = 5.0
"""Seconds that questions wait for a read of the ledger; a longer read continues in the background."""

_ABSENT: Final = 1.0
"""Seconds until a stream that is not in the ledger is looked up again."""


class KnownSources:
    """Sources by stream; reads the ledger at the first lookup, and later only its new records."""

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
        # Compaction can leave a grant before its source's record: one may be read without the other.
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
        """Wait up to ``PATIENCE`` seconds for the current or a new read of the ledger."""
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
            # The source is optional for a question; calls that need the ledger report the error.
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
                        self._add(record.key, record.value)
                self._read_to[number] = await consumer.position(partition)

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
