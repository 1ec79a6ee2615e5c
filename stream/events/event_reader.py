"""Reads batches of events as columns of people, times and attribute codes.

Each event is read independently of the others in its batch and of the batch boundaries. The kernel reads
plain events, most of them, at once; all others are decoded one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import Categories, EventsSource
from schemas.json_limits import nesting_of
from schemas.windows import END_MS, moment_of
from stream.events.event_fields import (
    EMPTY,
    MALFORMED,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_PERSON_BYTES,
    NESTED,
    NO_OBJECT,
    NO_TIME,
    NOBODY,
    OVERSIZE,
    REPEATED,
    Codes,
    FieldCodes,
    Flaw,
    Moments,
    no_number,
    number_of,
    unit_of,
    unknown_category,
)
from stream.kernel import Fields, SlotNames, Spans, Values, digests, spans_of
from stream.tables.encoding import bin_codes, integer_codes

__all__ = ["EventReader", "Events", "Flaw"]

Path = tuple[str, ...]
"""The names of nested fields, outermost first."""


class Decoder:
    """Reads the fields at some paths of one event at a time; a missing field is None."""

    def __init__(self, paths: Sequence[Path], kinds: Sequence[Any]) -> None:
        """Set the paths of at least two fields, and the expected types of their values."""
        self._paths = paths
        self._tree = _Branch()
        names: list[str] = []
        for path, kind in zip(paths, kinds, strict=True):
            at = self._tree
            for step in path:
                at = at.branches.setdefault(step, _Branch())
            at.kinds.append(kind)
            names.append(self._tree.name_of(path))
        # Most events fit a struct of the declared fields; ``_slow`` reads the others.
        self._quick = None if self._tree.is_mixed else msgspec.json.Decoder(self._tree.struct("Event")).decode
        self._fields = attrgetter(*names)
        self._written = [
            msgspec.json.encode(step) for step in dict.fromkeys(step for path in paths for step in path)
        ]
        """Each name of a path as JSON, without escapes."""

    def read(self, value: bytes) -> tuple[Any, ...] | Flaw:
        """Return an event's fields, or its flaw; numbers beyond all doubles become infinite."""
        try:
            found = self._slow(value) if self._quick is None else self._fields(self._quick(value))
        except (ValueError, RecursionError, AttributeError):  # no object is where a nested field belongs
            found = self._slow(value)
        return found if isinstance(found, Flaw) else self._repeats(value) or found

    def _slow(self, value: bytes) -> tuple[Any, ...] | Flaw:
        try:
            event = _decode(value)
        except (ValueError, RecursionError):
            return MALFORMED
        if not isinstance(event, dict):
            return NO_OBJECT
        return tuple(_at(event, path) for path in self._paths)

    def _repeats(self, value: bytes) -> Flaw | None:
        """Return the flaw of an event that repeats a declared field, or None."""
        if b"\\" not in value and max(map(value.count, self._written)) <= 1:
            return None
        try:
            event = _pairs.decode(value.decode(errors="surrogateescape"))
        except (ValueError, RecursionError):
            return MALFORMED
        return REPEATED if _repeated(event, self._tree) else None


_decode: Final = msgspec.json.Decoder(float_hook=float).decode


class _Pairs(list[tuple[str, Any]]):
    pass


_pairs: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


class _Branch:
    """The fields below one name, by name, and the expected types of its own value."""

    def __init__(self) -> None:
        self.branches: dict[str, _Branch] = {}
        self.kinds: list[Any] = []

    @property
    def is_mixed(self) -> bool:
        """Whether some field is read both as a value and as an object with fields."""
        return bool(self.kinds and self.branches) or any(one.is_mixed for one in self.branches.values())

    def name_of(self, path: Path) -> str:
        """Return the dotted name of a path in the struct."""
        place = f"f{list(self.branches).index(path[0])}"
        return place if len(path) == 1 else f"{place}.{self.branches[path[0]].name_of(path[1:])}"

    def struct(self, name: str) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any, Any]] = []
        for place, branch in enumerate(self.branches.values()):
            # Several fields may have one path, and accept different types.
            kind = branch.struct(f"{name}{place}") if branch.branches else branch.kinds[0]
            if len(branch.kinds) > 1:
                kind = Any
            fields.append((f"f{place}", kind if kind is Any else kind | None, None))
        renamed = {f"f{place}": step for place, step in enumerate(self.branches)}
        return msgspec.defstruct(name, fields, rename=renamed, frozen=True, gc=False)


def _at(event: Mapping[str, Any], path: Path) -> Any:
    found: Any = event
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _repeated(event: Any, branch: _Branch) -> bool:
    if not isinstance(event, _Pairs):
        return False
    for step, below in branch.branches.items():
        values = [value for name, value in event if name == step]
        if len(values) > 1 or (values and _repeated(values[0], below)):
            return True
    return False


