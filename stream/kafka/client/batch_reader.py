"""Reads record batches with bounded memory.

A compressed batch of a few kilobytes can have gigabytes of content, and aiokafka has no limit.
This module decompresses each batch into a buffer of fixed size. If the batch does not fit, it is
decompressed several times into a larger buffer, and each time (a turn) some of its records are
returned. If it does not fit into the larger buffer, it is replaced by one `UnreadableValue`
(`stream.processing.dead_letters`).
Importing `stream.kafka.client.adapter` installs this module in Sotto's consumers.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import cramjam
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from blake3 import blake3

from stream.kafka.client.batch_frames import (
    APPEND_TIME_FLAG,
    ATTRIBUTES,
    COUNT,
    HEADER_BYTES,
    MAX_TIMESTAMP,
    BrokenBatchError,
    ReadRecord,
    RecordPosition,
    parse_records,
)
from stream.kafka.client.client_patches import fetcher
from stream.processing.dead_letters import (
    DECOMPRESSED_PART_BYTES,
    MALFORMED_BATCH,
    MAX_BATCH_RECORDS,
    MAX_DECOMPRESSED_BYTES,
    MAX_HEADERS,
    MAX_RECORD_BYTES,
    OVERSIZED_BATCH,
    OVERSIZED_RECORD,
    TOO_MANY_HEADERS,
    TOO_MANY_RECORDS,
    Rejection,
    UnreadableBatch,
    UnreadableValue,
)

MAX_FETCH_BYTES: Final = DECOMPRESSED_PART_BYTES
"""A fetch of a partition ends after this many decompressed bytes; the rest is fetched again."""
MAX_NATIVE_BYTES: Final = 1024 * 1024
"""Largest batch that aiokafka parses, because it creates all headers before Sotto can count them."""
COLUMN_RECORDS: Final = 100_000
"""Maximum number of records of a batch that is read into numpy columns; larger ones are read record by record."""
TURN_RECORDS: Final = 50_000
"""Maximum number of records that a batch returns in one of several turns."""
DEAD_LETTER_BYTES: Final = 4096
"""Number of bytes of an unread batch, from its start, that its dead letter contains."""

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CODEC_MASK: Final = 0x07
_FORMAT_OFFSET: Final = 16
"""Offset of the byte with the batch format: 2 since Kafka 0.11; older formats are not read."""
_OLD_ATTRIBUTES_OFFSET: Final = 17
_SNAPPY_JAVA_MARK: Final = b"\x82SNAPPY\x00"
_SNAPPY_JAVA_HEADER_BYTES: Final = 16
_UNREADABLE: Final = (KafkaError, ValueError, IndexError, AssertionError, OverflowError, TypeError)
"""Errors of aiokafka for a batch with an unexpected layout."""

_read_int32 = struct.Struct(">i").unpack_from
_thread_buffers = threading.local()


class BoundedRecords:
    """A partition's fetched batches, with the interface of `MemoryRecords`."""

    searched_bytes: Callable[[], Collection[bytes] | None] | None = None
    """Returns byte strings; a batch that contains none of them is skipped. If it returns None, no batch is."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._records = MemoryRecords(data)
        self._place = 0
        self._bytes_left = MAX_FETCH_BYTES

    def size_in_bytes(self) -> int:
        """Returns the number of fetched bytes."""
        return len(self._data)

    def has_next(self) -> bool:
        """Returns whether a further batch may be read; remaining batches are fetched again later."""
        return self._bytes_left > 0 and self._records.has_next()

    def next_batch(self) -> Any:
        """Returns the next batch."""
        batch, start = self._records.next_batch(), self._place
        self._place = end = start + 12 + _read_int32(self._data, start + 8)[0]
        if batch is None or batch.is_control_batch:
            return batch
        return BoundedBatch(batch, self._view, slice(start, end), self)

    def count_decompressed(self, size: int) -> None:
        """Counts decompressed bytes against ``MAX_FETCH_BYTES``."""
        self._bytes_left -= size


class BoundedBatch:
    """A batch that yields its records, with an `UnreadableValue` in place of each unreadable part."""

    __slots__ = (
        "_batch",
        "_decompressed",
        "_digest",
        "_fetched",
        "_raw",
        "base_offset",
        "bounds",
        "data",
        "is_transactional",
        "next_offset",
        "producer_id",
    )
    is_control_batch = False

    def __init__(self, batch: Any, data: memoryview, bounds: slice, fetched: BoundedRecords) -> None:
        """Takes aiokafka's batch and its bounds in the fetched data."""
        self._batch = batch
        self._raw = data[bounds]
        self._decompressed: memoryview | None = None
        self._digest: str | None = None
        self.data = data
        self.bounds = bounds
        self._fetched = fetched
        self.producer_id = batch.producer_id
        self.is_transactional = batch.is_transactional
        self.next_offset = batch.next_offset
        self.base_offset = getattr(batch, "base_offset", batch.next_offset - 1)

    def validate_crc(self) -> bool:
        """Returns whether the checksum is correct."""
        return bool(self._batch.validate_crc())

    def __iter__(self) -> Iterator[Any]:
        if not self.is_current_format:
            return iter([self._build_unread(MALFORMED_BATCH)])
        return iter(()) if self.is_skipped else self._records_of_current_format()

    @property
    def is_current_format(self) -> bool:
        """True if the batch has the format that Kafka writes since 0.11."""
        return self._raw[_FORMAT_OFFSET] >= 2

    @property
    def is_skipped(self) -> bool:
        """True if the batch's bytes contain none of the byte strings that the consumer searches for."""
        searched = None if self._fetched.searched_bytes is None else self._fetched.searched_bytes()
        if searched is None or (found := self.decompress()) is None:
            return False
        buffer, bounds = found
        content: Any = buffer.obj
        return all(content.find(one, bounds.start, bounds.stop) < 0 for one in searched)

    @property
    def count(self) -> int:
        """The number of records that the batch header states."""
        return int(_read_int32(self._raw, COUNT.start)[0])

    @property
    def timestamp_type(self) -> int:
        """Kafka's timestamp type: 0 for the writer's time, 1 for the broker's time."""
        return 1 if self._raw[ATTRIBUTES] & APPEND_TIME_FLAG else 0

    def decompress(self) -> tuple[memoryview, slice] | None:
        """Returns a buffer and the slice with the uncompressed batch; None if it must be read record by record."""
        raw = self._raw
        if not self.is_current_format or not 0 < self.count <= COLUMN_RECORDS:
            return None
        if not raw[ATTRIBUTES] & _CODEC_MASK:
            return self.data, self.bounds
        return None if (plain := self._decompress_once()) is None else (plain, slice(0, len(plain)))

    def _decompress_once(self) -> memoryview | None:
        """Returns the uncompressed batch; None if it does not fit in the buffer or is invalid."""
        raw = self._raw
        if not raw[ATTRIBUTES] & _CODEC_MASK:
            return raw
        if self._decompressed is None:
            if (content := decompress(_CODEC_MASK & raw[ATTRIBUTES], raw[HEADER_BYTES:])) is None:
                return None
            self._fetched.count_decompressed(len(content))
            head = bytearray(raw[:HEADER_BYTES])
            head[ATTRIBUTES] &= ~_CODEC_MASK
            self._decompressed = memoryview(b"".join((head, content)))
        return self._decompressed

    def _records_of_current_format(self) -> Iterator[Any]:
        if self.count > MAX_BATCH_RECORDS:
            yield self._build_unread(TOO_MANY_RECORDS)
            return
        if (plain := self._decompress_once()) is None:
            yield from self._records_in_turns()
            return
        batch = self._batch if plain is self._raw else DefaultRecordBatch(plain)
        last_offset = self.base_offset - 1
        if len(plain) <= MAX_NATIVE_BYTES:
            try:
                for record in batch:
                    if not last_offset < record.offset < self.next_offset:
                        break  # Broken records can have such offsets, because aiokafka does not check them.
                    last_offset = record.offset
                    yield record if len(record.headers) <= MAX_HEADERS else _without_extra_headers(record)
                else:
                    return
            except _UNREADABLE:
                pass  # The parser below finds out which record is broken.
        try:
            for record, _ in parse_records(RecordPosition(), plain, bytes(plain[HEADER_BYTES:]), last_offset + 1):
                last_offset = record.offset
                yield record
        except BrokenBatchError:
            yield self._build_unread(MALFORMED_BATCH, first=last_offset + 1)

    def _records_in_turns(self) -> Iterator[Any]:
        """Yields records in turns; each turn decompresses the batch again, to use little memory."""
        place, last_offset, is_over = RecordPosition(), self.base_offset - 1, False
        while not is_over:
            if (plain := self._decompress_for_turn()) is None:
                yield self._build_unread(OVERSIZED_BATCH)
                return
            rest = parse_records(place, self._raw, plain, last_offset + 1, MAX_RECORD_BYTES)
            turn: list[ReadRecord] = []
            returned_bytes = 0
            try:
                while len(turn) < TURN_RECORDS and returned_bytes < DECOMPRESSED_PART_BYTES:
                    before = place.size
                    record, place = next(rest)
                    last_offset = record.offset
                    if isinstance(record.value, UnreadableValue) and record.value.rejection is OVERSIZED_RECORD:
                        turn.append(self._build_unread(OVERSIZED_RECORD, last_offset, last_offset))
                    else:
                        turn.append(record)
                        returned_bytes += place.size - before
            except StopIteration:
                is_over = True
            except BrokenBatchError:
                turn.append(self._build_unread(MALFORMED_BATCH, last_offset + 1))
                is_over = True
            del plain, rest
            self._fetched.count_decompressed(returned_bytes)
            yield from turn

    def _decompress_for_turn(self) -> memoryview | None:
        """Decompresses into a larger, temporary buffer; returns None if the batch does not fit there."""
        space = memoryview(bytearray(MAX_DECOMPRESSED_BYTES))
        return decompress(_CODEC_MASK & self._raw[ATTRIBUTES], self._raw[HEADER_BYTES:], space)

    def _build_unread(self, rejection: Rejection, first: int | None = None, last: int | None = None) -> ReadRecord:
        """Builds the record that replaces the records from offset ``first`` to ``last``."""
        raw = self._raw
        is_current = self.is_current_format
        codec = raw[ATTRIBUTES if is_current else _OLD_ATTRIBUTES_OFFSET] & _CODEC_MASK
        if self._digest is None:  # cached, because a batch may have hundreds of unread records
            self._digest = blake3(raw).hexdigest()
        batch = UnreadableBatch(
            first=self.base_offset if first is None else first,
            last=self.next_offset - 1 if last is None else last,
            codec=_CODECS[codec] if codec < len(_CODECS) else "unknown",
            length=len(raw),
            digest=self._digest,
        )
        is_stamped = is_current and bool(raw[ATTRIBUTES] & APPEND_TIME_FLAG)
        stamp = int.from_bytes(raw[MAX_TIMESTAMP], "big", signed=True) if is_stamped else 0
        unread = UnreadableValue(bytes(raw[:DEAD_LETTER_BYTES]), rejection, batch)
        return ReadRecord(batch.last, stamp, int(is_stamped), None, unread, [])


