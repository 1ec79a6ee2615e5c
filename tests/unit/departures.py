"""A live topic of departures."""

from __future__ import annotations

from typing import Any

from tests.builders import source, stream

AIRPORTS = ["EWR", "JFK", "LGA"]
FLIGHTS: dict[str, Any] = source(
    "flights",
    "events",
    epsilon=100.0,
    person="plane.tail",
    time="scheduled",
    attributes={"origin": AIRPORTS, "delay": {"kind": "integers", "minimum": -60, "maximum": 1500}},
    contribution=2,
    total=4,
    ahead="6h",
)
LATE: dict[str, Any] = stream(
    "late",
    "flights",
    mechanism={"threshold": 25.0, "cutoff": 5},
    epsilon=20.0,
    expected_queries=300,
    standing={
        "where": "delay >= 60",
        "by": ["origin"],
        "window": {"size": "1h", "every": "30m"},
        "lateness": "10m",
        "begins": "2026-01-01T00:00:00Z",
    },
)


def event(tail: str, time: str, origin: str = "EWR", delay: int = 100) -> dict[str, Any]:
    return {"plane": {"tail": tail}, "scheduled": time, "origin": origin, "delay": delay}
