"""A plan never spends more than ε, is never worse than the textbook's, and is computed once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import SparseVectorCalibration, StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import exact_alpha, failure_bound, noise_rates, run_layout
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.noise.samplers import sampler
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import TIE_FACTOR, choose_calibration, sensitivity_steps
from tests.builders import parse_spec
from tests.unit.privacy.planning.test_numeric import all_plans as plans_with_numbers

FINE = 1024
SEARCH_TOLERANCE = 1.003
"""A little more than twice the loss that the search and the tie rule may each cause."""


def choose_plan(
    cutoff: int,
    queries: int,
    *,
    epsilon: float = 1.0,
    delta: float = 0.0,
    beta: float = 0.05,
    monotone: bool = False,
    steps: int = FINE,
    calibration: Literal["best", "textbook"] = "best",
) -> SparseVectorCalibration:
    """Return a plan for queries of sensitivity 1 on a grid of 1/steps."""
    asked = parse_spec(
        cutoff=cutoff,
        monotone=monotone,
        epsilon=epsilon,
        delta=delta,
        expected_queries=queries,
        beta=beta,
        calibration=calibration,
    )
    found = choose_calibration(asked, SourceFacts(sensitivity_steps=steps, grid=1.0 / steps))
    assert isinstance(found, SparseVectorCalibration)
    return found


def all_plans(cutoff: int, queries: int, **fields: Any) -> dict[str, SparseVectorCalibration]:
    """Return all candidates by method."""
    return plans_with_numbers(cutoff, queries, "none", **fields)


@pytest.mark.parametrize(
    ("cutoff", "textbook", "one_sided", "one_sided_monotone"),
    [(1, 84.8, 19.1, 11.9), (20, 2175.0, 241.0, 129.5)],
)
def test_plan_has_check_values(cutoff: int, textbook: float, one_sided: float, one_sided_monotone: float) -> None:
    found = all_plans(cutoff, 1000)
    assert found["textbook"].alpha == pytest.approx(textbook, rel=0.005)
    assert found["one_sided"].alpha == pytest.approx(one_sided, rel=0.005)
    monotone = all_plans(cutoff, 1000, monotone=True)["one_sided"]
    assert monotone.alpha == pytest.approx(one_sided_monotone, rel=0.005)


def test_two_sided_plans_have_check_values_at_cutoff_20() -> None:
    found = all_plans(20, 1000)
    assert found["two_sided"].alpha == pytest.approx(402.0, rel=0.005)
    assert found["two_sided_shifted"].alpha == pytest.approx(347.4, rel=1e-3)


def test_textbook_exact_error_at_cutoff_1_is_below_half_its_theorems() -> None:
    assert exact_alpha(all_plans(1, 1000)["textbook"]) == pytest.approx(37.7, rel=0.005)


@pytest.mark.parametrize(("cutoff", "queries"), [(1, 1000), (20, 1000)])
def test_plan_on_coarse_grid_errs_by_one_more_step(cutoff: int, queries: int) -> None:
    coarse, fine = choose_plan(cutoff, queries, steps=1), choose_plan(cutoff, queries)
    assert fine.alpha <= coarse.alpha <= fine.alpha + 1.5


def test_plan_uses_rounds_at_large_cutoffs_with_delta() -> None:
    assert choose_plan(20, 10_000, delta=1e-6).method == "one_sided"
    assert choose_plan(200, 10_000, delta=1e-6).method == "one_sided_rounds"
    assert choose_plan(200, 10_000).method == "one_sided"


def test_textbook_uses_sigma_for_delta_only_if_better_and_sound() -> None:
    delta = 1e-6
    turning_point = 8.0 * math.log(1.0 / delta)
    below = choose_plan(100, 1000, delta=delta, calibration="textbook")
    above = choose_plan(200, 1000, delta=delta, calibration="textbook")
    assert 100 < turning_point < 200
    assert below.epsilon_threshold == pytest.approx(1.0 / 200)
    assert below.delta == 0.0
    assert above.epsilon_threshold == pytest.approx(1.0 / math.sqrt(32.0 * 200 * math.log(1e6)))
    assert above.delta == delta
    logs = math.log(1000) + math.log(2 * 200 / 0.05)
    assert above.alpha == pytest.approx(math.sqrt(512.0 * 200 * math.log(1e6)) * logs)


def test_textbook_falls_back_to_pure_if_derivation_is_false() -> None:
    # At ε = 100 and δ = 0.1 the claimed σ = √(32 c ln(1/δ))/ε is smaller than composition allows.
    cutoff, epsilon, delta = 2000, 100.0, 0.1
    claimed = 2.0 * epsilon / math.sqrt(32.0 * cutoff * math.log(1.0 / delta))
    assert optimal_delta(claimed, cutoff, epsilon) > delta
    fallen_back = choose_plan(cutoff, 1000, epsilon=epsilon, delta=delta, calibration="textbook")
    assert 2.0 * fallen_back.epsilon_threshold == pytest.approx(epsilon / cutoff)
    assert fallen_back.delta == 0.0


def test_textbook_ignores_promise_of_monotone_queries() -> None:
    promised = choose_plan(3, 1000, monotone=True, calibration="textbook")
    assert promised == choose_plan(3, 1000, calibration="textbook")
    assert noise_rates(promised)[1] == pytest.approx(noise_rates(promised)[0] / 2.0)


def test_textbook_error_on_coarse_grid_is_at_least_exact_error() -> None:
    coarse = choose_plan(3, 10, epsilon=1000.0, steps=1, calibration="textbook")
    assert coarse.alpha == exact_alpha(coarse) == 1.0


problems = st.fixed_dictionaries(
    {
        "cutoff": st.integers(1, 3000),
        "queries": st.integers(1, 10**9),
        "epsilon": st.floats(0.01, 30.0),
        "delta": st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]),
        "beta": st.floats(1e-9, 0.5),
        "monotone": st.booleans(),
        "steps": st.sampled_from([1, 8, 1024, 2**20]),
    }
)


@given(problem=problems)
@settings(deadline=None, max_examples=10)
def test_candidates_stay_within_epsilon_and_delta(problem: dict[str, float]) -> None:
    for one in all_plans(**problem).values():  # type: ignore[arg-type]
        per_round = Fraction(one.epsilon_threshold) + Fraction(one.epsilon_query)
        rounds = one.cutoff if one.fresh_threshold else 1
        if one.delta == 0.0:
            assert per_round * rounds <= Fraction(one.epsilon)
        else:
            assert one.delta == problem["delta"]
            upwards = math.nextafter(float(per_round), math.inf)
            assert optimal_delta(upwards, rounds, one.epsilon) <= one.delta * (1.0 + 1e-9)


BEND_BETWEEN_NODES = {
    "cutoff": 1385,
    "queries": 6057,
    "epsilon": 0.41271661666081233,
    "delta": 1e-09,
    "beta": 0.18393493685872858,
    "monotone": True,
    "steps": 2**20,
}
"""A problem in which the rarer of the two failures changes in the middle of a block of the finer division."""


@given(problem=problems)
@example(problem=BEND_BETWEEN_NODES)
@settings(deadline=None, max_examples=10)
def test_candidates_keep_error_with_probability_1_minus_beta(problem: dict[str, float]) -> None:
    for one in all_plans(**problem).values():  # type: ignore[arg-type]
        steps = math.floor(one.alpha / one.grid)
        finer = failure_bound(run_layout(one), steps, one.shift, blocks=8192, tail=1e-9 * one.beta / one.cutoff)
        assert finer <= one.beta


def test_failure_bound_hardly_depends_on_cut_of_noise() -> None:
    one = all_plans(**BEND_BETWEEN_NODES)["one_sided"]  # type: ignore[arg-type]
    steps = math.floor(one.alpha / one.grid)
    tail = 1e-9 * one.beta / one.cutoff
    bounds = [
        failure_bound(run_layout(one), steps, one.shift, blocks=blocks, tail=tail)
        for blocks in range(1000, 5000, 77)
    ]
    assert max(bounds) <= min(bounds) * (1.0 + 3e-7)


@given(problem=problems)
@settings(deadline=None, max_examples=8)
def test_plan_is_at_least_as_good_as_every_candidate(
    problem: dict[str, float],
) -> None:
    """The plan is no worse than any candidate, nor than the textbook's exact error."""
    chosen = exact_alpha(choose_plan(**problem))  # type: ignore[arg-type]
    found = all_plans(**problem)  # type: ignore[arg-type]
    assert chosen <= exact_alpha(found["textbook"])
    assert all(chosen <= TIE_FACTOR * one.alpha * (1.0 + 1e-5) for one in found.values())


