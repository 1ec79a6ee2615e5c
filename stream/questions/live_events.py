"""Builds the records of a live topic: events as JSON, partitioned by person, and watermarks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf, isfinite
from numbers import Integral, Real
from sys import float_info
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka.partitioner import murmur2

from schemas import EventsSource, Source, format_moment, moment_ms, span_ms
from schemas.windows import MARK_HEADER, NO_MOMENT, YEAR_10000_MS
from schemas.wire import DECODE_ERRORS
from stream.errors import Invalid
from stream.processing.protocol import Headers
from stream.questions.question_forms import Question

LiveEvent = Mapping[str, Any] | bytes
"""The fields or the encoded bytes of an event."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")
_TIME_FORMS: Final = "give Unix time in seconds, ISO 8601 with a zone, or a datetime with a zone"
_decode = msgspec.json.Decoder().decode


class LiveRecord(NamedTuple):
    """A record to write to a live topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True)
class LiveTopic:
    """Builds the records that a writer sends to the topic of a source."""

    source: EventsSource
    partitions: int

    def encode_record(self, event: LiveEvent) -> LiveRecord:
        """Encode an event with its person as key. An event without a person gets partition 0, and feeds refuse it."""
        value = event if isinstance(event, bytes) else encode_event(event)
        key = person_key(value, self.source.person)
        partition = 0 if key is None else int(murmur2(key) & 0x7FFFFFFF) % self.partitions
        return LiveRecord(self.source.topic, partition, key, value)

    def make_marks(self, moment: int) -> Iterator[LiveRecord]:
        """Return a watermark for each partition, for a time in Unix milliseconds."""
        headers = ((MARK_HEADER, format_moment(moment).encode()),)
        return (LiveRecord(self.source.topic, number, None, b"", headers) for number in range(self.partitions))


def person_key(event: bytes, path: str) -> bytes | None:
    """Return the record key of an encoded event: its person, as feeds read it, or None without a person."""
    found = _read_field(event, path)
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    return str(found).encode(errors="replace") or None


def require_live_source(source: Source) -> EventsSource:
    """Return the source; ``Invalid`` if it is not a live topic."""
    if not isinstance(source, EventsSource):
        raise Invalid(
            f"source '{source.source}' is not a live topic, but of kind '{source.kind}'; name a source of kind 'events'"
        )
    return source


def require_source_name(source: Question, headers: Headers, fields: Mapping[str, Any]) -> str:
    """Return the source's name in a call of ``publish``; ``Invalid`` if the call has arguments of a question."""
    if not isinstance(source, str):
        raise Invalid("publish: the first argument must be the name of the source whose topic gets the events")
    if headers or fields:
        raise Invalid(f"{', '.join(fields) or 'headers'}: belongs to a question; give only a source and events")
    return source


def _read_field(event: bytes, path: str) -> Any:
    try:
        found = _decode(event)
    except DECODE_ERRORS:
        return None
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def require_events(events: object) -> None:
    """Raise ``Invalid`` if ``events`` is not an iterable of events."""
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise Invalid(
            f"events: is of type {type(events).__name__}; give a list of events, each a mapping or bytes"
        )


def require_marks(source: EventsSource) -> EventsSource:
    """Return the source; ``Invalid`` if its clock is not ``marks``."""
    if source.clock != "marks":
        raise Invalid(
            f"source '{source.source}' has the broker's clock, and its topic accepts no marks; to replay events, register a "
            "source with clock 'marks'"
        )
    return source


