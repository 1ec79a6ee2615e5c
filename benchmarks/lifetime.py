"""Measures years of an installation in memory: the data that each role keeps of past streams.

A constant number of streams is open; others are opened, asked, closed and retired. The longer history spans
ten years of virtual time by default, the shorter one a part of it at the same pace. Everything goes through the
services' processors, without a broker. The figures are those of a restart of each role from the topics as
brokers keep them.

With ``--lived N`` only the first and the last N streams of each history are lived. Of the streams between
them the traces are written directly, by the same encoders: digests of names, fields of answers, and trail
entries like those of the first streams. What these streams would be asked and charged, and add to the sums of
their sources and to the totals in the trail, is not exercised.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from resource import getpagesize
from typing import Any, Final, cast

import polars as pl

from benchmarks.kept_topics import RECORDS_PER_PLACE, CompactedTopic, Logs, RecentTopic, Topic, TopicFile
from benchmarks.report import Figure, show_figures, write_json
from schemas import (
    CloseStream,
    OpeningSpec,
    OpenStream,
    Request,
    RetiredAnswer,
    RetiredStreams,
    TrailRecord,
    trail_codec,
)
from sotto import Driver
from stream.budget.budget_processor import BudgetProcessor
from stream.caches import reduce_gc_frequency
from stream.feeds.feed_definitions import FeedDefinitions
from stream.monitor.budget_history import PACE_WINDOWS, TrailState
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.topic_readers import choose_start
from stream.privacy.ledger.retirement import name_digest, split_digests
from stream.processing.protocol import RETIRED_PREFIX, Outputs, Record
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor

KEY: Final = bytes(range(32))
YEAR_SECONDS: Final = 365.25 * 86_400
MAX_BATCH: Final = 200
"""Most streams that are opened, asked and closed at once."""
RETIRED_TOGETHER: Final = 128
"""Streams whose traces are written at once."""
RENEWAL_DAYS: Final = 30
STREAMS_OF_SOURCE: Final = 500
"""Most streams of a source that are open or were opened in one period of its budget."""
_ROWS: Final = {"age": [place % 50 for place in range(400)], "sex": ["F", "M"] * 200}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lifetime", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000, help="streams of the shorter history")
    parser.add_argument("--open", type=int, default=100, help="streams that are open at a time")
    parser.add_argument("--times", type=int, default=10, help="length of the longer history, in shorter ones")
    parser.add_argument("--years", type=float, default=10, help="virtual time of the longer history")
    parser.add_argument("--lived", type=int, help="first and last streams of each history to live; default: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    reduce_gc_frequency()
    found = {}
    most = options.streams * options.times
    with Lifetime(options.open, options.years * YEAR_SECONDS / most) as lifetime:
        for streams in sorted({options.streams, most}):
            lived = options.lived or streams
            lifetime.live(min(lifetime.opened + lived, streams))
            lifetime.write_retired(streams - lived)
            lifetime.live(streams)
            title = f"{streams:,} streams opened, {options.open:,} open"
            found[title] = lifetime.restarts()
            show_figures(title, found[title])
    if options.json:
        write_json(options.json, found)


class Lifetime(Driver):
    """An installation with one partition and a monitor, whose streams come and go."""

    def __init__(self, open_streams: int, seconds: float, *, keeps: bool = True) -> None:
        """Create it; a stream is opened every ``seconds``. Only with ``keeps`` can its roles restart."""
        super().__init__(KEY, partitions=1)
        self.opened = 0
        self._answered = 0
        self._written = {self.topics.queries: 0, self.topics.answers: 0}
        """Bytes of all questions, and of all answers."""
        topics = self.topics
        compacted = (topics.control, topics.state, topics.ledger, topics.status)
        self.kept: dict[str, Topic] = {topic: CompactedTopic() for topic in compacted if keeps}
        if keeps:
            self.kept |= {topics.charges: RecentTopic(), topics.trail: TopicFile(topics.trail)}
        self._places = Logs(self.kept)
        self._logs = cast("Any", self._places)
        self.monitor = MonitorTables(topics)
        self._open_count, self._seconds = open_streams, seconds
        self._batch = min(MAX_BATCH, max(open_streams // 2, 1))
        self._open_streams: deque[tuple[str, str]] = deque()
        per_period = RENEWAL_DAYS * 86_400 / seconds
        self._pairs = 1 + int((open_streams + per_period) / (2 * STREAMS_OF_SOURCE))
        self._register_sources()

    def __exit__(self, *_: object) -> None:
        for topic in self.kept.values():
            if isinstance(topic, TopicFile):
                topic.close()

    def live(self, streams: int) -> None:
        """Open and close streams until this many were opened."""
        while self.opened < streams:
            numbers = range(self.opened, min(self.opened + self._batch, streams))
            closed = max(len(self._open_streams) + len(numbers) - self._open_count, 0)
            ends = [self._open_streams.popleft() for _ in range(closed)]
            specs = [_specify(number, number // 2 % self._pairs) for number in numbers]
            self._require_accepted(
                [
                    *(
                        CloseStream(request=self._new_id(), source=source, stream=name, reason="done")
                        for source, name in ends
                    ),
                    *(OpenStream(request=self._new_id(), stream=spec) for spec in specs),
                ]
            )
            self._open_streams += [(spec.source, spec.stream) for spec in specs]
            self._ask_unread(chain.from_iterable(map(_ask_about, numbers)))
            self.opened = numbers.stop
            self.wait(len(numbers) * self._seconds)
            self.trim()

    def write_retired(self, last: int) -> None:
        """Write the traces of retired streams up to this number; the first streams, which are samples, are retired."""
        samples = self._samples() if self.opened < last else []
        budget: Any = self._budget
        trail, control = budget._trail, budget._control_publisher  # noqa: SLF001  (encoders of the service)
        while self.opened < last:
            numbers = range(self.opened, min(self.opened + RETIRED_TOGETHER, last))
            outputs, answers = Outputs(), dict[str, RetiredAnswer]()
            budget.ledger.advance_clock(self._now)
            for number in numbers:
                name, (entries, answer) = f"stream-{number}", samples[number % len(samples)]
                for entry in entries:
                    fields = entry.model_dump(exclude={"number", "previous", "time"}) | {"stream": name}
                    trail._write_entry(outputs, type(entry), **fields)  # noqa: SLF001
                budget.ledger.retired_names.add("stream", name)
                answers[name] = answer
            control.publish_retired(answers, outputs)
            self.write(outputs)
            self.opened = numbers.stop
            self.wait(len(numbers) * self._seconds)
            self.trim()

    def _samples(self) -> list[tuple[list[TrailRecord], RetiredAnswer]]:
        """Return the trail entries and the kept answer of the first streams, one of each kind and place."""
        names = {f"stream-{number}": number for number in range(2 * len(_KINDS))}
        entries: list[list[TrailRecord]] = [[] for _ in names]
        for record in self.kept[self.topics.trail]:
            entry = trail_codec.decode(record.value)
            if (number := names.get(getattr(entry, "stream", None) or "")) is not None:
                entries[number].append(entry)
        found = dict[bytes, RetiredAnswer]()
        for record in self.kept[self.topics.control]:
            if (record.key or b"").startswith(RETIRED_PREFIX):
                block = RetiredStreams.model_validate_json(record.value or b"")
                found |= zip(
                    split_digests(block.names), (block.answers[one] for one in block.answer_of), strict=True
                )
        return [(entries[number], found[name_digest("stream", name)]) for name, number in names.items()]

    def _ask_unread(self, questions: Iterable[tuple[str, bytes]]) -> None:
        """Publish questions whose answers no client reads."""
        for stream, question in questions:
            self._append((self.topics.queries, 0), stream.encode(), question)
        self._process_all()
        for topic in self._written:
            self._written[topic] += sum(map(_record_bytes, self._places[topic, 0]))
        self._answered += sum(1 for _ in self._places[self.topics.answers, 0])

    def _require_accepted(self, requests: list[Request]) -> None:
        for receipt in self.requests(requests):
            if receipt.outcome == "refused":
                raise RuntimeError(f"{receipt.stream}: {receipt.reason}")

    def _register_sources(self) -> None:
        fields: dict[str, Any] = {"neighbors": "add-remove", "epsilon": 1000.0, "renews": f"{RENEWAL_DAYS}d"}
        attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 49}, "sex": ["F", "M"]}
        for number in range(self._pairs):
            values = {"source": f"values-{number}", "kind": "values", "sensitivity": 1.0, "grid": 1.0}
            self.register({**values, **fields})
            people = {
                "source": f"people-{number}",
                "kind": "table",
                "path": "/people.csv",
                "attributes": attributes,
            }
            self.register({**people, **fields}, pl.DataFrame(_ROWS))

    def trim(self) -> None:
        """Drop the new records; give them to the monitor if no roles restart from the topics."""
        for (topic, _), log in self._places.items():
            if not self.kept and topic in self.monitor.inputs:
                for record in log:
                    self.monitor.add_record(record)
            log.trim()

    def restarts(self) -> list[Figure]:
        """Restart each role from the topics; return seconds, most memory, and the disk of the topics."""
        figures: list[Figure] = [("all roles and topics here: memory", resident_bytes() / 1e6, "MB")]
        for role, restart in (
            ("worker", self._restart_worker),
            ("budget service", self._restart_budget),
            ("feed", self._restart_feed),
            ("monitor", self._restart_monitor),
        ):
            seconds, taken, files = _measured(restart)
            figures += [
                (f"{role}: memory", taken / 1e6, "MB"),
                (f"{role}: files of digests", files / 1e6, "MB"),
                (f"{role}: restart", seconds, "s"),
            ]
        tables, began = self._restart_monitor(), time.process_time()
        self._read_earlier(tables)
        figures.append(("monitor: the rest of the trail, when it is up", time.process_time() - began, "s"))
        figures += [(f"{name}: disk", topic.size / 1e6, "MB") for name, topic in self.kept.items()]
        return figures + [
            (f"{name}: disk of each", written / self._answered, "bytes") for name, written in self._written.items()
        ]

    def _restart_worker(self) -> QueryProcessor:
        worker = QueryProcessor(self.topics, 0, self._key, self._tables)
        worker.restore(self.kept[self.topics.control])
        worker.restore(self.kept[self.topics.state])
        worker.end_restore()
        return worker

    def _restart_budget(self) -> BudgetProcessor:
        budget = BudgetProcessor(
            self.topics,
            0,
            key_id=self._key.key_id,
            tables=TableStore(),
            new_incarnation=lambda _: bytes(16),
        )
        # The service keeps bytes of receipts: copies, so that they count.
        budget.restore(
            one._replace(value=bytes(bytearray(one.value or b""))) for one in self.kept[self.topics.ledger]
        )
        budget.end_restore()
        return budget

    def _restart_feed(self) -> FeedDefinitions:
        definitions = FeedDefinitions()
        definitions.apply_control(self.kept[self.topics.control])
        return definitions

    def _restart_monitor(self) -> MonitorTables:
        tables, trail = MonitorTables(self.topics), cast("TopicFile", self.kept[self.topics.trail])
        for topic in tables.inputs:
            for record in self.kept.get(topic, ()) if topic != self.topics.trail else ():
                tables.add_record(record)
        tables.trail = TrailState(is_whole=False)
        for record in trail.read(self._trail_start(), trail.records):
            tables.add_record(record)
        return tables

    def _trail_start(self) -> int:
        """Return the offset at which a monitor begins, at a place of the file."""
        trail = cast("TopicFile", self.kept[self.topics.trail])
        recent = trail.offset_at(self._now - 1000 * max(PACE_WINDOWS))
        return choose_start(0, recent, trail.records) // RECORDS_PER_PLACE * RECORDS_PER_PLACE

    def _read_earlier(self, tables: MonitorTables) -> None:
        earlier = TrailState(room=tables.trail.room)
        for record in cast("TopicFile", self.kept[self.topics.trail]).read(0, self._trail_start()):
            tables.add_earlier_entry(earlier, record.value or b"")
        tables.join_trail(earlier)
        if tables.trail.broken or tables.trail.unread:
            raise RuntimeError(f"trail: {tables.trail.broken}, {tables.trail.unread} unread")


def _record_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


_KINDS: Final = ("laplace", "noisy_max", "laplace", "noisy_max", "laplace", "pmw")
_MECHANISMS: Final[dict[str, dict[str, Any]]] = {
    "above_threshold": {"threshold": 1000.0, "cutoff": 3},
    "laplace": {"answers": 10},
    "pmw": {"attributes": ["age", "sex"], "updates": 3},
    "noisy_max": {"answers": 2},
}


def _kind_of(number: int) -> str:
    return "above_threshold" if number % 2 else _KINDS[number // 2 % len(_KINDS)]


def _specify(number: int, pair: int) -> OpeningSpec:
    """Return a stream of one of four kinds in turn; half of them are sparse vectors."""
    kind = _kind_of(number)
    return OpeningSpec.model_validate(
        {
            "stream": f"stream-{number}",
            "source": f"values-{pair}" if number % 2 else f"people-{pair}",
            "mechanism": {**_MECHANISMS[kind], "kind": kind},
            "epsilon": 1.0,
            "expected_queries": 40,
        }
    )


def _ask_about(number: int) -> Iterator[tuple[str, bytes]]:
    """Yield a stream's name and a question, for each question; they depend on its number."""
    kind, age, stream = _kind_of(number), number % 47, f"stream-{number}"
    questions: list[dict[str, Any]]
    if kind == "above_threshold":
        questions = [{"value": 1e9}, {"value": float(number % 90)}]
    elif kind == "noisy_max":
        old, women = {"name": "old", "where": f"age > {age}"}, {"name": "F", "where": "sex = 'F'"}
        questions = [{"candidates": [old, women]}]
    else:
        questions = [{"where": f"age BETWEEN {age} AND {age + place % 3} AND sex = 'F'"} for place in range(3)]
    for place, question in enumerate(questions):
        yield stream, json.dumps({"id": f"{number}-{place}", "stream": stream, **question}).encode()


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def unnamed_file_bytes() -> int:
    """Return the bytes of this process's files without a name."""
    places = list(Path("/proc/self/fd").iterdir())
    return sum(place.stat().st_size for place in places if place.is_symlink() and _is_unnamed(place))


def _is_unnamed(place: Path) -> bool:
    return str(place.readlink()).endswith(" (deleted)")


def _measured(restart: Callable[[], Any]) -> tuple[float, float, int]:
    """Return the seconds of a restart, the most memory that a second one takes, and the bytes of its files."""
    gc.collect()
    began = time.process_time()
    restart()
    seconds = time.process_time() - began
    gc.collect()
    before = unnamed_file_bytes()
    tracemalloc.start()
    try:
        role = restart()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    files = unnamed_file_bytes() - before
    del role
    return seconds, most, files


if __name__ == "__main__":
    main()
