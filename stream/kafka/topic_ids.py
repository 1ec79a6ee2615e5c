"""Whether the inputs of a partition are the topics that its state has read: Kafka gives each topic an id of its own (KIP-516).

Names and offsets do not tell a topic that was deleted and created again from the one before it, once it has grown as long.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from stream.kafka.clients import Consumer
from stream.kafka.starting import is_passing
from stream.log import get_logger
from stream.processors.base import Processor

if TYPE_CHECKING:
    from prometheus_client import Counter

INTERVAL: Final = 1.0
"""Seconds between two questions while nothing comes."""
PAUSE: Final = 0.1
"""Seconds before Kafka is asked again after an error."""

log = get_logger("engine")


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
