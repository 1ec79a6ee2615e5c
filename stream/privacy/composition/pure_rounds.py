"""Optimal composition of equal pure rounds (Kairouz, Oh & Viswanath 2015, Theorem 3.3).

A round is pure if it is ε0-differentially private with δ = 0. In formulas, c is the number of rounds and ε0 the
loss of each: the parameters ``rounds`` and ``epsilon_round``. The theorem holds for adaptively chosen rounds;
``docs/proofs/composition.md`` compares it with the other composition theorems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

from stream.optional_packages import optimize
from stream.privacy.composition.gaussian_losses import TWO_PI, round_up
from stream.privacy.noise.samplers import to_decimal

_DIGITS: Final = 50
_MARGIN: Final = 1 + Decimal("1e-25")
"""A factor that raises a sum by more than all its rounding errors, each below 10⁻⁴⁵."""
_NEGLIGIBLE: Final = Decimal("1e-16")
"""If a term is below this share of the sum, the rest is bounded by a geometric series."""
_LOG_SIZE_DIGITS: Final = 20
"""Maximum number of digits before the decimal point in the logarithm of a term."""
_STIRLING_FROM: Final = 64
_STIRLING_TERMS: Final = 24


def optimal_delta(epsilon_round: float, rounds: int, epsilon: float) -> float:
    """Return the least δ at which adaptive pure rounds are (``epsilon``, δ)-DP together.

    δ(ε) = Σ C(c, l) max(0, e^{(c−l)ε0} − e^{ε+lε0}) / (1 + e^{ε0})^c over l = 0 … c. The result is at most
    one part in 10^12 above the exact value, then rounded up to a double. It is 0 only if the exact value is 0.
    """
    round_loss = Fraction(epsilon_round)
    excess = round_loss * rounds - Fraction(epsilon)
    if excess <= 0:
        return 0.0
    last = math.ceil(excess / (2 * round_loss)) - 1
    least_gap = excess - 2 * round_loss * last
    # 1 − e^{−g} loses one digit for each zero after the decimal point of g.
    digits = _DIGITS + max(0, least_gap.denominator.bit_length() - least_gap.numerator.bit_length()) // 3
    with localcontext(Context(prec=digits + _LOG_SIZE_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        start = min(last, math.floor(rounds / (1.0 + math.exp(min(epsilon_round, 700.0)))))
        gap = excess - 2 * round_loss * start
        weight = _binomial_weight(rounds, start, Decimal(epsilon_round))
        discount = (-to_decimal(gap)).exp()
        growth = Decimal(epsilon_round).exp()
    with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        total = weight * (1 - discount)
        smaller = ((index * growth, rounds - index + 1) for index in range(start, 0, -1))
        total = _add_terms(total, weight, discount, smaller, 1 / (growth * growth))
        larger = ((rounds - index, (index + 1) * growth) for index in range(start, last))
        total = _add_terms(total, weight, discount, larger, growth * growth)
        return round_up(min(total * _MARGIN, Decimal(1)))


def _add_terms(
    total: Decimal,
    weight: Decimal,
    discount: Decimal,
    ratios: Iterable[tuple[Decimal | int, Decimal | int]],
    discount_ratio: Decimal,
) -> Decimal:
    """Add the terms on one side of the first one, each of which is weight · (1 − discount).

    ``ratios`` has the ratios of successive weights; ``discount_ratio`` is the ratio of successive discounts.
    """
    before = weight * (1 - discount)
    for numerator, denominator in ratios:
        weight = weight * numerator / denominator
        discount *= discount_ratio
        term = weight * (1 - discount)
        total += term
        if term < before and term < total * _NEGLIGIBLE:
            # The terms are log-concave, so the sum of the rest is below a geometric series.
            return total + term * term / (before - term)
        before = term
    return total


def _binomial_weight(rounds: int, l: int, epsilon_round: Decimal) -> Decimal:  # noqa: E741
    """Return C(c, l) p^l (1−p)^{c−l} with c = ``rounds`` and p = 1/(1 + e^ε0)."""
    log = _log_factorial(rounds) - _log_factorial(l) - _log_factorial(rounds - l)
    log += (rounds - l) * epsilon_round - rounds * (1 + epsilon_round.exp()).ln()
    return log.exp()


def _log_factorial(n: int) -> Decimal:
    """Return ln n! by Stirling's series, with an error below 10⁻⁷⁰."""
    if n < _STIRLING_FROM:
        return Decimal(math.factorial(n)).ln()
    size = Decimal(n)
    total = size * (size.ln() - 1) + (TWO_PI * size).ln() / 2
    for order, bernoulli in enumerate(_bernoulli_numbers(), start=1):
        divisor = bernoulli.denominator * 2 * order * (2 * order - 1)
        total += Decimal(bernoulli.numerator) / (divisor * size ** (2 * order - 1))
    return total


