"""Decodes the fields of the topics' records that the monitor shows.

A record may contain a table's whole domain (half a megabyte), so unused fields are not decoded. Unknown
fields and mechanisms are ignored, so that a monitor can show the records of newer services.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec
from pydantic import BaseModel

from schemas import FIRST_VERSION, Amount, Extension, Period, StreamState
from schemas.answers import HEADER_PREFIX
from schemas.wire import DECODE_ERRORS
from stream.caches import RecentCache
from stream.processing.dead_letters import address_of
from stream.processing.protocol import Headers
from stream.questions.stream_watch import SpecTerms

_SHARED_PARTS: Final = 1 << 14
"""Maximum number of entries of each cache in SharedParts."""

_Shape = TypeVar("_Shape", bound=msgspec.Struct | BaseModel)


class SourceShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Source."""

    source: str
    kind: str
    neighbors: Literal["add-remove", "replace"]
    epsilon: float
    delta: float = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    renews: str | None = None
    period: str | None = None
    period_of: str | None = None
    starts: str | None = None
    person: str | None = None
    contribution: int = 1
    total: int | None = None
    topic: str | None = None


class SourceRecordShape(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag="source"):
    """See schemas.SourceRecord."""

    source: SourceShape
    state: Literal["open", "halted"]
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    reason: str | None = None
    population: str | None = None
    period: Period | None = None
    version: int = FIRST_VERSION


class MechanismShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Mechanism."""

    kind: str
    beyond: str = "end"


class AmountShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Amount."""

    epsilon: float
    delta: float
    rho: float | None = None


class IdentityShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.StreamIdentity."""

    incarnation: str


class PositionShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Position."""

    topic: str
    partition: int
    offset: int


class SpecShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.StreamSpec."""

    stream: str
    source: str
    mechanism: MechanismShape
    epsilon: float
    delta: float = 0.0


class CalibrationShape(msgspec.Struct, frozen=True, gc=False):
    """The fields that the calibrations of all mechanisms share."""

    alpha: float
    beta: float
    cutoff: int
    expected_queries: int


class GrantRecordShape(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag="grant"):
    """See schemas.GrantRecord."""

    spec: SpecShape
    calibration: CalibrationShape
    identity: IdentityShape
    state: StreamState
    cost: AmountShape
    spent: AmountShape
    refunded: AmountShape
    answered: int
    tops: int
    ending: Literal["halted", "closed"] | None = None
    reason: str | None = None
    surplus: int = 0
    extensions: tuple[Extension, ...] = ()
    analyst: str | None = None
    lost: bool = False


class GrantTermsShape(msgspec.Struct, frozen=True, gc=False):
    """The part of schemas.GrantRecord that an alert shows."""

    spec: SpecTerms


def to_amount(shape: AmountShape) -> Amount:
    """Return an amount as a model."""
    return Amount(epsilon=shape.epsilon, delta=shape.delta, rho=shape.rho)


class SharedGrant(msgspec.Struct, frozen=True, gc=False):
    """The fields of a grant's record that equal streams share, as one object."""

    source: str
    mechanism: MechanismShape
    epsilon: float
    delta: float
    calibration: CalibrationShape
    cost: Amount
    refunded: Amount
    extensions: tuple[Extension, ...]
    analyst: str | None
    lost: bool


class SharedParts:
    """Returns the same object for equal parts of many streams, to save memory."""

    def __init__(self) -> None:
        self._amounts: RecentCache[AmountShape, Amount] = RecentCache(_SHARED_PARTS)
        self._grants: RecentCache[SharedGrant, SharedGrant] = RecentCache(_SHARED_PARTS)

    def amount(self, shape: AmountShape) -> Amount:
        """Return an amount."""
        if (known := self._amounts.get(shape)) is None:
            known = to_amount(shape)
            self._amounts.put(shape, known)
        return known

    def grant(self, record: GrantRecordShape) -> SharedGrant:
        """Return the part of a record that equal streams share."""
        spec = record.spec
        made = SharedGrant(
            spec.source,
            spec.mechanism,
            spec.epsilon,
            spec.delta,
            record.calibration,
            self.amount(record.cost),
            self.amount(record.refunded),
            record.extensions,
            record.analyst,
            record.lost,
        )
        if (known := self._grants.get(made)) is None:
            self._grants.put(made, known := made)
        return known


