"""Reads batches of events as columns of people, times and attribute codes.

Each event is read independently of the other events in its batch, and of the limits of the batch. Writers
check events by the same rules (``EventCheck``) before they write them to a live topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import EventsSource, GrantRecord, moment_ms, span_ms
from schemas.base import nesting_of
from schemas.windows import NO_MOMENT, parse_event_time
from stream.feeds import event_fields
from stream.feeds.event_decoding import Decoder, Events, PlainReader, digests_and_homes
from stream.kernel.byte_columns import Spans, spans_of

_PERSON: Final = 0
_TIME: Final = 1
_FIRST_ATTRIBUTE: Final = 2


class EventReader:
    """Reads the events of one source."""

    def __init__(self, source: EventsSource, partitions: int) -> None:
        self._partitions = partitions
        self._names = list(source.attributes)
        self._texts = source.texts
        self._fields_count = _FIRST_ATTRIBUTE + len(self._names) + len(self._texts)
        self._field_codes = [event_fields.FieldCodes(domain) for domain in source.attributes.values()]
        self._flaws = [event_fields.flaw_of(name, domain) for name, domain in source.attributes.items()]
        attributes = [*self._names, *self._texts]
        paths = [source.person, source.time, *map(source.path_of, attributes)]
        kinds = [str | int, str | int, *[Any] * len(attributes)]
        self._plain = PlainReader(source, partitions)
        self._decoder = Decoder([tuple(path.split(".")) for path in paths], kinds)

    def read(self, values: Sequence[bytes | None] | Spans) -> Events:
        """Read a batch as columns: plain events with the kernel, all others with ``Decoder``."""
        plain = self._plain.read(values if isinstance(values, Spans) else spans_of([one or b"" for one in values]))
        if plain is None:
            return self._read(_as_list(values))
        if len(plain.indices) == len(values):
            return plain
        is_left = np.ones(len(values), dtype=np.bool_)
        is_left[plain.indices] = False
        places = np.flatnonzero(is_left)
        others = values.gather(places) if isinstance(values, Spans) else [values[one] for one in places.tolist()]
        return plain.merge_events(self._read(_as_list(others)), places)

    def _read(self, values: Sequence[bytes | None]) -> Events:
        flaws: dict[int, event_fields.Flaw] = {}
        places, columns = self._decode_fields(values, flaws)
        kept = np.ones(len(places), dtype=np.bool_)
        names = _encode_names(columns[_PERSON])
        named = np.array([bool(name) for name in names], dtype=np.bool_)
        flaws |= {places[row]: event_fields.NOBODY for row in _leave_out(kept, named)}
        times = np.array([parse_event_time(value) for value in columns[_TIME]], dtype=np.int64)
        flaws |= {places[row]: _time_flaw(columns[_TIME][row]) for row in _leave_out(kept, times >= 0)}
        codes: dict[str, event_fields.Codes] = {}
        for field, name in enumerate(self._names):
            codes[name], known = self._field_codes[field].codes(columns[_FIRST_ATTRIBUTE + field])
            flaws |= {places[row]: self._flaws[field] for row in _leave_out(kept, known)}
        texts: dict[str, Sequence[bytes]] = {}
        for field, (name, text) in enumerate(self._texts.items(), _FIRST_ATTRIBUTE + len(self._names)):
            codes[name], texts[name] = event_fields.text_codes(
                map(event_fields.private_text_of, columns[field]), text.max_length
            )
        found = np.array(places, dtype=np.int64)
        if not kept.all():
            found, times = found[kept], times[kept]
            codes = {name: column[kept] for name, column in codes.items()}
            names = [name for name, is_kept in zip(names, kept.tolist(), strict=True) if is_kept]
        people, homes = digests_and_homes(names, self._partitions)
        return Events(found, people, homes, times, codes, flaws, texts)

    def _decode_fields(
        self, values: Sequence[bytes | None], flaws: dict[int, event_fields.Flaw]
    ) -> tuple[Sequence[int], Sequence[Sequence[Any]]]:
        """Return the places of decodable events, and their fields as columns."""
        if (events := self._decode_all(values)) is None:
            places, rows = [], []
            for place, value in enumerate(values):
                fields = _size_flaw(value) or self._decode_one(value or b"")
                if isinstance(fields, event_fields.Flaw):
                    flaws[place] = fields
                else:
                    places.append(place)
                    rows.append(fields)
            return places, list(zip(*rows, strict=True)) if rows else [()] * self._fields_count
        whole: Sequence[bytes] = values  # type: ignore[assignment]
        columns = [self._decoder.column(field, events) for field in range(self._fields_count)]
        if self._has_no_repeats(whole, columns):
            return range(len(values)), columns
        for place, value in enumerate(whole):
            if (flaw := self._repetition_flaw(value)) is not None:
                flaws[place] = flaw
        kept = [place for place in range(len(values)) if place not in flaws]
        return kept, [[column[place] for place in kept] for column in columns]

    def _decode_all(self, values: Sequence[bytes | None]) -> Sequence[Any] | None:
        """Decode all events quickly; None if an event needs the slow decoder."""
        if (quick := self._decoder.decode_quickly) is None or None in values:
            return None
        whole: Sequence[bytes] = values  # type: ignore[assignment]
        longest = max(map(len, whole), default=0)
        if longest > event_fields.MAX_BYTES or _may_nest(whole, longest):
            return None
        try:
            return list(map(quick, whole))
        except (ValueError, RecursionError):
            return None

    def _has_no_repeats(self, values: Sequence[bytes], columns: Sequence[Sequence[Any]]) -> bool:
        """Return True if counting names in the whole batch proves that no event repeats a field.

        If every field has a value in every event, each event has each name at least once. So if a name
        occurs as often as there are events, each event has it exactly once.
        """
        joined = b"\n".join(values)
        return (
            b"\\" not in joined
            and not any(None in column for column in columns)
            and all(joined.count(name) == len(values) for name in self._decoder.json_names)
        )

    def _repetition_flaw(self, value: bytes) -> event_fields.Flaw | None:
        if b"\\" not in value and all(value.count(name) <= 1 for name in self._decoder.json_names):
            return None
        return self._decoder.repetition_flaw(value)

    def _decode_one(self, value: bytes) -> tuple[Any, ...] | event_fields.Flaw:
        found: tuple[Any, ...] | event_fields.Flaw
        try:
            if self._decoder.decode_quickly is None:
                found = self._decoder.decode_slowly(value)
            else:
                event = [self._decoder.decode_quickly(value)]
                found = tuple(self._decoder.column(field, event)[0] for field in range(self._fields_count))
        except (ValueError, RecursionError):
            found = self._decoder.decode_slowly(value)
        return found if isinstance(found, event_fields.Flaw) else self._repetition_flaw(value) or found


def _leave_out(kept_mask: npt.NDArray[np.bool_], fit: npt.NDArray[np.bool_]) -> list[int]:
    """Clear the rows that do not ``fit`` in the mask of kept rows, and return the cleared rows."""
    rows: list[int] = np.flatnonzero(kept_mask & ~fit).tolist()
    kept_mask &= fit
    return rows


def _encode_names(people: Sequence[Any]) -> list[bytes]:
    """Return people's names as bytes; an invalid name is empty."""
    if set(map(type, people)) == {str} and all(map(str.strip, people)):
        try:
            names = list(map(str.encode, people))
        except UnicodeEncodeError:
            pass
        else:
            if max(map(len, names)) <= event_fields.MAX_PERSON_BYTES:
                return names
    return [_encode_name(person) for person in people]


