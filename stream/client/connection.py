"""One connection to an installation: its topics, a producer that starts with the first event, readers on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ProducerClosed

from stream.asking.live import LiveRecord
from stream.client.sending import Sender
from stream.errors import SottoError, Unknown
from stream.kafka.restore import reader, require_visible
from stream.kafka.topics import Found, look_up
from stream.processors.base import Headers
from stream.processors.topics import Topics
from stream.settings import Settings
from stream.tracing import context_headers


class Connection:
    """The producer is idempotent and partitions by murmur2 of the stream; all readers see committed records only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topics = Topics(settings.prefix)
        self.is_open = False
        self._found: Found | None = None
        self._sender: Sender | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> None:
        """Find the installation's topics, waiting a moment for topics that are being made.

        Where the partitions of some differ, these are refused once they are used: a halt needs requests alone.
        """
        self._found = await look_up(self.settings, attempts=25)
        self.topics = self._found.topics
        self.is_open = True

    def require_open(self) -> None:
        """Raise a SottoError unless it is open."""
        if not self.is_open:
            raise SottoError("the client is not connected; use 'async with AsyncClient() as client'")

    async def close(self) -> None:
        """Send what is published, and leave; what Kafka does not take within ten seconds is given up.

        What begins meanwhile, or is just connecting, is refused.
        """
        self.is_open = False
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.end()

    async def send(self, topic: str, key: str, value: bytes, headers: Headers = ()) -> asyncio.Future[Any]:
        """Hand a record to the producer; the future resolves when Kafka has it.

        Raises:
            TopicsError: the topic has other partitions than it should, so that nobody might read the record.
        """
        self._require_even(topic)
        return await self._send(topic, key.encode(), value, [*headers, *context_headers()])

    async def write(self, record: LiveRecord) -> asyncio.Future[Any]:
        """Hand a record for somebody's own topic to the producer, as it is; the future resolves when Kafka has it."""
        topic, partition, key, value, headers = record
        return await self._send(topic, key, value, headers, partition)

    async def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has, that may be anybody's.

        Raises:
            Unknown: it is not there, or is not shown to this principal.
        """
        async with self._looking() as consumer:
            if topic not in await consumer.topics():
                raise Unknown(
                    f"topic '{topic}' is not there, or not yours to see; create it, or have it allowed to you"
                )
        return await (await self._sending()).partitions_of(topic)

    async def flush(self) -> None:
        """Wait until Kafka has everything, or has refused it."""
        if self._sender is not None:
            await self._sender.flush()

    @asynccontextmanager
    async def reader(self, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
        """A reader of one topic, not at any place yet."""
        async with self._looking() as consumer:
            await require_visible(consumer, topic)
            yield consumer

    async def answers_reader(self, *, from_beginning: bool) -> AIOKafkaConsumer:
        """A reader of all answers, at the beginning or at what comes next; to be stopped by the caller.

        Raises:
            TopicsError: their topic has other partitions than it should.
        """
        self._require_even(self.topics.answers)
        consumer = reader(self.settings, fetch_max_wait_ms=50)
        partitions = [TopicPartition(self.topics.answers, number) for number in range(self.topics.partitions)]
        try:
            await consumer.start()
            await require_visible(consumer, self.topics.answers)
            consumer.assign(partitions)
            seek = consumer.seek_to_beginning if from_beginning else consumer.seek_to_end
            await seek(*partitions)
            for partition in partitions:
                await consumer.position(partition)
            self.require_open()  # it may have been closed meanwhile
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    def _require_even(self, topic: str) -> None:
        if self._found is not None:
            self._found.require_even([topic])

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = reader(self.settings)
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()

    async def _send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> asyncio.Future[Any]:
        while True:
            sender = await self._sending()
            try:
                return await sender.send(topic, key, value, headers, partition)
            except ProducerClosed:
                # Another record failed while this one waited for room.
                if not sender.failed:
                    raise

    async def _sending(self) -> Sender:
        """Start it at the first event: whoever only reads need not be allowed to write.

        One that has failed ends before the next starts, so that records come in the order in which they were handed over.
        """
        self.require_open()
        if self._sender is not None and not self._sender.failed:
            return self._sender
        async with self._starting:
            if self._sender is not None and self._sender.failed:
                await self._sender.end()
                self._sender = None
            if self._sender is None:
                sender = await Sender.start(self.settings)
                try:
                    self.require_open()
                except BaseException:
                    await sender.end()
                    raise
                self._sender = sender
            return self._sender
