"""Years of an installation in memory: streams are opened, asked and closed; what each role keeps, and how long it takes to restart.

Everything goes through the services' processors, without a broker. ``disk`` is what compaction leaves of the topics,
and all of the trail.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast, overload

import polars as pl

from benchmarks.report import Figure, show_figures, write_json
from sotto import Driver
from stream.budget import BudgetProcessor
from stream.environment import reduce_gc_frequency
from stream.feeds.feed_definitions import FeedDefinitions
from stream.monitor.state.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from stream.tables import TableStore
from stream.worker import QueryProcessor

KEY: Final = bytes(range(32))
STREAMS_OF_SOURCE: Final = 500
"""Streams after which new sources are registered."""
STREAM_SECONDS: Final = 600
"""Seconds of virtual time between two openings."""
ROUNDS_KEPT: Final = 20
"""Streams that are open at a time, and rounds after which consumed records are dropped."""
_ROWS: Final = {"age": [place % 50 for place in range(400)], "sex": ["F", "M"] * 200}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lifetime", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000, help="streams of the shorter history")
    parser.add_argument("--times", type=int, default=10, help="length of the longer history, in shorter ones")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    reduce_gc_frequency()
    found = {}
    lifetime = Lifetime()
    for streams in (options.streams, options.streams * options.times):
        lifetime.live(streams)
        title = f"{streams:,} streams opened and closed"
        found[title] = lifetime.restarts()
        show_figures(title, found[title])
    if options.json:
        write_json(options.json, found)


class RecentLog:
    """A partition in memory: the records since the last ``trim``, and with ``keeps`` what compaction leaves.

    Offsets count from the first record that ever was.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.latest: dict[Any, Record] = {}
        self._keeps = keeps
        self._dropped = 0
        self._records: list[Record] = []

    def __len__(self) -> int:
        return self._dropped + len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        """Return records by offset; those before the last ``trim`` are gone."""
        if isinstance(at, int):
            return self._records[at - self._dropped]
        stop = None if at.stop is None else at.stop - self._dropped
        return self._records[max((at.start or 0) - self._dropped, 0) : stop]

    def append(self, record: Record) -> None:
        """Add a record."""
        self._records.append(record)

    def extend(self, records: Iterable[Record]) -> None:
        """Add records."""
        self._records.extend(records)

    def trim(self) -> None:
        """Drop all records; all tasks have read them."""
        for record in self._records if self._keeps else ():
            key = record.offset if record.topic.endswith("trail") else record.key
            self.latest.pop(key, None)
            if record.value is not None:
                self.latest[key] = record
        self._dropped += len(self._records)
        self._records = []


class _Logs(dict[tuple[str, int], RecentLog]):
    """The partitions of an installation; those in ``kept`` topics keep what compaction leaves."""

    def __init__(self, kept: frozenset[str]) -> None:
        super().__init__()
        self._kept = kept

    def setdefault(self, place: tuple[str, int], default: Any = None) -> RecentLog:
        """Return a partition's log, perhaps a new one."""
        del default
        if place not in self:
            self[place] = RecentLog(keeps=place[0] in self._kept)
        return self[place]


