"""Reads topics up to the last stable offset, and keeps standby copies for a short restore.

A standby copy is a partly restored processor of another process's partition. After the fence, the restore
continues from the copy's position in each topic. If the copy lags, the restore takes longer. A copy that
fails is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from stream.diagnostics import LoggableError, get_logger
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.kafka.client.broker_connections import connection_options
from stream.processing.dead_letters import UnreadableValue
from stream.processing.protocol import Processor
from stream.processing.topic_names import Topics
from stream.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Counter


WORKER_TOPICS: Final = ("state", "control")
"""The topics whose anchored ends a worker compares; the budget service compares the end of ``ledger``."""

log = get_logger("unread")


class UnreadableChangelogError(LoggableError):
    """A changelog has unreadable records, so the state of its partition is unknown."""

    def __init__(self, topic_partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{topic_partition.topic}, partition {topic_partition.partition}: a record at or before offset {offset} is unreadable; another "
            f"client has written there: revoke its right to write and restore a copy of {topic_partition.topic}"
        )


def report_unreadable(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> int:
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


def select_readable(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> Sequence[ConsumerRecord]:
    """Return the readable records, and log that others were skipped."""
    if not report_unreadable(records, counter):
        return records
    return [record for record in records if not isinstance(record.value, UnreadableValue)]


READ_TIMEOUT_MS = 50
"""Longest wait for records, in milliseconds; if a topic ends with transaction markers, no record comes."""

FETCH_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes of one fetch over all partitions, unless ``fetch_bytes`` is larger."""


def create_reader(settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
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
    """Raise an error if Kafka hides the topic, because aiokafka would wait for it forever."""
    if topic not in await consumer.topics():
        raise TopicAuthorizationFailedError({topic})


class TopicWentBackError(LoggableError):
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
    reaches the last stable offset. Unreadable records are logged and skipped. A changelog must be read
    ``whole``; then an unreadable record is an error.

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
            if (left := select_readable(records)) is not records and whole:
                raise UnreadableChangelogError(partition, records[-1].offset)
            if left:
                yield left
        else:
            await asyncio.sleep(0)


async def read_span(
    consumer: Consumer, partition: TopicPartition, start: int, end: int, max_records: int
) -> AsyncGenerator[Sequence[ConsumerRecord], None]:
    """Yield the readable committed records with offsets from ``start`` to ``end - 1`` of an assigned partition."""
    consumer.seek(partition, start)
    while (left := end - await consumer.position(partition)) > 0:
        limit = min(left, max_records)
        fetched = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=limit)
        yield [one for one in select_readable(fetched.get(partition, ())) if one.offset < end]


COPY_START_SECONDS: Final = 3.0
"""Seconds before copies start: rebalances come in series, and owned partitions must be restored first."""
COPY_PAUSE_SECONDS: Final = 0.5
"""Seconds after which a complete copy reads new records again."""
COPIED_RECORDS_PER_SECOND: Final = 50_000
"""Maximum number of records per second of all copies together, which take about a quarter of a core."""
COPY_RETRY_SECONDS: Final = 15.0
"""Seconds before a failed copy is restarted."""

standby_log = get_logger("standby")


@dataclass
class StandbyCopy:
    """A partly restored processor, and the offsets up to which it has read its topics."""

    processor: Processor
    positions: dict[TopicPartition, int] = field(default_factory=dict)


class Standby:
    """Keeps copies of up to ``settings.standby_partitions`` of a role's ``partitions``."""

    def __init__(
        self,
        make_processor: Callable[[int], Processor],
        settings: Settings,
        partitions: int,
        clients: Clients = KAFKA,
    ) -> None:
        self._make_processor = make_processor
        self._settings = settings
        self._partitions = partitions
        self._clients = clients
        self._copies: dict[int, StandbyCopy] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def copy_neighbors(self, owned: Collection[int]) -> None:
        """Copy the neighbors of the ``owned`` partitions; drop copies that are neither neighbors nor owned."""
        wanted = neighbor_partitions(owned, self._partitions, self._settings.standby_partitions)
        for partition in self._tasks.keys() - wanted - set(owned):
            self._drop_copy(partition)
        for partition in wanted - self._tasks.keys():
            self._tasks[partition] = asyncio.create_task(
                self._maintain_copy(partition), name=f"standby-{partition}"
            )

    def take_standby_copy(self, partition: int) -> StandbyCopy | None:
        """Return a partition's copy and stop updating it; call it after the fence."""
        copy = self._copies.get(partition)
        self._drop_copy(partition)
        return copy

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for partition in list(self._tasks):
            self._drop_copy(partition)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop_copy(self, partition: int) -> None:
        self._copies.pop(partition, None)
        if (task := self._tasks.pop(partition, None)) is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _maintain_copy(self, partition: int) -> None:
        pause = COPY_START_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                async with create_reader(self._settings, self._clients) as consumer:
                    await self._copy_partition(partition, consumer)
            except Exception as error:  # noqa: BLE001  (any failure: a full restore needs no copy)
                self._copies.pop(partition, None)
                standby_log.warning("standby starts over", partition=partition, error=type(error).__name__)
            pause = COPY_RETRY_SECONDS

    async def _copy_partition(self, partition: int, consumer: Consumer) -> None:
        """Apply a partition's lookup topics and changelog from the beginning, then all new records."""
        processor, record_count = self._make_processor(partition), 0
        copy = self._copies[partition] = StandbyCopy(processor)
        topic_partitions = [
            TopicPartition(topic, partition) for topic in (*processor.lookup_topics, processor.changelog)
        ]
        for rounds in count():
            for topic_partition in topic_partitions:
                limit, position = self._settings.batch_events, copy.positions.get(topic_partition)
                whole = topic_partition.topic == processor.changelog
                async for records in read_to_end(consumer, topic_partition, limit, position, whole=whole):
                    # No await between the next two lines, because the copy may be taken at any await.
                    processor.restore(records)
                    copy.positions[topic_partition] = records[-1].offset + 1
                    record_count += len(records)
                    async with self._turn:
                        await asyncio.sleep(len(records) / COPIED_RECORDS_PER_SECOND)
                # The position includes the transaction markers after the last record.
                copy.positions[topic_partition] = await consumer.position(topic_partition)
                consumer.pause(topic_partition)
            if rounds == 0:
                standby_log.info("standby ready", partition=partition, records=record_count)
            await asyncio.sleep(COPY_PAUSE_SECONDS)


def neighbor_partitions(owned: Collection[int], partitions: int, limit: int) -> set[int]:
    """Return the ``limit`` partitions that are nearest to the owned ones.

    The group assigns ranges. When a member joins or leaves, the ranges shift, so that a member
    inherits partitions next to its own.
    """
    others = [number for number in range(partitions) if number not in owned]
    others.sort(key=lambda number: (min((abs(number - own) for own in owned), default=0), number))
    return set(others[:limit])


async def read_ends(settings: Settings, topics: Topics, clients: Clients = KAFKA) -> dict[str, tuple[int, ...]]:
    """Return the high watermarks of the anchored topics, by partition."""
    places = {
        name: [TopicPartition(getattr(topics, name), number) for number in range(topics.partitions)]
        for name in WORKER_TOPICS
    }
    places["ledger"] = [TopicPartition(topics.ledger, 0)]
    async with create_reader(settings, clients, isolation_level="read_uncommitted") as consumer:
        ends = await consumer.end_offsets([one for partitions in places.values() for one in partitions])
    return {name: tuple(ends[one] for one in partitions) for name, partitions in places.items()}
