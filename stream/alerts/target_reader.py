"""A target's own consumer group on the answers: what it has not taken yet stays in Kafka, and holds up no other target."""

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
from stream.kafka.client.client_patches import disable_topic_auto_creation, refused_session
from stream.kafka.client.security import connection
from stream.kafka.topics.layouts import alerts_group
from stream.log import get_logger
from stream.settings import Settings

POLL_MS: Final = 250
BATCH_RECORDS: Final = 2_000
PARTITION_BYTES: Final = 512 * 1024
"""Most that is fetched ahead of a partition, for each target: few answers are alerts, and there are many targets."""
_LOST: Final = (CommitFailedError, IllegalStateError, RebalanceInProgressError, UnknownMemberIdError)
"""What a commit ends with when its partitions have gone to another process."""

Found = Callable[[AIOKafkaConsumer, TopicPartition, int | None, int], Awaitable[int]]
"""Where to begin with a partition, by its committed offset and its end."""

log = get_logger("alerts")


class Follower(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reads the partitions that the group gives to this process, from where ``begin`` says.

    ``round`` grows whenever partitions come or go: what was fetched in an earlier one is not this process's any more.
    """

    def __init__(self, settings: Settings, topic: str, target: str, begin: Found) -> None:
        self.round = 0
        self.joined = False
        self._settings = settings
        self._topic = topic
        self._target = target
        self._begin = begin
        self._consumer: AIOKafkaConsumer | None = None
        self._fresh: set[TopicPartition] = set()
        self.lost: Callable[[Iterable[TopicPartition]], None] = lambda _: None
        """Told which partitions go."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Join the group, and leave it.

        Raises:
            RefusedTimeError: the group takes no member with the session of the settings.
        """
        settings = self._settings
        consumer = AIOKafkaConsumer(
            **connection(settings),
            group_id=alerts_group(settings, self._target),
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",  # of offsets whose answers have been deleted; a new target's are set below
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=math.inf,  # a target may be away for hours
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=settings.fetch_bytes,
            fetch_max_wait_ms=100,
        )
        disable_topic_auto_creation(consumer._client)  # noqa: SLF001
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
        """What is fetched, partition by partition; where nothing came, an empty batch of no partition, so that time passes."""
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
        """Begin where the target was left: a new one with what is answered from now on."""
        now, fresh, self._fresh = self.round, self._fresh, set()
        try:
            for partition in fresh:
                committed = await self._live.committed(partition)
                end = (await self._live.end_offsets([partition]))[partition]
                if committed is None:
                    # So that what is answered while this process is away is not taken for older than the target.
                    await self._live.commit({partition: end})
                self._live.seek(partition, await self._begin(self._live, partition, committed, end))
                self._live.resume(partition)
        except _LOST:
            return  # shared out anew meanwhile: whoever has it then prepares it
        self._become_joined(now)

    async def commit(self, offsets: dict[TopicPartition, int], during: int) -> None:
        """Say how far what was fetched in a round has been taken; nothing happens if that round is over."""
        if not offsets or during != self.round:
            return
        try:
            await self._live.commit(offsets)
        except _LOST:
            log.info("position not committed, the group was shared out anew", target=self._target)

    async def position(self, partition: TopicPartition) -> int:
        """The next offset that is read."""
        return int(await self._live.position(partition))

    @property
    def partitions(self) -> set[TopicPartition]:
        """Those of this process."""
        return set(self._live.assignment())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Take back what was being done with them."""
        self.round += 1
        self.joined = False
        self._fresh = set()
        self.lost(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Read nothing of them before it is known where to begin."""
        self.round += 1
        self._fresh = set(assigned)
        self._live.pause(*self._fresh)
        if not self._fresh:
            self._become_joined(self.round)

    def _become_joined(self, during: int) -> None:
        if self.round == during:
            self.joined = True
            log.info("group is joined", target=self._target, partitions=len(self.partitions))

    @property
    def _live(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("the follower is not running")
        return self._consumer
