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
from schemas.wire import DECODE_ERRORS


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


RETIRED_PREFIX: Final = b"@retired|"
"""Prefix of the keys of ``RetiredStreams``; stream names never start with an at-sign."""


def control_summary(value: bytes) -> bytes:
    """Return a control event with only the fields that ``is_stale`` needs: about 100 bytes."""
    return _encode(_decode(value))


def is_stale(known: bytes | None, received: bytes | None) -> bool:
    """Return True if ``received`` is an older control event than ``known`` of the same incarnation.

    Workers follow a stream's latest control event. Events are repeated or out of order only if
    another client writes to the topic; then the event with the highest ``rank`` counts.
    """
    if known is None or received is None:
        return False
    try:
        known_event, received_event = _decode(known), _decode(received)
    except DECODE_ERRORS:
        return False
    return (
        received_event.rank < known_event.rank
        and received_event.identity.incarnation == known_event.identity.incarnation
    )


PERIOD_OVER_REASON: Final = "its period is over"
"""The reason with which a stream of a period is closed after the period's last questions."""

MODEL_NOT_ASKED_REASON: Final = "each period has a stream of its own, and this one is never asked"
"""The reason with which a worker does not answer a model; it is not an error."""


def covered_ms(source: EventsSource, mechanism: Mechanism, window: Windows) -> int:
    """Return the milliseconds of a period that windows cover: all, or a running count's windows."""
    if isinstance(mechanism, RunningCount):
        return min(source.period_ms, mechanism.steps * window.every_ms)
    return source.period_ms


def questions_in_period(source: Source, mechanism: Mechanism, standing: StandingQuery | None) -> int:
    """Return the number of questions of a period's stream in the whole period; 0 for other streams."""
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


def groups_by_text(source: EventsSource, standing: StandingQuery) -> bool:
    """Return whether the groups of a standing query are private texts."""
    return any(name in source.texts for name in standing.by)


def questions_per_window(source: EventsSource, mechanism: Mechanism, standing: StandingQuery) -> int:
    """Return the number of questions of a window: one for each group, or one for all groups."""
    if isinstance(mechanism, Histogram | UnknownGroups) or groups_by_text(source, standing):
        return 1
    return math.prod(source.attributes[name].size for name in standing.by)
