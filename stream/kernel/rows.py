"""Tables with a row of bytes for each slot, of which columns are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Buffer, Column, address, zeros
from stream.kernel.library import compiled

LINE_BYTES: Final = 64
"""What a processor fetches of memory at once."""


def empty_rows(count: int, size: int) -> Buffer:
    """So many rows of zeros, each of which begins where a line of the cache does if its size is that of whole lines."""
    room: Buffer = zeros((count * size + LINE_BYTES,), np.uint8)
    start = -address(room) % LINE_BYTES
    return room[start : start + count * size].reshape(count, size)


class Layout:
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
