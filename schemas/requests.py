"""Requests of operators to the budget service, and its receipts.

A request that is repeated with its id has no further effect.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.base import (
    MAX_DEFINITION_BYTES,
    MAX_RECORD_BYTES,
    Amount,
    Analysts,
    ByKind,
    Count,
    Delta,
    Digest,
    Epsilon,
    Event,
    EventId,
    Identifier,
    Reason,
    Version,
    Word,
)
from schemas.changelogs import StreamState
from schemas.sources import Population, Source
from schemas.streams import OpeningSpec
from schemas.windows import Moment
from schemas.wire import Codec


class _Request(Event, wire_omits={"by"}):
    """The fields of every request; ``by`` names the requester in the trail, and the monitor sets it for its users."""

    by: Identifier | None = None


class RegisterSource(_Request):
    """Register a source with its total budget."""

    kind: Literal["register"] = "register"
    request: EventId
    source: Source


class RegisterPopulation(_Request):
    """Register a population with its total budget."""

    kind: Literal["register_population"] = "register_population"
    request: EventId
    population: Population


class JoinPopulation(_Request):
    """Add a source to a population for good; this is refused if its grants exceed the population's budget."""

    kind: Literal["join"] = "join"
    request: EventId
    source: Identifier
    population: Identifier


class Allot(_Request, wire_omits={"source", "population", "analysts", "delta"}):
    """Give analysts a part of a source's or a population's budget, or change that part.

    ``analysts`` share the allotment as a team. Without them, a changed allotment keeps its analysts, and a new one belongs
    to the analyst of the same name. Allotments may add up to more than the budget, which bounds all grants together. The
    default of ``delta`` is the δ of the budget.
    """

    kind: Literal["allot"] = "allot"
    request: EventId
    allotment: Identifier
    source: Identifier | None = None
    population: Identifier | None = None
    analysts: Analysts = ()
    epsilon: Epsilon
    delta: Delta | None = None

    @model_validator(mode="after")
    def _require_one_budget(self) -> Allot:
        if (self.source is None) == (self.population is None):
            raise ValueError("name either a source or a population; give one of the two")
        return self


class OpenStream(_Request, wire_omits={"analyst", "informative"}):
    """Reserve a stream's cost in the budget of its source, and open the stream; ``analyst`` pays for it.

    With ``informative``, the stream is refused if its promise is not informative: public facts show that its error may
    exceed a third of the rows or of the range, or the threshold.
    """

    kind: Literal["open"] = "open"
    request: EventId
    stream: OpeningSpec
    analyst: Identifier | None = None
    informative: bool = False


class ExtendStream(_Request, wire_omits={"analyst"}):
    """Grant a stream further charged answers for ``epsilon``, with the same noise.

    Only the cost of whole answers is taken from the budget. With ``delta``, the answers of a stream with independent charges
    are composed optimally, which gives more answers for a large ``epsilon``. The analyst who opened the stream pays;
    ``analyst``, if set, must be the same.
    """

    kind: Literal["extend"] = "extend"
    request: EventId
    source: Identifier
    stream: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0
    analyst: Identifier | None = None


class CloseStream(_Request):
    """End a stream and refund its provably unspent grant."""

    kind: Literal["close"] = "close"
    request: EventId
    source: Identifier
    stream: Identifier
    reason: Reason = "closed on request"


class HaltStream(_Request):
    """Stop a stream from answering, for good."""

    kind: Literal["halt"] = "halt"
    request: EventId
    source: Identifier
    stream: Identifier
    reason: Reason = "halted on request"


class RefreshSource(_Request, wire_omits={"close"}):
    """Read a table source's current data as its next version, even if no row has changed.

    Streams with independent noise for each question continue on the new version. Streams that keep a release, a
    hypothesis or an estimate are closed. With ``close``, all streams are closed.
    """

    kind: Literal["refresh"] = "refresh"
    request: EventId
    source: Identifier
    close: bool = False


class BeginPeriod(_Request):
    """Begin the account of a period of a ``person-period`` source, and open the streams of the period.

    The feeds send it before they ask the first window of the period. It does not change a period that has begun.
    """

    kind: Literal["begin_period"] = "begin_period"
    request: EventId
    source: Identifier
    start: Moment


class HaltSource(_Request):
    """Stop every stream of a source and refuse new ones, for good."""

    kind: Literal["halt_source"] = "halt_source"
    request: EventId
    source: Identifier
    reason: Reason = "source halted on request"


Request = Annotated[
    RegisterSource
    | OpenStream
    | ExtendStream
    | CloseStream
    | HaltStream
    | HaltSource
    | RefreshSource
    | RegisterPopulation
    | JoinPopulation
    | Allot
    | BeginPeriod,
    Field(discriminator="kind"),
    ByKind(),
]


def subject_of(request: Request) -> tuple[str, str | None]:
    """Return the source or population of a request, which is its Kafka key, and its stream."""
    match request:
        case RegisterSource():
            return request.source.source, None
        case RegisterPopulation():
            return request.population.population, None
        case Allot():
            return request.source or request.population or "", None
        case OpenStream():
            return request.stream.source, request.stream.stream
        case ExtendStream() | CloseStream() | HaltStream():
            return request.source, request.stream
        case HaltSource() | RefreshSource() | JoinPopulation() | BeginPeriod():
            return request.source, None


request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


class ComparedMechanism(Event):
    """A mechanism that ``auto`` compared; ``why`` says how it spends ε, or why it cannot be used.

    ``error`` is the expected error of a count of the workload, in rows; it is null if the mechanism cannot be used.
    """

    kind: Word
    error: float | None
    why: Reason


class Receipt(
    Event, wire_omits={"answers", "granted", "population", "meaning", "version", "begins", "windows", "compared"}
):
    """The decision on one request, which its id and digest identify.

    * ``asked`` and ``left`` are set if a budget refused the request.
    * With the outcome ``closing``, the stream ends when its worker has reported its last totals.
    * ``state`` is set for a request to end a stream: it is the stream's state when the request was processed. If it
      is ``closed``, the request changes nothing.
    * An extended stream is ``opened`` for ``answers`` more charged answers; ``granted`` was taken from its source
      for them.
    * A new population, a source that joins a population, and an allotment are ``registered``. ``population`` names
      the population of the request; ``source`` repeats this name if the request has no source.
    * A refreshed source is ``registered`` with the data of ``version``.
    * ``meaning`` says in words what a renewing budget promises. For a join it says that the source's
      losses did not count in the population's earlier periods.
    * ``begins`` is the time from which a standing stream's windows are asked; ``windows`` is the number of windows
      for which its α holds.
    * ``compared`` lists the mechanisms that ``auto`` compared; the first is the stream's mechanism.

    Examples:
        >>> receipt = client.close("people", "counts")
        >>> receipt.kind, receipt.outcome
        ('receipt', 'closing')
    """

    kind: Literal["receipt"] = "receipt"
    request: EventId
    digest: Digest
    sequence: Count
    source: Identifier
    stream: Identifier | None = None
    outcome: Literal["registered", "opened", "closing", "halted", "refused"]
    reason: Reason | None = None
    asked: Amount | None = None
    left: Amount | None = None
    state: StreamState | None = None
    answers: Count | None = None
    granted: Amount | None = None
    population: Identifier | None = None
    meaning: Reason | None = None
    version: Version | None = None
    begins: Moment | None = None
    windows: Count | None = None
    compared: Annotated[tuple[ComparedMechanism, ...], Field(strict=False)] = ()


receipt_codec: Codec[Receipt] = Codec(Receipt, limit=MAX_RECORD_BYTES)
