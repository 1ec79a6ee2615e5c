"""Adds trace context and CloudEvents attributes to answers whose queries have them as headers.

The headers depend on the query's record alone, so a repeated answer has the same headers.
Sources: W3C Trace Context (Recommendation of 2021); CloudEvents 1.0.2 with its Kafka protocol
binding, binary content mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stream.processing.protocol import Headers, Message, RecordLike

CLOUD_EVENTS_VERSION: Final = b"1.0"
CONTENT_TYPE: Final = b"application/json"
ANSWER_TYPE: Final = b"io.sotto.answer.v1"
"""CloudEvents type of answers; its version rises with each incompatible change of the format."""

MAX_TRACEPARENT = 128
"""Longest ``traceparent`` that is copied, in bytes; one of version 00 has 55 bytes."""

MAX_TRACESTATE = 512
"""Longest ``tracestate`` that is copied, in bytes; the recommendation requires at least 512."""

MAX_TRACESTATE_MEMBERS = 32

_PARENT = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACEPARENT: Final = rf"^(?:00-{_PARENT}|(?!00|ff)[0-9a-f]{{2}}-{_PARENT}(?:-[\x21-\x7e]*)?)$"
"""A ``traceparent`` of version 00, or of a later version that begins with the same fields."""

_traceparent = re.compile(TRACEPARENT.removesuffix("$").encode() + rb"\Z")
_tracestate_member = re.compile(
    rb"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]\Z"
)
_RELEVANT_HEADERS: Final = frozenset({"ce_specversion", "traceparent", "tracestate"})


def with_answer_headers(
    topic: str, records: Sequence[RecordLike], answers: Sequence[Message | None]
) -> list[Message]:
    """Return the answers that are not None, with the headers that their queries request."""
    return [
        (answer[0], answer[1], answer_headers(topic, record, answer[0] or b"")) if record.headers else answer
        for record, answer in zip(records, answers, strict=True)
        if answer is not None
    ]


def answer_headers(topic: str, record: RecordLike, stream: bytes) -> Headers:
    """Return the headers of an answer on ``topic``; none if the query requests none.

    If a query has ``ce_specversion`` 1.0, its answer is a CloudEvent whose id is the query's position. A
    well-formed ``traceparent`` is copied, together with a well-formed ``tracestate``. A repeated header
    counts as malformed.
    """
    query_headers = _relevant_headers(record.headers)
    return (*_cloud_event(topic, record, stream, query_headers), *_trace_context(query_headers))


def _relevant_headers(headers: Headers) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _RELEVANT_HEADERS:
            found[name] = b"" if name in found else value or b""
    return found


def _cloud_event(
    topic: str, record: RecordLike, stream: bytes, query_headers: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    if query_headers.get("ce_specversion") != CLOUD_EVENTS_VERSION:
        return
    yield "content-type", CONTENT_TYPE
    yield "ce_specversion", CLOUD_EVENTS_VERSION
    yield "ce_id", f"{record.partition}-{record.offset}".encode()
    yield "ce_source", f"/{topic}".encode()
    yield "ce_type", ANSWER_TYPE
    yield "ce_subject", stream


def _trace_context(query_headers: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    parent, state = query_headers.get("traceparent", b""), query_headers.get("tracestate", b"")
    if len(parent) > MAX_TRACEPARENT or not _traceparent.match(parent):
        return
    yield "traceparent", parent
    if _is_well_formed(state):
        yield "tracestate", state


def _is_well_formed(tracestate: bytes) -> bool:
    if len(tracestate) > MAX_TRACESTATE:
        return False
    members = [stripped for member in tracestate.split(b",") if (stripped := member.strip(b" \t"))]
    names = {member.partition(b"=")[0] for member in members}
    return 0 < len(members) == len(names) <= MAX_TRACESTATE_MEMBERS and all(map(_tracestate_member.match, members))
