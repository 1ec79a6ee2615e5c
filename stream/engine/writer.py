"""The transactional writer of one partition."""

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
from aiokafka.record.util import calc_crc32c, encode_varint

from stream.kafka.client.adapter import KAFKA, Clients, OutgoingBatch, Producer
from stream.kafka.client.batch_reader import COLUMN_RECORDS
from stream.kafka.client.client_patches import refused_transaction
from stream.kafka.client.security import connection
from stream.kafka.client.transactional_producer import TransactionalProducer
from stream.kernel import RecordWriter, Spans, compiled, spans_of
from stream.log import get_logger
from stream.processing.protocol import Message, Messages, Outputs
from stream.processing.record_columns import MessageColumns
from stream.settings import Settings

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BEHIND_LENGTH: Final = 12
_ATTRIBUTES: Final = 21
_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT: Final = 17
_TRANSACTIONAL: Final = 0x10
_OVERHEAD: Final = 32
"""Bytes, at most, that a record takes beside its key and value."""

_COPIED_AT_ONCE: Final = 4_000
"""So many messages of lists are copied at a time, to be laid out: a step may write tens of thousands."""

_NO_HEADERS: Final[list[tuple[str, bytes]]] = []

_Part = tuple[Spans, Spans] | list[Message]


def batches_of(
    producer: Producer, messages: Messages, timestamp: int, batch_bytes: int
) -> Iterator[OutgoingBatch]:
    """Messages in batches that every reader of ours takes, and of at most so many bytes unless one message is longer."""
    if isinstance(producer, TransactionalProducer) and compiled() is not None:
        yield from framed(messages, timestamp, batch_bytes)
    else:
        yield from _appended(producer, messages, timestamp)


def _appended(producer: Producer, messages: Messages, timestamp: int) -> Iterator[OutgoingBatch]:
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
    """Records that are laid out already, where aiokafka has its ``BatchBuilder``."""

    def __init__(self, writer: RecordWriter, timestamp: int) -> None:
        self._records = writer.records()
        self._count = writer.count
        self._timestamp = timestamp
        self._producer = (-1, -1, 0)
        self._built: bytearray | None = None

    def append(self, **_: Any) -> None:
        """It takes no more."""

    def close(self) -> None:
        """It is closed."""

    def closed(self) -> bool:
        """Whether it takes no more."""
        return True

    def size(self) -> int:
        """Its length in bytes."""
        return _HEADER.size + len(self._records)

    def record_count(self) -> int:
        """How many records it has."""
        return self._count

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        if self._built is None:
            length = self.size() - _BEHIND_LENGTH
            times = (self._timestamp, self._timestamp)
            figures = (_TRANSACTIONAL, self._count - 1, *times, *self._producer, self._count)
            built = bytearray(_HEADER.pack(0, length, -1, 2, 0, *figures))
            built += self._records
            _CHECKSUM.pack_into(built, _CHECKSUM_AT, calc_crc32c(memoryview(built)[_ATTRIBUTES:]))
            self._built = built
        return self._built


def framed(messages: Messages, timestamp: int, batch_bytes: int) -> Iterator[FramedBatch]:
    """Messages in batches that are laid out already, as they are asked for."""
    for some in _portions(messages):
        yield from _laid_out(some, timestamp, batch_bytes)


def _portions(messages: Messages) -> Iterator[list[Collection[Message]]]:
    """All messages, so many at a time as are copied at once; what is in columns is not copied."""
    some: list[Collection[Message]] = []
    copied = 0
    for part in messages.parts:
        for piece in _pieces(part):
            more = len(piece) if isinstance(piece, list) else 0
            if copied + more > _COPIED_AT_ONCE:
                yield some
                some, copied = [], 0
            some.append(piece)
            copied += more
    yield some


def _pieces(part: Collection[Message]) -> Iterator[Collection[Message]]:
    if not isinstance(part, list):
        yield part
        return
    for _, alike in groupby(part, key=_has_headers):
        listed = list(alike)
        for first in range(0, len(listed), _COPIED_AT_ONCE):
            yield listed[first : first + _COPIED_AT_ONCE]


def _has_headers(message: Message) -> bool:
    return bool(message[2])


def _laid_out(some: list[Collection[Message]], timestamp: int, batch_bytes: int) -> Iterator[FramedBatch]:
    parts = [_columns(part) for part in some]
    sizes = [_sizes(part) for part in parts]
    room = min(batch_bytes - _HEADER.size, sum(total for total, _ in sizes))
    largest = max(longest for _, longest in sizes)
    writer = RecordWriter(room, COLUMN_RECORDS - 1, largest)
    for part in parts:
        first, count = 0, len(part) if isinstance(part, list) else len(part[1])
        while (first := first + _write(writer, part, first)) < count:
            yield FramedBatch(writer, timestamp)
            writer = RecordWriter(room, COLUMN_RECORDS - 1, largest)
    yield FramedBatch(writer, timestamp)


def _columns(part: Collection[Message]) -> _Part:
    """Keys and values, or messages that have headers as they are."""
    if isinstance(part, MessageColumns):
        return part.keys, part.values
    if any(map(_has_headers, part)):
        return list(part)
    return _optional([key for key, _, _ in part]), _optional([value for _, value, _ in part])


def _sizes(part: _Part) -> tuple[int, int]:
    """How many bytes the records of a part take at most, and how many the longest of them."""
    if isinstance(part, list):
        sizes = [len(_record(COLUMN_RECORDS, message)) for message in part]
        return sum(sizes), max(sizes)
    keys, values = part
    total = int(keys.size.sum() + values.size.sum()) + (_OVERHEAD + 2) * len(keys)
    return total, _OVERHEAD + _longest(keys) + _longest(values)


