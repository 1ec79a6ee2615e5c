"""Composition follows its theorems, none is better than the optimal one, and rounding never makes a cost smaller."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from dp_accounting.pld import common as pld_common
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.composition.gaussian_losses import least_epsilon
from stream.privacy.composition.pure_rounds import (
    optimal_delta,
    optimal_epsilon,
    optimal_round_epsilon,
    round_fraction_down,
    round_fraction_up,
)

epsilons = st.floats(min_value=1e-3, max_value=20.0)


def basic_epsilon(epsilon_round: float, rounds: int) -> float:
    """Return the sum of the rounds' ε."""
    return round_fraction_up(Fraction(epsilon_round) * rounds)


def advanced_epsilon(epsilon_round: float, rounds: int, delta: float) -> float:
    """Return the ε of advanced composition for any ε0 (Dwork, Rothblum & Vadhan 2010)."""
    spread = math.sqrt(2.0 * rounds * -math.log(delta)) * epsilon_round
    return spread + rounds * epsilon_round * math.expm1(epsilon_round)


def zcdp_rho(epsilon_round: float, rounds: int) -> float:
    """Return ρ of pure rounds (Bun & Steinke 2016, Proposition 1.4)."""
    return round_fraction_up(Fraction(epsilon_round) ** 2 * rounds / 2)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the ε that ρ implies at δ (Canonne, Kamath & Steinke 2020, Corollary 13)."""
    return round_fraction_up(least_epsilon(Fraction(rho), Fraction(delta)))


def exponential(of: Fraction, bits: int) -> tuple[int, int]:
    """Return whole numbers below and above 2^bits·e^x for x ≥ 0, by Taylor's series on whole numbers."""
    digits = bits + 64
    low = high = below = above = 1 << digits
    order = 1
    while above > 1 or order < 2 * of:
        below = below * of.numerator // (of.denominator * order)
        above = -(-above * of.numerator // (of.denominator * order))
        low, high, order = low + below, high + above, order + 1
    # From here on each term is at most half of the one before, so all omitted terms together are less than the last one.
    return low >> (digits - bits), -(-(high + above) >> (digits - bits))


def exact_delta(epsilon_round: float, rounds: int, epsilon: float) -> tuple[Fraction, Fraction]:
    """Return two rational bounds of the theorem's sum over (e^{ε0})^{c−l} − e^ε (e^{ε0})^l, computed on whole numbers only."""
    bits, shown = 300, 1500
    (low, high), (least, most) = exponential(Fraction(epsilon_round), bits), exponential(Fraction(epsilon), bits)

    def scaled(one: int, other: int, subtracted: int) -> tuple[int, int]:
        sizes, others = [1], [1]
        for _ in range(rounds):
            sizes.append(sizes[-1] * one)
            others.append(others[-1] * other)
        total = 0
        for l in range(rounds + 1):  # noqa: E741
            gain = (sizes[rounds - l] << bits * (l + 1)) - (subtracted * others[l] << bits * (rounds - l))
            total += math.comb(rounds, l) * max(0, gain)
        return total << shown, ((1 << bits) + other) ** rounds << bits

    over, by = scaled(low, high, most)
    under, unders = scaled(high, low, least)
    return Fraction(over // by, 1 << shown), min(Fraction(1), Fraction(under // unders + 1, 1 << shown))


LEAST = math.ulp(0.0)
"""The least double above 0."""


def is_tight_bound(found: float, between: tuple[Fraction, Fraction]) -> bool:
    """Return whether a δ is at least the exact one, and larger by less than a part in 10^12 plus its own last digit."""
    low, high = between
    assert high <= low * (1 + Fraction(1, 10**20)), "the reference itself is too wide"
    most = float(low * (1 + Fraction(1, 10**12))) if low > Fraction(LEAST) else LEAST
    return Fraction(found) >= high and found <= math.nextafter(most, math.inf)


@given(epsilon_round=epsilons, rounds=st.integers(1, 24), epsilon=epsilons)
@settings(deadline=None, max_examples=25)
def test_optimal_delta_is_theorems_sum_rounded_up(epsilon_round: float, rounds: int, epsilon: float) -> None:
    found = optimal_delta(epsilon_round, rounds, epsilon)
    if Fraction(epsilon_round) * rounds <= Fraction(epsilon):
        assert found == 0.0
    else:
        assert is_tight_bound(found, exact_delta(epsilon_round, rounds, epsilon))


@pytest.mark.parametrize(
    ("epsilon_round", "rounds", "epsilon"),
    [
        (1.0, 1, math.nextafter(1.0, 0.0)),  # one term, whose ends are 10⁻¹⁶ apart
        (0.1, 10, math.nextafter(1.0, 0.0)),
        (1.0, 100, 99.99999999),
        (0.5, 120, 59.999),
        (0.02, 300, 1.0),
        (0.0625, 300, 18.7),  # 1e−88
        (0.25, 500, 124.0),  # 1e−125
        (0.25, 600, 149.9999),  # 1e−152
        (1 / 128, 1200, 9.3),  # below 1e−350: no double is as small
        (2.0, 60, 119.5),
    ],
)
def test_optimal_delta_is_exact_if_tiny_or_near_sum_of_rounds(
    epsilon_round: float, rounds: int, epsilon: float
) -> None:
    """δ is exact if it is tiny, and if the rounds hardly exceed ε."""
    assert is_tight_bound(
        optimal_delta(epsilon_round, rounds, epsilon), exact_delta(epsilon_round, rounds, epsilon)
    )


@pytest.mark.parametrize(("epsilon_round", "rounds", "epsilon"), [(0.5, 3000, 1499.0), (1e-3, 10**5, 50.0)])
def test_optimal_delta_is_above_0_if_anything_may_leak(epsilon_round: float, rounds: int, epsilon: float) -> None:
    assert optimal_delta(epsilon_round, rounds, epsilon) == LEAST


def decimal_delta(epsilon_round: float, rounds: int, epsilon: float) -> Decimal:
    """Return the theorem's sum, in 120 digits."""
    with localcontext(prec=120):
        one = Decimal(epsilon_round)
        total = Decimal(0)
        for l in range(rounds + 1):  # noqa: E741
            gain = (one * (rounds - l)).exp() - (Decimal(epsilon) + one * l).exp()
            total += math.comb(rounds, l) * max(Decimal(0), gain)
        return min(Decimal(1), total / (1 + one.exp()) ** rounds)


@pytest.mark.parametrize(("rounds", "epsilon_round"), [(300, 0.02), (1000, 0.0075), (2000, 0.05)])
def test_optimal_delta_of_long_sum_loses_nothing(rounds: int, epsilon_round: float) -> None:
    exact = decimal_delta(epsilon_round, rounds, 1.0)
    assert exact <= Decimal(optimal_delta(epsilon_round, rounds, 1.0)) <= exact * Decimal("1.000000000001")


@pytest.mark.parametrize(("rounds", "sigma"), [(5, 10.00), (20, 35.12)])
def test_optimal_round_epsilon_has_published_sigma(rounds: int, sigma: float) -> None:
    """The values of σ are those for ε = 1 and δ = 1e-6."""
    assert 2.0 / optimal_round_epsilon(1.0, 1e-6, rounds) == pytest.approx(sigma, abs=0.005)


@given(
    epsilon=epsilons,
    delta=st.floats(min_value=1e-15, max_value=0.4),
    rounds=st.integers(1, 5000),
)
@settings(deadline=None, max_examples=30)
def test_optimal_round_epsilon_is_largest_within_delta(epsilon: float, delta: float, rounds: int) -> None:
    found = optimal_round_epsilon(epsilon, delta, rounds)
    assert optimal_delta(found, rounds, epsilon) <= delta
    assert optimal_delta(found * (1.0 + 1e-8), rounds, epsilon) > delta * (1.0 - 1e-6)
    assert found >= round_fraction_down(Fraction(epsilon) / rounds)


@given(epsilon=epsilons, rounds=st.integers(1, 10**6))
def test_optimal_round_epsilon_without_delta_adds_up_to_epsilon(epsilon: float, rounds: int) -> None:
    found = optimal_round_epsilon(epsilon, 0.0, rounds)
    assert Fraction(found) * rounds <= Fraction(epsilon)
    assert Fraction(math.nextafter(found, math.inf)) * rounds > Fraction(epsilon)


def test_optimal_round_epsilon_is_near_gaussian_limit_for_million_rounds() -> None:
    # For many small rounds the optimum tends to the Gaussian mechanism's with mu = ε0 √c (Dong, Roth & Su 2022).
    mu = optimal_round_epsilon(1.0, 1e-6, 10**6) * 1000.0

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    gaussian = normal(mu / 2.0 - 1.0 / mu) - math.e * normal(-mu / 2.0 - 1.0 / mu)
    assert gaussian == pytest.approx(1e-6, rel=0.01)


def test_optimal_round_epsilon_of_one_round_uses_delta() -> None:
    """One round may exceed ε by the amount that δ pays for."""
    epsilon, delta = 1.0, 0.01
    # One round's δ is (e^ε0 − e^ε)/(1 + e^ε0): solved for ε0 by hand.
    by_hand = math.log((math.exp(epsilon) + delta) / (1.0 - delta))
    assert optimal_round_epsilon(epsilon, delta, 1) == pytest.approx(by_hand, rel=1e-9)


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=1000))
def test_round_fraction_down_gives_nearest_double_below(value: Fraction) -> None:
    double = round_fraction_down(value)
    assert Fraction(double) <= value < Fraction(math.nextafter(double, math.inf))


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=1000))
def test_round_fraction_up_gives_nearest_double_above(value: Fraction) -> None:
    double = round_fraction_up(value)
    assert Fraction(math.nextafter(double, -math.inf)) < value <= Fraction(double)


