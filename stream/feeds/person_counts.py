"""Counts per person (rows) and condition (columns), and counts per cell of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel import Added, Bounded, Column, Keys, added, bounded, with_rows

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]

NEVER: Final = -1
"""The piece number of values that no piece of the changelog has."""
_BITS: Final = (1, 2, 4, 8, 16, 32)


def count_type(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest type for 0 … ``most``."""
    return np.dtype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32)


class PersonCounts:
    """A table of people's counts in one window or over several; rows are never removed.

    Each row is marked with the number of the changelog piece that has its current counts.
    """

    def __init__(self, most: int, width: int) -> None:
        """``most`` limits the counts in each of ``width`` columns."""
        self._most = most
        self._keys = Keys()
        self._counts: Counts = np.zeros((0, width), dtype=count_type(most))
        self._pieces: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return self._keys.nbytes + self._counts.nbytes + self._pieces.nbytes

    def count(self, people: Words, wanted: Words, piece: int) -> Bounded:
        """Count each event's person in wanted columns up to the bound; mark them with ``piece``."""
        return bounded(self._rows(people), wanted, self._counts, self._most, self._pieces, piece)

    def put(self, people: Words, columns: Sequence[int], counts: Counts, piece: int) -> None:
        """Apply a piece's counts of people in some columns; pieces must come in order."""
        rows = self._rows(people)
        for place, column in enumerate(columns):
            self._counts[rows, column] = counts[:, place]
        self._pieces[rows] = piece

    def people(self, rows: Column) -> Words:
        """Return the people of some rows."""
        return self._keys.of(rows)

    def counts(self, rows: Column, columns: Sequence[int]) -> Counts:
        """Return the counts in some rows and columns."""
        return self._counts[rows][:, columns]

    def again(self, before: int, piece: int) -> Column:
        """Return the rows marked with pieces before ``before``, and mark them with ``piece``."""
        rows: Column = np.flatnonzero(self._pieces[: len(self)] < before)
        self._pieces[rows] = piece
        return rows

    def widen(self, width: int) -> None:
        """Grow to this number of columns."""
        counts: Counts = np.zeros((len(self._counts), width), dtype=self._counts.dtype)
        counts[:, : self._counts.shape[1]] = self._counts
        self._counts = counts

    def empty(self, column: int) -> None:
        """Reset a column."""
        self._counts[:, column] = 0

    def _rows(self, people: Words) -> Column:
        before = len(self)
        rows = self._keys.numbers(people)
        self._counts, self._pieces = with_rows(self._counts, len(self)), with_rows(self._pieces, len(self))
        self._pieces[before : len(self)] = NEVER
        return rows


def packed(counts: Counts, most: int) -> bytes:
    """Encode rows of counts up to ``most`` in the fewest bytes per row."""
    bits = _bits(most)
    if bits >= 8:
        return counts.astype(f"<u{bits // 8}").tobytes()
    found = np.zeros((len(counts), packed_bytes(most, counts.shape[1])), dtype=np.uint8)
    for place in range(8 // bits):
        columns = counts[:, place :: 8 // bits].astype(np.uint8)
        found[:, : columns.shape[1]] |= columns << np.uint8(place * bits)
    return found.tobytes()


def unpacked(value: bytes, most: int, width: int) -> Counts:
    """Decode packed rows of ``width`` columns."""
    bits = _bits(most)
    if bits >= 8:
        return np.frombuffer(value, dtype=f"<u{bits // 8}").reshape(-1, width).astype(count_type(most))
    whole = np.frombuffer(value, dtype=np.uint8).reshape(-1, packed_bytes(most, width))
    found: Counts = np.zeros((len(whole), width), dtype=np.uint8)
    for place in range(8 // bits):
        columns = found[:, place :: 8 // bits]
        columns[:] = whole[:, : columns.shape[1]] >> np.uint8(place * bits) & np.uint8((1 << bits) - 1)
    return found


def packed_bytes(most: int, width: int) -> int:
    """Return the bytes of one row."""
    return -(-_bits(most) * width // 8)


def _bits(most: int) -> int:
    return next(bits for bits in _BITS if bits >= most.bit_length())


Pieces = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Counting:
    """The counted quantity of events, and the attributes of its groups."""

    by: tuple[str, ...]
    people: bool = False
    sum: str | None = None


class CellCounts:
    """The cells of all open windows for one ``counting``; each window has a row of cells.

    A sum is stored as the number of events and the sum of their codes, which cannot overflow.
    """

    def __init__(self, counting: Counting, cells: int, minimum: int) -> None:
        """``cells`` is their number per window, ``minimum`` the value of code 0."""
        self.counting = counting
        self.cells = cells
        self._minimum = minimum
        self.counts: Column = np.zeros(0, dtype=np.int64)
        self.sums: Column = np.zeros(0, dtype=np.int64)
        self.pieces: Pieces = np.zeros(0, dtype=np.int32)
        self.live = 0
        """The number of places with counts."""

    def reserve(self, rows: int) -> None:
        """Make room for this number of windows."""
        size = rows * self.cells
        if size > len(self.counts):
            more = max(size, 2 * len(self.counts)) - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
            self.pieces = np.concatenate([self.pieces, np.full(more, NEVER, dtype=np.int32)])
            if self.counting.sum is not None:
                self.sums = np.concatenate([self.sums, np.zeros(more, dtype=np.int64)])

    def add(self, places: Column, bits: Words, bit: int, codes: Column | None, piece: int) -> Added:
        """Count events with ``bit`` at places (row · cells + cell); mark these with ``piece``."""
        found = added(places, bits, bit, codes, self.counts, self.sums, self.pieces, piece)
        self.live += found.fresh
        return found

    def put(self, places: Column, counts: Column, sums: Column | None, piece: int) -> None:
        """Apply a piece's values of some places; pieces must come in order."""
        self.counts[places] = counts
        self.live += int(np.count_nonzero(self.pieces[places] == NEVER))
        self.pieces[places] = piece
        if sums is not None:
            self.sums[places] = sums

    def clear(self, row: int) -> None:
        """Empty a window's cells."""
        whole = slice(row * self.cells, (row + 1) * self.cells)
        self.live -= int(np.count_nonzero(self.pieces[whole] != NEVER))
        self.counts[whole] = 0
        self.pieces[whole] = NEVER
        if self.counting.sum is not None:
            self.sums[whole] = 0

    def values(self, row: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        whole = slice(row * self.cells, (row + 1) * self.cells)
        counts = self.counts[whole]
        cells = np.flatnonzero(counts)
        found = counts[cells].tolist()
        if self.counting.sum is not None:
            sums = self.sums[whole][cells].tolist()
            found = [self._minimum * count + total for count, total in zip(found, sums, strict=True)]
        pairs = [(cell, number) for cell, number in zip(cells.tolist(), found, strict=True) if number]
        return [cell for cell, _ in pairs], [number for _, number in pairs]

    def again(self, before: int, piece: int) -> Column:
        """Return the places marked with pieces before ``before``, and mark them with ``piece``."""
        places = np.flatnonzero((self.pieces != NEVER) & (self.pieces < before))
        self.pieces[places] = piece
        return places
