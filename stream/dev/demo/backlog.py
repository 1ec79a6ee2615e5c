"""Measures how fast the demo's worker answers a backlog that is published at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiokafka import TopicPartition

from schemas import AboveThreshold, OpenStream, StreamSpec
from stream.client.async_client import AsyncClient
from stream.dev.demo.demo_report import FEED, FEED_THRESHOLD
from stream.engine.restore import reader
from stream.kafka.client.client_patches import KafkaProducer
from stream.kafka.client.security import connection_options
from stream.processing.topic_names import partition_of
from stream.settings import Settings

QUERIES: Final = 200_000
STREAMS: Final = 20
MOST_SECONDS: Final = 60.0
"""Most seconds to wait for the answers."""
_BATCH_BYTES: Final = 128 * 1024


async def measure_backlog(client: AsyncClient, settings: Settings) -> tuple[list[StreamSpec], float]:
    """Open streams and publish ``QUERIES`` questions; return the streams and the answers per second.

    The rate is that from the first commit of answers to the last, by the offsets of the topic. These
    count the markers of transactions too, a few in a hundred thousand.
    """
    specs = [
        StreamSpec(
            stream=f"backlog-{number:02}",
            source=FEED,
            mechanism=AboveThreshold(kind="above_threshold", threshold=FEED_THRESHOLD, cutoff=1),
            epsilon=0.05,
            expected_queries=QUERIES // STREAMS,
        )
        for number in range(STREAMS)
    ]
    await client.requests([OpenStream(request=f"open {spec.stream}", stream=spec) for spec in specs])
    answers = [TopicPartition(client.topics.answers, number) for number in range(client.topics.partitions)]
    consumer = reader(settings)
    producer = KafkaProducer(**connection_options(settings), acks="all", max_batch_size=_BATCH_BYTES)
    try:
        await consumer.start()
        await producer.start()
        before = sum((await consumer.end_offsets(answers)).values())
        published = asyncio.create_task(_publish(producer, client.topics.queries, client.topics.partitions, specs))
        rate = await _wait_for_answers(consumer, answers, before)
        await published
    finally:
        await producer.stop()
        await consumer.stop()
    return specs, rate


async def _publish(producer: Any, topic: str, partitions: int, specs: list[StreamSpec]) -> None:
    for spec in specs:
        key = spec.stream.encode()
        partition = partition_of(key, partitions)
        batch = producer.create_batch()
        for number in range(QUERIES // STREAMS):
            value = b'{"id":"%d","stream":"%s","value":%d}' % (number, key, number % 1000)
            if batch.append(timestamp=None, key=key, value=value) is None:
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        await producer.send_batch(batch, topic, partition=partition)
    await producer.flush()


async def _wait_for_answers(consumer: Any, answers: list[TopicPartition], before: int) -> float:
    """Return the answers per second; 0 if not all come in time."""
    began = time.monotonic()
    first_count, first_time = 0, began
    while (now := time.monotonic()) - began < MOST_SECONDS:
        count: int = sum((await consumer.end_offsets(answers)).values()) - before
        if count >= QUERIES:
            return (count - first_count) / (now - first_time)
        if count and not first_count:
            first_count, first_time = count, now
        await asyncio.sleep(0.01)
    return 0.0
