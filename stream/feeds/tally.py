"""Counts of events: per person, for the contribution bound, and per cell.

A tally has both counts for all streams with the same condition and windows.

In each window, of the events of a person that satisfy the condition and are in time, the first
``contribution`` are counted, in the partition's order and over all groups. Other people's events have
no effect. If people are counted, each is counted once per window, in the group of the first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Numeric
from schemas.domains import Domain
from stream.events.event_decoding import Events
from stream.feeds.text_tally import TextTally, TouchedTexts
from stream.kernel.byte_columns import Column
from stream.kernel.key_numbering import (
    AddedCounts,
    BoundedCounts,
    KeyNumbering,
    add_counts,
    count_up_to_bound,
    grow_in_place,
)
from stream.tables.expressions import Codes, Predicate, evaluate
from stream.tables.universe import code_mask

UInt64Array = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]

NOT_IN_CHANGELOG: Final = -1
"""In place of a piece number, for values that no record (piece) of the changelog contains yet."""
_BITS: Final = (1, 2, 4, 8, 16, 32)


def count_type(max_count: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest type for 0 … ``max_count``."""
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

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return self._keys.nbytes + self._counts.nbytes + self._pieces.nbytes

    def count(self, people: UInt64Array, column_masks: UInt64Array, piece_number: int) -> BoundedCounts:
        """Add 1 per event to its person's counts in the columns of its bit mask, up to the bound.

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
    whole = np.frombuffer(value, dtype=np.uint8).reshape(-1, packed_bytes(max_count, width))
    found: Counts = np.zeros((len(whole), width), dtype=np.uint8)
    for place in range(8 // bits):
        columns = found[:, place :: 8 // bits]
        columns[:] = whole[:, : columns.shape[1]] >> np.uint8(place * bits) & np.uint8((1 << bits) - 1)
    return found


def packed_bytes(max_count: int, width: int) -> int:
    """Return the bytes of one row."""
    return -(-_bits(max_count) * width // 8)


def _bits(max_count: int) -> int:
    return next(bits for bits in _BITS if bits >= max_count.bit_length())


Pieces = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CountedQuantity:
    """The quantity that a stream counts: events, people or the sum of an attribute, in groups ``by`` attributes.

    ``most_bytes`` is the limit on a window's texts if the group is a text attribute; 0 if not.
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
        self.pieces: Pieces = np.zeros(0, dtype=np.int32)
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
        """Count the events whose mask contains ``column_bit``, each at its place (row · cells + cell).

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
        whole = slice(row * self.cells, (row + 1) * self.cells)
        self.entry_count -= int(np.count_nonzero(self.pieces[whole] != NOT_IN_CHANGELOG))
        self.counts[whole] = 0
        self.pieces[whole] = NOT_IN_CHANGELOG
        if self.quantity.sum is not None:
            self.sums[whole] = 0

    def values(self, row: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        whole = slice(row * self.cells, (row + 1) * self.cells)
        counts = self.counts[whole]
        cells = np.flatnonzero(counts)
        found = counts[cells].tolist()
        if self.quantity.sum is not None:
            sums = self.sums[whole][cells].tolist()
            found = [self._minimum * count + total for count, total in zip(found, sums, strict=True)]
        pairs = [(cell, number) for cell, number in zip(cells.tolist(), found, strict=True) if number]
        return [cell for cell, _ in pairs], [number for _, number in pairs]

    def renumber_old_entries(self, before: int, piece_number: int) -> Column:
        """Mark the places of pieces before ``before`` with ``piece_number``, and return these places."""
        places = np.flatnonzero((self.pieces != NOT_IN_CHANGELOG) & (self.pieces < before))
        self.pieces[places] = piece_number
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
class CountingRule:
    """Which events a tally counts: its condition, windows and bounds, with times in milliseconds.

    ``total`` bounds each person over all windows. With a ``period``, it bounds each person per
    period, and windows are counted only if they begin less than ``counted_ms`` after the period's
    start.
    """

    predicate: Predicate
    size: int
    interval_ms: int
    lateness: int
    contribution: int
    total: int | None = None
    period: int = 0
    counted_ms: int = 0

    def period_of(self, start: int) -> int:
        """Return the number of a window's period since 1970; 0 without periods."""
        return start // self.period if self.period else 0


@dataclass(slots=True)
class OpenWindow:
    """An open window: its row in each ``CellCounts``, and the people counted in it."""

    row: int
    person_counts: PersonCounts


