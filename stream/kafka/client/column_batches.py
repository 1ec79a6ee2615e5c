"""Reads fetched records into columns (arrays) without a Python object for each, and encodes batches of columns."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

import numpy as np
from aiokafka import ConsumerRecord
from aiokafka.errors import CorruptRecordException
from aiokafka.record.util import calc_crc32c, encode_varint

from stream.kafka.client.batch_frames import (
    APPEND_TIME_FLAG,
    ATTRIBUTES,
    CHECKED_FROM,
    CHECKSUM,
    FIRST_TIMESTAMP,
    HEADER_BYTES,
    LAST_DELTA,
    MAX_TIMESTAMP,
)
from stream.kafka.client.batch_reader import COLUMN_RECORDS, BoundedBatch
from stream.kafka.client.client_patches import fetcher
from stream.kernel import compiled_kernel
from stream.kernel.array_operations import RecordReader, RecordWriter, crc32c
from stream.kernel.byte_columns import Spans, spans_of
from stream.processing.protocol import Message, Messages
from stream.processing.record_columns import MessageColumns, RecordColumns

_PartitionRecords: Final[Any] = fetcher.PartitionRecords
_FetchResult: Final[Any] = fetcher.FetchResult
_MIN_KERNEL_BYTES: Final = 4096
"""Fewest bytes for which a call of Sotto's compiled kernel is faster than aiokafka's CRC in Python."""


class ColumnRecords(_PartitionRecords):  # type: ignore[misc]  # aiokafka is not typed
    """The fetched records of a partition, which are returned in columns if possible."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # aiokafka's own iterator would keep the fetched data in memory until a garbage collection.
        self._records_iterator = iter(())
        self._batches = self._batches_and_readability()
        self._pending_batch: Any = None
        self._read_records: RecordColumns | Iterator[ConsumerRecord] | None = None
        self._offset_after_read_records = self.next_fetch_offset
        """The next offset to fetch after ``_read_records``, the records that are read but not yet taken."""

    def take(self, max_records: int) -> list[ConsumerRecord] | RecordColumns:
        """Returns the next records, at most ``max_records``: all in columns, or all as aiokafka's records."""
        found: list[ConsumerRecord] = []
        while len(found) < max_records and self._read_if_empty(max_records):
            if isinstance(rest := self._read_records, RecordColumns):
                if found:
                    break
                taken = rest[:max_records]
                self.next_fetch_offset = int(taken.offsets[-1]) + 1
                self._read_records = rest[max_records:]
                if len(rest) <= max_records:
                    self._discard_read_records()
                return taken
            room = max_records - len(found)
            records = list(islice(rest or (), room))
            if records:
                self.next_fetch_offset = records[-1].offset + 1
            if len(records) < room:
                self._discard_read_records()
            found += records
        return found

    @property
    def is_empty(self) -> bool:
        """True if all records have been taken."""
        if self._read_records is None and self._pending_batch is None:
            self._pending_batch = self._next_readable_batch()
        return self._read_records is None and self._pending_batch is None

    def _discard_read_records(self) -> None:
        self._read_records, self.next_fetch_offset = None, self._offset_after_read_records

    def _read_if_empty(self, max_records: int) -> bool:
        if self._read_records is None and (batch := self._next_readable_batch()) is not None:
            # A batch keeps its last offset even if compaction has removed the last record.
            self._offset_after_read_records = batch.next_offset
            self._read_records = self._read_columns(batch, max_records) or self._consumer_records(batch)
        return self._read_records is not None

    def _next_readable_batch(self) -> Any:
        if self._pending_batch is not None:
            batch, self._pending_batch = self._pending_batch, None
            return batch
        for batch, is_read in self._batches:
            if is_read:
                return batch
            self._offset_after_read_records = batch.next_offset
            if self._read_records is None:
                self.next_fetch_offset = batch.next_offset
        return None

    def _batches_and_readability(self) -> Iterator[tuple[Any, bool]]:
        """Yields each batch, and True if its records are read; aborted, skipped and control batches are not read."""
        while self._records.has_next():
            batch = self._records.next_batch()
            if self._check_crcs and not _is_intact(batch):
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            aborted = False
            if self._isolation_level == fetcher.READ_COMMITTED and batch.producer_id is not None:
                self._consume_aborted_up_to(batch.base_offset)
                if batch.is_control_batch and self._contains_abort_marker(batch):
                    self._aborted_producers.discard(batch.producer_id)
                aborted = batch.is_transactional and batch.producer_id in self._aborted_producers
            yield batch, not (aborted or batch.is_control_batch or batch.is_skipped)

    def _consumer_records(self, batch: Any) -> Iterator[ConsumerRecord]:
        next_offset = self.next_fetch_offset
        for record in batch:
            if record.offset >= next_offset:
                next_offset = record.offset + 1
                yield self._consumer_record(self._tp, record)

    def _read_columns(self, first: Any, max_records: int) -> RecordColumns | None:
        """Reads a batch and the next ones in its buffer into columns; None if that is impossible."""
        if not isinstance(first, BoundedBatch) or (found := first.decompress()) is None:
            return None
        buffer, bounds = found
        reader = RecordReader(buffer, max(max_records, first.count))
        if not _read_batch(reader, first, buffer, bounds):
            return None
        # Not None, so that `_next_readable_batch` does not move next_fetch_offset past this untaken batch.
        self._read_records = iter(())
        while reader.rows < max_records and (batch := self._next_readable_batch()) is not None:
            fits = (
                isinstance(batch, BoundedBatch)
                and batch.data is buffer
                and reader.rows + batch.count <= max_records
                and batch.timestamp_type == first.timestamp_type
            )
            if (
                not fits
                or (found := batch.decompress()) is None
                or found[0] is not buffer
                or not _read_batch(reader, batch, buffer, found[1])
            ):
                self._pending_batch = batch
                break
            self._offset_after_read_records = batch.next_offset
        offsets, times, keys, values = reader.columns()
        records = RecordColumns(
            self._tp.topic,
            self._tp.partition,
            offsets=offsets,
            timestamps=times,
            keys=keys,
            values=values,
            timestamp_type=first.timestamp_type,
        )
        return records[int(np.searchsorted(offsets, self.next_fetch_offset)) :]


