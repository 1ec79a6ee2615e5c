"""Streams: sequences of questions to one mechanism about one source, and their control events."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.base import (
    FIRST_VERSION,
    MAX_RECORD_BYTES,
    Amount,
    ByKind,
    Count,
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
    Version,
    text_matching,
)
from schemas.calibrations import Calibration
from schemas.domains import AttributeName
from schemas.mechanisms import MAX_ANSWERS, MAX_CATEGORIES, Mechanism, RequestedMechanism
from schemas.queries import Quantiles, Where
from schemas.sources import Source
from schemas.windows import Moment, Span, Windows, span_ms
from schemas.wire import Codec

MAX_GROUPS = 10_000
"""Maximum number of groups of a standing stream."""


class SumOf(Event):
    """The sum of an integer attribute; the value of each event is clamped to the declared range."""

    sum: AttributeName


class StandingQuery(Event, wire_omits={"count", "quantile", "q", "top", "where", "by", "lateness", "begins"}):
    """The question that a standing stream asks of each window of its source.

    - ``count`` asks for the number of events that satisfy ``where``, for the number of their people, or for the sum of
      an attribute over them.
    - ``quantile``, in place of ``count``, asks for the value of this ordered attribute below which a share ``q`` of these
      events lies. The default of ``q`` is 0.5, the median; a list asks for several values.
    - With ``by``, each cell of these attributes gets a question, also if it has no events. With ``top``, only the largest
      numbers of a histogram's cells are published.
    - A window is asked when the source's clock is ``lateness`` past the end of the window; later events do not count.
    - The first window starts at or after ``begins``. The default is the stream's opening or, with clock ``broker``,
      the time twice ``idle`` after the opening.
    """

    window: Windows
    count: Annotated[
        Literal["events", "people"] | SumOf,
        OneOf("give 'events', 'people', or {\"sum\": NAME} with the name of an attribute, as text"),
    ] = "events"
    quantile: AttributeName | None = None
    q: Quantiles | None = None
    top: Annotated[int, Field(ge=1, le=MAX_CATEGORIES)] | None = None
    where: Where | None = None
    by: Annotated[tuple[AttributeName, ...], Field(max_length=8, strict=False)] = ()
    lateness: Span = "0s"
    begins: Moment | None = None

    @model_validator(mode="after")
    def _require_one_question(self) -> StandingQuery:
        if self.quantile is not None and self.count != "events":
            raise ValueError("count, quantile: give exactly one of them; ask for the other in another stream")
        if self.q is not None and self.quantile is None:
            raise ValueError("q: belongs to quantile; name the attribute in quantile, or remove q")
        if self.quantile is not None and self.top is not None:
            raise ValueError(
                "top: selects the largest counts or sums, but quantile asks for neither; remove top or quantile"
            )
        return self

    @property
    def open_ms(self) -> int:
        """Milliseconds from a window's start until it closes."""
        return self.window.size_ms + span_ms(self.lateness)


class OpeningSpec(Event, wire_omits={"standing"}):
    """An operator's specification of a stream to open, whose mechanism may be ``auto``.

    A stream on a live topic is ``standing``: Sotto asks its questions, one for each window and group.
    """

    stream: Identifier
    source: Identifier
    mechanism: RequestedMechanism
    epsilon: Epsilon
    delta: Delta = 0.0
    expected_queries: Annotated[int, Field(ge=1, le=10**12)] = 1000
    beta: Probability = 0.05
    calibration: Literal["best", "textbook"] = "best"
    standing: StandingQuery | None = None


class StreamSpec(OpeningSpec):
    """A stream's specification: mechanism, source, privacy cost and number of queries."""

    mechanism: Mechanism


class StreamIdentity(Event):
    """The unique identity of a stream's opening; the budget service makes it, and it never changes.

    ``digest`` is computed from the whole definition at the opening (spec, calibration, source, fingerprint); all
    noise depends on it. ``key_id`` names the noise key from which the stream's noise is derived.
    """

    incarnation: Incarnation
    digest: Digest
    key_id: KeyId


class Extension(Event, wire_omits={"resumes"}):
    """Further charged answers of an open stream, with the same noise.

    If the costs of the ``answers`` are added up, their sum is at most ``epsilon``; otherwise the answers together are
    (``epsilon``, ``delta``)-DP by optimal composition. ``request`` is the digest of the request, which never extends a
    stream twice. ``resumes`` says that a standing stream was exhausted and is asked again.
    """

    request: Digest
    answers: Annotated[int, Field(ge=1, le=MAX_ANSWERS)]
    epsilon: float
    delta: float = 0.0
    resumes: bool = False


Extensions = tuple[Extension, ...]
"""All extensions of a stream in the order of their grants; later extensions are only appended."""


class _Definition(Event, wire_omits={"extensions", "version"}):
    spec: StreamSpec
    source: Source
    identity: StreamIdentity
    fingerprint: Fingerprint | None
    calibration: Calibration
    extensions: Extensions = ()
    version: Version = FIRST_VERSION


class StreamOpened(_Definition):
    """The stream may answer while its grant has charged answers left."""

    kind: Literal["opened"] = "opened"


class StreamHalted(_Definition):
    """The stream must not answer any more."""

    kind: Literal["halted"] = "halted"
    reason: Reason


class StreamClosed(_Definition):
    """The stream has ended; its worker reports the final charge, after which the rest is refunded."""

    kind: Literal["closed"] = "closed"
    reason: Reason


Control = Annotated[StreamOpened | StreamHalted | StreamClosed, Field(discriminator="kind"), ByKind()]
"""A stream's definition, and whether the stream may answer."""

Digests = Annotated[str, text_matching(r"^([0-9a-f]{32})*$", "give 32 hexadecimal digits for each name")]
"""Digests of names, 16 bytes each."""


class RetiredAnswer(Event, wire_omits={"tops_left"}):
    """The fields that all ``halted`` answers of a retired stream have."""

    reason: Reason
    spent: Amount
    tops_left: Count | None = None


class RetiredStreams(Event):
    """Streams that were retired together; this record replaces their definitions, and none of them opens again.

    The stream with the n-th of the ``names`` gives the answer whose index is the n-th item of ``answer_of``. The
    key is `@retired|` with the first digest.
    """

    names: Digests
    answers: tuple[RetiredAnswer, ...]
    answer_of: tuple[Count, ...]
    kind: Literal["retired"] = "retired"


control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)

retired_streams_codec: Codec[RetiredStreams] = Codec(RetiredStreams, limit=MAX_RECORD_BYTES)