def parse_time(time: str | float | datetime) -> int:
    """Convert ISO 8601, a datetime with a zone, or Unix seconds to Unix milliseconds.

    Raises:
        Invalid: the time has another form, or is before 1970 or after 9999.
    """
    if isinstance(time, str):
        try:
            return moment_ms(time)
        except ValueError as error:
            raise Invalid(f"time: {error}") from None
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise Invalid("time: the datetime has no zone; give one with tzinfo")
        found = (time - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(time, bool) or not isinstance(time, Real):
        raise Invalid(f"time: {time!r:.80} is not a time; {_TIME_FORMS}")
    elif not isfinite(seconds := inf if abs(time) > float_info.max else float(time)):
        raise Invalid(f"time: {seconds} is not a time; {_TIME_FORMS}")
    elif not 0 <= seconds < YEAR_10000_MS:
        raise Invalid(f"time: {seconds:.15g} is not from 1970 to 9999; {_TIME_FORMS}")
    elif YEAR_10000_MS <= 1000 * time < 1000 * YEAR_10000_MS:
        raise Invalid(
            f"time: {time} s is after the year 9999; if it is in milliseconds ({format_moment(int(time))}), divide it "
            "by 1,000"
        )
    else:
        found = round(1000 * time)
    if not 0 <= found < YEAR_10000_MS:
        raise Invalid(f"time: {time} is not from 1970 to 9999; {_TIME_FORMS}")
    return found


MAX_MARKS: Final = 1_000_000
"""Maximum number of marks of a replay: one each 15 minutes for 28 years. More marks mean that a date is wrong."""


class Replay:
    """Orders the events of a source for a replay, with a mark at each multiple of ``every``.

    The first mark is at or before the first event. The last mark is at ``until`` or, without it, at the first multiple
    after the last event. An event is less than ``every`` ahead of the mark before it, so ``every`` must not exceed the
    source's ``ahead``.
    """

    def __init__(self, source: EventsSource, every: str, until: int | None = None) -> None:
        require_marks(source)
        try:
            self._every_ms = span_ms(every)
        except ValueError as error:
            raise Invalid(f"marks: {error}") from None
        if self._every_ms == 0:
            raise Invalid("marks: the interval is less than a millisecond; give a longer one")
        if self._every_ms > span_ms(source.ahead):
            raise Invalid(
                f"marks: the interval is {every}, but source '{source.source}' refuses events that are more than {source.ahead} "
                "ahead of the mark before them; give a shorter interval, or register a source with a longer 'ahead'"
            )
        self._until_ms = until

    def group_by_mark(self, events: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, list[bytes]]]:
        """Yield each mark in Unix milliseconds with the events after it, sorted by time.

        ``events`` are pairs of an event's bytes and its time. Events of one time keep their order. An event with the time
        ``NO_MOMENT``, which feeds will refuse, stays after the event that precedes it. All events are read before the first
        mark is yielded.

        Raises:
            Invalid: no event has a valid time, or the first and last are too far apart.
        """
        events_by_mark: dict[int, list[bytes]] = {}
        times_by_mark: dict[int, array[int]] = {}
        timeless: list[bytes] = []
        mark = latest = NO_MOMENT
        for event, moment in events:
            if moment != NO_MOMENT:
                latest, mark = moment, moment - moment % self._every_ms
                mark = mark if self._until_ms is None else min(mark, self._until_ms)
            if latest == NO_MOMENT:
                timeless.append(event)
            else:
                events_by_mark.setdefault(mark, []).append(event)
                times_by_mark.setdefault(mark, array("q")).append(latest)
        if not events_by_mark:
            raise Invalid(
                "no event has a valid time, so the first mark is unknown; nothing is written; correct the events' times"
            )
        first = min(events_by_mark)
        last = max(events_by_mark) + self._every_ms if self._until_ms is None else self._until_ms
        count = -(-(last - first) // self._every_ms)
        if count > MAX_MARKS:
            raise Invalid(
                f"marks: from {format_moment(first)} to {format_moment(last)} there are {count:,}, more than {MAX_MARKS:,}; give a longer interval, "
                "leave out events with wrong dates, or set the end of the replay"
            )
        marks = [*range(first, last, self._every_ms), last]

        def events_after(mark: int) -> list[bytes]:
            times, found = times_by_mark.get(mark, array("q")), events_by_mark.get(mark, [])
            in_order = [found[place] for place in sorted(range(len(found)), key=times.__getitem__)]
            return timeless + in_order if mark == first else in_order

        return ((mark, events_after(mark)) for mark in marks)


_MAX_DEPTH: Final = 64
_ENCODE_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError)


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode an event as JSON; numpy's datetimes become ISO 8601 in UTC.

    Raises:
        Invalid: a field has no JSON form; the message names it.
    """
    if not isinstance(event, Mapping):
        raise Invalid(f"event: is of type {type(event).__name__}; give a list of events, each a mapping or bytes")
    try:
        return _encode(event)
    except _ENCODE_ERRORS:
        raise Invalid(_describe_unwritable(event)) from None


def _json_form(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """Convert a value of a type that msgspec does not know, such as a numpy scalar, without importing numpy."""
    match value:
        case Mapping():
            return dict(value)
        case str():
            return str.__str__(value)
        case datetime():
            return value.isoformat() if value == value else None  # noqa: PLR0124  (pandas' NaT is a datetime)
        case Integral():
            return int(value)
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "dtype")
    match value.dtype.kind if is_scalar else None:
        case "f":
            return float(str(value))  # numpy's shortest decimal: 0.1 for float32(0.1)
        case "M":
            text = str(value.astype("datetime64[ms]"))
            return None if text == "NaT" else f"{text}Z"
        case "b" | "S":
            return value.item()
    if isinstance(value, Real):
        return float(value)
    raise TypeError(type(value).__name__)


_encode = msgspec.json.Encoder(enc_hook=_json_form).encode


def _describe_unwritable(event: Mapping[str, Any]) -> str:
    value: Any = event
    path_steps: list[str] = []
    while (
        isinstance(value, Mapping)
        and len(path_steps) < _MAX_DEPTH
        and (step := _first_unwritable(value)) is not None
    ):
        path_steps.append(str(step))
        value = value[step]
    kind = type(value).__name__
    return f"{'.'.join(path_steps) or 'event'}: {kind} has no JSON form; give text, numbers, datetimes, or objects of these"


def _first_unwritable(fields: Mapping[str, Any]) -> str | None:
    for name, value in fields.items():
        try:
            _encode(value)
        except _ENCODE_ERRORS:
            return name
    return None