def checksum_of(data: memoryview) -> int:
    """Returns the CRC-32C of bytes; the kernel computes it if this is faster, otherwise aiokafka."""
    by_instruction = None if len(data) < _MIN_KERNEL_BYTES else crc32c(data)
    return int(calc_crc32c(data)) if by_instruction is None else by_instruction


def _is_intact(batch: Any) -> bool:
    if not isinstance(batch, BoundedBatch) or not batch.is_current_format:
        return bool(batch.validate_crc())
    raw = batch.data[batch.bounds]
    return int.from_bytes(raw[CHECKSUM], "big") == checksum_of(raw[CHECKED_FROM:])


def _read_batch(reader: RecordReader, batch: BoundedBatch, buffer: memoryview, bounds: slice) -> bool:
    head = buffer[bounds.start : bounds.start + HEADER_BYTES]
    appended = int.from_bytes(head[MAX_TIMESTAMP], "big", signed=True)
    return reader.read(
        bounds.start + HEADER_BYTES,
        bounds.stop,
        count=batch.count,
        last_delta=int.from_bytes(head[LAST_DELTA], "big", signed=True),
        base=batch.base_offset,
        first_time=int.from_bytes(head[FIRST_TIMESTAMP], "big", signed=True),
        appended=appended if head[ATTRIBUTES] & APPEND_TIME_FLAG else -1,
    )


class ColumnResult(_FetchResult):  # type: ignore[misc]  # aiokafka is not typed
    """The result of a fetch from one partition, which returns columns."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> Sequence[Any]:
        """Returns up to ``max_records`` of the next records."""
        records = self._partition_records
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        taken: Sequence[Any] = records.take(sys.maxsize if max_records is None else max_records)
        self._update_position()
        if records.is_empty:
            self._update_position()
            self._partition_records = None
        return taken


def install() -> None:
    """Makes Sotto's consumers return columns if the kernel is compiled; RuntimeError for another aiokafka."""
    if compiled_kernel() is None:
        return
    if fetcher.PartitionRecords not in {_PartitionRecords, ColumnRecords}:
        raise RuntimeError(
            "aiokafka.consumer.fetcher.PartitionRecords is not the class that Sotto replaces: another library has patched it, or "
            "aiokafka has another version; install the required version"
        )
    fetcher.PartitionRecords, fetcher.FetchResult = ColumnRecords, ColumnResult


