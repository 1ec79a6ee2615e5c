"""Partition logs, with those semantics of Kafka on which an exactly-once engine depends."""

from __future__ import annotations

import random
from asyncio import Future
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from aiokafka import TopicPartition

from stream.processing.protocol import Message, Record

_offset = attrgetter("offset")


@dataclass(eq=False, slots=True)
class Transaction:
    """A producer's transaction. The logs ``open_in`` lack its marker; ``offsets`` has the groups' offsets."""

    producer: str
    state: str = "open"
    logs: dict[Log, None] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    unmarked: int = 0


@dataclass(slots=True)
class Entry:
    """One offset of a log: a record, or the marker that ends a transaction there."""

    offset: int
    record: Record | None
    transaction: Transaction | None


@dataclass(eq=False, slots=True)
class Log:
    """One partition. Markers and aborted records take up offsets; compaction leaves gaps."""

    topic: str
    partition: int
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    open: dict[Transaction, int] = field(default_factory=dict)
    ended: dict[Transaction, bool] = field(default_factory=dict)
    removed: list[Record] = field(default_factory=list)
    """The committed records that compaction has removed."""
    awaited: dict[Future[None], None] = field(default_factory=dict)
    """The futures of readers that wait for new readable records."""

    @property
    def stable(self) -> int:
        """The last stable offset: the first of the oldest open transaction, or the end."""
        return min(self.open.values(), default=self.end)

    def tell(self) -> None:
        """Wake the readers that wait for new records."""
        for waiting in self.awaited:
            if not waiting.done():
                waiting.set_result(None)
        self.awaited.clear()

    def append(self, messages: Iterable[Message], timestamp: int, transaction: Transaction | None = None) -> None:
        if transaction is not None:
            self.open.setdefault(transaction, self.end)
        for key, value, headers in messages:
            record = Record(self.topic, self.partition, self.end, timestamp, key, value, tuple(headers))
            self.entries.append(Entry(self.end, record, transaction))
            self.end += 1

    def mark(self, transaction: Transaction, *, committed: bool) -> None:
        """Write the marker that ends a transaction in this log."""
        self.open.pop(transaction, None)
        self.ended[transaction] = committed
        self.entries.append(Entry(self.end, None, transaction))
        self.end += 1

    def visible(self, entry: Entry) -> bool:
        """Return whether a committed reader sees an entry below the last stable offset."""
        return entry.record is not None and (entry.transaction is None or self.ended[entry.transaction])

    def read(self, position: int, limit: int, *, committed: bool) -> tuple[list[Record], int]:
        """Return records from a position on, and the next position."""
        end = self.stable if committed else self.end
        found: list[Record] = []
        for index in range(bisect_left(self.entries, position, key=_offset), len(self.entries)):
            entry = self.entries[index]
            if entry.offset >= end:
                break
            if entry.record is not None and (not committed or self.visible(entry)):
                found.append(entry.record)
                if len(found) == limit:
                    return found, entry.offset + 1
        return found, max(position, end)

    def committed(self) -> list[Record]:
        """Return all records that a committed reader sees."""
        return self.read(self.start, len(self.entries) + 1, committed=True)[0]

    def compact(self, chance: random.Random, *, forgets_deletions: bool = False) -> int:
        """Keep the latest committed record of each key below the last stable offset; return the number of removed entries.

        With ``forgets_deletions``, deletions go too: a slow reader may have read what they delete.
        """
        stable = self.stable
        latest = {
            entry.record.key: entry.offset
            for entry in self.entries
            if entry.offset < stable and entry.record is not None and self.visible(entry)
        }

        def kept(entry: Entry) -> bool:
            if entry.offset >= stable:
                return True
            if entry.record is None:
                return chance.random() < 0.5
            if forgets_deletions and entry.record.value is None and chance.random() < 0.5:
                return False
            return self.visible(entry) and latest[entry.record.key] == entry.offset

        remaining = [entry for entry in self.entries if kept(entry)]
        left = {entry.offset for entry in remaining}
        gone = [entry for entry in self.entries if entry.offset not in left]
        self.removed += [entry.record for entry in gone if entry.record is not None and self.visible(entry)]
        self.entries = remaining
        return len(gone)
