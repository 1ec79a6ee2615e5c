"""Operations on columns: grouping, keyed hashing, packing, and Kafka's format of records."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import Buffer, Column, Spans, address, addresses, spans_of


def group_rows(numbers: Column) -> tuple[Column, Column, Column]:
    """Group rows by their non-negative numbers.

    Return the distinct numbers in ascending order, the index of each row's group, and the rows in a stable order by
    group.
    """
    count = len(numbers)
    if (library := compiled_kernel()) is None:
        order = np.argsort(numbers, kind="stable")
        begins = np.ones(count, dtype=np.bool_)
        np.not_equal(numbers[order[1:]], numbers[order[:-1]], out=begins[1:])
        group_of = np.empty(count, dtype=np.int64)
        group_of[order] = np.cumsum(begins) - 1
        return numbers[order[begins]], group_of, order
    numbers = np.ascontiguousarray(numbers, dtype=np.int64)
    order, spare, distinct, group_of = (np.empty(count, dtype=np.int64) for _ in range(4))
    found = library.sotto_group(count, *addresses(numbers, order, spare, distinct, group_of))
    return distinct[:found], group_of, order


Words = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 8


def keyed_words(keys: Spans, prefix: bytes, numbers: Column | None, texts: Spans, count: int) -> Words:
    """Return ``count`` 64-bit words of keyed BLAKE3 output for each text.

    The message of a row is the prefix, the row's number in 8 bytes (if there are numbers) and the row's text. Keys have
    32 bytes.
    """
    width = count * _WORD_BYTES
    if (library := compiled_kernel()) is None:
        more = repeat(b"") if numbers is None else (number.to_bytes(8, "big") for number in numbers.tolist())
        outputs = [
            blake3(prefix + number + text, key=key).digest(width)
            for number, text, key in zip(more, texts, keys, strict=False)
        ]
        return np.frombuffer(b"".join(outputs), dtype="<u8").reshape(len(texts), count)
    rows = len(texts)
    words, done = np.empty((rows, count), dtype="<u8"), 0
    while done < rows:
        done += library.sotto_derive(
            rows - done,
            *addresses(keys.data, keys.at[done:]),
            prefix,
            len(prefix),
            None if numbers is None else address(numbers[done:]),
            *addresses(texts.data, texts.at[done:], texts.size[done:]),
            width,
            address(words[done:]),
        )
        if done < rows:
            # The kernel stops before an empty or long message; this row is hashed here.
            output = keyed_output(keys, prefix, numbers, texts, done, width)
            words[done] = np.frombuffer(output, dtype="<u8")
            done += 1
    return words


def keyed_output(keys: Spans, prefix: bytes, numbers: Column | None, texts: Spans, row: int, size: int) -> bytes:
    """Return ``size`` bytes of keyed BLAKE3 output for the message of one row."""
    number = b"" if numbers is None else int(numbers[row]).to_bytes(8, "big")
    return blake3(prefix + number + texts[row], key=keys[row]).digest(size)


IndexedTexts = tuple[Spans, Column]
"""Texts, and the index of each row's text."""
Part = bytes | Spans | IndexedTexts | Column
"""A part of all rows: the same bytes for each row, a text or an indexed text of each row, or integers."""


class _TextPart(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("which", ctypes.c_void_p),
        ("length", ctypes.c_int64),
    )


def pack_rows(count: int, parts: Sequence[Part]) -> Spans:
    """Concatenate the parts of each of ``count`` rows; integers become decimal digits."""
    if (library := compiled_kernel()) is None:
        return spans_of([b"".join(row) for row in zip(*map(_row_texts, parts, [count] * len(parts)), strict=True)])
    parts = _merge_constants(parts)
    part_structs = (_TextPart * len(parts))(*[_TextPart(*_part_layout(part)) for part in parts])
    out = np.empty(library.sotto_room(count, part_structs, len(parts)), dtype=np.uint8)
    at, size = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
    written = library.sotto_pack(count, part_structs, len(parts), address(out), address(at), address(size))
    return Spans(out[:written], at, size)


