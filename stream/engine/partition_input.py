"""A partition's input: where reading continues, recreated topics, and records fetched ahead."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from stream.diagnostics import LoggableError, get_logger
from stream.kafka.client.adapter import Consumer, Fetched
from stream.kafka.client.broker_connections import Stopped, is_temporary
from stream.processing.protocol import Processor
from stream.processing.record_columns import can_be_concatenated, concatenate, count_bytes
from stream.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Counter


OFFSET_COMMIT_SECONDS = 0.2
"""Seconds between two commits of a partition's offsets."""
AWAITED_OFFSET_COMMIT_SECONDS = 1.0
"""Seconds between two such commits if clients or services wait for outputs of the same transaction."""

log = get_logger("engine")


class StateLostError(LoggableError):
    """The changelog lacks answers that have been published and cannot be computed again."""

    def __init__(
        self, changelog: str, topic_partition: TopicPartition, changelog_offset: int, committed: int
    ) -> None:
        super().__init__(
            f"{changelog} reaches offset {changelog_offset} of {topic_partition.topic}, which was answered up to {committed}; restore a "
            f"newer copy of {changelog}, or follow the manual's steps for lost topics"
        )


class Extent(NamedTuple):
    """Start and end offset of an input partition, and the group's committed offset (0 if unknown)."""

    topic_partition: TopicPartition
    beginning: int
    end: int
    committed: int

    def max_deleted_unread(self, changelog_offset: int) -> int:
        """Return an upper bound for the records deleted before they were read.

        It is only a bound, because transaction markers take up offsets too. If the state is at offset 0,
        it has read nothing yet, so nothing counts as deleted.
        """
        return self.beginning - changelog_offset if 0 < changelog_offset < self.beginning <= self.end else 0


def next_offset(extent: Extent, changelog_offset: int, changelog: str, *, repeatable: bool) -> int:
    """Return the offset at which reading an input continues.

    ``changelog_offset`` is the next offset according to the changelog. It takes precedence over the
    committed offset, which expires and can be reset. If the committed offset is higher, the changelog
    was lost or set back, and the state lacks events that were answered. If their answers are
    ``repeatable``, the events are answered again, with the same bytes.

    Raises:
        StateLostError: these answers are not repeatable, or the topic lacks some of the events too.
    """
    topic_partition, beginning, end, committed = extent
    if changelog_offset < committed:
        if not repeatable or changelog_offset < beginning or committed > end:
            raise StateLostError(changelog, topic_partition, changelog_offset, committed)
        log.error(
            "changelog is behind the committed offset",
            topic=topic_partition.topic,
            reached=changelog_offset,
            committed=committed,
        )
    position = max(beginning, changelog_offset)
    if position <= end:
        if deleted := extent.max_deleted_unread(changelog_offset):
            log.error(
                "input deleted unread",
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                reached=changelog_offset,
                beginning=beginning,
                at_most=deleted,
            )
        return position
    # The topic was recreated or truncated. Streams that answered beyond its end halt.
    log.error("input ends before the position", topic=topic_partition.topic, position=position, end=end)
    return beginning


