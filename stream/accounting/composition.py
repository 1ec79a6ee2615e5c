"""Optimal composition of pure rounds: how far (ε, δ) carries a stream that runs one round per ⊤.

Source: Kairouz, Oh & Viswanath 2015, Theorem 3.3, for equal rounds; it holds for rounds chosen adaptively.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

_RELATIVE_STEP = 1e-10
_WINDOW = 8.0


def rounded_down(value: Fraction) -> float:
    """The largest double that is not above ``value``."""
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def optimal_delta(epsilon_round: float, rounds: int, epsilon: float) -> float:
    """The least δ at which ``rounds`` adaptive ``epsilon_round``-DP rounds are together (``epsilon``, δ)-DP.

    δ(ε) = Σ_l C(c, l) max(0, e^{(c−l)ε0} − e^{ε+lε0}) / (1 + e^{ε0})^c (Kairouz, Oh & Viswanath 2015). The result is
    rounded up: it is at least the exact value, and above it by less than one part in a million.
    """
    if Fraction(epsilon_round) * rounds <= Fraction(epsilon):
        return 0.0
    # Terms with l above `last` vanish; the mode of the binomial weights is within one of `mean`.
    last = min(rounds, math.ceil((rounds - epsilon / epsilon_round) / 2) + 1)
    mean = rounds / (1.0 + math.exp(min(epsilon_round, 700.0)))
    window = math.ceil(_WINDOW * math.sqrt(rounds)) + 64
    low = max(0, math.floor(min(mean, last)) - window)
    high = min(last, math.ceil(mean) + window)
    logs = _log_terms(np.arange(low, high + 1, dtype=np.float64), epsilon_round, rounds, epsilon)
    peak = float(np.max(logs))
    terms = np.exp(logs - peak)
    total = float(np.sum(terms))
    if low > 0:
        total += _geometric_remainder(float(terms[0]), float(terms[1]))
    if high < last:
        total += _geometric_remainder(float(terms[-1]), float(terms[-2]))
    # log-gamma is right to a few ulps of its own size, which bounds the relative error of every term.
    margin = 32 * np.finfo(np.float64).eps * rounds * (math.log(rounds + 2) + epsilon_round) + 1e-13
    return min(1.0, total * math.exp(peak + min(margin, 1.0)))


def _log_terms(l: NDArray[np.float64], epsilon_round: float, rounds: int, epsilon: float) -> NDArray[np.float64]:  # noqa: E741
    log_odd = -math.log1p(math.exp(-epsilon_round))
    log_even = log_odd - epsilon_round
    log_choose = gammaln(rounds + 1.0) - gammaln(l + 1.0) - gammaln(rounds - l + 1.0)
    # The slack covers the rounding of the difference, which matters where δ is near the resolution of a double.
    slack = 4.0 * np.finfo(np.float64).eps * (epsilon + rounds * epsilon_round)
    gap = np.minimum(epsilon - (rounds - 2.0 * l) * epsilon_round, 0.0) - slack
    log_excess = np.log(-np.expm1(gap))
    result: NDArray[np.float64] = log_choose + (rounds - l) * log_odd + l * log_even + log_excess
    return result


def _geometric_remainder(edge: float, inner: float) -> float:
    # The terms are log-concave in l, so beyond the edge they fall at least as fast as at the edge.
    if edge == 0.0:
        return 0.0
    ratio = edge / inner
    return edge * ratio / (1.0 - ratio) if ratio < 1.0 else math.inf


@lru_cache(maxsize=4096)
def optimal_round_epsilon(epsilon: float, delta: float, rounds: int) -> float:
    """The largest ε0, rounded down, such that ``rounds`` adaptive ε0-DP rounds are (``epsilon``, ``delta``)-DP.

    ``optimal_delta(ε0, rounds, epsilon) <= delta`` holds for the returned double itself; it is below the best ε0 by at
    most one part in 10^10. With ``delta`` 0 it is ε/c, rounded so that c·ε0 <= ε exactly.
    """
    low = rounded_down(Fraction(epsilon) / rounds)
    if delta <= 0.0:
        return low
    high = 2.0 * low
    while optimal_delta(high, rounds, epsilon) <= delta:
        low, high = high, 2.0 * high
    while high - low > _RELATIVE_STEP * low:
        middle = 0.5 * (low + high)
        if optimal_delta(middle, rounds, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low