_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END: Final = 12
_CHECKSUM: Final = struct.Struct(">I")
_TRANSACTIONAL: Final = 0x10
_OVERHEAD: Final = 32
"""Maximum number of bytes of a record in addition to its key and value."""

_COPIED_AT_ONCE: Final = 4_000
"""Maximum number of messages that are copied at once: a step may write tens of thousands."""

_Part = tuple[Spans, Spans] | list[Message]


class FramedBatch:
    """An encoded batch, with the methods of aiokafka's ``BatchBuilder`` that a producer calls."""

    def __init__(self, writer: RecordWriter, timestamp: int) -> None:
        self._batch = writer.batch()
        self._count = writer.count
        self._timestamp = timestamp
        self._producer = (-1, -1, 0)
        self._is_built = False

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
    parts = [_split_columns(part) for part in group]
    sizes = [_bound_sizes(part) for part in parts]
    room = min(batch_bytes - _HEADER.size, sum(total for total, _ in sizes))
    largest = max(longest for _, longest in sizes)
    writer = RecordWriter(room, COLUMN_RECORDS - 1, largest, _HEADER.size)
    for part in parts:
        first, count = 0, len(part) if isinstance(part, list) else len(part[1])
        while (first := first + _write_part(writer, part, first)) < count:
            yield FramedBatch(writer, timestamp)
            writer = RecordWriter(room, COLUMN_RECORDS - 1, largest, _HEADER.size)
    yield FramedBatch(writer, timestamp)


def _split_columns(part: Collection[Message]) -> _Part:
    if isinstance(part, MessageColumns):
        return part.keys, part.values
    if any(map(_has_headers, part)):
        return list(part)
    return _nullable_spans([key for key, _, _ in part]), _nullable_spans([value for _, value, _ in part])


def _bound_sizes(part: _Part) -> tuple[int, int]:
    """Return upper bounds for the bytes of all records and of the longest one."""
    if isinstance(part, list):
        sizes = [len(_encode_record(COLUMN_RECORDS, message)) for message in part]
        return sum(sizes), max(sizes)
    keys, values = part
    total = int(keys.size.sum() + values.size.sum()) + (_OVERHEAD + 2) * len(keys)
    return total, _OVERHEAD + int(keys.size.max(initial=0)) + int(values.size.max(initial=0))


def _write_part(writer: RecordWriter, part: _Part, first: int) -> int:
    """Write the messages after the first ``first`` ones; return how many of them fit in the batch."""
    if not isinstance(part, list):
        return writer.write(first, *part)
    for count, message in enumerate(part[first:]):
        if not writer.append(_encode_record(writer.count, message)):
            return count
    return len(part) - first


def _encode_record(delta: int, message: Message) -> bytes:
    """Encode a record with the timestamp of its batch."""
    key, value, headers = message
    body = bytearray(b"\0\0")
    encode_varint(delta, body.append)
    _append_text(body, key)
    _append_text(body, value)
    encode_varint(len(headers), body.append)
    for name, text in headers:
        _append_text(body, name.encode())
        _append_text(body, text)
    whole = bytearray()
    encode_varint(len(body), whole.append)
    return bytes(whole + body)


def _append_text(body: bytearray, text: bytes | None) -> None:
    encode_varint(-1 if text is None else len(text), body.append)
    body += text or b""


def _nullable_spans(texts: list[bytes | None]) -> Spans:
    """Return spans of texts; a missing text has size -1."""
    spans = spans_of([text or b"" for text in texts])
    for place, text in enumerate(texts):
        if text is None:
            spans.size[place] = -1
    return spans
