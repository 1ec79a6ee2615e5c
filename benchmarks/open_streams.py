"""Starts of worker, budget service and monitor with many open streams: seconds, and memory of the processes.

The streams are opened through the budget service's processor, which writes the topics into files. Each role
then reads them in a process of its own, one after the other. Times are of the processor, without the broker's;
memory is the most that the process had, interpreter and libraries included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

import msgspec

from benchmarks.ledger import KEY, TOPICS, Service, openings, registrations
from benchmarks.report import Figure, show_figures
from stream.budget.budget_processor import BudgetProcessor
from stream.caches import reduce_gc_frequency
from stream.monitor.budget_history import TrailState
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.topic_readers import choose_start
from stream.processing.protocol import Outputs, Record
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor

_READ_AT_ONCE: Final = 10_000
_OPENED_AT_ONCE: Final = 10_000
_Line = tuple[bytes, bytes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--sources", type=int, default=1_000)
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        fill_topics(Path(folder), options.streams, options.sources)
        figures: list[Figure] = []
        spawn = multiprocessing.get_context("spawn")
        for role in ROLES:
            with spawn.Pool(1) as pool:
                seconds, peak = pool.apply(measure_start, (role, folder))
            figures += [(f"{role}: start", seconds, "s"), (f"{role}: memory", peak / 1e6, "MB")]
    for index, (name, unit) in enumerate((("start", "s"), ("memory", "MB"))):
        figures.append((f"together: {name}", sum(value for _, value, _ in figures[index::2][: len(ROLES)]), unit))
    show_figures(f"{options.streams:,} open streams of {options.sources:,} sources", figures)


class _WritingService(Service):
    """A budget service in memory that writes ``control`` and ``trail`` into files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = {topic: (folder / topic).open("ab") for topic in (TOPICS.control, TOPICS.trail)}

    def _keep(self, outputs: Outputs) -> None:
        super()._keep(outputs)
        for topic, _, messages in outputs:
            for key, value, _ in messages if topic in self._files else ():
                _write_record(self._files[topic], key or b"", value or b"")

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def fill_topics(folder: Path, streams: int, sources: int) -> None:
    """Open streams, and write the topics as compaction leaves them."""
    reduce_gc_frequency()
    service = _WritingService(folder)
    service.send(list(registrations(sources)))
    for start in range(0, streams, _OPENED_AT_ONCE):
        service.send(list(openings(min(_OPENED_AT_ONCE, streams - start), sources, start)))
    service.close()
    with (folder / TOPICS.ledger).open("wb") as file:
        for key, value in service.ledger.items():
            _write_record(file, key, value)


def _write_record(file: BinaryIO, key: bytes, value: bytes) -> None:
    file.write(msgspec.msgpack.encode((key, value)).hex().encode() + b"\n")


def _read_topic(folder: str, topic: str) -> Iterator[list[Record]]:
    """Yield the records of a topic, many at a time, as a consumer does."""
    decode = msgspec.msgpack.Decoder(_Line).decode
    with Path(folder, topic).open("rb") as file:
        pairs = enumerate(decode(bytes.fromhex(line.decode())) for line in file)
        while records := [Record(topic, 0, at, 0, *pair) for at, pair in islice(pairs, _READ_AT_ONCE)]:
            yield records


def _start_worker(folder: str) -> QueryProcessor:
    worker = QueryProcessor(TOPICS, 0, KEY, TableStore.keyed_by(KEY))
    for records in _read_topic(folder, TOPICS.control):
        worker.restore(records)
    worker.end_restore()
    return worker


def _start_budget(folder: str) -> BudgetProcessor:
    budget = BudgetProcessor(
        TOPICS, 0, key_id=KEY.key_id, tables=TableStore.keyed_by(KEY), new_incarnation=lambda _: bytes(16)
    )
    for records in _read_topic(folder, TOPICS.ledger):
        budget.restore(records)
    budget.end_restore()
    return budget


def _start_monitor(folder: str) -> MonitorTables:
    tables = MonitorTables(TOPICS)
    for topic in (TOPICS.ledger, TOPICS.control):
        for records in _read_topic(folder, topic):
            for record in records:
                tables.add_record(record)
    tables.trail = TrailState(is_whole=False)
    with Path(folder, TOPICS.trail).open("rb") as file:
        entries = sum(1 for _ in file)
    start = choose_start(0, entries, entries)
    for records in _read_topic(folder, TOPICS.trail):
        for record in records if records[-1].offset >= start else ():
            tables.add_record(record)
    return tables


ROLES: Final[dict[str, Callable[[str], Any]]] = {
    "worker": _start_worker,
    "budget service": _start_budget,
    "monitor": _start_monitor,
}


def measure_start(role: str, folder: str) -> tuple[float, float]:
    """Start a role in this process; return the seconds, and the most bytes of memory."""
    reduce_gc_frequency()
    began = time.process_time()
    started = ROLES[role](folder)
    seconds = time.process_time() - began
    del started
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return seconds, 1024 * int(peak.split()[1])


if __name__ == "__main__":
    main()
