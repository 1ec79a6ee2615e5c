"""A merging task on topics in memory, its streams, and the partials of their windows."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import MAX_EVENT_BYTES, Query
from schemas.wire import Codec
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.processing.protocol import Message, Outputs, Record
from tests.unit.feeds.partials import EVERY, FIRST, partial
from tests.unit.feeds.streams import TOPICS, spec_of
from tests.unit.worker.families import running_counts

SPECS = [
    spec_of("all"),
    spec_of("origins", ("origin",)),
    spec_of("both", ("origin", "late")),
    spec_of("whole", ("origin",), whole=True),
]
RUNNING = running_counts.Stream(steps=4)

_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)


class Bench:
    """A merging task on topics in memory; outputs that a crash undoes were never written."""

    def __init__(self, control: Sequence[Record], partials: Sequence[Record]) -> None:
        self.control = list(control)
        self.partials = partials
        self.logs: dict[str, list[Message]] = {TOPICS.queries: [], TOPICS.merges: [], TOPICS.rejected: []}
        self.start()

    def start(self) -> None:
        """Restore from the committed records that compaction has left."""
        self.task = MergeProcessor(TOPICS, 0, FeedDefinitions())
        self.task.restore(self.control)
        kept = {key: (at, value) for at, (key, value, _) in enumerate(self.logs[TOPICS.merges])}
        kept_records = [Record(TOPICS.merges, 0, at, 0, key, value) for key, (at, value) in kept.items()]
        self.task.restore(sorted(kept_records, key=lambda one: one.offset))
        self.at = self.task.end_restore()[TOPICS.partials]

    def step(self, limit: int = 500, *, lost: bool = False) -> None:
        """Process a batch; with ``lost``, its transaction is aborted."""
        batch = self.task.prepare(list(self.partials[self.at : self.at + limit]))
        assert not batch.needs_lookup_topics
        outputs = self.task.process(batch)
        if lost:
            self.start()
        else:
            self.write(outputs)
            self.at += len(batch.records)

    def write(self, outputs: Outputs) -> None:
        """Commit some outputs."""
        for topic, partition, messages in outputs:
            assert partition == 0
            self.logs[topic] += messages

    def hear(self, record: Record) -> None:
        """Let the task follow new control records."""
        self.control.append(record)
        self.write(self.task.apply_lookup_records([record]))

    def run(self, limit: int = 500) -> None:
        """Process all remaining records."""
        while self.at < len(self.partials):
            self.step(limit)

    @property
    def asked(self) -> list[Query]:
        """Return the questions that were asked."""
        return [_queries.decode(value) for _, value, _ in self.logs[TOPICS.queries]]

    @property
    def kept(self) -> dict[bytes, bytes]:
        """The content of the changelog."""
        latest = {key or b"": value for key, value, _ in self.logs[TOPICS.merges]}
        return {key: value for key, value in latest.items() if value is not None}


def window(
    stream: str, number: int, *, partitions: int = 2, counts: dict[int, int] | None = None
) -> list[Message]:
    """Return the partials of a window from all partitions."""
    start = FIRST + number * EVERY
    return [
        partial(stream, one, start, {0: 1} if counts is None else counts, partitions) for one in range(partitions)
    ]


def running_window(number: int) -> list[Message]:
    """Return the partials of a running count's window from both partitions."""
    start = running_counts.FIRST + number * running_counts.EVERY
    return [
        (key, (value or b"").replace(b'"source":"flights"', b'"source":"rides"'), headers)
        for key, value, headers in (partial(RUNNING.name, one, start, {0: 1}, 2) for one in range(2))
    ]
