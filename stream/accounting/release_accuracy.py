"""Errors of numbers that are read off one noisy release: single cells, and sums of cells.

All bounds are for classes of questions fixed before the release's noise is known, as in the accuracy definition of Blum &
Roth 2011; only a single cell's bound also holds for whoever chooses questions by earlier answers. Derivations:
docs/histogram.md, docs/lazy-histogram.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.optimize import minimize_scalar

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

    return least_bound(bound)


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
def _exact_reach(rate: float, terms: int, sums: int, beta: float) -> int:
    return sum_reach(rate, terms, sums, beta)


def least_bound(bound: Callable[[float], float]) -> float:
    """The least value of a bound that holds at every argument in (0, 1) and has one minimum there."""
    found = minimize_scalar(bound, bounds=(0.0, 1.0), method="bounded", options={"xatol": _RESOLUTION})
    return float(found.fun) * _ROUNDING
