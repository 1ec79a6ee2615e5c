"""Counting the events of some windows under one bound: what all streams with the same condition, windows and lateness share.

Of each person's events that satisfy the condition, lie in a window and are not late for it, the first ``contribution`` count, in
the partition's order and over all groups; nothing that others do changes which. Where people are counted, the first of these events alone
does: a person counts once in a window, in that event's group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from schemas.sources import Domain, Integers
from stream.data.expressions import Predicate
from stream.processors.feeds.batch import Batch, Column, Mask, cell_count, runs
from stream.processors.feeds.cells import Cells, Counting
from stream.processors.feeds.visits import Books, Slots, Visits, Words

NO_END: Final = 1 << 62

_WHOLE_LIFE: Final = 0
"""The book of all windows together, in the table that bounds what counts over all of them."""
Table = Literal["window", "life"]
"""What a table counts of a person: the events of a window, or all that counts at all."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which windows there are, and what counts in them; ``total`` bounds each person over all of them."""

    predicate: Predicate
    size: int
    every: int
    lateness: int
    contribution: int
    total: int | None = None


class Entries(NamedTuple):
    """Entries of a table: people, books, and the slots that they have."""

    people: Words
    books: Books
    slots: Slots


@dataclass(slots=True)
class Touched:
    """What a batch changed of a tally."""

    people: dict[Table, Entries] = field(default_factory=dict)
    cells: dict[Counting, Column] = field(default_factory=dict)


