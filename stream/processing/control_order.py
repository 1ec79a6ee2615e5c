"""Orders a stream's control events by age, and counts the questions of a period's stream.

An opening never replaces a later end, and an event from before an extension never replaces one from
after it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from schemas import EventsSource, Histogram, Mechanism, RunningCount, Source, StandingQuery, Windows, moment_ms
from schemas.wire import UNREADABLE


class _ControlIdentity(msgspec.Struct):
    incarnation: str


class _Brief(msgspec.Struct):
    kind: str
    identity: _ControlIdentity
    extensions: tuple[msgspec.Raw, ...] = ()
    version: int = 1

    @property
    def rank(self) -> tuple[int, bool]:
        """Rank in the order in which the budget service publishes a stream's events.

        Extensions and versions grow only while a stream is open or exhausted; an exhausted stream's
        event has the kind ``halted``. So of two events with equal sums an end is the later one.
        """
        return len(self.extensions) + self.version, self.kind != "opened"


_decode = msgspec.json.Decoder(_Brief).decode
_encode = msgspec.json.Encoder().encode


def control_digest(value: bytes) -> bytes:
    """Return the fields of a control event that ``is_stale`` needs: about 100 bytes."""
    return _encode(_decode(value))


def is_stale(known: bytes | None, later: bytes | None) -> bool:
    """Return True if ``later`` is an older control event than ``known`` of the same incarnation.

    ControlPublisher follow a stream's latest control event. Events are repeated or out of order only if
    another client writes to the topic; then the event with the highest ``rank`` counts.
    """
    if known is None or later is None:
        return False
    try:
        before, after = _decode(known), _decode(later)
    except UNREADABLE:
        return False
    return after.rank < before.rank and after.identity.incarnation == before.identity.incarnation


OVER: Final = "its period is over"
"""Reason of an automatic close at the end of a period, after its last questions."""


IN_PERIODS: Final = "each period has a stream of its own, and this one is never asked"
"""A worker's reason not to answer a model; it is not an error."""


def asked_span(source: EventsSource, mechanism: Mechanism, window: Windows) -> int:
    """Return how many ms of a period are asked about: all, or a running count's horizon."""
    if isinstance(mechanism, RunningCount):
        return min(source.period_ms, mechanism.steps * window.every_ms)
    return source.period_ms


def questions_in_period(source: Source, mechanism: Mechanism, standing: StandingQuery | None) -> int:
    """Return how many questions a period's stream is asked in all; 0 for other streams."""
    if (
        not isinstance(source, EventsSource)
        or source.starts is None
        or standing is None
        or standing.begins is None
    ):
        return 0
    window = standing.window
    last = moment_ms(source.starts) + asked_span(source, mechanism, window) - window.size_ms
    windows = max(0, (last - window.first_from(moment_ms(standing.begins))) // window.every_ms + 1)
    groups = math.prod(source.attributes[name].size for name in standing.by)
    return windows if isinstance(mechanism, Histogram) else windows * groups
