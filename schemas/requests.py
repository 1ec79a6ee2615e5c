"""Requests: what operators ask of the budget service. Each is idempotent by its ``request`` id."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from schemas.base import Analysts, ByKind, Delta, Epsilon, EventId, Identifier, Reason, SparingEvent
from schemas.populations import Population
from schemas.sources import Source
from schemas.streams import StreamSpec
from schemas.windows import Moment


class _Request(SparingEvent):
    """``by`` is the name of who asks, for the trail; whoever hands a request on for somebody, as the monitor does, gives it."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"by"})

    by: Identifier | None = None


class RegisterSource(_Request):
    """Make a source known, with its total budget."""

    kind: Literal["register"] = "register"
    request: EventId
    source: Source


class RegisterPopulation(_Request):
    """Make a population known, with its total budget."""

    kind: Literal["register_population"] = "register_population"
    request: EventId
    population: Population


class JoinPopulation(_Request):
    """Say that a source is about the people of a population, for good; refused unless what it has granted fits."""

    kind: Literal["join"] = "join"
    request: EventId
    source: Identifier
    population: Identifier


class Allot(_Request):
    """Let analysts have a part of a source's or a population's budget, or change the part that they have.

    ``analysts`` share it, as a team; without them it is for the analyst that it is named after. Allotments may add up to
    more than the budget, which bounds them all. Without ``delta`` it is the budget's.
    """

    wire_omits: ClassVar[frozenset[str]] = _Request.wire_omits | {"source", "population", "analysts", "delta"}

    kind: Literal["allot"] = "allot"
    request: EventId
    allotment: Identifier
    source: Identifier | None = None
    population: Identifier | None = None
    analysts: Analysts = ()
    epsilon: Epsilon
    delta: Delta | None = None

    @model_validator(mode="after")
    def _of_one_budget(self) -> Allot:
        if (self.source is None) == (self.population is None):
            raise ValueError("name either a source or a population; give one of the two")
        return self


class OpenStream(_Request):
    """Reserve a stream's cost from its source and open it. ``analyst`` is who asks, and is charged for it."""

    wire_omits: ClassVar[frozenset[str]] = _Request.wire_omits | {"analyst"}

    kind: Literal["open"] = "open"
    request: EventId
    stream: StreamSpec
    analyst: Identifier | None = None


class ExtendStream(_Request):
    """Grant a stream as many further charged answers as ``epsilon`` pays for, at the price of those that it was opened with.

    Only what they cost is taken. With ``delta`` the answers of a stream whose charges are independent of each other are
    composed optimally, which makes more of them out of a large ``epsilon``. It is charged to the analyst who opened the stream;
    an ``analyst`` who asks must be that one.
    """

    wire_omits: ClassVar[frozenset[str]] = _Request.wire_omits | {"analyst"}

    kind: Literal["extend"] = "extend"
    request: EventId
    source: Identifier
    stream: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0
    analyst: Identifier | None = None


class CloseStream(_Request):
    """End a stream; what its transcript provably did not spend goes back to the source."""

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


class RefreshSource(_Request):
    """Take the data that a table source has now for its next version.

    Streams that answer each question by noise of its own go on, over the new version. Those that keep a release, a hypothesis or an
    estimate of the old one are closed, and with ``close`` all are. It is a new version even if not one row has changed.
    """

    wire_omits: ClassVar[frozenset[str]] = _Request.wire_omits | {"close"}

    kind: Literal["refresh"] = "refresh"
    request: EventId
    source: Identifier
    close: bool = False


class BeginPeriod(_Request):
    """Begin the account of a period of a source whose unit is ``person-period``, and open its streams there.

    The feeds ask for it once a window of the period is to be asked. A period that has begun stays as it is.
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
"""Anything the budget service may be asked."""


def subject_of(request: Request) -> tuple[str, str | None]:
    """The source or population that a request is about, which is its Kafka key, and the stream if it is about one."""
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
