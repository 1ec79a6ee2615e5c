"""A client's connection to Kafka: topics, a producer started at the first record, consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerClosed

from schemas.wire import MalformedEventError
from stream.engine.restore import reader, require_visible
from stream.errors import Forbidden, Invalid, SottoError, Unknown, Unreachable
from stream.kafka.client.client_patches import KafkaProducer, fail_pending_batches
from stream.kafka.client.security import advice, connection, is_refusal
from stream.kafka.topics.creation import FoundTopics, look_up
from stream.kafka.topics.layouts import TopicsError
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics
from stream.questions.live_events import LiveRecord
from stream.settings import Settings
from stream.tracing import context_headers

END_TIMEOUT: Final = 10.0
"""Most seconds for which a stopping producer still delivers its records."""

_CUT_OFF: Final = 1.0
"""Seconds to wait for a stopping producer's requests after its connections are closed."""


class KafkaSender:
    """An idempotent producer: Kafka stores each record once, or the record's future fails.

    A failed batch leaves a gap in aiokafka's sequence numbers, so Kafka refuses all later batches of
    that partition. Therefore end and replace a sender if ``failed`` is True.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.failed = False
        self._producer = producer
        self._under_way: set[asyncio.Future[Any]] = set()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Self:
        """Start the producer."""
        producer = KafkaProducer(
            **connection(settings), enable_idempotence=True, linger_ms=2, max_batch_size=256 * 1024
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return cls(producer)

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> asyncio.Future[Any]:
        """Send a record, by default to its key's partition; return the future of its delivery."""
        sent: asyncio.Future[Any] = await self._producer.send(
            topic, value, key, partition=partition, headers=list(headers)
        )
        self._under_way.add(sent)
        sent.add_done_callback(self._note)
        return sent

    async def partitions_of(self, topic: str) -> int:
        """Return the number of a topic's partitions."""
        return len(await self._producer.partitions_for(topic))

    async def flush(self) -> None:
        """Wait until each record is delivered or has failed."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def end(self) -> None:
        """Deliver pending records for up to 10 seconds, fail the others, and stop."""
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
            # aiokafka's idempotent producer retries for ever, and no call stops the retries.
            await fail_pending_batches(self._producer, _CUT_OFF)
        await asyncio.gather(stopping, return_exceptions=True)


class Connection:
    """A client's connection: an idempotent producer, and consumers of committed records only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topics = Topics(settings.prefix)
        self.is_open = False
        self._found: FoundTopics | None = None
        self._sender: KafkaSender | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> None:
        """Find the installation's topics, with retries while topics are being created.

        A topic with the wrong number of partitions raises an error only when it is used, so that
        streams can still be halted: a halt uses only the topic ``requests``.
        """
        self._found = await look_up(self.settings, attempts=25)
        self.topics = self._found.topics
        self.is_open = True

    def require_open(self) -> None:
        """Raise a SottoError if the connection is not open."""
        if not self.is_open:
            raise SottoError("the client is not connected; use 'async with AsyncClient() as client'")

    async def close(self) -> None:
        """Deliver pending records for up to 10 seconds and close; later calls raise a SottoError."""
        self.is_open = False
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.end()

    async def send(self, topic: str, key: str, value: bytes, headers: Headers = ()) -> asyncio.Future[Any]:
        """Send a record to one of Sotto's topics; return the future of its delivery.

        Raises:
            TopicsError: the topic has the wrong number of partitions, so its reader might miss the record.
        """
        self._require_even(topic)
        return await self._send(topic, key.encode(), value, [*headers, *context_headers()])

    async def write(self, record: LiveRecord) -> asyncio.Future[Any]:
        """Send a record unchanged to a live topic; return the future of its delivery."""
        topic, partition, key, value, headers = record
        return await self._send(topic, key, value, headers, partition)

    async def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of any topic, not only of Sotto's topics.

        Raises:
            Unknown: the topic does not exist or is not visible to this principal.
        """
        async with self._looking() as consumer:
            if topic not in await consumer.topics():
                raise Unknown(
                    f"topic '{topic}' does not exist or is not visible to you; create it, or ask for access"
                )
        return await (await self._sending()).partitions_of(topic)

    async def flush(self) -> None:
        """Wait until each record is delivered or has failed."""
        if self._sender is not None:
            await self._sender.flush()

    @asynccontextmanager
    async def reader(self, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
        """Yield a consumer of one topic, without assignment."""
        async with self._looking() as consumer:
            await require_visible(consumer, topic)
            yield consumer

    async def answers_reader(self, *, from_beginning: bool) -> AIOKafkaConsumer:
        """Return a consumer of all answers, at the beginning or the end; the caller stops it.

        Raises:
            TopicsError: the topic has the wrong number of partitions.
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
            self.require_open()  # the connection may have been closed meanwhile
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
                # Another record failed while this record waited for room in the producer's buffer.
                if not sender.failed:
                    raise

    async def _sending(self) -> KafkaSender:
        """Return the producer, which starts at the first record: readers need no right to write.

        A failed producer ends before its successor starts, so records keep their order.
        """
        self.require_open()
        if self._sender is not None and not self._sender.failed:
            return self._sender
        async with self._starting:
            if self._sender is not None and self._sender.failed:
                await self._sender.end()
                self._sender = None
            if self._sender is None:
                sender = await KafkaSender.start(self.settings)
                try:
                    self.require_open()
                except BaseException:
                    await sender.end()
                    raise
                self._sender = sender
            return self._sender


@contextmanager
def translated() -> Iterator[None]:
    """Convert errors of Kafka, topics and the contract into a SottoError."""
    try:
        yield
    except MalformedEventError as error:
        raise Invalid(str(error)) from error
    except TopicsError as error:
        raise Unreachable(str(error)) from error
    except KafkaError as error:
        raise translation(error) from error


def translation(error: KafkaError) -> SottoError:
    """Convert a Kafka error into ``Forbidden`` or ``Unreachable``."""
    return (Forbidden if is_refusal(error) else Unreachable)(advice(error))
