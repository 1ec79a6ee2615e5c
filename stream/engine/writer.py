"""The transactional writer of one partition, with its buffer, batches and timestamps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, InvalidTransactionTimeout

from stream.diagnostics import get_logger
from stream.engine.partition_input import GroupOffsets
from stream.kafka.client.adapter import KAFKA, Clients, Producer
from stream.kafka.client.batch_reader import COLUMN_RECORDS
from stream.kafka.client.broker_connections import connection_options
from stream.kafka.client.client_patches import transaction_timeout_error
from stream.kafka.client.column_batches import encode_batches
from stream.kafka.client.transactional_producer import TransactionalProducer
from stream.kernel import compiled_kernel
from stream.processing.protocol import Message, Messages, Outputs
from stream.settings import Settings

_NO_HEADERS: Final[list[tuple[str, bytes]]] = []


def _build_batches(producer: Producer, messages: Messages, timestamp: int) -> Iterator[Any]:
    batch = producer.create_batch()
    for number, (key, value, headers) in enumerate(messages, 1):
        listed = list(headers) if headers else _NO_HEADERS
        full = number % COLUMN_RECORDS == 0
        if full or batch.append(timestamp=timestamp, key=key, value=value, headers=listed) is None:
            yield batch
            batch = producer.create_batch()
            batch.append(timestamp=timestamp, key=key, value=value, headers=listed)
    yield batch


UNSTAMPED: Final = -1
"""Kafka's value for a record without a timestamp; its retention follows the broker's clock."""
SET_BACK_SECONDS: Final = 60.0
"""Seconds by which a refused clock must be set back before it is used again."""

log = get_logger("stamps")


class RecordClock:
    """Record timestamps of one process, in milliseconds since 1970.

    In topics that ``sotto topics create`` makes, brokers replace these timestamps. In other topics a broker
    may refuse a time that is more than an hour ahead. After such a refusal, records have no timestamp until
    this machine's clock is set back.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """``clock`` returns seconds since 1970."""
        self._clock = clock or time.time
        self._refused: float | None = None

    def now(self) -> int:
        """Return the timestamp for a record that is written now."""
        wall = self._clock()
        if self._refused is not None:
            if wall - time.monotonic() > self._refused - SET_BACK_SECONDS:
                return UNSTAMPED
            self._refused = None
            log.info("clock set back; records carry timestamps again")
        return int(wall * 1000)

    def refuse(self) -> None:
        """Stop using the clock, because Kafka refused its time."""
        ahead = self._clock() - time.monotonic()
        if self._refused is None:
            log.error(
                "clock refused",
                reason="according to Kafka, this machine's clock is far ahead; correct it",
                remedy="until then records have no timestamp; 'sotto topics check' names topics that the broker does not stamp",
            )
        self._refused = ahead


BUFFERED_BYTES: Final = 1_000_000
"""Number of buffered bytes at which the buffer is committed."""


