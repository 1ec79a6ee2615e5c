"""A partition's input: where reading continues, recreated topics, and records fetched ahead."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from stream.kafka.client.adapter import Consumer, Fetched
from stream.kafka.client.availability import Stopped, is_temporary
from stream.log import get_logger
from stream.processing.protocol import Processor
from stream.processing.record_columns import can_be_concatenated, concatenate, count_bytes
from stream.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Counter


OFFSETS_SECONDS = 0.2
"""Seconds between two commits of a partition's offsets, which a restore does not need."""
BUSY_OFFSETS_SECONDS = 1.0
"""The same for transactions that others wait for: offsets delay them by up to two requests."""

log = get_logger("engine")


class StateLostError(RuntimeError):
    """The changelog lacks answers that have been published and cannot be computed again."""

    def __init__(self, changelog: str, source: TopicPartition, reached: int, committed: int) -> None:
        super().__init__(
            f"{changelog} reaches offset {reached} of {source.topic}, which was answered up to {committed}; restore a "
            f"newer copy of {changelog}, or follow the manual's steps for lost topics"
        )


@dataclass(frozen=True)
class Extent:
    """First and next offset of an input in Kafka, and the group's committed offset (0 if unknown)."""

    source: TopicPartition
    beginning: int
    end: int
    committed: int

    def gone(self, reached: int) -> int:
        """Return an upper bound for the records deleted before they were read.

        The number may be smaller, because transaction markers take up offsets too. If the state is
        at offset 0, it has read nothing yet, so nothing counts as deleted.
        """
        return self.beginning - reached if 0 < reached < self.beginning <= self.end else 0


def next_offset(extent: Extent, reached: int, changelog: str, *, repeatable: bool) -> int:
    """Return the offset at which reading an input continues.

    ``reached`` is the next offset according to the changelog. It counts more than the committed
    offset, which expires and can be reset. If the committed offset is higher, the changelog was lost
    or set back, and the state lacks events that were answered. If these are ``repeatable``, they are
    answered again, with the same bytes.

    Raises:
        StateLostError: these events are not repeatable, or the topic lacks some of them too.
    """
    source, beginning, end, committed = extent.source, extent.beginning, extent.end, extent.committed
    if reached < committed:
        if not repeatable or reached < beginning or committed > end:
            raise StateLostError(changelog, source, reached, committed)
        log.error("state went back", topic=source.topic, reached=reached, committed=committed)
    position = max(beginning, reached)
    if position <= end:
        if gone := extent.gone(reached):
            log.error(
                "input gone unread",
                topic=source.topic,
                partition=source.partition,
                reached=reached,
                beginning=beginning,
                at_most=gone,
            )
        return position
    # The topic was recreated or truncated. Streams that answered beyond its end halt.
    log.error("input went back", topic=source.topic, position=position, end=end)
    return beginning


class GroupOffsets:
    """The input positions that are not yet committed as the group's offsets.

    The changelog gets each position in the transaction of the outputs. The group's offsets only
    show the lag, and let a restore detect a changelog that was set back. They are committed rarely,
    because a transaction without them takes one request less, or two less in Kafka's first
    transaction protocol.
    """

    def __init__(self) -> None:
        self._reached: dict[TopicPartition, int] = {}
        self._last = -math.inf

    def reach(self, source: TopicPartition, offset: int) -> None:
        """Note that all records before an offset are answered."""
        self._reached[source] = offset

    def take_due(self, now: float, *, waited_for: bool = False) -> dict[TopicPartition, int]:
        """Return the offsets to commit in a transaction at ``now``, each of them once.

        ``waited_for`` is true if clients or services wait for the outputs of this transaction.
        """
        if not self._reached or now < self._last + (BUSY_OFFSETS_SECONDS if waited_for else OFFSETS_SECONDS):
            return {}
        self._last = now
        offsets, self._reached = self._reached, {}
        return offsets


