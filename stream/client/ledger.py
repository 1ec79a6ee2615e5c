"""What the ledger and the status topic say as of now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from aiokafka import ConsumerRecord, TopicPartition

from schemas import (
    MAX_RECORD_BYTES,
    AllotmentRecord,
    GrantRecord,
    LedgerRecord,
    PopulationRecord,
    SourceRecord,
    StreamStatus,
)
from schemas.wire import Codec
from stream.accounting.costs import shown_grant
from stream.client.connection import Connection
from stream.errors import Unknown
from stream.kafka.restore import read_to_end
from stream.processors.topics import LEDGER_PARTITIONS, partition_of
from stream.suggestions import did_you_mean

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)

_SOURCE = b"source|"
_BUDGETS = (_SOURCE, b"population|", b"allotment|")


@dataclass
class Ledger:
    """Sources and populations by their name, allotments, and grants by their stream's name.

    ``other_sources`` are the names of the sources that were not read.
    """

    sources: dict[str, SourceRecord] = field(default_factory=dict)
    grants: dict[str, GrantRecord] = field(default_factory=dict)
    populations: dict[str, PopulationRecord] = field(default_factory=dict)
    allotted: dict[bytes, AllotmentRecord] = field(default_factory=dict)
    other_sources: set[str] = field(default_factory=set)

    @property
    def allotments(self) -> list[AllotmentRecord]:
        """The parts of all budgets that analysts have."""
        return list(self.allotted.values())

    def population(self, name: str) -> PopulationRecord:
        """A population; Unknown if it is not registered."""
        if name not in self.populations:
            hint = did_you_mean(name, self.populations) or "; register it with 'sotto population register'"
            raise Unknown(f"population '{name}' is not registered{hint}")
        return self.populations[name]

    def source(self, name: str) -> SourceRecord:
        """A source; Unknown if it is not registered."""
        if name not in self.sources:
            hint = (
                did_you_mean(name, {*self.sources, *self.other_sources}) or "; register it with 'sotto source add'"
            )
            raise Unknown(f"source '{name}' is not registered{hint}")
        return self.sources[name]


async def read_ledger(connection: Connection, source: str | None = None) -> Ledger:
    """All that the ledger has of budgets and grants, or a source with its grants, as they are at one moment."""
    found = Ledger()
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
    """What workers last showed of these streams, with the time in seconds since the epoch; not all have a digest.

    What a partition's last worker lacked its next one may have: that one says anew what it refuses.
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
