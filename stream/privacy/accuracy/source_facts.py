"""What a plan may know of a source: public facts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas import EventsSource, Integers, StandingQuery, SumOf
from stream.privacy.composition.refusals import RefusedError


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


def movement(source: EventsSource, standing: StandingQuery, groups: int) -> Movement:
    """What one person moves of a window's numbers, one for each of so many groups.

    All of a person's events may lie in one group, which moves it as far as all; in a count of people a person moves
    one group by 1, that of the first event. One who stands in another's place moves no number by more than the distance from
    the least to the greatest that one person adds to it, and all of them by what both add.
    """
    most, replaced = source.contribution, source.neighbors == "replace"
    people = 2 if replaced else 1
    if standing.count == "people":
        moved = min(groups, people)
        return Movement(1, moved, moved, moved)
    low, high = _one_event(source, standing)
    farthest = max(high, -low)
    each = most * max(1, high - low) if replaced else most * farthest
    numbers = min(groups, people * most)
    if not replaced or groups == 1:
        return Movement(each, each, 1, numbers)
    # Of opposite signs both people's numbers may meet in one group and add up there; of one sign they take from each other.
    spread = 1 if low < 0 < high else 2
    return Movement(each, 2 * most * farthest, spread, numbers)


def horizon(source: EventsSource, standing: StandingQuery) -> Movement:
    """What one person moves of the numbers of all groups and windows of a running count, which must not overlap.

    A person's events that count are ``total`` at most; of a count of people, one in each window that the person counts in. They
    may lie in one window and group as in many; RefusedError if nothing bounds them.
    """
    if source.total is None:
        raise RefusedError(
            f"total: source '{source.source}' does not bound how often a person counts in all windows of a running count; register "
            "one with total"
        )
    low, high = _one_event(source, standing)
    farthest = source.total * max(high, -low)
    if source.neighbors == "add-remove":
        return Movement(farthest, farthest, 1, source.total)
    spread = 1 if low < 0 < high else 2
    return Movement(source.total * (high - low), 2 * farthest, spread, 2 * source.total)


def _one_event(source: EventsSource, standing: StandingQuery) -> tuple[int, int]:
    """The least and the most that one event adds to a number, or none. A constant 0 moves nothing, yet noise needs a scale."""
    low, high = ends_of(source, standing.count) if isinstance(standing.count, SumOf) else (1, 1)
    return min(low, 0), max(high, 0 if low < 0 else 1)


def ends_of(source: EventsSource, count: SumOf) -> tuple[int, int]:
    """The ends of the declared range of the attribute that is summed up; RefusedError if it has none."""
    domain = integers_of(source, count)
    return domain.minimum, domain.maximum


def integers_of(source: EventsSource, count: SumOf) -> Integers:
    """The declared range of the attribute that is summed up; RefusedError if it has none."""
    domain = source.attributes.get(count.sum)
    if not isinstance(domain, Integers):
        raise RefusedError(
            "standing.count.sum: the source has no integer attribute of this name; name one that is, or count events"
        )
    return domain
