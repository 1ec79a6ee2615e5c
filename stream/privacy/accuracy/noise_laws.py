"""Tails of integer noise (single draws, sums, noisy selections), and Clopper-Pearson bounds.

Tails of geometric noise are exact, except for long or weighted sums (Chernoff's bound). Tails of
Gaussian noise are bounded by the tails of continuous noise (docs/noise.md, "Tails").

With q = e^{−rate}, one-sided noise G has P(G ≥ x) = q^x for x ≥ 0. Two-sided noise (discrete Laplace) is the difference
X of two such draws: P(|X| > x) = 2q^{x+1} / (1 + q). Errors are whole steps. Each ``…_reach`` returns a bound that the
error exceeds with probability ``beta`` at most; the bound includes the rounding errors of doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from stream.optional_packages import np, optimize, special
from stream.privacy.composition.gaussian_losses import LEAST_VARIANCE
from stream.privacy.noise.samplers import Floats, Gaussian, Symmetric

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_ROUNDING = 1.0 + 1e-10
"""Margin above the rounding errors of a few operations."""
_SPECIAL_ROUNDING = 1.0 + 1e-6
"""Margin for special functions, whose last digits are not guaranteed."""
_MOST_TERMS = 1 << 18
"""Maximum number of noise values that are summed to decide between two bounds one step apart."""


def least_passing(passes: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least integer above ``low`` that passes; all larger integers must pass too.

    ``high`` is where the search starts; it is doubled until it passes.
    """
    while not passes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def part_failure(beta: float, parts: int) -> float:
    """Return the failure probability p of each part, given the earlier parts: 1 − (1 − p)^parts = ``beta``."""
    return -math.expm1(math.log1p(-beta) / parts)


def two_sided_reach(rate: float, draws: int, beta: float) -> int:
    """Return the least x with P(some |draw| of ``draws`` two-sided draws > x) ≤ ``beta``."""
    allowed = part_failure(beta, draws)
    needed = math.log(2.0 / ((1.0 + math.exp(-rate)) * allowed)) / rate
    return max(0, math.ceil(needed * _ROUNDING) - 1)


def one_sided_reach(rate: float, draws: int, beta: float) -> int:
    """Return the least x with P(some draw of ``draws`` one-sided draws > x) ≤ ``beta``."""
    needed = -math.log(part_failure(beta, draws)) / rate
    return max(0, math.ceil(needed * _ROUNDING) - 1)


def sum_tail(rate: float, terms: int, at_least: int) -> float:
    """Return P(X₁ + … + X_m ≥ x) of m (``terms``) two-sided draws for x ≥ 1, rounded up.

    Let a and b be the generating functions of G and −G. Then ab = (a + (q/z)·b) / (1 + q): the sum of two
    draws of opposite signs is distributed as one draw of either sign. If this is repeated until only one
    sign is left, the sum's upper tail is a positive mixture of negative binomial tails: P(X₁ +
    … + X_m ≥ x) = Σ_{i=1}^m C(2m−i−1, m−1) q^{m−i} / (1+q)^{2m−i} · P(G₁ + … + G_i ≥ x + m − i).
    """
    used = np.arange(1, terms + 1, dtype=np.float64)
    unused = terms - used
    log_choose = special.gammaln(2.0 * terms - used) - special.gammaln(terms) - special.gammaln(unused + 1.0)
    log_weights = log_choose - rate * unused - (terms + unused) * math.log1p(math.exp(-rate))
    tails: Floats = special.betaincc(used, at_least + unused, -math.expm1(-rate))
    return min(1.0, float(np.sum(np.exp(log_weights) * tails)) * _SPECIAL_ROUNDING)


@lru_cache(maxsize=4096)
def sum_reach(rate: float, terms: int, sums: int, beta: float) -> int:
    """Return an x that no |sum| of ``sums`` sums of ``terms`` two-sided draws exceeds.

    The bound holds with probability 1 − ``beta``. It is a union bound, so the sums may have draws in common.
    """
    if terms == 1:
        return two_sided_reach(rate, sums, beta)
    allowed = beta / (2.0 * sums)
    return least_passing(lambda x: sum_tail(rate, terms, x + 1) <= allowed, -1, max(1, math.ceil(1.0 / rate)))


