"""Reading record batches without ever holding more than a bound of what they unfold to.

A batch of a few kilobytes can hold gigabytes, or a million records; a client library unfolds it first and looks then. Here
each batch is unfolded into a space of fixed size. One that does not fit is unfolded into a larger space, as often as it takes to
hand its records out a few at a time: each is judged by itself, whatever else its batch holds. What does not fit there either is
given as one record that says so (`stream.processing.dead_letters`), in its place among the others. Importing `stream.kafka.client.adapter` puts
this under every consumer of the process.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any, Final

import cramjam
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from blake3 import blake3

from stream.kafka.client.aiokafka_copy import fetcher
from stream.kafka.client.batch_frames import (
    APPEND_TIME,
    ATTRIBUTES,
    COUNT,
    HEADER_BYTES,
    LEGACY_VALUE,
    MAX_TIMESTAMP,
    BrokenBatchError,
    ReadRecord,
    RecordPlace,
    parse,
    parse_from,
)
from stream.processing.dead_letters import (
    BROKEN,
    MAX_HEADERS,
    MAX_RECORD_BYTES,
    MAX_RECORDS,
    MOST_UNFOLDED_BYTES,
    RECORD_TOO_LARGE,
    TOO_LARGE,
    TOO_MANY_HEADERS,
    TOO_MANY_RECORDS,
    UNFOLDED_BYTES,
    Rejection,
    Unread,
    UnreadBatch,
)

HANDED_BYTES: Final = UNFOLDED_BYTES
"""Once so much has been unfolded of one fetch of a partition, its remaining batches are fetched again later."""
NATIVE_BYTES: Final = 1024 * 1024
"""Largest batch that the client library reads: it makes all headers of a record before anybody can count them."""
COLUMN_RECORDS: Final = 100_000
"""Most records of a batch that are read into columns at once: their number is its writer's word."""
TURN_RECORDS: Final = 50_000
"""Most records that a batch hands out in one turn where it takes several."""
SHOWN_BYTES: Final = 4096
"""What a dead letter shows of a batch that was not read."""

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CODEC_MASK: Final = 0x07
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_UNREADABLE: Final = (KafkaError, ValueError, IndexError, AssertionError, OverflowError, TypeError)
"""What the client library raises at a batch that is laid out otherwise than it expects."""

_number = struct.Struct(">i").unpack_from
_space = threading.local()


