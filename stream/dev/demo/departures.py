"""Runs the live demo, which finds half-days with many late aircraft in a year of departures."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import groupby

import polars as pl
from aiokafka.admin import NewTopic

from schemas import (
    Answer,
    EventsSource,
    OpenStream,
    RegisterSource,
    SourceRecord,
    StreamSpec,
    format_moment,
    moment_ms,
)
from stream.client.async_client import AsyncClient
from stream.dev.demo.demo_report import Check, DemoReport
from stream.dev.demo.demo_run import DemoAnswers, DemoProgress
from stream.kafka.client.broker_connections import admin_client
from stream.questions import Result
from stream.settings import Settings
from stream.tables.demo_tables import (
    AIRPORTS,
    FLIGHTS_BEGIN,
    FLIGHTS_END,
    flight_events,
    flights_source,
    read_flights,
)

EPSILON = 2.0
LATE_MINUTES = 60
"""Minutes of delay from which a departure is late; cancelled departures are late too."""
THRESHOLD = 80
ALERTS = 10
STREAM = "late-aircraft"
WINDOW_MS = 12 * 3_600_000
DAY_MS = 24 * 3_600_000
PARTITIONS = 4
WORST_SHOWN = 10
"""Number of truly worst half-days in the report."""

WindowAirport = tuple[str, str]
"""Start of a window, and an airport."""


@dataclass(frozen=True)
class Truth:
    """Exact counts of a window and airport: late aircraft (each counted once), and late departures."""

    aircraft: int
    departures: int


def live_stream() -> StreamSpec:
    """Return the stream that watches all airports for the year."""
    return StreamSpec.model_validate(
        {
            "stream": STREAM,
            "source": "flights",
            "epsilon": EPSILON,
            "expected_queries": count_windows() * len(AIRPORTS),
            "mechanism": {"kind": "above_threshold", "threshold": THRESHOLD, "cutoff": ALERTS, "monotone": True},
            "standing": {
                "count": "people",
                "where": f"delay >= {LATE_MINUTES}",
                "by": ["origin"],
                "window": {"size": "12h"},
                "begins": FLIGHTS_BEGIN,
            },
        }
    )


def count_windows() -> int:
    """Return the number of windows until the end of the replay."""
    return (moment_ms(FLIGHTS_END) - moment_ms(FLIGHTS_BEGIN)) // WINDOW_MS


def exact_counts() -> dict[WindowAirport, Truth]:
    """Return exact counts of every window and airport with a late departure."""
    late = read_flights().filter(pl.col("delay") >= LATE_MINUTES).drop_nulls("aircraft")
    late = late.with_columns(window=pl.col("scheduled") // WINDOW_MS * WINDOW_MS)
    # Only the first late departure of an aircraft in a window counts, at any airport.
    counted = late.unique(["window", "aircraft"], keep="first", maintain_order=True)
    bounded = counted.group_by("window", "origin").agg(aircraft=pl.len())
    figures = (
        late.group_by("window", "origin").agg(departures=pl.len()).join(bounded, ["window", "origin"], "left")
    )
    return {
        (format_moment(window), origin): Truth(aircraft or 0, departures)
        for window, origin, departures, aircraft in figures.iter_rows()
    }


async def run_live_demo(settings: Settings, progress: DemoProgress) -> DemoReport:
    """Replay the year on running services, and return the report."""
    source = flights_source(EPSILON, f"{settings.prefix}.departures")
    async with admin_client(settings) as admin:
        await admin.create_topics([NewTopic(source.topic, PARTITIONS, 1)])
    try:
        return await _run(settings, source, progress)
    finally:
        async with admin_client(settings) as admin:
            await admin.delete_topics([source.topic])


async def _run(settings: Settings, source: EventsSource, progress: DemoProgress) -> DemoReport:
    expected = count_windows() * len(AIRPORTS)
    async with AsyncClient(settings) as client:
        progress.step(f"opening one stream: half-days in which more than about {THRESHOLD} aircraft left late")
        await client.requests([RegisterSource(request="flights", source=source)])
        await client.request(OpenStream(request=STREAM, stream=live_stream()))
        grant = await client.grant("flights", STREAM)
        async with DemoAnswers(client, progress, expected) as reader:
            began = time.monotonic()
            progress.step("replaying 336,776 departures of 2013")
            await _publish(client, reader)
            await reader.wait(expected, or_exhausted=True)
            seconds = time.monotonic() - began
            await asyncio.sleep(1.0)  # lets duplicate answers arrive
        budget = await client.budget("flights")
        return _report(reader.answers, grant.calibration.alpha, reader.published, seconds, budget)


async def _publish(client: AsyncClient, reader: DemoAnswers) -> None:
    for day, departures in groupby(flight_events(), key=lambda event: int(event["scheduled"] or 0) // DAY_MS):
        await client.advance("flights", format_moment(day * DAY_MS))
        today = list(departures)
        await client.publish("flights", today)
        reader.advance(len(today))
    await client.advance("flights", FLIGHTS_END)
    await client.flush()


def _report(
    answers: list[Result], alpha: float, published: int, seconds: float, budget: SourceRecord
) -> DemoReport:
    exact = exact_counts()
    no_departures = Truth(0, 0)
    answered = [answer for answer in answers if answer.index is not None]
    answered_places = [_place_of(answer) for answer in answered]
    ended = any(answer.tops_left == 0 for answer in answered)
    expected_places = _all_places()[: len(answered_places)]
    alerts = {place for place, answer in zip(answered_places, answered, strict=True) if answer.outcome == "above"}
    wrong = sum(
        _is_beyond(answer.outcome, exact.get(place, no_departures).aircraft, alpha)
        for place, answer in zip(answered_places, answered, strict=True)
    )
    checks = [
        Check(
            "each window of each airport is asked once, in order",
            f"{len(_all_places()):,} windows and airports, {len(answered_places):,} answered, {len(answered_places) - len(set(answered_places))} twice",
            answered_places == expected_places and (ended or len(answered_places) == len(_all_places())),
        ),
        Check(
            "above and below are right within the promised α",
            f"α = {alpha:g}; {len(alerts)} above, {wrong} beyond α",
            wrong == 0 and bool(alerts),
        ),
        Check(
            "one ε for the whole year, and for all that an aircraft ever does",
            f"ε = {EPSILON:g} granted, {budget.spent.epsilon:g} of it spent by {len(alerts)} of {ALERTS} alerts",
            budget.spent.epsilon <= EPSILON,
        ),
    ]
    worst = sorted(exact, key=lambda place: -exact[place].aircraft)
    shown = sorted(alerts | set(worst[:WORST_SHOWN]), key=lambda place: -exact.get(place, no_departures).aircraft)
    return DemoReport(
        checks,
        {
            "departures": published,
            "without_aircraft": int(read_flights()["aircraft"].null_count()),
            "late": sum(truth.departures for truth in exact.values()),
            "left_out": sum(truth.departures - truth.aircraft for truth in exact.values()),
            "seconds": round(seconds, 1),
            "alpha": alpha,
            "threshold": THRESHOLD,
            "windows": [
                {
                    "window": place[0],
                    "origin": place[1],
                    "rank": worst.index(place) + 1 if place in exact else None,
                    "aircraft": exact.get(place, no_departures).aircraft,
                    "departures": exact.get(place, no_departures).departures,
                    "alert": place in alerts,
                }
                for place in shown
            ],
        },
    )


def _all_places() -> list[WindowAirport]:
    begin = moment_ms(FLIGHTS_BEGIN)
    starts = (format_moment(begin + number * WINDOW_MS) for number in range(count_windows()))
    return [(start, origin) for start in starts for origin in AIRPORTS]


def _place_of(answer: Answer) -> WindowAirport:
    if answer.window is None or answer.group is None:
        raise RuntimeError("an answer of a standing stream names no window")
    return answer.window.start, str(answer.group["origin"])


def _is_beyond(outcome: str, truth: int, alpha: float) -> bool:
    return truth < THRESHOLD - alpha if outcome == "above" else truth > THRESHOLD + alpha
