"""Input positions after a restore, and the identity of input topics."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from stream.kafka.client.adapter import Consumer
from stream.kafka.client.availability import is_passing
from stream.log import get_logger
from stream.processing.protocol import Message, Outputs, Processor

if TYPE_CHECKING:
    from prometheus_client import Counter


OFFSETS_INTERVAL = 0.2
"""Seconds between two commits of a partition's offsets, which a restore does not need, where nobody waits for them."""
BUSY_INTERVAL = 1.0
"""And in transactions that have what others wait for: offsets take two more requests."""

log = get_logger("engine")


class StateLostError(RuntimeError):
    """The changelog is older than what was answered, and what it lacks cannot be answered again."""

    def __init__(self, changelog: str, source: TopicPartition, reached: int, committed: int) -> None:
        super().__init__(
            f"{changelog} reaches offset {reached} of {source.topic}, which was answered up to {committed}; bring back "
            f"a newer copy of {changelog}, or go on as the manual says for topics that are lost"
        )


@dataclass(frozen=True)
class Extent:
    """What Kafka holds of an input, and up to where the group has committed it; 0 where that is unknown."""

    source: TopicPartition
    beginning: int
    end: int
    committed: int

    def gone(self, reached: int) -> int:
        """How many records at most were deleted before they were read: markers of transactions, which nobody reads, take up offsets too.

        A state at 0 has read nothing yet, and takes the topic as it finds it.
        """
        return self.beginning - reached if 0 < reached < self.beginning <= self.end else 0


