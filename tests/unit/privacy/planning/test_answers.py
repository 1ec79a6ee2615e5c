"""Plans of laplace, noisy_max and exponential divide the budget correctly, and have the errors of the theorems."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import AnswersCalibration
from stream.privacy.accuracy.rate_intervals import ratio_interval
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import realised_cost, stream_cost
from stream.privacy.composition.gaussian_losses import gaussian_delta
from stream.privacy.composition.losses import is_pure, losses, promised_answers
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.planning.answer_plans import (
    alpha_for,
    choice_alpha,
    plan_calibrations,
    textbook_epsilon,
    vector_sensitivity,
)
from stream.privacy.planning.noise_layouts import PlanError
from tests.builders import parse_spec

FINE = SourceFacts(sensitivity_steps=1 << 20, grid=2.0**-20)
KINDS = ("laplace", "noisy_max", "exponential")
spec = partial(parse_spec, expected_queries=10**6)


def plans(kind: str, facts: SourceFacts = FINE, **fields: Any) -> dict[str, AnswersCalibration]:
    return {one.method: one for one in plan_calibrations(spec(kind, **fields), facts)}


@pytest.mark.parametrize("kind", KINDS)
@given(
    epsilon=st.floats(min_value=1e-3, max_value=100.0),
    answers=st.integers(1, 3000),
    delta=st.sampled_from([0.0, 1e-9, 1e-2]),
)
@settings(deadline=None)
def test_plan_spends_no_more_than_epsilon_and_delta(kind: str, epsilon: float, answers: int, delta: float) -> None:
    for one in plans(kind, epsilon=epsilon, answers=answers, delta=delta).values():
        assert one.cutoff == answers
        if one.delta == 0.0:
            assert Fraction(one.epsilon_answer) * answers <= Fraction(epsilon)
        elif one.method == "gaussian":
            assert gaussian_delta(losses(one).gaussian, Fraction(epsilon)) <= delta == one.delta
        else:
            assert optimal_delta(one.epsilon_answer, answers, epsilon) <= delta == one.delta


@pytest.mark.parametrize("kind", KINDS)
def test_optimal_composition_has_less_error_for_many_answers(kind: str) -> None:
    assert list(plans(kind, answers=1000)) == ["textbook", "basic"]
    found = plans(kind, answers=1000, delta=1e-6)
    assert list(found) == ["textbook", "basic", "optimal", *(["gaussian"] if kind == "laplace" else [])]
    assert found["optimal"].alpha < 0.2 * found["basic"].alpha
    assert found["optimal"].alpha < 0.5 * found["textbook"].alpha


def test_gaussian_plan_has_less_error_for_many_answers_and_keeps_delta() -> None:
    found = plans("laplace", answers=1000, delta=1e-6)
    one = found["gaussian"]
    assert one.alpha < 0.45 * found["optimal"].alpha
    assert plans("laplace", answers=2, delta=1e-6)["gaussian"].alpha > plans("laplace", answers=2)["basic"].alpha
    parts = losses(one)
    assert (float(parts.total), one.epsilon_answer, is_pure(one)) == (0.0, 0.0, False)
    assert 0.999e-6 <= gaussian_delta(parts.gaussian, Fraction(one.epsilon)) <= one.delta == 1e-6
    # Each answer is within its error, except with its share of β.
    failure = -math.expm1(math.log1p(-one.beta) / promised_answers(one))
    far = one.alpha / FINE.grid / FINE.sensitivity_steps / one.deviation
    assert math.erfc(far / math.sqrt(2)) == pytest.approx(failure, rel=1e-4)
    assert stream_cost(one, "zcdp").rho == math.ceil(parts.rho * 10**12)
    assert (realised_cost(one, "zcdp", 1, 1).unbounded, realised_cost(one, "pure", 1, 1).delta > 0) == (1, True)


def test_gaussian_vector_error_grows_with_root_of_values() -> None:
    """Laplace noise of a vector grows in proportion to the number of values."""
    found = plans("laplace", dimensions=16, answers=10, delta=1e-6)
    single = plans("laplace", answers=10, delta=1e-6)
    assert found["basic"].alpha / single["basic"].alpha > 16
    assert 4 < found["gaussian"].alpha / single["gaussian"].alpha < 6


def test_textbook_epsilon_is_basic_if_composition_is_worse_or_false() -> None:
    assert textbook_epsilon(1.0, 1e-6, 20) == pytest.approx((1 / 20, 0.0))
    assert textbook_epsilon(1.0, 1e-6, 1000) == pytest.approx((1 / math.sqrt(8000 * math.log(1e6)), 1e-6))
    assert textbook_epsilon(100.0, 0.1, 2000) == pytest.approx((100 / 2000, 0.0))


def test_textbook_laplace_has_error_of_lecture_notes() -> None:
    # ln(k/β)·Δ/ε for k answers that share ε: with ε = 1 and k = 100, 100·ln(100/0.05).
    found = plans("laplace", answers=100)
    assert found["textbook"].alpha == pytest.approx(100 * math.log(100 / 0.05), rel=1e-12)
    assert 0.99 < found["basic"].alpha / found["textbook"].alpha < 1.0


def test_textbook_exponential_has_error_of_utility_theorem() -> None:
    theorem = 2.0 * (math.log(256) + math.log(1 / 0.05))
    assert plans("exponential")["textbook"].alpha == pytest.approx(theorem, rel=1e-12)
    assert plans("exponential")["basic"].alpha < theorem
    assert plans("exponential", monotone=True)["textbook"].alpha == pytest.approx(theorem / 2, rel=1e-12)


def test_noisy_max_has_less_error_than_exponential_and_textbook() -> None:
    maximum, exponential = plans("noisy_max"), plans("exponential")
    assert maximum["basic"].alpha < exponential["basic"].alpha < maximum["textbook"].alpha
    assert plans("noisy_max", monotone=True)["basic"].alpha == pytest.approx(maximum["basic"].alpha / 2, rel=1e-6)


def test_textbook_error_on_coarse_grid_is_exact_error() -> None:
    found = plans("laplace", SourceFacts(), answers=10)
    assert found["textbook"].alpha == found["basic"].alpha == 53.0 > 10 * math.log(10 / 0.05)


def test_vector_sensitivity_adds_up_except_for_disjoint_groups() -> None:
    values, rows = SourceFacts(sensitivity_steps=3), SourceFacts(disjoint=True)
    assert vector_sensitivity(3, 5, values) == 15
    assert vector_sensitivity(1, 5, rows) == 1
    assert vector_sensitivity(1, 5, SourceFacts(disjoint=True, neighbors="replace")) == 2
    assert vector_sensitivity(1, 1, SourceFacts(disjoint=True, neighbors="replace")) == 1
    wide, narrow = plans("laplace", values, dimensions=5), plans("laplace", rows, dimensions=5)
    assert wide["basic"].alpha > 10 * narrow["basic"].alpha
    assert wide["basic"].alpha == alpha_for(wide["basic"], 15, 5)


def test_alpha_for_query_is_proportional_to_its_sensitivity() -> None:
    one = plans("laplace", answers=10)["basic"]
    own = alpha_for(one, FINE.sensitivity_steps, 1)
    assert own == one.alpha
    assert alpha_for(one, 7 * FINE.sensitivity_steps, 1) == pytest.approx(7 * own, rel=1e-6)
    assert alpha_for(one, FINE.sensitivity_steps, 2) > own


@pytest.mark.parametrize("kind", ["noisy_max", "exponential"])
def test_choice_alpha_is_smaller_for_fewer_candidates(kind: Any) -> None:
    one = plans(kind, answers=3)["basic"]
    errors = [choice_alpha(one, kind, options) for options in (1, 2, 10, 256)]
    assert errors[0] == 0.0
    assert errors == sorted(errors)
    assert errors[-1] == one.alpha


def test_plan_alpha_counts_expected_queries_only() -> None:
    """Answers that are not expected do not widen the promise."""
    few, many = plans("laplace", answers=100, expected_queries=1), plans("laplace", answers=100)
    assert few["basic"].epsilon_answer == many["basic"].epsilon_answer
    assert few["basic"].alpha < many["basic"].alpha


@pytest.mark.parametrize("kind", KINDS)
def test_plan_refuses_noise_too_wide_for_integers_with_remedy(kind: str) -> None:
    with pytest.raises(PlanError, match=r"raise epsilon, lower answers, or use a grid .* times coarser"):
        plans(kind, SourceFacts(sensitivity_steps=1 << 45), epsilon=0.1)


def test_plan_refuses_mechanism_that_does_not_charge_each_answer() -> None:
    with pytest.raises(TypeError, match="above_threshold does not charge each answer"):
        plan_calibrations(spec("above_threshold"), FINE)


numbers = st.floats(min_value=-1000.0, max_value=1000.0)
errors = st.floats(min_value=0.0, max_value=100.0)


@given(
    quotient=st.floats(min_value=-3.0, max_value=5.0),
    divisor=st.integers(1, 1000),
    alphas=st.tuples(errors, errors),
    parts=st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)),
)
def test_ratio_interval_holds_if_both_numbers_keep_their_alpha(
    quotient: float, divisor: int, alphas: tuple[float, float], parts: tuple[float, float]
) -> None:
    top = quotient * divisor + parts[0] * alphas[0]
    bottom = divisor + parts[1] * alphas[1]
    estimate, alpha = ratio_interval((top, alphas[0]), (bottom, alphas[1]), (-3.0, 5.0))
    assert -3.0 <= estimate <= 5.0
    assert abs(estimate - quotient) <= alpha + 1e-9
    assert alpha <= 8.0


@given(top=numbers, bottom=numbers, alphas=st.tuples(errors, errors))
def test_ratio_interval_stays_in_public_range(top: float, bottom: float, alphas: tuple[float, float]) -> None:
    estimate, alpha = ratio_interval((top, alphas[0]), (bottom, alphas[1]), (0.0, 1.0))
    assert 0.0 <= estimate <= 1.0
    assert 0.0 <= alpha <= 1.0


def test_ratio_interval_is_whole_range_if_denominator_may_be_zero() -> None:
    estimate, alpha = ratio_interval((1.0, 2.0), (-1.0, 5.0), (10.0, 20.0))
    assert (estimate, alpha) == (15.0, 5.0)


@pytest.mark.parametrize("top", [-30.0, 0.0, 84.0, 300.0])
def test_ratio_interval_is_centered_on_range_if_nothing_is_known(top: float) -> None:
    assert ratio_interval((top, 900.0), (1.0, 20.0), (0.0, 84.0)) == (42.0, 42.0)


def test_ratio_interval_keeps_or_clips_uncertain_quotient() -> None:
    """A quotient within the range stays; a known quotient outside is cut to the range's end."""
    assert ratio_interval((30.0, 900.0), (1.0, 20.0), (0.0, 84.0)) == (30.0, 54.0)
    assert ratio_interval((-1.0, 2.0), (10.0, 5.0), (0.0, 84.0)) == (0.0, 0.2)
