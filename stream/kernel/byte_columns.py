"""Columns of byte strings in one buffer."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from stream.kernel import compiled_kernel

Column = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]
Buffer = npt.NDArray[np.uint8]

_INITIAL_STRINGS: Final = 64
_INITIAL_BYTES: Final = 1024
_HUGE_PAGE_MIN_BYTES: Final = 4 << 20
_OBJECT_HEADER_BYTES: Final = object.__basicsize__
"""Size of CPython's object header."""


def _documented_address(array: npt.NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _raw_address(array: npt.NDArray[Any]) -> int:
    return _word_at(id(array) + _OBJECT_HEADER_BYTES).value


_word_at: Final = ctypes.c_size_t.from_address
_sample_arrays: Final = [
    np.arange(9, dtype=kind)[start:] for kind in (np.uint8, np.int32, np.int64) for start in (0, 2)
]

# The first field of an array object is the address of its entries (NumPy's C API: PyArrayObject_fields). Reading this
# word takes a fifth of the time of the documented way, and a small batch needs a hundred addresses. If the layout
# differs, the documented way is used.
address: Final[Callable[[npt.NDArray[Any]], int]] = (
    _raw_address
    if sys.implementation.name == "cpython"
    and all(_raw_address(sample) == _documented_address(sample) for sample in _sample_arrays)
    else _documented_address
)
"""Return the address of an array's first entry."""


def addresses(*arrays: npt.NDArray[Any]) -> Iterator[int]:
    """Yield the addresses of several arrays."""
    return map(address, arrays)


class Spans(Sequence[bytes]):
    """Byte strings in one buffer ``data``; ``at`` has their positions, and ``size`` their sizes."""

    __slots__ = ("at", "data", "size")

    def __init__(self, data: Buffer, at: Column, size: Sizes) -> None:
        self.data = data
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Spans: ...
    def __getitem__(self, index: int | slice) -> bytes | Spans:
        if isinstance(index, slice):
            return self.gather(index)
        start = int(self.at[index])
        return self.data[start : start + max(int(self.size[index]), 0)].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        # Copy the whole buffer only if the strings fill much of it.
        data = self.data.tobytes() if 4 * self.size.sum() > len(self.data) else self.data.data
        for start, size in zip(self.at.tolist(), self.size.tolist(), strict=True):
            yield bytes(data[start : start + max(size, 0)])

    def gather(self, indexes: npt.NDArray[Any] | slice) -> Spans:
        """Return the strings at these indexes."""
        return Spans(self.data, self.at[indexes], self.size[indexes])

    def joined_bytes(self) -> bytes:
        """Concatenate the strings without the bytes between them."""
        if len(self) and np.array_equal(self.at[1:], self.at[:-1] + self.size[:-1]):
            return self.data[self.at[0] : self.at[-1] + self.size[-1]].tobytes()
        return b"".join(self)


def spans_of(texts: Iterable[bytes]) -> Spans:
    """Copy byte strings into one buffer."""
    listed = texts if isinstance(texts, list) else list(texts)
    size = np.fromiter(map(len, listed), dtype=np.int32, count=len(listed))
    at = np.zeros(len(listed), dtype=np.int64)
    np.cumsum(size[:-1], out=at[1:])
    return Spans(np.frombuffer(b"".join(listed), dtype=np.uint8), at, size)


def rows_of(array: npt.NDArray[np.uint8], rows: npt.NDArray[Any]) -> Spans:
    """Return the given rows of an array of bytes as byte strings."""
    width = array.shape[1]
    at: Column = rows.astype(np.int64) * width
    return Spans(array.reshape(-1), at, np.full(len(rows), width, dtype=np.int32))


def concatenate_spans(parts: Sequence[Spans]) -> Spans:
    """Concatenate several columns of byte strings."""
    if all(part.data is parts[0].data for part in parts):
        data, shifts = parts[0].data, [0] * len(parts)
    else:
        data = np.concatenate([part.data for part in parts])
        shifts = [0, *np.cumsum([len(part.data) for part in parts])[:-1].tolist()]
    at = np.concatenate([part.at + shift for part, shift in zip(parts, shifts, strict=True)])
    return Spans(data, at, np.concatenate([part.size for part in parts]))


class ByteStrings:
    """Byte strings that are appended in batches; each is found by its number."""

    def __init__(self) -> None:
        self._count = 0
        self._end = 0
        self._data: Buffer = np.zeros(_INITIAL_BYTES, dtype=np.uint8)
        self._at: Column = np.zeros(_INITIAL_STRINGS, dtype=np.int64)
        self._size: Sizes = np.zeros(_INITIAL_STRINGS, dtype=np.int32)

    def __len__(self) -> int:
        return self._count

    def extend(self, texts: Sequence[bytes]) -> None:
        """Append byte strings."""
        if not texts:
            return
        added = spans_of(texts)
        count, end = self._count + len(added), self._end + len(added.data)
        self._at, self._size = grow_to(self._at, count), grow_to(self._size, count)
        self._data = grow_to(self._data, end)
        self._at[self._count : count] = added.at + self._end
        self._size[self._count : count] = added.size
        self._data[self._end : end] = added.data
        self._count, self._end = count, end

    def replace(self, number: int, text: bytes) -> None:
        """Replace a string; the bytes of the earlier string stay, because outputs may refer to them."""
        end = self._end + len(text)
        self._data = grow_to(self._data, end)
        self._data[self._end : end] = np.frombuffer(text, dtype=np.uint8)
        self._at[number], self._size[number] = self._end, len(text)
        self._end = end

    @property
    def spans(self) -> Spans:
        """All strings; the result is valid until the next change."""
        return Spans(self._data, self._at, self._size)


def mapped_zeros(shape: tuple[int, ...], kind: npt.DTypeLike) -> Any:
    """Return zeros in memory that is allocated on first use; large arrays get huge pages if the system has them.

    NumPy itself requests huge pages only for arrays that are not zeros.
    """
    dtype = np.dtype(kind)
    size = prod(shape) * dtype.itemsize
    if size < _HUGE_PAGE_MIN_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype=dtype)
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a Linux kernel without huge pages
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, dtype=dtype).reshape(shape)


