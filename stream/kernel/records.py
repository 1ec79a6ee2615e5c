"""Kafka's records, written and read by the thousand, where the kernel is compiled."""

from __future__ import annotations

import ctypes

import numpy as np

from stream.kernel.columns import Buffer, Column, Sizes, Spans, address
from stream.kernel.library import compiled


class RecordReader:
    """Rows for records of one buffer; ``rows`` says how many have been read."""

    def __init__(self, data: memoryview, room: int) -> None:
        self.rows = 0
        self._data: Buffer = np.frombuffer(data, dtype=np.uint8)
        self._offset: Column = np.empty(room, dtype=np.int64)
        self._time: Column = np.empty(room, dtype=np.int64)
        self._key_at: Column = np.empty(room, dtype=np.int64)
        self._key_size: Sizes = np.empty(room, dtype=np.int32)
        self._at: Column = np.empty(room, dtype=np.int64)
        self._size: Sizes = np.empty(room, dtype=np.int32)
        columns = (self._offset, self._time, self._key_at, self._key_size, self._at, self._size)
        self._pointers = (address(self._data), *(address(column) for column in columns))

    def read(
        self, start: int, stop: int, *, count: int, last_delta: int, base: int, first_time: int, appended: int
    ) -> bool:
        """Read a batch's records, which lie between two places; False if they are none that can be read by the thousand.

        ``base`` is the batch's first offset. The records' time is ``appended``, unless that is below 0.
        """
        data, *columns = self._pointers
        found = compiled().sotto_unframe(
            data, start, stop, count, last_delta, base, first_time, appended, self.rows, *columns
        )
        if found < 0:
            return False
        self.rows += found
        return True

    def columns(self) -> tuple[Column, Column, Spans, Spans]:
        """Offsets, times, keys and values of all that were read; a size of -1 stands for none."""
        rows = slice(self.rows)
        return (
            self._offset[rows],
            self._time[rows],
            Spans(self._data, self._key_at[rows], self._key_size[rows]),
            Spans(self._data, self._at[rows], self._size[rows]),
        )


class RecordWriter:
    """The records of one batch: at most ``room`` bytes, unless the first is longer, and at most ``most`` records."""

    def __init__(self, room: int, most: int, largest: int) -> None:
        """Take the size of the ``largest`` record as well."""
        self.count = 0
        self._room = room
        self._most = most
        self._written = ctypes.c_int64(0)
        self._out: Buffer = np.empty(room + largest, dtype=np.uint8)

    def write(self, first: int, keys: Spans, values: Spans) -> int:
        """Write messages from one on, and give how many had room."""
        written: int = compiled().sotto_frame(
            first,
            len(values),
            self.count,
            self._most,
            address(keys.data),
            address(keys.at),
            address(keys.size),
            address(values.data),
            address(values.at),
            address(values.size),
            address(self._out),
            self._room,
            ctypes.addressof(self._written),
        )
        self.count += written
        return written

    def append(self, record: bytes) -> bool:
        """Write a record that is laid out already, as the one with number ``count``; False if it had no room."""
        begin = self._written.value
        end = begin + len(record)
        if self.count and (self.count == self._most or end > self._room):
            return False
        self._out[begin:end] = np.frombuffer(record, dtype=np.uint8)
        self._written.value = end
        self.count += 1
        return True

    def records(self) -> memoryview:
        """What was written."""
        return self._out[: self._written.value].data