class BoundedRecords:
    """What a fetch gave of one partition, in the client library's own shape: batches, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._records = MemoryRecords(data)
        self._place = 0
        self._left = HANDED_BYTES

    def size_in_bytes(self) -> int:
        """How many bytes the fetch gave."""
        return len(self._data)

    def has_next(self) -> bool:
        """Whether there is a batch to be had now; the fetcher asks Kafka again for what stays behind."""
        return self._left > 0 and self._records.has_next()

    def next_batch(self) -> Any:
        """The next batch."""
        batch, start = self._records.next_batch(), self._place
        self._place = end = start + 12 + _number(self._data, start + 8)[0]
        if batch is None or batch.is_control_batch:
            return batch
        return BoundedBatch(batch, self._view, slice(start, end), self)

    def unfolded(self, size: int) -> None:
        """Say that a batch was unfolded to so many bytes."""
        self._left -= size


class BoundedBatch:
    """One batch. Iterating over it gives its records; an `Unread` stands in for those that cannot be had."""

    __slots__ = (
        "_batch",
        "_digest",
        "_fetched",
        "_raw",
        "_unfolded",
        "base_offset",
        "data",
        "is_transactional",
        "next_offset",
        "place",
        "producer_id",
    )
    is_control_batch = False

    def __init__(self, batch: Any, data: memoryview, place: slice, fetched: BoundedRecords) -> None:
        """Take the client library's view of it, and where it is in what was fetched."""
        self._batch = batch
        self._raw = data[place]
        self._unfolded: memoryview | None = None
        self._digest: str | None = None
        self.data = data
        self.place = place
        self._fetched = fetched
        self.producer_id = batch.producer_id
        self.is_transactional = batch.is_transactional
        self.next_offset = batch.next_offset
        self.base_offset = getattr(batch, "base_offset", batch.next_offset - 1)

    def validate_crc(self) -> bool:
        """Whether its bytes are as they were sent."""
        return bool(self._batch.validate_crc())

    def __iter__(self) -> Iterator[Any]:
        return self._legacy() if self._raw[16] < 2 else self._current()

    @property
    def count(self) -> int:
        """How many records it says to have."""
        return int(_number(self._raw, COUNT.start)[0])

    @property
    def timestamp_type(self) -> int:
        """Kafka's word for who stamped its records: 0 for their writer, 1 for the broker."""
        return 1 if self._raw[ATTRIBUTES] & APPEND_TIME else 0

    def unfolded(self) -> tuple[memoryview, slice] | None:
        """A buffer, and where in it the batch stands, not compressed; None where its records are to be had one by one only."""
        raw = self._raw
        if raw[16] < 2 or not 0 < self.count <= COLUMN_RECORDS:
            return None
        if not raw[ATTRIBUTES] & _CODEC_MASK:
            return self.data, self.place
        return None if (plain := self._plain()) is None else (plain, slice(0, len(plain)))

    def _plain(self) -> memoryview | None:
        """Its bytes as if it were not compressed; None if it does not unfold."""
        raw = self._raw
        if not raw[ATTRIBUTES] & _CODEC_MASK:
            return raw
        if self._unfolded is None:
            unfolded = unfold(_CODEC_MASK & raw[ATTRIBUTES], raw[HEADER_BYTES:])
            if unfolded is None:
                return None
            self._fetched.unfolded(len(unfolded))
            head = bytearray(raw[:HEADER_BYTES])
            head[ATTRIBUTES] &= ~_CODEC_MASK
            self._unfolded = memoryview(b"".join((head, unfolded)))
        return self._unfolded

    def _current(self) -> Iterator[Any]:
        if self.count > MAX_RECORDS:
            yield self._unread(TOO_MANY_RECORDS)
            return
        if (plain := self._plain()) is None:
            yield from self._in_turns()
            return
        batch = self._batch if plain is self._raw else DefaultRecordBatch(plain)
        seen = self.base_offset - 1
        if len(plain) <= NATIVE_BYTES:
            try:
                for record in batch:
                    if not seen < record.offset < self.next_offset:
                        break  # aiokafka looks at no bounds, and reads a record's attributes as a number of any length.
                    seen = record.offset
                    yield record if len(record.headers) <= MAX_HEADERS else _with_few_headers(record)
                else:
                    return
            except _UNREADABLE:
                pass  # What is wrong, and with which record, is found below.
        try:
            for record in parse(plain, seen + 1):
                seen = record.offset
                yield record
        except BrokenBatchError:
            yield self._unread(BROKEN, first=seen + 1)

    def _in_turns(self) -> Iterator[Any]:
        """Its records a few at a time, unfolded anew for each turn: in between nothing is held of it but its own bytes."""
        place, seen, is_over = RecordPlace(), self.base_offset - 1, False
        while not is_over:
            if (plain := self._plain_for_a_turn()) is None:
                yield self._unread(TOO_LARGE)
                return
            rest = parse_from(place, self._raw, plain, seen + 1, MAX_RECORD_BYTES)
            turn: list[ReadRecord] = []
            handed = 0
            try:
                while len(turn) < TURN_RECORDS and handed < UNFOLDED_BYTES:
                    before = place.size
                    record, place = next(rest)
                    seen = record.offset
                    if isinstance(record.value, Unread) and record.value.rejection is RECORD_TOO_LARGE:
                        turn.append(self._unread(RECORD_TOO_LARGE, seen, seen))
                    else:
                        turn.append(record)
                        handed += place.size - before
            except StopIteration:
                is_over = True
            except BrokenBatchError:
                turn.append(self._unread(BROKEN, seen + 1))
                is_over = True
            del plain, rest
            self._fetched.unfolded(handed)
            yield from turn

    def _plain_for_a_turn(self) -> memoryview | None:
        """What its records unfold to, in a space that goes when they do; None if they do not unfold there either."""
        space = memoryview(bytearray(MOST_UNFOLDED_BYTES))
        return unfold(_CODEC_MASK & self._raw[ATTRIBUTES], self._raw[HEADER_BYTES:], space)

    def _legacy(self) -> Iterator[Any]:
        """Records of the formats before Kafka 0.11: one, or a compressed set of them as the value of one."""
        codec = self._raw[LEGACY_VALUE.attributes] & _CODEC_MASK
        try:
            if codec:
                unfolded = unfold(codec, LEGACY_VALUE.of(self._raw))
                if unfolded is None:
                    yield self._unread(TOO_LARGE)
                    return
                self._fetched.unfolded(len(unfolded))
                del unfolded
            yield from self._batch
        except _UNREADABLE:
            yield self._unread(BROKEN)

    def _unread(self, rejection: Rejection, first: int | None = None, last: int | None = None) -> ReadRecord:
        """What stands for its records from the first to the last of these offsets, stamped as they are."""
        raw = self._raw
        codec = raw[ATTRIBUTES if raw[16] >= 2 else LEGACY_VALUE.attributes] & _CODEC_MASK
        if self._digest is None:  # a batch may have hundreds of records that are left out
            self._digest = blake3(raw).hexdigest()
        batch = UnreadBatch(
            first=self.base_offset if first is None else first,
            last=self.next_offset - 1 if last is None else last,
            codec=_CODECS[codec] if codec < len(_CODECS) else "unknown",
            length=len(raw),
            digest=self._digest,
        )
        is_stamped = raw[16] >= 2 and bool(raw[ATTRIBUTES] & APPEND_TIME)
        stamp = int.from_bytes(raw[MAX_TIMESTAMP], "big", signed=True) if is_stamped else 0
        unread = Unread(bytes(raw[:SHOWN_BYTES]), rejection, batch)
        return ReadRecord(batch.last, stamp, int(is_stamped), None, unread, [])


