"""Measures the time from a window's end to its received answers, at a steady rate of events, and the feed's memory and backlog."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.installation import FOLDER
from benchmarks.live_course import Positions, used
from benchmarks.live_job import Job, Opened, People, live_topic, open_streams
from benchmarks.programs import Program, service
from schemas.windows import moment_ms
from stream.engine.restore import create_reader, read_to_end
from stream.settings import Settings

TOPIC: Final = "live-latency"
PEOPLE: Final = 200_000
TICK_SECONDS: Final = 0.005
BATCH_BYTES: Final = 1_000_000


class _Window(msgspec.Struct):
    end: str


class _Windowed(msgspec.Struct):
    window: _Window


class _Partial(msgspec.Struct):
    start: int


_window_of = msgspec.json.Decoder(_Windowed).decode
_partial_of = msgspec.json.Decoder(_Partial).decode


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the end of a window to its received answers, over all answers after the warm-up."""

    rate: float
    """Events per second that were sent."""
    windows: int
    answers: int
    missing: int
    median: float
    p99: float
    worst: float
    trace: dict[str, float]
    """The medians, over the windows, until its first and last records of each kind are written; by the broker's stamps."""
    feed_share: float
    """Processor seconds of the feed per second, after the warm-up."""
    worker_share: float
    first_rss: int
    """Memory of the feed after the warm-up."""
    last_rss: int
    most_rss: int
    most_backlog: int
    """Most events that were sent and not yet committed as counted, after the warm-up."""
    load: float


@dataclass(frozen=True)
class Usage:
    """The processor seconds of the programs at a moment, and the memory and backlog of the feed."""

    at: float
    feed_cpu: float
    worker_cpu: float
    rss: int
    backlog: int


async def measure(base: Settings, conditions: int, rate: int, seconds: int, warm_up: int) -> Latency:
    """Send at the rate for so long, and listen to the answers."""
    job = Job(conditions=conditions, lateness_ms=0)
    await live_topic(base, TOPIC)
    begins = int(1000 * (time.time() + 20))
    opened = await open_streams(base, "live-latency", TOPIC, job, begins)
    logs = FOLDER / "logs"
    with (
        service("worker", opened.settings, opened.noise_key, logs / "latency-worker.log") as worker,
        service("feed", opened.settings, opened.noise_key, logs / "latency-feed.log") as feed,
    ):
        return await _measured(opened, job, begins, (feed, worker), rate, seconds, warm_up)


async def _measured(
    opened: Opened,
    job: Job,
    begins: int,
    programs: tuple[Program, Program],
    rate: int,
    seconds: int,
    warm_up: int,
) -> Latency:
    feed, worker = programs
    settings, load = opened.settings, os.getloadavg()[0]
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, max_batch_size=BATCH_BYTES)
    consumer = create_reader(settings, fetch_max_wait_ms=50)
    heard: list[tuple[int, float]] = []
    usage: list[Usage] = []
    async with producer, consumer, Positions(settings, opened.group, TOPIC) as positions:
        consumer.assign([TopicPartition(opened.topics.answers, number) for number in range(settings.partitions)])
        sent = [0]
        beside = [
            asyncio.create_task(_listen(consumer, heard)),
            asyncio.create_task(_look(feed, worker, positions, sent, usage, warm_up)),
        ]
        gc.collect()
        gc.disable()
        began = time.time()
        try:
            await _send(producer, People(PEOPLE, settings.partitions, job.groups), rate, warm_up + seconds, sent)
            await asyncio.sleep(2 * job.window_ms / 1000)
        finally:
            gc.enable()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        feed.check()
    span = max(1000 * (began + warm_up), begins + job.window_ms), 1000 * (began + warm_up + seconds)
    topics = opened.topics
    written = {
        "count": await _written(settings, topics.partials, lambda value: _partial_of(value).start + job.window_ms),
        "question": await _written(settings, topics.queries, _end_of),
        "answer": await _written(settings, topics.answers, _end_of),
    }
    trace = {
        f"{which} {kind} written": found
        for kind, records in written.items()
        for which, found in (("first", first_of(records, span)), ("last", last_of(records, span)))
    }
    return summary(heard, usage, span, job, trace, (sent[0] / (seconds + warm_up), load))


def _end_of(value: bytes) -> int:
    return moment_ms(_window_of(value).window.end)


