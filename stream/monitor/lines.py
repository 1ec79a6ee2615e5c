"""The lines of a list: a source or a stream each, with the periods of one that has any folded away under it.

What lists do goes by lines, so that a year of hours costs them no more than a day.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from schemas import named_from


class Lines:
    """Names, each with the moments at which the periods begin that it has; both in the order in which they came, or of time."""

    def __init__(self) -> None:
        self._starts: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def add(self, name: str, *, period: bool = True) -> None:
        """Take up a name: that of a period under what it is one of, unless told that it only looks like one."""
        named = named_from(name) if period else None
        if named is None:
            self._starts.setdefault(name, [])
            return
        starts = self._starts.setdefault(named[0], [])
        place = bisect_left(starts, named[1])
        if place == len(starts) or starts[place] != named[1]:
            starts.insert(place, named[1])

    def periods(self, name: str) -> Sequence[str]:
        """When the periods of a line begin, the oldest first."""
        return self._starts.get(name, ())

    def names(self, name: str) -> Sequence[str]:
        """What the periods of a line are called, the oldest first."""
        return [f"{name}@{start}" for start in self.periods(name)]

    def current(self, name: str) -> str | None:
        """What the latest period of a line is called; None if it has none."""
        starts = self.periods(name)
        return f"{name}@{starts[-1]}" if starts else None

    def at(self, start: str) -> list[str]:
        """What is called after one moment."""
        found = []
        for name, starts in self._starts.items():
            place = bisect_left(starts, start)
            if place < len(starts) and starts[place] == start:
                found.append(f"{name}@{start}")
        return found
