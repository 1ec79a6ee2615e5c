"""What was counted in the cells of open windows: whole numbers, exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stream.kernel import Added, Column, added
from stream.processors.feeds.visits import NEVER, Words

Pieces = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Counting:
    """What of the events is counted, and by which attributes."""

    by: tuple[str, ...]
    people: bool = False
    sum: str | None = None


class Cells:
    """The cells of one kind of counting; ``row`` is a window's place in it.

    A sum is kept as how many events and the sum of their codes, which adds up to far beyond what any topic holds.
    """

    def __init__(self, counting: Counting, cells: int, minimum: int) -> None:
        """Take how many cells a window has, and the value of code 0."""
        self.counting = counting
        self.cells = cells
        self._minimum = minimum
        self.counts: Column = np.zeros(0, dtype=np.int64)
        self.sums: Column = np.zeros(0, dtype=np.int64)
        self.pieces: Pieces = np.zeros(0, dtype=np.int32)
        self.live = 0
        """How many places have been counted at."""

    def reserve(self, rows: int) -> None:
        """Have room for so many windows."""
        size = rows * self.cells
        if size > len(self.counts):
            more = max(size, 2 * len(self.counts)) - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
            self.pieces = np.concatenate([self.pieces, np.full(more, NEVER, dtype=np.int32)])
            if self.counting.sum is not None:
                self.sums = np.concatenate([self.sums, np.zeros(more, dtype=np.int64)])

    def add(self, places: Column, bits: Words, bit: int, codes: Column | None, piece: int) -> Added:
        """Count the events that have a bit at their places (row · cells + cell), which a piece is to tell of."""
        found = added(places, bits, bit, codes, self.counts, self.sums, self.pieces, piece)
        self.live += found.fresh
        return found

    def put(self, places: Column, counts: Column, sums: Column | None, piece: int) -> None:
        """Take what a piece of the changelog says of some places; of two pieces the later one holds."""
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
        """A window's cells with a number other than 0, and their numbers."""
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
        """The places that pieces before one said last, which another is to say now."""
        places = np.flatnonzero((self.pieces != NEVER) & (self.pieces < before))
        self.pieces[places] = piece
        return places
