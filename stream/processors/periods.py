"""The end of a period of a live topic: how many questions its streams are asked, and in which words they are closed."""

from __future__ import annotations

import math
from typing import Final

from schemas import EventsSource, Histogram, Mechanism, Source, StandingQuery, moment_ms

OVER: Final = "its period is over"
"""Why a stream is closed by itself: its worker answers first what it was asked."""


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
    last = moment_ms(source.starts) + source.period_ms - window.size_ms
    windows = max(0, (last - window.first_from(moment_ms(standing.begins))) // window.every_ms + 1)
    groups = math.prod(source.attributes[name].size for name in standing.by)
    return windows if isinstance(mechanism, Histogram) else windows * groups