def _encode_name(person: Any) -> bytes:
    if isinstance(person, int) and not isinstance(person, bool):
        if abs(person).bit_length() > 8 * event_fields.MAX_PERSON_BYTES:
            return b""
        person = str(person)
    if not isinstance(person, str) or not person.strip():
        return b""
    try:
        name = person.encode()
    except UnicodeEncodeError:
        return b""
    return name if len(name) <= event_fields.MAX_PERSON_BYTES else b""


def _time_flaw(value: Any) -> event_fields.Flaw:
    """Return the flaw of an invalid time; if it is probably a number in another unit, the flaw says so."""
    return (
        None if isinstance(value, bool) else event_fields.unit_flaw(event_fields.number_of(value))
    ) or event_fields.NO_TIME


def _size_flaw(value: bytes | None) -> event_fields.Flaw | None:
    """Return the flaw of an event that is missing, too large or nested too deeply, or None."""
    if value is None:
        return event_fields.EMPTY
    if len(value) > event_fields.MAX_BYTES:
        return event_fields.OVERSIZE
    if (
        value.count(b"{") + value.count(b"[") > event_fields.MAX_DEPTH
        and nesting_of(value) > event_fields.MAX_DEPTH
    ):
        return event_fields.NESTED
    return None


def _may_nest(values: Sequence[bytes], longest: int) -> bool:
    """Return True if a stretch of the longest event's length opens more than ``MAX_DEPTH`` brackets."""
    letters = np.frombuffer(b"\n".join(values), dtype=np.uint8)
    places = np.flatnonzero((letters == ord("{")) | (letters == ord("[")))
    return (
        len(places) > event_fields.MAX_DEPTH
        and int((places[event_fields.MAX_DEPTH :] - places[: -event_fields.MAX_DEPTH]).min()) < longest
    )


