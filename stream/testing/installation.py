"""An installation in memory: topics as lists, workers for every partition, the budget service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import polars as pl
from blake3 import blake3

from stream.data import TableStore
from stream.errors import Invalid
from stream.noise import NoiseKey
from stream.processors.base import Headers, Outputs, Record, TableMissedError
from stream.processors.budget import BudgetProcessor
from stream.processors.queries import QueryProcessor
from stream.processors.queries.shares import Limits
from stream.processors.topics import Topics
from stream.testing.feeds import Feeds
from stream.testing.tasks import BATCH_EVENTS, Place

LONGEST_WAIT: Final = 100 * 366 * 86_400
"""Seconds that pass at once at most: a hundred years."""


class Installation:
    """The very processors, codecs and restore path of the services, which work until nothing is left to do."""

    def __init__(self, key: NoiseKey, topics: Topics, limits: Limits) -> None:
        self.topics = topics
        self._key = key
        self._limits = limits
        self._now = 0
        self._tables = TableStore.keyed_by(self._key)
        self._frames: dict[str, pl.DataFrame] = {}
        self._logs: dict[Place, list[Record]] = {}
        self._positions: dict[Place, int] = {}
        self._start()

    def records(self, topic: str) -> list[Record]:
        """Everything ever written to a topic, partition by partition."""
        return [record for place in sorted(self._logs) if place[0] == topic for record in self._logs[place]]

    def figures(self) -> dict[str, tuple[str, int, int, int, int | None, str, int]]:
        """Every stream's state, to compare before and after a crash."""
        return {name: kept for worker in self._workers for name, kept in worker.streams.figures().items()}

    def wait(self, seconds: float) -> None:
        """Let time pass: what is written is stamped with it, a stream's share of its partition grows, budgets renew."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT:
            raise Invalid(f"seconds: give a number of seconds from 0 to {LONGEST_WAIT:,}")
        self._now += round(1000 * seconds)
        self._settle()

    def log(self, place: Place) -> Sequence[Record]:
        """Everything ever written to a partition."""
        return self._logs.get(place, [])

    def crash(self) -> None:
        """Forget all state and rebuild it from the changelogs, as compaction may have left them."""
        self._start()
        self._settle()

    def restart(self, noise_key: NoiseKey | bytes | str) -> None:
        """Come back with another noise key, as after a rotation; tables in memory stay as they are."""
        self._key = as_key(noise_key)
        self._tables = TableStore.keyed_by(self._key)
        for name, frame in self._frames.items():
            self._tables.put(name, frame)
        self.crash()

    def _start(self) -> None:
        topics = self.topics
        self._workers = [self._restored(partition) for partition in range(topics.partitions)]
        self._budget = BudgetProcessor(
            topics,
            0,
            key_id=self._key.key_id,
            tables=self._tables,
            mint=lambda record: blake3(f"{record.topic} {record.offset}".encode(), key=self._key.secret).digest(
                16
            ),
        )
        self._budget.restore(self.compacted((topics.ledger, 0)))
        self._budget.restored()
        self._feeds = Feeds(topics, self)

    def _restored(self, partition: int) -> QueryProcessor:
        topics = self.topics
        worker = QueryProcessor(topics, partition, self._key, self._tables, self._limits)
        worker.restore(self.compacted((topics.control, partition)))
        worker.restore(self.compacted((topics.state, partition)))
        worker.restored()
        self._positions[topics.control, partition] = len(self._logs.get((topics.control, partition), ()))
        return worker

    def compacted(self, place: Place) -> list[Record]:
        """The latest of each key of a partition."""
        latest = {record.key: record for record in self._logs.get(place, ())}
        return sorted(latest.values(), key=lambda record: record.offset)

    def _settle(self) -> None:
        """Let everybody work until nothing is left to do."""
        topics = self.topics
        for worker in self._workers:
            self.write(worker.follow(()))
        while True:
            moved = self._feed(topics.requests, 0, self._budget.process, self._budget.portion)
            moved |= self._feed(topics.charges, 0, self._budget.process, self._budget.portion)
            for partition in range(topics.partitions):
                moved |= self._follow(partition)
                worker = self._workers[partition]
                moved |= self._feed(topics.queries, partition, worker.process, worker.portion)
            moved |= self._feeds.step()
            if not moved and not self._feeds.idle(self._now / 1000):
                self.write(self._budget.idle(self._now / 1000))
                return

    def _follow(self, partition: int) -> bool:
        try:
            return self._feed(self.topics.control, partition, self._workers[partition].follow)
        except TableMissedError:
            worker = self._workers[partition] = self._restored(partition)
            self.write(worker.follow(()))
            return True

    def _feed(self, topic: str, partition: int, process: Any, portion: Callable[..., int] = len) -> bool:
        place = (topic, partition)
        log = self._logs.get(place, [])
        at = self._positions.get(place, 0)
        if at >= len(log):
            return False
        batch = log[at : at + BATCH_EVENTS]
        batch = batch[: portion(batch)]
        self.write(process(batch))
        self._positions[place] = at + len(batch)
        return True

    def write(self, outputs: Outputs) -> None:
        """Append what a step has written."""
        for topic, partition, messages in outputs:
            log = self._logs.setdefault((topic, partition), [])
            start = len(log)
            log.extend(
                Record(topic, partition, start + number, self._now, key, value, tuple(headers))
                for number, (key, value, headers) in enumerate(messages)
            )

    def _append(self, place: Place, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Record:
        log = self._logs.setdefault(place, [])
        record = Record(place[0], place[1], len(log), self._now, key, value, headers)
        log.append(record)
        return record

    def _marks(self) -> dict[Place, int]:
        return {place: len(log) for place, log in self._logs.items()}


def as_key(noise_key: NoiseKey | bytes | str) -> NoiseKey:
    """The key as such, of 32 bytes, or of 64 hexadecimal digits."""
    if isinstance(noise_key, NoiseKey):
        return noise_key
    return NoiseKey.from_text(noise_key) if isinstance(noise_key, str) else NoiseKey(noise_key)
