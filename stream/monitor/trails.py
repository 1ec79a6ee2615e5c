"""The audit trail as the monitor reads it: whether it is whole, its latest entries, and each budget's history.

Every entry's place in the chain is checked as it comes. What was once broken stays so: the first break is what is told.
Entries that only note what was spent make the history and are not listed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from stream.monitor.digests import AmountShape, read
from stream.monitor.history import History
from stream.processors.trails import EMPTY, entry_digest

HELD_ENTRIES: Final = 50_000
"""Latest entries that are listed; the export has all."""

AccountKind = Literal["source", "population"]


class TotalsShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.trail.Totals."""

    granted: AmountShape
    spent: AmountShape
    refunded: AmountShape
    left: AmountShape


class TrailShape(msgspec.Struct, frozen=True, gc=False):
    """What entries of the trail have, whatever their kind; see schemas.trail."""

    kind: str
    number: int
    previous: str
    time: int
    action: str | None = None
    event: str | None = None
    outcome: str | None = None
    source: str | None = None
    stream: str | None = None
    population: str | None = None
    analyst: str | None = None
    allotment: str | None = None
    analysts: tuple[str, ...] = ()
    by: str | None = None
    mechanism: str | None = None
    request: str | None = None
    reason: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    asked: AmountShape | None = None
    left: AmountShape | None = None
    granted: AmountShape | None = None
    spent: AmountShape | None = None
    refunded: AmountShape | None = None
    answers: int | None = None
    totals: TotalsShape | None = None


class Held(NamedTuple):
    """An entry by what it is looked for, and its bytes."""

    number: int
    time: float
    kind: str
    action: str
    outcome: str
    source: str
    stream: str
    population: str
    analyst: str
    by: str
    request: str
    raw: bytes


class Trail:
    """What the trail has said so far."""

    def __init__(self) -> None:
        self.entries = 0
        self.broken: str | None = None
        """The first entry that does not follow the one before it, and how; None while the chain is whole."""
        self._latest: deque[Held] = deque(maxlen=HELD_ENTRIES)
        self._digest = EMPTY.digest
        self._histories: defaultdict[tuple[AccountKind, str], History] = defaultdict(History)

    def __len__(self) -> int:
        return len(self._latest)

    def __iter__(self) -> Iterator[Held]:
        """Those that are held, the newest first."""
        return reversed(self._latest)

    def history(self, kind: AccountKind, name: str) -> History:
        """An account's budget over time; an empty one if the trail has not told of it."""
        return self._histories.get((kind, name)) or History()

    def take(self, value: bytes) -> None:
        """Take the next entry. What is no entry breaks the chain."""
        entry = None
        try:
            entry = read(TrailShape, value)
        finally:
            self._follow(entry, value)
        if entry.totals is not None:
            self._note(entry, entry.totals)
        if entry.kind != "point":
            self._latest.append(held(entry, value))

    def _follow(self, entry: TrailShape | None, value: bytes) -> None:
        if self.broken is None:
            if entry is None:
                self.broken = f"entry {self.entries} cannot be read"
            elif entry.number != self.entries:
                self.broken = f"entry {entry.number} stands where entry {self.entries} should"
            elif entry.previous != self._digest:
                self.broken = f"entry {entry.number} does not follow the one before it as that stands there"
        self.entries = self.entries + 1 if entry is None else entry.number + 1
        self._digest = entry_digest(value)

    def _note(self, entry: TrailShape, totals: TotalsShape) -> None:
        kind: AccountKind = "source" if entry.source is not None else "population"
        name = entry.source or entry.population
        if name is not None:
            self._histories[kind, name].add(
                entry.time / 1000,
                totals.granted.model(),
                totals.spent.model(),
                totals.refunded.model(),
                totals.left.model(),
            )


def held(entry: TrailShape, value: bytes) -> Held:
    """An entry as it is kept."""
    return Held(
        entry.number,
        entry.time / 1000,
        entry.kind,
        entry.action or entry.event or entry.kind,
        entry.outcome or "",
        entry.source or "",
        entry.stream or "",
        entry.population or "",
        entry.analyst or "",
        entry.by or "",
        entry.request or "",
        value,
    )
