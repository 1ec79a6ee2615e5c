"""Inverted calculators find the smallest sufficient value: their result keeps the error, and a slightly smaller one does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import StreamSpec
from schemas.mechanisms import MAX_ANSWERS
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning import plans
from stream.privacy.planning.inverse_plans import (
    LARGEST_EPSILON,
    LEAST_EPSILON,
    TOLERANCE,
    largest_cutoff,
    needed_epsilon,
    needed_rows,
)
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import promised_alpha
from tests.builders import parse_spec

FINE = SourceFacts(sensitivity_steps=1024, grid=1.0 / 1024)
TABLE = SourceFacts(universe=256, rows=10_000)
SLACK = 1.003
"""The largest ratio of a found split's result to the best one."""

Fields = dict[str, Any]
ABOVE: Fields = {"kind": "above_threshold", "cutoff": 5}
NUMERIC: Fields = {"kind": "numeric_sparse", "cutoff": 5}
GAPS: Fields = {**NUMERIC, "numbers": "gap"}
LAPLACE: Fields = {"kind": "laplace", "answers": 5}
RESPONSE: Fields = {"kind": "randomized_response"}
HISTOGRAM: Fields = {"kind": "histogram"}
LAZY: Fields = {"kind": "lazy_histogram", "sparsity": 4}
PMW: Fields = {"kind": "pmw", "updates": 50}
SELECTIONS: list[Fields] = [{"kind": "noisy_max", "answers": 5}, {"kind": "exponential", "answers": 5}]


def name_kind(value: object) -> str | None:
    return value["kind"] if isinstance(value, dict) else None


def error(asked: StreamSpec, facts: SourceFacts) -> float:
    return promised_alpha(plans.choose_calibration(asked, facts))


@pytest.mark.parametrize(
    ("mechanism", "facts", "alpha"),
    [
        (ABOVE, FINE, 40.0),
        (NUMERIC, FINE, 100.0),
        (GAPS, FINE, 100.0),
        (LAPLACE, FINE, 10.0),
        *[(one, FINE, 25.0) for one in SELECTIONS],
        (RESPONSE, SourceFacts(), 0.05),
        (LAZY, TABLE, 9.5),
        (PMW, TABLE, 3000.0),
    ],
    ids=name_kind,
)
def test_needed_epsilon_is_least_that_keeps_error(mechanism: Fields, facts: SourceFacts, alpha: float) -> None:
    found = needed_epsilon(parse_spec(**mechanism), facts, alpha)
    assert error(parse_spec(**mechanism, epsilon=found), facts) <= alpha
    assert error(parse_spec(**mechanism, epsilon=found / (1.0 + TOLERANCE) / SLACK), facts) > alpha


@given(alpha=st.floats(0.05, 1e5), start=st.floats(1e-4, 100.0), delta=st.sampled_from([0.0, 1e-6]))
@settings(deadline=None, max_examples=10)
def test_needed_epsilon_is_independent_of_start_of_search(alpha: float, start: float, delta: float) -> None:
    found = needed_epsilon(parse_spec(**LAPLACE, delta=delta), FINE, alpha)
    again = needed_epsilon(parse_spec(**LAPLACE, epsilon=start, delta=delta), FINE, alpha)
    assert again == pytest.approx(found, rel=2 * TOLERANCE)


def test_needed_epsilon_of_one_laplace_answer_is_formula() -> None:
    one = parse_spec("laplace", answers=1, expected_queries=1)
    found = needed_epsilon(one, SourceFacts(sensitivity_steps=2**20, grid=2.0**-20), 10.0)
    assert found == pytest.approx(math.log(1 / 0.05) / 10.0, rel=2 * TOLERANCE)


def test_needed_epsilon_of_huge_error_is_least_epsilon() -> None:
    assert needed_epsilon(parse_spec(**LAPLACE), FINE, 1e12) == LEAST_EPSILON


