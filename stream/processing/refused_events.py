"""The share of a live topic's latest events that feeds refused, and the most frequent reason.

The share is as private as the topic: one person may send any number of events, so neither a
coarse share nor its absence hides a person. Only operators may see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stream.formatting import format_count

LATEST_EVENTS: Final = 1_000
"""Number of latest events of each partition that are considered."""
MAX_REASONS: Final = 64
"""Most reasons of a partition; feeds use about twenty, and as many again for each attribute."""
OTHER_REASON: Final = "other"
RECENT_SECONDS: Final = 600.0
"""Seconds after a topic's latest refused event during which the share is shown."""

SHARES: Final = (
    (0.9, "90 to 100 %"),
    (0.5, "50 to 90 %"),
    (0.1, "10 to 50 %"),
    (0.01, "1 to 10 %"),
    (0.001, "below 1 %"),
)
"""Shares of refused events: the lower end (of the last one a value above 0), and its text."""


@dataclass(frozen=True)
class RefusedShare:
    """The refused share of the latest events: ``at_least`` is its lower end, ``share`` its text."""

    events: int
    share: str
    at_least: float
    reason: str
    """The most frequent reason, ``code: message`` with the remedy."""


class PartitionRefusals:
    """Marks which of the latest events of one partition were refused, by reason.

    A mark is a bit, so an event that is added twice counts once. ``begin`` is the first offset that is known.
    """

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._end = begin
        self._marks: dict[str, int] = {}
        """For each reason a number whose bit i is set if the event at ``_end - 1 - i`` was refused."""

    @property
    def events(self) -> int:
        """The number of events that are considered."""
        return min(LATEST_EVENTS, self._end - self._begin)

    def marks(self) -> dict[str, int]:
        """Return a copy of the marks, which another thread may change."""
        return self._marks.copy()

    def add(self, offset: int, reason: str) -> None:
        """Add a refused event; events before the latest ones are ignored."""
        self.advance(offset + 1)
        age = self._end - 1 - offset
        if age < LATEST_EVENTS:
            if reason not in self._marks and len(self._marks) >= MAX_REASONS:
                reason = OTHER_REASON
            self._marks[reason] = self._marks.get(reason, 0) | 1 << age

    def advance(self, end: int) -> None:
        """Note that all events before offset ``end`` were read."""
        if (step := end - self._end) <= 0:
            return
        self._end = end
        kept = (1 << LATEST_EVENTS) - 1
        shifted = (
            {} if step >= LATEST_EVENTS else {name: bits << step & kept for name, bits in self._marks.items()}
        )
        self._marks = {name: bits for name, bits in shifted.items() if bits}


def describe_refused_share(share: str, events: int, reason: str) -> str:
    """Describe a share and its most frequent reason in a sentence."""
    return f"{share} of the last {format_count(events, 'event')} were refused; most often: {reason}"


def refused_share(partitions: list[PartitionRefusals]) -> RefusedShare | None:
    """Return the refused share over several partitions; None if no event was refused."""
    events = refused = 0
    by_reason: dict[str, int] = {}
    for partition in partitions:
        events += partition.events
        union = 0
        for reason, bits in partition.marks().items():
            by_reason[reason] = by_reason.get(reason, 0) + bits.bit_count()
            union |= bits
        refused += union.bit_count()
    if not refused:
        return None
    at_least, share = next((one for one in SHARES if refused >= one[0] * events), SHARES[-1])
    return RefusedShare(events, share, at_least, max(by_reason, key=lambda reason: (by_reason[reason], reason)))


class TopicRefusals:
    """The refused events of one live topic, as its dead letters have them.

    Dead letters do not say how many later events were accepted: the latest events are those up to
    the latest refused one of each partition that has any.
    """

    def __init__(self) -> None:
        self.last = 0.0
        """The time of the latest dead letter, in Unix seconds."""
        self._partitions: dict[int, PartitionRefusals] = {}

    def add(self, partition: int, offset: int, reason: str, time: float) -> None:
        """Add a dead letter's event, its reason, and the time of the refusal."""
        self._partitions.setdefault(partition, PartitionRefusals()).add(offset, reason)
        self.last = max(self.last, time)

    def share(self, now: float) -> RefusedShare | None:
        """Return the refused share; None once the latest refusal is ``RECENT_SECONDS`` old."""
        return None if now - self.last > RECENT_SECONDS else refused_share(list(self._partitions.values()))
