"""Plans of NumericSparse spend no more than ε, and their numbers have the promised accuracy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from schemas import AboveThreshold, NumericSparse, SparseVectorCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import exact_alpha, failure_bound, noise_rates, run_layout
from stream.privacy.composition.losses import top_number_rate, top_numbers_failure, tops_epsilon
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, plan_sparse_vectors
from tests.builders import parse_spec

Numbers = Literal["none", "fresh", "gap"]
Integers = NDArray[np.int64]

FINE = 1024
BOTH = pytest.mark.parametrize("numbers", ["fresh", "gap"])


def mechanism(cutoff: int, numbers: Numbers, *, monotone: bool = False) -> AboveThreshold | NumericSparse:
    if numbers == "none":
        return AboveThreshold(kind="above_threshold", threshold=0.0, cutoff=cutoff, monotone=monotone)
    return NumericSparse(kind="numeric_sparse", threshold=0.0, cutoff=cutoff, monotone=monotone, numbers=numbers)


def all_plans(
    cutoff: int,
    queries: int,
    numbers: Numbers,
    *,
    epsilon: float = 1.0,
    delta: float = 0.0,
    beta: float = 0.05,
    monotone: bool = False,
    steps: int = FINE,
    number_error_ratio: float = 1.0,
) -> dict[str, SparseVectorCalibration]:
    """Return all candidates by method, for queries of sensitivity 1 on a grid of 1/steps."""
    found = plan_sparse_vectors(
        mechanism(cutoff, numbers, monotone=monotone),
        epsilon=epsilon,
        delta=delta,
        expected_queries=queries,
        beta=beta,
        sensitivity_steps=steps,
        grid=1.0 / steps,
        number_error_ratio=number_error_ratio,
    )
    return {one.method: one for one in found}


def test_textbook_has_stated_shares_and_error() -> None:
    """The shares are 8/9 and 1/9, the error is the theorem's."""
    one = all_plans(20, 1000, "fresh")["textbook"]
    per_round = 1.0 / 20
    assert one.epsilon_threshold == pytest.approx(per_round * 4 / 9)
    assert one.epsilon_query == pytest.approx(per_round * 4 / 9)
    assert one.epsilon_answer == pytest.approx(per_round / 9)
    # The notes' constants: noise of scales 2c/ε1, twice that, and 2c/ε2 with ε1 = 8ε/9 and ε2 = 2ε/9.
    threshold_rate, query_rate = noise_rates(one)
    scales = [1.0 / (rate * FINE) for rate in (threshold_rate, query_rate, top_number_rate(one))]
    assert scales == pytest.approx([2 * 20 / (8 / 9), 4 * 20 / (8 / 9), 2 * 20 / (2 / 9)])
    assert one.alpha == one.answer_alpha == pytest.approx(9 * 20 * (math.log(1000) + math.log(4 * 20 / 0.05)))


def test_textbook_with_delta_scales_answers_share_by_epsilon() -> None:
    cutoff, epsilon, delta = 400, 0.5, 1e-6
    one = all_plans(cutoff, 10**9, "fresh", epsilon=epsilon, delta=delta)["textbook"]
    root = math.sqrt(512.0)
    sigma = math.sqrt(32.0 * cutoff * math.log(2.0 / delta))
    threshold_rate, query_rate = noise_rates(one)
    assert one.delta == delta
    assert 1.0 / (threshold_rate * FINE) == pytest.approx(sigma / (root / (root + 1) * epsilon))
    assert 1.0 / (query_rate * FINE) == pytest.approx(2.0 * sigma / (root / (root + 1) * epsilon))
    assert 1.0 / (top_number_rate(one) * FINE) == pytest.approx(sigma / (2.0 / (root + 1) * epsilon))
    logs = math.log(10**9) + math.log(4 * cutoff / 0.05)
    stated = math.sqrt(cutoff * math.log(2.0 / delta)) * (root + 1.0) * logs / epsilon
    assert one.alpha == one.answer_alpha == pytest.approx(max(stated, exact_alpha(one)))


def test_textbook_with_delta_states_exact_error() -> None:
    """The theorem's error is too small, so the exact one is stated instead."""
    # Answers with the scale √(32 c ln(2/δ))(√512 + 1)/2ε have more noise than the theorem's α allows for c answers.
    one = all_plans(200, 10_000, "fresh", delta=1e-6)["textbook"]
    stated = math.sqrt(200 * math.log(2e6)) * (math.sqrt(512.0) + 1.0) * (math.log(10_000) + math.log(16_000))
    assert one.delta == 1e-6
    assert top_numbers_failure(top_number_rate(one), 200, round(stated * FINE)) > 0.05
    assert one.alpha == exact_alpha(one) > stated


problems = st.fixed_dictionaries(
    {
        "cutoff": st.integers(1, 2000),
        "queries": st.integers(1, 10**8),
        "numbers": st.sampled_from(["fresh", "gap"]),
        "epsilon": st.floats(0.01, 30.0),
        "delta": st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]),
        "beta": st.floats(1e-9, 0.5),
        "monotone": st.booleans(),
        "steps": st.sampled_from([1, 8, 1024, 2**20]),
        "number_error_ratio": st.sampled_from([0.5, 1.0, 3.0]),
    }
)


