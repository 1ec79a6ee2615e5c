"""Decodes JSON events to declared fields, and computes digests and partitions of people's names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import Categories, Dates, Decimals, EventsSource
from schemas.windows import YEAR_10000_MS
from stream.feeds import event_fields
from stream.kernel.byte_columns import Spans, spans_of
from stream.kernel.json_fields import FieldLocator, LocatedFields, SlotNames, digest_and_partition
from stream.tables.date_codes import date_codes, text_series
from stream.tables.encoding import bin_codes, decimal_codes, integer_codes, near_tie_mask

Path = tuple[str, ...]
"""The names of nested fields, outermost first."""


class Decoder:
    """Decodes the fields at some paths of an event; a missing field is None.

    ``decode_quickly`` decodes valid events to structs. ``decode_slowly`` decodes one other event, or returns
    its flaw. Each event is decoded independently of the others.
    """

    def __init__(self, paths: Sequence[Path], kinds: Sequence[Any]) -> None:
        """Set the fields' paths and the expected types of their values."""
        self._paths = paths
        self._tree = _Branch()
        names: list[str] = []
        for path, kind in zip(paths, kinds, strict=True):
            at, name = self._tree, ""
            for step in path:
                at, place = at.child(step)
                name = f"{name}.{place}" if name else place
            at.kinds.append(kind)
            names.append(name)
        self.decode_quickly: Callable[[bytes], Any] | None = None
        if not self._tree.is_mixed:
            self.decode_quickly = msgspec.json.Decoder(self._tree.struct("Event")).decode
        self._getters = [_getter(name) for name in names]
        self.json_names: Sequence[bytes] = [
            msgspec.json.encode(step) for step in dict.fromkeys(step for path in paths for step in path)
        ]
        """The names in all paths as JSON texts, without escapes."""

    def column(self, field: int, events: Sequence[Any]) -> list[Any]:
        """Return one field's values in events that ``decode_quickly`` decoded."""
        return list(map(self._getters[field], events))

    def decode_slowly(self, value: bytes) -> tuple[Any, ...] | event_fields.Flaw:
        """Return an event's fields or its flaw; numbers too large for a double become infinite."""
        try:
            event = _decode(value)
        except (ValueError, RecursionError):
            return event_fields.MALFORMED
        if not isinstance(event, dict):
            return event_fields.NO_OBJECT
        return tuple(_value_at(event, path) for path in self._paths)

    def repetition_flaw(self, value: bytes) -> event_fields.Flaw | None:
        """Return the flaw of an event that repeats a declared field, or None."""
        try:
            event = _pairs_decoder.decode(value.decode(errors="surrogateescape"))
        except (ValueError, RecursionError):
            return event_fields.MALFORMED
        return event_fields.REPEATED_FIELD if _repeats_field(event, self._tree) else None


_decode: Final = msgspec.json.Decoder(float_hook=float).decode


class _Pairs(list[tuple[str, Any]]):
    pass


_pairs_decoder: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


class _Branch:
    """A node in the tree of declared field names; a leaf has the types of its value."""

    def __init__(self) -> None:
        self.branches: dict[str, _Branch] = {}
        self.kinds: list[Any] = []

    def child(self, step: str) -> tuple[_Branch, str]:
        """Return the branch below a name, and its name in the struct."""
        branch = self.branches.setdefault(step, _Branch())
        return branch, f"f{list(self.branches).index(step)}"

    @property
    def is_mixed(self) -> bool:
        """True if a field is read both as a value and as an object with further fields."""
        return bool(self.kinds and self.branches) or any(one.is_mixed for one in self.branches.values())

    def struct(self, name: str) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any, Any]] = []
        for place, branch in enumerate(self.branches.values()):
            if branch.branches:
                kind: Any = branch.struct(f"{name}{place}") | None
            else:
                [first, *others] = branch.kinds
                kind = first | None if first is not Any and all(other == first for other in others) else Any
            fields.append((f"f{place}", kind, None))
        renamed = {f"f{place}": step for place, step in enumerate(self.branches)}
        return msgspec.defstruct(name, fields, rename=renamed, frozen=True, gc=False)


def _getter(name: str) -> Callable[[Any], Any]:
    if "." not in name:
        return attrgetter(name)
    *parents, last = name.split(".")

    def get(event: Any) -> Any:
        for step in parents:
            if (event := getattr(event, step)) is None:
                return None
        return getattr(event, last)

    return get


def _value_at(event: Mapping[str, Any], path: Path) -> Any:
    found: Any = event
    for step in path:
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _repeats_field(event: Any, branch: _Branch) -> bool:
    if not isinstance(event, _Pairs):
        return False
    for step, below in branch.branches.items():
        values = [value for name, value in event if name == step]
        if len(values) > 1 or (values and _repeats_field(values[0], below)):
            return True
    return False


DIGEST_BYTES: Final = 16

Digests = npt.NDArray[np.uint64]
"""Two 64-bit words for each person; the second word is odd, so that no digest is 0."""

_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)


