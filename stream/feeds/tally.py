"""Batches of events, and the counts that streams with equal conditions and windows share.

In each window, the first ``contribution`` events of a person count that satisfy the condition and
are in time, in the partition's order and over all groups; other people's events do not matter. If
people are counted, each person counts once in a window, in the group of the first event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas.sources import Domain, Integers
from stream.events import Events
from stream.feeds.person_counts import CellCounts, Counting, PersonCounts
from stream.kernel import Column
from stream.tables.expressions import Codes, Predicate, evaluate
from stream.tables.universe import membership

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
        self._domains = domains
        self._masks: dict[Predicate, Mask] = {}
        self._cells: dict[tuple[str, ...], Column] = {}

    def __len__(self) -> int:
        return len(self.times)

    def codes(self, attribute: str) -> Column:
        """Return each event's value of an attribute as a code."""
        return self._codes[attribute]

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
            found = self._masks[leaf] = membership(leaf.cuts, leaf.size)[self._codes[leaf.attribute]]
        return found


def kept(events: Events, mask: Mask) -> Events:
    """Return the events that a mask selects."""
    if mask.all():
        return events
    codes = {name: column[mask] for name, column in events.codes.items()}
    return Events(
        events.places[mask], events.people[mask], events.homes[mask], events.times[mask], codes, events.flaws
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

    def life(self, number: int) -> PersonCounts:
        """Return the counts of people in a period, or over all windows."""
        found = self.lives.get(number)
        if found is None:
            found = self.lives[number] = PersonCounts(self.shape.total or 0, 1)
        return found

    def is_over(self, life: int) -> bool:
        """Return True if all windows of a period are published."""
        return bool(self.shape.period) and (life + 1) * self.shape.period <= self.first

    def close(self) -> None:
        """Drop the counts of past periods."""
        self.lives = {number: visits for number, visits in self.lives.items() if not self.is_over(number)}

    def require(self, counting: Counting) -> None:
        """Create the cells for a ``counting``, if they are missing."""
        if counting not in self.cells:
            domain = self.domains[counting.sum] if counting.sum is not None else None
            minimum = domain.minimum if isinstance(domain, Integers) else 0
            self.cells[counting] = CellCounts(counting, cell_count(self.domains, counting.by), minimum)
            self.cells[counting].reserve(1 + max((window.row for window in self.windows.values()), default=-1))

    def values(self, counting: Counting, start: int) -> tuple[list[int], list[int]]:
        """Return a window's nonzero cells and their values."""
        window = self.windows.get(start)
        return ([], []) if window is None else self.cells[counting].values(window.row)

    @property
    def live(self) -> int:
        """Return the number of this tally's entries in the changelog."""
        return sum(cells.live for cells in self.cells.values()) + sum(map(len, self.lives.values()))


@dataclass(slots=True)
class Touched:
    """One step's changes: people's rows by window or by tally and period, and cell places."""

    people: dict[int, Column] = field(default_factory=dict)
    lives: dict[tuple[int, int], Column] = field(default_factory=dict)
    cells: dict[tuple[int, Counting], Column] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.people or self.lives or self.cells)
