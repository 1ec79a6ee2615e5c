"""Decodes stream definitions fast: a partition may have hundreds of thousands.

A definition is a kilobyte, and thousands of streams share all of it but name, identity and
threshold. Each distinct shared part is validated once by the pydantic model; definitions with an
equal shared part skip this validation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, Union, get_args

import msgspec
from pydantic import BaseModel, StringConstraints

from schemas import (
    FIRST_VERSION,
    MAX_RECORD_BYTES,
    Control,
    EventsSource,
    Extensions,
    Mechanism,
    StreamIdentity,
    StreamSpec,
)
from schemas.base import Identifier, Reason
from schemas.wire import UNREADABLE, Codec, MalformedEventError, struct
from stream.worker.stream_terms import TermsTable

_OWN_FIELDS = frozenset({"threshold"})
"""Fields of a mechanism that streams of equal terms do not share."""
_INCARNATION_LENGTH, _DIGEST_LENGTH = 32, 64

_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


def _constraints(annotated: Any) -> StringConstraints:
    return next(one for one in annotated.__metadata__ if isinstance(one, StringConstraints))


_NAME_LIMIT = _constraints(Identifier).max_length or 0
_is_name = re.compile(str(_constraints(Identifier).pattern).removeprefix("^").removesuffix("$")).fullmatch


def _tagged(model: type[BaseModel]) -> type[msgspec.Struct]:
    """Define the struct of one member of a union tagged by ``kind``."""
    (kind,) = get_args(model.model_fields["kind"].annotation)
    rest = struct(model, only=frozenset(model.model_fields) - {"kind"})
    return msgspec.defstruct(model.__name__, [], bases=(rest,), tag_field="kind", tag=kind, frozen=True, gc=False)


_MECHANISMS = tuple(_tagged(model) for model in get_args(get_args(Mechanism)[0]))

# ``_well_formed`` checks names and identities; the source's name belongs to the shared part.
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


class _Wire(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
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


_decode = msgspec.json.Decoder(_Wire).decode
_shared_of_spec = attrgetter(*sorted(StreamSpec.model_fields.keys() - {"stream", "mechanism"}))
_shared_of_mechanism = {
    kind: attrgetter(*sorted(set(kind.__struct_fields__) - _OWN_FIELDS) or ["__class__"]) for kind in _MECHANISMS
}


class Definition(msgspec.Struct, frozen=True, gc=False):
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
        self._known: dict[Any, tuple[int, int]] = {}

    def read(self, values: Sequence[bytes]) -> list[Definition | None]:
        """Return each event's definition; None if this version cannot read it."""
        found = [self._read(value) for value in values]
        if _well_formed([one for one in found if one is not None]):
            return found
        return [self._validated(value) for value in values]

    def _read(self, value: bytes) -> Definition | None:
        """Decode a definition without checking its name and identity."""
        try:
            wire = _decode(value)
        except UNREADABLE:
            return self._validated(value)
        terms, quotes = self._known.get(_shared(wire), (None, 0))
        if (
            terms is None
            or len(value) > MAX_RECORD_BYTES
            or wire.extensions is not msgspec.UNSET
            or (wire.kind == "opened") is not (wire.reason is msgspec.UNSET)
            # JSON with a field given twice has more quotation marks than the validated one.
            or value.count(b'"') != quotes + _count_quotes_of_reason(wire)
        ):
            return self._validated(value)
        return _definition(wire, terms)

    def _validated(self, value: bytes) -> Definition | None:
        """Validate a definition and remember its shared part."""
        try:
            definition = _codec.decode(value)
        except MalformedEventError:
            return None
        try:
            wire = _decode(value)
        except UNREADABLE:
            wire = _decode(_codec.encode(definition))
        terms = self.terms.index_of(definition)
        if definition.extensions:
            return _definition(wire, terms, definition.extensions)
        if isinstance(definition.source, EventsSource) and definition.source.period_of is not None:
            return _definition(wire, terms)  # its shared part ends with the period
        self._known[_shared(wire)] = (terms, value.count(b'"') - _count_quotes_of_reason(wire))
        return _definition(wire, terms)


def _count_quotes_of_reason(wire: Any) -> int:
    """Count the quotation marks of the field ``reason``."""
    return 0 if wire.reason is msgspec.UNSET else 4 + wire.reason.count('"')


def _shared(wire: Any) -> tuple[Any, ...]:
    """Return all of a definition but name, incarnation, digest, threshold, kind and reason."""
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


def _definition(wire: Any, terms: int, extensions: Extensions = ()) -> Definition:
    spec, identity = wire.spec, wire.identity
    return Definition(
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


def _well_formed(definitions: Sequence[Definition]) -> bool:
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