class Tally:
    """Open windows from ``first`` to ``last``, by their beginning: for each, who was counted how often, and the cells."""

    def __init__(self, number: int, shape: Shape, domains: Mapping[str, Domain], last: int = NO_END) -> None:
        self.number = number
        self.shape = shape
        self.last = last
        self.first = NO_END
        self.rows: dict[int, int] = {}
        """The row of each open window that something was counted in."""
        self.tables: dict[Table, Visits] = {"window": Visits(shape.contribution)}
        if shape.total is not None:
            self.tables["life"] = Visits(shape.total)
        self.cells: dict[Counting, Cells] = {}
        self.counted = self.late = self.left_out = 0
        self._domains = domains
        self._free: list[int] = []
        self._books: dict[int, int] = {}
        self._next_book = 1

    def require(self, counting: Counting) -> Cells:
        """The cells of a kind of counting."""
        found = self.cells.get(counting)
        if found is None:
            domain = self._domains[counting.sum] if counting.sum is not None else None
            minimum = domain.minimum if isinstance(domain, Integers) else 0
            found = Cells(counting, cell_count(self._domains, counting.by), minimum)
            found.reserve(len(self.rows) + len(self._free))
            self.cells[counting] = found
        return found

    def release(self, counting: Counting) -> None:
        """Count this no more."""
        del self.cells[counting]

    def count(self, batch: Batch, piece: int) -> Touched | None:
        """Count a batch's events; what that changes goes into a piece of the changelog. None if it changes nothing."""
        rows, starts = self._windows(batch)
        if not len(rows):
            return None
        rows, starts, begins, lengths = _by_person_and_window(batch, rows, starts)
        books, window_rows = self._open(starts)
        touched = Touched()
        found = _Found(batch, rows, books, piece, touched)
        rank = self._rank("window", found, begins, lengths, self.shape.contribution)
        counts = rank < self.shape.contribution
        for counting, cells in self.cells.items():
            wanted = counts & (rank == 0) if counting.people else counts
            if self.shape.total is not None:
                wanted = self._within_total(found, wanted)
            self.counted += int(np.count_nonzero(wanted))
            events = rows[wanted]
            places = window_rows[wanted] * cells.cells + batch.cells(counting.by)[events]
            codes = batch.codes(counting.sum)[events] if counting.sum is not None else None
            touched.cells[counting] = cells.add(places, codes, piece)
        self.left_out += int(len(counts) - np.count_nonzero(counts))
        return touched

    def _rank(self, table: Table, found: _Found, begins: Column, lengths: Column, most: int) -> Column:
        """How many of a table's count stand before each row, in runs of one person and book, and take the rows in."""
        visits, heads = self.tables[table], found.rows[begins]
        people, books = found.batch.people[heads], found.books[begins]
        slots = visits.slots(people, books)
        before = visits.counts[slots].astype(np.int64)
        visits.counts[slots] = np.minimum(before + lengths, most)
        changed = before < most
        visits.pieces[slots[changed]] = found.piece
        found.touched.people[table] = Entries(people[changed], books[changed], slots[changed])
        rank: Column = np.arange(len(found.rows)) + np.repeat(before - begins, lengths)
        return rank

    def _windows(self, batch: Batch) -> tuple[Column, Column]:
        """Each event that satisfies the condition with each window that it lies in and is not late for."""
        shape = self.shape
        inside = np.flatnonzero(batch.mask(shape.predicate))
        times, clocks = batch.times[inside], batch.clocks[inside]
        latest = times - times % shape.every
        rows, starts = [], []
        for back in range(0, shape.size, shape.every):
            start = latest - back
            ours = (start >= self.first) & (start <= self.last)
            in_time = ours & (clocks < start + (shape.size + shape.lateness))
            self.late += int(np.count_nonzero(ours) - np.count_nonzero(in_time))
            rows.append(inside[in_time])
            starts.append(start[in_time])
        return (rows[0], starts[0]) if len(rows) == 1 else (np.concatenate(rows), np.concatenate(starts))

    def _open(self, starts: Column) -> tuple[Books, Column]:
        """The book and the row of each of these windows."""
        found, place = np.unique(starts, return_inverse=True)
        windows = found.tolist()
        self.open(windows)
        books = np.array([self._books[start] for start in windows], dtype=np.int32)
        rows = np.array([self.rows[start] for start in windows], dtype=np.int64)
        return books[place], rows[place]

    def open(self, windows: Iterable[int]) -> None:
        """Have a book and a row for each of these windows."""
        for start in windows:
            if start not in self.rows:
                self.rows[start] = self._free.pop() if self._free else len(self.rows)
                self._books[start] = self._next_book
                self._next_book += 1
        for cells in self.cells.values():
            cells.reserve(len(self.rows) + len(self._free))

    def book(self, start: int) -> int:
        """The book of an open window."""
        return self._books[start]

    def starts(self) -> dict[int, int]:
        """The beginning of each open window, by its book."""
        return {book: start for start, book in self._books.items()}

    def _within_total(self, found: _Found, wanted: Mask) -> Mask:
        """Which of the events that a window's bound lets count the bound over all windows lets count too.

        An event that it leaves out has used up its window's bound, which changes nothing: nothing of that person counts any more.
        """
        most = self.shape.total or 0
        chosen = np.flatnonzero(wanted)
        chosen = chosen[np.argsort(found.rows[chosen], kind="stable")]
        rows = found.rows[chosen]
        begins, lengths = runs(found.batch.person[rows])
        life = _Found(
            found.batch, rows, np.full(len(rows), _WHOLE_LIFE, dtype=np.int32), found.piece, found.touched
        )
        rank = self._rank("life", life, begins, lengths, most)
        let = np.zeros(len(wanted), dtype=np.bool_)
        let[chosen[rank < most]] = True
        return let

    def close(self, before: int) -> None:
        """Forget the windows that begin before a moment."""
        for start in [start for start in self.rows if start < before]:
            row = self.rows.pop(start)
            for cells in self.cells.values():
                cells.clear(row)
            self._free.append(row)
            book = self._books.pop(start)
            for visits in self.tables.values():
                visits.drop(book)

    @property
    def people(self) -> int:
        """People in open windows, once for each."""
        return self.tables["window"].live

    @property
    def live(self) -> int:
        """How many figures the changelog must hold."""
        people = sum(visits.live for visits in self.tables.values())
        return people + sum(cells.live for cells in self.cells.values())


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of a batch, the book of each, and where what they change is to be noted."""

    batch: Batch
    rows: Column
    books: Books
    piece: int
    touched: Touched


def _by_person_and_window(batch: Batch, rows: Column, starts: Column) -> tuple[Column, Column, Column, Column]:
    """Rows by person and window, in the partition's order within; where each such pair begins, and its length."""
    person = batch.person[rows]
    windows, window = np.unique(starts, return_inverse=True)
    in_order = bool((rows[1:] > rows[:-1]).all())
    if len(windows) == 1 and in_order:
        begins, lengths = runs(person)
        return rows, starts, begins, lengths
    pair = person * len(windows) + window
    order = np.argsort(pair, kind="stable") if in_order else np.argsort(pair * len(batch) + rows)
    begins, lengths = runs(pair[order])
    return rows[order], starts[order], begins, lengths
