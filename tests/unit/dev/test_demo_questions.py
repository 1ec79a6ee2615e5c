"""The demo repeats questions that were refused as ``busy``, and judges answers by their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from schemas import Answer, Query
from sotto import Driver
from stream.dev.mechanism_tour import (
    CENSUS,
    TourStop,
    ask_until_answered,
    census_truths,
    judge_answers,
    tour_sources,
    tour_stops,
)
from stream.dev.true_answers import TableTruths

OUTSTANDING = 0.3
"""Seconds of outstanding work that are allowed: fewer than the questions need together."""


@pytest.fixture(scope="module")
def truths() -> TableTruths:
    return census_truths()


def open_stop(driver: Driver, kind: str) -> TourStop:
    driver.register(tour_sources()[0])
    stop = next(stop for stop in tour_stops(1) if stop.spec.mechanism.kind == kind)
    driver.open(stop.spec)
    return replace(stop, questions=stop.questions[:40])


def test_demo_repeats_busy_questions_until_all_are_answered(truths: TableTruths) -> None:
    driver = Driver(bytes(32), partitions=1, work_outstanding=OUTSTANDING)
    stop = open_stop(driver, "pmw")

    async def ask_all(questions: Sequence[Query]) -> Sequence[Answer]:
        return driver.ask_many(questions)

    async def sleep(seconds: float) -> None:
        driver.wait(seconds)

    grant = driver.grant(CENSUS, stop.spec.stream)
    early = asyncio.run(ask_all(stop.queries()))
    assert {answer.outcome for answer in early} == {"answer", "rejected"}
    seen, held = judge_answers(stop, early, grant, truths)
    assert "questions without an answer: busy:" in seen
    assert not held

    answers = asyncio.run(ask_until_answered(ask_all, stop.queries(), sleep))
    seen, held = judge_answers(stop, answers, grant, truths)
    assert "Laplace noise would cost ε" in seen
    assert held


def test_demo_checks_counts_of_countries_for_unknown_groups(truths: TableTruths) -> None:
    driver = Driver(bytes(32), partitions=1)
    stop = open_stop(driver, "unknown_groups")
    [answer] = driver.ask_many(stop.queries())
    grant = driver.grant(CENSUS, stop.spec.stream)
    seen, held = judge_answers(stop, [answer], grant, truths)
    assert held
    assert "released groups (4" in seen
    wrong = tuple(1.0 + number + 2 * (answer.alpha or 0.0) for number in answer.estimates or ())
    for changed in ({"estimates": wrong}, {"keys": (), "estimates": ()}):
        assert not judge_answers(stop, [answer.model_copy(update=changed)], grant, truths)[1]
