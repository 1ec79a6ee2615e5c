"""Counts of the open windows: per person, per cell, and per private text.

The texts of a window may have at most ``most_bytes``, as ``text_size`` counts them. A window with more
bytes is too large: it drops its texts, and remains too large until it closes. So its memory is bounded by
this limit and by the number of events within the contribution bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel.byte_columns import Column
from stream.kernel.key_numbering import (
    AddedCounts,
    BoundedCounts,
    KeyNumbering,
    add_counts,
    count_up_to_bound,
    grow_in_place,
)
from stream.privacy.planning.unknown_groups_plans import text_size

UInt64Array = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]

NOT_IN_CHANGELOG: Final = -1
"""Number in place of a piece's number, for values that are not yet in a record (piece) of the changelog."""
_BITS: Final = (1, 2, 4, 8, 16, 32)


def count_type(max_count: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest integer type for counts from 0 to ``max_count``."""
    return np.dtype(np.uint8 if max_count < 1 << 8 else np.uint16 if max_count < 1 << 16 else np.uint32)


class PersonCounts:
    """A table of people's counts in one window or over several, with a row for each person.

    Rows are never removed. Each row is marked with the number of the changelog piece that has its
    current counts.
    """

    def __init__(self, max_count: int, width: int) -> None:
        """Create a table of ``width`` columns, each with counts up to ``max_count``."""
        self._max_count = max_count
        self._keys = KeyNumbering()
        self._counts: Counts = np.zeros((0, width), dtype=count_type(max_count))
        self._pieces: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    def count(self, people: UInt64Array, column_masks: UInt64Array, piece_number: int) -> BoundedCounts:
        """Add 1 for each event to its person's counts in the columns of its bit mask, up to the bound.

        The changed rows are marked with ``piece_number``.
        """
        return count_up_to_bound(
            self._find_or_add_rows(people), column_masks, self._counts, self._max_count, self._pieces, piece_number
        )

    def put(self, people: UInt64Array, columns: Sequence[int], counts: Counts, piece_number: int) -> None:
        """Apply a piece's counts of people in some columns; pieces must come in order."""
        rows = self._find_or_add_rows(people)
        for place, column in enumerate(columns):
            self._counts[rows, column] = counts[:, place]
        self._pieces[rows] = piece_number

    def people(self, rows: Column) -> UInt64Array:
        """Return the people of some rows."""
        return self._keys.keys_of(rows)

    def counts(self, rows: Column, columns: Sequence[int]) -> Counts:
        """Return the counts in some rows and columns."""
        return self._counts[rows][:, columns]

    def renumber_old_entries(self, before: int, piece_number: int) -> Column:
        """Mark the rows of pieces before ``before`` with ``piece_number``, and return these rows."""
        rows: Column = np.flatnonzero(self._pieces[: len(self)] < before)
        self._pieces[rows] = piece_number
        return rows

    def widen(self, width: int) -> None:
        """Grow to this number of columns."""
        counts: Counts = np.zeros((len(self._counts), width), dtype=self._counts.dtype)
        counts[:, : self._counts.shape[1]] = self._counts
        self._counts = counts

    def empty(self, column: int) -> None:
        """Set all counts of a column to 0."""
        self._counts[:, column] = 0

    def _find_or_add_rows(self, people: UInt64Array) -> Column:
        before = len(self)
        rows = self._keys.number_keys(people)
        self._counts, self._pieces = grow_in_place(self._counts, len(self)), grow_in_place(self._pieces, len(self))
        self._pieces[before : len(self)] = NOT_IN_CHANGELOG
        return rows


def pack_counts(counts: Counts, max_count: int) -> bytes:
    """Encode rows of counts up to ``max_count`` in the fewest bytes per row."""
    bits = _bits(max_count)
    if bits >= 8:
        return counts.astype(f"<u{bits // 8}").tobytes()
    found = np.zeros((len(counts), packed_bytes(max_count, counts.shape[1])), dtype=np.uint8)
    for place in range(8 // bits):
        columns = counts[:, place :: 8 // bits].astype(np.uint8)
        found[:, : columns.shape[1]] |= columns << np.uint8(place * bits)
    return found.tobytes()


def unpack_counts(value: bytes, max_count: int, width: int) -> Counts:
    """Decode packed rows of ``width`` columns."""
    bits = _bits(max_count)
    if bits >= 8:
        return np.frombuffer(value, dtype=f"<u{bits // 8}").reshape(-1, width).astype(count_type(max_count))
    packed = np.frombuffer(value, dtype=np.uint8).reshape(-1, packed_bytes(max_count, width))
    found: Counts = np.zeros((len(packed), width), dtype=np.uint8)
    for place in range(8 // bits):
        columns = found[:, place :: 8 // bits]
        columns[:] = packed[:, : columns.shape[1]] >> np.uint8(place * bits) & np.uint8((1 << bits) - 1)
    return found


def packed_bytes(max_count: int, width: int) -> int:
    """Return the bytes of one row."""
    return -(-_bits(max_count) * width // 8)


def _bits(max_count: int) -> int:
    return next(bits for bits in _BITS if bits >= max_count.bit_length())


@dataclass(frozen=True, slots=True)
class CountedQuantity:
    """The quantity that a stream counts in each cell of ``by``: events, people or the sum of an attribute.

    ``most_bytes`` limits a window's texts if the group is a text attribute; otherwise it is 0.
    """

    by: tuple[str, ...]
    counts_people: bool = False
    sum: str | None = None
    most_bytes: int = 0


class CellCounts:
    """The cells of all open windows for one counted quantity; each window has a row of cells.

    A sum is stored as the number of events and the sum of their codes, which cannot overflow.
    """

    def __init__(self, quantity: CountedQuantity, cells: int, minimum: int) -> None:
        """``cells`` is the number of cells per window, ``minimum`` the value of code 0."""
        self.quantity = quantity
        self.cells = cells
        self._minimum = minimum
        self.counts: Column = np.zeros(0, dtype=np.int64)
        self.sums: Column = np.zeros(0, dtype=np.int64)
        self.pieces: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self.entry_count = 0
        """The number of cells with counts, over all windows."""

    def reserve(self, rows: int) -> None:
        """Make room for this number of windows."""
        size = rows * self.cells
        if size > len(self.counts):
            more = max(size, 2 * len(self.counts)) - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
            self.pieces = np.concatenate([self.pieces, np.full(more, NOT_IN_CHANGELOG, dtype=np.int32)])
            if self.quantity.sum is not None:
                self.sums = np.concatenate([self.sums, np.zeros(more, dtype=np.int64)])

    def add(
        self, places: Column, column_masks: UInt64Array, column_bit: int, codes: Column | None, piece_number: int
    ) -> AddedCounts:
        """Count the events whose mask contains ``column_bit``; an event's place is row · cells + cell.

        The changed places are marked with ``piece_number``.
        """
        found = add_counts(
            places, column_masks, column_bit, codes, self.counts, self.sums, self.pieces, piece_number
        )
        self.entry_count += found.newly_marked
        return found

    def put(self, places: Column, counts: Column, sums: Column | None, piece_number: int) -> None:
        """Apply a piece's values of some places; pieces must come in order."""
        self.counts[places] = counts
        self.entry_count += int(np.count_nonzero(self.pieces[places] == NOT_IN_CHANGELOG))
        self.pieces[places] = piece_number
        if sums is not None:
            self.sums[places] = sums

    def clear(self, row: int) -> None:
        """Empty a window's cells."""
        cells_of_row = slice(row * self.cells, (row + 1) * self.cells)
        self.entry_count -= int(np.count_nonzero(self.pieces[cells_of_row] != NOT_IN_CHANGELOG))
        self.counts[cells_of_row] = 0
        self.pieces[cells_of_row] = NOT_IN_CHANGELOG
        if self.quantity.sum is not None:
            self.sums[cells_of_row] = 0

    def values(self, row: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        cells_of_row = slice(row * self.cells, (row + 1) * self.cells)
        counts = self.counts[cells_of_row]
        cells = np.flatnonzero(counts)
        found = counts[cells].tolist()
        if self.quantity.sum is not None:
            sums = self.sums[cells_of_row][cells].tolist()
            found = [self._minimum * count + total for count, total in zip(found, sums, strict=True)]
        pairs = [(cell, number) for cell, number in zip(cells.tolist(), found, strict=True) if number]
        return [cell for cell, _ in pairs], [number for _, number in pairs]

    def renumber_old_entries(self, before: int, piece_number: int) -> Column:
        """Mark the places of pieces before ``before`` with ``piece_number``, and return these places."""
        places = np.flatnonzero((self.pieces != NOT_IN_CHANGELOG) & (self.pieces < before))
        self.pieces[places] = piece_number
        return places


TouchedTexts = Mapping[int, Sequence[bytes]]
"""The changed texts of each window by the window's row; no texts of a window that is too large."""


@dataclass(slots=True)
class _WindowTexts:
    """The counts of a window's texts, and the changelog piece that has each current count."""

    counts: dict[bytes, int] = field(default_factory=dict)
    pieces: dict[bytes, int] = field(default_factory=dict)
    size: int = 0
    is_too_large: bool = False
    piece: int = -1
    """The piece that marks the window as too large."""


class TextTally:
    """The texts of all open windows for one counted quantity, by the windows' rows."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._windows: dict[int, _WindowTexts] = {}

    def add(self, rows: Column, codes: Column, texts: Sequence[bytes], piece: int) -> TouchedTexts:
        """Count events, each given by its window's row and its text's code; return the changed texts."""
        touched: dict[int, Sequence[bytes]] = {}
        for row in np.unique(rows).tolist():
            found, counts = np.unique(codes[rows == row], return_counts=True)
            window = self._windows.setdefault(row, _WindowTexts())
            if window.is_too_large:
                continue
            changed = [texts[code] for code in found.tolist()]
            for text, count in zip(changed, counts.tolist(), strict=True):
                self._set_count(window, text, window.counts.get(text, 0) + count, piece)
            if window.size > self._most_bytes:
                self._mark_too_large(window, piece)
            touched[row] = [] if window.is_too_large else changed
        return touched

    def put(self, row: int, counts: Mapping[bytes, int] | None, piece: int) -> None:
        """Apply a piece's counts of a window; None says that it is too large."""
        window = self._windows.setdefault(row, _WindowTexts())
        if counts is None:
            self._mark_too_large(window, piece)
        elif not window.is_too_large:
            for text, count in counts.items():
                self._set_count(window, text, count, piece)

    def counts(self, row: int) -> Mapping[bytes, int] | None:
        """Return the counts of a window's texts; None if they are too large."""
        if (window := self._windows.get(row)) is None:
            return {}
        return None if window.is_too_large else window.counts

    def clear(self, row: int) -> None:
        """Drop a window's texts."""
        self._windows.pop(row, None)

    @property
    def entry_count(self) -> int:
        """The number of entries that the changelog must hold."""
        return sum(len(window.counts) + window.is_too_large for window in self._windows.values())

    def renumber_old_entries(self, before: int, piece: int) -> TouchedTexts:
        """Mark the texts of pieces before ``before`` with ``piece``, and return these texts."""
        found: dict[int, Sequence[bytes]] = {}
        for row, window in self._windows.items():
            if window.is_too_large:
                if window.piece < before:
                    window.piece, found[row] = piece, []
            elif old := [text for text, own in window.pieces.items() if own < before]:
                window.pieces.update(dict.fromkeys(old, piece))
                found[row] = old
        return found

    def _set_count(self, window: _WindowTexts, text: bytes, count: int, piece: int) -> None:
        if text not in window.counts:
            window.size += text_size(text)
        window.counts[text], window.pieces[text] = count, piece

    def _mark_too_large(self, window: _WindowTexts, piece: int) -> None:
        window.counts, window.pieces, window.size = {}, {}, 0
        window.is_too_large, window.piece = True, piece
