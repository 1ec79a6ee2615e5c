"""Composition of equal pure rounds: what c adaptive rounds cost together, by each theorem in use.

Basic (adding up), advanced (Dwork, Rothblum & Vadhan 2010), zCDP (Bun & Steinke 2016) and optimal (Kairouz, Oh &
Viswanath 2015, Theorem 3.3). All hold for rounds chosen adaptively. Streams are planned with the optimal one; the
others are what notes and papers state, side by side in ``docs/composition.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

_RELATIVE_STEP = 1e-10
_ROUNDING = 1.0 + 1e-12
"""Raises a closed formula's value by more than its rounding errors."""
_WINDOW = 8.0


def rounded_down(value: Fraction) -> float:
    """The largest double that is not above ``value``."""
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def rounded_up(value: Fraction) -> float:
    """The least double that is not below ``value``."""
    return -rounded_down(-value)


def basic_epsilon(epsilon_round: float, rounds: int) -> float:
    """c·ε0: what adding up gives, at δ = 0 (Dwork & Roth 2014, Theorem 3.16)."""
    return rounded_up(Fraction(epsilon_round) * rounds)


def advanced_epsilon(epsilon_round: float, rounds: int, delta: float) -> float:
    """√(2c ln(1/δ))·ε0 + c·ε0·(e^ε0 − 1), for any ε0 (Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20).

    The notes' short form √(8c ln(1/δ))·ε0 drops the second term, which is allowed only while the sum stays below 1.

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    _check_delta(delta)
    spread = math.sqrt(2.0 * rounds * -math.log(delta)) * epsilon_round
    drift = rounds * epsilon_round * math.expm1(min(epsilon_round, 700.0))
    return (spread + drift) * _ROUNDING


def zcdp_rho(epsilon_round: float, rounds: int) -> float:
    """ρ = c·ε0²/2: a pure round is ε0²/2-zCDP and ρ adds up (Bun & Steinke 2016, Proposition 1.4, Lemma 1.7)."""
    return rounded_up(Fraction(epsilon_round) ** 2 * rounds / 2)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)), at which ρ-zCDP is (ε, δ)-DP (Bun & Steinke 2016, Proposition 1.3).

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    _check_delta(delta)
    return (rho + 2.0 * math.sqrt(rho * -math.log(delta))) * _ROUNDING


def optimal_epsilon(epsilon_round: float, rounds: int, delta: float) -> float:
    """The least ε at which the rounds are (ε, δ)-DP, rounded up by at most one part in 10^10 of c·ε0.

    ``optimal_delta(epsilon_round, rounds, ε) <= delta`` holds for the returned double itself; no theorem about pure
    rounds can give less (Kairouz, Oh & Viswanath 2015).

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    _check_delta(delta)
    low, high = 0.0, basic_epsilon(epsilon_round, rounds)
    step = _RELATIVE_STEP * high
    if optimal_delta(epsilon_round, rounds, low) <= delta:
        return low
    while high - low > step:
        middle = 0.5 * (low + high)
        if optimal_delta(epsilon_round, rounds, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, slots=True)
class Totals:
    """The ε of c rounds together at one δ, by each theorem; ``basic`` holds at δ = 0 too."""

    basic: float
    advanced: float
    zcdp: float
    optimal: float


def totals(epsilon_round: float, rounds: int, delta: float) -> Totals:
    """What ``rounds`` adaptive ``epsilon_round``-DP rounds cost together at ``delta``, by each theorem.

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    return Totals(
        basic=basic_epsilon(epsilon_round, rounds),
        advanced=advanced_epsilon(epsilon_round, rounds, delta),
        zcdp=zcdp_epsilon(zcdp_rho(epsilon_round, rounds), delta),
        optimal=optimal_epsilon(epsilon_round, rounds, delta),
    )


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be between 0 and 1, got {delta:g}; at δ = 0 only adding up applies")


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
