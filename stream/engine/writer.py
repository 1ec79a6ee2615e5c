"""The transactional writer of one partition, with its buffer, batches and timestamps."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, Self

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, InvalidTransactionTimeout
from aiokafka.record.util import encode_varint

from stream.diagnostics import get_logger
from stream.engine.partition_input import GroupOffsets
from stream.kafka.client.adapter import KAFKA, Clients, OutgoingBatch, Producer
from stream.kafka.client.batch_frames import CHECKED_FROM, CHECKSUM
from stream.kafka.client.batch_reader import COLUMN_RECORDS
from stream.kafka.client.broker_connections import connection_options
from stream.kafka.client.client_patches import transaction_timeout_error
from stream.kafka.client.column_reader import checksum_of
from stream.kafka.client.transactional_producer import TransactionalProducer
from stream.kernel import compiled_kernel
from stream.kernel.array_operations import RecordWriter
from stream.kernel.byte_columns import Spans, spans_of
from stream.processing.protocol import Message, Messages, Outputs
from stream.processing.record_columns import MessageColumns
from stream.settings import Settings

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END: Final = 12
_CHECKSUM: Final = struct.Struct(">I")
_TRANSACTIONAL: Final = 0x10
_OVERHEAD: Final = 32
"""Maximum number of bytes of a record in addition to its key and value."""

_COPIED_AT_ONCE: Final = 4_000
"""Maximum number of messages that are copied at once: a step may write tens of thousands."""

_NO_HEADERS: Final[list[tuple[str, bytes]]] = []

_Part = tuple[Spans, Spans] | list[Message]


def _build_batches(producer: Producer, messages: Messages, timestamp: int) -> Iterator[OutgoingBatch]:
    batch = producer.create_batch()
    for number, (key, value, headers) in enumerate(messages, 1):
        listed = list(headers) if headers else _NO_HEADERS
        full = number % COLUMN_RECORDS == 0
        if full or batch.append(timestamp=timestamp, key=key, value=value, headers=listed) is None:
            yield batch
            batch = producer.create_batch()
            batch.append(timestamp=timestamp, key=key, value=value, headers=listed)
    yield batch


class FramedBatch:
    """An encoded batch with the interface of aiokafka's ``BatchBuilder``."""

    def __init__(self, writer: RecordWriter, timestamp: int) -> None:
        self._batch = writer.batch()
        self._count = writer.count
        self._timestamp = timestamp
        self._producer = (-1, -1, 0)
        self._is_built = False

    def append(self, **_: Any) -> None:
        """Accept no record, because the batch is complete."""

    def close(self) -> None:
        """Do nothing, because the batch is complete."""

    def closed(self) -> bool:
        """Return True, because the batch is complete."""
        return True

    def size(self) -> int:
        """Return the length in bytes."""
        return len(self._batch)

    def record_count(self) -> int:
        """Return the number of records."""
        return self._count

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> memoryview:
        if not self._is_built:
            length = self.size() - _LENGTH_END
            first = last = self._timestamp
            counts = (_TRANSACTIONAL, self._count - 1, first, last, *self._producer, self._count)
            _HEADER.pack_into(self._batch, 0, 0, length, -1, 2, 0, *counts)
            _CHECKSUM.pack_into(self._batch, CHECKSUM.start, checksum_of(self._batch[CHECKED_FROM:]))
            self._is_built = True
        return self._batch


def encode_batches(messages: Messages, timestamp: int, batch_bytes: int) -> Iterator[FramedBatch]:
    """Yield encoded batches of at most ``batch_bytes``, unless one message is longer."""
    for group in _group_parts(messages):
        yield from _encode_group(group, timestamp, batch_bytes)


def _group_parts(messages: Messages) -> Iterator[list[Collection[Message]]]:
    """Yield groups of parts with at most ``_COPIED_AT_ONCE`` copied messages; columns are not copied."""
    group: list[Collection[Message]] = []
    copied = 0
    for part in messages.parts:
        for piece in _split_part(part):
            more = len(piece) if isinstance(piece, list) else 0
            if copied + more > _COPIED_AT_ONCE:
                yield group
                group, copied = [], 0
            group.append(piece)
            copied += more
    yield group


