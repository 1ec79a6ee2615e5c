"""From a window's end to its answers in hand, at a steady rate of events; memory and backlog of the feed meanwhile."""

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
from stream.kafka.restore import read_to_end, reader
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
    """Milliseconds from the end of a window to an answer of it in hand, over all answers after the warm-up."""

    rate: float
    """Events per second that were sent."""
    windows: int
    answers: int
    missing: int
    median: float
    p99: float
    worst: float
    counted: float
    """Of the windows, the median until the last partial of one is written; by the broker's stamps."""
    asked: float
    """The median until the last of a window's questions is written."""
    first_rss: int
    """Memory of the feed after the warm-up."""
    last_rss: int
    most_rss: int
    most_backlog: int
    """Most events that were sent and not yet committed as counted, after the warm-up."""
    load: float


async def measure(base: Settings, conditions: int, rate: int, seconds: int, warm_up: int) -> Latency:
    """Send at the rate for so long, and listen to the answers."""
    job = Job(conditions=conditions, lateness_ms=0)
    await live_topic(base, TOPIC)
    begins = int(1000 * (time.time() + 20))
    opened = await open_streams(base, "live-latency", TOPIC, job, begins)
    logs = FOLDER / "logs"
    with (
        service("worker", opened.settings, opened.noise_key, logs / "latency-worker.log"),
        service("feed", opened.settings, opened.noise_key, logs / "latency-feed.log") as feed,
    ):
        return await _measured(opened, job, feed, rate, seconds, warm_up)


async def _measured(opened: Opened, job: Job, feed: Program, rate: int, seconds: int, warm_up: int) -> Latency:
    settings, load = opened.settings, os.getloadavg()[0]
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, max_batch_size=BATCH_BYTES)
    consumer = reader(settings, fetch_max_wait_ms=50)
    heard: list[tuple[int, float]] = []
    usage: list[tuple[int, int]] = []
    async with producer, consumer, Positions(settings, opened.group, TOPIC) as positions:
        consumer.assign([TopicPartition(opened.topics.answers, number) for number in range(settings.partitions)])
        sent = [0]
        beside = [
            asyncio.create_task(_listen(consumer, heard)),
            asyncio.create_task(_look(feed, positions, sent, usage, warm_up)),
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
    span = 1000 * (began + warm_up), 1000 * (began + warm_up + seconds)
    topics = opened.topics
    counted = await _written(settings, topics.partials, lambda value: _partial_of(value).start + job.window_ms)
    asked = await _written(settings, topics.queries, lambda value: moment_ms(_window_of(value).window.end))
    stages = last_of(counted, span), last_of(asked, span)
    return summary(heard, usage, span, job, stages, (sent[0] / (seconds + warm_up), load))


async def _written(settings: Settings, topic: str, end_of: Callable[[bytes], int]) -> list[tuple[int, float]]:
    """Of each record of a topic, the end of its window and the broker's stamp."""
    found: list[tuple[int, float]] = []
    async with reader(settings) as consumer:
        for number in range(settings.partitions):
            async for records in read_to_end(consumer, TopicPartition(topic, number), 5000):
                found += [(end_of(record.value), float(record.timestamp)) for record in records if record.value]
    return found


def last_of(written: Sequence[tuple[int, float]], span: tuple[float, float]) -> float:
    """The median, over the windows that ended within a span, of how long their last record took."""
    last: dict[int, float] = {}
    for end, at in written:
        if span[0] <= end <= span[1]:
            last[end] = max(last.get(end, 0.0), at - end)
    return statistics.median(last.values()) if last else float("nan")


def summary(
    heard: Sequence[tuple[int, float]],
    usage: Sequence[tuple[int, int]],
    span: tuple[float, float],
    job: Job,
    stages: tuple[float, float],
    conditions: tuple[float, float],
) -> Latency:
    """The figures of all windows that ended within a span; answers are (end of window, heard at) in milliseconds.

    ``stages`` are until counted and until asked, ``conditions`` the rate and the load.
    """
    inside = [(end, at) for end, at in heard if span[0] <= end <= span[1]]
    if not inside or not usage:
        raise TimeoutError("no window was answered; see the logs of feed and worker")
    times = np.array([at - end for end, at in inside])
    windows = int(span[1] // job.window_ms - -(-span[0] // job.window_ms)) + 1
    memory = [rss for rss, _ in usage]
    return Latency(
        rate=conditions[0],
        windows=windows,
        answers=len(inside),
        missing=windows * job.streams * job.groups - len(inside),
        median=float(np.quantile(times, 0.5)),
        p99=float(np.quantile(times, 0.99)),
        worst=float(times.max()),
        counted=stages[0],
        asked=stages[1],
        first_rss=memory[0],
        last_rss=memory[-1],
        most_rss=max(memory),
        most_backlog=max(backlog for _, backlog in usage),
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
    feed: Program, positions: Positions, sent: Sequence[int], usage: list[tuple[int, int]], warm_up: int
) -> None:
    await asyncio.sleep(warm_up)
    while True:
        before = sent[0]
        usage.append((used(feed.pid)[1], max(0, before - await positions.committed())))
        await asyncio.sleep(1.0)


async def _send(producer: AIOKafkaProducer, people: People, rate: int, seconds: int, sent: list[int]) -> None:
    """One batch of each partition a tick: the sender must not take the processor that the feed needs."""
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
