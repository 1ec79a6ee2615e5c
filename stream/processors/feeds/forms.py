"""Windows of one form, with one table of people for each window: all conditions are counted at one look at each event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from schemas.sources import Domain
from stream.kernel import Bounded
from stream.processors.feeds.batch import Batch, Column
from stream.processors.feeds.cells import Counting
from stream.processors.feeds.tally import NO_END, Shape, Tally, Touched, Window
from stream.processors.feeds.visits import Visits, Words

COLUMNS: Final = 64
"""As many conditions share a table as a word has bits; more have another."""
_WIDTHS: Final = 4
"""Columns are made by so many: a condition that comes later seldom has to make room."""


@dataclass(slots=True)
class Counted:
    """How many events counted, were left out by bounds and came too late, once for each window and condition."""

    counted: int = 0
    left_out: int = 0
    late: int = 0


@dataclass(slots=True)
class _Waiting:
    """What a window lets count of a tally that has a bound over all windows, too."""

    rows: list[Column] = field(default_factory=list)
    windows: list[Column] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """A batch, the piece that tells of what it changes, and what that is; by tally, what waits for a bound over all windows."""

    batch: Batch
    piece: int
    touched: Touched = field(default_factory=Touched)
    waiting: dict[int, _Waiting] = field(default_factory=dict)


class Form:
    """The tallies whose windows have one size, begin equally often and wait equally long; ``windows`` are those that something was counted in.

    Whether an event counts under a condition depends on its person's events under that condition alone: each has a column of its own
    in the people's rows.
    """

    def __init__(self, shape: Shape, domains: Mapping[str, Domain], figures: Counted) -> None:
        self.tallies: dict[int, Tally] = {}
        self.windows: dict[int, Window] = {}
        self.most = shape.contribution
        self._size, self._every = shape.size, shape.every
        self._stays = shape.size + shape.lateness
        self._domains = domains
        self._figures = figures
        self._width = 0
        self._free: list[int] = []

    def takes(self, shape: Shape) -> bool:
        """Whether a tally of this shape may join."""
        alike = (shape.size, shape.every, shape.size + shape.lateness) == (self._size, self._every, self._stays)
        return alike and len(self.tallies) < COLUMNS

    def join(self, number: int, shape: Shape, last: int) -> Tally:
        """Count under one more condition, in a column that nothing was counted in."""
        used = {tally.column for tally in self.tallies.values()}
        column = next(column for column in range(COLUMNS) if column not in used)
        if column >= self._width:
            self._width += _WIDTHS
            for window in self.windows.values():
                window.visits.widen(self._width)
        tally = self.tallies[number] = Tally(number, shape, column, self._domains, self.windows, last)
        return tally

    def leave(self, number: int) -> None:
        """Count under a condition no more."""
        tally = self.tallies.pop(number)
        for window in self.windows.values():
            window.visits.empty(tally.column)

    def count(self, batch: Batch, piece: int) -> Touched | None:
        """Count a batch's events; what that changes goes into a piece of the changelog. None if it changes nothing."""
        step = _Step(batch, piece)
        wanted = np.zeros(len(batch), dtype=np.uint64)
        for tally in self.tallies.values():
            wanted |= batch.mask(tally.shape.predicate).astype(np.uint64) << np.uint64(tally.column)
        for start in self._starts(batch.times[wanted != 0]):
            tallies = [tally for tally in self.tallies.values() if tally.counts(start)]
            columns = np.uint64(sum(1 << tally.column for tally in tallies))
            inside = (batch.times >= start) & (batch.times < start + self._size) & ((wanted & columns) != 0)
            rows = self._in_time(batch, start, np.flatnonzero(inside), wanted & columns)
            if len(rows):
                self._count_in(start, rows, wanted[rows] & columns, tallies, step)
        for number in step.waiting:
            self._count_lives(self.tallies[number], step)
        return step.touched or None

    def _starts(self, times: Column) -> list[int]:
        """The windows that some times lie in, of those that somebody counts."""
        if not len(times):
            return []
        low, high = self.first, max(tally.last for tally in self.tallies.values())
        latest = np.unique(times - times % self._every).tolist()
        found = {start - back for start in latest for back in range(0, self._size, self._every)}
        return sorted(start for start in found if low <= start <= high)

    def _in_time(self, batch: Batch, start: int, rows: Column, wanted: Words) -> Column:
        """The rows that do not come too late for a window."""
        in_time = batch.clocks[rows] < start + self._stays
        if in_time.all():
            return rows
        self._figures.late += _bits(wanted[rows[~in_time]])
        return rows[in_time]

    def _count_in(self, start: int, rows: Column, wanted: Words, tallies: Iterable[Tally], step: _Step) -> None:
        """Count rows in a window, each under the conditions that it is wanted for."""
        window = self.open(start)
        bounded = self._bound(window, rows, wanted, step)
        if len(bounded.changed):
            step.touched.people[start] = bounded.changed
        self._figures.left_out += _bits(wanted & ~bounded.let)
        some = int(np.bitwise_or.reduce(wanted))
        places: dict[tuple[str, ...], Column] = {}
        for tally in tallies:
            if not some >> tally.column & 1:
                continue
            tally.reached = max(tally.reached, start)
            for counting, cells in tally.cells.items():
                let = bounded.first if counting.people else bounded.let
                if tally.life is not None:
                    chosen = rows[(let >> np.uint64(tally.column) & np.uint64(1)) != 0]
                    found = step.waiting.setdefault(tally.number, _Waiting())
                    found.rows.append(chosen)
                    found.windows.append(np.full(len(chosen), window.row, dtype=np.int64))
                    continue
                if counting.by not in places:
                    places[counting.by] = window.row * cells.cells + step.batch.cells(counting.by)[rows]
                self._add(tally, counting, places[counting.by], (let, tally.column), rows, step)

    def _bound(self, window: Window, rows: Column, wanted: Words, step: _Step) -> Bounded:
        """What a window's bound lets count of some rows; they are taken in."""
        return window.visits.count(step.batch.people[rows], wanted, step.piece)

    def _count_lives(self, tally: Tally, step: _Step) -> None:
        """Count what the bound over all windows lets count too, in the partition's order.

        An event that it leaves out has used up its window's bound, which changes nothing: nothing of that person counts any more.
        """
        found = step.waiting[tally.number]
        rows, windows = np.concatenate(found.rows), np.concatenate(found.windows)
        order = np.argsort(rows, kind="stable")
        rows, windows = rows[order], windows[order]
        if tally.life is None or not len(rows):
            return
        bounded = tally.life.count(step.batch.people[rows], np.ones(len(rows), dtype=np.uint64), step.piece)
        if len(bounded.changed):
            step.touched.lives[tally.number] = bounded.changed
        for counting, cells in tally.cells.items():
            places = windows * cells.cells + step.batch.cells(counting.by)[rows]
            self._add(tally, counting, places, (bounded.let, 0), rows, step)

    def _add(
        self, tally: Tally, counting: Counting, places: Column, let: tuple[Words, int], rows: Column, step: _Step
    ) -> None:
        """Add the rows that have a bit to some cells."""
        codes = None if counting.sum is None else step.batch.codes(counting.sum)[rows]
        found = tally.cells[counting].add(places, *let, codes, step.piece)
        self._figures.counted += found.rows
        if len(found.changed):
            step.touched.cells.setdefault((tally.number, counting), []).append(found.changed)

    def open(self, start: int) -> Window:
        """The window that begins then, which is open from now on."""
        window = self.windows.get(start)
        if window is None:
            row = self._free.pop() if self._free else len(self.windows)
            window = self.windows[start] = Window(row, Visits(self.most, self._width))
            for tally in self.tallies.values():
                for cells in tally.cells.values():
                    cells.reserve(len(self.windows) + len(self._free))
        return window

    @property
    def first(self) -> int:
        """The first window that somebody counts."""
        return min((tally.first for tally in self.tallies.values()), default=NO_END)

    def close(self) -> None:
        """Forget the windows that nobody counts any more."""
        before = self.first
        for start in [start for start in self.windows if start < before]:
            row = self.windows.pop(start).row
            for tally in self.tallies.values():
                for cells in tally.cells.values():
                    cells.clear(row)
            self._free.append(row)

    @property
    def people(self) -> int:
        """People in open windows, once for each."""
        return sum(len(window.visits) for window in list(self.windows.values()))

    @property
    def live(self) -> int:
        """How many figures the changelog must hold."""
        return self.people + sum(tally.live for tally in self.tallies.values())

    def tables(self) -> Iterator[Visits]:
        """All tables of people."""
        yield from [window.visits for window in list(self.windows.values())]
        yield from [tally.life for tally in list(self.tallies.values()) if tally.life is not None]


def _bits(words: Words) -> int:
    return int(np.bitwise_count(words).sum())
