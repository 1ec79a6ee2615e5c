"""Orders a stream's control events by age, and counts the questions of a period's stream.

An ``opened`` event never replaces a later ``halted`` or ``closed`` one. An event from before an
extension never replaces one from after it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from schemas import (
    EventsSource,
    Histogram,
    Mechanism,
    RunningCount,
    Source,
    StandingQuery,
    UnknownGroups,
    Windows,
    moment_ms,
)
from schemas.wire import UNREADABLE


class _ControlIdentity(msgspec.Struct):
    incarnation: str


class _ControlSummary(msgspec.Struct):
    kind: str
    identity: _ControlIdentity
    extensions: tuple[msgspec.Raw, ...] = ()
    version: int = 1

    @property
    def rank(self) -> tuple[int, bool]:
        """Rank in the order in which the budget service publishes a stream's events.

        Extensions and versions grow only while a stream is open or exhausted, and an exhausted
        stream's event has the kind ``halted``. So if two events have equal sums of extensions and
        version, the one that is not ``opened`` is the later one.
        """
        return len(self.extensions) + self.version, self.kind != "opened"


_decode = msgspec.json.Decoder(_ControlSummary).decode
_encode = msgspec.json.Encoder().encode


def control_summary(value: bytes) -> bytes:
    """Return a control event with only the fields that ``is_stale`` needs: about 100 bytes."""
    return _encode(_decode(value))


def is_stale(known: bytes | None, later: bytes | None) -> bool:
    """Return True if ``later`` is an older control event than ``known`` of the same incarnation.

    Workers follow a stream's latest control event. Events are repeated or out of order only if
    another client writes to the topic; then the event with the highest ``rank`` counts.
    """
    if known is None or later is None:
        return False
    try:
        before, after = _decode(known), _decode(later)
    except UNREADABLE:
        return False
    return after.rank < before.rank and after.identity.incarnation == before.identity.incarnation


PERIOD_OVER_REASON: Final = "its period is over"
"""The reason with which a stream of a period is closed after the period's last questions."""

MODEL_NOT_ASKED_REASON: Final = "each period has a stream of its own, and this one is never asked"
"""The reason with which a worker does not answer a model; it is not an error."""


def covered_ms(source: EventsSource, mechanism: Mechanism, window: Windows) -> int:
    """Return how many ms of a period have windows: all, or those of a running count's steps."""
    if isinstance(mechanism, RunningCount):
        return min(source.period_ms, mechanism.steps * window.every_ms)
    return source.period_ms


def questions_in_period(source: Source, mechanism: Mechanism, standing: StandingQuery | None) -> int:
    """Return how many questions a stream of a period gets in total; 0 for other streams."""
    if (
        not isinstance(source, EventsSource)
        or source.starts is None
        or standing is None
        or standing.begins is None
    ):
        return 0
    window = standing.window
    last_start_ms = moment_ms(source.starts) + covered_ms(source, mechanism, window) - window.size_ms
    windows = max(0, (last_start_ms - window.first_from(moment_ms(standing.begins))) // window.every_ms + 1)
    return windows * questions_per_window(source, mechanism, standing)


def questions_per_window(source: EventsSource, mechanism: Mechanism, standing: StandingQuery) -> int:
    """Return how many questions a window has: one for each group, or one for all of them."""
    if isinstance(mechanism, Histogram | UnknownGroups):
        return 1
    return math.prod(source.attributes[name].size for name in standing.by)