def _as_list(values: Sequence[bytes | None] | Spans) -> Sequence[bytes | None]:
    """Return the values as a list; in ``Spans`` a negative size means None."""
    if not isinstance(values, Spans):
        return values
    return [None if size < 0 else text for text, size in zip(values, values.size.tolist(), strict=True)]


class EventCheck:
    """Checks events against their source, the first windows of its streams, and the clock.

    A feed may still refuse an event that passes these checks, because its clock differs or a new stream
    begins later.
    """

    def __init__(self, source: EventsSource, grants: Iterable[GrantRecord]) -> None:
        self._ahead = span_ms(source.ahead)
        self._reader = EventReader(source, 1)
        self._first = min(map(_first_window, grants), default=NO_MOMENT)

    @property
    def first(self) -> int:
        """The beginning of the earliest window of all streams, in Unix milliseconds; ``NO_MOMENT`` without a stream."""
        return self._first

    def check(
        self, events: Sequence[bytes], now: int | None, *, in_order: bool = False
    ) -> tuple[list[int], dict[int, event_fields.Flaw], int]:
        """Return each event's time (``NO_MOMENT`` if it is refused), the flaws by index, and the number of early events.

        Early events are dated before every window and not refused, because the clock has not reached these windows, or is
        not known. ``now`` is the time of the broker's clock, or of a replay's last mark, in Unix milliseconds. With
        ``in_order``, the partition's clock is at each event's own time, because watermarks will be written between the events.
        """
        read = self._reader.read(events)
        times, first = read.times, np.full(len(read.times), self._first, dtype=np.int64)
        clocks = times if in_order else np.full(len(times), 0 if now is None else now, dtype=np.int64)
        is_before = event_fields.precedes_all_windows(times, first, clocks)
        is_ahead = times > (np.iinfo(np.int64).max if now is None else now + self._ahead)
        moments, flaws = [NO_MOMENT] * len(events), dict(read.flaws)
        for place, time, ahead, before in zip(
            read.indices.tolist(), times.tolist(), is_ahead.tolist(), is_before.tolist(), strict=True
        ):
            if ahead or before:
                flaws[place] = event_fields.time_flaw(time, is_ahead=ahead)
            else:
                moments[place] = time
        return moments, flaws, int(np.count_nonzero((times < first) & ~is_before & ~is_ahead))


def _first_window(grant: GrantRecord) -> int:
    if (standing := grant.spec.standing) is None or standing.begins is None:
        return NO_MOMENT
    return standing.window.first_start_from(moment_ms(standing.begins))
