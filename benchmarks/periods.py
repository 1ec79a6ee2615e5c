"""Measures the cost of many periods of a source without Kafka: the beginning of a period, a restart, and each service's memory.

An hour-long period for a year is 8,760 of them. Processor time of one core, and bytes that the process takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from benchmarks.report import Figure, show_figures, write_json
from schemas import format_moment
from stream.budget.budget_processor import BudgetProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.monitor.api.source_views import SourceQuery, StreamQuery, list_sources, list_streams
from stream.monitor.monitor_tables import MonitorTables
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record, RecordLike
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor

BEGINS_MS: Final = 1_767_225_600_000
HOUR_MS: Final = 3_600_000
TOPICS: Final = Topics(partitions=1)
_KEY: Final = NoiseKey(bytes(32))


def main(arguments: Sequence[str] | None = None) -> None:
    """Let a year of hours begin and end, and read what is left of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.periods", description=__doc__)
    parser.add_argument("--periods", type=int, default=8_760)
    parser.add_argument("--streams", type=int, default=2, help="models of the source")
    parser.add_argument("--categories", type=int, default=10, help="of the attribute that groups are made of")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    year = Year(options.streams, options.categories)
    edges = [
        (f"edges {quarter * 25:,} % to {quarter * 25 + 25} % of the way", cost * 1e3, "ms each")
        for quarter, cost in enumerate(year.pass_by(options.periods))
    ]
    figures = {
        f"{options.periods:,} periods of {options.streams} streams: the budget service": [*edges, *year.topics()],
        "What is left of them": _left(year, options.periods),
    }
    for title, found in figures.items():
        show_figures(title, found)
    if options.json:
        write_json(options.json, figures)


class Year:
    """A budget service through a year, and what its topics hold when they are compacted: of each key the latest, by topic."""

    def __init__(self, streams: int, categories: int) -> None:
        self.kept: dict[str, dict[bytes, Record]] = {}
        self.streams = [f"busy-{number}" for number in range(streams)]
        self._offsets: dict[str, int] = {}
        self._passed = 0
        self._clock = BEGINS_MS
        self.service = service()
        source = {
            "source": "live",
            "kind": "events",
            "topic": "ops",
            "neighbors": "add-remove",
            "epsilon": float(streams),
            "person": "user",
            "time": "at",
            "unit": "person-period",
            "period": "1h",
            "attributes": {"zone": [f"zone-{number:05d}" for number in range(categories)]},
        }
        self._send({"kind": "register", "request": "register", "source": source})
        for number, name in enumerate(self.streams):
            mechanism = {"kind": "above_threshold", "threshold": 100.0 + number, "cutoff": 5, "monotone": True}
            standing = {"by": ["zone"], "window": {"size": "15m"}, "begins": format_moment(BEGINS_MS)}
            stream = {
                "stream": name,
                "source": "live",
                "epsilon": 1.0,
                "mechanism": mechanism,
                "standing": standing,
            }
            self._send({"kind": "open", "request": name, "stream": stream})

    def pass_by(self, periods: int) -> list[float]:
        """Let as many periods more begin, and end two behind, as merging and workers have them; seconds an edge, for each quarter."""
        found = []
        for quarter in range(4):
            count = periods * (quarter + 1) // 4 - periods * quarter // 4
            began = time.process_time()
            for _ in range(count):
                self._edge(self._passed)
                self._passed += 1
            found.append((time.process_time() - began) / max(count, 1))
        return found

    def records(self, topic: str) -> list[Record]:
        """Return the records of a topic, in order of offsets."""
        return sorted(self.kept.get(topic, {}).values(), key=lambda record: record.offset)

    def topics(self) -> list[Figure]:
        """Return the sizes of the topics."""
        return [
            (f"topic {name}", sum(len(one.value or b"") for one in records.values()) / 1e6, "MB")
            for name, records in self.kept.items()
        ]

    def _edge(self, number: int) -> None:
        start = BEGINS_MS + number * HOUR_MS
        self._clock = start + 15 * 60_000
        moment = format_moment(start)
        self._send({"kind": "begin_period", "request": f"begin/live@{moment}", "source": "live", "start": moment})
        if number < 2:
            return
        old = format_moment(start - 2 * HOUR_MS)
        for name in self.streams:
            stream, source = f"{name}@{old}", f"live@{old}"
            end = {"kind": "close", "request": f"end/{stream}", "source": source, "stream": stream}
            self._send({**end, "reason": "its period is over"})
            incarnation = self.service.ledger.accounts[source].grants[stream].identity.incarnation
            totals = {"answered": 40, "tops": 3, "state": "closed", "spent": {"epsilon": 0.8, "delta": 0.0}}
            charge = {"source": source, "stream": stream, "incarnation": incarnation, **totals}
            self._send(charge, TOPICS.charges)

    def _send(self, body: dict[str, Any], topic: str = TOPICS.requests) -> None:
        offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
        record = Record(topic, 0, offset, self._clock, None, json.dumps(body).encode())
        outputs = self.service.process(self.service.prepare([record]))
        for name, partition, messages in outputs:
            kept = self.kept.setdefault(name, {})
            for key, value, _ in messages:
                place = self._offsets[name] = self._offsets.get(name, -1) + 1
                known = b"%d" % place if name == TOPICS.trail else key or b""
                if value is None:
                    kept.pop(known, None)
                else:
                    kept[known] = Record(name, partition, place, self._clock, key, value)