def _write(writer: RecordWriter, part: _Part, first: int) -> int:
    """Write messages of a part from one on, and give how many had room."""
    if not isinstance(part, list):
        return writer.write(first, *part)
    for count, message in enumerate(part[first:]):
        if not writer.append(_record(writer.count, message)):
            return count
    return len(part) - first


def _record(delta: int, message: Message) -> bytes:
    """A record within its batch, of the batch's first time."""
    key, value, headers = message
    body = bytearray(b"\0\0")
    encode_varint(delta, body.append)
    _put(body, key)
    _put(body, value)
    encode_varint(len(headers), body.append)
    for name, text in headers:
        _put(body, name.encode())
        _put(body, text)
    whole = bytearray()
    encode_varint(len(body), whole.append)
    return bytes(whole + body)


def _put(body: bytearray, text: bytes | None) -> None:
    encode_varint(-1 if text is None else len(text), body.append)
    body += text or b""


def _optional(texts: list[bytes | None]) -> Spans:
    """Texts, some of which may be missing: these have a size of -1."""
    spans = spans_of([text or b"" for text in texts])
    for place, text in enumerate(texts):
        if text is None:
            spans.size[place] = -1
    return spans


def _longest(texts: Spans) -> int:
    return int(texts.size.max(initial=0))


UNSTAMPED: Final = -1
"""What Kafka takes for a record that carries no time; its own clock then decides how long the record is kept."""
SET_BACK: Final = 60.0
"""Seconds by which a clock that was refused must have gone back before it is tried again."""

log = get_logger("stamps")


class Stamps:
    """Record timestamps of one process, in milliseconds since the epoch.

    Topics that ``sotto topics create`` makes are stamped by the broker, whatever is sent. A topic that is not takes the
    writer's time and refuses one that is more than an hour ahead. Records are then written without a time until this
    machine's clock has been set back: no partition is held up by it.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """Take the wall clock, in seconds since the epoch."""
        self._clock = clock or (time.time)
        self._refused: float | None = None

    def now(self) -> int:
        """The time for a record that is written now."""
        wall = self._clock()
        if self._refused is not None:
            if wall - time.monotonic() > self._refused - SET_BACK:
                return UNSTAMPED
            self._refused = None
            log.info("clock set back: records carry its time again")
        return int(wall * 1000)

    def refuse(self) -> None:
        """Kafka has refused the time."""
        ahead = self._clock() - time.monotonic()
        if self._refused is None:
            log.error(
                "clock refused",
                reason="Kafka says that this machine's clock is far ahead; set it right",
                remedy="until then records carry no time; 'sotto topics check' names topics that the broker does not stamp",
            )
        self._refused = ahead


CLOSE_TIMEOUT = 5.0
"""Seconds that connections get to end in good order; they are told to at once."""


class Writer:
    """Writes outputs and input positions in one transaction.

    The transactional id belongs to the input partition, not to the process: opening a writer fences whoever wrote for
    that partition before and aborts what it left open. (No group metadata goes with offsets, KIP-447, so
    the id is the only fence there is.) After any error a writer is good for nothing but ``close``.
    """

    def __init__(self, producer: Producer, group: str, stamps: Stamps, batch_bytes: int) -> None:
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._group = group
        self._stamps = stamps
        self.confirm: Callable[[], Awaitable[None]] | None = None
        """Awaited before anything is written; what it raises keeps it from being written."""

    @classmethod
    async def fence(
        cls,
        settings: Settings,
        transactional_id: str,
        group: str,
        clients: Clients = KAFKA,
        stamps: Stamps | None = None,
    ) -> Self:
        """Open the writer of a partition; when this returns, the predecessor's last transaction has ended.

        Raises:
            RefusedTimeError: transactions may last longer than the broker allows.
            KafkaError: Kafka cannot be reached, or refuses.
        """
        producer = clients.producer(
            **connection(settings),
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            max_batch_size=settings.batch_bytes,
        )
        writer = cls(producer, group, stamps or Stamps(), settings.batch_bytes)
        try:
            await producer.start()
        except InvalidTransactionTimeout:
            await writer.close()
            raise refused_transaction(settings.transaction_timeout_ms) from None
        except BaseException:
            await writer.close()
            raise
        return writer

    async def commit(self, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        """Write everything or nothing, in batches that every reader of ours takes; returns once the transaction is committed."""
        if self.confirm is not None and outputs:
            await self.confirm()
        try:
            await self._write(outputs)
        except InvalidTimestampError:
            # The next writer of this process does without.
            self._stamps.refuse()
            raise
        if positions:
            await self._producer.add_offsets(positions, self._group)
        await self._producer.commit()

    async def commit_parts(self, parts: Iterable[Outputs]) -> None:
        """Write all parts or none, one after another: for more than memory should hold at once."""
        for outputs in parts:
            await self._write(outputs)
        await self._producer.commit()

    async def close(self) -> None:
        """Let go of the connections; an open transaction is left for the successor's fence to abort."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._producer.stop()

    async def _write(self, outputs: Outputs) -> None:
        timestamp, size = self._stamps.now(), self._batch_bytes
        # Filled as they are sent: what a step writes is in memory once, and of its batches those under way.
        batches = {
            TopicPartition(topic, partition): batches_of(self._producer, messages, timestamp, size)
            for topic, partition, messages in outputs
        }
        if batches:
            await self._producer.write(batches)
