"""How far sums of discrete Laplace noise may be off: exactly for short ones, by Chernoff's bound for others.

The bounds are for classes of sums fixed before the noise is known. Derivations: docs/proofs/histogram.md, docs/proofs/lazy-histogram.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from stream.accounting.tails import sum_reach
from stream.later import optimize

MOST_EXACT_TERMS = 512
"""Longest sum whose tail is summed up exactly; Chernoff's bound serves beyond."""

_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than the rounding errors of its evaluation."""
_RESOLUTION = 1e-7


@lru_cache(maxsize=4096)
def weighted_reach(rate: float, terms: int, sums: int, beta: float) -> float:
    """An x such that with probability 1 − ``beta`` none of ``sums`` sums Σ w_j X_j is beyond ±x.

    Each sum has ``terms`` independent two-sided draws X_j and weights |w_j| ≤ 1; the sums may share draws. Chernoff:
    x = min_s [ln(2·sums/β) + terms·ln E e^{sX}] / s, for E e^{wsX} does not decrease in |w|. With λ the rate,
    E e^{sX} = 1 / (1 − r²), r = sinh(s/2) / sinh(λ/2).
    """
    allowed = math.log(2.0 * sums / beta)
    half = 0.5 * rate

    def bound(fraction: float) -> float:
        # s by the fraction r = sinh(s/2) / sinh(λ/2), in which the moment is plain.
        tilt = 2.0 * math.asinh(fraction * math.sinh(half))
        return (allowed - terms * math.log1p(-fraction * fraction)) / tilt

    return least_bound(bound)


def laplace_sum_alpha(rate: float, terms: int, sums: int, beta: float, *, whole: bool) -> float:
    """The error of ``sums`` sums of ``terms`` draws, with probability 1 − ``beta`` for all.

    With ``whole`` weights (each draw counted once) it is exact up to ``MOST_EXACT_TERMS`` draws, but for adding up the
    failures of different sums.
    """
    if terms == 0:
        return 0.0
    if terms == 1 or (whole and terms <= MOST_EXACT_TERMS):
        return float(_exact_reach(rate, terms, sums, beta))
    return weighted_reach(rate, terms, sums, beta)


def least_bound(bound: Callable[[float], float]) -> float:
    """The least value of a bound that holds at every argument in (0, 1) and has one minimum there."""
    found = optimize.minimize_scalar(bound, bounds=(0.0, 1.0), method="bounded", options={"xatol": _RESOLUTION})
    return float(found.fun) * _ROUNDING


@lru_cache(maxsize=4096)
def _exact_reach(rate: float, terms: int, sums: int, beta: float) -> int:
    return sum_reach(rate, terms, sums, beta)
