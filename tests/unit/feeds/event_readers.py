"""Builds a source of events, a valid event of it, and its reader."""

from __future__ import annotations

import json
from typing import Any

from stream.feeds.event_reader import EventReader
from tests.builders import parse_source, source

SOURCE = source(
    "live",
    "events",
    topic="ops",
    epsilon=1.0,
    person="user.id",
    attributes={
        "city": ["A", "B"],
        "size": {"kind": "categories", "values": ["S", "L"], "other": "L"},
        "delay": {"kind": "integers", "minimum": -5, "maximum": 10},
        "exact": {"kind": "integers", "minimum": 0, "maximum": 3, "outside": "reject"},
        "weight": {"kind": "bins", "edges": [0, 1, 5]},
    },
    fields={"city": "place.city"},
)
GOOD: dict[str, Any] = {
    "user": {"id": "ann", "name": "Ann"},
    "at": "2026-01-01T00:00:00Z",
    "place": {"city": "B"},
    "size": "S",
    "delay": 3,
    "exact": 2,
    "weight": 4.5,
    "more": [{"id": 1}],
}


def reader(**other: Any) -> EventReader:
    return EventReader(parse_source({**SOURCE, **other}), 4)


def event_bytes(**other: Any) -> bytes:
    return json.dumps({**GOOD, **other}).encode()