def noisy_max_reach(rate: float, candidates: int, beta: float) -> int:
    """Return the least x such that the chosen score is at most x below the best.

    The bound holds with probability 1 − ``beta`` for all m scores, with one-sided noise, even if a tie
    chooses the lower score. In the worst case one score is the best and all others are x + 1 below it. Then
    the selection fails with probability 1 − E[(1 − q^{G+x+1})^{m−1}], which lies between h(q^{x+1}) and
    h(q^x) for h(y) = 1 − (1 − (1−y)^m) / (m·y).
    """
    if candidates == 1:
        return 0
    allowed = beta / _ROUNDING
    low, high = 0.0, 1.0
    while _max_failure(math.exp(-high), candidates) > allowed:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _max_failure(math.exp(-middle), candidates) > allowed else (low, middle)
    reach = math.ceil(high * _ROUNDING / rate)
    # The two bounds are one step apart. The exact sum decides between them, unless it is too long.
    if reach > 0 and _max_failure_sum(rate, candidates, reach - 1) <= allowed:
        return reach - 1
    return reach


def _max_failure(y: float, candidates: int) -> float:
    if candidates * y < 1e-4:
        # The first term of an alternating series is an upper bound.
        return 0.5 * (candidates - 1) * y
    return 1.0 + math.expm1(candidates * math.log1p(-y)) / (candidates * y) if y < 1.0 else 1.0 - 1.0 / candidates


def _max_failure_sum(rate: float, candidates: int, error: int) -> float:
    """Return 1 − E[(1 − q^{G+x+1})^{m−1}] at x = ``error``, rounded up; 1 if the sum is too long."""
    terms = math.ceil(64.0 / rate)
    if terms > _MOST_TERMS:
        return 1.0
    support = np.arange(terms, dtype=np.float64)
    mass = np.exp(-rate * support) * -math.expm1(-rate)
    failures = -np.expm1((candidates - 1) * np.log1p(-np.exp(-rate * (support + (error + 1)))))
    return float(np.sum(mass * failures)) * _ROUNDING + math.exp(-rate * terms)


def exponential_reach(rate: float, candidates: int, beta: float) -> int:
    """Return the least x such that the drawn candidate's score is at most x below the best.

    The bound holds with probability 1 − ``beta`` for all m scores. In the worst case one score is the best and all
    others are x + 1 below it. Then the failure probability is r / (1 + r) with r = (m − 1)·q^{x+1}.
    """
    if candidates == 1:
        return 0
    needed = (math.log(candidates - 1) + math.log1p(-beta) - math.log(beta)) / rate
    return max(0, math.ceil(needed + abs(needed) * (_ROUNDING - 1.0)) - 1)


MOST_EXACT_TERMS = 512
"""Maximum number of draws of a sum whose tail is exact; for more draws Chernoff's bound is used."""

SUM_ROUNDING = 1.0 + 1e-9
"""Margin above the rounding errors of a bound."""
_RESOLUTION = 1e-7


@lru_cache(maxsize=4096)
def weighted_reach(rate: float, terms: int, sums: int, beta: float) -> float:
    """Return an x that bounds ``sums`` sums Σ w_j X_j with probability 1 − ``beta``.

    Each sum has ``terms`` independent two-sided draws X_j and weights |w_j| ≤ 1; the sums may have draws
    in common. By Chernoff's bound x = min_s [ln(2·sums/β) + terms·ln E e^{sX}] / s, because E e^{wsX}
    does not decrease in |w|. With the rate λ, E e^{sX} = 1 / (1 − r²), where r = sinh(s/2) / sinh(λ/2).
    """
    return least_bound(weighted_bound(rate, terms, sums, beta))


def weighted_bound(rate: float, terms: int, sums: int, beta: float) -> Callable[[float], float]:
    """Return the function of r whose minimum is ``weighted_reach``; each of its values is a valid bound."""
    allowed = math.log(2.0 * sums / beta)
    half = 0.5 * rate

    def bound(fraction: float) -> float:
        # ``fraction`` is r, from which s follows.
        tilt = 2.0 * math.asinh(fraction * math.sinh(half))
        return (allowed - terms * math.log1p(-fraction * fraction)) / tilt

    return bound