def test_round_fraction_up_of_zero_is_positive_zero() -> None:
    assert math.copysign(1.0, round_fraction_up(Fraction(0))) == 1.0


@given(epsilon_round=epsilons, rounds=st.integers(1, 10**6))
def test_basic_epsilon_is_exact_sum_rounded_up(epsilon_round: float, rounds: int) -> None:
    exact = Fraction(epsilon_round) * rounds
    assert exact <= Fraction(basic_epsilon(epsilon_round, rounds)) <= exact * (1 + Fraction(1, 2**52))


def test_closed_formulas_have_values_computed_by_hand() -> None:
    # ε0 = 0.1, c = 100, δ = 10⁻⁵: ln(1/δ) = 11.5129; √(2·100·11.5129) = 47.9853; e^0.1 − 1 = 0.105171.
    assert basic_epsilon(0.1, 100) == pytest.approx(10.0)
    assert advanced_epsilon(0.1, 100, 1e-5) == pytest.approx(4.79853 + 1.05171, rel=1e-5)
    # ρ = 0.5; by α = 5.4 it is 5.4·0.5 + (11.512925 − ln 4.4 + 5.4·ln(4.4/5.4)) / 4.4 = 4.728507, a little above the least.
    assert zcdp_rho(0.1, 100) == pytest.approx(0.5)
    assert 4.72838 < zcdp_epsilon(zcdp_rho(0.1, 100), 1e-5) < 4.728507