@given(problem=problems)
@settings(deadline=None, max_examples=8)
def test_numeric_plan_keeps_epsilon_delta_and_promise(problem: dict[str, float]) -> None:
    for one in all_plans(**problem).values():  # type: ignore[arg-type]
        threshold, query, answer = map(Fraction, (one.epsilon_threshold, one.epsilon_query, one.epsilon_answer))
        parts = threshold + tops_epsilon(threshold, query, answer, monotone=one.monotone)
        rounds = one.cutoff if one.fresh_threshold else 1
        if one.delta == 0.0:
            assert rounds * parts <= Fraction(one.epsilon)
        else:
            upwards = math.nextafter(float(parts), math.inf)
            assert optimal_delta(upwards, rounds, one.epsilon) <= one.delta * (1.0 + 1e-9)
        assert (one.epsilon_answer > 0.0) == (one.numbers == "fresh")
        layout = run_layout(one, one.answer_alpha / one.alpha * (1.0 + 1e-12))
        decided = math.floor(one.alpha / one.grid * (1.0 + 1e-12))
        failure = failure_bound(layout, decided, one.shift, blocks=8192, tail=1e-9 * one.beta / one.cutoff)
        assert failure <= one.beta


@pytest.mark.parametrize(("cutoff", "queries"), [(1, 1000), (20, 1000), (200, 10_000)])
def test_gaps_are_as_accurate_as_decisions_at_almost_no_cost(cutoff: int, queries: int) -> None:
    bare, gaps = all_plans(cutoff, queries, "none"), all_plans(cutoff, queries, "gap")
    for method in ("two_sided", "two_sided_shifted", "one_sided"):
        assert gaps[method].answer_alpha == gaps[method].alpha
        assert bare[method].alpha <= gaps[method].alpha * 1.001
        assert gaps[method].alpha <= bare[method].alpha * 1.005
        assert gaps[method].epsilon_answer == 0.0


@pytest.mark.parametrize("method", ["two_sided", "two_sided_shifted", "one_sided"])
def test_fresh_share_is_near_optimal(method: str) -> None:
    """Compared with the same method with a fixed share of the numbers, α grows on both sides of the planned share."""
    planned = all_plans(20, 1000, "fresh")[method]
    share = planned.epsilon_answer / planned.epsilon
    for factor in (0.8, 1.25):
        other = share * factor
        rest = (1.0 - other) / (1.0 - share)
        moved = planned.model_copy(
            update={
                "epsilon_answer": other,
                "epsilon_threshold": planned.epsilon_threshold * rest,
                "epsilon_query": planned.epsilon_query * rest,
                "shift": round(planned.shift / rest),
            }
        )
        assert exact_alpha(moved) > planned.alpha


def test_answer_ratio_lowers_error_of_decisions() -> None:
    even, wide = (
        all_plans(20, 1000, "fresh")["one_sided"],
        all_plans(20, 1000, "fresh", number_error_ratio=3.0)["one_sided"],
    )
    assert wide.alpha < 0.8 * even.alpha
    assert wide.answer_alpha == pytest.approx(3.0 * wide.alpha, rel=1e-3)
    assert wide.epsilon_answer < even.epsilon_answer


@pytest.mark.parametrize(
    ("cutoff", "monotone", "gap", "fresh", "wide"),
    [
        (1, False, 19.08, 24.34, 21.17),
        (20, False, 241.6, 393.3, 298.3),
        (1, True, 11.88, 12.30, 11.89),
        (20, True, 129.7, 240.9, 156.1),
    ],
)
def test_numeric_plan_has_check_values(cutoff: int, monotone: bool, gap: float, fresh: float, wide: float) -> None:
    def alpha(numbers: Numbers, number_error_ratio: float = 1.0) -> float:
        return all_plans(cutoff, 1000, numbers, monotone=monotone, number_error_ratio=number_error_ratio)[
            "one_sided"
        ].alpha

    assert alpha("gap") == pytest.approx(gap, rel=0.002)
    assert alpha("fresh") == pytest.approx(fresh, rel=0.002)
    assert alpha("fresh", 3.0) == pytest.approx(wide, rel=0.002)


@given(
    parts=st.tuples(*[st.fractions(0, 5)] * 3),
    tops=st.integers(0, 50),
    cutoff=st.integers(1, 50),
    moved=st.fractions(0, 1),
)
def test_monotone_charge_covers_both_directions_for_all_tops(
    parts: tuple[Fraction, Fraction, Fraction], tops: int, cutoff: int, moved: Fraction
) -> None:
    threshold, query, answer = parts
    share = Fraction(min(tops, cutoff), cutoff)
    charge = threshold + share * tops_epsilon(threshold, query, answer, monotone=True)
    assert threshold + share * ((1 - moved) * query + moved * answer) <= charge
    assert share * moved * (query + answer) <= charge
    assert charge <= threshold + share * tops_epsilon(threshold, query, answer, monotone=False)


