"""A client's connection to Kafka: its topics, its consumers, and a producer for its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    ProducerClosed,
    TopicAuthorizationFailedError,
)

from schemas.wire import MalformedEventError
from stream.diagnostics import context_headers
from stream.engine.restore import create_reader, require_visible
from stream.errors import Forbidden, Invalid, SottoError, Unknown, Unreachable
from stream.kafka.client.broker_connections import admin_client, connection_options, describe_error, is_refusal
from stream.kafka.client.client_patches import KafkaProducer, fail_pending_batches
from stream.kafka.topic_creation import FoundTopics, read_topics
from stream.kafka.topic_layouts import TopicsError
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics
from stream.questions.live_events import LiveRecord
from stream.settings import Settings

END_TIMEOUT: Final = 10.0
"""Maximum time in seconds for which a stopping producer still delivers its records."""

_CLOSED_PRODUCER_SECONDS: Final = 1.0
"""Seconds to wait for a stopping producer's requests after its connections are closed."""


class KafkaSender:
    """An idempotent producer: Kafka stores each record once, or the record's future fails.

    A failed batch leaves a gap in aiokafka's sequence numbers, so Kafka refuses all later batches of
    that partition. Therefore a sender whose ``failed`` is True must be ended and replaced.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.failed = False
        self._producer = producer
        self._undelivered: set[asyncio.Future[Any]] = set()
        self._end_task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Self:
        """Start the producer."""
        producer = KafkaProducer(
            **connection_options(settings), enable_idempotence=True, linger_ms=2, max_batch_size=256 * 1024
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
        self._undelivered.add(sent)
        sent.add_done_callback(self._on_delivery)
        return sent

    async def partitions_of(self, topic: str) -> int:
        """Return the number of a topic's partitions."""
        return len(await self._producer.partitions_for(topic))

    async def flush(self) -> None:
        """Wait until each record is delivered or has failed."""
        if self._undelivered:
            await asyncio.wait(self._undelivered)

    async def end(self) -> None:
        """Deliver pending records for up to 10 seconds, fail the others, and stop."""
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._stop_producer())
        await asyncio.shield(self._end_task)

    def _on_delivery(self, delivery: asyncio.Future[Any]) -> None:
        self._undelivered.discard(delivery)
        if not delivery.cancelled() and delivery.exception() is not None:
            self.failed = True

    async def _stop_producer(self) -> None:
        stopping = asyncio.create_task(self._producer.stop())
        await asyncio.wait([stopping], timeout=END_TIMEOUT)
        if not stopping.done():
            # aiokafka's idempotent producer retries for ever; no call of its API stops it.
            await fail_pending_batches(self._producer, _CLOSED_PRODUCER_SECONDS)
        await asyncio.gather(stopping, return_exceptions=True)


