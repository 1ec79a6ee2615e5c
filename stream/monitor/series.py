"""Figures over time, in bounded memory.

A series keeps rows of numbers, the time first. Within a slot of ``spacing`` seconds the latest row stands for all. A
series is either a window, which drops its oldest rows, or a whole life, which drops every other row and doubles its
spacing when it is full. Rows hold totals, so that dropping rows never loses a count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence


class Series:
    """At most ``limit`` rows of ``width`` numbers each, at least ``spacing`` seconds apart, oldest first."""

    __slots__ = ("_limit", "_rows", "_thins", "_width", "spacing")

    def __init__(self, *, width: int, spacing: float, limit: int, whole_life: bool = False) -> None:
        """Take ``whole_life`` to thin out rather than drop the oldest rows."""
        self._rows = array("d")
        self._width = width
        self._limit = limit
        self._thins = whole_life
        self.spacing = spacing

    def __len__(self) -> int:
        return len(self._rows) // self._width

    def __iter__(self) -> Iterator[Sequence[float]]:
        return (self._row(index) for index in range(len(self)))

    def add(self, row: Sequence[float]) -> None:
        """Take a row. One that is older than the last is taken as of the last row's time."""
        rows, width = self._rows, self._width
        if rows:
            last = rows[-width]
            time = max(row[0], last)
            if len(rows) > width and self._slot(time) == self._slot(last):
                del rows[-width:]
            rows.append(time)
            rows.extend(row[1:])
        else:
            rows.extend(row)
        if len(self) > self._limit:
            self._shrink()

    def at(self, time: float) -> Sequence[float] | None:
        """The last row that is not later than ``time``; the oldest one if all are later, None without any."""
        if not self._rows:
            return None
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._rows[middle * self._width] <= time:
                low = middle + 1
            else:
                high = middle
        return self._row(max(low - 1, 0))

    def _row(self, index: int) -> Sequence[float]:
        return self._rows[index * self._width : (index + 1) * self._width]

    def _slot(self, time: float) -> int:
        return math.floor(time / self.spacing)

    def _shrink(self) -> None:
        width = self._width
        if not self._thins:
            del self._rows[:width]
            return
        while len(self) > self._limit // 2 + 1:
            self.spacing *= 2.0
            kept = array("d", self._rows[:width])
            slots = [self._slot(self._rows[index * width]) for index in range(len(self))]
            for index in range(1, len(self)):
                if index + 1 == len(self) or slots[index] != slots[index + 1]:
                    kept.extend(self._row(index))
            self._rows = kept
