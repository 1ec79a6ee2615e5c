"""Measures one worker with very many streams: memory per stream, throughput compared with few streams, memory with a backlog.

Without ``--broker`` everything happens in memory, through the processor as a worker runs it. Rates are of processor
time, so that other programs on the machine matter little; compare them with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

from aiokafka import TopicPartition

from benchmarks.installation import (
    FOLDER,
    Installation,
    broker_seconds,
    fill,
    install,
    make_queries,
    private_broker,
)
from benchmarks.programs import processor_seconds, service
from benchmarks.report import Figure, show_figures, write_json
from benchmarks.streams import THRESHOLD, definitions, fetched
from stream.caches import reduce_gc_frequency
from stream.engine.restore import create_reader
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.worker_processor import STATUS_SECONDS, QueryProcessor

KEY: Final = NoiseKey(bytes(range(32)))
TOPICS: Final = Topics(partitions=1)
FEW: Final = 100
BATCH: Final = 10_000
ROUNDS: Final = 30
"""So many batches are about as many answers as a worker gives between two digests of the streams that changed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument(
        "--broker", action="store_true", help="also run a worker behind a backlog, on a private broker"
    )
    parser.add_argument("--backlogs", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        figures = pool.submit(_measure, options.streams).result()
    show_figures(f"{options.streams:,} streams in one partition", figures)
    found = {"memory and throughput": figures}
    if options.broker:
        with private_broker() as base:
            for streams in (FEW, 1):
                installation = asyncio.run(install(base, 1, streams))
                for backlog in options.backlogs:
                    title = f"A backlog of {backlog:,} queries on {streams} streams"
                    found[title] = asyncio.run(_behind(installation, backlog))
                    show_figures(title, found[title])
    if options.json:
        write_json(options.json, found)


def _measure(streams: int) -> list[Figure]:
    """Measure in a separate process, so that its memory is that of the streams alone."""
    reduce_gc_frequency()
    few = _restored(FEW)
    gc.collect()
    before = _memory(os.getpid())
    began = time.process_time()
    many = _restored(streams)
    restoring = time.process_time() - began
    gc.collect()
    idle = (_memory(os.getpid()) - before) / streams
    loads = {"few": (few, FEW), "active few": (many, FEW), "all": (many, streams)}
    rates: dict[str, list[float]] = {name: [] for name in loads}
    first_rate = _ask_each_once(many, streams)
    after = _memory(os.getpid()) - before
    for processor in (few, many):
        _digest(processor, 1)
    offset = streams
    for _ in range(ROUNDS):
        for name, (processor, reach) in loads.items():
            rates[name].append(_rate(processor, _queries(reach, offset)))
            offset += BATCH
    ratio = {
        name: median(own / base for own, base in zip(rates[name], rates["few"], strict=True)) for name in rates
    }
    digested = [
        1 / (1 / median(rates[name]) + _digest(processor, 2) / (ROUNDS * BATCH))
        for name, processor in (("few", few), ("all", many))
    ]
    return [
        ("restored from definitions, making them included", streams / restoring, "streams/s"),
        ("memory of an idle stream", idle, "bytes"),
        ("memory of a stream that was asked", after / streams, "bytes"),
        ("first query of each stream", first_rate, "answers/s"),
        (f"throughput, {FEW} streams open", median(rates["few"]), "answers/s"),
        (f"throughput, all open, {FEW} of them asked", median(rates["active few"]), "answers/s"),
        ("throughput, all open, all of them asked at random", median(rates["all"]), "answers/s"),
        (f"ratio to {FEW} open, {FEW} of them asked", ratio["active few"], ""),
        (f"ratio to {FEW} open, all of them asked at random", ratio["all"], ""),
        (
            f"the same with a digest of what changed after {ROUNDS * BATCH:,} answers",
            digested[1] / digested[0],
            "",
        ),
    ]


def _restored(streams: int) -> QueryProcessor:
    processor = QueryProcessor(TOPICS, 0, KEY, TableStore.keyed_by(KEY))
    control = definitions(KEY, TOPICS, streams)
    while records := list(islice(control, BATCH)):
        processor.restore(records)
    processor.end_restore()
    return processor


def _queries(streams: int, offset: int) -> Sequence[Record]:
    """Inline threshold queries over random streams."""
    generator = random.Random(offset)
    return fetched([_query(generator.randrange(streams), offset + number) for number in range(BATCH)])


def _query(stream: int, offset: int) -> Record:
    name = b"stream-%d" % stream
    value = b'{"id":"query-%d","stream":"%s","value":%.1f,"threshold":%.1f}' % (
        offset,
        name,
        offset % 100,
        THRESHOLD,
    )
    return Record(TOPICS.queries, 0, offset, 0, name, value)


def _rate(processor: QueryProcessor, records: Sequence[Record]) -> float:
    """Answers per second of processor time, digests left out."""
    began = time.process_time()
    processor.process(processor.prepare(records))
    return len(records) / (time.process_time() - began)


def _digest(processor: QueryProcessor, intervals: int) -> float:
    """Seconds of processor time for a digest of each stream that changed since the last time, so many intervals after the start."""
    began = time.process_time()
    processor.collect_due_outputs(STATUS_SECONDS * intervals)
    return time.process_time() - began


def _ask_each_once(processor: QueryProcessor, streams: int) -> float:
    """The rate at which streams answer that have to derive their keys first."""
    batches = range(0, streams, BATCH)
    return median(
        _rate(processor, fetched([_query(stream, stream) for stream in range(first, min(first + BATCH, streams))]))
        for first in batches
    )


async def _behind(installation: Installation, backlog: int) -> list[Figure]:
    """Start a worker with a full backlog, and watch its memory until the backlog is processed."""
    settings, topics = installation.settings, installation.topics
    answers = [TopicPartition(topics.answers, number) for number in range(topics.partitions)]
    await fill(settings, topics.queries, make_queries(backlog, installation.streams))
    async with create_reader(settings) as consumer:
        before, broker_before = sum((await consumer.end_offsets(answers)).values()), broker_seconds()
        began, peak = time.monotonic(), 0.0
        with service("worker", settings, installation.noise_key, FOLDER / "logs" / "behind.log") as worker:
            # Positions count the commit markers too, so the last records may be a moment behind.
            while sum((await consumer.end_offsets(answers)).values()) - before < backlog:
                worker.check()
                peak = max(peak, _memory(worker.pid))
                await asyncio.sleep(0.1)
            elapsed, used = time.monotonic() - began, processor_seconds(worker.pid)
            broker_used = broker_seconds() - broker_before
    return [
        ("largest memory of the worker", peak / 2**20, "MiB"),
        ("start to last answer", elapsed, "s"),
        ("processor time of the worker, start included", 1e6 * used / backlog, "µs/answer"),
        ("processor time of the broker", 1e6 * broker_used / backlog, "µs/answer"),
    ]


def _memory(pid: int) -> float:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
