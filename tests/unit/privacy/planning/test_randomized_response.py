"""Randomized response: plans, the unbiased estimator, and intervals that hold as often as stated."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from schemas import ReleaseCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.planning.response_plans import (
    binomial_interval,
    estimate_shares,
    hoeffding_alpha,
    plan_calibrations,
    response_law,
    share_alpha,
)
from tests.builders import parse_spec


def plans(
    *, epsilon: float = 1.0, delta: float = 0.0, contributions: int = 1, events: int = 1000, categories: int = 3
) -> dict[str, ReleaseCalibration]:
    named = [str(number) for number in range(categories)]
    spec = parse_spec(
        "randomized_response", categories=named, epsilon=epsilon, delta=delta, expected_queries=events
    )
    return {one.method: one for one in plan_calibrations(spec, SourceFacts(records_per_person=contributions))}


@given(
    epsilon=st.floats(min_value=1e-2, max_value=100.0),
    contributions=st.integers(1, 5000),
    delta=st.sampled_from([0.0, 1e-6]),
)
def test_plan_divides_epsilon_between_events_of_a_person(epsilon: float, contributions: int, delta: float) -> None:
    for one in plans(epsilon=epsilon, contributions=contributions, delta=delta).values():
        assert (one.parts, one.cutoff) == (contributions, 0)
        if one.delta == 0.0:
            assert Fraction(one.epsilon_part) * contributions <= Fraction(epsilon)
        else:
            assert optimal_delta(one.epsilon_part, contributions, epsilon) <= delta == one.delta


def test_textbook_has_hoeffdings_error_and_plan_no_larger() -> None:
    found = plans(epsilon=math.log(3), categories=2, events=10000)
    assert found["textbook"].alpha == pytest.approx(2 * math.sqrt(math.log(4 / 0.05) / 20000), rel=1e-9)
    assert found["basic"].alpha <= found["textbook"].alpha * (1 + 1e-7)
    many = plans(epsilon=1.0, categories=1000, events=10**6)
    assert many["basic"].alpha < 0.2 * many["textbook"].alpha


def test_plan_with_least_budget_still_distinguishes_categories() -> None:
    found = plans(epsilon=1e-6, contributions=10**6, categories=4096)
    assert math.isfinite(found["basic"].alpha)
    law = response_law(Fraction(found["basic"].epsilon_part), 4096)
    assert law.slope == pytest.approx(1e-12 / 4096, rel=1e-6)


def test_optimal_composition_has_less_error_for_many_events() -> None:
    found = plans(contributions=500, delta=1e-6)
    assert list(found) == ["textbook", "basic", "optimal"]
    assert found["optimal"].alpha < 0.2 * found["basic"].alpha


def test_plan_refuses_other_mechanism() -> None:
    with pytest.raises(TypeError, match="laplace is not randomized response"):
        plan_calibrations(parse_spec("laplace"), SourceFacts())


@pytest.mark.parametrize(("events", "categories", "epsilon"), [(30, 2, 1.0), (30, 4, 3.0), (200, 3, 0.5)])
def test_share_alpha_holds_for_all_true_shares(events: int, categories: int, epsilon: float) -> None:
    law = response_law(Fraction(epsilon), categories)
    own, other = law.probabilities
    beta = 0.2
    reach = share_alpha(law, events, beta) * law.slope * events
    for holders in range(events + 1):
        # A category's count includes people who have the category and report it, and people who do not have it but report it.
        chances = np.convolve(
            binom.pmf(range(holders + 1), holders, own),
            binom.pmf(range(events - holders + 1), events - holders, other),
        )
        mean = holders * own + (events - holders) * other
        missed = chances[np.abs(np.arange(events + 1) - mean) > reach * (1 + 1e-12)].sum()
        assert missed <= beta / categories


@given(
    epsilon=st.floats(min_value=1e-3, max_value=20.0),
    categories=st.integers(2, 4096),
    events=st.integers(1, 10**12),
    beta=st.floats(min_value=1e-9, max_value=0.5),
)
def test_share_alpha_is_at_most_hoeffdings(epsilon: float, categories: int, events: int, beta: float) -> None:
    law = response_law(Fraction(epsilon), categories)
    assert 0.0 < share_alpha(law, events, beta) <= hoeffding_alpha(law, events, beta) * (1 + 1e-7)


def test_estimate_shares_of_expected_counts_is_exact() -> None:
    law = response_law(Fraction(math.log(3)), 2)
    # 300 of 1000 say yes: 300·3/4 + 700·1/4 = 400 answers.
    yes, no = estimate_shares([400, 600], ["yes", "no"], law, 0.05)
    assert (yes.estimate, no.estimate) == pytest.approx((0.3, 0.7), abs=1e-12)
    assert yes.low < 0.3 < yes.high
    # The note's formula (p̂ − (1 − q)/2)/q with q = 1/2.
    assert yes.estimate == pytest.approx((0.4 - 0.25) / 0.5, abs=1e-12)


@given(counts=st.lists(st.integers(0, 1000), min_size=2, max_size=6).filter(any))
def test_estimate_shares_add_up_to_one_within_intervals(counts: list[int]) -> None:
    law = response_law(Fraction(1), len(counts))
    shares = estimate_shares(counts, [str(number) for number in range(len(counts))], law, 0.05)
    assert sum(share.estimate for share in shares) == pytest.approx(1.0, abs=1e-9)
    for share in shares:
        assert 0.0 <= share.low <= min(max(share.estimate, 0.0), 1.0) <= share.high <= 1.0
        assert share.deviation > 0.0


def coverage(events: int, holders: int, own: float, other: float, beta: float) -> float:
    """Return the probability that the interval contains the mean, over the noise of all answers."""
    chances = np.convolve(
        binom.pmf(range(holders + 1), holders, own),
        binom.pmf(range(events - holders + 1), events - holders, other),
    )
    mean = (holders * own + (events - holders) * other) / events
    inside = 0.0
    for count, chance in enumerate(chances):
        low, high = binomial_interval(count, events, beta)
        inside += float(chance) * (low <= mean <= high)
    return inside


@pytest.mark.parametrize("events", [1, 2, 7, 40])
@pytest.mark.parametrize("beta", [0.5, 0.05])
def test_share_intervals_hold_for_every_composition(events: int, beta: float) -> None:
    for holders, (own, other) in product(
        range(events + 1), [(0.75, 0.25), (0.999, 0.0005), (0.24, 0.0001), (0.02, 0.0001), (0.6, 0.2)]
    ):
        assert coverage(events, holders, own, other, beta) >= 1.0 - beta - 1e-12
