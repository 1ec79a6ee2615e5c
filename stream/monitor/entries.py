"""What is known of one source, stream or partition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from schemas import Amount, StreamState, named_from
from stream.accounting.costs import whole_left
from stream.monitor.digests import (
    AmountShape,
    GrantRecordShape,
    MemberShape,
    PositionShape,
    RestoreShape,
    SourceRecordShape,
)
from stream.monitor.series import Series
from stream.processors.periods import IN_PERIODS

RATE_WINDOWS = (60, 600, 3600)
"""Seconds over which rates are shown."""
SLOTS_PER_WINDOW = 12
TIMELINE_POINTS = 64
NEARLY_DRY = 0.1
"""An open stream with at most this share of its charged answers left is nearly dry."""
STATES: tuple[StreamState, ...] = ("open", "exhausted", "halted", "closed")
"""In the order in which they follow each other."""


@dataclass(slots=True)
class SourceEntry:
    """A source, with the bytes of its last ledger record and the budget that it was registered with. Its past is the trail's.

    Of a period the bytes are not kept.
    """

    record: SourceRecordShape
    raw: bytes
    total: Amount
    updated: float
    streams: Counter[StreamState] = field(default_factory=Counter)


@dataclass(slots=True)
class Activity:
    """A stream's totals over time; kept for those that have answered anything."""

    windows: tuple[Series, ...]
    timeline: Series

    @classmethod
    def empty(cls) -> Activity:
        """No rows yet."""
        windows = tuple(
            Series(width=3, spacing=seconds / SLOTS_PER_WINDOW, limit=SLOTS_PER_WINDOW + 2)
            for seconds in RATE_WINDOWS
        )
        return cls(windows, Series(width=3, spacing=1.0, limit=TIMELINE_POINTS, whole_life=True))


@dataclass(slots=True)
class StreamEntry:
    """A stream; shown once the ledger's own record of it is there."""

    name: str
    grant: GrantRecordShape | None = None
    raw: bytes = b""
    incarnation: str = ""
    state: StreamState = "open"
    ending: Literal["halted", "closed"] | None = None
    reason: str | None = None
    answered: int = 0
    tops: int = 0
    surplus: int = 0
    spent: AmountShape | None = None
    position: PositionShape | None = None
    refused: str | None = None
    opened: float | None = None
    updated: float | None = None
    last_answered: float | None = None
    activity: Activity | None = None

    @property
    def is_of_period(self) -> bool:
        """Whether it stands for another stream in one period of a live topic."""
        named, on = named_from(self.name), None if self.grant is None else named_from(self.grant.spec.source)
        return named is not None and on is not None and named[1] == on[1]

    @property
    def cutoff(self) -> int | None:
        """How many charged answers the grant pays for; None where there is no such limit."""
        return (self.grant.calibration.cutoff + self.added or None) if self.grant else None

    @property
    def added(self) -> int:
        """How many of them extensions have added."""
        return sum(extension.answers for extension in self.grant.extensions) if self.grant else 0

    @property
    def has_run_dry(self) -> bool:
        """Whether a worker that says so knew of all that was granted."""
        return not self.tops_left

    @property
    def tops_left(self) -> int | None:
        """How many ordinary charged answers the grant still pays for; None where there is no limit."""
        return None if self.cutoff is None else max(whole_left(self.cutoff, self.tops, self.surplus), 0)

    @property
    def lack(self) -> str | None:
        """What its worker lacks to answer for it, though it is open; None where it lacks nothing, or nobody asks."""
        return self.refused if self.state == "open" and self.refused != IN_PERIODS else None

    @property
    def nearly_dry(self) -> bool:
        """Whether it is open and its charged answers are nearly used up."""
        left, cutoff = self.tops_left, self.cutoff
        return self.state == "open" and left is not None and cutoff is not None and left <= NEARLY_DRY * cutoff


@dataclass(slots=True)
class RestoreEntry:
    """What a service last said of a partition's restore."""

    record: RestoreShape
    updated: float


@dataclass(slots=True)
class MemberEntry:
    """What a service process last said of itself."""

    record: MemberShape
    heard: float


@dataclass(slots=True)
class Totals:
    """Sums over all streams shown, kept up to date record by record."""

    answered: int = 0
    tops: int = 0
    nearly_dry: int = 0
    not_answering: int = 0
    states: Counter[StreamState] = field(default_factory=Counter)
