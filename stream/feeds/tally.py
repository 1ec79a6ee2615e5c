"""What all streams with the same condition and windows share: the cells of these windows, and a column of who was counted.

Of each person's events that satisfy the condition, lie in a window and are not late for it, the first ``contribution`` count, in
the partition's order and over all groups; nothing that others do changes which. Where people are counted, the first of these events alone
does: a person counts once in a window, in that event's group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.sources import Domain, Integers
from stream.feeds.event_clock import Column, cell_count
from stream.feeds.person_counts import CellCounts, Counting, Visits
from stream.tables.expressions import Predicate

NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Shape:
    """What counts, and in which windows; ``total`` bounds each person over all of them.

    With a ``period`` it bounds each person in each, and counts only in the windows that begin within ``reach`` of a period's beginning.
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
        """The number of a window's period, counted from 1970; 0 for all windows if there are no periods."""
        return start // self.period if self.period else 0


@dataclass(slots=True)
class OpenWindow:
    """An open window: its row in all cells, and who was counted in it."""

    row: int
    visits: Visits


@dataclass(slots=True, eq=False)
class Tally:
    """Windows from ``first`` to ``last``, by their beginning; ``column`` is its own among the tallies of its form.

    It counts events whose batch's stamps are at ``since`` or later. ``windows`` are the form's; ``reached`` is the last one that
    something was counted in here.
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
    lives: dict[int, Visits] = field(default_factory=dict)
    """How often each person was counted in all windows together, or in those of a period, where that is bounded."""

    @property
    def bit(self) -> int:
        """The set of its column alone."""
        return 1 << self.column

    def counts(self, start: int) -> bool:
        """Whether it counts a window: of a period, one that lies in it, or what is done in the next would use up its bound."""
        if not self.first <= start <= self.last:
            return False
        shape = self.shape
        within = start % shape.period if shape.period else 0
        return not shape.period or (within < shape.reach and within + shape.size <= shape.period)

    def life(self, number: int) -> Visits:
        """How often each person was counted in a period, or in all windows."""
        found = self.lives.get(number)
        if found is None:
            found = self.lives[number] = Visits(self.shape.total or 0, 1)
        return found

    def is_over(self, life: int) -> bool:
        """Whether nobody is counted any more in a period."""
        return bool(self.shape.period) and (life + 1) * self.shape.period <= self.first

    def close(self) -> None:
        """Forget who was counted in periods that are over."""
        self.lives = {number: visits for number, visits in self.lives.items() if not self.is_over(number)}

    def require(self, counting: Counting) -> None:
        """Have cells of a kind of counting."""
        if counting not in self.cells:
            domain = self.domains[counting.sum] if counting.sum is not None else None
            minimum = domain.minimum if isinstance(domain, Integers) else 0
            self.cells[counting] = CellCounts(counting, cell_count(self.domains, counting.by), minimum)
            self.cells[counting].reserve(1 + max((window.row for window in self.windows.values()), default=-1))

    def values(self, counting: Counting, start: int) -> tuple[list[int], list[int]]:
        """A window's cells with a number other than 0, and their numbers."""
        window = self.windows.get(start)
        return ([], []) if window is None else self.cells[counting].values(window.row)

    @property
    def live(self) -> int:
        """How many figures of its own the changelog must hold."""
        return sum(cells.live for cells in self.cells.values()) + sum(map(len, self.lives.values()))


@dataclass(slots=True)
class Touched:
    """What a step changed of a form: rows of people by window, rows of lives by tally and period, and places of cells."""

    people: dict[int, Column] = field(default_factory=dict)
    lives: dict[tuple[int, int], Column] = field(default_factory=dict)
    cells: dict[tuple[int, Counting], Column] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.people or self.lives or self.cells)
