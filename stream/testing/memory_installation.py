"""An in-memory installation: topics are lists, and all processors run in turn.

``ReadCalls`` adds the client's calls that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import polars as pl
from blake3 import blake3

from schemas import (
    MAX_RECORD_BYTES,
    GrantRecord,
    LedgerRecord,
    Query,
    Source,
    SourceRecord,
    StreamStatus,
    TrailRecord,
)
from schemas.wire import Codec
from stream.budget import BudgetProcessor
from stream.errors import Invalid, Unknown
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.formatting import did_you_mean
from stream.privacy.composition.costs import shown_grant
from stream.privacy.noise import NoiseKey
from stream.processing.protocol import Headers, Outputs, Processor, Record, TableMissedError
from stream.processing.receipts import trail_codec
from stream.processing.topic_names import Topics
from stream.questions.dead_letter_records import DeadLetter, read_dead_letter
from stream.questions.live_events import live_source
from stream.questions.question_forms import as_names
from stream.tables import TableStore
from stream.worker import QueryProcessor
from stream.worker.fair_shares import Limits

Place = tuple[str, int]

BATCH_EVENTS = 5000


class Logs(Protocol):
    """The topics that a task reads and writes."""

    def log(self, place: Place) -> Sequence[Record]:
        """Return all records of a partition."""

    def compacted(self, place: Place) -> Sequence[Record]:
        """Return the latest record of each key."""

    def write(self, outputs: Outputs) -> None:
        """Append the outputs of a step."""


class Task:
    """A processor restored from its tables and changelog, with its positions in the topics."""

    def __init__(self, processor: Processor, partition: int, logs: Logs) -> None:
        self._processor = processor
        self._partition = partition
        self._logs = logs
        self._at: dict[str, int] = {}
        for topic in processor.tables:
            processor.restore(logs.compacted((topic, partition)))
            self._at[topic] = len(logs.log((topic, partition)))
        processor.restore(logs.compacted((processor.changelog, partition)))
        self._at |= processor.restored()

    def step(self) -> bool:
        """Process at most one batch of each topic; return whether there was any record."""
        processor = self._processor
        moved = [self._process(topic, processor.follow, len) for topic in processor.tables]
        moved += [self._process(topic, processor.process, processor.portion) for topic in processor.inputs]
        return any(moved)

    def idle(self, now: float) -> bool:
        """Run the processor's timers; return whether they wrote anything."""
        outputs = self._processor.idle(now)
        self._logs.write(outputs)
        return bool(outputs)

    def _process(
        self, topic: str, process: Callable[[Sequence[Any]], Outputs], portion: Callable[[Sequence[Any]], int]
    ) -> bool:
        at = self._at.get(topic, 0)
        batch = self._logs.log((topic, self._partition))[at : at + BATCH_EVENTS]
        if batch:
            batch = batch[: portion(batch)]
            self._logs.write(process(batch))
            self._at[topic] = at + len(batch)
        return bool(batch)


class Feeds:
    """The feeds of all sources; a live topic has as many partitions as the installation."""

    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs
        self._definitions = FeedDefinitions()
        self._control_positions = dict.fromkeys(range(topics.partitions), 0)
        self._tasks: dict[tuple[str, int], tuple[FeedProcessor, Task]] = {}
        self._merging = [
            Task(MergeProcessor(topics, number, self._definitions), number, logs)
            for number in self._control_positions
        ]

    def step(self) -> bool:
        """Run one step of every task; return whether there was any record."""
        moved = self._follow_control()
        for _, task in self._tasks.values():
            moved |= task.step()
        for task in self._merging:
            moved |= task.step()
        return moved

    def idle(self, now: float) -> bool:
        """Close the windows that are due at ``now``; return whether that wrote anything."""
        moved = False
        for processor, task in self._tasks.values():
            processor.reached_end(now)
            moved |= task.idle(now)
            while processor.behind:
                moved |= task.idle(now)
        for task in self._merging:
            moved |= task.idle(now)
        return moved

    def _follow_control(self) -> bool:
        moved = False
        for number, at in self._control_positions.items():
            if news := self._logs.log((self._topics.control, number))[at:]:
                self._definitions.take(news)
                self._control_positions[number] = at + len(news)
                moved = True
        for name, source in self._definitions.sources().items() if moved else ():
            # All tasks share one clock, so no partition can be late: closing needs no idle time.
            prompt = source.model_copy(update={"idle": "0s"})
            for number in range(self._topics.partitions):
                if (name, number) not in self._tasks:
                    processor = FeedProcessor(
                        self._topics, prompt, number, self._topics.partitions, self._definitions
                    )
                    self._tasks[name, number] = (processor, Task(processor, number, self._logs))
        return moved


LONGEST_WAIT: Final = 100 * 366 * 86_400
"""Most seconds of one ``wait``: a hundred years."""