@dataclass(slots=True, eq=False)
class Tally:
    """Counts under one condition in the windows that start from ``first`` to ``last``.

    It counts events with record timestamps at or after ``since``. ``column`` is its column in the
    tables of people that the tallies of one ``Form`` share, ``windows`` has the form's open windows,
    and ``last_counted`` is the start of the last window in which it counted an event.
    """

    number: int
    rule: CountingRule
    column: int
    domains: Mapping[str, Domain]
    windows: Mapping[int, OpenWindow]
    since: int
    last: int = NO_END
    first: int = NO_END
    last_counted: int = -1
    cells: dict[CountedQuantity, CellCounts] = field(default_factory=dict)
    texts: dict[CountedQuantity, TextTally] = field(default_factory=dict)
    lifetime_counts: dict[int, PersonCounts] = field(default_factory=dict)
    """Counts of each person over all windows, or over those of a period, if they are bounded."""

    @property
    def column_bit(self) -> int:
        """A word with the bit of its column."""
        return 1 << self.column

    def includes_window(self, start: int) -> bool:
        """Return whether it counts a window; with periods, the window must lie in one period."""
        if not self.first <= start <= self.last:
            return False
        rule = self.rule
        within = start % rule.period if rule.period else 0
        return not rule.period or (within < rule.counted_ms and within + rule.size <= rule.period)

    def counts_of_period(self, number: int) -> PersonCounts:
        """Return the counts of people in a period, or over all windows."""
        found = self.lifetime_counts.get(number)
        if found is None:
            found = self.lifetime_counts[number] = PersonCounts(self.rule.total or 0, 1)
        return found

    def period_is_over(self, period: int) -> bool:
        """Return True if all windows of a period are published."""
        return bool(self.rule.period) and (period + 1) * self.rule.period <= self.first

    def close(self) -> None:
        """Drop the counts of past periods."""
        self.lifetime_counts = {
            number: person_counts
            for number, person_counts in self.lifetime_counts.items()
            if not self.period_is_over(number)
        }

    def ensure_cells(self, quantity: CountedQuantity) -> None:
        """Create the cells of a counted quantity, if they are missing."""
        if quantity.most_bytes:
            self.texts.setdefault(quantity, TextTally(quantity.most_bytes))
        elif quantity not in self.cells:
            domain = self.domains[quantity.sum] if quantity.sum is not None else None
            minimum = domain.in_steps.minimum if isinstance(domain, Numeric) else 0
            self.cells[quantity] = CellCounts(quantity, cell_count(self.domains, quantity.by), minimum)
            self.cells[quantity].reserve(1 + max((window.row for window in self.windows.values()), default=-1))

    def values(self, quantity: CountedQuantity, start: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        window = self.windows.get(start)
        return ([], []) if window is None else self.cells[quantity].values(window.row)

    def text_counts(self, quantity: CountedQuantity, start: int) -> Mapping[bytes, int] | None:
        """Return the counts of a window's texts; None if they are too large."""
        window = self.windows.get(start)
        return {} if window is None else self.texts[quantity].counts(window.row)

    def drop_unused(self, used: Iterable[CountedQuantity]) -> None:
        """Drop the cells of all quantities that are not ``used``."""
        kept = set(used)
        self.cells = {quantity: cells for quantity, cells in self.cells.items() if quantity in kept}
        self.texts = {quantity: texts for quantity, texts in self.texts.items() if quantity in kept}

    def clear(self, row: int) -> None:
        """Empty a closed window's cells."""
        for cells in self.cells.values():
            cells.clear(row)
        for texts in self.texts.values():
            texts.clear(row)

    @property
    def entry_count(self) -> int:
        """Return the number of this tally's entries in the changelog."""
        counted = sum(cells.entry_count for cells in self.cells.values())
        counted += sum(texts.entry_count for texts in self.texts.values())
        return counted + sum(map(len, self.lifetime_counts.values()))


@dataclass(slots=True)
class StepChanges:
    """The changes of one step.

    ``people`` has rows of ``PersonCounts`` by window, ``lifetime_counts`` rows by tally and period.
    ``cells`` has places and ``texts`` the changed texts, by tally and counted quantity.
    """

    people: dict[int, Column] = field(default_factory=dict)
    lifetime_counts: dict[tuple[int, int], Column] = field(default_factory=dict)
    cells: dict[tuple[int, CountedQuantity], Column] = field(default_factory=dict)
    texts: dict[tuple[int, CountedQuantity], TouchedTexts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.people or self.lifetime_counts or self.cells or self.texts)
