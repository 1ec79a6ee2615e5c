"""How far numbers with noise of either symmetric law may be off: single draws, the largest of many, and sums.

For Gaussian noise N_ℤ(0, σ²) every bound is that of continuous noise of the same σ, from above (docs/noise.md, "Tails").
"""

from __future__ import annotations

import math
from functools import lru_cache

from stream.accounting.gaussian import LEAST_VARIANCE
from stream.accounting.sums import laplace_sum_alpha
from stream.accounting.tails import each_failure, two_sided_reach
from stream.later import special
from stream.noise import Gaussian, Symmetric

_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than the rounding errors of its evaluation."""
_RIPPLE = 1.0 + 3e-13
"""How much likelier a value of a sum may be than under continuous noise, for each draw of at least the least variance."""


def variance_of(law: Symmetric) -> float:
    """The variance of the continuous law of the same shape."""
    if isinstance(law, Gaussian):
        return float(law.variance)
    rate = float(law.rate)
    return 2.0 / (rate * rate)


@lru_cache(maxsize=4096)
def reach(law: Symmetric, draws: int, beta: float) -> int:
    """An x such that with probability 1 − ``beta`` none of ``draws`` draws is beyond ±x."""
    if isinstance(law, Gaussian):
        return math.ceil(deviation_of(law) * normal_reach(each_failure(beta, draws)))
    return two_sided_reach(float(law.rate), draws, beta)


def sum_alpha(law: Symmetric, terms: int, sums: int, beta: float, *, whole: bool) -> float:
    """The error of ``sums`` sums of ``terms`` draws with weights of at most 1, with probability 1 − ``beta`` for all.

    The sums may share draws. With ``whole`` weights each draw is counted once.
    """
    if not isinstance(law, Gaussian):
        return laplace_sum_alpha(float(law.rate), terms, sums, beta, whole=whole)
    if terms == 0:
        return 0.0
    spread = deviation_of(law) * math.sqrt(terms)
    allowed = beta / sums
    if terms == 1 or (whole and law.variance >= LEAST_VARIANCE):
        return float(math.ceil(spread * normal_reach(allowed / _RIPPLE**terms)))
    # Chernoff: E e^{sX} ≤ e^{s²σ²/2}, and no less for smaller weights.
    return spread * math.sqrt(2.0 * math.log(2.0 / allowed)) * _ROUNDING


def normal_reach(failure: float) -> float:
    """How many deviations a normal variable is beyond with at most this probability, on either side; 0 if it may always be."""
    return max(0.0, -float(special.ndtri(0.5 * failure)) * _ROUNDING)


def deviation_of(law: Gaussian) -> float:
    """σ."""
    return math.sqrt(law.variance)
