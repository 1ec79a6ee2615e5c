"""An in-memory installation: topics are lists, and the services' processors run in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import polars as pl
from blake3 import blake3

from schemas import Query, Source
from stream.budget.budget_processor import BudgetProcessor
from stream.errors import Invalid
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Batch, Headers, MissedRecordError, Outputs, Processor, Record
from stream.processing.topic_names import Topics
from stream.tables.rows import select_columns
from stream.tables.store import TableStore
from stream.worker.fair_shares import Limits
from stream.worker.hosted_streams import StreamSnapshot
from stream.worker.worker_processor import QueryProcessor

PartitionName = tuple[str, int]
"""A topic and the number of one of its partitions."""

BATCH_EVENTS = 5000

AnyProcessor = TypeVar("AnyProcessor", bound=Processor)


class Task(Generic[AnyProcessor]):
    """A processor restored from its lookup topics and changelog; ``committed`` has each input's next offset."""

    def __init__(
        self,
        processor: AnyProcessor,
        partition: int,
        installation: MemoryInstallation,
        committed: dict[PartitionName, int],
    ) -> None:
        self.processor = processor
        self._partition = partition
        self._installation = installation
        self._committed = committed
        self._lookup_positions: dict[PartitionName, int] = {}
        for topic in processor.lookup_topics:
            processor.restore(installation.read_compacted((topic, partition)))
            self._lookup_positions[topic, partition] = len(installation.log((topic, partition)))
        processor.restore(installation.read_compacted((processor.changelog, partition)))
        processor.end_restore()

    def step(self) -> bool:
        """Process at most one batch of each topic; return whether there was a record."""
        processor = self.processor
        moved = [
            self._process(
                self._lookup_positions, topic, Batch, lambda batch: processor.apply_lookup_records(batch.records)
            )
            for topic in processor.lookup_topics
        ]
        moved += [
            self._process(self._committed, topic, processor.prepare, processor.process)
            for topic in processor.inputs
        ]
        return any(moved)

    def collect_due_outputs(self, now: float) -> bool:
        """Run the processor's work that is due at ``now``; return whether the processor wrote a record."""
        outputs = self.processor.collect_due_outputs(now)
        self._installation.write(outputs)
        return bool(outputs)

    def _process(
        self,
        positions: dict[PartitionName, int],
        topic: str,
        prepare: Callable[[Sequence[Any]], Batch],
        process: Callable[[Any], Outputs],
    ) -> bool:
        place = (topic, self._partition)
        at = positions.get(place, 0)
        records = self._installation.log(place)[at : at + BATCH_EVENTS]
        if records:
            batch = prepare(records)
            self._installation.write(process(batch))
            positions[place] = at + len(batch.records)
        return bool(records)


class Feeds:
    """The feeds of all sources; a live topic has as many partitions as the installation."""

    def __init__(
        self, topics: Topics, installation: MemoryInstallation, committed: dict[PartitionName, int]
    ) -> None:
        self._topics = topics
        self._installation = installation
        self._committed = committed
        self._definitions = FeedDefinitions()
        self._control_positions = dict.fromkeys(range(topics.partitions), 0)
        self._counting: dict[tuple[str, int], Task[FeedProcessor]] = {}
        self._merging = [
            Task(MergeProcessor(topics, number, self._definitions), number, installation, committed)
            for number in self._control_positions
        ]

    def step(self) -> bool:
        """Run one step of every task; return whether there was a record."""
        moved = [self._follow_control(), *(task.step() for task in self._counting.values())]
        return any([*moved, *(task.step() for task in self._merging)])

    def collect_due_outputs(self, now: float) -> bool:
        """Close the windows that are due at ``now``; return whether a record was written."""
        moved = False
        for task in self._counting.values():
            task.processor.note_end_of_input(now)
            moved |= task.collect_due_outputs(now)
            while task.processor.has_more_outputs:
                moved |= task.collect_due_outputs(now)
        for merging in self._merging:
            moved |= merging.collect_due_outputs(now)
        return moved

    def _follow_control(self) -> bool:
        moved = False
        for number, at in self._control_positions.items():
            if records := self._installation.log((self._topics.control, number))[at:]:
                self._definitions.apply_control(records)
                self._control_positions[number] = at + len(records)
                moved = True
        for name, source in self._definitions.sources().items() if moved else ():
            # All tasks share one clock, so ``collect_due_outputs`` need not wait for slow partitions.
            prompt = source.model_copy(update={"idle": "0s"})
            for number in range(self._topics.partitions):
                if (name, number) not in self._counting:
                    processor = FeedProcessor(
                        self._topics, prompt, number, self._topics.partitions, self._definitions
                    )
                    self._counting[name, number] = Task(processor, number, self._installation, self._committed)
        return moved


