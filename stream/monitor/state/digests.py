"""Decoders of the topics' records: only the fields that the monitor shows.

Each record may contain a table's whole domain, half a megabyte: skipping unused fields keeps a view
of many streams cheap. Unknown fields and mechanisms are skipped as well, so that an older monitor
can show newer services.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from schemas import FIRST_VERSION, Amount, StreamState
from schemas.rejected import HEADER_PREFIX
from schemas.wire import UNREADABLE
from stream.engine.task_status import ServiceName
from stream.processing.dead_letters import address_of
from stream.processing.protocol import Headers

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class AmountShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Amount."""

    epsilon: float
    delta: float
    rho: float | None = None

    def model(self) -> Amount:
        """Return the contract's model."""
        return Amount(epsilon=self.epsilon, delta=self.delta, rho=self.rho)


class PositionShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Position."""

    topic: str
    partition: int
    offset: int


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


class PeriodShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Period."""

    number: int
    starts: int
    ends: int
    counted: AmountShape
    meaning: str


class SourceRecordShape(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag="source"):
    """See schemas.SourceRecord."""

    source: SourceShape
    state: Literal["open", "halted"]
    granted: AmountShape
    spent: AmountShape
    refunded: AmountShape
    left: AmountShape
    reason: str | None = None
    population: str | None = None
    period: PeriodShape | None = None
    version: int = FIRST_VERSION


class MechanismShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Mechanism."""

    kind: str
    beyond: str = "end"


class SpecShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.StreamSpec."""

    stream: str
    source: str
    mechanism: MechanismShape
    epsilon: float
    delta: float = 0.0


class CalibrationShape(msgspec.Struct, frozen=True, gc=False):
    """The fields of calibrations of every mechanism."""

    alpha: float
    beta: float
    cutoff: int
    expected_queries: int


class ExtensionShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Extension."""

    answers: int


class IdentityShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.StreamIdentity."""

    incarnation: str


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
    extensions: tuple[ExtensionShape, ...] = ()
    analyst: str | None = None


class TotalsShape(msgspec.Struct, frozen=True, gc=False):
    """The fields of schemas.Charge and schemas.StreamStatus."""

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


class RestoreShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.PartitionStatus."""

    role: ServiceName
    partition: int
    member: str
    phase: Literal["restoring", "ready"]
    records: int
    total: int
    seconds: float


class MemberShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.MemberStatus."""

    role: ServiceName
    member: str
    version: str
    started: float
    memory: int


class UnreadableRecordError(ValueError):
    """A record that this version cannot read; the message never quotes it."""


@cache
def _decoder(shape: Any) -> Any:
    return msgspec.json.Decoder(shape).decode


def read(shape: type[_Shape], value: bytes) -> _Shape:
    """Read a record's value; UnreadableRecordError if a shown field is missing."""
    try:
        record: _Shape = _decoder(shape)(value)
    except UNREADABLE as error:
        raise UnreadableRecordError(type(error).__name__) from None
    return record


class DeadLetterDigest(msgspec.Struct, frozen=True, gc=False):
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


def dead_letter(headers: Headers, value: bytes | None) -> DeadLetterDigest:
    """Read the headers of schemas.RejectedHeaders, which follow the producer's headers."""
    facts = {name: value for name, value in headers if name.startswith(HEADER_PREFIX)}

    def text(name: str) -> str:
        return facts[HEADER_PREFIX + name].decode(errors="replace")

    identifier, stream = address_of(value) or (None, None)
    try:
        return DeadLetterDigest(
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
