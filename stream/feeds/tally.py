"""Batches of events, and their counts per person, per cell and per tally.

A tally has the counts that streams with equal conditions and windows share.

In each window, a person's first ``contribution`` events count that satisfy the condition and are in
time. Their order is that of the partition, over all groups; other people's events have no effect.
If people are counted, each person counts once in a window, in the group of the first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Numeric
from schemas.domains import Domain
from stream.events import Events
from stream.feeds.text_tally import TextTally, TouchedTexts
from stream.kernel import (
    AddedCounts,
    BoundedCounts,
    Column,
    KeyNumbering,
    add_counts,
    count_up_to_bound,
    grow_in_place,
)
from stream.tables.expressions import Codes, Predicate, evaluate
from stream.tables.universe import code_mask

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]

NO_PIECE: Final = -1
"""The piece number of values that are in no piece of the changelog."""
_BITS: Final = (1, 2, 4, 8, 16, 32)


def count_type(most: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest type for 0 … ``most``."""
    return np.dtype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32)


class PersonCounts:
    """A table of people's counts in one window or over several, with a row for each person.

    Rows are never removed. Each row is marked with the number of the changelog piece that has its
    current counts.
    """

    def __init__(self, most: int, width: int) -> None:
        """``most`` limits the counts in each of ``width`` columns."""
        self._most = most
        self._keys = KeyNumbering()
        self._counts: Counts = np.zeros((0, width), dtype=count_type(most))
        self._pieces: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return self._keys.nbytes + self._counts.nbytes + self._pieces.nbytes

    def count(self, people: Words, wanted: Words, piece: int) -> BoundedCounts:
        """Count each event's person in wanted columns up to the bound; mark them with ``piece``."""
        return count_up_to_bound(self._rows(people), wanted, self._counts, self._most, self._pieces, piece)

    def put(self, people: Words, columns: Sequence[int], counts: Counts, piece: int) -> None:
        """Apply a piece's counts of people in some columns; pieces must come in order."""
        rows = self._rows(people)
        for place, column in enumerate(columns):
            self._counts[rows, column] = counts[:, place]
        self._pieces[rows] = piece

    def people(self, rows: Column) -> Words:
        """Return the people of some rows."""
        return self._keys.keys_of(rows)

    def counts(self, rows: Column, columns: Sequence[int]) -> Counts:
        """Return the counts in some rows and columns."""
        return self._counts[rows][:, columns]

    def remark_old_entries(self, before: int, piece: int) -> Column:
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
        """Set all counts of a column to 0."""
        self._counts[:, column] = 0

    def _rows(self, people: Words) -> Column:
        before = len(self)
        rows = self._keys.number_keys(people)
        self._counts, self._pieces = grow_in_place(self._counts, len(self)), grow_in_place(self._pieces, len(self))
        self._pieces[before : len(self)] = NO_PIECE
        return rows