class OutputBuffer:
    """Outputs of one session that are not committed yet.

    A transaction costs requests and a marker in each topic. So outputs to the changelog alone wait up to
    ``max_write_delay`` seconds for outputs to other topics, which have readers. Only the latest value of each
    key of the changelog is written. A crash loses the buffer together with its positions, so the input is
    read again.
    """

    def __init__(self, changelog: TopicPartition, offsets: GroupOffsets, max_write_delay: float) -> None:
        self._place = (changelog.topic, changelog.partition)
        self._offsets = offsets
        self._max_write_delay = max_write_delay
        self._waiting: dict[bytes | None, Message] = {}
        self._bytes = 0
        self._since = 0.0

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the buffer must be committed, or None if it is empty."""
        return max(0.0, self._since + self._max_write_delay - now) if self._waiting else None

    def add_and_take_due(
        self, outputs: Outputs, now: float, *, idle: bool
    ) -> tuple[Outputs, dict[TopicPartition, int]] | None:
        """Add outputs; return the outputs and offsets to commit now, or None without any.

        Offsets without outputs are committed only in an ``idle`` partition. In a busy partition, such a
        transaction would wait for the markers of the last transaction, and delay the next one.
        """
        waited_for = bool(outputs)
        if self._max_write_delay > 0:
            waited_for = any(place[:2] != self._place for place in outputs)
            outputs = self._gather_buffered(outputs, now, at_once=idle or waited_for)
        if not (outputs or idle):
            return None
        offsets = self._offsets.take_due(now, waited_for=waited_for)
        return (outputs, offsets) if outputs or offsets else None

    def _gather_buffered(self, outputs: Outputs, now: float, *, at_once: bool) -> Outputs:
        ready = Outputs(busy=outputs.busy)
        for topic, partition, messages in outputs:
            if (topic, partition) != self._place:
                ready.extend(topic, partition, messages)
                continue
            if not self._waiting:
                self._since, self._bytes = now, 0
            for message in messages:
                self._waiting[message[0]] = message
                self._bytes += len(message[1] or b"")
        left = self.seconds_left(now)
        if left is not None and (at_once or left == 0.0 or self._bytes >= BUFFERED_BYTES):
            ready.extend(*self._place, list(self._waiting.values()))
            self._waiting = {}
        return ready


CLOSE_SECONDS = 5.0
"""Seconds for closing connections cleanly."""


class Writer:
    """Writes outputs and input positions in one transaction.

    The transactional id belongs to the input partition, not to the process: opening a writer fences
    the partition's previous writer and aborts its open transaction. Committed offsets carry no group
    metadata (KIP-447), so the transactional id alone fences. After an error, a writer can only be closed.
    """

    def __init__(self, producer: Producer, group: str, record_clock: RecordClock, batch_bytes: int) -> None:
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._group = group
        self._record_clock = record_clock
        self.confirm: Callable[[], Awaitable[None]] | None = None
        """Awaited before each write; an error prevents the write."""

    @classmethod
    async def fence(
        cls,
        settings: Settings,
        transactional_id: str,
        group: str,
        clients: Clients = KAFKA,
        record_clock: RecordClock | None = None,
    ) -> Self:
        """Open a partition's writer; wait until the predecessor's last transaction has ended.

        Raises:
            RefusedTimeError: the transaction timeout is above the broker's limit.
            KafkaError: Kafka is unreachable or refuses.
        """
        timeout_ms = settings.transaction_timeout_ms
        producer = clients.producer(
            **connection_options(settings),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_batch_size=settings.batch_bytes,
        )
        writer = cls(producer, group, record_clock or RecordClock(), settings.batch_bytes)
        try:
            await producer.start()
        except BaseException as error:
            await writer.close()
            if isinstance(error, InvalidTransactionTimeout):
                raise transaction_timeout_error(timeout_ms) from None
            raise
        return writer

    async def commit(self, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        """Write all outputs in one transaction, in batches that Sotto's readers accept, and commit."""
        if self.confirm is not None and outputs:
            await self.confirm()
        try:
            await self._write_batches(outputs)
        except InvalidTimestampError:
            # The next writer of this process sends records without timestamps.
            self._record_clock.refuse()
            raise
        if positions:
            await self._producer.add_offsets(positions, self._group)
        await self._producer.commit()

    async def commit_parts(self, parts: Iterable[Outputs]) -> None:
        """Write all parts or none, in sequence, for more outputs than fit in memory."""
        for outputs in parts:
            await self._write_batches(outputs)
        await self._producer.commit()

    async def close(self) -> None:
        """Close the connections; the successor's fence aborts an open transaction."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._producer.stop()

    async def _write_batches(self, outputs: Outputs) -> None:
        timestamp, size = self._record_clock.now(), self._batch_bytes
        # Batches are encoded while earlier batches are sent, so only the batches in flight are in memory twice.
        in_kernel = isinstance(self._producer, TransactionalProducer) and compiled_kernel() is not None
        batches: dict[TopicPartition, Iterator[Any]] = {
            TopicPartition(topic, partition): encode_batches(messages, timestamp, size)
            if in_kernel
            else _build_batches(self._producer, messages, timestamp)
            for topic, partition, messages in outputs
        }
        if batches:
            await self._producer.write(batches)
