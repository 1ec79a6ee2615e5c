"""A private broker, one installation for each number of streams, and the same queries for all contenders."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, signal

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.programs import processor_seconds, service
from schemas import AboveThreshold, OpenStream, RegisterSource, StreamSpec, ValuesSource
from sotto import AsyncClient
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.processing.topic_names import Topics, partition_of
from stream.settings import Settings

FOLDER = Path(".sotto/bench")
PARTITIONS = 4
SOURCE_EPSILON = 1000.0
STREAM_EPSILON = 0.04
"""The ε of a stream; it is smaller if the source's ε does not suffice for so many streams."""
THRESHOLD = 1e6
"""Far above every value: no stream may reach its cutoff during a run."""

_OPENINGS_AT_ONCE = 1000
_FILL_BYTES = 128 * 1024

Queries = list[list[tuple[bytes, bytes]]]
"""Per partition, keys and values."""


@dataclass(frozen=True)
class Installation:
    """A Sotto installation with its streams open, and the queries that every contender gets."""

    settings: Settings
    topics: Topics
    noise_key: str
    streams: int
    queries: Queries


@contextmanager
def private_broker(partitions: int = PARTITIONS) -> Iterator[Settings]:
    """A broker of the benchmarks' own, with nothing in it; its data is removed afterwards."""
    # A benchmark that is told to end takes the programs with it that it has started; the broker looks after itself.
    signal(SIGTERM, lambda *_: sys.exit(128 + SIGTERM))
    # Its warnings are of retries, as usual with topics that are new.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    broker = LocalBroker(FOLDER / "broker")
    broker.stop()
    shutil.rmtree(broker.folder, ignore_errors=True)
    with broker:
        running = broker.status()
        if running is None:
            raise RuntimeError(f"the broker ended right after its start; see {broker.log}")
        yield Settings(bootstrap=running.bootstrap, partitions=partitions)
    shutil.rmtree(broker.folder, ignore_errors=True)


def broker_seconds() -> float:
    """Seconds of processor that the private broker has taken so far."""
    running = LocalBroker(FOLDER / "broker").status()
    if running is None:
        raise RuntimeError("the broker has ended")
    return processor_seconds(running.pid)


def make_queries(count: int, streams: int, partitions: int = PARTITIONS) -> Queries:
    """Inline threshold queries over random streams; equal arguments give equal bytes."""
    generator = random.Random(count * streams)
    queries: Queries = [[] for _ in range(partitions)]
    for number in range(count):
        stream = f"stream-{generator.randrange(streams)}"
        value = b'{"id":"query-%d","stream":"%s","value":%.1f,"threshold":%.1f}' % (
            number,
            stream.encode(),
            100 * generator.random(),
            THRESHOLD,
        )
        queries[partition_of(stream.encode(), partitions)].append((stream.encode(), value))
    return queries


async def install(base: Settings, queries: int, streams: int) -> Installation:
    """Create topics and open the streams; the budget service runs for that long only."""
    settings = base.model_copy(update={"prefix": f"bench-{streams}"})
    noise_key = secrets.token_hex(32)
    await create_topics(settings)
    with service("budget", settings, noise_key, FOLDER / "logs" / f"budget-{streams}.log"):
        async with AsyncClient(settings) as client:
            source = ValuesSource(
                source="bench", neighbors="add-remove", epsilon=SOURCE_EPSILON, kind="values", sensitivity=1.0
            )
            await client.request(RegisterSource(request="register", source=source), timeout=60)
            for start in range(0, streams, _OPENINGS_AT_ONCE):
                numbers = range(start, min(start + _OPENINGS_AT_ONCE, streams))
                requests = [
                    OpenStream(request=f"open-{number}", stream=_spec(number, streams)) for number in numbers
                ]
                receipts = await client.requests(requests, timeout=120)
                if refused := [receipt for receipt in receipts if receipt.outcome != "opened"]:
                    raise RuntimeError(f"{len(refused)} streams were refused: {refused[0].reason}")
    topics = Topics(settings.prefix, settings.partitions)
    return Installation(settings, topics, noise_key, streams, make_queries(queries, streams, settings.partitions))


async def create_topic(settings: Settings, name: str) -> None:
    """A topic for a contender, empty."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        response = await admin.create_topics([NewTopic(name, settings.partitions, 1)])
    finally:
        await admin.close()
    if failed := [error for _, error, *_ in response.topic_errors if error]:
        raise RuntimeError(f"cannot create topic {name}: error {failed[0]}")


async def delete_topics(settings: Settings, prefix: str) -> None:
    """Remove a contender's topics, including those that it added."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([name for name in await admin.list_topics() if prefix in name])
    finally:
        await admin.close()


async def fill(settings: Settings, topic: str, queries: Queries) -> None:
    """Append queries to a topic as fast as the client can."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all", max_batch_size=_FILL_BYTES)
    await producer.start()
    try:
        await asyncio.gather(*(_fill(producer, topic, number, pairs) for number, pairs in enumerate(queries)))
    finally:
        await producer.stop()


async def _fill(producer: AIOKafkaProducer, topic: str, partition: int, pairs: list[tuple[bytes, bytes]]) -> None:
    batch = producer.create_batch()
    for key, value in pairs:
        if batch.append(timestamp=None, key=key, value=value) is None:
            await (await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(timestamp=None, key=key, value=value)
    await (await producer.send_batch(batch, topic, partition=partition))


def _spec(number: int, streams: int) -> StreamSpec:
    return StreamSpec(
        stream=f"stream-{number}",
        source="bench",
        mechanism=AboveThreshold(kind="above_threshold", threshold=THRESHOLD),
        epsilon=min(STREAM_EPSILON, 0.8 * SOURCE_EPSILON / streams),
    )