@given(problem=problems, factor=st.floats(1.1, 4.0))
@settings(deadline=None, max_examples=6)
def test_plan_error_falls_with_epsilon(problem: dict[str, float], factor: float) -> None:
    richer = {**problem, "epsilon": problem["epsilon"] * factor}
    before, after = exact_alpha(choose_plan(**problem)), exact_alpha(choose_plan(**richer))  # type: ignore[arg-type]
    assert after <= before * SEARCH_TOLERANCE + 1.0 / problem["steps"]


@given(problem=problems, factor=st.integers(2, 10), what=st.sampled_from(["cutoff", "queries"]))
@settings(deadline=None, max_examples=6)
def test_plan_error_grows_with_tops_and_queries(problem: dict[str, float], factor: int, what: str) -> None:
    harder = {**problem, what: problem[what] * factor}
    before, after = exact_alpha(choose_plan(**problem)), exact_alpha(choose_plan(**harder))  # type: ignore[arg-type]
    assert before <= after * SEARCH_TOLERANCE + 1.0 / problem["steps"]


@given(
    sensitivity=st.floats(1e-6, 1e6),
    grid=st.floats(1e-9, 1e3),
)
def test_sensitivity_steps_is_least_covering_integer(sensitivity: float, grid: float) -> None:
    steps = sensitivity_steps(sensitivity, grid)
    exact_sensitivity, exact_grid = Fraction(repr(sensitivity)), Fraction(repr(grid))
    assert (steps - 1) * exact_grid < exact_sensitivity <= steps * exact_grid


