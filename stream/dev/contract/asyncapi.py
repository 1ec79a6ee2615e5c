"""The AsyncAPI document: topics, events, keys, headers and configuration, with Kafka bindings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

from schemas.rejected import HEADER_PREFIX, OPTIONAL_FACTS, RejectedHeaders, header_name
from stream.dev.contract.contract_events import CHANNELS, CONTRACT_VERSION, EVENTS, Channel, EventKind
from stream.dev.contract.json_schemas import Json, bundled
from stream.kafka.topics.layouts import TopicLayout, budget_group, feed_layout, layout, merging_group, worker_group
from stream.processing.topic_names import Topics
from stream.settings import Settings
from stream.worker.answer_headers import (
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


BINDING_VERSION: Final = "0.5.0"
PARTITIONER: Final = "murmur2"
DEAD_LETTER: Final = "DeadLetter"
PIECE: Final = "Piece"
FEED_STATE: Final = "feed_state"

_TEMPLATE = "#/components/schemas/{model}"
_PREFIX = "{prefix}"
_SOURCE = "{source}"
_HEADERS: Final = {"Query": QUERY_HEADERS, "Answer": ANSWER_HEADERS}
_DESCRIPTION = """\
Differentially private answers on a Kafka query stream.

Events are JSON, UTF-8, one to a record; read what Sotto writes with `isolation.level=read_committed`.
What is sent to Sotto has exactly the fields described; what Sotto writes may gain fields, kinds of events and, in lists
marked as open, words: ignore those that you do not know. Channels marked `x-internal` are Sotto's own.
Confluent's wire framing (a magic byte and a schema's id before the value) is not spoken.
"""


@cache
def document() -> Json:
    """AsyncAPI 3.0 for a whole installation, complete in itself."""
    own, shared = bundled(EVENTS, _TEMPLATE)
    topics = Topics(_PREFIX)
    layouts = {wanted.name: wanted for wanted in layout(topics)}
    made: dict[str, TopicLayout] = {
        one.name: layouts[getattr(topics, one.name)] for one in CHANNELS if one.name != FEED_STATE
    }
    of_a_feed = feed_layout(topics, "", 0)
    made[FEED_STATE] = replace(of_a_feed, name=of_a_feed.name + _SOURCE)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Sotto", "version": CONTRACT_VERSION, "description": _DESCRIPTION},
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "Any Apache Kafka with transactions.",
                "variables": {"bootstrap": {"default": Settings.model_fields["bootstrap"].default}},
            }
        },
        "channels": {channel.name: _channel(channel, made[channel.name]) for channel in CHANNELS},
        "operations": _operations(),
        "components": {
            "messages": {event.name: _message(event) for event in EVENTS}
            | {DEAD_LETTER: _dead_letter(), PIECE: _piece()},
            "schemas": own | shared,
        },
    }


def _channel(channel: Channel, layout_: TopicLayout) -> Json:
    messages = [event.name for event in EVENTS if event.channel == channel.name] or [DEAD_LETTER]
    if channel.name == FEED_STATE:
        messages.append(PIECE)
    found: Json = {
        "address": layout_.name,
        "summary": channel.summary,
        "description": f"Written by {channel.writer}.",
        "parameters": {
            "prefix": {
                "default": Settings.model_fields["prefix"].default,
                "description": "The installation's prefix (SOTTO_PREFIX).",
            }
        },
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "kafka": {
                **({"partitions": layout_.partitions} if layout_.partitions else {}),
                "replicas": Settings.model_fields["replication"].default,
                "topicConfiguration": _configuration(layout_),
                "bindingVersion": BINDING_VERSION,
            }
        },
        "x-key": channel.key,
        "x-partitioner": PARTITIONER,
    }
    if channel.name == FEED_STATE:
        found["parameters"]["source"] = {
            "description": "The source's name; where a topic may not have a character of it, `-` and its bytes in hexadecimal. The "
            "topic has as many partitions as that of the source."
        }
    if channel.side == "internal":
        found["x-internal"] = True
    return found


def _configuration(layout_: TopicLayout) -> Json:
    """A topic's configuration in the binding's types."""
    typed: dict[str, Any] = {}
    for name, text in layout_.configuration.items():
        if name == "cleanup.policy":
            typed[name] = text.split(",")
        else:
            typed[name] = int(text) if text.removeprefix("-").isdigit() else float(text)
    return typed


def _message(event: EventKind) -> Json:
    channel = next(channel for channel in CHANNELS if channel.name == event.channel)
    found: Json = {
        "name": event.name,
        "title": event.name,
        "summary": (event.model.__doc__ or "").split("\n", 1)[0],
        "contentType": "application/json",
        "payload": {"$ref": _TEMPLATE.format(model=event.name)},
        "bindings": _key(channel),
    }
    if event.name in _HEADERS:
        found["headers"] = _HEADERS[event.name]
        found["correlationId"] = {
            "description": "The asker's own id for the query, unique within the stream.",
            "location": "$message.payload#/id",
        }
    if event.limit is not None:
        found["x-max-bytes"] = event.limit
    return found


def _dead_letter() -> Json:
    channel = next(channel for channel in CHANNELS if channel.name == "rejected")
    return {
        "name": DEAD_LETTER,
        "title": DEAD_LETTER,
        "summary": "An event that was refused, byte for byte; its value may be anything, or missing.",
        "contentType": "application/octet-stream",
        "headers": DEAD_LETTER_HEADERS,
        "payload": {},
        "bindings": _key(channel),
    }


def _piece() -> Json:
    channel = next(channel for channel in CHANNELS if channel.name == FEED_STATE)
    return {
        "name": PIECE,
        "title": PIECE,
        "summary": "What one step has counted, in a form of its own version; people are digests, and nothing is named.",
        "contentType": "application/octet-stream",
        "payload": {},
        "bindings": _key(channel),
    }


def _key(channel: Channel) -> Json:
    key = {"type": "string", "description": f"UTF-8: {channel.key}."}
    return {"kafka": {"key": key, "bindingVersion": BINDING_VERSION}}


def _operations() -> Json:
    installation = Settings(prefix="PREFIX")
    workers = worker_group(installation).replace("PREFIX", _PREFIX)
    budget = budget_group(installation).replace("PREFIX", _PREFIX)
    merging = merging_group(installation).replace("PREFIX", _PREFIX)
    return {
        "answerQueries": _receive("queries", "Take queries; each gets exactly one answer.", workers)
        | _reply("answers", ["Answer"]),
        "serveRequests": _receive("requests", "Take requests; each gets a receipt.", budget)
        | _reply("ledger", ["Receipt"]),
        "followControl": _receive("control", "Follow each stream's definition."),
        "bookCharges": _receive("charges", "Book what streams have spent.", budget),
        "mergePartials": _receive("partials", "Add up what partitions have in a window.", merging),
        "restoreMerges": _receive("merges", "Restore merging."),
        "restoreFeeds": _receive("feed_state", "Restore the counts of a partition of a live topic."),
        "restoreState": _receive("state", "Restore the streams of a partition."),
        "publishAnswers": _send("answers", "Answer queries, in their order within a partition."),
        "publishLedger": _send("ledger", "Show budgets, grants and receipts."),
        "publishTrail": _send("trail", "Write down requests, decisions and what followed."),
        "publishStatus": _send("status", "Show digests of streams and restores."),
        "publishDeadLetters": _send("rejected", "Set refused events aside."),
        "publishControl": _send("control", "Define, halt and close streams."),
        "publishCharges": _send("charges", "Report what streams have spent."),
        "publishPartials": _send("partials", "Tell what a partition has in a window that it has closed."),
        "publishMerges": _send("merges", "Write merging's changelog."),
        "publishFeeds": _send("feed_state", "Write the changelog of counting."),
        "publishState": _send("state", "Write the changelog."),
    }


def _receive(channel: str, summary: str, group: str | None = None) -> Json:
    found = {"action": "receive", "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}
    if group is None:
        return found
    identifier = {"type": "string", "const": group}
    return {**found, "bindings": {"kafka": {"groupId": identifier, "bindingVersion": BINDING_VERSION}}}


def _reply(channel: str, messages: list[str]) -> Json:
    return {
        "reply": {
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        }
    }


def _send(channel: str, summary: str) -> Json:
    return {"action": "send", "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}
