"""Texts of bytes by the thousand, in one buffer."""

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

from stream.kernel.library import compiled

Column = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]
Buffer = npt.NDArray[np.uint8]

_FIRST_TEXTS: Final = 64
_FIRST_BYTES: Final = 1024
_LARGE_BYTES: Final = 4 << 20


_HEAD_BYTES: Final = object.__basicsize__
"""What CPython puts before an object's own members."""


def _told(array: npt.NDArray[Any]) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def _looked_up(array: npt.NDArray[Any]) -> int:
    return _word_at(id(array) + _HEAD_BYTES).value


_word_at: Final = ctypes.c_size_t.from_address
_samples: Final = [np.arange(9, dtype=kind)[start:] for kind in (np.uint8, np.int32, np.int64) for start in (0, 2)]

# An array's first member is where its entries are (NumPy's C API: PyArrayObject_fields). To look there takes a fifth of the time that
# it takes to be told, and a small batch asks for a hundred addresses. Where arrays are laid out otherwise, they are asked.
address: Final[Callable[[npt.NDArray[Any]], int]] = (
    _looked_up
    if sys.implementation.name == "cpython" and all(_looked_up(sample) == _told(sample) for sample in _samples)
    else _told
)
"""Where an array's first entry is."""


class Spans(Sequence[bytes]):
    """Texts that lie somewhere in ``data``, each at a place and of a size."""

    __slots__ = ("at", "data", "size")

    def __init__(self, data: Buffer, at: Column, size: Sizes) -> None:
        self.data = data
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Spans: ...
    def __getitem__(self, place: int | slice) -> bytes | Spans:
        if isinstance(place, slice):
            return Spans(self.data, self.at[place], self.size[place])
        start = int(self.at[place])
        return self.data[start : start + max(int(self.size[place]), 0)].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        # Few texts of many are not worth a copy of all.
        data = self.data.tobytes() if 4 * self.size.sum() > len(self.data) else self.data.data
        for start, size in zip(self.at.tolist(), self.size.tolist(), strict=True):
            yield bytes(data[start : start + max(size, 0)])

    def picked(self, places: npt.NDArray[Any]) -> Spans:
        """Those at some places."""
        return Spans(self.data, self.at[places], self.size[places])

    def one_behind_another(self) -> bytes:
        """All of them, without what may lie between."""
        if len(self) and np.array_equal(self.at[1:], self.at[:-1] + self.size[:-1]):
            return self.data[self.at[0] : self.at[-1] + self.size[-1]].tobytes()
        return b"".join(self)


def spans_of(texts: Iterable[bytes]) -> Spans:
    """Texts, copied into one buffer."""
    listed = texts if isinstance(texts, list) else list(texts)
    size = np.fromiter(map(len, listed), dtype=np.int32, count=len(listed))
    at = np.zeros(len(listed), dtype=np.int64)
    np.cumsum(size[:-1], out=at[1:])
    return Spans(np.frombuffer(b"".join(listed), dtype=np.uint8), at, size)


def rows_of(array: npt.NDArray[np.uint8], rows: npt.NDArray[Any]) -> Spans:
    """Some rows of an array of bytes."""
    width = array.shape[1]
    at: Column = rows.astype(np.int64) * width
    return Spans(array.reshape(-1), at, np.full(len(rows), width, dtype=np.int32))


def joined(parts: Sequence[Spans]) -> Spans:
    """All texts of several columns."""
    if all(part.data is parts[0].data for part in parts):
        data, shifts = parts[0].data, [0] * len(parts)
    else:
        data = np.concatenate([part.data for part in parts])
        shifts = [0, *np.cumsum([len(part.data) for part in parts])[:-1].tolist()]
    at = np.concatenate([part.at + shift for part, shift in zip(parts, shifts, strict=True)])
    return Spans(data, at, np.concatenate([part.size for part in parts]))


