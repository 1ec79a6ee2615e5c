"""A live topic, its standing streams, and the questions of its windows, for tests of feeds and workers."""

from __future__ import annotations

from typing import Any

from schemas.windows import format_moment, moment_ms, span_ms
from tests.builders import source, stream

WINDOW = {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z"}
GROUP = {"origin": "EWR"}


def flights(**changed: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "origin": ["EWR", "JFK", "LGA"],
        "delay": {"kind": "integers", "minimum": -60, "maximum": 1500},
        "wait": {"kind": "integers", "minimum": 0, "maximum": 1500},
        "speed": {"kind": "bins", "edges": [0, 10, 20]},
        "gate": 4000,
    }
    fields: dict[str, Any] = {"epsilon": 1000, "delta": 0.1, "contribution": 2}
    fields |= {"person": "tailnum", "time": "scheduled"}
    return source("flights", "events", **{**fields, "attributes": attributes, **changed})


def standing(name: str = "late", mechanism: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"expected_queries": 30_000}
    fields |= {name: changed.pop(name) for name in ("epsilon", "delta", "expected_queries") if name in changed}
    return stream(
        name,
        "flights",
        mechanism=mechanism or {"threshold": 25, "cutoff": 3, "monotone": True},
        standing={
            "where": "delay >= 60",
            "by": ["origin"],
            "window": {"size": "1h", "every": "15m"},
            "lateness": "10m",
            **changed,
        },
        **fields,
    )


def question(stream: str, number: int, **fields: Any) -> dict[str, Any]:
    """Return the question of a window; the first window has number 0, and each next window a number larger by 1."""
    return {"id": f"{number}", "stream": stream, "window": window(number), "group": GROUP, **fields}


def window(number: int) -> dict[str, str]:
    """Return one of the windows of an hour that begin every quarter of an hour."""
    start = moment_ms(WINDOW["start"]) + number * span_ms("15m")
    return {"start": format_moment(start), "end": format_moment(start + span_ms("1h"))}
