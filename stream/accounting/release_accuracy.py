"""Errors of numbers that are read off one noisy release: single cells, sums of cells, inner products with a projection.

All bounds are for classes of questions fixed before the release's noise (and, for a projection, its matrix) is known, as in
the accuracy definition of Blum & Roth 2011; only a single cell's bound also holds for whoever chooses questions by
earlier answers. Derivations: docs/histogram.md, docs/lazy-histogram.md, docs/sparse-project.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, logsumexp

from schemas import ReleaseCalibration
from stream.accounting.tails import sum_reach, two_sided_reach

MOST_EXACT_TERMS = 512
"""Longest sum of cells whose tail is summed up exactly; Chernoff's bound serves beyond."""

SUMS_SHARE = 0.1
"""Share of β that sums of a histogram's cells may fail with; the rest is that of its single cells."""

_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than the rounding errors of its evaluation."""
_RESOLUTION = 1e-7


def rate_of(calibration: ReleaseCalibration) -> float:
    """λ in P(noise = x) ∝ e^{−λ|x|}: ε of one part over what one person moves it by."""
    return calibration.epsilon_part / calibration.sensitivity_steps


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

    return _least(bound)


def sum_alpha(rate: float, terms: int, sums: int, beta: float, *, whole: bool) -> float:
    """The error of ``sums`` sums of ``terms`` cells, with probability 1 − ``beta`` for all.

    With ``whole`` weights (each cell counted once) it is exact up to ``MOST_EXACT_TERMS`` cells, but for adding up the
    failures of different sums.
    """
    if terms == 0:
        return 0.0
    if terms == 1 or (whole and terms <= MOST_EXACT_TERMS):
        return float(_exact_reach(rate, terms, sums, beta))
    return weighted_reach(rate, terms, sums, beta)


def cell_alpha(calibration: ReleaseCalibration, universe: int) -> float:
    """The error of every cell of a histogram at once, whatever is asked and how often; exact.

    It fails with all of β but the share that is kept for sums of cells.
    """
    return float(two_sided_reach(rate_of(calibration), universe, (1.0 - SUMS_SHARE) * calibration.beta))


def histogram_alpha(
    calibration: ReleaseCalibration, universe: int, cells: int, numbers: int = 1, *, whole: bool = True
) -> float:
    """The error of each of ``numbers`` numbers in one answer, sums of up to ``cells`` cells each.

    With probability 1 − β the answers to all ``expected_queries`` questions keep to their own α. A sum is never further
    off than its cells together are, whoever asks.
    """
    sums = numbers * calibration.expected_queries
    chosen = sum_alpha(rate_of(calibration), cells, sums, SUMS_SHARE * calibration.beta, whole=whole)
    return min(cells * cell_alpha(calibration, universe), chosen)


def lazy_alpha(calibration: ReleaseCalibration, cells: int, *, whole: bool = False) -> float:
    """The error of one question of ``cells`` cells to a lazy histogram, with probability 1 − β over ``expected_queries``."""
    return sum_alpha(rate_of(calibration), cells, calibration.expected_queries, calibration.beta, whole=whole)


@lru_cache(maxsize=4096)
def projected_noise_reach(rate: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """An x such that with probability 1 − ``beta`` the noise of none of ``sums`` questions to a projection is beyond ±x.

    The noise of a question is (1/T) Σ_i Q̂_i v_i with v_i two-sided and Q̂_i a sum of ``cells`` random signs, weighted by
    at most 1 each: x = min_θ [ln(2·sums/β)/T + ln E_B E_v e^{θBv}] / θ, B a sum of as many plain signs, θ < λ/``cells``.
    """
    allowed = math.log(2.0 * sums / beta) / projections
    ups = np.arange(cells + 1, dtype=np.float64)
    log_chances = gammaln(cells + 1.0) - gammaln(ups + 1.0) - gammaln(cells - ups + 1.0) - cells * math.log(2.0)
    signed = cells - 2.0 * ups

    def bound(fraction: float) -> float:
        theta = fraction * rate / cells
        log_moments = -np.log1p(-_squared_ratio(theta * np.abs(signed), rate))
        return (allowed + float(logsumexp(log_chances + log_moments))) / theta

    return _least(bound)


def cross_talk_reach(rows: int, projections: int, cells: int, sums: int, beta: float) -> float:
    """An x such that with probability 1 − ``beta`` over the matrix no question's error from other cells is beyond ±x.

    n·√(2m ln(2·sums/β) / T) for n rows, m cells and T projections, whatever the rows hold.
    """
    return rows * math.sqrt(2.0 * cells * math.log(2.0 * sums / beta) / projections) * _ROUNDING


def projection_alpha(calibration: ReleaseCalibration, cells: int, rows: int | None) -> float:
    """The error of a question of ``cells`` cells to a projection, with probability 1 − β over ``expected_queries``.

    Noise and what other cells add, half of β each. Where the number of rows is private the latter has no public bound:
    the error is then that of the noise alone, against the projection without noise.
    """
    rate, sums = rate_of(calibration), calibration.expected_queries
    if rows is None:
        return projected_noise_reach(rate, calibration.parts, cells, sums, calibration.beta)
    beta = 0.5 * calibration.beta
    return projected_noise_reach(rate, calibration.parts, cells, sums, beta) + cross_talk_reach(
        rows, calibration.parts, cells, sums, beta
    )


@lru_cache(maxsize=4096)
def _exact_reach(rate: float, terms: int, sums: int, beta: float) -> int:
    return sum_reach(rate, terms, sums, beta)


def _squared_ratio(
    at: np.ndarray[tuple[int], np.dtype[np.float64]], rate: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.square(np.sinh(0.5 * at) / math.sinh(0.5 * rate))


def _least(bound: Callable[[float], float]) -> float:
    """The least value of a bound that holds at every argument in (0, 1) and has one minimum there."""
    found = minimize_scalar(bound, bounds=(0.0, 1.0), method="bounded", options={"xatol": _RESOLUTION})
    return float(found.fun) * _ROUNDING
