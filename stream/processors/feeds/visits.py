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
_FULL: Final = 0.55
"""The share of slots that may be taken; beyond it there are half as many more."""
_AT_ONCE: Final = 1 << 16
"""Entries that are put into a new table at a time."""
_HALF: Final = np.uint64(32)
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
        self._capacity = capacity
        self._keys = np.zeros((capacity, 2), dtype=np.uint64)
        self._books = np.empty(capacity, dtype=np.int32)
        self.counts = np.empty(capacity, dtype=self._type)
        self.pieces = np.empty(capacity, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        """The memory that this takes."""
        return sum(column.nbytes for column in (self._keys, self._books, self.counts, self.pieces))

    def reserve(self, more: int) -> None:
        """Have room for so many new entries."""
        if self._taken + more > _FULL * self._capacity:
            self._rebuild(more)

    def slots(self, people: Words, books: Books) -> Slots:
        """The slots of these people in these books, no two of them alike; whoever is new there gets one with count 0."""
        self.reserve(len(people))
        keys = people.copy()
        keys[:, 0] ^= books.astype(np.uint64) * _APART
        spread = (keys[:, 0] * _SPREAD) >> _HALF
        at = ((spread * np.uint64(self._capacity)) >> _HALF).astype(np.intp)
        there = self._keys[at]
        left = _different(there, keys)
        if not len(left):
            return at
        found, news = at, []
        at, there = at[left], there[left, 1]
        steps = np.zeros(len(left), dtype=np.intp)
        while True:
            free = np.flatnonzero(there == 0)
            if len(free):
                # Several may want one slot: whoever is written last has it, and the others look at it again.
                rows, slots = left[free], at[free]
                self.pieces[slots] = rows
                won = self.pieces[slots] == rows
                rows, slots = rows[won], slots[won]
                self._keys[slots] = keys[rows]
                found[rows] = slots
                news.append(rows)
                waits = np.ones(len(left), dtype=np.bool_)
                waits[free[won]] = False
                left, at, there, steps = left[waits], at[waits], there[waits], steps[waits]
            if not len(left):
                break
            # Each key takes steps of 1, 2, 3 …, which keeps what is crowded from growing together.
            steps += there != 0
            at = np.where(there == 0, at, (at + steps) % self._capacity)
            taken = self._keys[at]
            found[left] = at
            different = _different(taken, keys[left])
            left, at, there, steps = left[different], at[different], taken[different, 1], steps[different]
        if news:
            rows = np.concatenate(news)
            slots = found[rows]
            self._books[slots], self.counts[slots], self.pieces[slots] = books[rows], 0, NEVER
            self._note(books[rows])
        return found

    def drop(self, book: int) -> None:
        """Forget a book; its room is free when the table is built anew."""
        self.live -= self._sizes.pop(book, 0)

    def entries(self, before: int) -> tuple[Words, Books, Slots]:
        """People, books and slots of the entries that pieces before this one said last."""
        old = np.flatnonzero((self._keys[:, 1] != 0) & (self.pieces < before))
        old = old[self._is_open(self._books[old])]
        return self._people(old), self._books[old], old

    def _people(self, slots: Slots) -> Words:
        people = self._keys[slots]
        people[:, 0] ^= self._books[slots].astype(np.uint64) * _APART
        return people

    def _is_open(self, books: Books) -> npt.NDArray[np.bool_]:
        return np.isin(books, np.fromiter(self._sizes, dtype=np.int32, count=len(self._sizes)))

    def _note(self, books: Books) -> None:
        self._taken += len(books)
        self.live += len(books)
        least = int(books.min())
        for book, more in enumerate(np.bincount(books - least).tolist(), least):
            if more:
                self._sizes[book] = self._sizes.get(book, 0) + more

    def _rebuild(self, more: int) -> None:
        kept = np.flatnonzero(self._keys[:, 1])
        kept = kept[self._is_open(self._books[kept])]
        people, books = self._people(kept), self._books[kept]
        counts, pieces = self.counts[kept], self.pieces[kept]
        capacity = _FEWEST
        while len(kept) + more > 0.8 * _FULL * capacity:
            capacity += capacity // 2
        self._allocate(capacity)
        self._sizes, self.live = dict.fromkeys(self._sizes, 0), 0
        for start in range(0, len(people), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            slots = self.slots(people[part], books[part])
            self.counts[slots], self.pieces[slots] = counts[part], pieces[part]


def _different(ours: Words, theirs: Words) -> Slots:
    """The rows in which keys differ."""
    return np.flatnonzero((ours[:, 0] != theirs[:, 0]) | (ours[:, 1] != theirs[:, 1]))
