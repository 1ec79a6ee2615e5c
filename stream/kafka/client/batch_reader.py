"""Reads record batches with bounded memory.

A compressed batch of a few kilobytes can have gigabytes of content, and aiokafka has no limit.
Here each batch is decompressed into a buffer of fixed size. If it does not fit, it is decompressed
into a larger buffer several times, and some of its records are returned each time (a turn). A batch
that does not fit there either is replaced by one `Unread` (`stream.processing.dead_letters`).
Importing `stream.kafka.client.adapter` installs this module in Sotto's consumers.
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

from stream.kafka.client.batch_frames import (
    APPEND_TIME,
    ATTRIBUTES,
    COUNT,
    HEADER_BYTES,
    MAX_TIMESTAMP,
    BrokenBatchError,
    ReadRecord,
    RecordPlace,
    parse,
    parse_from,
)
from stream.kafka.client.client_patches import fetcher
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
"""A fetch of a partition ends after this many decompressed bytes; the rest is fetched again."""
NATIVE_BYTES: Final = 1024 * 1024
"""Largest batch that aiokafka parses: it creates all headers before they can be counted."""
COLUMN_RECORDS: Final = 100_000
"""Most records of a batch that is read into columns; the writer states this number."""
TURN_RECORDS: Final = 50_000
"""Most records that a batch returns in one of several turns."""
SHOWN_BYTES: Final = 4096
"""Number of bytes of an unread batch, from its start, that its dead letter contains."""

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CODEC_MASK: Final = 0x07
_FORMAT: Final = 16
"""Offset of the byte with the format: 2 since Kafka 0.11; batches of older formats are unread."""
_OLD_ATTRIBUTES: Final = 17
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_UNREADABLE: Final = (KafkaError, ValueError, IndexError, AssertionError, OverflowError, TypeError)
"""Errors of aiokafka for a batch with an unexpected layout."""

_number = struct.Struct(">i").unpack_from
_space = threading.local()


class BoundedRecords:
    """A partition's fetched batches, with the interface of `MemoryRecords`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._records = MemoryRecords(data)
        self._place = 0
        self._left = HANDED_BYTES

    def size_in_bytes(self) -> int:
        """Returns the number of fetched bytes."""
        return len(self._data)

    def has_next(self) -> bool:
        """Returns whether another batch may be read; the remaining ones are fetched again later."""
        return self._left > 0 and self._records.has_next()

    def next_batch(self) -> Any:
        """Returns the next batch."""
        batch, start = self._records.next_batch(), self._place
        self._place = end = start + 12 + _number(self._data, start + 8)[0]
        if batch is None or batch.is_control_batch:
            return batch
        return BoundedBatch(batch, self._view, slice(start, end), self)

    def unfolded(self, size: int) -> None:
        """Counts decompressed bytes against ``HANDED_BYTES``."""
        self._left -= size


class BoundedBatch:
    """A batch that yields its records, with an `Unread` in place of each unreadable part."""

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
        """Takes aiokafka's batch and its place in the fetched data."""
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
        """Returns whether the checksum is correct."""
        return bool(self._batch.validate_crc())

    def __iter__(self) -> Iterator[Any]:
        return self._current() if self._raw[_FORMAT] >= 2 else iter([self._unread(BROKEN)])

    @property
    def count(self) -> int:
        """The number of records that the batch header states."""
        return int(_number(self._raw, COUNT.start)[0])

    @property
    def timestamp_type(self) -> int:
        """Kafka's timestamp type: 0 for the writer's time, 1 for the broker's."""
        return 1 if self._raw[ATTRIBUTES] & APPEND_TIME else 0

    def unfolded(self) -> tuple[memoryview, slice] | None:
        """Returns the uncompressed batch as a buffer and a place in it; None if unfit for columns."""
        raw = self._raw
        if raw[_FORMAT] < 2 or not 0 < self.count <= COLUMN_RECORDS:
            return None
        if not raw[ATTRIBUTES] & _CODEC_MASK:
            return self.data, self.place
        return None if (plain := self._plain()) is None else (plain, slice(0, len(plain)))

    def _plain(self) -> memoryview | None:
        """Returns the uncompressed batch; None if it does not fit in the buffer or is invalid."""
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
        """Yields the records of a batch in the current format."""
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
                        break  # aiokafka checks no offsets, and reads a record's attributes as a varint.
                    seen = record.offset
                    yield record if len(record.headers) <= MAX_HEADERS else _with_few_headers(record)
                else:
                    return
            except _UNREADABLE:
                pass  # The parser below finds the broken record.
        try:
            for record in parse(plain, seen + 1):
                seen = record.offset
                yield record
        except BrokenBatchError:
            yield self._unread(BROKEN, first=seen + 1)

    def _in_turns(self) -> Iterator[Any]:
        """Yields records in turns; each turn decompresses the batch again, to use little memory."""
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
        """Decompresses into a larger, temporary buffer; None if the batch does not fit there either."""
        space = memoryview(bytearray(MOST_UNFOLDED_BYTES))
        return unfold(_CODEC_MASK & self._raw[ATTRIBUTES], self._raw[HEADER_BYTES:], space)

    def _unread(self, rejection: Rejection, first: int | None = None, last: int | None = None) -> ReadRecord:
        """Builds the record that replaces the records from offset ``first`` to ``last``."""
        raw = self._raw
        is_current = raw[_FORMAT] >= 2
        codec = raw[ATTRIBUTES if is_current else _OLD_ATTRIBUTES] & _CODEC_MASK
        if self._digest is None:  # cached, because a batch may have hundreds of unread records
            self._digest = blake3(raw).hexdigest()
        batch = UnreadBatch(
            first=self.base_offset if first is None else first,
            last=self.next_offset - 1 if last is None else last,
            codec=_CODECS[codec] if codec < len(_CODECS) else "unknown",
            length=len(raw),
            digest=self._digest,
        )
        is_stamped = is_current and bool(raw[ATTRIBUTES] & APPEND_TIME)
        stamp = int.from_bytes(raw[MAX_TIMESTAMP], "big", signed=True) if is_stamped else 0
        unread = Unread(bytes(raw[:SHOWN_BYTES]), rejection, batch)
        return ReadRecord(batch.last, stamp, int(is_stamped), None, unread, [])


def unfold(codec: int, data: memoryview, place: memoryview | None = None) -> memoryview | None:
    """Decompresses into ``place``; None if the content does not fit or is invalid.

    Without a ``place``, it uses one buffer of `UNFOLDED_BYTES` per thread, whatever size the data
    states. The result is valid until the next call in this thread.
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
    """Decompresses Snappy data: blocks with their lengths (Java's format), or one block."""
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
    """Makes Sotto's consumers read batches with ``BoundedRecords``.

    Raises:
        RuntimeError: aiokafka has another version.
    """
    if getattr(fetcher, "MemoryRecords", None) not in {MemoryRecords, BoundedRecords}:
        raise RuntimeError(
            "aiokafka.consumer.fetcher has no MemoryRecords; install the version that Sotto requires"
        )
    fetcher.MemoryRecords = BoundedRecords
