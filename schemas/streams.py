"""Streams: one mechanism's run over one source."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    FIRST_VERSION,
    ByKind,
    Delta,
    Digest,
    Epsilon,
    Event,
    Fingerprint,
    Identifier,
    Incarnation,
    KeyId,
    OneOf,
    Probability,
    Reason,
    SparingEvent,
    Version,
)
from schemas.calibrations import Calibration
from schemas.mechanisms import MAX_ANSWERS, Mechanism
from schemas.queries import Where
from schemas.sources import AttributeName, Source
from schemas.windows import Moment, Span, Windows, span_ms

MAX_GROUPS = 10_000
"""Most groups of a standing stream."""


class SumOf(Event):
    """The sum of an integer attribute, each event's clamped to the declared range."""

    sum: AttributeName


class StandingQuery(SparingEvent):
    """What a standing stream asks of each window of its source, by itself.

    ``count`` says what of the events that satisfy ``where``: how many events, how many people, or the sum of an attribute. With ``by``
    it is asked for each cell of these attributes, whether there are events of it or not. A window is asked when the source's clock
    is ``lateness`` beyond its end; an event that comes later does not count. The first window begins at ``begins`` or
    after it: by default, when the stream was opened.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"count", "where", "by", "lateness", "begins"})

    window: Windows
    count: Annotated[
        Literal["events", "people"] | SumOf,
        OneOf("give 'events', 'people', or {\"sum\": NAME} with the name of an attribute, as text"),
    ] = "events"
    where: Where | None = None
    by: Annotated[tuple[AttributeName, ...], Field(max_length=8, strict=False)] = ()
    lateness: Span = "0s"
    begins: Moment | None = None

    @property
    def open_ms(self) -> int:
        """How long after its beginning a window closes."""
        return self.window.size_ms + span_ms(self.lateness)


class StreamSpec(SparingEvent):
    """What an operator asks for: a mechanism on a source, at a privacy cost, for so many queries.

    A stream on a live topic is ``standing``: its windows ask it.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"standing"})

    stream: Identifier
    source: Identifier
    mechanism: Mechanism
    epsilon: Epsilon
    delta: Delta = 0.0
    expected_queries: Annotated[int, Field(ge=1, le=10**12)] = 1000
    beta: Probability = 0.05
    calibration: Literal["best", "textbook"] = "best"
    standing: StandingQuery | None = None


class StreamIdentity(Event):
    """What makes one opening of a stream unlike any other; minted by the budget service, never changed.

    ``digest`` is that of the whole definition as it was at the opening (spec, calibration, source, fingerprint): all
    noise is bound to it. ``key_id`` names the noise key that the stream's noise is derived from.
    """

    incarnation: Incarnation
    digest: Digest
    key_id: KeyId


class Extension(SparingEvent):
    """Further charged answers of a stream that is open, each at the price of those that it was opened with.

    They are ``answers`` in number and take no more than ``epsilon`` by adding up or, where they do, are together
    (``epsilon``, ``delta``)-DP by optimal composition. ``request`` is the digest of the request that asked for them: the same
    one never extends a stream twice. ``resumes`` says of a standing stream that it had run dry: its windows are asked again.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"resumes"})

    request: Digest
    answers: Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
    epsilon: float
    delta: float = 0.0
    resumes: bool = False


Extensions = tuple[Extension, ...]
"""All extensions of a stream in the order in which they were granted: it only ever grows at its end."""


class _Definition(SparingEvent):
    wire_omits: ClassVar[frozenset[str]] = frozenset({"extensions", "version"})

    spec: StreamSpec
    source: Source
    identity: StreamIdentity
    fingerprint: Fingerprint | None
    calibration: Calibration
    extensions: Extensions = ()
    version: Version = FIRST_VERSION


class StreamOpened(_Definition):
    """The stream may answer, for as long as its calibration and its extensions have charged answers."""

    kind: Literal["opened"] = "opened"


class StreamHalted(_Definition):
    """The stream must not answer any more."""

    kind: Literal["halted"] = "halted"
    reason: Reason


class StreamClosed(_Definition):
    """The stream has ended; its worker reports the final spending once, which frees the refund."""

    kind: Literal["closed"] = "closed"
    reason: Reason


Control = Annotated[StreamOpened | StreamHalted | StreamClosed, Field(discriminator="kind"), ByKind()]
"""A stream's definition and what it may do."""