def decompress(codec: int, data: memoryview, output: memoryview | None = None) -> memoryview | None:
    """Decompresses into ``output``; returns None if the content does not fit or is invalid.

    Without ``output``, it uses one buffer of `DECOMPRESSED_PART_BYTES` per thread, even if the data states
    another size; the result is then valid until the next call in this thread.
    """
    if output is None:
        if (space := getattr(_thread_buffers, "buffer", None)) is None:
            space = _thread_buffers.buffer = bytearray(DECOMPRESSED_PART_BYTES)
        output = memoryview(space)
    try:
        match codec:
            case 1:
                size = cramjam.gzip.decompress_into(data, output)
            case 2:
                size = _decompress_snappy(data, output)
            case 3:
                size = cramjam.lz4.decompress_into(data, output)
            case 4:
                size = cramjam.zstd.decompress_into(data, output)
            case _:
                return None
    except (cramjam.DecompressionError, ValueError, OverflowError):
        return None
    return output[:size]


def _decompress_snappy(data: memoryview, output: memoryview) -> int:
    """Decompresses Snappy data: blocks with their lengths (Java's format), or one block."""
    if bytes(data[: len(_SNAPPY_JAVA_MARK)]) != _SNAPPY_JAVA_MARK:
        return int(cramjam.snappy.decompress_raw_into(data, output))
    size, position = 0, _SNAPPY_JAVA_HEADER_BYTES
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < length <= len(data) - position:
            raise ValueError("a Snappy block is longer than the remaining data")
        size += int(cramjam.snappy.decompress_raw_into(data[position : position + length], output[size:]))
        position += length
    return size


def _without_extra_headers(record: Any) -> ReadRecord:
    value = record.value
    stand_in = None if value is None else UnreadableValue(value, TOO_MANY_HEADERS)
    return ReadRecord(
        record.offset, record.timestamp, record.timestamp_type, record.key, stand_in, record.headers[:MAX_HEADERS]
    )


def install() -> None:
    """Makes Sotto's consumers read batches with ``BoundedRecords``; RuntimeError for another aiokafka."""
    if getattr(fetcher, "MemoryRecords", None) not in {MemoryRecords, BoundedRecords}:
        raise RuntimeError(
            "aiokafka.consumer.fetcher.MemoryRecords is not the class that Sotto replaces; install the required version"
        )
    fetcher.MemoryRecords = BoundedRecords
