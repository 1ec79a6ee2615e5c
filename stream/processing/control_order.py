"""An ending is final: an opening that comes late, behind the halt that followed it, does not undo it.

Nor does anything that was told of a stream before it was extended count after that.
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
        """In which order the budget service tells of a stream: it extends what is open, or what has run dry and was halted.

        Extensions and versions of the data only ever grow, and nothing grows behind an ending.
        """
        return len(self.extensions) + self.version, self.kind != "opened"


_decode = msgspec.json.Decoder(_Brief).decode
_encode = msgspec.json.Encoder().encode


def control_digest(value: bytes) -> bytes:
    """What of a control event says whether it takes back another, or is taken back by one: a hundred bytes of thousands."""
    return _encode(_decode(value))


def is_stale(known: bytes | None, later: bytes | None) -> bool:
    """Whether a control event would take back what the known one says of the very same incarnation of a stream.

    The workers answer to the latest control event of a stream. Events can come twice and out of order only if somebody
    beside the budget service writes to the topic; then the most extensions count, and of equally many the ending.
    """
    if known is None or later is None:
        return False
    try:
        before, after = _decode(known), _decode(later)
    except UNREADABLE:
        return False
    return after.rank < before.rank and after.identity.incarnation == before.identity.incarnation


OVER: Final = "its period is over"
"""Why a stream is closed by itself: its worker answers first what it was asked."""


IN_PERIODS: Final = "each period has a stream of its own, and this one is never asked"
"""Why a worker answers nothing for a stream that others stand for: nothing is wrong with it."""


def asked_span(source: EventsSource, mechanism: Mechanism, window: Windows) -> int:
    """How far into a period its windows are asked, in milliseconds: to its end, or to a running count's horizon."""
    if isinstance(mechanism, RunningCount):
        return min(source.period_ms, mechanism.steps * window.every_ms)
    return source.period_ms


def questions_in_period(source: Source, mechanism: Mechanism, standing: StandingQuery | None) -> int:
    """How many questions a stream of a period is asked in all; 0 of any other stream."""
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
