"""What a plan may know of a source: public facts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Movement:
    """``each`` is how far one person moves the number of one group, ``together`` those of all groups, added up.

    ``numbers`` is how many of these may move at all. Their ℓ₂ norm is ``together`` over the root of ``spread`` at most.
    """

    each: int
    together: int
    spread: int
    numbers: int


@dataclass(frozen=True, slots=True)
class Setting:
    """The public facts of a source, as far as a mechanism's plan depends on them.

    ``sensitivity_steps`` is how far one person moves one query of the stream, in steps of ``grid``. ``sizes`` are
    those of the attributes that the mechanism names, ``universe`` is the number of their cells, ``rows`` the public number of rows: that of the table
    where neighbours replace a row, else what the stream's specification gives. ``contributions`` is how many events of
    a stream one person may send; ``rounding`` is how far rounding to the grid moves a value at most: half a step of a feed's,
    while a table's numbers are whole steps.
    ``contribution`` is how many rows of one person count, where rows have persons; what one row moves by Δ a person moves by as many Δ.
    ``movement`` is how far one person moves the numbers of a window of a standing stream, ``horizon`` those of all windows of a running
    count; ``universe`` is then the number of groups.
    ``disjoint`` says that the numbers of one answer are counts of disjoint groups, as those of a table are: one row is in
    one of them only.
    """

    sensitivity_steps: int = 1
    grid: float = 1.0
    neighbors: Literal["add-remove", "replace"] = "add-remove"
    universe: int | None = None
    sizes: tuple[int, ...] = ()
    rows: int | None = None
    contributions: int = 1
    disjoint: bool = False
    rounding: float = 0.0
    contribution: int = 1
    horizon: Movement | None = None
    movement: Movement | None = None

    @property
    def rows_public(self) -> bool:
        """Whether all neighbours have as many rows: where one row stands in another's place, and a person has one."""
        return self.neighbors == "replace" and self.contribution == 1

    @property
    def groups_steps(self) -> int:
        """How far one person moves all counts of disjoint cells together: two of them where one row stands in another's place."""
        return self.contribution * (2 if self.neighbors == "replace" else 1)
