"""The end of a period of a live topic: how far its windows are asked, how many questions that is, and in which words streams are closed."""

from __future__ import annotations

import math
from typing import Final

from schemas import EventsSource, Histogram, Mechanism, RunningCount, Source, StandingQuery, Windows, moment_ms

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
