"""Counts of events: per person, for the contribution bound, and per cell.

A tally has both counts for all streams with the same condition and windows.

In each window, the first ``contribution`` events of a person are counted, in the partition's order and
over all groups. Only events that satisfy the condition and are in time count; other people's events have
no effect. If people are counted, each person is counted once per window, in the group of the first event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Numeric
from schemas.domains import Domain
from stream.feeds.event_counts import CellCounts, CountedQuantity, PersonCounts, TextTally, TouchedTexts
from stream.feeds.event_decoding import Events
from stream.kernel.byte_columns import Column
from stream.tables.counted_table import code_mask
from stream.tables.expressions import Codes, Predicate, evaluate

NO_END: Final = 1 << 62

Mask = npt.NDArray[np.bool_]


class EventBatch:
    """Events to count, with the partition's clock and the timestamp at each event."""

    def __init__(self, events: Events, clocks: Column, stamps: Column, domains: Mapping[str, Domain]) -> None:
        self.people = events.people
        self.times = events.times
        self.clocks = clocks
        self.stamps = stamps
        self.codes: Final = events.codes
        self.texts: Final = events.texts
        self._domains = domains
        self._masks: dict[Predicate, Mask] = {}
        self._cells: dict[tuple[str, ...], Column] = {}

    def __len__(self) -> int:
        return len(self.times)

    def mask(self, predicate: Predicate) -> Mask:
        """Return a mask of the events that satisfy a predicate."""
        if (found := self._masks.get(predicate)) is None:
            found = self._masks[predicate] = np.broadcast_to(
                evaluate(predicate, np.bool_, self._leaf, np.logical_and, np.logical_or), len(self)
            )
        return found

    def cells(self, by: tuple[str, ...]) -> Column:
        """Return the cell of each event, in row-major order of these attributes."""
        if (found := self._cells.get(by)) is None:
            found = np.zeros(len(self), dtype=np.int64)
            for name in by:
                found *= self._domains[name].size
                found += self.codes[name]
            self._cells[by] = found
        return found

    def _leaf(self, leaf: Codes) -> Any:
        if (found := self._masks.get(leaf)) is None:
            found = self._masks[leaf] = code_mask(leaf.cuts, leaf.size)[self.codes[leaf.attribute]]
        return found


def select_events(events: Events, mask: Mask) -> Events:
    """Return the events that a mask selects."""
    if mask.all():
        return events
    return replace(
        events,
        indices=events.indices[mask],
        people=events.people[mask],
        homes=events.homes[mask],
        times=events.times[mask],
        codes={name: column[mask] for name, column in events.codes.items()},
    )


def cell_count(domains: Mapping[str, Domain], by: Sequence[str]) -> int:
    """Return the number of cells of some attributes; 1 without attributes."""
    return math.prod(domains[name].size for name in by)


@dataclass(frozen=True, slots=True)
class CountingRule:
    """The rule by which a tally counts events: condition, windows and bounds, with times in milliseconds.

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
    tables of people that the tallies of one ``TallyGroup`` share, ``windows`` has the group's open windows,
    and ``last_counted`` is the start of the last window in which it counted an event. ``begin`` is the start of
    the first window or, if the definition does not tell it, of the first since the process began; earlier
    windows have no late events.
    """

    number: int
    rule: CountingRule
    column: int
    domains: Mapping[str, Domain]
    windows: Mapping[int, OpenWindow]
    since: int
    last: int = NO_END
    first: int = NO_END
    begin: int = NO_END
    last_counted: int = -1
    cells: dict[CountedQuantity, CellCounts] = field(default_factory=dict)
    texts: dict[CountedQuantity, TextTally] = field(default_factory=dict)
    lifetime_counts: dict[int, PersonCounts] = field(default_factory=dict)
    """Counts of each person over all windows, or over a period's windows, if they are bounded."""

    @property
    def column_bit(self) -> int:
        """A word in which only the bit of the tally's column is set."""
        return 1 << self.column

    def includes_window(self, start: int) -> bool:
        """Return whether the tally counts a window; with periods, the window must lie in one period."""
        rule = self.rule
        within = start % rule.period if rule.period else 0
        in_period = not rule.period or (within < rule.counted_ms and within + rule.size <= rule.period)
        return self.first <= start <= self.last and in_period

    def counts_of_period(self, number: int) -> PersonCounts:
        """Return the counts of people in a period, or over all windows."""
        if (found := self.lifetime_counts.get(number)) is None:
            found = self.lifetime_counts[number] = PersonCounts(self.rule.total or 0, 1)
        return found

    def period_is_over(self, period: int) -> bool:
        """Return True if all windows of a period are published."""
        return bool(self.rule.period) and (period + 1) * self.rule.period <= self.first

    def drop_past_periods(self) -> None:
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
