"""Builds the AsyncAPI document, writes the contract's files, and compares them with the release."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from schemas.answers import (
    ANSWER_TYPE,
    CLOUD_EVENTS_VERSION,
    CONTENT_TYPE,
    HEADER_PREFIX,
    MAX_TRACEPARENT,
    MAX_TRACESTATE,
    OPTIONAL_FACTS,
    TRACEPARENT,
    RejectedHeaders,
    header_name,
)
from stream.dev.contract_events import (
    CHANNELS,
    CONTRACT_VERSION,
    EVENTS,
    Channel,
    EventKind,
    Json,
    bundle_schemas,
    find_channel,
    standalone_schema,
)
from stream.kafka.topic_layouts import TopicLayout, budget_group, feed_layout, layout, merging_group, worker_group
from stream.processing.topic_names import Topics
from stream.settings import Settings


def _text(description: str, **constraints: str | int) -> Json:
    return {"type": "string", "description": description, **constraints}


_TRACE_CONTEXT: Final[Json] = {
    "traceparent": _text("W3C trace context.", pattern=TRACEPARENT, maxLength=MAX_TRACEPARENT),
    "tracestate": _text("W3C trace context; only with traceparent.", maxLength=MAX_TRACESTATE),
}

QUERY_HEADERS: Final[Json] = {
    "type": "object",
    "description": "Optional; headers never change the answer. Other headers are ignored.",
    "properties": {
        "ce_specversion": _text("CloudEvents 1.0, binary content mode; with 1.0 the answer is a CloudEvent too."),
        "ce_id": _text("CloudEvents: id; the query's id is in its value."),
        "ce_source": _text("CloudEvents: source."),
        "ce_type": _text("CloudEvents: type."),
        "ce_time": _text("CloudEvents: time."),
        "ce_subject": _text("CloudEvents: subject."),
        "traceparent": _text("W3C trace context, copied to the answer if it is well-formed."),
        "tracestate": _text("W3C trace context, copied along with a well-formed traceparent."),
    },
}

ANSWER_HEADERS: Final[Json] = {
    "type": "object",
    "description": "CloudEvents attributes if the query had ce_specversion 1.0, and trace context if the query had one.",
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
        "description": "The refused event's headers, then these; the last header of a name is valid.",
        "properties": {
            **{name: _text(f"{name.removeprefix(HEADER_PREFIX)} of the refusal.") for name in names},
            **{
                header_name(fact): _text(
                    f"{fact.replace('_', ' ')} of the refused event, if its value is truncated."
                )
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

Each record has one event as UTF-8 JSON; read Sotto's events with `isolation.level=read_committed`.
Events to Sotto must have exactly the described fields. Events from Sotto may gain fields, kinds of events and, in
open lists, words: readers must ignore unknown ones. Channels marked `x-internal` are private to Sotto.
Confluent's wire format (a magic byte and a schema id before the value) is not supported.
"""


@cache
def build_document() -> Json:
    """Build the self-contained AsyncAPI 3.0 document of an installation."""
    own, shared = bundle_schemas(EVENTS, _TEMPLATE)
    topics = Topics(_PREFIX)
    layouts = {topic.name: topic for topic in layout(topics)}
    layout_by_channel: dict[str, TopicLayout] = {
        channel.name: layouts[getattr(topics, channel.name)] for channel in CHANNELS if channel.name != FEED_STATE
    }
    feed_template = feed_layout(topics, "", 0)
    layout_by_channel[FEED_STATE] = replace(feed_template, name=feed_template.name + _SOURCE)
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
        "channels": {channel.name: _channel(channel, layout_by_channel[channel.name]) for channel in CHANNELS},
        "operations": _operations(),
        "components": {
            "messages": {event.name: _message(event) for event in EVENTS}
            | {
                DEAD_LETTER: _binary_message(
                    DEAD_LETTER,
                    "rejected",
                    "A refused event, byte for byte; its value may be anything or missing.",
                    headers=DEAD_LETTER_HEADERS,
                ),
                PIECE: _binary_message(
                    PIECE, FEED_STATE, "The counts of one step, in a versioned binary format; people are digests."
                ),
            },
            "schemas": own | shared,
        },
    }


def _channel(channel: Channel, topic_layout: TopicLayout) -> Json:
    messages = [event.name for event in EVENTS if event.channel == channel.name] or [DEAD_LETTER]
    if channel.name == FEED_STATE:
        messages.append(PIECE)
    found: Json = {
        "address": topic_layout.name,
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
                **({"partitions": topic_layout.partitions} if topic_layout.partitions else {}),
                "replicas": Settings.model_fields["replication"].default,
                "topicConfiguration": _configuration(topic_layout),
                "bindingVersion": BINDING_VERSION,
            }
        },
        "x-key": channel.key,
        "x-partitioner": PARTITIONER,
    }
    if channel.name == FEED_STATE:
        found["parameters"]["source"] = {
            "description": "The source's name; characters that a topic's name cannot have are `-` and their bytes in hexadecimal. "
            "The topic has as many partitions as the source's topic."
        }
    if channel.direction == "internal":
        found["x-internal"] = True
    return found


def _configuration(topic_layout: TopicLayout) -> Json:
    typed: dict[str, Any] = {}
    for name, text in topic_layout.configuration.items():
        if name == "cleanup.policy":
            typed[name] = text.split(",")
        else:
            typed[name] = int(text) if text.removeprefix("-").isdigit() else float(text)
    return typed


