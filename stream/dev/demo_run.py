"""Runs the demo and the live demo.

The demo kills one of two workers half-way. It also measures how fast a worker answers a backlog that is
published at once. The live demo finds half-days with many late aircraft in a year of departures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic

from schemas import (
    AboveThreshold,
    Answer,
    CloseStream,
    EventsSource,
    GrantRecord,
    OpenStream,
    RegisterSource,
    SourceRecord,
    StreamSpec,
    format_moment,
    moment_ms,
)
from stream.client.async_client import AsyncClient
from stream.client.client_calls import require_accepted
from stream.dev.demo_installation import (
    ANSWER_TIMEOUT,
    LATE_MINUTES,
    VALUES,
    VALUES_THRESHOLD,
    WINDOW_MS,
    Check,
    DemoAnswers,
    DemoInstallation,
    DemoProgress,
    DemoQuestion,
    DemoReport,
    Truth,
    WindowAirport,
    build_sources,
    build_streams,
    check_answers,
    check_budget,
    draw_questions,
    exact_counts,
)
from stream.dev.mechanism_tour import run_tour
from stream.engine.restore import create_reader
from stream.kafka.client.broker_connections import admin_client, connection_options
from stream.kafka.client.client_patches import KafkaProducer
from stream.processing.topic_names import partition_of
from stream.questions import Result
from stream.settings import Settings
from stream.tables.demo_tables import AIRPORTS, FLIGHTS_BEGIN, FLIGHTS_END, flights_source, read_flights

QUERIES: Final = 200_000
STREAMS: Final = 20
MOST_SECONDS: Final = 60.0
"""Maximum number of seconds to wait for the answers."""
_BATCH_BYTES: Final = 128 * 1024


async def measure_backlog(client: AsyncClient, settings: Settings) -> tuple[list[StreamSpec], float]:
    """Open streams and publish ``QUERIES`` questions; return the streams and the answers per second.

    The rate is measured from the first commit of answers to the last, by the offsets of the topic. Some of
    the offsets, a few in a hundred thousand, are markers of transactions.
    """
    specs = [
        StreamSpec(
            stream=f"backlog-{number:02}",
            source=VALUES,
            mechanism=AboveThreshold(kind="above_threshold", threshold=VALUES_THRESHOLD, cutoff=1),
            epsilon=0.05,
            expected_queries=QUERIES // STREAMS,
        )
        for number in range(STREAMS)
    ]
    await client.requests([OpenStream(request=f"open {spec.stream}", stream=spec) for spec in specs])
    answers = [TopicPartition(client.topics.answers, number) for number in range(client.topics.partitions)]
    producer = KafkaProducer(**connection_options(settings), acks="all", max_batch_size=_BATCH_BYTES)
    async with create_reader(settings) as consumer, producer:
        before = sum((await consumer.end_offsets(answers)).values())
        published = asyncio.create_task(
            _publish_backlog(producer, client.topics.queries, client.topics.partitions, specs)
        )
        rate = await _wait_for_answers(consumer, answers, before)
        await published
    return specs, rate


async def _publish_backlog(producer: Any, topic: str, partitions: int, specs: list[StreamSpec]) -> None:
    for spec in specs:
        key = spec.stream.encode()
        partition = partition_of(key, partitions)
        batch = producer.create_batch()
        for number in range(QUERIES // STREAMS):
            value = b'{"id":"%d","stream":"%s","value":%d}' % (number, key, number % 1000)
            if batch.append(timestamp=None, key=key, value=value) is None:
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        await producer.send_batch(batch, topic, partition=partition)
    await producer.flush()


async def _wait_for_answers(consumer: Any, answers: list[TopicPartition], before: int) -> float:
    """Return the answers per second; 0 if some answers do not come in time."""
    began = time.monotonic()
    first_count, first_time = 0, began
    while (now := time.monotonic()) - began < MOST_SECONDS:
        count: int = sum((await consumer.end_offsets(answers)).values()) - before
        if count >= QUERIES:
            return (count - first_count) / (now - first_time)
        if count and not first_count:
            first_count, first_time = count, now
        await asyncio.sleep(0.01)
    return 0.0


_SEED: Final = 1
"""Seed of the questions, not of the noise."""


async def run_demo(running: DemoInstallation, progress: DemoProgress, *, queries: int) -> DemoReport:
    """Run the demo, kill one worker half-way, and return the report.

    Args:
        running: The installation, for one run only.
        progress: Receives the progress.
        queries: Minimum number of queries.
    """
    async with AsyncClient(running.settings) as client:
        progress.print_step("registering two sources and opening 40 streams")
        per_stream = -(-queries // len(build_streams(1)))
        specs = build_streams(per_stream)
        await client.requests([RegisterSource(request=source.source, source=source) for source in build_sources()])
        for receipt in await client.requests([OpenStream(request=spec.stream, stream=spec) for spec in specs]):
            require_accepted(receipt)
        names = [source.source for source in build_sources()]
        calibrations = {
            grant.spec.stream: grant.calibration for name in names for grant in await client.list_streams(name)
        }
        asked = {
            question.query.id: question for question in draw_questions(specs, calibrations, per_stream, _SEED)
        }
        order = list(asked.values())
        half = len(order) // 2
        async with DemoAnswers(client, progress, len(order)) as reader:
            began = time.monotonic()
            progress.print_step("asking")
            await _publish(client, order[:half], reader)
            await reader.wait(half // 2)
            progress.print_step("killing one of the two workers (SIGKILL)")
            running.workers[0].kill()
            killed, answered_at_kill = time.monotonic(), len(reader.answers)
            await _publish(client, order[half:], reader)
            await reader.wait(len(order))
            ended = time.monotonic()
            await asyncio.sleep(1.0)  # lets duplicate answers arrive
        answers = reader.answers
        progress.print_step("asking a stream of every mechanism")
        tour_checks = await run_tour(client, _SEED)
        progress.print_step(f"asking {QUERIES:,} questions at once")
        backlog_specs, backlog_rate = await measure_backlog(client, running.settings)
        progress.print_step("closing the streams")
        await client.requests(
            [
                CloseStream(request=f"close {s.stream}", source=s.source, stream=s.stream)
                for s in [*specs, *backlog_specs]
            ]
        )
        budgets = [await _wait_until_closed(client, name) for name in names]
    checks, outcomes = check_answers(asked, answers, calibrations)
    exhausted = {answer.stream for answer in answers if answer.outcome == "above" and answer.tops_left == 0}
    checks += [check_budget(*budget, exhausted) for budget in budgets]
    after = len(answers) - answered_at_kill
    backlog_names = {spec.stream for spec in backlog_specs}
    answered = sum(
        grant.answered for _, grants in budgets for grant in grants if grant.spec.stream in backlog_names
    )
    checks.append(
        Check(
            "the worker that is left answers a backlog",
            f"{QUERIES:,} more questions, {answered:,} answered at {backlog_rate:,.0f}/s",
            answered == QUERIES,
        )
    )
    checks.append(
        Check(
            "the other worker takes over after kill -9",
            f"{after:,} answers after the kill, the last after {ended - killed:.1f} s; "
            f"Kafka waits {running.settings.session_timeout_ms / 1000:g} s for the killed worker",
            after > 0,
        )
    )
    measurements = {
        "queries_asked": len(asked),
        "queries_answered": len(answers),
        "above": outcomes["above"],
        "below": outcomes["below"],
        "halted_answers": outcomes["halted"],
        "streams": len(calibrations),
        "streams_halted": len(exhausted),
        "seconds": round(ended - began, 2),
        "backlog_queries": QUERIES,
        "backlog_answers_per_second": round(backlog_rate),
        "queries_per_second": round(len(asked) / (ended - began)),
        "budgets": [record.model_dump(mode="json", exclude={"source"}) for record, _ in budgets],
    }
    return DemoReport(checks + tour_checks, measurements)


async def _publish(client: AsyncClient, order: list[DemoQuestion], reader: DemoAnswers) -> None:
    for batch in (order[start : start + 500] for start in range(0, len(order), 500)):
        for question in batch:
            await client.publish(question.query)
        await client.flush()
        reader.advance(len(batch))


async def _wait_until_closed(client: AsyncClient, source: str) -> tuple[SourceRecord, list[GrantRecord]]:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while True:
        grants = await client.list_streams(source)
        if all(grant.state == "closed" for grant in grants) or time.monotonic() > deadline:
            return await client.budget(source), grants
        await asyncio.sleep(0.2)


LIVE_EPSILON = 2.0
LATE_THRESHOLD = 80
LIVE_ALERTS = 10
LIVE_STREAM = "late-aircraft"
DAY_MS = 24 * 3_600_000
LIVE_PARTITIONS = 4
WORST_SHOWN = 10
"""Number of half-days in the report that have the largest true counts."""


def live_stream() -> StreamSpec:
    """Return the stream that watches all airports for the year."""
    return StreamSpec.model_validate(
        {
            "stream": LIVE_STREAM,
            "source": "flights",
            "epsilon": LIVE_EPSILON,
            "expected_queries": count_windows() * len(AIRPORTS),
            "mechanism": {
                "kind": "above_threshold",
                "threshold": LATE_THRESHOLD,
                "cutoff": LIVE_ALERTS,
                "monotone": True,
            },
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


async def run_live_demo(settings: Settings, progress: DemoProgress) -> DemoReport:
    """Replay the year on running services, and return the report."""
    source = flights_source(LIVE_EPSILON, f"{settings.prefix}.departures")
    async with admin_client(settings) as admin:
        await admin.create_topics([NewTopic(source.topic, LIVE_PARTITIONS, 1)])
    try:
        return await _run_live(settings, source, progress)
    finally:
        async with admin_client(settings) as admin:
            await admin.delete_topics([source.topic])


async def _run_live(settings: Settings, source: EventsSource, progress: DemoProgress) -> DemoReport:
    expected = count_windows() * len(AIRPORTS)
    async with AsyncClient(settings) as client:
        progress.print_step(
            f"opening one stream: half-days in which more than about {LATE_THRESHOLD} aircraft left late"
        )
        await client.requests([RegisterSource(request="flights", source=source)])
        await client.request(OpenStream(request=LIVE_STREAM, stream=live_stream()))
        grant = await client.grant("flights", LIVE_STREAM)
        async with DemoAnswers(client, progress, expected) as reader:
            began = time.monotonic()
            progress.print_step("replaying 336,776 departures of 2013")
            await _publish_departures(client, reader)
            await reader.wait(expected, or_exhausted=True)
            seconds = time.monotonic() - began
            await asyncio.sleep(1.0)  # lets duplicate answers arrive
        budget = await client.budget("flights")
        return _live_report(reader.answers, grant.calibration.alpha, reader.published, seconds, budget)


async def _publish_departures(client: AsyncClient, reader: DemoAnswers) -> None:
    events = read_flights().iter_rows(named=True)
    for day, departures in groupby(events, key=lambda event: int(event["scheduled"]) // DAY_MS):
        await client.advance("flights", format_moment(day * DAY_MS))
        today = list(departures)
        await client.publish("flights", today)
        reader.advance(len(today))
    await client.advance("flights", FLIGHTS_END)
    await client.flush()


def _live_report(
    answers: list[Result], alpha: float, published: int, seconds: float, budget: SourceRecord
) -> DemoReport:
    exact, places = exact_counts(), _all_places()

    def truth_of(place: WindowAirport) -> Truth:
        return exact.get(place, Truth(0, 0))

    answered = [answer for answer in answers if answer.index is not None]
    answered_places = [_place_of(answer) for answer in answered]
    ended = any(answer.tops_left == 0 for answer in answered)
    alerts = {place for place, answer in zip(answered_places, answered, strict=True) if answer.outcome == "above"}
    wrong = sum(
        _is_beyond(answer.outcome, truth_of(place).aircraft, alpha)
        for place, answer in zip(answered_places, answered, strict=True)
    )
    checks = [
        Check(
            "each window of each airport is asked once, in order",
            f"{len(places):,} windows and airports, {len(answered):,} answered, {len(answered) - len(set(answered_places))} twice",
            answered_places == places[: len(answered)] and (ended or len(answered) == len(places)),
        ),
        Check(
            "above and below are right within the promised α",
            f"α = {alpha:g}; {len(alerts)} above, {wrong} beyond α",
            wrong == 0 and bool(alerts),
        ),
        Check(
            "one ε for the whole year, and for all that an aircraft ever does",
            f"ε = {LIVE_EPSILON:g} granted, {budget.spent.epsilon:g} of it spent by {len(alerts)} of {LIVE_ALERTS} alerts",
            budget.spent.epsilon <= LIVE_EPSILON,
        ),
    ]
    worst = sorted(exact, key=lambda place: -exact[place].aircraft)
    shown = sorted(alerts | set(worst[:WORST_SHOWN]), key=lambda place: -truth_of(place).aircraft)
    return DemoReport(
        checks,
        {
            "departures": published,
            "without_aircraft": int(read_flights()["aircraft"].null_count()),
            "late": sum(truth.departures for truth in exact.values()),
            "left_out": sum(truth.departures - truth.aircraft for truth in exact.values()),
            "seconds": round(seconds, 1),
            "alpha": alpha,
            "threshold": LATE_THRESHOLD,
            "windows": [
                {
                    "window": place[0],
                    "origin": place[1],
                    "rank": worst.index(place) + 1 if place in exact else None,
                    **asdict(truth_of(place)),
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
    return truth < LATE_THRESHOLD - alpha if outcome == "above" else truth > LATE_THRESHOLD + alpha
