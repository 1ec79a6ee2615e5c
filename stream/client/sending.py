"""Handing records to Kafka."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError

from stream.kafka.looking import only_looking
from stream.kafka.security import connection
from stream.processors.base import Headers
from stream.settings import Settings

END_TIMEOUT: Final = 10.0
"""Seconds that a producer gets to hand over what it has before it is cut off."""

_CUT_OFF: Final = 1.0
"""Seconds that its requests get to end once their connections are closed."""


class Sender:
    """One idempotent producer: Kafka has each record once, or its future fails.

    aiokafka counts on behind a batch that failed for good, and Kafka takes nothing more of it for that partition: a sender that
    has ``failed`` is good for nothing but ``end``.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.failed = False
        self._producer = producer
        self._under_way: set[asyncio.Future[Any]] = set()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Self:
        """Connect to Kafka."""
        producer = AIOKafkaProducer(
            **connection(settings), enable_idempotence=True, linger_ms=2, max_batch_size=256 * 1024
        )
        only_looking(producer.client)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return cls(producer)

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> asyncio.Future[Any]:
        """Hand a record over, to the partition of its key unless one is given; the future resolves when Kafka has it."""
        sent: asyncio.Future[Any] = await self._producer.send(
            topic, value, key, partition=partition, headers=list(headers)
        )
        self._under_way.add(sent)
        sent.add_done_callback(self._note)
        return sent

    async def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has."""
        return len(await self._producer.partitions_for(topic))

    async def flush(self) -> None:
        """Wait until Kafka has everything, or has refused it."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def end(self) -> None:
        """Hand over what is under way, and leave; what Kafka has not taken within ten seconds fails."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    def _note(self, sent: asyncio.Future[Any]) -> None:
        self._under_way.discard(sent)
        if not sent.cancelled() and sent.exception() is not None:
            self.failed = True

    async def _end(self) -> None:
        stopping = asyncio.create_task(self._producer.stop())
        await asyncio.wait([stopping], timeout=END_TIMEOUT)
        if not stopping.done():
            await self._cut_off()
        await asyncio.gather(stopping, return_exceptions=True)

    async def _cut_off(self) -> None:
        """An idempotent producer of aiokafka's never gives a batch up, and has no call that makes it."""
        await self._producer.client.close()
        retrying = self._producer._sender.sender_task  # noqa: SLF001
        retrying.cancel()
        # It waits for its requests then, which may be connecting.
        await asyncio.wait([retrying], timeout=_CUT_OFF)
        retrying.cancel()
        batches = self._producer._message_accumulator  # noqa: SLF001
        under_way = batches._pending_batches  # noqa: SLF001
        # A batch that waits to be sent again looks for itself there when it is done.
        under_way.update(chain.from_iterable(batches._batches.values()))  # noqa: SLF001
        for batch in tuple(under_way):
            batch.drain_ready()
            batch.failure(KafkaTimeoutError())
