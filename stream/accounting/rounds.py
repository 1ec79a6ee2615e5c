"""The δ of composed pure rounds, from above and to the last digit: decimal arithmetic in place of doubles.

With p = 1/(1 + e^ε0), δ(ε) = Σ_l C(c, l) p^l (1−p)^{c−l} · max(0, 1 − e^{−g_l}), g_l = (c − 2l)·ε0 − ε (Kairouz, Oh & Viswanath
2015, Theorem 3.3). Both factors are log-concave in l, so the sum falls off geometrically on both sides of where it starts.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

_DIGITS: Final = 50
_MARGIN: Final = 1 + Decimal("1e-25")
"""Raises a sum by more than the rounding errors of all its steps, of which each is below 10⁻⁴⁵."""
_NEGLIGIBLE: Final = Decimal("1e-16")
"""Terms below this share of the sum are bounded together, not added up."""
_LOG_SIZE_DIGITS: Final = 20
"""Digits that the logarithm of a term may have before its point."""
_STIRLING_FROM: Final = 64
_STIRLING_TERMS: Final = 24
_TWO_PI: Final = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799726")


def excess(epsilon_round: float, rounds: int, epsilon: float) -> float:
    """δ(ε) of ``rounds`` rounds, rounded up: the least double that is not below a number within 10⁻¹² of it.

    Never 0 where δ is not: the least double above 0 stands for all that is smaller.
    """
    one = Fraction(epsilon_round)
    over = one * rounds - Fraction(epsilon)
    if over <= 0:
        return 0.0
    last = math.ceil(over / (2 * one)) - 1
    least_gap = over - 2 * one * last
    # 1 − e^{−g} loses as many digits as g has zeros behind its point.
    digits = _DIGITS + max(0, least_gap.denominator.bit_length() - least_gap.numerator.bit_length()) // 3
    with localcontext(Context(prec=digits + _LOG_SIZE_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        start = min(last, math.floor(rounds / (1.0 + math.exp(min(epsilon_round, 700.0)))))
        gap = over - 2 * one * start
        weight = _weight(rounds, start, Decimal(epsilon_round))
        kept = (-Decimal(gap.numerator) / Decimal(gap.denominator)).exp()
        growth = Decimal(epsilon_round).exp()
    with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        total = weight * (1 - kept)
        total = _downwards(total, weight, kept, growth, rounds, start)
        if start < last:
            total = _upwards(total, weight, kept, growth, rounds, start, last)
        return _up(min(total * _MARGIN, Decimal(1)))


def _downwards(
    total: Decimal, weight: Decimal, kept: Decimal, growth: Decimal, rounds: int, start: int
) -> Decimal:
    """``total`` and all terms below ``start``."""
    shrinkage = 1 / (growth * growth)
    before = weight * (1 - kept)
    for l in range(start, 0, -1):  # noqa: E741
        weight = weight * l * growth / (rounds - l + 1)
        kept *= shrinkage
        term = weight * (1 - kept)
        total += term
        if term < before and term < total * _NEGLIGIBLE:
            return total + _remainder(term, before)
        before = term
    return total


def _upwards(
    total: Decimal, weight: Decimal, kept: Decimal, growth: Decimal, rounds: int, start: int, last: int
) -> Decimal:
    """``total`` and all terms from above ``start`` to ``last``."""
    squared = growth * growth
    before = weight * (1 - kept)
    for l in range(start, last):  # noqa: E741
        weight = weight * (rounds - l) / ((l + 1) * growth)
        kept *= squared
        term = weight * (1 - kept)
        total += term
        if term < before and term < total * _NEGLIGIBLE:
            return total + _remainder(term, before)
        before = term
    return total


def _remainder(edge: Decimal, inner: Decimal) -> Decimal:
    """What log-concave terms beyond the edge add up to at most: they fall at least as fast as at the edge."""
    return edge * edge / (inner - edge)


def _weight(rounds: int, l: int, epsilon_round: Decimal) -> Decimal:  # noqa: E741
    """C(c, l) p^l (1−p)^{c−l}."""
    log = _log_factorial(rounds) - _log_factorial(l) - _log_factorial(rounds - l)
    log += (rounds - l) * epsilon_round - rounds * (1 + epsilon_round.exp()).ln()
    return log.exp()


def _log_factorial(n: int) -> Decimal:
    """ln n!, by Stirling's series: its terms alternate and each bounds what follows, here below 10⁻⁷⁰."""
    if n < _STIRLING_FROM:
        return Decimal(math.factorial(n)).ln()
    size = Decimal(n)
    total = size * (size.ln() - 1) + (_TWO_PI * size).ln() / 2
    for order, bernoulli in enumerate(_bernoulli_numbers(), start=1):
        divisor = bernoulli.denominator * 2 * order * (2 * order - 1)
        total += Decimal(bernoulli.numerator) / (divisor * size ** (2 * order - 1))
    return total


@lru_cache(maxsize=1)
def _bernoulli_numbers() -> tuple[Fraction, ...]:
    """B₂, B₄, … of Stirling's series."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * _STIRLING_TERMS + 1):
        numbers.append(-sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    return tuple(numbers[2::2])


def _up(value: Decimal) -> float:
    """The least double that is not below ``value``."""
    nearest = float(value)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < value else nearest
