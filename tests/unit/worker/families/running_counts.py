"""Streams of running_count from control events, and the questions of their windows, from people's events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from schemas import (
    Answer,
    EventsSource,
    RunningCount,
    RunningCountCalibration,
    StandingQuery,
    StreamIdentity,
    StreamOpened,
    StreamSpec,
    Windows,
    format_moment,
)
from stream.formatting import cells_of
from stream.privacy.accuracy.source_facts import GroupSensitivity, SourceFacts
from stream.privacy.planning.release_plans import next_node_sums, plan_running_counts, tree_of
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, parse_source, source
from tests.processing import process_records
from tests.unit.installation import answers_in, records, table_store

TOPICS = Topics(partitions=1)
SOURCE: EventsSource = parse_source(
    source(
        "rides",
        "events",
        topic="ops.rides",
        epsilon=10.0,
        attributes={"side": ["left", "right"], "ward": ["a", "b", "c"]},
        total=2,
    )
)
BEGINS, EVERY = 1_000_000_000_000, 3_600_000
"""The stream's beginning and the distance of windows; it begins in the middle of a window, so the next window is the first that counts."""
FIRST = -(-BEGINS // EVERY) * EVERY

TWICE = GroupSensitivity(each=2, together=2, spread=1, numbers=2)
"""Limits by which two events of a person count."""

Person = Sequence[tuple[int, int]]
"""The window and the group of each event of a person, by their places."""


@cache
def calibration_of(spec: StreamSpec, method: str = "basic", **facts: Any) -> RunningCountCalibration:
    """Return one of the plans of a stream."""
    return next(one for one in plan_running_counts(spec, SourceFacts(**facts)) if one.method == method)


@dataclass(frozen=True)
class Stream:
    """A stream of ``steps`` windows, by these attributes; ``moved`` is how far one person moves all of its counts."""

    name: str = "running"
    steps: int = 6
    by: tuple[str, ...] = ()
    method: str = "basic"
    epsilon: float = 1.0
    delta: float = 0.0
    moved: GroupSensitivity = TWICE
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that replace those of the stream's calibration."""

    @property
    def spec(self) -> StreamSpec:
        return StreamSpec(
            stream=self.name,
            source=SOURCE.source,
            mechanism=RunningCount(kind="running_count", steps=self.steps),
            epsilon=self.epsilon,
            delta=self.delta,
            standing=StandingQuery(window=Windows(size="1h"), by=self.by, begins=format_moment(BEGINS)),
        )

    @property
    def groups(self) -> tuple[Mapping[str, str | int | float], ...]:
        return cells_of(SOURCE.attributes, self.by)

    @property
    def calibration(self) -> RunningCountCalibration:
        facts = {"universe": len(self.groups), "horizon": self.moved}
        return calibration_of(self.spec, self.method, **facts).model_copy(update=dict(self.changed))

    def control_event(self, incarnation: str = "ab" * 16) -> Record:
        """Return its control event."""
        opened = StreamOpened(
            spec=self.spec,
            source=SOURCE,
            identity=StreamIdentity(incarnation=incarnation, digest="cd" * 32, key_id=KEY.key_id),
            fingerprint=None,
            calibration=self.calibration,
        )
        key = self.name.encode()
        return Record(TOPICS.control, 0, 0, 0, key, opened.model_dump_json().encode())

    def questions(self, counts: Sequence[Sequence[int]]) -> Iterator[bytes]:
        """Yield the question of each window in order, from the counts of each window's groups."""
        tree = tree_of(self.calibration)
        sums: list[list[int]] = [[] for _ in self.groups]
        for window, counted in enumerate(counts):
            kept = tree.count_kept_nodes(window + 1)
            for place, count in enumerate(counted):
                sums[place] = next_node_sums(sums[place], kept, count)
                yield self.question(window, place, sums[place])

    def question(self, number: int, place: int, sums: Sequence[float], /, **otherwise: Any) -> bytes:
        """Return the question of one window and group; the first window is 0."""
        begins = FIRST + number * EVERY
        start, end = format_moment(begins), format_moment(begins + EVERY)
        about = {"window": {"start": start, "end": end}, **({"group": self.groups[place]} if self.by else {})}
        asked = {"id": f"{start}/{place}", "stream": self.name, "values": list(sums), **about, **otherwise}
        return json.dumps({name: one for name, one in asked.items() if one is not None}).encode()


def counts_of(stream: Stream, people: Iterable[Person]) -> list[list[int]]:
    """Return how many events each window and group has."""
    counts = [[0] * len(stream.groups) for _ in range(stream.steps)]
    for person in people:
        for window, group in person:
            counts[window][group] += 1
    return counts


def worker_of(*streams: Stream) -> QueryProcessor:
    """Return a worker that has read the control events of these streams."""
    worker = QueryProcessor(TOPICS, 0, KEY, table_store())
    worker.apply_lookup_records([one.control_event(f"{place:032x}") for place, one in enumerate(streams)])
    return worker


def answer_batch(worker: QueryProcessor, questions: Iterable[bytes], start: int = 0) -> list[Answer]:
    """Return the answers to questions that come in one batch."""
    return answers_in(process_records(worker, records(list(questions), start=start)), TOPICS)