MAX_WAIT_SECONDS: Final = 100 * 366 * 86_400
"""Maximum number of seconds of one call of ``wait``: a hundred years."""


class MemoryInstallation:
    """Topics in memory; after each input, the services' processors run until no record is left."""

    def __init__(self, key: NoiseKey, topics: Topics, limits: Limits, retire_after_ms: int) -> None:
        self.topics = topics
        self._key = key
        self._limits = limits
        self._retire_after_ms = retire_after_ms
        self._now = 0
        self._tables = TableStore.keyed_by(self._key)
        self._frames: dict[str, pl.DataFrame] = {}
        self._logs: dict[PartitionName, list[Record]] = {}
        self._positions: dict[PartitionName, int] = {}
        """The committed offset of each input partition."""
        self._start()

    def records(self, topic: str) -> list[Record]:
        """Return all records ever written to a topic, partition by partition.

        Examples:
            >>> result = client.ask("counts", where="age >= 65")
            >>> len(client.records(client.topics.answers))
            1
        """
        return [record for place in sorted(self._logs) if place[0] == topic for record in self._logs[place]]

    def snapshot_streams(self) -> dict[str, StreamSnapshot]:
        """Return the state of every stream, to compare it before and after a crash.

        Examples:
            >>> before = client.snapshot_streams()
            >>> client.crash()
            >>> client.snapshot_streams() == before
            True
        """
        return {
            name: snapshot
            for worker in self._workers
            for name, snapshot in worker.streams.snapshot_streams().items()
        }

    def wait(self, seconds: float) -> None:
        """Advance the clock of this installation.

        The clock gives records their timestamps; by it, workers refill the streams' shares of work, and the
        budget service renews budgets. Streams that ended ``retire_days`` ago are retired with the next request.

        Examples:
            >>> client.wait(60)
        """
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 <= seconds <= MAX_WAIT_SECONDS
        ):
            raise Invalid(f"seconds: give a number of seconds from 0 to {MAX_WAIT_SECONDS:,}")
        self._now += round(1000 * seconds)
        self._process_all()

    def log(self, place: PartitionName) -> Sequence[Record]:
        """Return all records ever written to a partition.

        Examples:
            >>> len(client.log((client.topics.trail, 0)))
            4
        """
        return self._logs.get(place, [])

    def crash(self) -> None:
        """Drop all state and restore it from the compacted changelogs.

        Examples:
            >>> client.crash()
        """
        self._start()
        self._process_all()

    def restart(self, noise_key: NoiseKey | bytes | str) -> None:
        """Restart with another noise key, as after a key rotation; keep the tables.

        Examples:
            >>> client.restart("11" * 32)
        """
        self._key = as_key(noise_key)
        self._tables = TableStore.keyed_by(self._key)
        for name, frame in self._frames.items():
            self._tables.put(name, frame)
        self.crash()

    def _start(self) -> None:
        topics = self.topics
        self._worker_tasks = [self._restore_worker(partition) for partition in range(topics.partitions)]
        budget = BudgetProcessor(
            topics,
            0,
            key_id=self._key.key_id,
            tables=self._tables,
            new_incarnation=lambda record: blake3(
                f"{record.topic} {record.offset}".encode(), key=self._key.secret
            ).digest(16),
            retire_after_ms=self._retire_after_ms,
        )
        self._budget_task = Task(budget, 0, self, self._positions)
        self._feeds = Feeds(topics, self, self._positions)

    def _restore_worker(self, partition: int) -> Task[QueryProcessor]:
        worker = QueryProcessor(self.topics, partition, self._key, self._tables, self._limits)
        return Task(worker, partition, self, self._positions)

    @property
    def _workers(self) -> list[QueryProcessor]:
        return [task.processor for task in self._worker_tasks]

    @property
    def _budget(self) -> BudgetProcessor:
        return self._budget_task.processor

    def read_compacted(self, place: PartitionName) -> list[Record]:
        """Return the latest record of each key of a partition.

        Examples:
            >>> len(client.read_compacted((client.topics.ledger, 0))) <= len(client.log((client.topics.ledger, 0)))
            True
        """
        latest = {record.key: record for record in self._logs.get(place, ())}
        return sorted(latest.values(), key=lambda record: record.offset)

    def _process_all(self) -> None:
        for worker in self._workers:
            self.write(worker.apply_lookup_records(()))
        while True:
            moved = [self._budget_task.step(), *map(self._step_worker, range(self.topics.partitions))]
            if any([*moved, self._feeds.step()]):
                continue
            now = self._now / 1000
            if not self._feeds.collect_due_outputs(now) and not self._budget_task.collect_due_outputs(now):
                return

    def _step_worker(self, partition: int) -> bool:
        try:
            return self._worker_tasks[partition].step()
        except MissedRecordError:
            task = self._worker_tasks[partition] = self._restore_worker(partition)
            self.write(task.processor.apply_lookup_records(()))
            return True

    def write(self, outputs: Outputs) -> None:
        """Append the outputs of a step.

        Examples:
            >>> client.write([])
        """
        for topic, partition, messages in outputs:
            log = self._logs.setdefault((topic, partition), [])
            start = len(log)
            log.extend(
                Record(topic, partition, start + number, self._now, key, value, tuple(headers))
                for number, (key, value, headers) in enumerate(messages)
            )

    def _append(
        self, place: PartitionName, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> Record:
        log = self._logs.setdefault(place, [])
        record = Record(place[0], place[1], len(log), self._now, key, value, headers)
        log.append(record)
        return record

    def _log_ends(self) -> dict[PartitionName, int]:
        return {place: len(log) for place, log in self._logs.items()}


def as_key(noise_key: NoiseKey | bytes | str) -> NoiseKey:
    """Convert 32 bytes or 64 hexadecimal digits to a noise key."""
    if isinstance(noise_key, NoiseKey):
        return noise_key
    return NoiseKey.from_text(noise_key) if isinstance(noise_key, str) else NoiseKey(noise_key)


@dataclass(frozen=True)
class Delivery:
    """The last input, given by the ends of the logs before and after it.

    ``expected`` has the partition of each question, with the question and its source if they are known. It is
    None if the number of answers is unknown.
    """

    ends_before: dict[PartitionName, int]
    ends_after: dict[PartitionName, int]
    expected: list[tuple[PartitionName, Query | None, Source | None]] | None

    @property
    def count(self) -> int:
        """The number of input records."""
        return sum(end - self.ends_before.get(place, 0) for place, end in self.ends_after.items())


def as_frame(table: Any) -> pl.DataFrame:
    """Convert a mapping of columns to a polars frame; cells of a column of mixed types become text.

    Raises:
        Invalid: columns have different lengths, or mix types that a text file cannot hold.
    """
    if isinstance(table, pl.DataFrame):
        return table
    try:
        return pl.DataFrame(table)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        if not isinstance(table, Mapping):
            raise Invalid(
                f"table: {type(table).__name__} is not a table; give a polars frame or a mapping of columns"
            ) from None
    columns = [_column(str(name), cells) for name, cells in table.items()]
    first = columns[0]
    other = next((one for one in columns if len(one) != len(first)), None)
    if other is not None:
        raise Invalid(
            f"table: column '{first.name}' has {len(first)} cells and column '{other.name}' has {len(other)}; give each row a cell in "
            "every column; None is an empty cell"
        )
    return pl.DataFrame(columns)


def _column(name: str, cells: Any) -> pl.Series:
    try:
        return pl.Series(name, cells)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        if not isinstance(cells, Sequence):
            raise Invalid(
                f"table: column '{name}' is of type {type(cells).__name__}; give a list of cells"
            ) from None
    kinds = {type(cell) for cell in cells}
    if not kinds <= {str, int, float, type(None)}:
        mixed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise Invalid(
            f"table: column '{name}' has cells of types {mixed}; give only texts, numbers and None, or only one other type"
        )
    return select_columns({name: cells}, [name])[name]