def laplace_sum_alpha(rate: float, terms: int, sums: int, beta: float, *, full_weights: bool) -> float:
    """Bound the error of ``sums`` sums of ``terms`` draws with probability 1 − ``beta``.

    Weights are at most 1. With ``full_weights`` all are 1; the bound is then exact up to
    ``MOST_EXACT_TERMS`` draws, except for the union bound over the sums.
    """
    if terms == 0:
        return 0.0
    if terms == 1 or (full_weights and terms <= MOST_EXACT_TERMS):
        return float(sum_reach(rate, terms, sums, beta))
    return weighted_reach(rate, terms, sums, beta)


def least_bound(bound: Callable[[float], float]) -> float:
    """Return the minimum of a unimodal function on (0, 1), each value of which is a valid bound."""
    options = {"xatol": _RESOLUTION}
    least = optimize.minimize_scalar(bound, bounds=(0.0, 1.0), method="bounded", options=options).fun
    return float(least) * SUM_ROUNDING


GAUSSIAN_TAIL_FACTOR = 1.0 + 3e-13
"""A discrete Gaussian draw in place of a continuous one raises the tail of a sum by at most this factor.

The variance must be at least ``LEAST_VARIANCE``.
"""


def variance_of(law: Symmetric) -> float:
    """Return the variance of the continuous Laplace or Gaussian law with the same scale."""
    if isinstance(law, Gaussian):
        return float(law.variance)
    rate = float(law.rate)
    return 2.0 / (rate * rate)


@lru_cache(maxsize=4096)
def noise_reach(law: Symmetric, draws: int, beta: float) -> int:
    """Return an x that no |draw| of ``draws`` draws exceeds, with probability 1 − ``beta``."""
    if isinstance(law, Gaussian):
        return math.ceil(math.sqrt(law.variance) * normal_reach(part_failure(beta, draws)))
    return two_sided_reach(float(law.rate), draws, beta)


def sum_alpha(law: Symmetric, terms: int, sums: int, beta: float, *, full_weights: bool) -> float:
    """Bound the error of ``sums`` sums of ``terms`` draws with weights of at most 1.

    The bound holds with probability 1 − ``beta``; the sums may have draws in common. With
    ``full_weights`` all weights are 1.
    """
    if not isinstance(law, Gaussian):
        return laplace_sum_alpha(float(law.rate), terms, sums, beta, full_weights=full_weights)
    if terms == 0:
        return 0.0
    spread = math.sqrt(law.variance) * math.sqrt(terms)
    allowed = beta / sums
    if terms == 1 or (full_weights and law.variance >= LEAST_VARIANCE):
        return float(math.ceil(spread * normal_reach(allowed / GAUSSIAN_TAIL_FACTOR**terms)))
    # Chernoff's bound: E e^{sX} ≤ e^{s²σ²/2}, also for smaller weights.
    return spread * math.sqrt(2.0 * math.log(2.0 / allowed)) * SUM_ROUNDING


def normal_reach(failure: float) -> float:
    """Return z such that a normal variable is beyond ±z deviations with probability ``failure``."""
    return max(0.0, -float(special.ndtri(0.5 * failure)) * SUM_ROUNDING)


def clopper_pearson_lower(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the lower one-sided Clopper-Pearson bound at error probability ``alpha``.

    Source: Clopper & Pearson, The use of confidence or fiducial limits, Biometrika 1934.
    """
    seen = np.asarray(successes)
    return np.where(seen == 0, 0.0, special.betaincinv(np.maximum(seen, 1), trials - seen + 1, alpha))


def clopper_pearson_upper(successes: ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the upper one-sided Clopper-Pearson bound at error probability ``alpha``."""
    seen = np.asarray(successes)
    return np.where(seen == trials, 1.0, special.betainccinv(seen + 1, np.maximum(trials - seen, 1), alpha))


HEADROOM = 64
"""Noise fits if ``LARGEST_NOISE`` is at least this many scales: larger noise has probability e^−64."""

LARGEST_NOISE = 2**52
"""Noise has at most 52 binary digits, so that a query or threshold plus noise and shift fits 64 bits."""


def scale_fits(scale: float) -> bool:
    """Return True if noise of this scale fits 52 binary digits."""
    return HEADROOM * scale <= LARGEST_NOISE
