"""Prices of questions with a wanted accuracy: the smallest price, in whole parts of a charge, that keeps the accuracy."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import AnswersCalibration, EstimateCalibration
from stream.privacy.accuracy.noise_laws import two_sided_reach
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    PARTS_PER_CHARGE,
    ordinary_charges_left,
    realised_cost,
    stream_cost,
)
from stream.privacy.composition.losses import losses, takes_alpha
from stream.privacy.noise.samplers import sampler
from stream.privacy.planning.answer_plans import alpha_for, plan_calibrations
from stream.privacy.planning.plans import answer_price, choose_calibration, epsilon_of, estimate_price, noise_rate
from tests.builders import parse_spec

TABLE = SourceFacts(grid=1.0, neighbors="add-remove", disjoint=True)
SIZES = (85, 2, 16, 5, 2)


@lru_cache
def answers(count: int, queries: int = 1000, epsilon: float = 1.0, delta: float = 0.0) -> AnswersCalibration:
    spec = parse_spec("laplace", answers=count, expected_queries=queries, epsilon=epsilon, delta=delta)
    listed = plan_calibrations(spec, TABLE)
    return listed[-1]


@lru_cache
def estimate(warm_start: int = 1) -> EstimateCalibration:
    facts = SourceFacts(neighbors="add-remove", universe=math.prod(SIZES), sizes=SIZES)
    found = choose_calibration(parse_spec("pmw", warm_start=warm_start, expected_queries=5000), facts)
    assert isinstance(found, EstimateCalibration)
    return found


def error_of_share(calibration: AnswersCalibration, share: int, width: int, values: int) -> int:
    """Return the error of a share's noise, computed from the stated failure alone."""
    promised = min(calibration.cutoff, calibration.expected_queries)
    failure = 1.0 - (1.0 - calibration.beta) ** min(1.0, share / PARTS_PER_CHARGE / promised)
    return two_sided_reach(calibration.epsilon_answer * share / PARTS_PER_CHARGE / width, values, failure)


@given(
    st.integers(0, 50_000), st.sampled_from([1, 2, 90]), st.sampled_from([1, 10, 200]), st.sampled_from([5, 1000])
)
def test_answer_price_is_least_that_keeps_error(steps: int, width: int, values: int, queries: int) -> None:
    calibration = answers(100, queries)
    price = answer_price(calibration, "pure", width, values, steps)
    assert price.parts == price.noise_parts
    assert price.reach <= steps
    assert error_of_share(calibration, price.noise_parts, width, values) <= steps
    if price.noise_parts > 1:
        assert error_of_share(calibration, price.noise_parts - 1, width, values) > steps


@pytest.mark.parametrize("values", [1, 20])
@pytest.mark.parametrize("width", [1, 2, 1000])
def test_answer_price_of_ordinary_accuracy_is_one_charge(width: int, values: int) -> None:
    calibration = answers(100)
    ordinary = int(alpha_for(calibration, width, values))
    assert answer_price(calibration, "pure", width, values, ordinary).parts <= PARTS_PER_CHARGE
    assert answer_price(calibration, "pure", width, values, ordinary - 1).parts >= PARTS_PER_CHARGE
    assert answer_price(calibration, "pure", width, values, 10 * ordinary).parts < PARTS_PER_CHARGE / 5


def test_answer_price_has_law_that_can_be_drawn() -> None:
    for calibration, width in ((answers(1000, 10**6, 1e-6), 10**4), (answers(1), 1)):
        for steps in (0, 1, 10**6, 10**15, 2**62):
            price = answer_price(calibration, "pure", width, 1, steps)
            assert sampler("two_sided", noise_rate(calibration, price.noise_parts, width)).words > 0


def test_answer_price_is_exact_cost_of_its_noise() -> None:
    calibration = answers(100)
    price = answer_price(calibration, "pure", 7, 1, 123)
    assert noise_rate(calibration, price.noise_parts, 7) * 7 == losses(calibration).loss_per_answer * Fraction(
        price.parts, PARTS_PER_CHARGE
    )


