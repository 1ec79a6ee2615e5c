"""The demo repeats questions that were refused as ``busy``, and counts questions without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from schemas import Answer, Query
from sotto import Driver
from stream.dev import mechanism_tour as tour
from stream.dev.mechanism_tour import CENSUS, ask_until_answered, tour_stops
from stream.tables.demo_tables import adult_source

OUTSTANDING = 0.3
"""Seconds of outstanding work that are allowed: fewer than the questions need together."""


def test_demo_repeats_busy_questions_until_all_are_answered() -> None:
    driver = Driver(bytes(32), partitions=1, work_outstanding=OUTSTANDING)
    driver.register(adult_source(epsilon=20.0, delta=1e-4).model_copy(update={"source": CENSUS}))
    stop = next(stop for stop in tour_stops(1) if stop.spec.mechanism.kind == "pmw")
    driver.open(stop.spec)
    whole = tour.draw_mixed_questions(1)
    asked = tour.MixedQuestions(whole.questions[:40], whole.truths[:40], whole.rows)
    queries = [
        Query.model_validate({"id": str(number), "stream": stop.spec.stream, **question})
        for number, question in enumerate(asked.questions)
    ]

    async def ask_all(questions: Sequence[Query]) -> Sequence[Answer]:
        return driver.ask_many(questions)

    async def sleep(seconds: float) -> None:
        driver.wait(seconds)

    calibration = driver.grant(CENSUS, stop.spec.stream).calibration
    early = asyncio.run(ask_all(queries))
    assert {answer.outcome for answer in early} == {"answer", "rejected"}
    seen, held = tour.judge_mixed_answers(asked, early, stop.spec, calibration.alpha)
    assert "questions without an answer" in seen
    assert not held

    answers = asyncio.run(ask_until_answered(ask_all, queries, sleep))
    assert {answer.outcome for answer in answers} == {"answer"}
    seen, held = tour.judge_mixed_answers(asked, answers, stop.spec, calibration.alpha)
    assert "without an answer" not in seen
    assert held


def test_demo_reports_a_stream_that_answers_nothing() -> None:
    asked = tour.MixedQuestions(({"where": "TRUE"},), ((1.0,),), rows=1)
    refused = Answer(id="1", stream="s", outcome="rejected", reason="table: gone")
    spec = next(stop.spec for stop in tour_stops(1) if stop.spec.mechanism.kind == "pmw")
    seen, held = tour.judge_mixed_answers(asked, [refused], spec, 1.0)
    assert "table: gone" in seen
    assert not held


def test_demo_checks_counts_of_countries_for_unknown_groups() -> None:
    driver = Driver(bytes(32), partitions=1)
    driver.register(tour.tour_sources()[0])
    stop = next(stop for stop in tour_stops(1) if stop.spec.mechanism.kind == "unknown_groups")
    driver.open(stop.spec)
    answers = [driver.ask(stop.spec.stream, **question) for question in stop.questions]
    grant = driver.grant(CENSUS, stop.spec.stream)
    seen, held = stop.judge(answers, grant)
    assert held
    assert "of 42 countries released" in seen
    [answer] = answers
    wrong = answer.model_copy(
        update={"estimates": tuple(1.0 + number + 2 * (answer.alpha or 0.0) for number in answer.estimates or ())}
    )
    assert not stop.judge([wrong], grant)[1]
    assert not stop.judge([answer.model_copy(update={"keys": (), "estimates": ()})], grant)[1]
