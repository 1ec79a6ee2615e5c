"""What headers events may have, as JSON Schemas (draft 7, as in AsyncAPI) of objects whose values are UTF-8 text."""

from __future__ import annotations

from typing import Final

from schemas.rejected import HEADER_PREFIX, OPTIONAL_FACTS, RejectedHeaders, header_name
from stream.contract.json_schemas import Json
from stream.processors.queries.headers import (
    ANSWER_TYPE,
    CLOUD_EVENTS_VERSION,
    CONTENT_TYPE,
    MAX_TRACEPARENT,
    MAX_TRACESTATE,
    TRACEPARENT,
)


def _text(description: str, **constraints: str | int) -> Json:
    return {"type": "string", "description": description, **constraints}


_TRACE_CONTEXT: Final[Json] = {
    "traceparent": _text("W3C trace context.", pattern=TRACEPARENT, maxLength=MAX_TRACEPARENT),
    "tracestate": _text("W3C trace context; goes with traceparent only.", maxLength=MAX_TRACESTATE),
}

QUERY_HEADERS: Final[Json] = {
    "type": "object",
    "description": "None is needed, and none changes what is answered. Others are ignored.",
    "properties": {
        "ce_specversion": _text("CloudEvents 1.0, binary content mode: with 1.0 the answer is a CloudEvent, too."),
        "ce_id": _text("CloudEvents: id; the query's own id is in its value."),
        "ce_source": _text("CloudEvents: source."),
        "ce_type": _text("CloudEvents: type."),
        "ce_time": _text("CloudEvents: time."),
        "ce_subject": _text("CloudEvents: subject."),
        "traceparent": _text("W3C trace context, copied to the answer where it is well-formed."),
        "tracestate": _text("W3C trace context, copied along with a well-formed traceparent."),
    },
}

ANSWER_HEADERS: Final[Json] = {
    "type": "object",
    "description": "CloudEvents attributes where the query had ce_specversion 1.0, trace context where it had one.",
    "properties": {
        "content-type": _text("CloudEvents: datacontenttype.", const=CONTENT_TYPE.decode()),
        "ce_specversion": _text("CloudEvents: specversion.", const=CLOUD_EVENTS_VERSION.decode()),
        "ce_id": _text("CloudEvents: the query's partition and offset.", pattern="^[0-9]+-[0-9]+$"),
        "ce_source": _text("CloudEvents: a slash and the topic of answers.", pattern="^/"),
        "ce_type": _text("CloudEvents: type.", const=ANSWER_TYPE.decode()),
        "ce_subject": _text("CloudEvents: the stream's name."),
        **_TRACE_CONTEXT,
    },
    "dependencies": {
        "ce_specversion": ["content-type", "ce_id", "ce_source", "ce_type", "ce_subject"],
        "tracestate": ["traceparent"],
    },
}


def _dead_letter_headers() -> Json:
    example = RejectedHeaders(topic="", partition=0, offset=0, code="", message="")
    names = [name for name, _ in example.to_kafka()]
    return {
        "type": "object",
        "description": "The refused event's own headers, then these; the last of a name holds.",
        "properties": {
            **{name: _text(f"{name.removeprefix(HEADER_PREFIX)} of the refusal.") for name in names},
            **{
                header_name(fact): _text(f"{fact.replace('_', ' ')} of what was refused, where the value is cut.")
                for fact in OPTIONAL_FACTS
            },
        },
        "required": names,
    }


DEAD_LETTER_HEADERS: Final[Json] = _dead_letter_headers()
