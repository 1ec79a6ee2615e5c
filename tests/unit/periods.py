"""An installation whose source has periods, and a history of its events."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from schemas import GrantRecord, SourceRecord
from sotto import Driver
from stream.budget.trail_verification import TrailCheck
from tests.builders import installation, source, stream
from tests.unit.budget.budget_service import ledger_codec

AIRPORTS = ["EWR", "JFK", "LGA"]
DAYS = [f"2013-01-0{day}T00:00:00Z" for day in range(1, 8)]
FLIGHTS: dict[str, Any] = source(
    "flights",
    "events",
    epsilon=10.0,
    person="tail",
    attributes={"origin": AIRPORTS},
    contribution=2,
    unit="person-period",
    period="1d",
    clock="marks",
    ahead="90d",
)
LATE: dict[str, Any] = stream(
    "late",
    "flights",
    "laplace",
    mechanism={"answers": 200},
    epsilon=6.0,
    expected_queries=300,
    standing={"by": ["origin"], "window": {"size": "6h", "every": "3h"}, "begins": DAYS[0]},
)


def event(tail: str, at: str, origin: str = "EWR") -> dict[str, Any]:
    return {"tail": tail, "at": at, "origin": origin}


def events(days: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        event(
            f"N{chance.randrange(9)}",
            f"2013-01-0{day + 1}T{chance.randrange(24):02}:30:00Z",
            chance.choice(AIRPORTS),
        )
        for day in range(days)
        for _ in range(40)
    ]


def ready(**changed: Any) -> Driver:
    return installation(LATE, sources=[FLIGHTS | changed], partitions=3)


def ledger(driver: Driver) -> list[Any]:
    kept = {record.key: record.value for record in driver.records(driver.topics.ledger)}
    return [ledger_codec.decode(value) for value in kept.values() if value is not None]


def grants(driver: Driver) -> dict[str, GrantRecord]:
    return {one.spec.stream: one for one in ledger(driver) if isinstance(one, GrantRecord)}


def sources(driver: Driver) -> dict[str, SourceRecord]:
    return {one.source.source: one for one in ledger(driver) if isinstance(one, SourceRecord)}


def findings(driver: Driver) -> list[str]:
    """Return the findings of a comparison of the trail with the ledger."""
    check = TrailCheck()
    for record in driver.records(driver.topics.trail):
        check.add_entry(record.value)
    return [*check.findings(), *check.compare_ledger(ledger(driver))]


def played(driver: Driver, days: int = 4) -> Driver:
    driver.publish("flights", events(days))
    for day in DAYS[1 : days + 1]:
        driver.advance("flights", day)
    return driver


def calls(work: Callable[[], Any]) -> int:
    """Return how many functions are called: a measure of work that no other program on the machine changes."""
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    work()  # values that are made only once
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted
