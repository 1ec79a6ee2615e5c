"""How often each person was counted in each window: open addressing over numpy columns, some 25 bytes an entry and its share of room.

Python's dictionaries would take ten times as much, and a step for each event.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.intp]
Books = npt.NDArray[np.int32]

_FEWEST: Final = 256
_FULL: Final = 0.62
"""The share of slots that may be taken; beyond it there are twice as many."""
_AT_ONCE: Final = 1 << 16
"""Entries that are put into a new table at a time."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_APART: Final = np.uint64(0xD6E8FEB86659FD93)
"""Odd, so that no two books give a person the same key."""
NEVER: Final = -1
"""The piece of an entry that no piece of the changelog has."""


def count_type(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The narrowest type that holds 0 … most."""
    return np.dtype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32)


class Visits:
    """Counts by person and book; a book is a window, by a number of its own.

    ``counts`` and ``pieces`` are by slot: how often the person was counted, and which piece of the changelog says so last.
    """

    def __init__(self, most: int) -> None:
        self.live = 0
        """Entries of books that are open."""
        self._sizes: dict[int, int] = {}
        self._type = count_type(most)
        self._allocate(_FEWEST)

    def _allocate(self, capacity: int) -> None:
        self._taken = 0
        self._mask = capacity - 1
        self._shift = np.uint64(64 - (capacity - 1).bit_length())
        self._first = np.empty(capacity, dtype=np.uint64)
        self._second = np.zeros(capacity, dtype=np.uint64)
        self._books = np.empty(capacity, dtype=np.int32)
        self.counts = np.empty(capacity, dtype=self._type)
        self.pieces = np.empty(capacity, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        """The memory that this takes."""
        columns = (self._first, self._second, self._books, self.counts, self.pieces)
        return sum(column.nbytes for column in columns)

    def slots(self, people: Words, books: Books) -> Slots:
        """The slots of these people in these books, no two of them alike; whoever is new there gets one with count 0."""
        count = len(people)
        if self._taken + count > _FULL * (self._mask + 1):
            self._rebuild(count)
        first = people[:, 0] ^ (books.astype(np.uint64) * _APART)
        second = people[:, 1]
        at = ((first * _SPREAD) >> self._shift).astype(np.intp)
        found = np.empty(count, dtype=np.intp)
        waiting = np.arange(count)
        while len(waiting):
            there = self._second[at]
            same = (there == second[waiting]) & (self._first[at] == first[waiting])
            free = np.flatnonzero(there == 0)
            found[waiting[same]] = at[same]
            if len(free):
                # Several may want one slot: whoever is written last has it, and the others look at it again.
                rows, slots = waiting[free], at[free]
                self.pieces[slots] = rows
                won = self.pieces[slots] == rows
                rows, slots = rows[won], slots[won]
                self._first[slots], self._second[slots] = first[rows], second[rows]
                self._books[slots], self.counts[slots], self.pieces[slots] = books[rows], 0, NEVER
                found[rows] = slots
                same[free[won]] = True
                self._note(books[rows])
                there[free] = 0
            left = ~same
            waiting, at, there = waiting[left], at[left], there[left]
            at = np.where(there == 0, at, (at + 1) & self._mask)
        return found

    def drop(self, book: int) -> None:
        """Forget a book; its room is free when the table is built anew."""
        self.live -= self._sizes.pop(book, 0)

    def entries(self, before: int) -> tuple[Words, Books, Slots]:
        """People, books and slots of the entries that pieces before this one said last."""
        old = np.flatnonzero((self._second != 0) & (self.pieces < before))
        old = old[self._is_open(self._books[old])]
        return self._people(old), self._books[old], old

    def _people(self, slots: Slots) -> Words:
        first = self._first[slots] ^ (self._books[slots].astype(np.uint64) * _APART)
        return np.stack([first, self._second[slots]], axis=1)

    def _is_open(self, books: Books) -> npt.NDArray[np.bool_]:
        return np.isin(books, np.fromiter(self._sizes, dtype=np.int32, count=len(self._sizes)))

    def _note(self, books: Books) -> None:
        self._taken += len(books)
        self.live += len(books)
        numbers, counts = np.unique(books, return_counts=True)
        for book, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._sizes[book] = self._sizes.get(book, 0) + count

    def _rebuild(self, more: int) -> None:
        kept = np.flatnonzero(self._second != 0)
        kept = kept[self._is_open(self._books[kept])]
        people, books = self._people(kept), self._books[kept]
        counts, pieces = self.counts[kept], self.pieces[kept]
        capacity = _FEWEST
        while len(kept) + more > 0.8 * _FULL * capacity:
            capacity *= 2
        self._allocate(capacity)
        self._sizes, self.live = dict.fromkeys(self._sizes, 0), 0
        for start in range(0, len(people), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            slots = self.slots(people[part], books[part])
            self.counts[slots], self.pieces[slots] = counts[part], pieces[part]