class MemoryInstallation:
    """Runs the services' processors, codecs and restore path until no record is left."""

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
        """Return all records ever written to a topic, partition by partition."""
        return [record for place in sorted(self._logs) if place[0] == topic for record in self._logs[place]]

    def figures(self) -> dict[str, tuple[str, int, int, int, int | None, str, int]]:
        """Return every stream's state, to compare before and after a crash."""
        return {name: kept for worker in self._workers for name, kept in worker.streams.figures().items()}

    def wait(self, seconds: float) -> None:
        """Advance the driver's clock, which stamps records, refills work shares and renews budgets."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT:
            raise Invalid(f"seconds: give a number of seconds from 0 to {LONGEST_WAIT:,}")
        self._now += round(1000 * seconds)
        self._settle()

    def log(self, place: Place) -> Sequence[Record]:
        """Return all records ever written to a partition."""
        return self._logs.get(place, [])

    def crash(self) -> None:
        """Drop all state and restore it from the compacted changelogs."""
        self._start()
        self._settle()

    def restart(self, noise_key: NoiseKey | bytes | str) -> None:
        """Restart with another noise key, as after a rotation; in-memory tables stay."""
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
        """Return the latest record of each key of a partition."""
        latest = {record.key: record for record in self._logs.get(place, ())}
        return sorted(latest.values(), key=lambda record: record.offset)

    def _settle(self) -> None:
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
        """Append the outputs of a step."""
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
    """Convert 32 bytes or 64 hexadecimal digits to a key."""
    if isinstance(noise_key, NoiseKey):
        return noise_key
    return NoiseKey.from_text(noise_key) if isinstance(noise_key, str) else NoiseKey(noise_key)


@dataclass(frozen=True)
class Delivery:
    """The last input: ends of the logs before and after it, and the positions of its answers.

    ``expected`` is None if the number of answers is unknown.
    """

    marks: dict[Place, int]
    written: dict[Place, int]
    expected: list[tuple[Place, Query | None, Source | None]] | None

    @property
    def count(self) -> int:
        """The number of input records."""
        return sum(end - self.marks.get(place, 0) for place, end in self.written.items())


_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)


class ReadCalls(MemoryInstallation):
    """The client's calls that read."""

    def list_sources(self) -> list[SourceRecord]:
        """Return all registered sources with their budgets."""
        return [one for one in self._entries("source|") if isinstance(one, SourceRecord)]

    def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """Return the grants of all streams ever opened, of one source or of all."""
        if source is not None:
            self.budget(source)
        beginning = "grant|" if source is None else f"grant|{source}|"
        return [shown_grant(one) for one in self._entries(beginning) if isinstance(one, GrantRecord)]

    def budget(self, source: str) -> SourceRecord:
        """Return a source's budget; ``Unknown`` if it is not registered."""
        record = self._entry(f"source|{source}")
        if not isinstance(record, SourceRecord):
            names = [one.source.source for one in self.list_sources()]
            raise Unknown(f"source '{source}' is not registered{did_you_mean(source, names)}")
        return record

    def grant(self, source: str, stream: str) -> GrantRecord:
        """Return a stream's grant: calibration, cost and charge; ``Unknown`` if never opened."""
        record = self._entry(f"grant|{source}|{stream}")
        if not isinstance(record, GrantRecord):
            names = [one.spec.stream for one in self.list_streams(source)]
            raise Unknown(f"stream '{stream}' of source '{source}' was never opened{did_you_mean(stream, names)}")
        return shown_grant(record)

    def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """Return the last status of each stream that has one, with the driver's time in seconds."""
        wanted = {stream.encode(): stream for stream in as_names("streams", streams)}
        return {
            stream: (_statuses.decode(record.value), record.timestamp / 1000)
            for record in self.records(self.topics.status)
            if record.value is not None and (stream := wanted.get(record.key or b"")) is not None
        }

    def trail(self) -> Generator[TrailRecord, None, None]:
        """Yield the entries of the audit trail, oldest first."""
        for record in self.records(self.topics.trail):
            yield trail_codec.decode(record.value)

    def dead_letters(self, source: str | None = None) -> Generator[DeadLetter, None, None]:
        """Yield the dead letters, of all topics or of a live source's topic."""
        topic = None if source is None else live_source(self.budget(source).source).topic
        for letter in map(read_dead_letter, self.records(self.topics.rejected)):
            if topic in {None, letter.topic}:
                yield letter

    def _entry(self, key: str) -> LedgerRecord | None:
        written = reversed(self._logs.get((self.topics.ledger, 0), []))
        latest = next((record for record in written if record.key == key.encode()), None)
        return None if latest is None or latest.value is None else _ledger.decode(latest.value)

    def _entries(self, beginning: str) -> Iterator[LedgerRecord]:
        for record in self.compacted((self.topics.ledger, 0)):
            if (record.key or b"").startswith(beginning.encode()) and record.value is not None:
                yield _ledger.decode(record.value)
