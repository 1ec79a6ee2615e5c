"""Measures the cost of counting a live topic without Kafka: a feed's events per second, a restore with many people, and memory.

Processor time of one core, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Figure, show_figures, write_json
from schemas import AnswersCalibration, EventsSource
from schemas.streams import StreamSpec
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics

BATCH: Final = 5_000
GROUPS: Final = 100
BEGINS_MS: Final = 1_767_225_600_000
EVENTS_A_MILLISECOND: Final = 20

_TOPICS: Final = Topics(partitions=1)
_SOURCE: Final = EventsSource.model_validate(
    {
        "source": "live",
        "kind": "events",
        "topic": "ops",
        "neighbors": "add-remove",
        "epsilon": 1.0,
        "person": "user",
        "time": "at",
        "attributes": {
            "group": [f"group {number}" for number in range(GROUPS)],
            "delay": {"kind": "integers", "minimum": 0, "maximum": 999},
        },
        "contribution": 2,
    }
)


class _Opened(FeedDefinitions):
    """Definitions of standing streams that need no opening."""

    def __init__(self, conditions: Sequence[str | None]) -> None:
        super().__init__()
        self._opened = tuple(_stream(number, where) for number, where in enumerate(conditions))

    def streams_of(self, source: str) -> tuple[StandingDefinition, ...]:
        """Return all of these definitions."""
        del source
        return self._opened


_CALIBRATION: Final = AnswersCalibration(
    epsilon=1.0,
    delta=0.0,
    grid=1.0,
    sensitivity_steps=1,
    cutoff=1,
    expected_queries=1,
    beta=0.05,
    alpha=3.0,
    method="basic",
    epsilon_answer=1.0,
)
"""A calibration that feeds do not use."""


def _stream(number: int, where: str | None) -> StandingDefinition:
    standing = {
        "window": {"size": "1m"},
        "lateness": "5s",
        "by": ["group"],
        "where": where,
        "begins": "2026-01-01T00:00:00Z",
    }
    spec = StreamSpec.model_validate(
        {
            "stream": f"stream {number}".replace(" ", "-"),
            "source": "live",
            "epsilon": 1.0,
            "mechanism": {"kind": "laplace"},
            "standing": standing,
        }
    )
    if spec.standing is None:
        raise TypeError("the stream is not standing")
    return StandingDefinition(spec, spec.standing, _SOURCE, f"{number:032x}", _CALIBRATION, "opened", b"")


@dataclass
class _Changelog:
    """The content of a compacted changelog."""

    records: dict[bytes, Record]
    written: int = 0

    def take(self, outputs: Any) -> None:
        for topic, partition, messages in outputs:
            for key, value, _ in messages if topic == _TOPICS.feed_state("live") else ():
                if value is None:
                    self.records.pop(key, None)
                else:
                    self.written += len(value)
                    self.records[key] = Record(topic, partition, len(self.records), 0, key, value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time streams that count the same and streams that do not, and a restore."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeds", description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    apart: list[str | None] = [f"delay >= {10 * number}" for number in range(20)]
    counted = [
        *_counting("1 stream", apart[:1], options.batches),
        *_counting("20 streams, one condition", [None] * 20, options.batches),
        *_counting("20 streams, 20 conditions", apart, options.batches),
    ]
    restored = _restoring(options.people)
    figures = {f"Counting, {GROUPS} groups, batches of {BATCH:,}": counted, "Restoring": restored}
    for title, found in figures.items():
        show_figures(title, found)
    if options.json:
        write_json(options.json, figures)


def _events(batches: int, people: int) -> Iterator[list[Record]]:
    chance = random.Random(1)
    for batch in range(batches):
        records = []
        for offset in range(batch * BATCH, (batch + 1) * BATCH):
            at = BEGINS_MS + offset // EVENTS_A_MILLISECOND
            event = {
                "user": f"user-{chance.randrange(people)}",
                "at": at,
                "group": f"group {chance.randrange(GROUPS)}",
                "delay": chance.randrange(1000),
                "more": {"shown": True, "note": "what nobody counts"},
            }
            records.append(Record("ops", 0, offset, at, None, json.dumps(event).encode()))
        yield records


def _feed(conditions: Sequence[str | None]) -> FeedProcessor:
    return FeedProcessor(_TOPICS, _SOURCE, 0, 1, _Opened(conditions))


def _counting(name: str, conditions: Sequence[str | None], batches: int) -> list[Figure]:
    feed, changelog = _feed(conditions), _Changelog({})
    feed.end_restore()
    taken, events = 0.0, 0
    for records in _events(batches, 200_000):
        began = time.process_time()
        outputs = feed.process(feed.prepare(records))
        taken += time.process_time() - began
        events += len(records)
        changelog.take(outputs)
    return [
        (f"{name}: events", events / taken, "events/s"),
        (f"{name}: changelog", changelog.written / events, "bytes/event"),
    ]


def _restoring(people: int) -> list[Figure]:
    """Measure the restore of a window in which so many people were counted."""
    feed, changelog = _feed([None]), _Changelog({})
    feed.end_restore()
    for start in range(0, people, BATCH):
        records = [
            Record(
                "ops",
                0,
                number,
                BEGINS_MS,
                None,
                b'{"user":%d,"at":%d,"group":"group 1","delay":1}' % (number, BEGINS_MS),
            )
            for number in range(start, min(start + BATCH, people))
        ]
        changelog.take(feed.process(feed.prepare(records)))
    again = _feed([None])
    gc.collect()
    began = time.process_time()
    again.restore(changelog.records.values())
    again.end_restore()
    taken = time.process_time() - began
    if again.people != people:
        raise RuntimeError(f"{again.people} people were restored")
    return [
        (f"{people:,} people in open windows", taken, "s"),
        ("memory", again.table_bytes / people, "bytes a person and window"),
        (
            "changelog",
            sum(len(one.value or b"") for one in changelog.records.values()) / people,
            "bytes a person and window",
        ),
    ]


if __name__ == "__main__":
    main()