def grow_to(array: npt.NDArray[Any], count: int) -> Any:
    """Return the array if it has ``count`` entries, otherwise a larger copy."""
    if count <= len(array):
        return array
    grown = mapped_zeros((max(count, len(array) * 3 // 2), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


LINE_BYTES: Final = 64
"""Bytes of a cache line."""


def empty_rows(count: int, size: int) -> Buffer:
    """Return rows of zeros; if their size is a multiple of a cache line, each begins at a cache line."""
    room: Buffer = mapped_zeros((count * size + LINE_BYTES,), np.uint8)
    start = -address(room) % LINE_BYTES
    return room[start : start + count * size].reshape(count, size)


class RowLayout:
    """Copies fields between arrays and rows of bytes, each of which is one record of several fields."""

    def __init__(self, record: np.dtype[Any]) -> None:
        self._record = record
        found: Mapping[str, Any] = record.fields or {}
        self._fields: dict[str, tuple[np.dtype[Any], int]] = {name: found[name][:2] for name in found}
        self._layouts: dict[tuple[str, ...], Column] = {}

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self._record.itemsize

    def field_of(self, name: str) -> tuple[np.dtype[Any], int]:
        """Return the type of a field and its position in a row."""
        return self._fields[name]

    def gather(self, rows: Buffer, names: Sequence[str], slots: Column) -> list[npt.NDArray[Any]]:
        """Read fields of 1, 4 or 8 bytes of the rows at ``slots`` in one pass; return an array for each field."""
        if (library := compiled_kernel()) is None:
            records = rows.view(self._record)[:, 0]
            return [records[name][slots] for name in names]
        count, fields = len(slots), self._fields
        found = [np.empty(count, dtype=fields[name][0]) for name in names]
        layout = self._field_layout(tuple(names), found)
        library.sotto_gather(count, address(slots), address(rows), self.size, address(layout), len(layout))
        return found

    def scatter(self, rows: Buffer, columns: Mapping[str, npt.NDArray[Any]], slots: Column) -> None:
        """Write fields of the rows at the distinct ``slots`` in one pass; the reverse of ``gather``."""
        if (library := compiled_kernel()) is None:
            records = rows.view(self._record)[:, 0]
            for name, column in columns.items():
                records[name][slots] = column
            return
        # The list keeps the arrays alive during the call.
        arrays = [np.ascontiguousarray(column, self._fields[name][0]) for name, column in columns.items()]
        layout = self._field_layout(tuple(columns), arrays)
        library.sotto_scatter(len(slots), address(slots), address(rows), self.size, address(layout), len(layout))

    def _field_layout(self, names: tuple[str, ...], columns: Sequence[npt.NDArray[Any]]) -> Column:
        """Return the position, the size and the array's address of each field, as the kernel reads them."""
        if (indexes := self._layouts.get(names)) is None:
            entries = [(self._fields[name][1], self._fields[name][0].itemsize, 0) for name in names]
            indexes = self._layouts[names] = np.array(entries, dtype=np.int64).reshape(-1, 3)
        layout = indexes.copy()
        layout[:, 2] = [address(column) for column in columns]
        return layout
