"""Writing to live topics: which partition an event belongs to, and marks that move a source's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf, isfinite
from numbers import Real
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka.partitioner import murmur2

from schemas import EventsSource, Source, moment_ms, span_ms, written_moment
from schemas.windows import END_MS, MARK_HEADER, NO_MOMENT
from schemas.wire import UNREADABLE
from stream.errors import Invalid
from stream.processing.protocol import Headers
from stream.questions.event_encoding import encode_event
from stream.questions.question_forms import Question

LiveEvent = Mapping[str, Any] | bytes
"""An event's fields, or its bytes."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")
_MOMENTS: Final = "give seconds since 1970, ISO 8601 with a zone, or a datetime with one"
_decode = msgspec.json.Decoder().decode


class LiveRecord(NamedTuple):
    """What is to be written to a live topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class LiveTopic:
    """The topic of a source, as whoever writes its events sees it."""

    source: EventsSource
    partitions: int

    def record(self, event: LiveEvent) -> LiveRecord:
        """Encode an event, keyed by its person; an event without a person goes to the first partition, where it is refused."""
        value = event if isinstance(event, bytes) else encode_event(event)
        key = person_key(value, self.source.person)
        partition = 0 if key is None else int(murmur2(key) & 0x7FFFFFFF) % self.partitions
        return LiveRecord(self.source.topic, partition, key, value)

    def marks(self, moment: int) -> Iterator[LiveRecord]:
        """A mark for each partition: the clock has reached a moment, in milliseconds since 1970."""
        headers = ((MARK_HEADER, written_moment(moment).encode()),)
        return (LiveRecord(self.source.topic, number, None, b"", headers) for number in range(self.partitions))


def person_key(event: bytes, path: str) -> bytes | None:
    """Read the key of a person's events from an encoded event, as feeds read it; None if the event has no person."""
    found = _field(event, path)
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    return str(found).encode(errors="replace") or None


def live_source(source: Source) -> EventsSource:
    """The source, if it is a live topic; else Invalid."""
    if not isinstance(source, EventsSource):
        raise Invalid(f"source '{source.source}' is no live topic: it is of kind '{source.kind}'")
    return source


def live_name(source: Question, headers: Headers, fields: Mapping[str, Any]) -> str:
    """The source that events are published to; Invalid if it is not named, or if they come with what belongs to questions."""
    if not isinstance(source, str):
        raise Invalid("publish: events go to the topic of a source; give its name")
    if headers or fields:
        raise Invalid(f"{', '.join(fields) or 'headers'}: belongs to a question; give events alone")
    return source


def _field(event: bytes, path: str) -> Any:
    """What stands in an event, None if nothing."""
    try:
        found = _decode(event)
    except UNREADABLE:
        return None
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def require_events(events: object) -> None:
    """Invalid unless there may be many events: a list, or anything else that is iterated over."""
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise Invalid(
            f"events: is of type {type(events).__name__}; give a list of events, each a mapping or bytes"
        )


def marks_of(source: EventsSource) -> EventsSource:
    """The source, if marks are its clock; else Invalid."""
    if source.clock != "marks":
        raise Invalid(
            f"source '{source.source}' has no marks: the broker's clock moves by itself; register a source with clock 'marks' "
            "for events that are replayed"
        )
    return source


def _as_float(number: Real) -> float:
    """A number as a double; infinite if it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return inf


def milliseconds_of(time: str | float | datetime) -> int:
    """A moment in milliseconds since 1970, told in ISO 8601, as a datetime with a zone, or in seconds since 1970.

    Raises:
        Invalid: it is none of these, or lies before 1970 or after 9999; a number too large to be of seconds is told as such.
    """
    if isinstance(time, str):
        try:
            return moment_ms(time)
        except ValueError as error:
            raise Invalid(f"time: {error}") from None
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Invalid("time: names no zone; give the datetime one")
        found = (time - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(time, bool) or not isinstance(time, Real):
        raise Invalid(f"time: {time!r:.80} is no moment; {_MOMENTS}")
    elif not isfinite(seconds := _as_float(time)):
        raise Invalid(f"time: {seconds} is no moment; {_MOMENTS}")
    elif not 0 <= seconds < END_MS:
        raise Invalid(f"time: {seconds:.15g} is not from 1970 to 9999; {_MOMENTS}")
    elif END_MS <= 1000 * time < 1000 * END_MS:
        raise Invalid(
            f"time: {time} is after the year 9999 if it is in seconds since 1970; in milliseconds it is "
            f"{written_moment(int(time))}: divide it by 1,000"
        )
    else:
        found = round(1000 * time)
    if not 0 <= found < END_MS:
        raise Invalid(f"time: {time} is not from 1970 to 9999; {_MOMENTS}")
    return found


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
