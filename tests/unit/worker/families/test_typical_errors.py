"""Streams of kind pmw that publish the typical error of their estimates."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from schemas import Answer, EstimateCalibration
from sotto import Driver
from stream.errors import Refused
from stream.questions import Result
from stream.questions.result_text import format_answer
from tests.builders import installation, parse_spec, source, stream
from tests.privacy.service import definition_of

SIZES = {"a": 4, "b": 4, "c": 3, "d": 2, "e": 5}
ROWS = 20_000


def columns() -> dict[str, list[int]]:
    """Return rows in which b depends on a, and c on b."""
    rng = np.random.default_rng(7)
    a = rng.integers(0, 4, ROWS)
    b = np.where(rng.random(ROWS) < 0.8, a, rng.integers(0, 4, ROWS))
    c = np.where(rng.random(ROWS) < 0.8, b % 3, rng.integers(0, 3, ROWS))
    made = {"a": a, "b": b, "c": c, "d": rng.integers(0, 2, ROWS), "e": rng.integers(0, 5, ROWS)}
    return {name: column.tolist() for name, column in made.items()}


COLUMNS = columns()
CODES = {name: np.array(column) for name, column in COLUMNS.items()}


def driver(*, neighbors: str = "add-remove", epsilon: float = 1.0, delta: float = 0.0, **mechanism: Any) -> Driver:
    fields = {
        "attributes": list(SIZES),
        "warm_start": "workload",
        "workload": [["a", "b"], ["c", "d"]],
        **mechanism,
    }
    if fields["warm_start"] != "workload":
        del fields["workload"]
    return installation(
        stream("pmw", "table", "pmw", mechanism=fields, epsilon=epsilon, delta=delta, expected_queries=50),
        sources=[
            source(
                "table", "table", path="-", epsilon=100.0, delta=0.1, attributes=dict(SIZES), neighbors=neighbors
            )
        ],
        rows={"table": COLUMNS},
    )


def ask(made: Driver, *asked: dict[str, Any]) -> list[Result]:
    return list(made.ask_many([{"id": str(place), "stream": "pmw", **one} for place, one in enumerate(asked)]))


def plan(made: Driver) -> EstimateCalibration:
    found = definition_of(made, "pmw").calibration
    assert isinstance(found, EstimateCalibration)
    return found


def errors(answer: Answer, names: list[str]) -> Any:
    cells = product(*(range(SIZES[name]) for name in names))
    true = [
        np.logical_and.reduce([CODES[name] == value for name, value in zip(names, cell, strict=True)]).sum()
        for cell in cells
    ]
    assert answer.estimates is not None
    return np.abs(np.array(answer.estimates) - true)


def test_typical_error_is_the_mean_over_pairs_that_were_not_measured() -> None:
    made = driver(warm_start=1, typical_error=True, updates=1, epsilon=0.25)
    asked = [list(names) for names in combinations(SIZES, 2)]
    answers = ask(made, *({"group_by": names} for names in asked))
    guessed = [(names, one) for names, one in zip(asked, answers, strict=True) if one.basis == "independence"]
    assert len(guessed) >= 8
    published = [one.typical_error for _, one in guessed]
    true = [errors(one, names).mean() for names, one in guessed]
    assert 0.6 < sum(one or 0.0 for one in published) / sum(true) < 1.6


def test_typical_errors_are_the_same_after_a_crash_and_in_any_batches() -> None:
    asked = [
        {"where": text}
        for text in ("a = 1 AND c = 1", "b = 1 AND c = 0", "a = 1 AND c = 1 AND e = 2", "d = 1 AND e < 3")
    ]
    whole = ask(driver(), *asked)
    made = driver()
    for one, expected in zip(asked, whole, strict=True):
        [answer] = ask(made, one)
        assert (answer.estimate, answer.typical_error) == (expected.estimate, expected.typical_error)
        made.crash()
    assert any(one.typical_error is not None for one in whole)


@pytest.mark.parametrize(("neighbors", "delta"), [("add-remove", 0.0), ("replace", 0.0), ("add-remove", 1e-6)])
def test_typical_errors_are_planned_within_the_granted_epsilon(neighbors: str, delta: float) -> None:
    fields: dict[str, Any] = {"neighbors": neighbors, "delta": delta, "workload": "pairs"}
    made = driver(**fields)
    found, without = plan(made), plan(driver(**fields, typical_error=False))
    assert found.epsilon_typical == pytest.approx(0.03)
    assert without.epsilon_typical == 0.0
    assert without.alpha < found.alpha < 1.06 * without.alpha
    [first] = ask(made, {"where": "a = 1"})
    assert first.spent is not None
    assert first.spent.epsilon <= 1.0


def test_only_estimated_counts_and_shares_have_a_typical_error() -> None:
    made = driver(workload="pairs")
    asked: list[dict[str, Any]] = [
        {"where": "a = 1 AND b = 1 AND c = 1"},
        {"where": "a = 1 AND b = 1 AND c = 1", "fraction": True},
        {"group_by": ["a", "b", "c"]},
        {"group_by": ["a", "b", "c"], "top": 2},
        {"mean": "e", "where": "a = 1 AND b = 1"},
        {"where": "a = 1"},
    ]
    count, share, groups, top, mean, single = ask(made, *asked)
    assert count.typical_error is not None
    assert share.typical_error == pytest.approx(count.typical_error / ROWS, rel=0.02)
    # A cell with as many rows as this count errs as the count does; the groups' error is the mean of all.
    assert groups.typical_error is not None
    assert groups.estimates is not None
    assert count.estimate is not None
    roots = [math.sqrt(one * (ROWS - one)) for one in (count.estimate, *groups.estimates)]
    expected = sum(roots[1:]) / len(groups.estimates) / roots[0]
    assert groups.typical_error / count.typical_error == pytest.approx(expected, rel=0.02)
    assert [one.typical_error for one in (top, mean, single)] == [None] * 3
    assert single.interval is not None
    assert "typical error about" in format_answer(count)
    assert "typical_error" not in single.model_dump_json(exclude_none=True)


@pytest.mark.parametrize(
    ("fields", "published"), [({}, True), ({"warm_start": 1}, False), ({"warm_start": 2}, False)]
)
def test_typical_errors_are_published_by_default_after_a_selected_start(
    fields: dict[str, Any], published: bool
) -> None:
    assert (plan(driver(**fields)).epsilon_typical > 0.0) == published


def test_stream_that_measures_all_its_questions_refuses_a_typical_error() -> None:
    with pytest.raises(Refused, match=r"mechanism\.typical_error: the warm start measures all questions"):
        driver(attributes=["a", "b"], warm_start=2, typical_error=True)


def test_worst_case_refuses_a_typical_error() -> None:
    with pytest.raises(ValidationError, match="is not computed with worst_case"):
        parse_spec("pmw", attributes=["a"], worst_case=True, typical_error=True)


@pytest.mark.parametrize("order", [0, 1])
def test_explicit_warm_start_marks_guesses(order: int) -> None:
    made = driver(warm_start=order, epsilon=0.05, updates=1)
    single, pair = ask(made, {"where": "e = 1"}, {"where": "c = 1 AND d = 1"})
    assert pair.basis == "independence"
    assert (single.basis == "independence") == (order == 0)
    assert "request an alpha below its ±" in pair.warnings[0]
    assert pair.alpha is not None
    [measured] = ask(made, {"where": "c = 1 AND d = 1", "alpha": 0.99 * pair.alpha})
    assert measured.basis == "noisy"


def test_default_is_left_out_of_the_json() -> None:
    spec = parse_spec("pmw", attributes=["a", "b"])
    assert "typical_error" not in spec.model_dump_json()