class GroupOffsets:
    """The input positions that are not yet committed as the group's offsets.

    The group's offsets only show the lag, and let a restore detect a changelog that was set back. They
    are committed rarely, because a transaction without offsets needs one or two requests less.
    """

    def __init__(self) -> None:
        self._uncommitted: dict[TopicPartition, int] = {}
        self._last = -math.inf

    def note_answered(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note that all records before an offset are answered."""
        self._uncommitted[topic_partition] = offset

    def take_due(self, now: float, *, waited_for: bool = False) -> dict[TopicPartition, int]:
        """Return the offsets to commit in a transaction at ``now``, each of them once.

        ``waited_for`` is True if clients or services wait for outputs of this transaction.
        """
        if not self._uncommitted or now < self._last + (
            AWAITED_OFFSET_COMMIT_SECONDS if waited_for else OFFSET_COMMIT_SECONDS
        ):
            return {}
        self._last = now
        offsets, self._uncommitted = self._uncommitted, {}
        return offsets


TOPIC_ID_SECONDS: Final = 1.0
"""Seconds between two requests for topic ids in an idle partition."""
TOPIC_ID_RETRY_SECONDS: Final = 0.1
"""Seconds before a retry after an error."""


class InputRecreatedError(LoggableError):
    """An input topic was recreated while it was read; the next restore handles it."""

    def __init__(self, topic: str, before: str, now: str) -> None:
        super().__init__(f"{topic} was deleted and created again: its id was {before}, and is {now}")


class TopicIds:
    """Compares the ids of a partition's input topics with those from which its state was computed.

    The ids are requested after each fetch, while the records are processed, and nothing is written
    before Kafka answers. So all outputs are computed from topics whose ids were compared. The end of
    the context cancels an outstanding request.
    """

    def __init__(self, consumer: Consumer, seconds: float, recreated: Counter) -> None:
        """Wait at most ``seconds`` for Kafka's answer; ``recreated`` counts recreated topics."""
        self._consumer = consumer
        self._seconds = seconds
        self._recreated = recreated
        self._known_ids: dict[TopicPartition, str] = {}
        self._request: asyncio.Task[None] | None = None
        self._last_asked_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._end_request()
        elif self._request is not None:  # the current error says more
            self._request.cancel()
            self._request = None

    async def compare(self, processor: Processor, topic_partition: TopicPartition, changelog_offset: int) -> bool:
        """Return True if the input topic was recreated after the restored state had read it.

        Raises:
            InputRefusedError: the processor cannot read the new topic from its beginning.
        """
        now = await self._request_id(topic_partition)
        if not now:
            return False
        self._known_ids[topic_partition] = now
        before = processor.topic_ids.get(topic_partition.topic, now)
        is_recreated = changelog_offset > 0 and before != now
        if is_recreated:
            self._recreated.inc()
            place = {"topic": topic_partition.topic, "partition": topic_partition.partition}
            log.error("input recreated", **place, reached=changelog_offset, before=before, now=now)
            processor.restart_input(topic_partition.topic)
        processor.topic_ids[topic_partition.topic] = now
        return is_recreated

    def request_ids(self, *, needed: bool) -> None:
        """Request the topic ids now if they are ``needed``, otherwise once per ``TOPIC_ID_SECONDS``.

        Raises:
            InputRecreatedError: the last answer showed that a topic was deleted and created again.
        """
        now = time.monotonic()
        if not needed and now - self._last_asked_at < TOPIC_ID_SECONDS:
            if self._request is not None and self._request.done():
                self._end_request()  # ``confirm`` requests the ids again before an idle partition writes
            return
        self._last_asked_at = now
        self._end_request()
        self._start_request()

    async def confirm(self) -> None:
        """Wait for the answer to the last request, or to a new one.

        Raises:
            InputRecreatedError: a topic was deleted and created again.
            KafkaError: Kafka does not answer.
        """
        await (self._request or self._start_request())

    def _start_request(self) -> asyncio.Task[None]:
        request = self._request = asyncio.create_task(self._require_same_ids(), name="topic ids")
        request.add_done_callback(consume_exception)
        return request

    def _end_request(self) -> None:
        """Cancel the request, or raise the InputRecreatedError that it has found."""
        request, self._request = self._request, None
        if request is None or request.cancel() or request.cancelled():
            return
        if isinstance(error := request.exception(), InputRecreatedError):
            raise error

    async def _require_same_ids(self) -> None:
        for topic_partition, known in self._known_ids.items():
            if (now := await self._request_id(topic_partition)) and now != known:
                raise InputRecreatedError(topic_partition.topic, known, now)

    async def _request_id(self, topic_partition: TopicPartition) -> str:
        until = time.monotonic() + self._seconds
        while True:
            try:
                return await self._consumer.topic_id(topic_partition)
            except (KafkaError, OSError, TimeoutError) as error:
                if not is_temporary(error) or time.monotonic() > until:
                    raise
                await asyncio.sleep(TOPIC_ID_RETRY_SECONDS)


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the error of a task that nothing awaits."""
    if not task.cancelled():
        task.exception()


FETCH_WAIT_MS: Final = 200
"""Longest wait of one fetch, in milliseconds."""

OVERDUE_SECONDS: Final = 5.0
"""A fetch that is late by this time is blocked in aiokafka, for example by a rebalance."""


@dataclass(slots=True)
class _RecordBuffer:
    """Fetched records that are not taken yet, with the bytes of each fetch."""

    fetches: deque[tuple[Sequence[ConsumerRecord], int]] = field(default_factory=deque)
    records: int = 0
    size: int = 0

    def add(self, fetched: Sequence[ConsumerRecord]) -> None:
        size = count_bytes(fetched)
        self.fetches.append((fetched, size))
        self.records += len(fetched)
        self.size += size

    def next(self, max_records: int) -> Sequence[ConsumerRecord]:
        parts = [self._pop_first()]
        count = len(parts[0])
        while self.fetches and (count := count + len(self.fetches[0][0])) <= max_records:
            if not can_be_concatenated(parts[0], self.fetches[0][0]):
                break
            parts.append(self._pop_first())
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def _pop_first(self) -> Sequence[ConsumerRecord]:
        fetched, size = self.fetches.popleft()
        self.records -= len(fetched)
        self.size -= size
        return fetched


class Prefetch:
    """Fetches records of some partitions while its context is entered, and buffers them.

    aiokafka sends a broker the next fetch only after all records of the last fetch are taken, or after
    0.1 s. A task takes no records while it writes. Without the buffer, it would delay the fetches of
    its process's other tasks.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic_partitions: Sequence[TopicPartition],
        settings: Settings,
        stopping: asyncio.Event,
        *,
        ahead: bool,
    ) -> None:
        """``stopping`` ends all waits; with ``ahead``, fetches do not wait for calls of ``take``.

        ``ahead`` is False for a feed, because few large fetches cost less than many small ones. Fetching
        pauses while the buffer of any partition has a batch of records, or the bytes of one fetch.
        """
        self._consumer = consumer
        self._topic_partitions = topic_partitions
        self._batch_events = settings.batch_events
        self._fetch_bytes = settings.fetch_bytes
        self._stopping = stopping
        self._ahead = ahead
        self._buffers: defaultdict[TopicPartition, _RecordBuffer] = defaultdict(_RecordBuffer)
        self._records_arrived = asyncio.Event()
        self._records_taken = asyncio.Event()
        self._records_wanted = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._fetch_began_at = math.inf
        """When the current fetch began; infinite without one."""

    async def __aenter__(self) -> Self:
        self._buffers.clear()
        self._fetch_began_at = math.inf
        self._filling = asyncio.create_task(self._fill_buffers())
        self._watching = asyncio.create_task(self._stopping.wait())
        for task in (self._filling, self._watching):
            task.add_done_callback(lambda _: self._records_arrived.set())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Discard buffered records: they are fetched again after the next seek."""
        tasks = [task for task in (self._filling, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, topic_partitions: Sequence[TopicPartition], wait_ms: int) -> Fetched:
        """Return records of some partitions; wait for ``wait_ms`` if there are none.

        During a rebalance aiokafka blocks fetches, and the rebalance waits until the task stops. So
        while a fetch is blocked, the wait continues beyond ``wait_ms``, until the fetch returns or the task
        is ordered to stop.

        Raises:
            Stopped: the task was ordered to stop.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while not self._stopping.is_set():
            self._records_arrived.clear()
            filled = [
                (topic_partition, buffer)
                for topic_partition in topic_partitions
                if (buffer := self._buffers[topic_partition]).fetches
            ]
            if filled:
                self._records_taken.set()
                return {topic_partition: buffer.next(self._batch_events) for topic_partition, buffer in filled}
            if self._filling is not None and self._filling.done():
                self._filling.result()
            now = loop.time()
            overdue = now - self._fetch_began_at > FETCH_WAIT_MS / 1000 + OVERDUE_SECONDS
            if now >= until and not overdue:
                return {}
            self._records_wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(FETCH_WAIT_MS / 1000 if overdue else until - now):
                    await self._records_arrived.wait()
        raise Stopped

    async def has_reached(self, topic_partition: TopicPartition, end: int) -> bool:
        """Return True if all records before an offset are taken."""
        position = await self._consumer.position(topic_partition)
        return position >= end and not self._buffers[topic_partition].fetches

    async def _fill_buffers(self) -> None:
        while True:
            self._records_taken.clear()
            if any(self._is_full(buffer) for buffer in self._buffers.values()):
                await self._records_taken.wait()
                continue
            if not self._ahead:
                await self._records_wanted.wait()
            self._fetch_began_at = asyncio.get_running_loop().time()
            fetched = await self._consumer.getmany(
                *self._topic_partitions, timeout_ms=FETCH_WAIT_MS, max_records=self._batch_events
            )
            self._fetch_began_at = math.inf
            for topic_partition, records in fetched.items():
                self._buffers[topic_partition].add(records)
            if fetched:
                self._records_wanted.clear()
                self._records_arrived.set()

    def _is_full(self, buffer: _RecordBuffer) -> bool:
        return buffer.records >= self._batch_events or buffer.size >= self._fetch_bytes