class KafkaConnection:
    """A client's connection: an idempotent producer, and consumers of committed records only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topics = Topics(settings.prefix)
        self.is_open = False
        self._found_topics: FoundTopics | None = None
        self._sender: KafkaSender | None = None
        self._start_lock = asyncio.Lock()

    async def open(self) -> None:
        """Find the installation's topics; retry while topics are being created.

        A topic with the wrong number of partitions raises an error only when it is used. So streams
        can be halted even then, because a halt uses only the topic ``requests``.
        """
        self._found_topics = await read_topics(self.settings, attempts=25)
        self.topics = self._found_topics.topics
        self.is_open = True

    def require_open(self) -> None:
        """Raise a SottoError if the connection is not open."""
        if not self.is_open:
            raise SottoError("the client is not connected; use 'async with AsyncClient() as client'")

    @contextmanager
    def guard_call(self) -> Iterator[None]:
        """Require an open connection, and convert errors of the ``with`` block into a SottoError."""
        self.require_open()
        with translate_errors():
            yield

    async def close(self) -> None:
        """Deliver pending records for up to 10 seconds and close; later calls raise a SottoError."""
        self.is_open = False
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.end()

    async def send(self, topic: str, key: str, value: bytes, headers: Headers = ()) -> asyncio.Future[Any]:
        """Send a record to one of Sotto's topics; return the future of its delivery.

        Raises:
            TopicsError: the topic has the wrong number of partitions, so the service that reads the topic might miss the record.
        """
        self._require_partition_count(topic)
        return await self._send(topic, key.encode(), value, [*headers, *context_headers()])

    async def write(self, record: LiveRecord) -> asyncio.Future[Any]:
        """Send a record unchanged to a live topic; return the future of its delivery."""
        topic, partition, key, value, headers = record
        return await self._send(topic, key, value, headers, partition)

    async def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, also of a topic that does not belong to Sotto.

        Raises:
            Unknown: the topic does not exist or is not visible to this principal.
        """
        async with create_reader(self.settings) as consumer:
            if topic not in await consumer.topics():
                raise Unknown(
                    f"topic '{topic}' does not exist or is not visible to you; create it, or ask for access"
                )
        return await (await self._get_sender()).partitions_of(topic)

    async def flush(self) -> None:
        """Wait until each record is delivered or has failed."""
        if self._sender is not None:
            await self._sender.flush()

    @asynccontextmanager
    async def reader(self, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
        """Yield a consumer for one topic, with no partition assigned yet."""
        async with create_reader(self.settings) as consumer:
            await require_visible(consumer, topic)
            yield consumer

    async def open_answers_consumer(
        self, *, from_beginning: bool, searched_bytes: Callable[[int], Collection[bytes] | None] = lambda _: None
    ) -> AIOKafkaConsumer:
        """Return a consumer of all answers, at their beginning or end; the caller must stop it.

        ``searched_bytes`` returns byte strings for a partition; batches without any of them are skipped. None skips no batch.

        Raises:
            TopicsError: the topic has the wrong number of partitions.
        """
        self._require_partition_count(self.topics.answers)
        consumer = create_reader(self.settings, fetch_max_wait_ms=50)
        partitions = [TopicPartition(self.topics.answers, number) for number in range(self.topics.partitions)]
        try:
            await consumer.start()
            await require_visible(consumer, self.topics.answers)
            consumer.skip_batches(searched_bytes)
            consumer.assign(partitions)
            seek = consumer.seek_to_beginning if from_beginning else consumer.seek_to_end
            await seek(*partitions)
            for partition in partitions:
                await consumer.position(partition)
            self.require_open()  # the connection may have been closed during the waits
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    def _require_partition_count(self, topic: str) -> None:
        if self._found_topics is not None:
            self._found_topics.require_partition_counts([topic])

    async def _send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None = None
    ) -> asyncio.Future[Any]:
        while True:
            try:
                sender = await self._get_sender()
            except ClusterAuthorizationFailedError:  # idempotent writes need Write on any topic
                raise TopicAuthorizationFailedError({topic}) from None
            try:
                return await sender.send(topic, key, value, headers, partition)
            except ProducerClosed:
                # A failed sender was ended while this record waited for room in its buffer; the next sender sends the record.
                if not sender.failed:
                    raise

    async def _get_sender(self) -> KafkaSender:
        """Return the sender. It starts at its first use, so that clients that only read need no right to write.

        A failed sender ends before the next sender starts, so records keep their order.
        """
        self.require_open()
        if self._sender is not None and not self._sender.failed:
            return self._sender
        async with self._start_lock:
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
def translate_errors() -> Iterator[None]:
    """Convert KafkaError, TopicsError and MalformedEventError into a SottoError."""
    try:
        yield
    except MalformedEventError as error:
        raise Invalid(str(error)) from error
    except TopicsError as error:
        raise Unreachable(str(error)) from error
    except KafkaError as error:
        raise translate_kafka_error(error) from error


def translate_kafka_error(error: KafkaError) -> SottoError:
    """Convert a Kafka error into ``Forbidden`` or ``Unreachable``."""
    return (Forbidden if is_refusal(error) else Unreachable)(describe_error(error))


SILENCE_SECONDS: Final = 5.0
"""Seconds between two checks of the brokers."""
ANSWER_SECONDS: Final = 10.0
"""Seconds after which a broker counts as silent."""


async def report_silence(settings: Settings, show: Callable[[str], None]) -> None:
    """Call ``show`` with a text when the brokers do not answer any more, and when they answer again."""
    is_silent = False
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        try:
            async with admin_client(settings) as admin:
                while True:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await admin.describe_cluster()
                    if is_silent:
                        show("the brokers answer again")
                    is_silent = False
                    await asyncio.sleep(SILENCE_SECONDS)
        except (KafkaError, OSError):
            if not is_silent:
                show("the brokers do not answer; still trying, stop with Ctrl-C")
            is_silent = True