def test_needed_epsilon_refuses_error_below_one_grid_step() -> None:
    asked = parse_spec("sparse_project", projections=64)
    with pytest.raises(PlanError, match=f"even epsilon = {LARGEST_EPSILON:g} leaves an error of"):
        needed_epsilon(asked, TABLE, 0.01)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
def test_calculators_refuse_nonpositive_error(alpha: float) -> None:
    for calculator in (needed_epsilon, largest_cutoff, needed_rows):
        with pytest.raises(PlanError, match="must be a positive finite number"):
            calculator(parse_spec(**LAPLACE), FINE, alpha)


def test_calculators_give_reason_if_no_plan_exists() -> None:
    with pytest.raises(PlanError, match="open the stream on a table"):
        needed_epsilon(parse_spec(**PMW), SourceFacts(rows=1000), 10.0)
    with pytest.raises(PlanError, match="open the stream on a table"):
        needed_rows(parse_spec(**PMW), SourceFacts(), 0.1)


@pytest.mark.parametrize(("mechanism", "alpha"), [(ABOVE, 100.0), (NUMERIC, 150.0), (LAPLACE, 60.0)])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_largest_cutoff_keeps_error_and_is_maximal(mechanism: Fields, alpha: float, delta: float) -> None:
    asked = parse_spec(**mechanism, delta=delta)
    field = "answers" if mechanism["kind"] == "laplace" else "cutoff"

    def at(cutoff: int) -> float:
        return error(parse_spec(**{**mechanism, field: cutoff}, delta=delta), FINE)

    found = largest_cutoff(asked, FINE, alpha)
    assert 1 < found < 1000
    assert at(found) <= alpha < at(found + 1)


def test_largest_cutoff_refusal_gives_error_of_one_answer() -> None:
    with pytest.raises(PlanError, match="a single charged answer already has an error of"):
        largest_cutoff(parse_spec(**LAPLACE, epsilon=0.01), FINE, 1.0)


def test_largest_cutoff_is_limited_to_answers_of_a_stream() -> None:
    assert largest_cutoff(parse_spec(**LAPLACE, epsilon=1000.0), FINE, 1e6) == MAX_ANSWERS


@pytest.mark.parametrize("mechanism", [HISTOGRAM, PMW, RESPONSE], ids=name_kind)
def test_largest_cutoff_refuses_mechanism_without_single_charges(mechanism: Fields) -> None:
    with pytest.raises(PlanError, match="does not charge single answers"):
        largest_cutoff(parse_spec(**mechanism), TABLE, 10.0)


@pytest.mark.parametrize("fraction", [0.5, 0.01, 0.0001])
def test_needed_rows_of_fixed_error_is_error_over_fraction(fraction: float) -> None:
    found = needed_rows(parse_spec(**LAZY), TABLE, fraction)
    least = error(parse_spec(**LAZY), TABLE) / fraction
    assert least <= found <= least * (1.0 + 2 * TOLERANCE) + 1


@pytest.mark.parametrize(("mechanism", "fraction"), [(PMW, 0.4), (RESPONSE, 0.02)], ids=name_kind)
def test_needed_rows_is_least_that_keeps_fraction(mechanism: Fields, fraction: float) -> None:
    def at(rows: int) -> float:
        if mechanism is RESPONSE:
            return error(parse_spec(**mechanism, expected_queries=rows), TABLE)
        return error(parse_spec(**mechanism), SourceFacts(universe=256, rows=rows)) / rows

    found = needed_rows(parse_spec(**mechanism), TABLE, fraction)
    assert at(found) <= fraction < at(math.floor(found / (1.0 + TOLERANCE) / SLACK))


def test_needed_rows_refuses_fraction_that_no_table_reaches() -> None:
    with pytest.raises(PlanError, match="no table of up to 10"):
        needed_rows(parse_spec(**LAPLACE, epsilon=1e-6), FINE, 1e-9)