def digests_and_homes(names: Sequence[bytes], partitions: int) -> tuple[Digests, npt.NDArray[np.int64]]:
    """Return the digest of each name, and its partition by Kafka's default partitioner."""
    if (found := digest_and_partition(names if isinstance(names, Spans) else spans_of(names), partitions)) is None:
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
    """Return each name's partition by Kafka's default partitioner (murmur2)."""
    if not names:
        return np.empty(0, dtype=np.int64)
    lengths = np.array([len(name) for name in names], dtype=np.uint32)
    width = int(lengths.max()) // 4 + 1
    words = np.array(names, dtype=f"S{4 * width}").view("<u4").reshape(-1, width).astype(np.uint32)
    found = _SEED ^ lengths
    whole = lengths // np.uint32(4)
    common = int(whole.min())
    for place in range(int(whole.max())):
        mixed = words[:, place] * _MULTIPLIER
        mixed ^= mixed >> np.uint32(24)
        mixed *= _MULTIPLIER
        mixed ^= found * _MULTIPLIER
        found = mixed if place < common else np.where(whole > place, mixed, found)
    rest = words[np.arange(len(names)), whole]
    found = np.where(lengths % np.uint32(4) > 0, (found ^ rest) * _MULTIPLIER, found)
    found ^= found >> np.uint32(13)
    found *= _MULTIPLIER
    found ^= found >> np.uint32(15)
    return (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


_NO_CODE: Final = -1


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch in order, and the flaws of the other events.

    ``indices`` are the events' indices in the batch, and ``homes`` the partitions of their people's names. The
    code of a text attribute is an index in the attribute's list in ``texts``, or ``NO_TEXT``.
    """

    indices: npt.NDArray[np.int64]
    people: Digests
    homes: npt.NDArray[np.int64]
    times: event_fields.Moments
    codes: Mapping[str, event_fields.Codes]
    flaws: Mapping[int, event_fields.Flaw]
    texts: Mapping[str, Sequence[bytes]] = field(default_factory=dict)

    def merge_events(self, others: Events, indices: npt.NDArray[np.int64]) -> Events:
        """Merge with other events of the batch, whose indices in the batch are ``indices``."""
        both = np.concatenate([self.indices, indices[others.indices]])
        order = np.argsort(both)
        other_codes = dict(others.codes)
        for name, texts in self.texts.items():
            other_codes[name] = np.where(
                other_codes[name] == event_fields.NO_TEXT, event_fields.NO_TEXT, other_codes[name] + len(texts)
            )
        return Events(
            both[order],
            np.concatenate([self.people, others.people])[order],
            np.concatenate([self.homes, others.homes])[order],
            np.concatenate([self.times, others.times])[order],
            {name: np.concatenate([codes, other_codes[name]])[order] for name, codes in self.codes.items()},
            {**self.flaws, **{int(indices[row]): flaw for row, flaw in others.flaws.items()}},
            {name: [*texts, *others.texts[name]] for name, texts in self.texts.items()},
        )


class PlainReader:
    """Reads the plain events (see ``FieldLocator.scan``) of one source with the compiled kernel."""

    def __init__(self, source: EventsSource, partitions: int) -> None:
        self._partitions = partitions
        self._domains = source.attributes
        self._person = tuple(source.person.split("."))
        self._time = tuple(source.time.split("."))
        self._texts = source.texts
        names = (*source.attributes, *source.texts)
        self._paths = {name: tuple(source.path_of(name).split(".")) for name in names}
        paths = {self._person, self._time, *self._paths.values()}
        has_prefix_path = any(
            prefix != path and path[: len(prefix)] == prefix for prefix in paths for path in paths
        )
        self._fields = None if has_prefix_path else FieldLocator(sorted(paths))
        self._names: dict[str, SlotNames] = {}
        for name, domain in source.attributes.items():
            if isinstance(domain, Categories):
                self._names[name] = SlotNames()
                self._names[name].texts.extend([value.encode(errors="replace") for value in domain.values])

    def read(self, texts: Spans) -> Events | None:
        """Read the plain events; None if there is no kernel, or if one path is a prefix of another."""
        if self._fields is None or (values := self._fields.scan(texts, event_fields.MAX_BYTES)) is None:
            return None
        columns = self._fields.columns
        values.exclude_non_people(columns[self._person])
        times = values.read_moments(columns[self._time], YEAR_10000_MS)
        codes = {name: self._codes(name, values, columns[self._paths[name]]) for name in self._domains}
        for name in self._texts:
            values.exclude_numbers(columns[self._paths[name]])
        rows = np.flatnonzero(values.is_read)
        people, homes = digests_and_homes(values.texts(columns[self._person], rows), self._partitions)
        found = {name: column[rows] for name, column in codes.items()}
        listed: dict[str, Sequence[bytes]] = {}
        for name, text in self._texts.items():
            own = values.texts(columns[self._paths[name]], rows)
            found[name], listed[name] = event_fields.text_codes(own, text.max_length)
        return Events(rows, people, homes, times[rows], found, {}, listed)

    def _codes(self, name: str, values: LocatedFields, column: int) -> event_fields.Codes:
        """Return each value's code; unset ``is_read`` for rows without a code, so that ``Decoder`` reads them."""
        domain = self._domains[name]
        if isinstance(domain, Categories):
            code_if_unknown = _NO_CODE if domain.other is None else domain.values.index(domain.other)
            return values.read_slots(column, self._names[name], code_if_unknown)
        if isinstance(domain, Dates):
            rows = np.flatnonzero(values.is_read)
            dates: event_fields.Codes = np.zeros(len(values.is_read), dtype=np.int64)
            # The digits of a JSON number are no date, so Decoder reads the row, and refuses it.
            texts = text_series([text.decode("ascii") for text in values.texts(column, rows)])
            dates[rows], values.is_read[rows] = date_codes("", domain, texts)
            return dates
        numbers = values.read_numbers(column)
        numbers[~values.is_read] = np.nan
        if isinstance(domain, Decimals):
            # Decoder reads a number that may be halfway between two steps, because it uses the number's text.
            numbers[near_tie_mask(domain, numbers)] = np.nan
            codes, known = decimal_codes(domain, numbers)
        else:
            codes, known = (bin_codes if domain.kind == "bins" else integer_codes)(domain, numbers)  # type: ignore[arg-type]
        np.logical_and(values.is_read, known, out=values.is_read)
        return codes