def _merge_constants(parts: Sequence[Part]) -> list[Part]:
    """Merge neighboring constants and drop empty ones."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and found and isinstance(before := found[-1], bytes):
            found[-1] = before + part
        elif not isinstance(part, bytes) or part:
            found.append(part)
    return found


def _part_layout(part: Part) -> tuple[Any, ...]:
    if isinstance(part, bytes):
        return (part, None, None, None, len(part))
    if isinstance(part, np.ndarray):
        return (None, address(part), None, None, 0)
    if isinstance(part, tuple):
        texts, which = part
        return (address(texts.data), address(texts.at), address(texts.size), address(which), 0)
    return (address(part.data), address(part.at), address(part.size), None, 0)


def _row_texts(part: Part, count: int) -> Iterator[bytes]:
    if isinstance(part, bytes):
        return iter([part] * count)
    if isinstance(part, np.ndarray):
        return (b"%d" % number for number in part.tolist())
    if not isinstance(part, tuple):
        return iter(part)
    texts, indexes = part
    used, which = np.unique(indexes, return_inverse=True)
    listed = list(texts.gather(used))
    return (listed[index] for index in which.tolist())


def crc32c(data: memoryview) -> int | None:
    """Return the CRC-32C of bytes; None without the kernel, or if the processor has no instruction for it."""
    if (library := compiled_kernel()) is None:
        return None
    bytes_read: Buffer = np.frombuffer(data, dtype=np.uint8)
    checksum: int = library.sotto_crc32c(address(bytes_read), len(bytes_read))
    return None if checksum < 0 else checksum


class RecordReader:
    """Reads the Kafka records in one buffer as columns; ``rows`` is the number of records that were read."""

    def __init__(self, data: memoryview, max_records: int) -> None:
        self.rows = 0
        self._data: Buffer = np.frombuffer(data, dtype=np.uint8)
        self._offset, self._time, self._key_at, self._value_at = np.empty((4, max_records), dtype=np.int64)
        self._key_size, self._value_size = np.empty((2, max_records), dtype=np.int32)
        columns = (self._offset, self._time, self._key_at, self._key_size, self._value_at, self._value_size)
        self._pointers = (address(self._data), *(address(column) for column in columns))

    def read(
        self, start: int, stop: int, *, count: int, last_delta: int, base: int, first_time: int, appended: int
    ) -> bool:
        """Read the records of a batch between two positions; return False if the kernel does not support their format.

        ``base`` is the first offset of the batch, and ``last_delta`` the difference of the last offset from it.
        ``appended`` is the time at which the log appended the batch; it is negative if each record has its own time.
        """
        data, *columns = self._pointers
        found = compiled_kernel().sotto_unframe(
            data, start, stop, count, last_delta, base, first_time, appended, self.rows, *columns
        )
        if found < 0:
            return False
        self.rows += found
        return True

    def columns(self) -> tuple[Column, Column, Spans, Spans]:
        """Return offsets, times, keys and values of all records; a text of size -1 is null."""
        rows = slice(self.rows)
        return (
            self._offset[rows],
            self._time[rows],
            Spans(self._data, self._key_at[rows], self._key_size[rows]),
            Spans(self._data, self._value_at[rows], self._value_size[rows]),
        )


class RecordWriter:
    """Writes the Kafka records of one batch.

    A batch has at most ``max_records`` records in ``room`` bytes; the first record always fits.
    """

    def __init__(self, room: int, max_records: int, largest: int, header: int) -> None:
        """Set the limits; ``largest`` is the size of the largest record, ``header`` the size of the batch's header."""
        self.count = 0
        self._header = header
        self._room = room
        self._max_records = max_records
        self._written = ctypes.c_int64(0)
        self._batch: Buffer = np.empty(header + room + largest, dtype=np.uint8)
        self._records = self._batch[header:]

    def write(self, first: int, keys: Spans, values: Spans) -> int:
        """Write messages from index ``first`` on, until one does not fit; return the number of written messages."""
        written: int = compiled_kernel().sotto_frame(
            first,
            len(values),
            self.count,
            self._max_records,
            *addresses(keys.data, keys.at, keys.size, values.data, values.at, values.size, self._records),
            self._room,
            ctypes.addressof(self._written),
        )
        self.count += written
        return written

    def append(self, record: bytes) -> bool:
        """Write an encoded record, which has the number ``count``; return False if it does not fit."""
        begin = self._written.value
        end = begin + len(record)
        if self.count and (self.count == self._max_records or end > self._room):
            return False
        self._records[begin:end] = np.frombuffer(record, dtype=np.uint8)
        self._written.value = end
        self.count += 1
        return True

    def batch(self) -> memoryview:
        """Return the batch: space for its header, and the written records."""
        return self._batch[: self._header + self._written.value].data