class Texts:
    """Texts that are added one by one, and read by number."""

    def __init__(self) -> None:
        self._count = 0
        self._end = 0
        self._data: Buffer = np.zeros(_FIRST_BYTES, dtype=np.uint8)
        self._at: Column = np.zeros(_FIRST_TEXTS, dtype=np.int64)
        self._size: Sizes = np.zeros(_FIRST_TEXTS, dtype=np.int32)

    def __len__(self) -> int:
        return self._count

    def extend(self, texts: Sequence[bytes]) -> None:
        """Add some."""
        if not texts:
            return
        added = spans_of(texts)
        count, end = self._count + len(added), self._end + len(added.data)
        self._at, self._size = with_room(self._at, count), with_room(self._size, count)
        self._data = with_room(self._data, end)
        self._at[self._count : count] = added.at + self._end
        self._size[self._count : count] = added.size
        self._data[self._end : end] = added.data
        self._count, self._end = count, end

    @property
    def spans(self) -> Spans:
        """All of them, until the next is added."""
        return Spans(self._data, self._at, self._size)


def zeros(shape: tuple[int, ...], kind: npt.DTypeLike) -> Any:
    """An array of zeros that takes memory where it is written, and lies in large pages if it is large and the system has them.

    Whoever reads figures of a million streams at random finds the page of hardly one where the processor keeps them. numpy
    asks for large pages too, but not for zeros.
    """
    dtype = np.dtype(kind)
    size = prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype=dtype)
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, dtype=dtype).reshape(shape)


def with_room(array: npt.NDArray[Any], count: int) -> Any:
    """An array with room for so many entries: the same, or a larger one that begins like it."""
    if count <= len(array):
        return array
    grown = zeros((max(count, len(array) * 3 // 2), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


LINE_BYTES: Final = 64
"""What a processor fetches of memory at once."""


def empty_rows(count: int, size: int) -> Buffer:
    """So many rows of zeros, each of which begins where a line of the cache does if its size is that of whole lines."""
    room: Buffer = zeros((count * size + LINE_BYTES,), np.uint8)
    start = -address(room) % LINE_BYTES
    return room[start : start + count * size].reshape(count, size)


class RowLayout:
    """Where the fields of rows stand, each of which is a record."""

    def __init__(self, record: np.dtype[Any]) -> None:
        self._record = record
        found: Mapping[str, Any] = record.fields or {}
        self._fields: dict[str, tuple[np.dtype[Any], int]] = {name: found[name][:2] for name in found}
        self._places: dict[tuple[str, ...], Column] = {}

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self._record.itemsize

    def place_of(self, name: str) -> tuple[np.dtype[Any], int]:
        """The type of a field, and where it stands."""
        return self._fields[name]

    def gather(self, rows: Buffer, names: Sequence[str], slots: Column) -> list[npt.NDArray[Any]]:
        """Some fields of some rows, in one pass over these: an array for each field, which are of 1, 4 or 8 bytes."""
        if (library := compiled()) is None:
            records = rows.view(self._record)[:, 0]
            return [records[name][slots] for name in names]
        count, fields = len(slots), self._fields
        found = [np.empty(count, dtype=fields[name][0]) for name in names]
        laid = self._laid_out(tuple(names), found)
        library.sotto_gather(count, address(slots), address(rows), self.size, address(laid), len(laid))
        return found

    def scatter(self, rows: Buffer, columns: Mapping[str, npt.NDArray[Any]], slots: Column) -> None:
        """Write some fields of some rows, in one pass over these: the reverse of ``gather``; each row comes once."""
        if (library := compiled()) is None:
            records = rows.view(self._record)[:, 0]
            for name, column in columns.items():
                records[name][slots] = column
            return
        # Kept for as long as they are read.
        kept = [np.ascontiguousarray(column, self._fields[name][0]) for name, column in columns.items()]
        laid = self._laid_out(tuple(columns), kept)
        library.sotto_scatter(len(slots), address(slots), address(rows), self.size, address(laid), len(laid))

    def _laid_out(self, names: tuple[str, ...], columns: Sequence[npt.NDArray[Any]]) -> Column:
        """Of each field its place, its size and the array for it, as the kernel takes them."""
        if (places := self._places.get(names)) is None:
            entries = [(self._fields[name][1], self._fields[name][0].itemsize, 0) for name in names]
            places = self._places[names] = np.array(entries, dtype=np.int64).reshape(-1, 3)
        laid = places.copy()
        laid[:, 2] = [address(column) for column in columns]
        return laid
