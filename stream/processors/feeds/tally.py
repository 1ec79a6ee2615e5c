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
from stream.data.expressions import Predicate
from stream.processors.feeds.batch import Column, cell_count
from stream.processors.feeds.cells import Cells, Counting
from stream.processors.feeds.visits import Visits

NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Shape:
    """What counts, and in which windows; ``total`` bounds each person over all of them."""

    predicate: Predicate
    size: int
    every: int
    lateness: int
    contribution: int
    total: int | None = None


@dataclass(slots=True)
class Window:
    """An open window: its row in all cells, and who was counted in it."""

    row: int
    visits: Visits


@dataclass(slots=True, eq=False)
class Tally:
    """Windows from ``first`` to ``last``, by their beginning; ``column`` is its own among the tallies of its form.

    ``windows`` are the form's; ``reached`` is the last one that something was counted in here.
    """

    number: int
    shape: Shape
    column: int
    domains: Mapping[str, Domain]
    windows: Mapping[int, Window]
    last: int = NO_END
    first: int = NO_END
    reached: int = -1
    cells: dict[Counting, Cells] = field(default_factory=dict)
    life: Visits | None = None
    """How often each person was counted in all windows together, where that is bounded."""

    def __post_init__(self) -> None:
        """Begin with nothing counted."""
        if self.shape.total is not None:
            self.life = Visits(self.shape.total, 1)

    @property
    def bit(self) -> int:
        """The set of its column alone."""
        return 1 << self.column

    def counts(self, start: int) -> bool:
        """Whether it counts a window."""
        return self.first <= start <= self.last

    def require(self, counting: Counting) -> None:
        """Have cells of a kind of counting."""
        if counting not in self.cells:
            domain = self.domains[counting.sum] if counting.sum is not None else None
            minimum = domain.minimum if isinstance(domain, Integers) else 0
            self.cells[counting] = Cells(counting, cell_count(self.domains, counting.by), minimum)
            self.cells[counting].reserve(1 + max((window.row for window in self.windows.values()), default=-1))

    def values(self, counting: Counting, start: int) -> tuple[list[int], list[int]]:
        """A window's cells with a number other than 0, and their numbers."""
        window = self.windows.get(start)
        return ([], []) if window is None else self.cells[counting].values(window.row)

    @property
    def live(self) -> int:
        """How many figures of its own the changelog must hold."""
        return sum(cells.live for cells in self.cells.values()) + (0 if self.life is None else len(self.life))


@dataclass(slots=True)
class Touched:
    """What a step changed of a form: rows of people by window, rows of lives by tally, and places of cells."""

    people: dict[int, Column] = field(default_factory=dict)
    lives: dict[int, Column] = field(default_factory=dict)
    cells: dict[tuple[int, Counting], Column] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.people or self.lives or self.cells)
