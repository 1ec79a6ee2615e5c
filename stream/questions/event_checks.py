"""Checks events before they are written to a live topic, with the rules of the feeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from schemas import EventsSource, GrantRecord, moment_ms, span_ms
from schemas.windows import NO_MOMENT
from stream.events import EventReader, Flaw
from stream.events.event_fields import before_all, time_flaw


class EventCheck:
    """Checks events against their source, the first windows of its streams, and the clock.

    A feed may still refuse an event that passes: its clock may differ, or a stream may be new.
    """

    def __init__(self, source: EventsSource, grants: Iterable[GrantRecord]) -> None:
        self._ahead = span_ms(source.ahead)
        self._reader = EventReader(source, 1)
        self._first = min(map(_first_window, grants), default=NO_MOMENT)

    def check(
        self, events: Sequence[bytes], now: int | None, *, in_order: bool = False
    ) -> tuple[list[int], dict[int, Flaw]]:
        """Return each event's time (``NO_MOMENT`` if refused), and the flaws by position.

        ``now`` is the time of the broker's clock in Unix milliseconds. With ``in_order``, the clock
        is at each event's own time, because marks will be written between the events.
        """
        read = self._reader.read(events)
        times, first = read.times, np.full(len(read.times), self._first, dtype=np.int64)
        is_before = before_all(times, first, times if in_order else np.full(len(times), NO_MOMENT, dtype=np.int64))
        is_ahead = times > (np.iinfo(np.int64).max if now is None else now + self._ahead)
        moments, flaws = [NO_MOMENT] * len(events), dict(read.flaws)
        for place, time, ahead, before in zip(
            read.places.tolist(), times.tolist(), is_ahead.tolist(), is_before.tolist(), strict=True
        ):
            if ahead or before:
                flaws[place] = time_flaw(time, is_ahead=ahead)
            else:
                moments[place] = time
        return moments, flaws


def _first_window(grant: GrantRecord) -> int:
    standing = grant.spec.standing
    if standing is None or standing.begins is None:
        return NO_MOMENT
    return standing.window.first_from(moment_ms(standing.begins))
