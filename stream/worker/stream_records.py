"""Decodes the kinds of records of which a partition may have hundreds of thousands.

The records are stream definitions, updates (one for each charged answer of a stream with an estimate or
with released texts), and retired streams.

A definition has about a kilobyte. Thousands of streams may have definitions that differ only in name, identity
and threshold. The pydantic model validates each different shared part once; further definitions with the
same shared part skip this validation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from struct import Struct
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args

import msgspec
from pydantic import BaseModel, StringConstraints

from schemas import (
    FIRST_VERSION,
    MAX_RECORD_BYTES,
    EventsSource,
    Extensions,
    HypothesisUpdate,
    Measurement,
    Mechanism,
    ReleasedTexts,
    RetiredStreams,
    StreamIdentity,
    StreamSpec,
    control_codec,
)
from schemas.base import Identifier, Reason
from schemas.wire import DECODE_ERRORS, MalformedEventError, struct
from stream.privacy.ledger.retirement import name_digest, split_digests
from stream.processing.digest_table import DigestTable, find_retired
from stream.processing.protocol import RecordLike, decode_changelog_record
from stream.worker.stream_terms import TermsTable, WireAmount

_UNSHARED_FIELDS = frozenset({"threshold"})
"""Fields of a mechanism that may differ between streams with equal terms."""
_INCARNATION_LENGTH, _DIGEST_LENGTH = 32, 64


def _constraints(annotated: Any) -> StringConstraints:
    return next(one for one in annotated.__metadata__ if isinstance(one, StringConstraints))


_NAME_LIMIT = _constraints(Identifier).max_length or 0
_is_name = re.compile(str(_constraints(Identifier).pattern).removeprefix("^").removesuffix("$")).fullmatch


def _tagged_struct(model: type[BaseModel]) -> type[msgspec.Struct]:
    """Define the struct of one member of a union tagged by ``kind``."""
    (kind,) = get_args(model.model_fields["kind"].annotation)
    struct_without_kind = struct(model, only=frozenset(model.model_fields) - {"kind"})
    return msgspec.defstruct(
        model.__name__, [], bases=(struct_without_kind,), tag_field="kind", tag=kind, frozen=True, gc=False
    )


_MECHANISMS = tuple(_tagged_struct(model) for model in get_args(get_args(Mechanism)[0]))

# Names and identities are plain str here, because ``_are_well_formed`` checks all of them at once. The
# source's name is not checked, because it belongs to the shared part, which the model has validated.
_WireSpec = msgspec.defstruct(
    "Spec",
    [("stream", str), ("source", str), ("mechanism", Union[_MECHANISMS])],  # noqa: UP007  (built at run time)
    bases=(struct(StreamSpec, only=frozenset(StreamSpec.model_fields) - {"stream", "source", "mechanism"}),),
    kw_only=True,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
)
_WireIdentity = msgspec.defstruct(
    "Identity",
    [(name, str) for name in StreamIdentity.model_fields],
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
)


class _WireControl(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    spec: _WireSpec  # type: ignore[valid-type]  # made at run time
    source: msgspec.Raw
    identity: _WireIdentity  # type: ignore[valid-type]  # made at run time
    fingerprint: str | None
    calibration: msgspec.Raw
    kind: Literal["opened", "halted", "closed"]
    extensions: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    version: int = FIRST_VERSION
    reason: Annotated[str, msgspec.Meta(max_length=_constraints(Reason).max_length)] | msgspec.UnsetType = (
        msgspec.UNSET
    )


_decode = msgspec.json.Decoder(_WireControl).decode
_shared_of_spec = attrgetter(*sorted(StreamSpec.model_fields.keys() - {"stream", "mechanism"}))
_shared_of_mechanism = {
    kind: attrgetter(*sorted(set(kind.__struct_fields__) - _UNSHARED_FIELDS) or ["__class__"])
    for kind in _MECHANISMS
}


class StreamDefinition(msgspec.Struct, frozen=True, gc=False):
    """A control event: a stream, its identity, its terms, and whether it may answer.

    ``terms`` is an index in ``TermsTable``. ``threshold`` is 0 unless the stream is a sparse vector.
    ``reason`` is None if the event opens the stream.
    """

    stream: str
    incarnation: str
    digest: str
    key_id: str
    terms: int
    threshold: float
    kind: Literal["opened", "halted", "closed"]
    reason: str | None
    extensions: Extensions = ()
    version: int = FIRST_VERSION

    @property
    def rank(self) -> int:
        """The event's place among the events of its incarnation; it grows with each extension and refresh."""
        return len(self.extensions) + self.version


