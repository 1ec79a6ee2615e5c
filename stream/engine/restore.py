"""Reads topics up to the last stable offset, and reports unreadable records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.kafka.client.security import connection_options
from stream.log import get_logger
from stream.processing.dead_letters import UnreadableValue
from stream.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Counter


log = get_logger("unread")


class UnreadableChangelogError(RuntimeError):
    """A changelog has unreadable records, so the state of its partition is unknown."""

    def __init__(self, topic_partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{topic_partition.topic}, partition {topic_partition.partition}: the record before offset {offset} is unreadable; another "
            f"client has written there: revoke its right to write and restore a copy of {topic_partition.topic}"
        )


def report_unread(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> int:
    """Return the number of unreadable records; log the position of the first one."""
    if getattr(records, "all_are_read", False):
        return 0
    found = [record for record in records if isinstance(record.value, UnreadableValue)]
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
    """Return the readable records, and log that others were skipped."""
    if not report_unread(records, counter):
        return records
    return [record for record in records if not isinstance(record.value, UnreadableValue)]


READ_TIMEOUT_MS = 50
"""Longest wait for records in ms; none may come, because a topic may end with transaction markers."""

FETCH_BYTES = 16 * 1024 * 1024
"""Most bytes of one fetch over all partitions, unless ``fetch_bytes`` is larger."""


def reader(settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
    """Return a consumer outside any group that sees only committed records."""
    options: dict[str, Any] = {
        **connection_options(settings),
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": settings.fetch_bytes,
        "fetch_max_bytes": max(settings.fetch_bytes, FETCH_BYTES),
    }
    return clients.consumer(**{**options, **overrides})


async def require_visible(consumer: AIOKafkaConsumer, topic: str) -> None:
    """Raise an error if Kafka hides the topic, for which aiokafka would wait forever."""
    if topic not in await consumer.topics():
        raise TopicAuthorizationFailedError({topic})


class TopicWentBackError(RuntimeError):
    """A topic ends before the next offset: it was recreated or truncated."""


async def read_to_end(
    consumer: Consumer,
    partition: TopicPartition,
    max_records: int,
    start: int | None = None,
    *,
    whole: bool = False,
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """Yield committed records up to the last stable offset at the time of the call.

    Reading starts at the beginning, or at the offset ``start``, and ends when the consumer's position
    reaches the last stable offset. Records are not counted, because aborted records and markers take
    up offsets too. Unreadable records are logged and skipped. A changelog must be read ``whole``; then
    an unreadable record is an error.

    Raises:
        TopicWentBackError: the partition ends before ``start``.
        UnreadableChangelogError: a record of a ``whole`` partition is unreadable.
    """
    consumer.assign([partition])
    if start is None:
        await consumer.seek_to_beginning(partition)
    else:
        consumer.seek(partition, start)
    end = (await consumer.end_offsets([partition]))[partition]
    if start is not None and end < start:
        raise TopicWentBackError(f"{partition.topic} ends at offset {end} but was read to offset {start}")
    while await consumer.position(partition) < end:
        fetched = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=max_records)
        if records := fetched.get(partition):
            if (left := readable(records)) is not records and whole:
                raise UnreadableChangelogError(partition, records[-1].offset)
            if left:
                yield left
        else:
            await asyncio.sleep(0)


async def read_span(
    consumer: Consumer, partition: TopicPartition, start: int, end: int, max_records: int
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield the readable committed records from ``start`` to before ``end``; the partition is assigned."""
    consumer.seek(partition, start)
    while (left := end - await consumer.position(partition)) > 0:
        most = min(left, max_records)
        fetched = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=most)
        yield [one for one in readable(fetched.get(partition, ())) if one.offset < end]