def next_offset(extent: Extent, reached: int, changelog: str, *, repeatable: bool) -> int:
    """Give the next offset to read of an input.

    ``reached`` is the word of the changelog and goes before the committed offset, which expires and can be reset. Where
    the committed offset is ahead of it, events were answered that the state knows nothing of: the changelog was lost or
    set back. If they are ``repeatable`` they are answered once more, byte for byte, and bring it up to date.

    Raises:
        StateLostError: they are not, or some of them are gone.
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
    # The topic was recreated or cut. Streams that answered beyond its end halt rather than answer again.
    log.error("input went back", topic=source.topic, position=position, end=end)
    return beginning


class GroupOffsets:
    """Input positions on their way to the group's committed offsets.

    The changelog has the positions, in the transaction of the outputs. Committed offsets tell others how far behind a
    partition is, and the next restore whether the changelog was set back: now and then is enough, and a transaction
    without offsets takes a request less, or two by Kafka's first protocol.
    """

    def __init__(self) -> None:
        self._reached: dict[TopicPartition, int] = {}
        self._last = -math.inf

    def reach(self, source: TopicPartition, offset: int) -> None:
        """Say that everything before an offset is answered, in this transaction or earlier ones."""
        self._reached[source] = offset

    def due(self, now: float, *, waited_for: bool = False) -> dict[TopicPartition, int]:
        """The offsets to commit in a transaction at ``now``, in seconds of any clock; none is due twice.

        ``waited_for`` says that the transaction has what others read at once.
        """
        if not self._reached or now < self._last + (BUSY_INTERVAL if waited_for else OFFSETS_INTERVAL):
            return {}
        self._last = now
        offsets, self._reached = self._reached, {}
        return offsets


GATHERED_BYTES: Final = 1_000_000
"""What waits is committed once it has grown to this."""


class OutputBuffer:
    """Outputs of one life that are not committed yet.

    A transaction costs requests and a marker in each topic, and whoever comes behind it waits. So what is for nobody but the changelog may wait for
    ``patience`` seconds; whatever is committed is committed with all that came before it. The changelog is compacted: of each of
    its keys the latest is written. A crash takes back what waits, with the positions that belong to it.
    """

    def __init__(self, changelog: TopicPartition, offsets: GroupOffsets, patience: float) -> None:
        self._place = (changelog.topic, changelog.partition)
        self._offsets = offsets
        self._patience = patience
        self._waiting: dict[bytes | None, Message] = {}
        self._bytes = 0
        self._since = 0.0

    def seconds_left(self, now: float) -> float | None:
        """How long what waits may wait yet, at ``now`` of any clock that does not go back; None if nothing does."""
        return max(0.0, self._since + self._patience - now) if self._waiting else None

    def due(self, outputs: Outputs, now: float, *, idle: bool) -> tuple[Outputs, dict[TopicPartition, int]] | None:
        """Take outputs, and give what to commit now with the offsets that are due.

        Offsets get a transaction of their own only if the partition is ``idle``: right behind another one it would wait for the
        markers of that, and what comes next for its own.
        """
        waited_for = bool(outputs)
        if self._patience > 0:
            waited_for = any(place[:2] != self._place for place in outputs)
            outputs = self._gathered(outputs, now, at_once=idle or waited_for)
        if not (outputs or idle):
            return None
        offsets = self._offsets.due(now, waited_for=waited_for)
        return (outputs, offsets) if outputs or offsets else None

    def _gathered(self, outputs: Outputs, now: float, *, at_once: bool) -> Outputs:
        """These outputs and all that waited, or nothing if all of them may wait."""
        told = Outputs(busy=outputs.busy)
        for topic, partition, messages in outputs:
            if (topic, partition) != self._place:
                told.extend(topic, partition, messages)
                continue
            if not self._waiting:
                self._since, self._bytes = now, 0
            for message in messages:
                self._waiting[message[0]] = message
                self._bytes += len(message[1] or b"")
        left = self.seconds_left(now)
        if left is not None and (at_once or left == 0.0 or self._bytes >= GATHERED_BYTES):
            told.extend(*self._place, list(self._waiting.values()))
            self._waiting = {}
        return told


INTERVAL: Final = 1.0
"""Seconds between two questions while nothing comes."""
PAUSE: Final = 0.1
"""Seconds before Kafka is asked again after an error."""


class InputRecreatedError(RuntimeError):
    """An input topic was deleted and created again while it was being read; the next restore decides what becomes of that."""

    def __init__(self, topic: str, before: str, now: str) -> None:
        super().__init__(f"{topic} was deleted and created again: its id was {before}, and is {now}")


class TopicIds:
    """The ids of a partition's inputs, as they are when its state comes to life and afterwards.

    Kafka is asked after each fetch, while what came is worked on, and nothing is written before it has answered: what was fetched by then
    came from the topics that were compared. ``seconds`` is how long an answer is waited for; ``recreated`` counts topics that turn out to
    be others. Between entering and leaving the context it may have a question under way.
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
        elif self._asking is not None:  # the error on its way says more
            self._asking.cancel()
            self._asking = None

    async def compare(self, processor: Processor, source: TopicPartition, reached: int) -> bool:
        """Compare an input with what a restored state has read of it, up to an offset; give whether it is another topic.

        It comes before any other question about the input: what is learned later is of the same topic or of one that is noticed then.

        Raises:
            InputRefusedError: it is another topic, and the processor cannot take it from its beginning.
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
        """Ask for the ids at this moment; where it is not ``needed`` for what is written next, only now and then.

        Raises:
            InputRecreatedError: the last answer was that a topic has been deleted and created again.
        """
        now = time.monotonic()
        if not needed and now - self._asked < INTERVAL:
            if self._asking is not None and self._asking.done():
                self._drop()  # what an idle round writes asks by itself
            return
        self._asked = now
        self._drop()
        self._asking = asyncio.create_task(self._require_same(), name="topic ids")
        self._asking.add_done_callback(_seen)

    async def confirm(self) -> None:
        """Wait for the answer to the last question.

        Raises:
            InputRecreatedError: a topic has been deleted and created again.
            KafkaError: Kafka does not say.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._require_same(), name="topic ids")
            self._asking.add_done_callback(_seen)
        await self._asking

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
                if not is_passing(error) or time.monotonic() > until:
                    raise
                await asyncio.sleep(PAUSE)


def _seen(task: asyncio.Task[None]) -> None:
    """Whoever needs the answer waits for it; asyncio does not report an error that nobody needs."""
    if not task.cancelled():
        task.exception()
