"""How records lie in a batch, for those batches that the client library must not or cannot read: one pass in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from stream.processors.rejections import Rejection
from stream.processors.unread import BAD_NAME, MAX_HEADERS, TOO_MANY_HEADERS, Unread

HEADER_BYTES: Final = 61
"""What stands in front of a batch's records."""
ATTRIBUTES: Final = 22
"""Place of the byte that names the codec."""
LAST_DELTA: Final = slice(23, 27)
FIRST_TIMESTAMP: Final = slice(27, 35)
MAX_TIMESTAMP: Final = slice(35, 43)
COUNT: Final = slice(57, 61)
"""Place of the number of records."""
APPEND_TIME: Final = 0x08
_LONGEST_VARINT: Final = 10


class BrokenBatchError(ValueError):
    """What follows in a batch is not laid out as records are."""


class Read(NamedTuple):
    """A record as the client library's own have it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


class LegacyValue:
    """Where the value of a message of format 0 or 1 is."""

    attributes: Final = 17

    @staticmethod
    def of(raw: memoryview) -> memoryview:
        """The value's bytes."""
        start = 18 if raw[16] == 0 else 26
        for _ in range(2):
            length = int.from_bytes(raw[start : start + 4], "big", signed=True)
            found = raw[start + 4 : start + 4 + max(length, 0)]
            start += 4 + max(length, 0)
        return found


LEGACY_VALUE: Final = LegacyValue()


def parse(batch: memoryview, following: int) -> Iterator[Read]:
    """The records from an offset on of a batch that is not compressed; `Unread` is the value of those to be refused.

    These are records with a header name that is not UTF-8, or with more than `MAX_HEADERS` headers, of which they keep the first.

    Raises:
        BrokenBatchError: what comes next is no record.
    """
    data = bytes(batch[HEADER_BYTES:])
    base = int.from_bytes(batch[:8], "big")
    first_timestamp = int.from_bytes(batch[FIRST_TIMESTAMP], "big", signed=True)
    appended = int.from_bytes(batch[MAX_TIMESTAMP], "big") if batch[ATTRIBUTES] & APPEND_TIME else None
    last = int.from_bytes(batch[LAST_DELTA], "big")
    place = 0
    for _ in range(int.from_bytes(batch[COUNT], "big", signed=True)):
        length, start = _varint(data, place, len(data))
        place = start + length
        if length <= 0 or place > len(data):
            raise BrokenBatchError
        timestamp, position = _varint(data, start + 1, place)
        delta, position = _varint(data, position, place)
        if not 0 <= delta <= last:
            raise BrokenBatchError
        if base + delta < following:
            continue
        key, position = _sized(data, position, place)
        value, position = _sized(data, position, place)
        headers, unread = _headers(data, position, place)
        yield Read(
            base + delta,
            first_timestamp + timestamp if appended is None else appended,
            0 if appended is None else 1,
            key,
            value if unread is None or value is None else Unread(value, unread),
            headers,
        )


def _headers(data: bytes, position: int, end: int) -> tuple[list[tuple[str, bytes | None]], Rejection | None]:
    count, position = _varint(data, position, end)
    if count < 0:
        raise BrokenBatchError
    headers: list[tuple[str, bytes | None]] = []
    unread = None
    for _ in range(min(count, MAX_HEADERS)):
        name, position = _sized(data, position, end)
        value, position = _sized(data, position, end)
        if name is None:
            raise BrokenBatchError
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            unread = BAD_NAME
            headers.append((name.decode(errors="backslashreplace"), value))
    if count > MAX_HEADERS:
        unread = TOO_MANY_HEADERS
    elif position != end:
        raise BrokenBatchError
    return headers, unread


def _sized(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position, end)
    if length < 0:
        return None, position
    if length > end - position:
        raise BrokenBatchError
    return data[position : position + length], position + length


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A number in zigzag, seven bits a byte, and where it ends."""
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
