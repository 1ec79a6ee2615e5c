"""A batch of events in columns, in the partition's order: what all streams of a source share of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.sources import Domain
from stream.data.events import Events
from stream.data.expressions import Codes, Predicate, evaluate
from stream.data.masks import membership

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Batch:
    """``clocks`` is where the partition's clock stood at each event, the event's own stamp included, and ``stamps`` how far its stamps were."""

    def __init__(self, events: Events, clocks: Column, stamps: Column, domains: Mapping[str, Domain]) -> None:
        """Take the events that are to be counted, and the clock and stamps at each."""
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
        """The code of each row."""
        return self._codes[attribute]

    def mask(self, predicate: Predicate) -> Mask:
        """The rows that satisfy a predicate."""
        found = self._masks.get(predicate)
        if found is None:
            found = self._masks[predicate] = np.broadcast_to(
                evaluate(predicate, np.bool_, self._leaf, np.logical_and, np.logical_or), len(self)
            )
        return found

    def cells(self, by: tuple[str, ...]) -> Column:
        """The cell of each row, in row-major order of these attributes."""
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
    """Some of the events."""
    if mask.all():
        return events
    codes = {name: column[mask] for name, column in events.codes.items()}
    return Events(
        events.places[mask], events.people[mask], events.homes[mask], events.times[mask], codes, events.flaws
    )


def cell_count(domains: Mapping[str, Domain], by: Sequence[str]) -> int:
    """How many cells some attributes have: one if there are none."""
    count = 1
    for name in by:
        count *= domains[name].size
    return count