@BOTH
@pytest.mark.parametrize("cutoff", [1, 20])
def test_numeric_plan_is_one_sided_and_better_than_textbook(cutoff: int, numbers: Numbers) -> None:
    asked = parse_spec("numeric_sparse", cutoff=cutoff, numbers=numbers)
    chosen = choose_calibration(asked, SourceFacts(sensitivity_steps=FINE, grid=1.0 / FINE))
    assert chosen.method == "one_sided"
    assert chosen.alpha < 0.3 * all_plans(cutoff, 1000, numbers)["textbook"].alpha


def test_numeric_plan_refuses_wide_fresh_noise_with_factor() -> None:
    """Fresh noise that is too wide for the grid is refused with the factor that helps."""
    with pytest.raises(PlanError, match="times coarser"):
        all_plans(10**6, 1000, "fresh", epsilon=1e-6, steps=2**30)


@given(rate=st.floats(1e-4, 3.0), tops=st.integers(1, 1000), error=st.integers(0, 10_000))
def test_top_numbers_failure_is_that_of_two_sided_noise(rate: float, tops: int, error: int) -> None:
    q = math.exp(-rate)
    inside = (1 - q) / (1 + q) * (1 + 2 * math.fsum(q**x for x in range(1, min(error, round(60 / rate)) + 1)))
    expected = -math.expm1(tops * math.log(min(1.0, max(inside, 1e-300))))
    assert top_numbers_failure(rate, tops, error) == pytest.approx(expected, rel=1e-6, abs=1e-9 * tops)


RUNS, QUERIES, CUTOFF, BETA, STEPS = 4000, 200, 4, 0.2, 8
FALSE_ALARM = 1e-9


def draw(generator: np.random.Generator, rate: float, *, one_sided: bool) -> Integers:
    stop = -np.expm1(-rate)
    noise = generator.geometric(stop, RUNS) - 1
    return noise if one_sided else noise - (generator.geometric(stop, RUNS) - 1)


def failures(one: SparseVectorCalibration, values: list[int], alpha: int, answer_alpha: int, seed: int) -> int:
    """Return the number of runs over fixed distances from the threshold in which a decision or a number errs by more than allowed."""
    generator = np.random.default_rng(seed)
    threshold_rate, query_rate = noise_rates(one)
    one_sided = one.noise == "one_sided"
    barrier = draw(generator, threshold_rate, one_sided=one_sided) + one.shift
    tops = np.zeros(RUNS, dtype=np.int64)
    failed = np.zeros(RUNS, dtype=bool)
    for value in values:
        compared = value + draw(generator, query_rate, one_sided=one_sided)
        top = compared >= barrier
        if one.numbers == "gap":
            error = compared - barrier - value
        else:
            error = draw(generator, top_number_rate(one), one_sided=False)
        wrong = (top & (value <= -alpha)) | (~top & (value >= alpha)) | (top & (np.abs(error) > answer_alpha))
        failed |= (tops < one.cutoff) & wrong
        tops += top
        if one.fresh_threshold:
            again = draw(generator, threshold_rate, one_sided=one_sided) + one.shift
            barrier = np.where(top, again, barrier)
    return int(failed.sum())


def orders(alpha: int) -> list[list[int]]:
    """Return sequences of values: low then high, just inside the band where a ⊤ by chance has the most noise, and far above."""
    low, far = [-alpha] * (QUERIES - CUTOFF), [100 * alpha] * CUTOFF
    return [[*low, *[alpha] * CUTOFF], [*[1 - alpha] * (QUERIES - CUTOFF), *far], [*low, *far]]


@BOTH
@pytest.mark.parametrize("method", ["textbook", "two_sided", "two_sided_shifted", "one_sided", "one_sided_rounds"])
def test_numeric_runs_fail_at_most_as_often_as_beta(method: str, numbers: Numbers) -> None:
    one = all_plans(CUTOFF, QUERIES, numbers, delta=1e-3, beta=BETA, steps=STEPS)[method]
    alpha = round(exact_alpha(one) * STEPS)
    observed = [failures(one, order, alpha, alpha, seed) for seed, order in enumerate(orders(alpha))]
    assert max(observed) <= binom.ppf(1.0 - FALSE_ALARM / 3, RUNS, BETA)
    assert max(observed) >= (0.4 if one.fresh_threshold else 0.7) * BETA * RUNS


@BOTH
def test_numeric_alpha_is_not_a_fifth_too_large(numbers: Numbers) -> None:
    """With a fifth less error of the numbers, runs fail more often than β."""
    one = all_plans(CUTOFF, QUERIES, numbers, beta=BETA, steps=STEPS)["one_sided"]
    alpha, answer_alpha = round(one.alpha * STEPS), round(0.8 * one.answer_alpha * STEPS)
    observed = [failures(one, order, alpha, answer_alpha, seed) for seed, order in enumerate(orders(alpha))]
    assert max(observed) > binom.ppf(1.0 - FALSE_ALARM, RUNS, BETA)