class DefinitionReader:
    """Reads control events and adds their terms to a table."""

    def __init__(self, terms: TermsTable) -> None:
        self.terms = terms
        self._terms_by_shared_part: dict[Any, tuple[int, int]] = {}

    def read(self, values: Sequence[bytes]) -> list[StreamDefinition | None]:
        """Return each event's definition; None if this version of Sotto cannot read the event."""
        definitions = [self._read_value(value) for value in values]
        if _are_well_formed([one for one in definitions if one is not None]):
            return definitions
        return [self._validate(value) for value in values]

    def forget(self, terms: AbstractSet[int]) -> None:
        """Forget the shared parts with these terms, which no stream uses any more."""
        known = self._terms_by_shared_part
        self._terms_by_shared_part = {part: one for part, one in known.items() if one[0] not in terms}

    def _read_value(self, value: bytes) -> StreamDefinition | None:
        """Decode a definition without checking its name and identity."""
        try:
            wire = _decode(value)
        except DECODE_ERRORS:
            return self._validate(value)
        terms, quotes_without_reason = self._terms_by_shared_part.get(_shared_part(wire), (None, 0))
        if (
            terms is None
            or len(value) > MAX_RECORD_BYTES
            or wire.extensions is not msgspec.UNSET
            or (wire.kind == "opened") is not (wire.reason is msgspec.UNSET)
            # A repeated field adds quotation marks, so the number differs from that of the validated event.
            or value.count(b'"') != quotes_without_reason + _count_quotes_of_reason(wire)
        ):
            return self._validate(value)
        return _build_definition(wire, terms)

    def _validate(self, value: bytes) -> StreamDefinition | None:
        """Validate a definition and remember its shared part."""
        try:
            definition = control_codec.decode(value)
        except MalformedEventError:
            return None
        try:
            wire = _decode(value)
        except DECODE_ERRORS:
            wire = _decode(control_codec.encode(definition))
        terms = self.terms.index_of(definition)
        if definition.extensions:
            return _build_definition(wire, terms, definition.extensions)
        # The shared part of a period's stream is not remembered, because streams of later periods have others.
        if not isinstance(definition.source, EventsSource) or definition.source.period_of is None:
            quotes_without_reason = value.count(b'"') - _count_quotes_of_reason(wire)
            self._terms_by_shared_part[_shared_part(wire)] = terms, quotes_without_reason
        return _build_definition(wire, terms)


def _count_quotes_of_reason(wire: Any) -> int:
    return 0 if wire.reason is msgspec.UNSET else 4 + wire.reason.count('"')


def _shared_part(wire: Any) -> tuple[Any, ...]:
    """Return all fields but the stream's name, incarnation, digest, threshold, kind and reason."""
    spec = wire.spec
    kind = type(spec.mechanism)
    return (
        kind,
        _shared_of_mechanism[kind](spec.mechanism),
        _shared_of_spec(spec),
        bytes(wire.source),
        bytes(wire.calibration),
        wire.fingerprint,
        wire.version,
        wire.identity.key_id,
    )


def _build_definition(wire: Any, terms: int, extensions: Extensions = ()) -> StreamDefinition:
    spec, identity = wire.spec, wire.identity
    return StreamDefinition(
        spec.stream,
        identity.incarnation,
        identity.digest,
        identity.key_id,
        terms,
        getattr(spec.mechanism, "threshold", 0.0),
        wire.kind,
        None if wire.reason is msgspec.UNSET else wire.reason,
        extensions,
        wire.version,
    )


def _are_well_formed(definitions: Sequence[StreamDefinition]) -> bool:
    names = [one.stream for one in definitions]
    return (
        all(map(_is_name, names))
        and max(map(len, names), default=0) <= _NAME_LIMIT
        and _are_hexadecimal([one.incarnation for one in definitions], _INCARNATION_LENGTH)
        and _are_hexadecimal([one.digest for one in definitions], _DIGEST_LENGTH)
    )


def _are_hexadecimal(texts: Sequence[str], length: int) -> bool:
    """Return True if all texts are ``length`` lower-case hexadecimal digits."""
    joined = "".join(texts)
    try:
        return set(map(len, texts)) <= {length} and bytes.fromhex(joined).hex() == joined
    except ValueError:
        return False


UPDATE_PREFIX = b"@update|"
"""Prefix of the changelog keys of updates; stream names never start with an at-sign."""

Update = HypothesisUpdate | Measurement | ReleasedTexts
"""The record of a charged answer: a step of multiplicative weights, a measurement, or released texts."""

_DECODERS: Any = tuple(
    msgspec.json.Decoder(struct(kind)).decode for kind in (HypothesisUpdate, ReleasedTexts, Measurement)
)


def update_key(stream: str, number: int) -> bytes:
    """Return the changelog key of one update of a stream."""
    return UPDATE_PREFIX + f"{number}|{stream}".encode()


def encode_update(update: Update) -> bytes:
    """Encode an update as compact JSON."""
    return update.model_dump_json(exclude_defaults=True).encode()