@lru_cache(maxsize=1)
def _bernoulli_numbers() -> tuple[Fraction, ...]:
    """Return the Bernoulli numbers B₂, B₄, … of Stirling's series."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * _STIRLING_TERMS + 1):
        numbers.append(-sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    return tuple(numbers[2::2])


_TOLERANCE = 3e-11
"""Relative distance from the exact result at which a search ends."""
_LEAST_DOUBLE = 5e-324


def round_fraction_down(value: Fraction) -> float:
    """Return the largest double that is not above ``value``."""
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def round_fraction_up(value: Fraction) -> float:
    """Return the least double that is not below ``value``."""
    # Subtracting from 0.0 never gives −0.
    return 0.0 - round_fraction_down(-value)


def optimal_epsilon(epsilon_round: float, rounds: int, delta: float) -> float:
    """Return the least ε at which the rounds are (ε, δ)-DP, rounded up.

    The result is at most ``rounds`` · ``epsilon_round``/10^10 above the exact value. ``optimal_delta`` at the returned
    double is at most ``delta``. No theorem about pure rounds can give a smaller ε (Kairouz, Oh & Viswanath 2015).
    """
    highest = round_fraction_up(Fraction(epsilon_round) * rounds)
    if optimal_delta(epsilon_round, rounds, 0.0) <= delta:
        return 0.0
    found = _solve_delta(lambda total: optimal_delta(epsilon_round, rounds, total), delta, 0.0, highest)
    margin = _TOLERANCE * highest
    while optimal_delta(epsilon_round, rounds, sound := min(highest, found + margin)) > delta:
        margin *= 2.0
    return sound


@lru_cache(maxsize=4096)
def optimal_round_epsilon(epsilon: float, delta: float, rounds: int) -> float:
    """Return the largest loss ε0 of each round, rounded down, at which the rounds are (ε, δ)-DP together.

    The result is at most one part in 10^10 below the best ε0, and ``optimal_delta`` at the returned double is
    at most ``delta``. If ``delta`` is 0, the result is ``epsilon``/``rounds``, rounded down.
    """
    low = round_fraction_down(Fraction(epsilon) / rounds)
    if delta <= 0.0:
        return low
    high = 2.0 * low
    while optimal_delta(high, rounds, epsilon) <= delta:
        low, high = high, 2.0 * high
    found = _solve_delta(lambda epsilon_each: optimal_delta(epsilon_each, rounds, epsilon), delta, low, high)
    margin = _TOLERANCE
    while optimal_delta(sound := max(low, found * (1.0 - margin)), rounds, epsilon) > delta:
        margin *= 2.0
    return sound


def _solve_delta(delta_at: Callable[[float], float], delta: float, low: float, high: float) -> float:
    """Return the argument at which ``delta_at`` equals ``delta``, within ``_TOLERANCE``/10."""

    def log_ratio(at: float) -> float:
        return math.log(max(delta_at(at), _LEAST_DOUBLE)) - math.log(delta)

    return float(optimize.brentq(log_ratio, low, high, xtol=0.1 * _TOLERANCE * high, rtol=0.1 * _TOLERANCE))
