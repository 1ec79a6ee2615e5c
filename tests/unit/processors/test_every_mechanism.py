"""What holds for a stream of any kind: one list of them, and the same claims for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver, Refused
from tests.unit.processors.installation import KEY

AGES = [(index * index) % 60 for index in range(900)]
SEXES = ["F" if index % 3 else "M" for index in range(900)]
SOURCES: dict[str, dict[str, Any]] = {
    "people": {
        "kind": "table",
        "source": "people",
        "path": "in memory",
        "neighbors": "add-remove",
        "epsilon": 1000.0,
        "delta": 1e-3,
        "attributes": {"age": {"kind": "integers", "minimum": 0, "maximum": 59}, "sex": ["F", "M"]},
    },
    "feed": {
        "kind": "values",
        "source": "feed",
        "neighbors": "replace",
        "epsilon": 1000.0,
        "sensitivity": 2.0,
        "grid": 0.5,
    },
    "survey": {"kind": "records", "source": "survey", "epsilon": 1000.0, "contributions": 2},
}
CELLS = [{"at": {"age": age, "sex": "F"}, "weight": 0.5} for age in range(4)]
MANY = [{"at": {"age": age, "sex": sex}} for age, sex in ((0, "M"), (1, "F"), (4, "F"), (16, "F"))]
CANDIDATES = [{"name": "young", "where": "age < 20"}, {"name": "old", "where": "age >= 20"}]
SCORES = [{"name": "low", "value": 3.0}, {"name": "high", "value": 4.0}]


@dataclass(frozen=True)
class Kind:
    """A mechanism with questions that it takes, and one that it does not."""

    name: str
    mechanism: dict[str, Any]
    questions: Sequence[dict[str, Any]]
    wrong: dict[str, Any]
    source: str = "people"
    more: dict[str, Any] = field(default_factory=dict)

    def spec(self, **changes: Any) -> dict[str, Any]:
        fields = {"epsilon": 2.0, "expected_queries": 50, **self.more}
        return {"stream": "s", "source": self.source, "mechanism": self.mechanism, **fields, **changes}


WHERES: list[dict[str, Any]] = [{"where": f"age < {age}"} for age in range(5, 60, 5)]
VALUES: list[dict[str, Any]] = [{"value": float(value)} for value in range(60, 160, 5)]
KINDS = [
    Kind(
        "above_threshold over a table",
        {"kind": "above_threshold", "threshold": 300.0, "cutoff": 3, "sums": ["age"]},
        [*WHERES, {"sum": "age", "where": "age < 9"}],
        {"mean": "age"},
    ),
    Kind(
        "above_threshold over values",
        {"kind": "above_threshold", "threshold": 100.0, "cutoff": 2},
        VALUES,
        {"where": "age < 9"},
        source="feed",
    ),
    Kind(
        "numeric_sparse with fresh noise",
        {"kind": "numeric_sparse", "threshold": 300.0, "cutoff": 3, "monotone": True},
        WHERES,
        {"fraction": True, "where": "age < 9"},
    ),
    Kind(
        "numeric_sparse with gaps",
        {"kind": "numeric_sparse", "threshold": 100.0, "cutoff": 3, "numbers": "gap"},
        VALUES,
        {"values": [1.0]},
        source="feed",
    ),
    Kind(
        "numeric_sparse in rounds",
        {"kind": "numeric_sparse", "threshold": 200.0, "cutoff": 60},
        WHERES,
        {"group_by": ["sex"]},
        more={"delta": 1e-4},
    ),
    Kind(
        "laplace over a table",
        {"kind": "laplace", "answers": 20},
        [
            *WHERES[:3],
            {"mean": "age"},
            {"sum": "age"},
            {"group_by": ["sex"]},
            {"fraction": True, "where": "age < 9"},
        ],
        {"cells": CELLS},
    ),
    Kind(
        "laplace over values",
        {"kind": "laplace", "answers": 40, "dimensions": 2},
        [*VALUES, {"values": [1.0, 2.0]}],
        {"values": [1.0, 2.0, 3.0]},
        source="feed",
    ),
    Kind(
        "randomized_response",
        {"kind": "randomized_response", "categories": ["a", "b", "c"]},
        [{"category": name} for name in "abcabc"],
        {"value": 1.0},
        source="survey",
    ),
    Kind(
        "histogram",
        {"kind": "histogram", "attributes": ["sex", "age"]},
        [*WHERES, {"group_by": ["sex"]}],
        {"mean": "age"},
    ),
    Kind(
        "noisy_max over a table",
        {"kind": "noisy_max", "answers": 9, "monotone": True},
        [{"candidates": CANDIDATES}] * 4,
        {"candidates": SCORES},
    ),
    Kind(
        "noisy_max over values",
        {"kind": "noisy_max", "answers": 9},
        [{"candidates": SCORES}] * 4,
        {"candidates": CANDIDATES},
        source="feed",
    ),
    Kind(
        "exponential",
        {"kind": "exponential", "answers": 9},
        [{"candidates": CANDIDATES}] * 4,
        {"candidates": [CANDIDATES[0]] * 2},
    ),
    Kind(
        "pmw",
        {"kind": "pmw", "attributes": ["age", "sex"], "updates": 30, "rows": 900},
        [
            *WHERES,
            *WHERES,
            {"terms": [{"where": "age < 9", "weight": 0.5}, {"where": "sex = 'F'", "weight": 0.5}]},
        ],
        {"terms": [{"where": "age < 9", "weight": 1.5}]},
        more={"epsilon": 5.0},
    ),
    Kind(
        "sparse_pmw",
        {"kind": "sparse_pmw", "attributes": ["age", "sex"], "sparsity": 4, "updates": 300, "rows": 900},
        [{"cells": MANY}, {"cells": MANY[:2]}, {"cells": MANY}],
        {"cells": [*CELLS, {"at": {"age": 50, "sex": "F"}}]},
        more={"epsilon": 500.0},
    ),
    Kind(
        "sparse_project",
        {"kind": "sparse_project", "attributes": ["age", "sex"], "sparsity": 4, "projections": 64},
        [{"cells": CELLS}, {"cells": CELLS[:2]}, {"cells": CELLS}],
        {"where": "age < 9"},
        more={"delta": 1e-6},
    ),
    Kind(
        "lazy_histogram",
        {"kind": "lazy_histogram", "attributes": ["age", "sex"], "sparsity": 4},
        [{"cells": CELLS}, {"cells": CELLS[:2]}, {"cells": CELLS}],
        {"cells": [{"at": {"age": 60, "sex": "F"}}]},
    ),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def driver_with(kind: Kind, **changes: Any) -> Driver:
    driver = Driver(KEY, partitions=1)
    for source in SOURCES.values():
        driver.register(source, {"age": AGES, "sex": SEXES} if source["kind"] == "table" else None)
    driver.open(kind.spec(**changes))
    return driver


def ask(driver: Driver, questions: Sequence[dict[str, Any]]) -> Sequence[Answer]:
    return driver.ask_many([{"id": str(place), "stream": "s", **one} for place, one in enumerate(questions)])


@every_kind
def test_every_question_that_fits_is_answered_until_the_grant_is_used(kind: Kind) -> None:
    answers = ask(driver_with(kind), kind.questions)
    given = [answer for answer in answers if answer.index is not None]
    assert [answer.index for answer in given] == list(range(len(given)))
    assert {answer.outcome for answer in given} <= {"above", "below", "answer"}
    assert all(answer.outcome == "halted" for answer in answers[len(given) :])
    if len(given) < len(answers):
        assert given[-1].tops_left == 0


@every_kind
def test_what_is_spent_grows_with_the_charged_answers_alone_and_stays_within_the_grant(kind: Kind) -> None:
    driver = driver_with(kind)
    given = [
        answer for answer in ask(driver, kind.questions) if answer.spent is not None and answer.index is not None
    ]
    granted = driver.budget(kind.source).granted.epsilon
    spent = [answer.spent.epsilon for answer in given if answer.spent is not None]
    assert spent[0] > 0
    assert spent == sorted(spent)
    assert spent[-1] <= granted + 1e-12
    for (before, after), (first, second) in zip(pairwise(spent), pairwise(given), strict=True):
        # A stream whose δ is used counts as spent in full from its first answer on.
        assert (after > before) <= (first.tops_left != second.tops_left)
    assert driver.budget(kind.source).spent.epsilon == pytest.approx(spent[-1], abs=1e-11)


@every_kind
def test_a_question_that_does_not_fit_is_rejected_with_its_field_at_no_cost(kind: Kind) -> None:
    driver = driver_with(kind)
    rejected, answered = ask(driver, [kind.wrong, kind.questions[0]])
    assert rejected.outcome == "rejected"
    assert rejected.spent is None
    assert rejected.reason is not None
    field_of_question = next(iter(kind.wrong))
    assert f"{field_of_question}" in rejected.reason
    assert answered.index == 0
    other = driver_with(kind)
    assert ask(other, [kind.questions[0]])[0].spent == answered.spent


@every_kind
def test_batches_crashes_and_redelivery_change_no_byte(kind: Kind) -> None:
    together = ask(driver_with(kind), kind.questions)
    driver = driver_with(kind)
    apart: list[Answer] = []
    for place, question in enumerate(kind.questions):
        apart += driver.ask_many([{"id": str(place), "stream": "s", **question}])
        assert driver.redeliver() == apart[-1:]
        if place % 3 == 0:
            figures = driver.figures()
            driver.crash()
            assert driver.figures() == figures
    assert apart == together


@every_kind
def test_a_closed_stream_gives_back_what_its_transcript_did_not_spend(kind: Kind) -> None:
    driver = driver_with(kind)
    ask(driver, kind.questions[:2])
    driver.close(kind.source, "s")
    record = driver.budget(kind.source)
    assert record.granted.epsilon - record.refunded.epsilon == pytest.approx(record.spent.epsilon)
    [answer] = ask(driver, kind.questions[:1])
    assert answer.outcome == "halted"


@every_kind
def test_a_stream_that_was_never_asked_costs_nothing(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.close(kind.source, "s")
    record = driver.budget(kind.source)
    assert record.spent.epsilon == 0.0
    assert record.refunded == record.granted


@every_kind
def test_a_halted_stream_answers_nothing_and_its_reason_is_told(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.halt(kind.source, "s", "enough for today")
    [answer] = ask(driver, kind.questions[:1])
    assert (answer.outcome, answer.reason) == ("halted", "enough for today")
    assert answer.estimate is None
    assert answer.choice is None


@every_kind
def test_two_streams_of_one_specification_have_noise_of_their_own(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.open(kind.spec(stream="second"))

    def seen(stream: str) -> list[Any]:
        log = [{"id": f"{place}", "stream": stream, **one} for place, one in enumerate(list(kind.questions) * 5)]
        keep = {"outcome", "estimate", "estimates", "choice"}
        return [answer.model_dump(include=keep) for answer in driver.ask_many(log)]

    assert seen("s") != seen("second")


@every_kind
@pytest.mark.parametrize("calibration", ["best", "textbook"])
def test_every_kind_has_a_textbook_and_the_best_is_no_worse(kind: Kind, calibration: str) -> None:
    driver = driver_with(kind, calibration=calibration)
    definition = json.loads(driver.records(driver.topics.control)[-1].value or b"")["calibration"]
    assert (definition["method"] == "textbook") or calibration == "best"


@every_kind
def test_under_zcdp_the_source_pays_in_rho(kind: Kind) -> None:
    driver = Driver(KEY, partitions=1)
    source = {**SOURCES[kind.source], "accountant": "zcdp", "delta": 1e-3}
    driver.register(source, {"age": AGES, "sex": SEXES} if source["kind"] == "table" else None)
    driver.open(kind.spec(epsilon=2.0))
    ask(driver, kind.questions[:1])
    record = driver.budget(kind.source)
    assert record.spent.rho is not None
    assert 0 < record.spent.rho <= record.granted.rho  # type: ignore[operator]


@pytest.mark.parametrize(
    ("source", "mechanism", "words"),
    [
        ("survey", {"kind": "laplace"}, "mechanism.kind: laplace does not run on a source of kind 'records'"),
        ("feed", {"kind": "histogram", "attributes": ["age"]}, "use 'table'"),
        ("people", {"kind": "randomized_response"}, "use 'records'"),
        ("people", {"kind": "histogram", "attributes": ["height"]}, "mechanism.attributes.0: the source has no"),
        (
            "people",
            {"kind": "histogram", "attributes": ["age", "age"]},
            "mechanism.attributes: an attribute stands",
        ),
        (
            "people",
            {"kind": "noisy_max", "sums": ["sex"]},
            "mechanism.sums.0: the source has no integer attribute",
        ),
        ("feed", {"kind": "noisy_max", "sums": ["age"]}, "mechanism.sums: a feed of values has no attributes"),
        ("people", {"kind": "pmw", "attributes": ["age"], "worst_case": True}, "rows"),
    ],
)
def test_a_mechanism_that_does_not_fit_its_source_is_refused_with_the_field(
    source: str, mechanism: dict[str, Any], words: str
) -> None:
    driver = driver_with(KINDS[0])
    with pytest.raises(Refused, match="mechanism") as refused:
        driver.open({"stream": "other", "source": source, "mechanism": mechanism, "epsilon": 1.0})
    assert words in refused.value.reason
    assert driver.budget(source).granted.epsilon == (2.0 if source == "people" else 0.0)