@given(epsilon_round=st.floats(1e-3, 3.0), rounds=st.integers(1, 2000), delta=st.floats(1e-12, 0.3))
@settings(deadline=None, max_examples=30)
def test_optimal_epsilon_is_attained_and_below_other_theorems(
    epsilon_round: float, rounds: int, delta: float
) -> None:
    basic, advanced = basic_epsilon(epsilon_round, rounds), advanced_epsilon(epsilon_round, rounds, delta)
    zcdp = zcdp_epsilon(zcdp_rho(epsilon_round, rounds), delta)
    optimal, slack = optimal_epsilon(epsilon_round, rounds, delta), 1e-9 * basic
    assert optimal <= min(basic, advanced, zcdp) + slack
    assert optimal_delta(epsilon_round, rounds, optimal) <= delta
    if optimal > 2.0 * slack:
        assert optimal_delta(epsilon_round, rounds, optimal - 2.0 * slack) > delta * (1.0 - 1e-6)


@pytest.mark.parametrize(
    ("epsilon_round", "rounds", "epsilon"), [(0.5, 1, 0.2), (0.1, 20, 1.0), (0.3, 50, 5.0), (0.05, 500, 2.0)]
)
def test_optimal_delta_agrees_with_loss_distribution_of_responses(
    epsilon_round: float, rounds: int, epsilon: float
) -> None:
    """The reference is Google's dp-accounting, an independent implementation; randomized response is the worst pure round."""
    one = pld.from_privacy_parameters(
        pld_common.DifferentialPrivacyParameters(epsilon_round, 0.0), value_discretization_interval=1e-4
    )
    theirs = one.self_compose(rounds).get_delta_for_epsilon(epsilon)
    assert optimal_delta(epsilon_round, rounds, epsilon) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(("scale", "rounds", "delta"), [(10.0, 50, 1e-6), (2.0, 5, 1e-3)])
def test_optimal_epsilon_bounds_composed_discrete_laplace_noise(scale: float, rounds: int, delta: float) -> None:
    one = pld.from_discrete_laplace_mechanism(1.0 / scale, sensitivity=1, value_discretization_interval=1e-3)
    theirs = one.self_compose(rounds).get_epsilon_for_delta(delta)
    assert theirs <= optimal_epsilon(1.0 / scale, rounds, delta) * 1.01