def decode_update(value: bytes) -> Any:
    """Decode a record; its fields determine its kind, because no record fits two kinds."""
    *others, last = _DECODERS
    for decode in others:
        try:
            return decode(value)
        except msgspec.ValidationError:
            continue
    return last(value)


def _parse_update_key(key: bytes) -> tuple[str, int]:
    number, _, stream = key.removeprefix(UPDATE_PREFIX).decode().partition("|")
    return stream, int(number)


class UpdateLog:
    """The updates in a changelog, by stream and number."""

    def __init__(self) -> None:
        self._updates: dict[tuple[str, int], tuple[str, bytes]] = {}

    def add(self, record: RecordLike) -> None:
        """Add one record; LaterVersionError if this version of Sotto cannot read it."""
        update = decode_changelog_record(record, decode_update)
        self._updates[_parse_update_key(record.key or b"")] = update.incarnation, record.value or b""

    def remove(self, key: bytes) -> None:
        """Remove the record with this key, if there is one."""
        self._updates.pop(_parse_update_key(key), None)

    def keys_of(self, is_chosen: Callable[[str], bool]) -> list[bytes]:
        """Return the keys of all records of the streams for which ``is_chosen`` is True."""
        chosen = {stream for stream in {stream for stream, _ in self._updates} if is_chosen(stream)}
        return [update_key(stream, number) for stream, number in self._updates if stream in chosen]

    def first_updates(self, stream: str, incarnation: str, count: int) -> list[bytes] | None:
        """Return the first ``count`` updates of an incarnation, in order; None if any is missing."""
        updates = [self._updates.get((stream, number), ("", b"")) for number in range(count)]
        return [value for _, value in updates] if all(one == incarnation for one, _ in updates) else None


_decode_retired: Any = msgspec.json.Decoder(struct(RetiredStreams)).decode
_Row: Final = Struct("<dddqI")
"""Spent ε, δ and ρ (NaN for None), the charged answers left (-1 for None), and the number of the reason."""

MAX_REASON_BYTES: Final = 1 << 20
"""Maximum number of bytes of different reasons; if there are more, further streams have ``OTHER_REASON``."""
_REASON_OBJECT_BYTES: Final = 200
OTHER_REASON: Final = "the stream has ended; the audit trail has the reason"


class HaltedAnswer(NamedTuple):
    """Fields of a retired stream's answers."""

    reason: str
    spent: Any
    tops_left: int | None


class RetiredStreamTable:
    """The retired streams of a partition, in rows of 52 bytes, and the texts of different reasons."""

    def __init__(self) -> None:
        self._rows = DigestTable(_Row.size)
        self._reasons = [OTHER_REASON]
        self._number_of_reason: dict[str, int] = {}
        self._reason_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, stream: str) -> bool:
        """Return True if a stream is retired."""
        return bool(self._rows) and self._rows.find(name_digest("stream", stream)) is not None

    def select(self, streams: Iterable[str]) -> set[str]:
        """Return the streams that are retired."""
        return find_retired(self._rows, streams)

    def find(self, stream: str) -> HaltedAnswer | None:
        """Return the fields of a stream's answers; None if it is not retired."""
        row = self._rows.find(name_digest("stream", stream)) if self._rows else None
        if row is None:
            return None
        epsilon, delta, rho, left, reason = _Row.unpack(row)
        spent = WireAmount(epsilon, delta, None if math.isnan(rho) else rho)
        return HaltedAnswer(self._reasons[reason], spent, None if left < 0 else left)

    def add_record(self, value: bytes) -> None:
        """Add the streams of a control record; ignore a record that this version of Sotto cannot read."""
        try:
            record = _decode_retired(value)
            digests = split_digests(record.names)
        except (*DECODE_ERRORS, ValueError):
            return
        if len(digests) != len(record.answer_of) or max(record.answer_of, default=0) >= len(record.answers):
            return
        rows = [self._encode(answer) for answer in record.answers]
        self._rows.add_all(zip(digests, (rows[place] for place in record.answer_of), strict=True))

    def _encode(self, answer: Any) -> bytes:
        spent, left = answer.spent, answer.tops_left
        rho = math.nan if spent.rho is None else spent.rho
        reason = self._number_of(answer.reason)
        return _Row.pack(spent.epsilon, spent.delta, rho, -1 if left is None else left, reason)

    def _number_of(self, reason: str) -> int:
        if (known := self._number_of_reason.get(reason)) is not None:
            return known
        size = len(reason.encode()) + _REASON_OBJECT_BYTES
        if self._reason_bytes + size > MAX_REASON_BYTES:
            return 0
        self._reason_bytes += size
        self._number_of_reason[reason] = number = len(self._reasons)
        self._reasons.append(reason)
        return number
