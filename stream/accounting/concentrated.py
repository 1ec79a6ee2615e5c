"""From ρ to (ε, δ) and back, by the least δ over all orders α (Canonne, Kamath & Steinke 2020, Proposition 12, Corollary 13).

A ρ-zCDP mechanism is (ε, δ)-differentially private with δ = e^{(α−1)(αρ−ε)} (1 − 1/α)^α / (α − 1) for *every* α > 1. So
whatever α a search ends at, what is computed from it holds; a better α only makes it tighter. Decimal logarithms are
correctly rounded, and what is returned is moved to the safe side by far more than their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

_DIGITS = 80
_SLACK = Decimal("1e-40")
"""More than all rounding errors: values are below 10^25, with 80 digits each."""
_COARSE_STEPS = 120
_FINE_STEPS = 60
_LARGEST_LOG = 60.0


@lru_cache(maxsize=4096)
def largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ρ, rounded down by less than 10⁻¹⁸, such that ρ-zCDP implies (``epsilon``, ``delta``); 0 < δ < 1."""

    def rough(log_order: float) -> float:
        less_one = math.exp(log_order)
        return (float(epsilon) + _rough_log_terms(less_one, log_delta) / less_one) / (1.0 + less_one)

    def exact(less_one: Decimal) -> Decimal:
        return (exact_epsilon + _log_terms(less_one, exact_log) / less_one) / (1 + less_one)

    log_delta = _log(delta)
    with localcontext(prec=_DIGITS):
        exact_epsilon, exact_log = _exact(epsilon), _exact(delta).ln()
        rho = _best(rough, exact) - _SLACK
        return Fraction(max(rho, Decimal(0)).quantize(Decimal("1e-30"), rounding=ROUND_FLOOR))


@lru_cache(maxsize=4096)
def least_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """The least ε, rounded up by less than 10⁻¹⁸, such that ρ-zCDP implies (ε, ``delta``); 0 < δ < 1."""

    def rough(log_order: float) -> float:
        less_one = math.exp(log_order)
        return _rough_log_terms(less_one, log_delta) / less_one - float(rho) * (1.0 + less_one)

    def exact(less_one: Decimal) -> Decimal:
        return _log_terms(less_one, exact_log) / less_one - exact_rho * (1 + less_one)

    if rho == 0:
        return Fraction(0)
    log_delta = _log(delta)
    with localcontext(prec=_DIGITS):
        exact_rho, exact_log = _exact(rho), _exact(delta).ln()
        epsilon = _SLACK - _best(rough, exact)
        return Fraction(max(epsilon, Decimal(0)).quantize(Decimal("1e-30"), rounding=ROUND_CEILING))


def _best(rough: Callable[[float], float], exact: Callable[[Decimal], Decimal]) -> Decimal:
    """The largest value over α − 1 > 0, found in doubles first; both functions have one peak.

    For fixed ρ the logarithm of δ is convex in α, so that the α at which a given ρ or ε is allowed form an interval.
    """
    low, high = -_LARGEST_LOG, _LARGEST_LOG
    for _ in range(_COARSE_STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if rough(first) < rough(second):
            low = first
        else:
            high = second
    # Doubles cannot tell values apart any nearer to a peak than the square root of their precision.
    centre = Decimal(math.exp((low + high) / 2))
    left, right = centre * Decimal("0.999"), centre * Decimal("1.001")
    best = exact(centre)
    for _ in range(_FINE_STEPS):
        third = (right - left) / 3
        at_first, at_second = exact(left + third), exact(right - third)
        best = max(best, at_first, at_second)
        if at_first < at_second:
            left += third
        else:
            right -= third
    return best


def _rough_log_terms(less_one: float, log_delta: float) -> float:
    """ln δ + ln(α−1) − α ln(1 − 1/α) in doubles."""
    order = 1.0 + less_one
    return log_delta + math.log(less_one) + order * math.log1p(1.0 / less_one)


def _log_terms(less_one: Decimal, log_delta: Decimal) -> Decimal:
    """ln δ + ln(α−1) − α ln(1 − 1/α), where 1 − 1/α = (α−1)/α."""
    order = 1 + less_one
    log_less_one = less_one.ln()
    return log_delta + log_less_one + order * (order.ln() - log_less_one)


def _log(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _exact(value: Fraction) -> Decimal:
    """A decimal fraction of at most 80 digits as it is; any other to 80 digits."""
    return Decimal(value.numerator) / Decimal(value.denominator)