DIGEST_BYTES: Final = 16

Digests = npt.NDArray[np.uint64]
"""Two words per person; the second is odd, so that no digest is 0."""

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_WORD: Final = 0xFFFFFFFF


def digests_and_homes(names: Sequence[bytes], partitions: int) -> tuple[Digests, npt.NDArray[np.int64]]:
    """Return each name's digest and partition."""
    if (found := digests(names if isinstance(names, Spans) else spans_of(names), partitions)) is None:
        return digests_of(names), partitions_of(names, partitions)
    found[0][:, 1] |= np.uint64(1)
    return found


def digests_of(names: Sequence[bytes]) -> Digests:
    """Return each name's digest."""
    joined = b"".join([blake2b(name, digest_size=DIGEST_BYTES).digest() for name in names])
    digests = np.frombuffer(joined, dtype="<u8").reshape(-1, 2).astype(np.uint64)
    digests[:, 1] |= np.uint64(1)
    return digests


def partitions_of(names: Sequence[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """Return each name's partition by Kafka's default partitioner."""
    return np.array([(_murmur2(name) & 0x7FFFFFFF) % partitions for name in names], dtype=np.int64)


def _murmur2(name: bytes) -> int:
    """Return the hash of Kafka's default partitioner, a number of 32 bits."""
    found, whole = _SEED ^ len(name), len(name) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(name[start : start + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        found = found * _MULTIPLIER & _WORD ^ word
    if name[whole:]:
        found = (found ^ int.from_bytes(name[whole:], "little")) * _MULTIPLIER & _WORD
    found = (found ^ found >> 13) * _MULTIPLIER & _WORD
    return found ^ found >> 15


_NOT_AMONG: Final = -1


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch in order, and the flaws of the others.

    ``places`` are the events' indices in the batch; ``homes`` their people's partitions.
    """

    places: npt.NDArray[np.int64]
    people: Digests
    homes: npt.NDArray[np.int64]
    times: Moments
    codes: Mapping[str, Codes]
    flaws: Mapping[int, Flaw]

    def merged(self, others: Events, places: npt.NDArray[np.int64]) -> Events:
        """Merge with others of the batch; ``places`` maps their places to the batch's."""
        both = np.concatenate([self.places, places[others.places]])
        order = np.argsort(both)
        return Events(
            both[order],
            np.concatenate([self.people, others.people])[order],
            np.concatenate([self.homes, others.homes])[order],
            np.concatenate([self.times, others.times])[order],
            {name: np.concatenate([codes, others.codes[name]])[order] for name, codes in self.codes.items()},
            {**self.flaws, **{int(places[place]): flaw for place, flaw in others.flaws.items()}},
        )


class PlainReader:
    """Reads the plain events of one source."""

    def __init__(self, source: EventsSource, partitions: int) -> None:
        self._partitions = partitions
        self._domains = source.attributes
        self._person = tuple(source.person.split("."))
        self._time = tuple(source.time.split("."))
        self._paths = {name: tuple(source.path_of(name).split(".")) for name in source.attributes}
        paths = {self._person, self._time, *self._paths.values()}
        leads_on = any(way != path and path[: len(way)] == way for way in paths for path in paths)
        self._fields = None if leads_on else Fields(sorted(paths))
        self._names: dict[str, SlotNames] = {}
        for name, domain in source.attributes.items():
            if isinstance(domain, Categories):
                self._names[name] = SlotNames()
                self._names[name].extend([value.encode(errors="replace") for value in domain.values])

    def read(self, texts: Spans) -> Events | None:
        """Read the plain events; None without the kernel or if fields overlap."""
        if self._fields is None or (values := self._fields.scan(texts, MAX_BYTES)) is None:
            return None
        columns = self._fields.columns
        values.people(columns[self._person])
        times = values.moments(columns[self._time], END_MS)
        codes = {name: self._codes(name, values, columns[path]) for name, path in self._paths.items()}
        rows = np.flatnonzero(values.read)
        people, homes = digests_and_homes(values.texts(columns[self._person], rows), self._partitions)
        return Events(rows, people, homes, times[rows], {name: column[rows] for name, column in codes.items()}, {})

    def _codes(self, name: str, values: Values, column: int) -> Codes:
        """Return each value's code; values without one are left to the slow reader."""
        domain = self._domains[name]
        if isinstance(domain, Categories):
            other = _NOT_AMONG if domain.other is None else domain.values.index(domain.other)
            return values.slots(column, self._names[name], other)
        numbers = values.numbers(column)
        numbers[~values.read] = np.nan
        codes, known = (bin_codes if domain.kind == "bins" else integer_codes)(domain, numbers)  # type: ignore[arg-type]
        np.logical_and(values.read, known, out=values.read)
        return codes


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