class TotalsShape(msgspec.Struct, frozen=True, gc=False):
    """The fields of a schemas.Charge or a schemas.StreamStatus."""

    stream: str
    incarnation: str
    state: StreamState
    answered: int
    tops: int
    spent: AmountShape
    reason: str | None = None
    surplus: int = 0
    position: PositionShape | None = None
    refused: str | None = None


class ControlShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Control."""

    kind: Literal["opened", "halted", "closed"]
    identity: IdentityShape
    reason: str | None = None
    extensions: tuple[msgspec.Raw, ...] = ()


class TotalsOfSourceShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Totals."""

    granted: AmountShape
    spent: AmountShape
    refunded: AmountShape
    left: AmountShape


class TrailEntryShape(msgspec.Struct, frozen=True, gc=False):
    """The fields that all trail entries are checked, counted and searched by; see schemas.ledger."""

    kind: str
    number: int
    previous: str
    time: int
    action: str | None = None
    event: str | None = None
    outcome: str | None = None
    source: str | None = None
    stream: str | None = None
    population: str | None = None
    analyst: str | None = None
    by: str | None = None
    request: str | None = None
    granted: AmountShape | None = None
    refunded: AmountShape | None = None
    totals: TotalsOfSourceShape | None = None


class TrailShape(TrailEntryShape, frozen=True, gc=False):
    """The further fields of the trail entries that a page shows."""

    allotment: str | None = None
    analysts: tuple[str, ...] = ()
    mechanism: str | None = None
    reason: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    asked: AmountShape | None = None
    left: AmountShape | None = None
    spent: AmountShape | None = None
    answers: int | None = None
    since: str | None = None
    lost: int = 0


class UnreadableRecordError(ValueError):
    """A record that this version cannot read; the message never quotes it."""


@cache
def _decoder(shape: Any) -> Any:
    def to_model(model: Any, fields: Any) -> Any:  # for parts that are models of ``schemas``
        return model.model_validate(fields, strict=False, extra="ignore")

    return msgspec.json.Decoder(shape, dec_hook=to_model).decode


def decode_record(shape: type[_Shape], value: bytes) -> _Shape:
    """Decode a record's value; raise UnreadableRecordError if a required field is missing."""
    kind: Any = shape
    try:
        record: _Shape = _decoder(kind)(value)
    except DECODE_ERRORS as error:
        raise UnreadableRecordError(type(error).__name__) from None
    return record


class DeadLetterSummary(msgspec.Struct, frozen=True, gc=False):
    """The headers of a dead letter, and the stream and id of its question.

    No other part of the refused event is read. ``stream`` and ``id`` are null if unreadable.
    """

    topic: str
    partition: int
    offset: int
    code: str
    message: str
    stream: str | None = None
    id: str | None = None


def summarize_dead_letter(headers: Headers, value: bytes | None) -> DeadLetterSummary:
    """Read a dead letter's headers (schemas.RejectedHeaders) and its question's stream and id."""
    own_headers = {name: value for name, value in headers if name.startswith(HEADER_PREFIX)}

    def text(name: str) -> str:
        return own_headers[HEADER_PREFIX + name].decode(errors="replace")

    identifier, stream = address_of(value) or (None, None)
    try:
        return DeadLetterSummary(
            topic=text("topic"),
            partition=int(text("partition")),
            offset=int(text("offset")),
            code=text("exception.class.name"),
            message=text("exception.message"),
            stream=stream,
            id=identifier,
        )
    except (KeyError, ValueError) as error:
        raise UnreadableRecordError(type(error).__name__) from None