def unfold(codec: int, data: memoryview, place: memoryview | None = None) -> memoryview | None:
    """What compressed bytes unfold to; None if there is too little place for it, or if it is nothing.

    Without a ``place`` it takes memory for `UNFOLDED_BYTES` once, whatever the bytes say of their content, and what stands there is
    good until the next call in this thread.
    """
    if place is None:
        space = getattr(_space, "buffer", None)
        if space is None:
            space = _space.buffer = bytearray(UNFOLDED_BYTES)
        place = memoryview(space)
    try:
        match codec:
            case 1:
                size = cramjam.gzip.decompress_into(data, place)
            case 2:
                size = _unfold_snappy(data, place)
            case 3:
                size = cramjam.lz4.decompress_into(data, place)
            case 4:
                size = cramjam.zstd.decompress_into(data, place)
            case _:
                return None
    except (cramjam.DecompressionError, ValueError, OverflowError):
        return None
    return place[:size]


def _unfold_snappy(data: memoryview, place: memoryview) -> int:
    """As Java's producers write it, in blocks behind their lengths, or as one block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return int(cramjam.snappy.decompress_raw_into(data, place))
    size, position = 0, _XERIAL_HEADER
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < length <= len(data) - position:
            raise ValueError("a block is longer than the rest")
        size += int(cramjam.snappy.decompress_raw_into(data[position : position + length], place[size:]))
        position += length
    return size


def _with_few_headers(record: Any) -> ReadRecord:
    value = record.value
    stand_in = None if value is None else Unread(value, TOO_MANY_HEADERS)
    return ReadRecord(
        record.offset, record.timestamp, record.timestamp_type, record.key, stand_in, record.headers[:MAX_HEADERS]
    )


def install() -> None:
    """Make Sotto's consumers read batches with ``BoundedRecords``.

    Raises:
        RuntimeError: aiokafka is of another version.
    """
    if getattr(fetcher, "MemoryRecords", None) not in {MemoryRecords, BoundedRecords}:
        raise RuntimeError(
            "aiokafka.consumer.fetcher has no MemoryRecords; install the version that Sotto requires"
        )
    fetcher.MemoryRecords = BoundedRecords
