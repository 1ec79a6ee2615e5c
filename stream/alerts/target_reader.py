"""Reads the answers in one consumer group per target, so that a slow target delays no other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidSessionTimeoutError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from stream.engine.restore import readable
from stream.kafka.client.client_patches import KafkaConsumer, refused_session
from stream.kafka.client.security import connection
from stream.kafka.topics.layouts import alerts_group
from stream.log import get_logger
from stream.settings import Settings

POLL_MS: Final = 250
BATCH_RECORDS: Final = 2_000
PARTITION_BYTES: Final = 512 * 1024
"""Most prefetched bytes per partition and target: small, because there may be many targets."""
_LOST: Final = (CommitFailedError, IllegalStateError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors of a commit if its partitions have moved to another process."""

StartOffset = Callable[[AIOKafkaConsumer, TopicPartition, int | None, int], Awaitable[int]]
"""Returns a partition's start offset, given its committed offset and its end."""

log = get_logger("alerts")


class Follower(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reads the partitions that the group assigns to this process, from ``start_offset`` on.

    ``round`` grows with every rebalance: records of an earlier round must not be used.
    """

    def __init__(self, settings: Settings, topic: str, target: str, start_offset: StartOffset) -> None:
        self.round = 0
        self.joined = False
        self._settings = settings
        self._topic = topic
        self._target = target
        self._start_offset = start_offset
        self._consumer: AIOKafkaConsumer | None = None
        self._fresh: set[TopicPartition] = set()
        self.lost: Callable[[Iterable[TopicPartition]], None] = lambda _: None
        """Called with the revoked partitions."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Join the group, and leave it at the end; RefusedTimeError if the session timeout is refused."""
        settings = self._settings
        consumer = KafkaConsumer(
            **connection(settings),
            group_id=alerts_group(settings, self._target),
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",  # if committed offsets are deleted; `_prepare` sets those of a new target
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=math.inf,  # a target may be away for hours
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=settings.fetch_bytes,
            fetch_max_wait_ms=100,
        )
        consumer.subscribe([self._topic], listener=self)
        self._consumer, self._fresh = consumer, set()
        try:
            await consumer.start()
            yield
        except InvalidSessionTimeoutError:
            raise refused_session(settings.session_timeout_ms) from None
        finally:
            self._consumer, self.joined = None, False
            await consumer.stop()

    async def batches(self, stopping: asyncio.Event) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
        """Yield fetched records per partition, or an empty batch after each fetch without records."""
        while not stopping.is_set():
            if self._fresh:
                await self._prepare()
            now = self.round
            fetched = await self._live.getmany(timeout_ms=POLL_MS, max_records=BATCH_RECORDS)
            for partition, records in fetched.items():
                if self.round != now or stopping.is_set():
                    break
                yield partition, list(readable(records))
            if not fetched:
                yield TopicPartition(self._topic, -1), []

    async def _prepare(self) -> None:
        """Seek to the start offsets; a new target starts at the end of the answers."""
        now, fresh, self._fresh = self.round, self._fresh, set()
        try:
            for partition in fresh:
                committed = await self._live.committed(partition)
                end = (await self._live.end_offsets([partition]))[partition]
                if committed is None:
                    # Commit now: answers that come while this process is down must be delivered later.
                    await self._live.commit({partition: end})
                self._live.seek(partition, await self._start_offset(self._live, partition, committed, end))
                self._live.resume(partition)
        except _LOST:
            return  # rebalanced meanwhile: the new owner of the partition prepares it
        self._become_joined(now)

    async def commit(self, offsets: dict[TopicPartition, int], during: int) -> None:
        """Commit offsets of records fetched in a round; do nothing if that round is over."""
        if not offsets or during != self.round:
            return
        try:
            await self._live.commit(offsets)
        except _LOST:
            log.info("position not committed: the group was rebalanced", target=self._target)

    async def position(self, partition: TopicPartition) -> int:
        """Return the next offset to read."""
        return int(await self._live.position(partition))

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions of this process."""
        return set(self._live.assignment())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """End the round and report the lost partitions."""
        self.round += 1
        self.joined = False
        self._fresh = set()
        self.lost(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pause new partitions until their start offsets are known."""
        self.round += 1
        self._fresh = set(assigned)
        self._live.pause(*self._fresh)
        if not self._fresh:
            self._become_joined(self.round)

    def _become_joined(self, during: int) -> None:
        if self.round == during:
            self.joined = True
            log.info("group joined", target=self._target, partitions=len(self.partitions))

    @property
    def _live(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("the follower is not running")
        return self._consumer
