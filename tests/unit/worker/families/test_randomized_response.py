"""Randomized response in the service: all events cost one charge, and no event is answered twice with different noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver, Refused
from tests.builders import installation, source, stream

CATEGORIES = ["red", "green", "blue"]
MECHANISM = {"kind": "randomized_response", "categories": CATEGORIES}


def survey(**more: Any) -> Driver:
    return installation(
        stream("survey", "people", mechanism=MECHANISM, epsilon=1.5),
        sources=[source("people", "records", epsilon=4.0, **more)],
    )


def answer_categories(driver: Driver, *categories: str, start: int = 0) -> Sequence[Answer]:
    return driver.ask_many(
        {"id": str(number), "stream": "survey", "category": one} for number, one in enumerate(categories, start)
    )


def test_randomized_response_charges_everything_at_the_first_event() -> None:
    driver = survey(contributions=3)
    answers = answer_categories(driver, *CATEGORIES * 20)
    assert {answer.outcome for answer in answers} == {"answer"}
    assert {answer.spent.epsilon for answer in answers if answer.spent} == {1.5}
    assert {answer.tops_left for answer in answers} == {None}
    assert [answer.index for answer in answers] == list(range(60))
    assert {answer.choice for answer in answers} == set(CATEGORIES)
    assert driver.budget("people").spent.epsilon == 1.5


def test_equal_categories_have_independent_answers_for_good() -> None:
    driver = survey()
    before = answer_categories(driver, *["red"] * 40)
    assert len({answer.choice for answer in before}) == 3
    driver.crash()
    assert driver.redeliver() == before
    after = answer_categories(driver, *["red"] * 5, start=40)
    assert [answer.index for answer in after] == [40, 41, 42, 43, 44]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (b'"category":null', "give exactly one question"),
        (b'"category":7', "category: is not a text"),
        (b'"value":1.0', "value: this stream's mechanism does not take it; send category"),
        (b'"where":"TRUE"', "where: this stream's mechanism does not take it; send category"),
    ],
)
def test_value_that_is_no_category_is_refused_uncharged(question: bytes, message: str) -> None:
    driver = survey()
    [answer] = driver.ask_many([b'{"id":"1","stream":"survey",%s}' % question])
    assert answer.outcome == "rejected"
    assert answer.reason is not None
    assert message in answer.reason
    assert driver.budget("people").spent.epsilon == 0.0


@pytest.mark.parametrize("category", ["mauve", "", "RED", "red ", "x" * 300, "𝄞" * 3000, "null", "\x00"])
def test_unlisted_string_is_answered_with_a_category_for_good(category: str) -> None:
    driver = survey()
    answers = answer_categories(driver, *[category] * 40)
    assert {answer.outcome for answer in answers} == {"answer"}
    assert {answer.choice for answer in answers} == set(CATEGORIES)
    assert [answer.index for answer in answers] == list(range(40))
    assert not driver.records(driver.topics.rejected)
    driver.crash()
    assert driver.redeliver() == answers


def test_randomized_response_runs_on_records_only() -> None:
    driver = installation(sources=[source()])
    with pytest.raises(Refused, match="does not run on a source of kind 'values'; use 'records'"):
        driver.open(stream("survey", mechanism=MECHANISM))