def _split_part(part: Collection[Message]) -> Iterator[Collection[Message]]:
    """Split a list into messages with and without headers; columns stay whole."""
    if not isinstance(part, list):
        yield part
        return
    for _, alike in groupby(part, key=_has_headers):
        listed = list(alike)
        for first in range(0, len(listed), _COPIED_AT_ONCE):
            yield listed[first : first + _COPIED_AT_ONCE]


def _has_headers(message: Message) -> bool:
    return bool(message[2])


def _encode_group(group: list[Collection[Message]], timestamp: int, batch_bytes: int) -> Iterator[FramedBatch]:
    parts = [_columns(part) for part in group]
    sizes = [_sizes(part) for part in parts]
    room = min(batch_bytes - _HEADER.size, sum(total for total, _ in sizes))
    largest = max(longest for _, longest in sizes)
    writer = RecordWriter(room, COLUMN_RECORDS - 1, largest, _HEADER.size)
    for part in parts:
        first, count = 0, len(part) if isinstance(part, list) else len(part[1])
        while (first := first + _write_part(writer, part, first)) < count:
            yield FramedBatch(writer, timestamp)
            writer = RecordWriter(room, COLUMN_RECORDS - 1, largest, _HEADER.size)
    yield FramedBatch(writer, timestamp)


def _columns(part: Collection[Message]) -> _Part:
    if isinstance(part, MessageColumns):
        return part.keys, part.values
    if any(map(_has_headers, part)):
        return list(part)
    return _nullable_spans([key for key, _, _ in part]), _nullable_spans([value for _, value, _ in part])


def _sizes(part: _Part) -> tuple[int, int]:
    """Return upper bounds for the bytes of all records and of the longest one."""
    if isinstance(part, list):
        sizes = [len(_record(COLUMN_RECORDS, message)) for message in part]
        return sum(sizes), max(sizes)
    keys, values = part
    total = int(keys.size.sum() + values.size.sum()) + (_OVERHEAD + 2) * len(keys)
    return total, _OVERHEAD + int(keys.size.max(initial=0)) + int(values.size.max(initial=0))


def _write_part(writer: RecordWriter, part: _Part, first: int) -> int:
    """Write the messages after the first ``first`` ones; return how many of them fit in the batch."""
    if not isinstance(part, list):
        return writer.write(first, *part)
    for count, message in enumerate(part[first:]):
        if not writer.append(_record(writer.count, message)):
            return count
    return len(part) - first


def _record(delta: int, message: Message) -> bytes:
    """Encode a record with the timestamp of its batch."""
    key, value, headers = message
    body = bytearray(b"\0\0")
    encode_varint(delta, body.append)
    _put_text(body, key)
    _put_text(body, value)
    encode_varint(len(headers), body.append)
    for name, text in headers:
        _put_text(body, name.encode())
        _put_text(body, text)
    whole = bytearray()
    encode_varint(len(body), whole.append)
    return bytes(whole + body)


def _put_text(body: bytearray, text: bytes | None) -> None:
    encode_varint(-1 if text is None else len(text), body.append)
    body += text or b""


def _nullable_spans(texts: list[bytes | None]) -> Spans:
    """Return spans of texts; a missing text has size -1."""
    spans = spans_of([text or b"" for text in texts])
    for place, text in enumerate(texts):
        if text is None:
            spans.size[place] = -1
    return spans


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
        batches: dict[TopicPartition, Iterator[OutgoingBatch]] = {
            TopicPartition(topic, partition): encode_batches(messages, timestamp, size)
            if in_kernel
            else _build_batches(self._producer, messages, timestamp)
            for topic, partition, messages in outputs
        }
        if batches:
            await self._producer.write(batches)
