"""Reads batches of events as columns of people, times and attribute codes.

Each event is read independently of the others in its batch and of the batch boundaries. The kernel reads
plain events, most of them, at once; all others are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas import Categories, EventsSource
from schemas.json_limits import nesting_of
from schemas.windows import moment_of
from stream.events.event_decoding import Decoder, Events, PlainReader, digests_and_homes
from stream.events.event_fields import (
    EMPTY,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_PERSON_BYTES,
    NESTED,
    NO_TIME,
    NOBODY,
    OVERSIZE,
    Codes,
    FieldCodes,
    Flaw,
    no_number,
    number_of,
    unit_of,
    unknown_category,
)
from stream.kernel import Spans, spans_of

__all__ = ["EventReader", "Events", "Flaw"]


class EventReader:
    """Reads the events of one source."""

    def __init__(self, source: EventsSource, partitions: int) -> None:
        self._partitions = partitions
        self._cells = {name: FieldCodes(domain) for name, domain in source.attributes.items()}
        self._flaws = [
            unknown_category(name) if isinstance(domain, Categories) else no_number(name)
            for name, domain in source.attributes.items()
        ]
        paths = [source.person, source.time, *map(source.path_of, source.attributes)]
        kinds = [str | int, str | int, *[Any] * len(self._cells)]
        self._plain = PlainReader(source, partitions)
        self._decoder = Decoder([tuple(path.split(".")) for path in paths], kinds)

    def read(self, values: Sequence[bytes | None] | Spans) -> Events:
        """Read a batch as columns."""
        plain = self._plain.read(values if isinstance(values, Spans) else spans_of([one or b"" for one in values]))
        if plain is None:
            return self._read(_listed(values))
        if len(plain.places) == len(values):
            return plain
        left = np.ones(len(values), dtype=np.bool_)
        left[plain.places] = False
        places = np.flatnonzero(left)
        others = values.picked(places) if isinstance(values, Spans) else [values[one] for one in places.tolist()]
        return plain.merged(self._read(_listed(others)), places)

    def _read(self, values: Sequence[bytes | None]) -> Events:
        """Read each event by itself; the first flaw of its fields counts."""
        flaws: dict[int, Flaw] = {}
        places: list[int] = []
        rows: list[tuple[Any, ...]] = []
        for place, value in enumerate(values):
            row = self._row(value)
            if isinstance(row, Flaw):
                flaws[place] = row
            else:
                places.append(place)
                rows.append(row)
        names, times, *columns = zip(*rows, strict=True) if rows else [()] * (2 + len(self._cells))
        codes: dict[str, Codes] = {}
        kept = np.ones(len(places), dtype=np.bool_)
        for (name, cells), flaw, column in zip(self._cells.items(), self._flaws, columns, strict=True):
            codes[name], fits = cells.codes(column)
            flaws.update((places[row], flaw) for row in np.flatnonzero(kept & ~fits).tolist())
            kept &= fits
        people, homes = digests_and_homes(names, self._partitions)
        return Events(
            np.array(places, dtype=np.int64)[kept],
            people[kept],
            homes[kept],
            np.array(times, dtype=np.int64)[kept],
            {name: column[kept] for name, column in codes.items()},
            flaws,
        )

    def _row(self, value: bytes | None) -> tuple[Any, ...] | Flaw:
        """Return an event's person, time and attributes, or its flaw."""
        fields = _refused(value) or self._decoder.read(value or b"")
        if isinstance(fields, Flaw):
            return fields
        person, moment, *attributes = fields
        if not (name := _name(person)):
            return NOBODY
        if (time := moment_of(moment)) < 0:
            # A number in another unit is named as such.
            return (None if isinstance(moment, bool) else unit_of(number_of(moment))) or NO_TIME
        return name, time, *attributes


def _name(person: Any) -> bytes:
    """Return a person's name as bytes, empty if invalid."""
    if isinstance(person, int) and not isinstance(person, bool):
        if abs(person).bit_length() > 8 * MAX_PERSON_BYTES:
            return b""
        person = str(person)
    if not isinstance(person, str) or not person.strip():
        return b""
    try:
        name = person.encode()
    except UnicodeEncodeError:
        return b""
    return name if len(name) <= MAX_PERSON_BYTES else b""


def _refused(value: bytes | None) -> Flaw | None:
    """Return the flaw of an event that is refused unread, or None."""
    if value is None:
        return EMPTY
    if len(value) > MAX_BYTES:
        return OVERSIZE
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and nesting_of(value) > MAX_DEPTH:
        return NESTED
    return None


def _listed(values: Sequence[bytes | None] | Spans) -> Sequence[bytes | None]:
    """List the values; a negative size means None."""
    if not isinstance(values, Spans):
        return values
    return [None if size < 0 else text for text, size in zip(values, values.size.tolist(), strict=True)]
