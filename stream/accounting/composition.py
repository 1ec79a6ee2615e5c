"""Composition of equal pure rounds: what c adaptive rounds cost together, by each theorem in use.

Basic (adding up), advanced (Dwork, Rothblum & Vadhan 2010), zCDP (Bun & Steinke 2016; Canonne, Kamath & Steinke 2020)
and optimal (Kairouz, Oh & Viswanath 2015, Theorem 3.3). All hold for rounds chosen adaptively. Streams are planned with the optimal one; the
others are what notes and papers state, side by side in ``docs/proofs/composition.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from stream.accounting.concentrated import least_epsilon
from stream.accounting.rounds import excess
from stream.later import optimize

_TOLERANCE = 3e-11
"""How far, as a share of what is sought, a search ends before the exact crossing; twice that is in its promise."""
_LEAST_DOUBLE = 5e-324
_ROUNDING = 1.0 + 1e-12
"""Raises a closed formula's value by more than its rounding errors."""


def rounded_down(value: Fraction) -> float:
    """The largest double that is not above ``value``."""
    nearest = float(value)
    return math.nextafter(nearest, -math.inf) if Fraction(nearest) > value else nearest


def rounded_up(value: Fraction) -> float:
    """The least double that is not below ``value``."""
    # 0 less what is rounded down is never −0.
    return 0.0 - rounded_down(-value)


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
    """The least ε at which ρ-zCDP is (ε, δ)-DP by Corollary 13 of Canonne, Kamath & Steinke 2020, rounded up.

    It is below ρ + 2√(ρ ln(1/δ)) (Bun & Steinke 2016, Proposition 1.3), which rests on the same orders α.

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    _check_delta(delta)
    return rounded_up(least_epsilon(Fraction(rho), Fraction(delta)))


def optimal_epsilon(epsilon_round: float, rounds: int, delta: float) -> float:
    """The least ε at which the rounds are (ε, δ)-DP, rounded up by at most one part in 10^10 of c·ε0.

    ``optimal_delta(epsilon_round, rounds, ε) <= delta`` holds for the returned double itself; no theorem about pure
    rounds can give less (Kairouz, Oh & Viswanath 2015).

    Raises:
        ValueError: ``delta`` is not between 0 and 1.
    """
    _check_delta(delta)
    highest = basic_epsilon(epsilon_round, rounds)
    if optimal_delta(epsilon_round, rounds, 0.0) <= delta:
        return 0.0
    found = _crossing(lambda total: optimal_delta(epsilon_round, rounds, total), delta, 0.0, highest)
    on = _TOLERANCE * highest
    while optimal_delta(epsilon_round, rounds, sound := min(highest, found + on)) > delta:
        on *= 2.0
    return sound


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be between 0 and 1, got {delta:g}; at δ = 0 only adding up applies")


def optimal_delta(epsilon_round: float, rounds: int, epsilon: float) -> float:
    """The least δ at which ``rounds`` adaptive ``epsilon_round``-DP rounds are together (``epsilon``, δ)-DP.

    δ(ε) = Σ_l C(c, l) max(0, e^{(c−l)ε0} − e^{ε+lε0}) / (1 + e^{ε0})^c (Kairouz, Oh & Viswanath 2015). The result is
    rounded up: it is at least the exact value, above it by less than one part in 10^12 before it is rounded up to a
    double, and 0 only where the exact value is.
    """
    return excess(epsilon_round, rounds, epsilon)


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
    found = _crossing(lambda one: optimal_delta(one, rounds, epsilon), delta, low, high)
    back = _TOLERANCE
    while optimal_delta(sound := max(low, found * (1.0 - back)), rounds, epsilon) > delta:
        back *= 2.0
    return sound


def _crossing(delta_at: Callable[[float], float], delta: float, low: float, high: float) -> float:
    """Where a monotone δ passes ``delta`` between two ends, to within a tenth of a tolerance, on either side of it."""

    def beyond(at: float) -> float:
        return math.log(max(delta_at(at), _LEAST_DOUBLE)) - math.log(delta)

    return float(optimize.brentq(beyond, low, high, xtol=0.1 * _TOLERANCE * high, rtol=0.1 * _TOLERANCE))
