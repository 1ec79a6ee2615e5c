"""Decodes stream definitions fast: a partition may have hundreds of thousands.

A definition is a kilobyte, and thousands of streams share all of it but name, identity and
threshold. Each distinct shared part is validated once by the pydantic model; definitions with an
equal shared part skip this validation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Annotated, Any, Literal, Union, get_args

import msgspec
from pydantic import BaseModel, StringConstraints

from schemas import (
    FIRST_VERSION,
    MAX_RECORD_BYTES,
    EventsSource,
    Extensions,
    Mechanism,
    StreamIdentity,
    StreamSpec,
)
from schemas.base import Identifier, Reason
from schemas.codecs import control_codec
from schemas.wire import DECODE_ERRORS, MalformedEventError, struct
from stream.worker.stream_terms import TermsTable

_UNSHARED_FIELDS = frozenset({"threshold"})
"""Fields of a mechanism that streams of equal terms do not share."""
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
# source's name needs no check: it belongs to the shared part, which the model has validated.
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

    ``terms`` is an index in ``TermsTable``; ``threshold`` is 0 unless the stream is a sparse
    vector; ``reason`` is None in an opening.
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
        """Order of the events of one incarnation; it grows with each extension and refresh."""
        return len(self.extensions) + self.version


class DefinitionReader:
    """Reads control events and adds their terms to a table."""

    def __init__(self, terms: TermsTable) -> None:
        self.terms = terms
        self._terms_by_shared_part: dict[Any, tuple[int, int]] = {}

    def read(self, values: Sequence[bytes]) -> list[StreamDefinition | None]:
        """Return each event's definition; None if this release of Sotto cannot read the event."""
        definitions = [self._read_value(value) for value in values]
        if _are_well_formed([one for one in definitions if one is not None]):
            return definitions
        return [self._validate(value) for value in values]

    def forget(self, terms: AbstractSet[int]) -> None:
        """Forget the shared parts with these terms, which are released."""
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
            # A field given twice adds quotation marks, so the number differs from the validated event's.
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
        if isinstance(definition.source, EventsSource) and definition.source.period_of is not None:
            return _build_definition(wire, terms)  # not kept: no stream of a later period has this shared part
        self._terms_by_shared_part[_shared_part(wire)] = (terms, value.count(b'"') - _count_quotes_of_reason(wire))
        return _build_definition(wire, terms)


def _count_quotes_of_reason(wire: Any) -> int:
    """Count the quotation marks of the field ``reason``."""
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
    """Return whether all texts are ``length`` lower-case hexadecimal digits."""
    joined = "".join(texts)
    try:
        return set(map(len, texts)) <= {length} and bytes.fromhex(joined).hex() == joined
    except ValueError:
        return False
