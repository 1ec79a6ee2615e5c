"""A replay: events put between the marks where their own times belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from schemas import EventsSource, span_ms, written_moment
from schemas.moments import NO_MOMENT
from stream.asking.live import marks_of
from stream.errors import Invalid

MAX_MARKS: Final = 1_000_000
"""Most marks of one replay: 30 years of 15 minutes. More are one wrong date."""


class Replay:
    """The events of a source as they stand between marks that are ``every`` apart, a span.

    The marks are all multiples of it from the first event on, whether there is an event between two or not, up to ``until`` or to the
    one after the last event. So an event is ahead of the mark before it by less than ``every``, which must be no more than what the
    source allows.
    """

    def __init__(self, source: EventsSource, every: str, until: int | None = None) -> None:
        marks_of(source)
        try:
            self._every = span_ms(every)
        except ValueError as error:
            raise Invalid(f"marks: {error}") from None
        if self._every == 0:
            raise Invalid("marks: cannot stand closer together than a millisecond; put them further apart")
        if self._every > span_ms(source.ahead):
            raise Invalid(
                f"marks: {every} apart, and source '{source.source}' refuses events more than {source.ahead} ahead of the mark before "
                "them; put marks closer, or register a source with more in 'ahead'"
            )
        self._until = until

    def steps(self, events: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, list[bytes]]]:
        """Each mark, in milliseconds since 1970, with the events after it; in a step they stay in their order.

        Events come with their moments; one of ``NO_MOMENT``, which will be refused, stays with the one before it. Takes in all events
        before the first step.

        Raises:
            Invalid: no event has a moment, or first and last are too far apart.
        """
        steps: dict[int, list[bytes]] = {}
        timeless: list[bytes] = []
        here = timeless
        for event, moment in events:
            if moment != NO_MOMENT:
                here = steps.setdefault(self._mark_before(moment), [])
            here.append(event)
        if not steps:
            raise Invalid(
                "no event would be accepted, and so nothing says where the marks begin; nothing is written"
            )
        first = min(steps)
        last = max(steps) + self._every if self._until is None else self._until
        steps[first] = timeless + steps[first]
        return self._between(first, last, steps)

    def _mark_before(self, moment: int) -> int:
        """Nothing stands after the last mark but what is dated so."""
        mark = moment - moment % self._every
        return mark if self._until is None else min(mark, self._until)

    def _between(self, first: int, last: int, steps: dict[int, list[bytes]]) -> Iterator[tuple[int, list[bytes]]]:
        count = -(-(last - first) // self._every)
        if count > MAX_MARKS:
            raise Invalid(
                f"marks: from {written_moment(first)} to {written_moment(last)} there are {count:,}; put them further apart, leave out "
                "events that are dated wrongly, or say where the replay ends"
            )
        marks = [*range(first, last, self._every), last]
        return ((mark, steps.get(mark, [])) for mark in marks)