def _message(event: EventKind) -> Json:
    channel = find_channel(event.channel)
    found: Json = {
        "name": event.name,
        "title": event.name,
        "summary": (event.model.__doc__ or "").split("\n", 1)[0],
        "contentType": "application/json",
        "payload": {"$ref": _TEMPLATE.format(model=event.name)},
        "bindings": _key_binding(channel),
    }
    if event.name in _HEADERS:
        found["headers"] = _HEADERS[event.name]
        found["correlationId"] = {
            "description": "The client's id of the query, unique within the stream.",
            "location": "$message.payload#/id",
        }
    if event.max_bytes is not None:
        found["x-max-bytes"] = event.max_bytes
    return found


def _binary_message(name: str, channel: str, summary: str, **more: Json) -> Json:
    message = {"name": name, "title": name, "summary": summary, "contentType": "application/octet-stream"}
    return {**message, **more, "payload": {}, "bindings": _key_binding(find_channel(channel))}


def _key_binding(channel: Channel) -> Json:
    key = {"type": "string", "description": f"UTF-8: {channel.key}."}
    return {"kafka": {"key": key, "bindingVersion": BINDING_VERSION}}


_RECEIVED: Final = {
    "answerQueries": ("queries", "Read queries; each gets exactly one answer.", worker_group),
    "serveRequests": ("requests", "Read requests; each gets a receipt.", budget_group),
    "followControl": ("control", "Read each stream's definition.", None),
    "bookCharges": ("charges", "Book the charges of streams.", budget_group),
    "mergePartials": ("partials", "Add up the partials of a window.", merging_group),
    "restoreMerges": ("merges", "Restore the state of merging.", None),
    "restoreFeeds": ("feed_state", "Restore the counts of a partition of a live topic.", None),
    "restoreState": ("state", "Restore the streams of a partition.", None),
}
_REPLIES: Final = {"answerQueries": ("answers", "Answer"), "serveRequests": ("ledger", "Receipt")}
_SENT: Final = {
    "publishAnswers": ("answers", "Answer queries, in the order of a partition."),
    "publishLedger": ("ledger", "Publish budgets, grants and receipts."),
    "publishTrail": ("trail", "Record requests, decisions and their effects."),
    "publishStatus": ("status", "Publish the status of streams and restores."),
    "publishDeadLetters": ("rejected", "Publish refused events."),
    "publishControl": ("control", "Define, halt and close streams."),
    "publishCharges": ("charges", "Report the charges of streams."),
    "publishPartials": ("partials", "Publish a partition's counts of a closed window."),
    "publishMerges": ("merges", "Write the changelog of merging."),
    "publishFeeds": ("feed_state", "Write the changelog of counting."),
    "publishState": ("state", "Write the changelog."),
}
"""Sotto's operations: the channel, a summary and, for consumers with a group, the function of its name."""


def _operations() -> Json:
    operations: Json = {}
    for name, (channel, summary, group_of) in _RECEIVED.items():
        operations[name] = _operation("receive", channel, summary)
        if group_of is not None:
            group = {"type": "string", "const": group_of(Settings(prefix="PREFIX")).replace("PREFIX", _PREFIX)}
            operations[name]["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING_VERSION}}
    for name, (channel, message) in _REPLIES.items():
        reference = f"#/channels/{channel}"
        operations[name]["reply"] = {
            "channel": {"$ref": reference},
            "messages": [{"$ref": f"{reference}/messages/{message}"}],
        }
    return operations | {name: _operation("send", *operation) for name, operation in _SENT.items()}


def _operation(action: str, channel: str, summary: str) -> Json:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}


DOCUMENT: Final = "asyncapi.json"
SCHEMAS: Final = "schemas"
VERSIONS: Final = "versions"
_EXPLANATION_KEYS: Final = frozenset({"title", "description", "summary", "default", "examples"})
"""Keys with explanations, which may change within a version; no field of an event has these names."""


class ContractError(RuntimeError):
    """A contract file is missing, unreadable or already released; the message has the remedy."""


def generate_files() -> dict[str, str]:
    """Return the text of every generated file by its path in the folder."""
    schemas = {f"{SCHEMAS}/{_file_name(event.name)}": standalone_schema(event) for event in EVENTS}
    return {name: _file_text(content) for name, content in {DOCUMENT: build_document(), **schemas}.items()}


def export_files(folder: Path) -> list[str]:
    """Write the generated files, delete obsolete ones, and return the changed names."""
    drift = list_drift(folder)
    wanted = generate_files()
    for name in drift:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return drift


def list_drift(folder: Path) -> list[str]:
    """Return the names of generated files that are missing, out of date or obsolete."""
    wanted = generate_files()
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace")
        for path in (folder / DOCUMENT, *(folder / SCHEMAS).glob("*"))
        if path.is_file()
    }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def release_version(folder: Path) -> Path:
    """Save the current document and return its path; ContractError if the version was released already."""
    path = _released_path(folder)
    if path.exists():
        raise ContractError(
            f"{path} was released already; raise CONTRACT_VERSION, or delete the file if it is unpublished"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_file_text(build_document()), encoding="utf-8")
    return path


def is_changed(folder: Path) -> bool:
    """Return whether the contract differs from its released version in more than ``_EXPLANATION_KEYS``.

    Raises:
        ContractError: the released document cannot be read.
    """
    path = _released_path(folder)
    if not path.exists():
        return False
    try:
        released = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"cannot read {path} ({type(error).__name__}); take it from the release") from None
    return bool(_without_explanations(released) != _without_explanations(build_document()))


def _released_path(folder: Path) -> Path:
    return folder / VERSIONS / ".".join(CONTRACT_VERSION.split(".")[:2]) / DOCUMENT


def _without_explanations(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_explanations(item) for item in node]
    if isinstance(node, dict):
        return {
            name: _without_explanations(inner) for name, inner in node.items() if name not in _EXPLANATION_KEYS
        }
    return node


def _file_name(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", event).lower() + ".json"


def _file_text(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