class Lifetime(Driver):
    """An installation with one partition and a monitor, whose streams come and go."""

    def __init__(self, *, keeps: bool = True) -> None:
        super().__init__(KEY, partitions=1)
        self.opened = 0
        topics = self.topics
        kept = frozenset(
            (topics.control, topics.state, topics.ledger, topics.trail, topics.status, topics.charges)
        )
        self._places = _Logs(kept if keeps else frozenset())
        self._logs = cast("Any", self._places)
        self.monitor = MonitorTables(topics)
        self._sources = 0
        self._open_streams: list[tuple[str, str]] = []

    def live(self, streams: int) -> None:
        """Open and close streams until this many were opened."""
        while self.opened < streams:
            if self.opened % STREAMS_OF_SOURCE == 0:
                self._register_sources()
            self._open_and_ask()
            if len(self._open_streams) > ROUNDS_KEPT:
                self.close(*self._open_streams.pop(0))
            self.wait(STREAM_SECONDS)
            if self.opened % ROUNDS_KEPT == 0:
                self.trim()

    def _register_sources(self) -> None:
        self._sources += 1
        fields: dict[str, Any] = {"neighbors": "add-remove", "epsilon": 1000.0}
        self.register(
            {"source": f"values-{self._sources}", "kind": "values", "sensitivity": 1.0, "grid": 1.0, **fields}
        )
        attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 49}, "sex": ["F", "M"]}
        table = {
            "source": f"people-{self._sources}",
            "kind": "table",
            "path": "/people.csv",
            "attributes": attributes,
        }
        self.register({**table, **fields}, pl.DataFrame(_ROWS))

    def _open_and_ask(self) -> None:
        """Open a stream of one of five kinds in turn, and ask it a question that depends on its number."""
        number, age = self.opened, self.opened % 47
        on, kind = ("values", "above_threshold") if number % 2 else ("people", _KINDS[number // 2 % len(_KINDS)])
        source, stream = f"{on}-{self._sources}", f"stream-{number}"
        mechanism = {**_MECHANISMS[kind], "kind": kind}
        spec = {"stream": stream, "source": source, "mechanism": mechanism, "epsilon": 1.0, "expected_queries": 40}
        self.open(spec)
        questions: list[dict[str, Any]]
        if on == "values":
            questions = [{"value": 1e9}, {"value": float(number % 90)}]
        elif kind == "noisy_max":
            questions = [
                {"candidates": [{"name": "old", "where": f"age > {age}"}, {"name": "F", "where": "sex = 'F'"}]}
            ]
        else:
            questions = [{"where": f"age BETWEEN {age} AND {age + place % 3} AND sex = 'F'"} for place in range(8)]
        self.ask_many([{"stream": stream, **one} for one in questions])
        self._open_streams.append((source, stream))
        self.opened += 1

    def trim(self) -> None:
        """Give the monitor the new records, and drop them."""
        for (topic, _), log in self._places.items():
            for record in log if topic in self.monitor.inputs else ():
                self.monitor.add_record(record)
            log.trim()

    def kept_records(self, topic: str) -> list[Record]:
        """Return what compaction leaves of a topic."""
        return sorted(self._places.setdefault((topic, 0)).latest.values(), key=lambda record: record.offset)

    def restarts(self) -> list[Figure]:
        """Restart each role from the topics; return seconds, memory, and the disk of the topics."""
        self.trim()
        figures: list[Figure] = []
        for role, restart in (
            ("worker", self._restart_worker),
            ("budget service", self._restart_budget),
            ("feed", self._restart_feed),
            ("monitor", self._restart_monitor),
        ):
            seconds, taken = _measured(restart)
            figures += [(f"{role}: memory", taken / 1e6, "MB"), (f"{role}: restart", seconds, "s")]
        for topic in (self.topics.control, self.topics.state, self.topics.ledger, self.topics.trail):
            size = sum(len(record.key or b"") + len(record.value or b"") for record in self.kept_records(topic))
            figures.append((f"{topic}: disk", size / 1e6, "MB"))
        return figures

    def _restart_worker(self) -> QueryProcessor:
        worker = QueryProcessor(self.topics, 0, self._key, self._tables)
        worker.restore(self.kept_records(self.topics.control))
        worker.restore(self.kept_records(self.topics.state))
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
        budget.restore(self.kept_records(self.topics.ledger))
        budget.end_restore()
        return budget

    def _restart_feed(self) -> FeedDefinitions:
        definitions = FeedDefinitions()
        definitions.apply_control(self.kept_records(self.topics.control))
        return definitions

    def _restart_monitor(self) -> MonitorTables:
        tables = MonitorTables(self.topics)
        for topic in tables.inputs:
            for record in self.kept_records(topic):
                tables.add_record(record)
        return tables


_KINDS: Final = ("laplace", "pmw", "noisy_max")
_MECHANISMS: Final[dict[str, dict[str, Any]]] = {
    "above_threshold": {"threshold": 1000.0, "cutoff": 3},
    "laplace": {"answers": 10},
    "pmw": {"attributes": ["age", "sex"], "updates": 3},
    "noisy_max": {"answers": 2},
}


def _measured(restart: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a restart, and in a second one the memory that is held afterwards."""
    gc.collect()
    began = time.process_time()
    restart()
    seconds = time.process_time() - began
    gc.collect()
    tracemalloc.start()
    try:
        kept = restart()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return seconds, taken


if __name__ == "__main__":
    main()
