"""Measures the cost of restoring a partition's streams, step by step, without a broker.

Processor time of one core, so that other programs on the machine matter little; the best of several repeats.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.lifetime import unnamed_file_bytes
from benchmarks.report import Figure, show_figures, write_json
from benchmarks.streams import definitions
from schemas import Amount, Checkpoint, RetiredAnswer
from schemas.wire import encode, struct
from stream.budget.decision_records import build_retired_record
from stream.caches import reduce_gc_frequency
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import RETIRED_PREFIX, Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor

_READ_AT_ONCE: Final = 10_000
_BATCH_RECORDS: Final = 800
_RETIRED_TOGETHER: Final = 16
_WireCheckpoint: Any = struct(Checkpoint)


def main(arguments: Sequence[str] | None = None) -> None:
    """Restore so many streams, and read their records like the client."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[100_000])
    parser.add_argument(
        "--retired", type=int, help="measure only what so many retired streams leave in the worker"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    reduce_gc_frequency()
    figures: dict[str, list[Figure]] = {}
    if options.retired:
        show_figures(f"{options.retired:,} retired streams", _measure_retired(options.retired))
        return
    for streams in options.streams:
        for name, thresholds in (("equal thresholds", 1), ("thresholds of their own", streams)):
            title = f"Restoring {streams:,} streams, {name}"
            figures[title] = _measure(streams, thresholds, options.repeats)
            show_figures(title, figures[title])
    if options.json:
        write_json(options.json, figures)


def _measure(streams: int, thresholds: int, repeats: int) -> list[Figure]:
    topics, key = Topics(partitions=1), NoiseKey(bytes(range(32)))
    control = list(definitions(key, topics, streams, thresholds))
    state = [_checkpoint(topics, number, record) for number, record in enumerate(control)]
    best: dict[str, float] = {}
    gc.freeze()
    for _ in range(repeats):
        for name, seconds in _restore(topics, key, control, state):
            best[name] = min(best.get(name, seconds), seconds)
    best["read definitions (client)"] = min(_seconds(_reading(control)) for _ in range(repeats))
    best["read checkpoints (client)"] = min(_seconds(_reading(state)) for _ in range(repeats))
    figures: list[Figure] = [(name, 1e6 * seconds / streams, "µs a record") for name, seconds in best.items()]
    for kind in ("definitions", "checkpoints"):
        own = sum(seconds for name, seconds in best.items() if kind in name)
        without = own - best[f"read {kind} (client)"]
        figures.append((f"{kind}, processor alone", streams / without, "records/s"))
        figures.append((f"{kind}, reading included", streams / own, "records/s"))
    return figures


def _measure_retired(retired: int) -> list[Figure]:
    """Restore a worker with so many retired streams and a tenth as many open ones."""
    topics, key = Topics(partitions=1), NoiseKey(bytes(range(32)))
    answer = RetiredAnswer(reason="period is over", spent=Amount(epsilon=0.1, delta=0.0), tops_left=3)
    blocks = []
    for first in range(0, retired, _RETIRED_TOGETHER):
        block = build_retired_record([(f"ended-{first + one}", answer) for one in range(_RETIRED_TOGETHER)])
        value = block.model_dump_json().encode()
        blocks.append(Record(topics.control, 0, first, 0, RETIRED_PREFIX + b"%d" % first, value))
    control = list(definitions(key, topics, retired // 10, 1))
    processors = [QueryProcessor(topics, 0, key, TableStore.keyed_by(key)) for _ in range(2)]

    def restore(processor: QueryProcessor, records: Sequence[Record]) -> None:
        _feed(processor, records)
        processor.end_restore()

    alone = _seconds(lambda: restore(processors[0], control))
    both = _seconds(lambda: restore(processors[1], [*blocks, *control]))
    return [
        ("control of each", sum(len(one.key or b"") + len(one.value or b"") for one in blocks) / retired, "bytes"),
        ("file of each", unnamed_file_bytes() / retired, "bytes"),
        ("restore, retired and open streams", both, "s"),
        ("restore, open streams alone", alone, "s"),
    ]


def _restore(
    topics: Topics, key: NoiseKey, control: Sequence[Record], state: Sequence[Record]
) -> Iterable[tuple[str, float]]:
    """Restore once, as the engine does, and time its steps."""
    processor = QueryProcessor(topics, 0, key, TableStore.keyed_by(key))
    yield "take in definitions", _seconds(lambda: _feed(processor, control))
    yield "take in checkpoints", _seconds(lambda: _feed(processor, state))
    yield "end of the restore (half definitions, half checkpoints)", _seconds(processor.end_restore)


def _feed(processor: QueryProcessor, records: Sequence[Record]) -> None:
    for first in range(0, len(records), _READ_AT_ONCE):
        processor.restore(records[first : first + _READ_AT_ONCE])


def _reading(records: Sequence[Record]) -> Callable[[], object]:
    """Return a function that reads the records from a broker's bytes, including checksums."""
    sent = bytearray()
    for first in range(0, len(records), _BATCH_RECORDS):
        batch = DefaultRecordBatchBuilder(2, 0, 1, 0, 0, 0, 1 << 24)
        for number, record in enumerate(records[first : first + _BATCH_RECORDS]):
            batch.append(number, timestamp=1, key=record.key, value=record.value, headers=[])
        built = bytearray(batch.build())
        # The broker, not the producer, knows where in the log a batch begins.
        built[:8] = first.to_bytes(8, "big")
        sent += built
    place = TopicPartition(records[0].topic, 0)
    received = MemoryRecords(bytes(sent))
    # Records are freed as soon as they are applied.
    return lambda: deque(PartitionRecords(place, received, [], 0, None, None, True, READ_COMMITTED), maxlen=0)


def _checkpoint(topics: Topics, number: int, definition: Record) -> Record:
    value = definition.value or b""
    start = value.index(b'"incarnation":"') + len(b'"incarnation":"')
    checkpoint = _WireCheckpoint(value[start : start + 32].decode(), "open", 1 + number % 99, number % 3, number)
    return Record(topics.state, 0, number, 0, definition.key, encode(checkpoint))


def _seconds(step: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    step()
    return time.process_time() - began


if __name__ == "__main__":
    main()