async def _written(settings: Settings, topic: str, end_of: Callable[[bytes], int]) -> list[tuple[int, float]]:
    """Of each record of a topic, the end of its window and the broker's stamp."""
    found: list[tuple[int, float]] = []
    async with create_reader(settings) as consumer:
        for number in range(settings.partitions):
            async for records in read_to_end(consumer, TopicPartition(topic, number), 5000):
                found += [(end_of(record.value), float(record.timestamp)) for record in records if record.value]
    return found


def last_of(written: Sequence[tuple[int, float]], span: tuple[float, float]) -> float:
    """The median, over the windows that ended within a span, of how long their last record took."""
    return _median(written, span, max)


def first_of(written: Sequence[tuple[int, float]], span: tuple[float, float]) -> float:
    """The median, over the windows that ended within a span, of how long their first record took."""
    return _median(written, span, min)


def _median(
    written: Sequence[tuple[int, float]], span: tuple[float, float], pick: Callable[[float, float], float]
) -> float:
    took: dict[int, float] = {}
    for end, at in written:
        if span[0] <= end <= span[1]:
            took[end] = pick(took.get(end, at - end), at - end)
    return statistics.median(took.values()) if took else float("nan")


def summary(
    heard: Sequence[tuple[int, float]],
    usage: Sequence[Usage],
    span: tuple[float, float],
    job: Job,
    trace: dict[str, float],
    conditions: tuple[float, float],
) -> Latency:
    """The figures of all windows that ended within a span; answers are (end of window, heard at) in milliseconds.

    ``conditions`` are the rate and the load.
    """
    inside = [(end, at) for end, at in heard if span[0] <= end <= span[1]]
    if not inside or not usage:
        raise TimeoutError("no window was answered; see the logs of feed and worker")
    times = np.array([at - end for end, at in inside])
    windows = int(span[1] // job.window_ms - -(-span[0] // job.window_ms)) + 1
    memory, passed = [one.rss for one in usage], usage[-1].at - usage[0].at or float("nan")
    return Latency(
        rate=conditions[0],
        windows=windows,
        answers=len(inside),
        missing=windows * job.streams * job.groups - len(inside),
        median=float(np.quantile(times, 0.5)),
        p99=float(np.quantile(times, 0.99)),
        worst=float(times.max()),
        trace=trace,
        feed_share=(usage[-1].feed_cpu - usage[0].feed_cpu) / passed,
        worker_share=(usage[-1].worker_cpu - usage[0].worker_cpu) / passed,
        first_rss=memory[0],
        last_rss=memory[-1],
        most_rss=max(memory),
        most_backlog=max(one.backlog for one in usage),
        load=conditions[1],
    )


async def _listen(consumer: AIOKafkaConsumer, heard: list[tuple[int, float]]) -> None:
    ends: dict[str, int] = {}
    while True:
        fetched = await consumer.getmany(timeout_ms=500)
        now = 1000 * time.time()
        for records in fetched.values():
            for record in records:
                end = _window_of(record.value).window.end
                if end not in ends:
                    ends[end] = moment_ms(end)
                heard.append((ends[end], now))


async def _look(
    feed: Program, worker: Program, positions: Positions, sent: Sequence[int], usage: list[Usage], warm_up: int
) -> None:
    await asyncio.sleep(warm_up)
    while True:
        before = sent[0]
        backlog = max(0, before - await positions.committed())
        (feed_cpu, rss), (worker_cpu, _) = used(feed.pid), used(worker.pid)
        usage.append(Usage(time.monotonic(), feed_cpu, worker_cpu, rss, backlog))
        await asyncio.sleep(1.0)


async def _send(producer: AIOKafkaProducer, people: People, rate: int, seconds: int, sent: list[int]) -> None:
    """Send one batch per partition and tick, because the sender must not use the processor that the feed needs."""
    began, count = time.perf_counter(), rate * seconds
    while sent[0] < count:
        due = min(count, int((time.perf_counter() - began) * rate) + 1)
        at = int(1000 * time.time())
        batches: dict[int, Any] = {}
        for _ in range(sent[0], due):
            partition, key, value = people.event(at)
            if partition not in batches:
                batches[partition] = producer.create_batch()
            if batches[partition].append(timestamp=None, key=key, value=value) is None:
                raise RuntimeError("the sender is too far behind; send fewer events per second")
        for partition, batch in batches.items():
            await producer.send_batch(batch, TOPIC, partition=partition)
        sent[0] = max(sent[0], due)
        await asyncio.sleep(TICK_SECONDS)
