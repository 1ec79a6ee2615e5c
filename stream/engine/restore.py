"""Reading compacted topics from their beginning to what is committed now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.kafka.client.security import connection
from stream.log import get_logger
from stream.processing.dead_letters import Unread
from stream.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Counter


log = get_logger("unread")


class UnreadableChangelogError(RuntimeError):
    """A changelog holds what cannot be read: nobody knows what its partition has answered."""

    def __init__(self, source: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{source.topic}, partition {source.partition}: what ends at offset {offset} cannot be read; somebody else than "
            f"the service has written there: take the right away and bring back a copy of {source.topic}"
        )


def tell_of_unread(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> int:
    """Count those of a batch that could not be read, and log the first of them; nothing of what they hold."""
    if getattr(records, "all_are_read", False):
        return 0
    found = [record for record in records if isinstance(record.value, Unread)]
    if found:
        first = found[0]
        batch = first.value.batch
        log.error(
            "refused unread",
            topic=first.topic,
            partition=first.partition,
            offset=first.offset if batch is None else batch.first,
            last=found[-1].offset,
            count=len(found),
            reason=first.value.rejection.message,
        )
        if counter is not None:
            counter.inc(len(found))
    return len(found)


def readable(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> Sequence[ConsumerRecord]:
    """Those that could be read. The log tells of the others."""
    if not tell_of_unread(records, counter):
        return records
    return [record for record in records if not isinstance(record.value, Unread)]


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
