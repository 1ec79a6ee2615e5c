"""Tables with a row of bytes for each slot, of which columns are read."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Buffer, address
from stream.kernel.library import compiled

LINE_BYTES: Final = 64
"""What a processor fetches of memory at once."""


class _Field(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int64), ("size", ctypes.c_int64), ("column", ctypes.c_void_p))


def empty_rows(count: int, size: int) -> Buffer:
    """So many rows of zeros, each of which begins where a line of the cache does if its size is that of whole lines."""
    room = np.zeros(count * size + LINE_BYTES, dtype=np.uint8)
    start = -address(room) % LINE_BYTES
    return room[start : start + count * size].reshape(count, size)


def place_of(record: np.dtype[Any], name: str) -> tuple[np.dtype[Any], int]:
    """The type of a record's field, and where it stands."""
    fields: Mapping[str, Any] = record.fields or {}
    kind, offset = fields[name][:2]
    return kind, offset


def gather(
    rows: Buffer, record: np.dtype[Any], names: Sequence[str], slots: npt.NDArray[np.intp]
) -> list[npt.NDArray[Any]]:
    """Some fields of some rows, in one pass over these: an array for each field, which are of 1, 4 or 8 bytes."""
    if (library := compiled()) is None:
        records = rows.view(record)[:, 0]
        return [records[name][slots] for name in names]
    found = [np.empty(len(slots), dtype=place_of(record, name)[0]) for name in names]
    fields = _laid_out(record, dict(zip(names, found, strict=True)))
    library.sotto_gather(len(slots), address(slots), address(rows), record.itemsize, fields, len(fields))
    return found


def scatter(
    rows: Buffer, record: np.dtype[Any], columns: Mapping[str, npt.NDArray[Any]], slots: npt.NDArray[np.intp]
) -> None:
    """Write some fields of some rows, in one pass over these: the reverse of ``gather``; each row comes once."""
    if (library := compiled()) is None:
        records = rows.view(record)[:, 0]
        for name, column in columns.items():
            records[name][slots] = column
        return
    # Kept for as long as they are read.
    laid = {name: np.ascontiguousarray(column, place_of(record, name)[0]) for name, column in columns.items()}
    fields = _laid_out(record, laid)
    library.sotto_scatter(len(slots), address(slots), address(rows), record.itemsize, fields, len(fields))


def _laid_out(record: np.dtype[Any], columns: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Fields of rows with an array for each, as the kernel takes them."""
    places = [(*place_of(record, name), column) for name, column in columns.items()]
    return (_Field * len(places))(
        *[_Field(offset, kind.itemsize, address(column)) for kind, offset, column in places]
    )
