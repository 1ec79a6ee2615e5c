"""Reading compacted topics from their beginning to what is committed now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stream.settings import Settings

READ_TIMEOUT_MS = 1000


def reader(settings: Settings, **overrides: Any) -> AIOKafkaConsumer:
    """A consumer outside any group that sees committed records only."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap,
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": settings.fetch_bytes,
    }
    return AIOKafkaConsumer(**{**options, **overrides})


async def read_to_end(
    consumer: AIOKafkaConsumer,
    partition: TopicPartition,
    max_records: int,
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """Every committed record of a partition up to its last stable offset at the time of the call.

    It ends by position, not by count: aborted transactions and control records take up offsets, at the very tail too.
    """
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    end = (await consumer.end_offsets([partition]))[partition]
    while await consumer.position(partition) < end:
        fetched = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=max_records)
        if records := fetched.get(partition):
            yield records
        else:
            await asyncio.sleep(0)