def test_sensitivity_steps_of_whole_decimals_is_exact() -> None:
    pairs = [(0.05, 0.01), (0.1, 0.1), (1.0, 0.1), (0.3, 0.1), (2.1, 0.7), (0.007, 0.001)]
    assert [sensitivity_steps(one, grid) for one, grid in pairs] == [5, 1, 10, 3, 3, 7]


@pytest.mark.parametrize(("sensitivity", "grid"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_sensitivity_steps_refuses_nonpositive_numbers(sensitivity: float, grid: float) -> None:
    with pytest.raises(PlanError, match="positive and finite"):
        sensitivity_steps(sensitivity, grid)


def test_sensitivity_steps_refuses_too_many_steps() -> None:
    with pytest.raises(PlanError, match="coarser grid"):
        sensitivity_steps(1e15, 1e-9)


def test_plan_refuses_noise_too_wide_for_grid_with_factor() -> None:
    with pytest.raises(PlanError, match="times coarser"):
        choose_plan(10**6, 1000, epsilon=1e-6, steps=2**30)
    with pytest.raises(PlanError, match="times coarser"):
        choose_plan(10**6, 1000, epsilon=1e-6, steps=2**30, calibration="textbook")


def test_plan_omits_methods_whose_noise_does_not_fit() -> None:
    found = all_plans(10**6, 10**6, epsilon=1.0, delta=1e-6, steps=2**30)
    assert set(found) == {"textbook", "one_sided_rounds"}


@given(cutoff=st.integers(1, 10**6), epsilon=st.floats(1e-6, 1.0), steps=st.sampled_from([1, 2**10, 2**20, 2**30]))
@settings(deadline=None, max_examples=10)
def test_plan_noise_can_be_drawn_by_sampler(cutoff: int, epsilon: float, steps: int) -> None:
    try:
        found = all_plans(cutoff, 1000, epsilon=epsilon, steps=steps)
    except PlanError:
        return
    for one in found.values():
        width = (1 if one.fresh_threshold else one.cutoff) * 2 * one.sensitivity_steps
        sampler(one.noise, Fraction(one.epsilon_query) / width)
        sampler(one.noise, Fraction(one.epsilon_threshold) / one.sensitivity_steps)


def spec(number: int, **fields: Any) -> StreamSpec:
    return parse_spec(
        stream=f"stream-{number}",
        threshold=float(number),
        cutoff=7,
        epsilon=0.77,
        expected_queries=5000,
        **fields,
    )


def test_plan_is_computed_once_for_streams_that_differ_in_name() -> None:
    """Ten thousand streams that differ in name and threshold cost one plan."""
    facts = SourceFacts(sensitivity_steps=FINE, grid=1.0 / FINE)
    assert {id(choose_calibration(spec(number), facts)) for number in range(10_000)} == {
        id(choose_calibration(spec(0), facts))
    }


def test_plan_uses_textbook_if_stream_asks() -> None:
    assert choose_calibration(spec(1, calibration="textbook"), SourceFacts()).method == "textbook"
