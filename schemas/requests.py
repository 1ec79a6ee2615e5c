"""Requests: what operators ask of the budget service. Each is idempotent by its ``request`` id."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import ByKind, Delta, Epsilon, Event, EventId, Identifier, Reason
from schemas.sources import Source
from schemas.streams import StreamSpec


class RegisterSource(Event):
    """Make a source known, with its total budget."""

    kind: Literal["register"] = "register"
    request: EventId
    source: Source


class OpenStream(Event):
    """Reserve a stream's cost from its source and open it."""

    kind: Literal["open"] = "open"
    request: EventId
    stream: StreamSpec


class ExtendStream(Event):
    """Grant a stream as many further charged answers as ``epsilon`` pays for, at the price of those that it was opened with.

    Only what they cost is taken. With ``delta`` the answers of a stream whose charges are independent of each other are
    composed optimally, which makes more of them out of a large ``epsilon``.
    """

    kind: Literal["extend"] = "extend"
    request: EventId
    source: Identifier
    stream: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0


class CloseStream(Event):
    """End a stream; what its transcript provably did not spend goes back to the source."""

    kind: Literal["close"] = "close"
    request: EventId
    source: Identifier
    stream: Identifier
    reason: Reason = "closed on request"


class HaltStream(Event):
    """Stop a stream from answering, for good."""

    kind: Literal["halt"] = "halt"
    request: EventId
    source: Identifier
    stream: Identifier
    reason: Reason = "halted on request"


class HaltSource(Event):
    """Stop every stream of a source and refuse new ones, for good."""

    kind: Literal["halt_source"] = "halt_source"
    request: EventId
    source: Identifier
    reason: Reason = "source halted on request"


Request = Annotated[
    RegisterSource | OpenStream | ExtendStream | CloseStream | HaltStream | HaltSource,
    Field(discriminator="kind"),
    ByKind(),
]
"""Anything the budget service may be asked."""


def subject_of(request: Request) -> tuple[str, str | None]:
    """The source that a request is about, which is its Kafka key, and the stream if it is about one."""
    match request:
        case RegisterSource():
            return request.source.source, None
        case OpenStream():
            return request.stream.source, request.stream.stream
        case ExtendStream() | CloseStream() | HaltStream():
            return request.source, request.stream
        case HaltSource():
            return request.source, None
