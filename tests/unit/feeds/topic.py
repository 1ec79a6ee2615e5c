"""A live topic for tests: its source and streams, events as records, and the outputs of a feed's processor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from schemas import EventsSource, RejectedHeaders
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.event_counts import PersonCounts
from stream.feeds.feed_definitions import Epoch, FeedDefinitions, StandingDefinition
from stream.feeds.tally_groups import TallyGroup
from stream.kernel.byte_columns import Spans, spans_of
from stream.processing.protocol import Outputs, RecordLike
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import Topics, partition_of
from tests import builders
from tests.builders import parse_source, parse_stream, stream
from tests.unit.feeds.streams import CALIBRATION

TOPICS = Topics("test", 3)
HOUR = 3_600_000
MINUTE = 60_000

ATTRIBUTES: dict[str, Any] = {
    "origin": ["EWR", "JFK", "LGA"],
    "delay": {"kind": "integers", "minimum": -5, "maximum": 10},
}


def source(**other: Any) -> EventsSource:
    """Return the model of a live topic of flights; `other` replaces or adds fields."""
    fields: dict[str, Any] = {"attributes": ATTRIBUTES, "contribution": 2, **other}
    return cast("EventsSource", parse_source(builders.source("flights", "events", **fields)))


@dataclass(frozen=True)
class ArrivedRecord:
    """A record of the topic, in the form that aiokafka returns."""

    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    topic: str = "ops.departures"
    partition: int = 0
    timestamp_type: int = 1


def columns(records: Sequence[ArrivedRecord], timestamp_type: int = 1) -> RecordColumns:
    """Return the same records in the form that a fetch returns with the compiled kernel."""
    return RecordColumns(
        "ops.departures",
        0,
        offsets=np.array([one.offset for one in records], dtype=np.int64),
        timestamps=np.array([one.timestamp for one in records], dtype=np.int64),
        keys=_spans([one.key for one in records]),
        values=_spans([one.value for one in records]),
        timestamp_type=timestamp_type,
    )


def _spans(values: Sequence[bytes | None]) -> Spans:
    found = spans_of([value or b"" for value in values])
    found.size[[place for place, value in enumerate(values) if value is None]] = -1
    return found


def event(who: Any, at: Any, origin: str = "EWR", delay: Any = 0) -> bytes:
    return json.dumps({"who": who, "at": at, "origin": origin, "delay": delay}).encode()


class FixedDefinitions(FeedDefinitions):
    """Definitions that a test sets."""

    def __init__(self, *streams: StandingDefinition) -> None:
        super().__init__()
        self._all: dict[str, StandingDefinition] = {}
        self.tell(*streams)

    def tell(self, *streams: StandingDefinition) -> None:
        self._all |= {definition.spec.stream: definition for definition in streams}
        self.version += 1

    def find_latest(self, definition: StandingDefinition) -> StandingDefinition | None:
        """Return the definition of the same stream that a test has set."""
        return self._all.get(definition.spec.stream)

    def streams_of(self, source: str) -> tuple[StandingDefinition, ...]:
        return tuple(
            definition for _, definition in sorted(self._all.items()) if definition.source.source == source
        )


def standing_definition(
    about: EventsSource,
    name: str = "s",
    *,
    kind: Any = "opened",
    moment: int = 0,
    mechanism: Mapping[str, Any] | None = None,
    **standing: Any,
) -> StandingDefinition:
    """Return the definition of a stream, as control publishes it."""
    spec = parse_stream(
        stream(
            name,
            about.source,
            mechanism=mechanism or {"kind": "laplace"},
            standing={"window": {"size": "1h"}, "begins": "1970-01-01T00:00:00Z", **standing},
        )
    )
    assert spec.standing is not None
    return StandingDefinition(
        spec, spec.standing, about, "0" * 31 + "1", CALIBRATION, kind, b"", (Epoch(begins=moment),)
    )


def ended(known: StandingDefinition, moment: int) -> StandingDefinition:
    """Return the definition of a stream after it has ended at a moment."""
    *epochs, latest = known.epochs
    return replace(known, kind="halted", epochs=(*epochs, replace(latest, ends=moment)))


def extended(known: StandingDefinition, moment: int) -> StandingDefinition:
    """Return the definition of an ended stream after it was extended at a moment."""
    return replace(known, kind="opened", epochs=(*known.epochs, Epoch(known.epochs[-1].number + 1, moment)))


def home(who: Any, partitions: int) -> int:
    """Return the partition of a person."""
    return partition_of(str(who).encode(), partitions)


@dataclass
class Kafka:
    """The committed records: the changelog's by key, and all others in order."""

    changelog: str
    state: dict[bytes, bytes] = field(default_factory=dict)
    log: list[tuple[str, int, bytes | None, bytes | None]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    """The offset and code of each dead letter."""
    written: int = 0

    def commit(self, outputs: Outputs) -> None:
        for topic, partition, messages in outputs:
            for key, value, headers in messages:
                if topic == TOPICS.rejected:
                    facts = RejectedHeaders.from_kafka(headers)
                    self.refused.append((facts.offset, facts.code))
                if topic != self.changelog:
                    self.log.append((topic, partition, key, value))
                elif value is None:
                    self.state.pop(key or b"", None)
                else:
                    assert len(value) <= 1 << 20
                    self.written += len(value)
                    self.state.pop(key or b"", None)
                    self.state[key or b""] = value

    def records(self) -> Iterable[RecordLike]:
        return [
            ArrivedRecord(at, 0, value, key, topic=self.changelog)
            for at, (key, value) in enumerate(self.state.items())
        ]

    def partials(self, to: int | None = None) -> list[dict[str, Any]]:
        """Return all partials, or those of one partition, in order."""
        return [
            json.loads(value or b"")
            for topic, partition, _, value in self.log
            if topic == TOPICS.partials and to in {None, partition}
        ]


def start(
    about: EventsSource, definitions: FeedDefinitions, kafka: Kafka | None = None, partitions: int = 1
) -> FeedProcessor:
    """Return a processor of partition 0, restored from the committed records."""
    processor = FeedProcessor(TOPICS, about, 0, partitions, definitions)
    processor.restore([] if kafka is None else kafka.records())
    processor.end_restore()
    return processor


def tables_of(group: TallyGroup) -> list[PersonCounts]:
    """Return all tables of people."""
    tables = [window.person_counts for window in group.windows.values()]
    return [*tables, *(one for tally in group.tallies.values() for one in tally.lifetime_counts.values())]


def table_bytes(feed: FeedProcessor) -> int:
    """Return the memory of the tables of people."""
    tables = [one for group in feed._streams.tally_groups for one in tables_of(group)]
    return sum(one._keys.nbytes + one._counts.nbytes + one._pieces.nbytes for one in tables)


def changelog(about: EventsSource) -> Kafka:
    return Kafka(TOPICS.feed_state(about.source))


def drain(processor: FeedProcessor, kafka: Kafka) -> None:
    """Let the processor publish everything that is due."""
    while True:
        outputs = processor.collect_due_outputs(0.0)
        if not outputs:
            return
        kafka.commit(outputs)


def as_of(known: StandingDefinition, moment: int) -> StandingDefinition | None:
    """Return the definition of a stream that control had published at a moment; None if there was none."""
    heard = [one for one in known.epochs if one.begins is not None and one.begins <= moment]
    if not heard:
        return None
    ends = heard[-1].ends
    if ends is None or ends > moment:
        heard[-1] = replace(heard[-1], ends=None)
        return replace(known, kind="opened", epochs=tuple(heard))
    return replace(known, kind="halted", epochs=tuple(heard))