def service() -> BudgetProcessor:
    """Return a budget service without any request."""

    def new_incarnation(record: RecordLike) -> bytes:
        return blake3(str(record.offset).encode()).digest(16)

    return BudgetProcessor(
        TOPICS, 0, key_id=_KEY.key_id, tables=TableStore(_KEY.subkey("tables")), new_incarnation=new_incarnation
    )


def _left(year: Year, periods: int) -> list[Figure]:
    control, ledger_records = year.records(TOPICS.control), year.records(TOPICS.ledger)
    figures: list[Figure] = []

    def measured(name: str, make: Callable[[], Any]) -> Any:
        figures.extend((f"{name}: {what}", figure, unit) for what, figure, unit in _in_a_process(make, periods))
        return make()

    ledger = measured("budget service", lambda: restored(ledger_records))
    feeds = measured("feeds", lambda: heard(control))
    worker = measured("workers", lambda: hosting(control))
    tables = measured("monitor", lambda: shown(year))
    now = year.service.ledger.clock / 1000
    calls: dict[str, Callable[[], Any]] = {
        "feeds: one thing that control tells": lambda: feeds.apply_control(control[-1:]),
        "feeds: which sources are counted": feeds.sources,
        "feeds: which streams of periods ask": lambda: feeds.open_streams_in_periods("live", year.streams[0]),
        "budget service: from when on a stream may ask": lambda: ledger.desk.periods.earliest(
            ledger.ledger.accounts["live"].source
        ),
        "page: list of sources": lambda: list_sources(tables, SourceQuery()).model_dump_json(),
        "page: list of streams": lambda: list_streams(tables, StreamQuery(), now).model_dump_json(),
    }
    for name, call in calls.items():
        began = time.process_time()
        for _ in range(10):
            call()
        figures.append((name, (time.process_time() - began) * 100, "ms"))
    del worker
    return figures


def restored(ledger: Iterable[Record]) -> BudgetProcessor:
    """A budget service that begins with a ledger."""
    found = service()
    found.restore(ledger)
    found.end_restore()
    return found


def heard(control: Sequence[Record]) -> FeedDefinitions:
    """Return the feeds' definitions of streams."""
    definitions = FeedDefinitions()
    for place in range(0, len(control), 1000):
        definitions.apply_control(control[place : place + 1000])
    return definitions


def hosting(control: Iterable[Record]) -> QueryProcessor:
    """Return a worker that has not answered yet."""
    worker = QueryProcessor(TOPICS, 0, _KEY, TableStore(_KEY.subkey("tables")))
    worker.restore(control)
    worker.end_restore()
    return worker


def shown(year: Year) -> MonitorTables:
    """Return a monitor's tables."""
    tables = MonitorTables(TOPICS)
    for name in tables.inputs:
        for record in year.records(name):
            tables.add_record(record)
    return tables


def _in_a_process(make: Callable[[], Any], periods: int) -> list[Figure]:
    """Return the time and memory for making something in a new process."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        gc.collect()
        before, began = _resident(), time.process_time()
        made = make()
        taken = time.process_time() - began
        gc.collect()
        found = [
            ("reads all again in", taken, "s"),
            ("memory", (_resident() - before) / periods, "bytes a period"),
        ]
        os.write(writing, json.dumps(found).encode())
        del made
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        return [(what, figure, unit) for what, figure, unit in json.load(told)]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
