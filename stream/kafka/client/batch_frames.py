"""Parses the records of a batch in Python if aiokafka cannot or must not parse them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from stream.processing.dead_letters import (
    INVALID_HEADER_NAME,
    MAX_HEADERS,
    OVERSIZED_RECORD,
    TOO_MANY_HEADERS,
    Rejection,
    UnreadableValue,
)

HEADER_BYTES: Final = 61
CHECKSUM: Final = slice(17, 21)
CHECKED_FROM: Final = 21
"""Offset of the first byte that the checksum covers."""
ATTRIBUTES: Final = 22
"""Offset of the byte that has the compression codec and the timestamp type."""
LAST_DELTA: Final = slice(23, 27)
FIRST_TIMESTAMP: Final = slice(27, 35)
MAX_TIMESTAMP: Final = slice(35, 43)
COUNT: Final = slice(57, 61)
"""The bytes with the number of records."""
APPEND_TIME_FLAG: Final = 0x08
_LONGEST_VARINT: Final = 10

Bytes = bytes | memoryview


class BrokenBatchError(ValueError):
    """The next bytes of a batch are not a valid record."""


class ReadRecord(NamedTuple):
    """A parsed record with the attributes of aiokafka's records."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class RecordPosition(NamedTuple):
    """A position between two records of a batch: the number of records and bytes before it."""

    records: int = 0
    size: int = 0


def parse_records(
    start: RecordPosition, batch: memoryview, data: Bytes, next_offset: int, max_bytes: int = sys.maxsize
) -> Iterator[tuple[ReadRecord, RecordPosition]]:
    """Parses the uncompressed ``data`` of a batch from ``start`` on; yields each record and its end position.

    Records before offset ``next_offset`` are skipped. The value of a record is an `UnreadableValue` if the record
    has more than ``max_bytes`` bytes or `MAX_HEADERS` headers, or if a header name is not UTF-8; only the first
    `MAX_HEADERS` headers are kept. BrokenBatchError if the next bytes are not a valid record.
    """
    base = int.from_bytes(batch[:8], "big")
    first_timestamp = int.from_bytes(batch[FIRST_TIMESTAMP], "big", signed=True)
    append_time = int.from_bytes(batch[MAX_TIMESTAMP], "big") if batch[ATTRIBUTES] & APPEND_TIME_FLAG else None
    last = int.from_bytes(batch[LAST_DELTA], "big")
    place = start.size
    for number in range(start.records, int.from_bytes(batch[COUNT], "big", signed=True)):
        length, begin = _read_varint(data, place, len(data))
        place = begin + length
        if length <= 0 or place > len(data):
            raise BrokenBatchError
        timestamp, position = _read_varint(data, begin + 1, place)
        delta, position = _read_varint(data, position, place)
        if not 0 <= delta <= last:
            raise BrokenBatchError
        if base + delta < next_offset:
            continue
        key: bytes | None = None
        headers: list[tuple[str, bytes | None]] = []
        if length > max_bytes:
            value: bytes | None = UnreadableValue(b"", OVERSIZED_RECORD)
        else:
            key, position = _read_bytes(data, position, place)
            value, position = _read_bytes(data, position, place)
            headers, unread = _read_headers(data, position, place)
            value = value if unread is None or value is None else UnreadableValue(value, unread)
        stamp = first_timestamp + timestamp if append_time is None else append_time
        read = ReadRecord(base + delta, stamp, 0 if append_time is None else 1, key, value, headers)
        yield read, RecordPosition(number + 1, place)


def _read_headers(data: Bytes, position: int, end: int) -> tuple[list[tuple[str, bytes | None]], Rejection | None]:
    count, position = _read_varint(data, position, end)
    if count < 0:
        raise BrokenBatchError
    headers: list[tuple[str, bytes | None]] = []
    unread = None
    for _ in range(min(count, MAX_HEADERS)):
        name, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        if name is None:
            raise BrokenBatchError
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            unread = INVALID_HEADER_NAME
            headers.append((name.decode(errors="backslashreplace"), value))
    if count > MAX_HEADERS:
        unread = TOO_MANY_HEADERS
    elif position != end:
        raise BrokenBatchError
    return headers, unread


def _read_bytes(data: Bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position, end)
    if length < 0:
        return None, position
    if length > end - position:
        raise BrokenBatchError
    return bytes(data[position : position + length]), position + length


def _read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Reads a zigzag varint; returns the number and the position after it."""
    number = 0
    for shift in range(_LONGEST_VARINT):
        if position >= end:
            raise BrokenBatchError
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), position
    raise BrokenBatchError