def pack_counts(counts: Counts, most: int) -> bytes:
    """Encode rows of counts up to ``most`` in the fewest bytes per row."""
    bits = _bits(most)
    if bits >= 8:
        return counts.astype(f"<u{bits // 8}").tobytes()
    found = np.zeros((len(counts), packed_bytes(most, counts.shape[1])), dtype=np.uint8)
    for place in range(8 // bits):
        columns = counts[:, place :: 8 // bits].astype(np.uint8)
        found[:, : columns.shape[1]] |= columns << np.uint8(place * bits)
    return found.tobytes()


def unpack_counts(value: bytes, most: int, width: int) -> Counts:
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
    """The counted quantity of events, and the attributes of its groups.

    ``most_bytes`` is the limit on a window's texts if the group is a text attribute; 0 if not.
    """

    by: tuple[str, ...]
    people: bool = False
    sum: str | None = None
    most_bytes: int = 0


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
        """The number of cells with counts, over all windows."""

    def reserve(self, rows: int) -> None:
        """Make room for this number of windows."""
        size = rows * self.cells
        if size > len(self.counts):
            more = max(size, 2 * len(self.counts)) - len(self.counts)
            self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
            self.pieces = np.concatenate([self.pieces, np.full(more, NO_PIECE, dtype=np.int32)])
            if self.counting.sum is not None:
                self.sums = np.concatenate([self.sums, np.zeros(more, dtype=np.int64)])

    def add(self, places: Column, bits: Words, bit: int, codes: Column | None, piece: int) -> AddedCounts:
        """Count events with ``bit`` at places (row · cells + cell); mark these with ``piece``."""
        found = add_counts(places, bits, bit, codes, self.counts, self.sums, self.pieces, piece)
        self.live += found.newly_marked
        return found

    def put(self, places: Column, counts: Column, sums: Column | None, piece: int) -> None:
        """Apply a piece's values of some places; pieces must come in order."""
        self.counts[places] = counts
        self.live += int(np.count_nonzero(self.pieces[places] == NO_PIECE))
        self.pieces[places] = piece
        if sums is not None:
            self.sums[places] = sums

    def clear(self, row: int) -> None:
        """Empty a window's cells."""
        whole = slice(row * self.cells, (row + 1) * self.cells)
        self.live -= int(np.count_nonzero(self.pieces[whole] != NO_PIECE))
        self.counts[whole] = 0
        self.pieces[whole] = NO_PIECE
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

    def remark_old_entries(self, before: int, piece: int) -> Column:
        """Return the places marked with pieces before ``before``, and mark them with ``piece``."""
        places = np.flatnonzero((self.pieces != NO_PIECE) & (self.pieces < before))
        self.pieces[places] = piece
        return places


NO_END: Final = 1 << 62

Mask = npt.NDArray[np.bool_]


class EventBatch:
    """Events to count, with the partition's clock and timestamps at each one."""

    def __init__(self, events: Events, clocks: Column, stamps: Column, domains: Mapping[str, Domain]) -> None:
        self.people = events.people
        self.times = events.times
        self.clocks = clocks
        self.stamps = stamps
        self._codes = events.codes
        self._texts = events.texts
        self._domains = domains
        self._masks: dict[Predicate, Mask] = {}
        self._cells: dict[tuple[str, ...], Column] = {}

    def __len__(self) -> int:
        return len(self.times)

    def codes(self, attribute: str) -> Column:
        """Return each event's value of an attribute as a code."""
        return self._codes[attribute]

    def texts(self, attribute: str) -> Sequence[bytes]:
        """Return the texts of a text attribute, by code."""
        return self._texts[attribute]

    def mask(self, predicate: Predicate) -> Mask:
        """Return a mask of the events that satisfy a predicate."""
        found = self._masks.get(predicate)
        if found is None:
            found = self._masks[predicate] = np.broadcast_to(
                evaluate(predicate, np.bool_, self._leaf, np.logical_and, np.logical_or), len(self)
            )
        return found

    def cells(self, by: tuple[str, ...]) -> Column:
        """Return the cell of each event, in row-major order of these attributes."""
        found = self._cells.get(by)
        if found is None:
            found = np.zeros(len(self), dtype=np.int64)
            for name in by:
                found *= self._domains[name].size
                found += self._codes[name]
            self._cells[by] = found
        return found

    def _leaf(self, leaf: Codes) -> Any:
        found = self._masks.get(leaf)
        if found is None:
            found = self._masks[leaf] = code_mask(leaf.cuts, leaf.size)[self._codes[leaf.attribute]]
        return found


def select_events(events: Events, mask: Mask) -> Events:
    """Return the events that a mask selects."""
    if mask.all():
        return events
    codes = {name: column[mask] for name, column in events.codes.items()}
    return Events(
        events.places[mask],
        events.people[mask],
        events.homes[mask],
        events.times[mask],
        codes,
        events.flaws,
        events.texts,
    )


def cell_count(domains: Mapping[str, Domain], by: Sequence[str]) -> int:
    """Return the number of cells of some attributes; 1 without attributes."""
    count = 1
    for name in by:
        count *= domains[name].size
    return count


@dataclass(frozen=True, slots=True)
class Shape:
    """A condition, windows and bounds; ``total`` bounds each person over all windows.

    With a ``period``, ``total`` bounds each person per period, and only windows that begin within
    ``reach`` of its start count.
    """

    predicate: Predicate
    size: int
    every: int
    lateness: int
    contribution: int
    total: int | None = None
    period: int = 0
    reach: int = 0

    def period_of(self, start: int) -> int:
        """Return the number of a window's period since 1970; 0 without periods."""
        return start // self.period if self.period else 0


@dataclass(slots=True)
class OpenWindow:
    """An open window: its row in each ``CellCounts``, and the people counted in it."""

    row: int
    visits: PersonCounts


@dataclass(slots=True, eq=False)
class Tally:
    """Counts under one condition in the windows that start from ``first`` to ``last``.

    It counts events with record timestamps at or after ``since``. ``column`` is its column in the
    people's tables of its form, ``windows`` are the form's, and ``reached`` is its last counted
    one.
    """

    number: int
    shape: Shape
    column: int
    domains: Mapping[str, Domain]
    windows: Mapping[int, OpenWindow]
    since: int
    last: int = NO_END
    first: int = NO_END
    reached: int = -1
    cells: dict[Counting, CellCounts] = field(default_factory=dict)
    texts: dict[Counting, TextTally] = field(default_factory=dict)
    lives: dict[int, PersonCounts] = field(default_factory=dict)
    """Counts of each person over all windows, or over those of a period, if they are bounded."""

    @property
    def bit(self) -> int:
        """A word with the bit of its column."""
        return 1 << self.column

    def counts(self, start: int) -> bool:
        """Return whether it counts a window; with periods, the window must lie in one period."""
        if not self.first <= start <= self.last:
            return False
        shape = self.shape
        within = start % shape.period if shape.period else 0
        return not shape.period or (within < shape.reach and within + shape.size <= shape.period)

    def counts_of_period(self, number: int) -> PersonCounts:
        """Return the counts of people in a period, or over all windows."""
        found = self.lives.get(number)
        if found is None:
            found = self.lives[number] = PersonCounts(self.shape.total or 0, 1)
        return found

    def is_over(self, period: int) -> bool:
        """Return True if all windows of a period are published."""
        return bool(self.shape.period) and (period + 1) * self.shape.period <= self.first

    def close(self) -> None:
        """Drop the counts of past periods."""
        self.lives = {number: visits for number, visits in self.lives.items() if not self.is_over(number)}

    def require(self, counting: Counting) -> None:
        """Create the cells for a ``counting``, if they are missing."""
        if counting.most_bytes:
            self.texts.setdefault(counting, TextTally(counting.most_bytes))
        elif counting not in self.cells:
            domain = self.domains[counting.sum] if counting.sum is not None else None
            minimum = domain.in_steps.minimum if isinstance(domain, Numeric) else 0
            self.cells[counting] = CellCounts(counting, cell_count(self.domains, counting.by), minimum)
            self.cells[counting].reserve(1 + max((window.row for window in self.windows.values()), default=-1))

    def values(self, counting: Counting, start: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        window = self.windows.get(start)
        return ([], []) if window is None else self.cells[counting].values(window.row)

    def text_counts(self, counting: Counting, start: int) -> Mapping[bytes, int] | None:
        """Return the counts of a window's texts; None if they are too large."""
        window = self.windows.get(start)
        return {} if window is None else self.texts[counting].counts(window.row)

    def drop_unused(self, used: Iterable[Counting]) -> None:
        """Drop the cells of all but the ``used`` countings."""
        kept = set(used)
        self.cells = {counting: cells for counting, cells in self.cells.items() if counting in kept}
        self.texts = {counting: texts for counting, texts in self.texts.items() if counting in kept}

    def clear(self, row: int) -> None:
        """Empty a closed window's cells."""
        for cells in self.cells.values():
            cells.clear(row)
        for texts in self.texts.values():
            texts.clear(row)

    @property
    def live(self) -> int:
        """Return the number of this tally's entries in the changelog."""
        counted = sum(cells.live for cells in self.cells.values())
        counted += sum(texts.live for texts in self.texts.values())
        return counted + sum(map(len, self.lives.values()))


@dataclass(slots=True)
class Touched:
    """One step's changes: people's rows by window or by tally and period, cell places, and texts."""

    people: dict[int, Column] = field(default_factory=dict)
    lives: dict[tuple[int, int], Column] = field(default_factory=dict)
    cells: dict[tuple[int, Counting], Column] = field(default_factory=dict)
    texts: dict[tuple[int, Counting], TouchedTexts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.people or self.lives or self.cells or self.texts)
