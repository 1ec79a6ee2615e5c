"""Streams of kind pmw whose warm start chooses its measurements from a workload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from schemas import Answer, EstimateCalibration
from sotto import Driver
from tests.builders import installation, parse_spec, source, stream
from tests.privacy.service import definition_of

SIZES = {"a": 4, "b": 4, "c": 3, "d": 2, "e": 5}
ROWS = 4000


def columns() -> dict[str, list[int]]:
    """Return rows in which b depends on a, c on b, and d and e are independent."""
    rng = np.random.default_rng(11)
    a = rng.integers(0, 4, ROWS)
    b = np.where(rng.random(ROWS) < 0.9, a, rng.integers(0, 4, ROWS))
    c = np.where(rng.random(ROWS) < 0.9, b % 3, rng.integers(0, 3, ROWS))
    made = {"a": a, "b": b, "c": c, "d": rng.integers(0, 2, ROWS), "e": rng.integers(0, 5, ROWS)}
    return {name: column.tolist() for name, column in made.items()}


COLUMNS = columns()


def driver(*, neighbors: str = "add-remove", epsilon: float = 2.0, **mechanism: Any) -> Driver:
    fields = {"attributes": list(SIZES), "warm_start": "workload", **mechanism}
    return installation(
        stream("pmw", "table", "pmw", mechanism=fields, epsilon=epsilon, expected_queries=50),
        sources=[source("table", "table", path="-", epsilon=100.0, attributes=dict(SIZES), neighbors=neighbors)],
        rows={"table": COLUMNS},
    )


def ask(made: Driver, *texts: str, **fields: Any) -> list[Answer]:
    asked = [{"id": str(place), "stream": "pmw", "where": text, **fields} for place, text in enumerate(texts)]
    return list(made.ask_many(asked))


def true_count(**values: int) -> int:
    return sum(all(COLUMNS[name][row] == value for name, value in values.items()) for row in range(ROWS))


def test_dependent_attributes_are_measured_or_connected() -> None:
    made = driver()
    for names in (("a", "b"), ("b", "c"), ("a", "c")):
        [answer] = made.ask_many([{"id": "".join(names), "stream": "pmw", "group_by": list(names)}])
        assert answer.estimates is not None
        left, right = names
        true = [true_count(**{left: x, right: y}) for x in range(SIZES[left]) for y in range(SIZES[right])]
        errors = np.abs(np.array(answer.estimates) - true)
        assert errors.mean() < 40
        independent = np.outer(np.bincount(COLUMNS[left]), np.bincount(COLUMNS[right])).reshape(-1) / ROWS
        assert np.abs(independent - true).mean() > 150


def test_answers_are_the_same_after_a_crash() -> None:
    texts = ["a = 1 AND b = 1", "b = 2 AND c = 2", "d = 1", "a = 1 AND c = 1 AND e = 2"]
    whole = ask(driver(), *texts)
    made = driver()
    parts = []
    for text, expected in zip(texts, whole, strict=True):
        [answer] = ask(made, text)
        parts.append((answer.estimate, answer.alpha, answer.basis, answer.spent))
        assert parts[-1] == (expected.estimate, expected.alpha, expected.basis, expected.spent)
        made.crash()


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_first_answer_is_charged_for_choices_and_measurements(neighbors: str) -> None:
    made = driver(neighbors=neighbors)
    calibration = definition_of(made, "pmw").calibration
    assert isinstance(calibration, EstimateCalibration)
    assert calibration.warm_start == "workload"
    opening = (
        calibration.starts * calibration.epsilon_start + calibration.epsilon_choices + calibration.epsilon_chosen
    )
    first, second = ask(made, "a = 1", "a = 2 AND d = 0")
    assert first.spent is not None
    assert first.spent.epsilon >= opening + calibration.epsilon_rows
    assert second.basis == "noisy" or second.spent == first.spent


def test_estimates_of_attributes_never_measured_together_are_marked() -> None:
    made = driver(workload=[["a", "b"]])
    together, apart, single = (
        made.ask("pmw", where=text) for text in ("a = 1 AND b = 1", "c = 1 AND d = 1", "e = 0")
    )
    assert (apart.basis, apart.charged if hasattr(apart, "charged") else False) == ("independence", False)
    assert together.basis != "independence"
    assert single.basis != "independence"
    assert "never measured together" in " ".join(apart.warnings)
    assert not any("together" in warning for warning in together.warnings)


def test_refusal_before_the_first_charge_does_not_depend_on_choices() -> None:
    made = driver(epsilon=1.0)
    [refused] = ask(made, "a = 1 AND b = 1", max_price=0)
    assert refused.outcome == "rejected"
    ask(made, "d = 1")
    [again] = ask(made, "d = 1", max_price=0)
    assert (again.outcome == "rejected") == (again.basis is None)


def test_workload_of_given_sets_chooses_among_them_alone() -> None:
    made = driver(workload=[["a", "b"], ["c", "d", "e"]])
    [answer] = made.ask_many([{"id": "1", "stream": "pmw", "group_by": ["c", "d", "e"]}])
    calibration = definition_of(made, "pmw").calibration
    assert isinstance(calibration, EstimateCalibration)
    assert calibration.rounds <= 2
    assert answer.estimates is not None
    assert abs(sum(answer.estimates) - ROWS) < ROWS / 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": [["a", "z"]]}, "a set must name different attributes"),
        ({"workload": [["a", "a"]]}, "a set must name different attributes"),
        ({"workload": [["a", "b"], ["b", "a"]]}, "given twice"),
        ({"workload": [["a", "b"]], "warm_start": 2}, "workload: is only for warm_start 'workload'"),
        ({"warm_start": "workload", "worst_case": True}, "with worst_case nothing is measured first"),
    ],
)
def test_workload_that_contradicts_other_fields_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_spec("pmw", attributes=["a", "b"], **fields)


def test_default_workload_is_left_out_of_the_json() -> None:
    spec = parse_spec("pmw", attributes=["a", "b"], warm_start="workload")
    assert '"workload":' not in spec.model_dump_json()
    assert parse_spec("pmw", attributes=["a", "b"], workload="pairs") == spec.model_copy(
        update={"mechanism": spec.mechanism.model_copy(update={"warm_start": "auto"})}
    )
