"""The AsyncAPI project's parser accepts the AsyncAPI document, which agrees with the code."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from stream.dev.contract_events import CONTRACT_VERSION, EVENTS
from stream.dev.contract_files import DOCUMENT, build_document
from stream.kafka.topic_layouts import feed_layout, layout
from stream.processing.topic_names import Topics
from tests.unit.dev import asyncapi_parser

CONTRACT = Path(__file__).parents[3] / "contract"
KAFKA = ("bindings", "kafka")

parser = pytest.mark.skipif(
    asyncapi_parser.missing() is not None, reason=f"AsyncAPI's parser: {asyncapi_parser.missing()}"
)


@parser
def test_asyncapi_parser_accepts_document_and_refuses_broken_ones(tmp_path: Path) -> None:
    mistakes: tuple[tuple[Any, ...], ...] = (
        ("operations", "publishAnswers", "channel", {"$ref": "#/channels/nowhere"}),
        ("components", "messages", "Query", "payload", {"$ref": "#/components/schemas/No"}),
        ("components", "schemas", "Answer", "type", "sentence"),
        ("channels", "queries", *KAFKA, "topicConfiguration", {"cleanup.policy": ["x"]}),
    )
    broken: Any = copy.deepcopy(build_document())
    for *place, last, value in mistakes:
        part = broken
        for step in place:
            part = part[step]
        part[last] = value
    path = tmp_path / DOCUMENT
    path.write_text(json.dumps(broken))
    found, refused = asyncapi_parser.parse([CONTRACT / DOCUMENT, path])
    assert [one["text"] for one in found["diagnostics"] if one["severity"] <= asyncapi_parser.WARNING] == []
    assert found["version"] == CONTRACT_VERSION
    assert set(found["channels"]) == set(build_document()["channels"])
    assert set(found["operations"]) == set(build_document()["operations"])
    assert set(found["messages"]) == {event.name for event in EVENTS} | {"DeadLetter", "Piece"}
    errors = "\n".join(one["text"] for one in refused["diagnostics"] if one["severity"] == 0)
    for *place, last, _ in mistakes:
        assert f" at {'.'.join([*place, last])}" in errors, errors


def test_channels_match_topics_as_created() -> None:
    channels = build_document()["channels"]
    described = {
        channel["address"].replace("{prefix}", "sotto"): channel["bindings"]["kafka"]
        for channel in channels.values()
    }
    made = {wanted.name: wanted for wanted in layout(Topics("sotto"))}
    of_a_feed = feed_layout(Topics("sotto"), "flights", 7)
    described[of_a_feed.name] = described.pop("sotto.feed.{source}")
    made[of_a_feed.name] = of_a_feed
    assert described.keys() == made.keys()
    for name, binding in described.items():
        assert binding.get("partitions") == (None if name == of_a_feed.name else made[name].partitions)
        configuration = {
            key: ",".join(value) if isinstance(value, list) else str(value)
            for key, value in binding["topicConfiguration"].items()
        }
        assert configuration == made[name].configuration


def references(part: Any) -> set[str]:
    """Return the references of a JSON document."""
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(references(value) for value in part.values()))
    return set().union(*(references(value) for value in part)) if isinstance(part, list) else set()


def test_references_have_targets() -> None:
    found = build_document()
    for reference in references(found):
        part: Any = found
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]


def test_internal_channels_are_marked() -> None:
    channels = build_document()["channels"]
    assert {name for name, channel in channels.items() if channel.get("x-internal")} == {
        "control",
        "charges",
        "state",
        "partials",
        "merges",
        "feed_state",
    }
    assert all(channel["x-partitioner"] == "murmur2" for channel in channels.values())
