"""Noisy max and the exponential mechanism in the service: each question gets a name, for its price, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver, Refused
from tests.builders import installation, source, stream

KINDS = ["noisy_max", "exponential"]
FAR: list[dict[str, Any]] = [
    {"name": "a", "value": 1.0},
    {"name": "b", "value": 1e6},
    {"name": "c", "value": -1e15},
]
"""Candidates so far apart that no noise matters."""


def opening(kind: str, source: str = "feed", *, answers: int = 3, **more: Any) -> dict[str, Any]:
    mechanism: dict[str, Any] = {"kind": kind, "answers": answers}
    mechanism |= {name: more.pop(name) for name in ("monotone", "sums") if name in more}
    fields: dict[str, Any] = {"epsilon": 3.0, **more}
    return stream("choice", source, mechanism=mechanism, **fields)


def ask_choices(driver: Driver, *candidates: Any, start: int = 0) -> Sequence[Answer]:
    return driver.ask_many(
        {"id": str(number), "stream": "choice", "candidates": one} for number, one in enumerate(candidates, start)
    )


def people(kind: str, **more: Any) -> Driver:
    return installation(opening(kind, "people", **more), sources=[source("people", "table")])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", ["best", "textbook"])
def test_best_of_distant_candidates_is_chosen_until_the_grant_ends(kind: str, calibration: str) -> None:
    driver = installation(opening(kind, calibration=calibration))
    answers = ask_choices(driver, FAR, FAR[::-1], FAR[:2], FAR)
    assert [answer.choice for answer in answers] == ["b", "b", "b", None]
    assert [answer.spent.epsilon for answer in answers if answer.spent] == [1.0, 2.0, 3.0, 3.0]
    assert [answer.tops_left for answer in answers] == [2, 1, 0, 0]
    assert (answers[3].outcome, answers[3].reason) == ("halted", "exhausted: all 3 answers of the grant are given")


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_candidates_have_a_smaller_alpha(kind: str) -> None:
    driver = installation(opening(kind, answers=2))
    many = [{"name": str(number), "value": 0.0} for number in range(256)]
    wide, narrow = ask_choices(driver, many, many[:2])
    assert wide.alpha is not None
    assert narrow.alpha is not None
    assert narrow.alpha < wide.alpha
    grant = driver.budget("feed")
    assert grant.spent.epsilon == 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_choice_does_not_change_on_redelivery(kind: str) -> None:
    near = [{"name": str(number), "value": float(number % 3)} for number in range(20)]
    driver = installation(opening(kind, answers=20))
    first = ask_choices(driver, *[near] * 10)
    driver.crash()
    assert driver.redeliver() == first
    second = ask_choices(driver, *[near] * 10, start=10)
    assert len({answer.choice for answer in [*first, *second]}) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_of_a_table_are_counts_and_declared_sums(kind: str) -> None:
    driver = people(kind, sums=["age"], epsilon=9.9, answers=2)
    counts = [{"name": "none", "where": "age < 0"}, {"name": "years", "sum": "age", "where": "sex = 'F'"}]
    total = [
        {"name": "few", "where": "age = 3"},
        {"name": "all", "sum": "age"},
        {"name": "M", "where": "sex = 'M'"},
    ]
    assert [answer.choice for answer in ask_choices(driver, counts, total)] == ["years", "all"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([{"name": "a", "value": 1.0}], "candidates.value: this stream's source is a table"),
        ([{"name": "a"}], "candidates: one candidate has no score; give each a 'where', a 'sum' or 'people'"),
        (
            [{"name": "a", "where": "TRUE"}, {"name": "a", "where": "FALSE"}],
            "candidates.name: two candidates have the same name",
        ),
        ([{"name": "a", "sum": "age"}], "candidates.sum: the stream was not opened for sums of this attribute"),
        ([{"name": "a", "where": "height > 3"}], "candidates.where: "),
    ],
)
def test_candidates_that_a_table_cannot_score_cost_nothing(
    kind: str, candidates: list[dict[str, Any]], message: str
) -> None:
    driver = people(kind)
    bad, good = ask_choices(driver, candidates, [{"name": "all", "where": "TRUE"}])
    assert bad.outcome == "rejected"
    assert bad.reason is not None
    assert message in bad.reason
    assert (good.choice, good.index, good.tops_left) == ("all", 0, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidate", [{"name": "a", "where": "TRUE"}, {"name": "a"}, {"name": "a", "sum": "age"}])
def test_candidates_without_a_value_are_refused_on_a_feed(kind: str, candidate: dict[str, Any]) -> None:
    driver = installation(opening(kind))
    [answer] = ask_choices(driver, [candidate])
    assert answer.outcome == "rejected"
    assert answer.reason is not None
    assert (
        "candidates: this stream's source has no table; give each candidate a 'value' and nothing else"
        in answer.reason
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", [{"value": 1.0}, {"candidates": FAR, "threshold": 1.0}, {"category": "x"}])
def test_other_forms_of_question_are_refused_uncharged(kind: str, question: dict[str, Any]) -> None:
    driver = installation(opening(kind))
    [answer] = driver.ask_many([{"id": "1", "stream": "choice", **question}])
    assert answer.outcome == "rejected"
    assert driver.budget("feed").spent.epsilon == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_monotone_scores_are_refused_under_replace(kind: str) -> None:
    driver = installation(sources=[source("people", "table", neighbors="replace")])
    with pytest.raises(Refused, match=r"mechanism\.monotone"):
        driver.open(opening(kind, "people", monotone=True))