TOPIC_ID_SECONDS: Final = 1.0
"""Seconds between two requests for topic ids in an idle partition."""
TOPIC_ID_RETRY_SECONDS: Final = 0.1
"""Seconds before a retry after an error."""


class InputRecreatedError(RuntimeError):
    """An input topic was recreated while it was read; the next restore handles it."""

    def __init__(self, topic: str, before: str, now: str) -> None:
        super().__init__(f"{topic} was deleted and created again: its id was {before}, and is {now}")


class TopicIds:
    """Compares the ids of a partition's input topics with the ids that its state was read from.

    The ids are requested after each fetch, while the records are processed, and nothing is written
    before Kafka answers. So written results always come from the topics whose ids were compared.
    ``seconds`` limits the wait for an answer, and ``recreated`` counts recreated topics. The end of
    the context cancels an outstanding request.
    """

    def __init__(self, consumer: Consumer, seconds: float, recreated: Counter) -> None:
        self._consumer = consumer
        self._seconds = seconds
        self._recreated = recreated
        self._known: dict[TopicPartition, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._drop()
        elif self._asking is not None:  # the current error says more
            self._asking.cancel()
            self._asking = None

    async def compare(self, processor: Processor, source: TopicPartition, reached: int) -> bool:
        """Return True if the input topic was recreated after the restored state had read it.

        This is the first request for the topic's id; ``confirm`` notices any later change.

        Raises:
            InputRefusedError: the processor cannot read the new topic from its beginning.
        """
        now = await self._ask(source)
        if not now:
            return False
        self._known[source] = now
        before = processor.topic_ids.get(source.topic, now)
        is_another = reached > 0 and before != now
        if is_another:
            self._recreated.inc()
            place = {"topic": source.topic, "partition": source.partition}
            log.error("input recreated", **place, reached=reached, before=before, now=now)
            processor.recreated(source.topic)
        processor.topic_ids[source.topic] = now
        return is_another

    def ask(self, *, needed: bool) -> None:
        """Request the topic ids; if they are not ``needed``, once per ``TOPIC_ID_SECONDS``.

        Raises:
            InputRecreatedError: the last answer showed that a topic was deleted and created again.
        """
        now = time.monotonic()
        if not needed and now - self._asked < TOPIC_ID_SECONDS:
            if self._asking is not None and self._asking.done():
                self._drop()  # ``confirm`` requests the ids again before an idle partition writes
            return
        self._asked = now
        self._drop()
        self._start()

    async def confirm(self) -> None:
        """Wait for the answer to the last request, or to a new one.

        Raises:
            InputRecreatedError: a topic was deleted and created again.
            KafkaError: Kafka does not answer.
        """
        await (self._asking or self._start())

    def _start(self) -> asyncio.Task[None]:
        asking = self._asking = asyncio.create_task(self._require_same(), name="topic ids")
        asking.add_done_callback(consume_exception)
        return asking

    def _drop(self) -> None:
        asking, self._asking = self._asking, None
        if asking is None or asking.cancel() or asking.cancelled():
            return
        if isinstance(error := asking.exception(), InputRecreatedError):
            raise error

    async def _require_same(self) -> None:
        for source, known in self._known.items():
            if (now := await self._ask(source)) and now != known:
                raise InputRecreatedError(source.topic, known, now)

    async def _ask(self, source: TopicPartition) -> str:
        until = time.monotonic() + self._seconds
        while True:
            try:
                return await self._consumer.topic_id(source)
            except (KafkaError, OSError, TimeoutError) as error:
                if not is_temporary(error) or time.monotonic() > until:
                    raise
                await asyncio.sleep(TOPIC_ID_RETRY_SECONDS)


def consume_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging the error of a task that nothing awaits."""
    if not task.cancelled():
        task.exception()


FETCH_WAIT_MS: Final = 200
"""Longest wait of one call to the client, in milliseconds."""

OVERDUE_SECONDS: Final = 5.0
"""A fetch that is late by this time is blocked in aiokafka, for example by a rebalance."""


@dataclass(slots=True)
class _HeldRecords:
    fetches: deque[tuple[Sequence[ConsumerRecord], int]] = field(default_factory=deque)
    records: int = 0
    size: int = 0

    def add(self, fetched: Sequence[ConsumerRecord]) -> None:
        size = count_bytes(fetched)
        self.fetches.append((fetched, size))
        self.records += len(fetched)
        self.size += size

    def next(self, most: int) -> Sequence[ConsumerRecord]:
        parts = [self._pop_first()]
        count = len(parts[0])
        while self.fetches and (count := count + len(self.fetches[0][0])) <= most:
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
    """Fetches records of some topics while its context is entered, and buffers them.

    aiokafka fetches from a broker again only after all its records are taken, or after 0.1 s.
    Without the buffer, a task that writes would delay the other tasks of its process, and all would
    write in sequence.
    """

    def __init__(
        self,
        consumer: Consumer,
        sources: Sequence[TopicPartition],
        settings: Settings,
        stopping: asyncio.Event,
        *,
        ahead: bool,
    ) -> None:
        """``stopping`` ends all waits; with ``ahead``, fetches do not wait for calls of ``take``.

        Timed processors wait for more input and do not fetch ahead, because few large fetches cost
        less than many small ones. The buffer of a topic has at most one fetch more than one batch,
        or than the bytes of one fetch.
        """
        self._consumer = consumer
        self._sources = sources
        self._most = settings.batch_events
        self._most_bytes = settings.fetch_bytes
        self._stopping = stopping
        self._ahead = ahead
        self._held: defaultdict[TopicPartition, _HeldRecords] = defaultdict(_HeldRecords)
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._wanted = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._asked = math.inf
        """When the current call to the client began."""

    async def __aenter__(self) -> Self:
        self._held.clear()
        self._asked = math.inf
        self._filling = asyncio.create_task(self._fill())
        self._watching = asyncio.create_task(self._stopping.wait())
        for task in (self._filling, self._watching):
            task.add_done_callback(lambda _: self._arrived.set())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Discard buffered records: they are fetched again after the next seek."""
        tasks = [task for task in (self._filling, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, sources: Sequence[TopicPartition], wait_ms: int) -> Fetched:
        """Return records of some topics; wait for ``wait_ms`` if there are none.

        During a rebalance aiokafka blocks fetches, and the rebalance waits until the task stops. So
        an order to stop ends the wait. A blocked fetch prolongs it, until the order comes.

        Raises:
            Stopped: the task was ordered to stop.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while not self._stopping.is_set():
            self._arrived.clear()
            held = [(source, kept) for source in sources if (kept := self._held[source]).fetches]
            if held:
                self._taken.set()
                return {source: kept.next(self._most) for source, kept in held}
            if self._filling is not None and self._filling.done():
                self._filling.result()
            now = loop.time()
            overdue = now - self._asked > FETCH_WAIT_MS / 1000 + OVERDUE_SECONDS
            if now >= until and not overdue:
                return {}
            self._wanted.set()
            await self._wait_for_arrival(FETCH_WAIT_MS / 1000 if overdue else until - now)
        raise Stopped

    async def has_reached(self, source: TopicPartition, end: int) -> bool:
        """Return whether all records before an offset are taken."""
        at = await self._consumer.position(source)
        return at >= end and not self._held[source].fetches

    async def _fill(self) -> None:
        while True:
            self._taken.clear()
            if any(self._is_full(kept) for kept in self._held.values()):
                await self._taken.wait()
                continue
            if not self._ahead:
                await self._wanted.wait()
            self._asked = asyncio.get_running_loop().time()
            fetched = await self._consumer.getmany(
                *self._sources, timeout_ms=FETCH_WAIT_MS, max_records=self._most
            )
            self._asked = math.inf
            for source, records in fetched.items():
                self._held[source].add(records)
            if fetched:
                self._wanted.clear()
                self._arrived.set()

    def _is_full(self, kept: _HeldRecords) -> bool:
        return kept.records >= self._most or kept.size >= self._most_bytes

    async def _wait_for_arrival(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
