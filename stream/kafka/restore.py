"""Reading compacted topics from their beginning to what is committed now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream.kafka.clients import KAFKA, Clients, Consumer
from stream.kafka.security import connection
from stream.kafka.unread import UnreadableChangelogError, readable
from stream.settings import Settings

READ_TIMEOUT_MS = 50
"""Longest wait, in milliseconds, for records that may never come: at a topic's end there may be markers alone."""

FETCH_BYTES = 16 * 1024 * 1024
"""Most that one fetch brings of all partitions together."""


def reader(settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
    """A consumer outside any group that sees committed records only."""
    options: dict[str, Any] = {
        **connection(settings),
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": settings.fetch_bytes,
        "fetch_max_bytes": max(settings.fetch_bytes, FETCH_BYTES),
    }
    return clients.consumer(**{**options, **overrides})


async def require_visible(consumer: AIOKafkaConsumer, topic: str) -> None:
    """Raise TopicAuthorizationFailedError if Kafka hides the topic: to read it, aiokafka would wait for ever."""
    if topic not in await consumer.topics():
        raise TopicAuthorizationFailedError({topic})


class TopicWentBackError(RuntimeError):
    """A topic ends before the offset to go on from: it was recreated or cut."""


async def read_to_end(
    consumer: Consumer,
    partition: TopicPartition,
    max_records: int,
    start: int | None = None,
    *,
    whole: bool = False,
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """Every committed record of a partition up to its last stable offset at the time of the call.

    What cannot be read is passed over, and logged; of a changelog, which must be read ``whole``, nothing may be.

    It starts at the beginning, or at the offset ``start``. It ends by position, not by count: aborted transactions and
    control records take up offsets, at the very tail too.

    Raises:
        TopicWentBackError: the partition ends before ``start``.
        UnreadableChangelogError: not all can be read, and it must be read ``whole``.
    """
    consumer.assign([partition])
    if start is None:
        await consumer.seek_to_beginning(partition)
    else:
        consumer.seek(partition, start)
    end = (await consumer.end_offsets([partition]))[partition]
    if start is not None and end < start:
        raise TopicWentBackError(f"{partition.topic} ends at offset {end} and was read to {start}")
    while await consumer.position(partition) < end:
        fetched = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=max_records)
        if records := fetched.get(partition):
            if (left := readable(records)) is not records and whole:
                raise UnreadableChangelogError(partition, records[-1].offset)
            if left:
                yield left
        else:
            await asyncio.sleep(0)