def test_answer_price_under_zcdp_covers_epsilon_and_rho() -> None:
    calibration = answers(10)
    each = losses(calibration).loss_per_answer
    for steps in (0, 1, 5, 20, 50, 200, 1000):
        price = answer_price(calibration, "zcdp", 1, 1, steps)
        assert price.noise_parts <= price.parts
        assert Fraction(price.noise_parts, PARTS_PER_CHARGE) ** 2 <= Fraction(price.parts, PARTS_PER_CHARGE)
        # The noise that the parts of one charge pay for.
        rho = (each * Fraction(price.noise_parts, PARTS_PER_CHARGE)) ** 2 / 2
        assert rho <= each**2 / 2 * Fraction(price.parts, PARTS_PER_CHARGE)


@given(st.integers(0, 10**7))
def test_estimate_price_is_least_that_keeps_error(steps: int) -> None:
    calibration = estimate()
    price = estimate_price(calibration, 1024, 1, steps)
    assert price.parts == price.noise_parts

    def reach(share: int) -> int:
        failure = 0.3 * calibration.beta * min(1.0, share / PARTS_PER_CHARGE / calibration.cutoff)
        return two_sided_reach(
            float(losses(calibration).loss_per_answer) * share / PARTS_PER_CHARGE / 1024, 1, failure
        )

    assert reach(price.noise_parts) == price.reach <= steps
    assert price.noise_parts == 1 or reach(price.noise_parts - 1) > steps


def test_estimate_price_failures_stay_within_part_of_beta() -> None:
    """Numbers whose failures are proportional to their parts of a charge fail together at most as often as c ⊤s may."""
    calibration = estimate()
    for steps in (100_000, 500_000, 3_000_000):
        price = estimate_price(calibration, 1024, 1, steps)
        count = calibration.cutoff * PARTS_PER_CHARGE // price.parts
        rate = float(noise_rate(calibration, price.noise_parts, 1024))
        tail = 2.0 * math.exp(-rate * (price.reach + 1)) / (1.0 + math.exp(-rate))
        assert count * tail <= 0.3 * calibration.beta * (1.0 + 1e-9)


def test_takes_alpha_only_for_pure_streams() -> None:
    assert takes_alpha(estimate())
    assert takes_alpha(answers(100))
    assert not takes_alpha(answers(1000, delta=1e-6))


def test_realised_cost_of_prices_is_their_parts_within_grant() -> None:
    calibration = answers(10)
    each, whole = losses(calibration).loss_per_answer, stream_cost(calibration, "pure")
    for tops, surplus in (
        (1, -PARTS_PER_CHARGE + 1),
        (3, PARTS_PER_CHARGE // 2),
        (1, 9 * PARTS_PER_CHARGE),
        (25, -15 * PARTS_PER_CHARGE),
    ):
        parts = tops * PARTS_PER_CHARGE + surplus
        spent = realised_cost(calibration, "pure", tops, tops, surplus)
        assert spent.loss == min(whole.loss, math.ceil(each * Fraction(parts, PARTS_PER_CHARGE) * EPSILON_UNITS))
        assert spent <= whole
        assert ordinary_charges_left(10, tops, surplus) == (10 * PARTS_PER_CHARGE - parts) // PARTS_PER_CHARGE


def test_epsilon_of_price_is_rounded_up_and_of_rest_down() -> None:
    """Prices are shown rounded up, remaining amounts rounded down."""
    calibration = answers(3)
    each = losses(calibration).loss_per_answer
    for parts in (1, PARTS_PER_CHARGE // 3, PARTS_PER_CHARGE + 1):
        assert epsilon_of(calibration, parts, math.floor) <= each * Fraction(parts, PARTS_PER_CHARGE)
        assert math.ceil(each * Fraction(parts, PARTS_PER_CHARGE) * EPSILON_UNITS) / EPSILON_UNITS == epsilon_of(
            calibration, parts
        )
