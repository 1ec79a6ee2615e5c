"""Errors of numbers that are read off one noisy release: single cells, and sums of cells.

All bounds are for classes of questions fixed before the release's noise is known, as in the accuracy definition of Blum &
Roth 2011; only a single cell's bound also holds for whoever chooses questions by earlier answers. Derivations:
docs/proofs/histogram.md, docs/proofs/lazy-histogram.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from schemas import ReleaseCalibration
from stream.optional_packages import np, optimize, special
from stream.privacy.accuracy.noise_laws import least_bound, reach, sum_alpha
from stream.privacy.noise import Symmetric, gaussian, sampler

SUMS_SHARE = 0.1
"""Share of β that sums of a histogram's cells may fail with; the rest is that of its single cells."""


def release_law(calibration: ReleaseCalibration) -> Symmetric:
    """The law of each number's noise: Gaussian, or Laplace of the rate ε of one part over what one person moves it by."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_part) / calibration.sensitivity_steps)


def cell_alpha(calibration: ReleaseCalibration, universe: int) -> float:
    """The error of every cell of a histogram at once, whatever is asked and how often; exact.

    It fails with all of β but the share that is kept for sums of cells.
    """
    return float(reach(release_law(calibration), universe, (1.0 - SUMS_SHARE) * calibration.beta))


def histogram_alpha(
    calibration: ReleaseCalibration, universe: int, cells: int, numbers: int = 1, *, whole: bool = True
) -> float:
    """The error of each of ``numbers`` numbers in one answer, sums of up to ``cells`` cells each.

    With probability 1 − β the answers to all ``expected_queries`` questions keep to their own α. A sum is never further
    off than its cells together are, whoever asks.
    """
    sums = numbers * calibration.expected_queries
    chosen = sum_alpha(release_law(calibration), cells, sums, SUMS_SHARE * calibration.beta, whole=whole)
    return min(cells * cell_alpha(calibration, universe), chosen)


def lazy_alpha(calibration: ReleaseCalibration, cells: int, *, whole: bool = False) -> float:
    """The error of one question of ``cells`` cells to a lazy histogram, with probability 1 − β over ``expected_queries``."""
    return sum_alpha(release_law(calibration), cells, calibration.expected_queries, calibration.beta, whole=whole)


NOISE_SHARE = 0.45
"""Share of β that the noise of all answers may fail with."""

CROSS_TALK_SHARE = 0.45
"""Share of β for what other cells add."""

NORM_SHARE = 0.1
"""Share of β that the bound on the table's norm may fail with, once for all answers."""

_ROUNDING = 1.0 + 1e-9
"""Raises a bound by more than the rounding errors of its evaluation."""
_LARGEST_TILT = 1.0
"""E e^{−tY} ≤ 1 − t + …: beyond a tilt of 1 no quadratic bound is better."""


@lru_cache(maxsize=4096)
def projected_noise_reach(rate: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """An x such that with probability 1 − ``beta`` the noise of none of ``sums`` questions to a projection is beyond ±x.

    The noise of a question is (1/T) Σ_i Q̂_i v_i with v_i two-sided and Q̂_i a sum of ``cells`` random signs, weighted by
    at most 1 each: x = min_θ [ln(2·sums/β)/T + ln E_B E_v e^{θBv}] / θ, B a sum of as many plain signs, θ < λ/``cells``.
    """
    allowed = math.log(2.0 * sums / beta) / projections
    ups = np.arange(cells + 1, dtype=np.float64)
    log_chances = (
        special.gammaln(cells + 1.0)
        - special.gammaln(ups + 1.0)
        - special.gammaln(cells - ups + 1.0)
        - cells * math.log(2.0)
    )
    signed = cells - 2.0 * ups

    def bound(fraction: float) -> float:
        theta = fraction * rate / cells
        log_moments = -np.log1p(-_squared_ratio(theta * np.abs(signed), rate))
        return (allowed + float(special.logsumexp(log_chances + log_moments))) / theta

    return least_bound(bound)


@lru_cache(maxsize=4096)
def cross_talk_reach(norm: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """An x such that with probability 1 − ``beta`` over the matrix no question's error from other cells is beyond ±x.

    ``norm`` is at least ‖D‖ and each question names ``cells`` cells with weights of at most 1. One cell's error is a sum of
    independent signs: ‖D‖·√(2 ln(2·sums/β) / T). That of m cells is at most m times as much, and
    ‖D‖·√m · min_θ [ln(2·sums/β)/T − ln(1 − 2θ)/2 − θ] / θ.
    """
    allowed = math.log(2.0 * sums / beta) / projections
    signs = cells * math.sqrt(2.0 * allowed)
    if cells == 1:
        return norm * signs * _ROUNDING

    def bound(fraction: float) -> float:
        theta = 0.5 * fraction
        return (allowed - 0.5 * math.log1p(-fraction) - theta) / theta

    return norm * min(signs, math.sqrt(cells) * least_bound(bound)) * _ROUNDING


@lru_cache(maxsize=256)
def norm_bound(rate: float, projections: int, squares: float, beta: float) -> float:
    """A number that is below the table's norm with probability at most ``beta``; ``squares`` is Σ_i (u_i + v_i)².

    With M = ‖D‖² + E v² the mean of one square, and E (u+v)⁴ ≤ 3M² + κ, κ = E v⁴ − 3(E v²)²,
    P(squares ≤ x) ≤ min_t exp(t·x/M + T·ln(1 − t + t²(3 + κ/M²)/2)), which falls as M grows. Infinite where so few
    projections tell nothing.
    """
    q = math.exp(-rate)
    variance = 2.0 * q / (1.0 - q) ** 2
    kurtosis = 2.0 * q * (1.0 + 4.0 * q + q * q) / (1.0 - q) ** 4
    wanted = math.log(beta)

    def log_chance(mean: float) -> float:
        curvature = 0.5 * (3.0 + kurtosis / mean / mean)

        def bound(tilt: float) -> float:
            return tilt * squares / mean + projections * math.log1p(tilt * (curvature * tilt - 1.0))

        return float(optimize.minimize_scalar(bound, bounds=(0.0, _LARGEST_TILT), method="bounded").fun)

    low = high = max(variance, squares / projections)
    if log_chance(math.inf) > wanted:
        return math.inf
    while log_chance(high) > wanted:
        low, high = high, 2.0 * high
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_chance(middle) > wanted else (low, middle)
    return math.sqrt(max(0.0, high * _ROUNDING - variance))


def released_norm(calibration: ReleaseCalibration, squares: float, rows: int | None) -> float:
    """What the table's norm is taken to be at most, of a release with this sum of squares and a number of rows, if public."""
    bound = norm_bound(_rate_of(calibration), calibration.parts, squares, NORM_SHARE * calibration.beta)
    # All rows in one cell have the largest norm of all.
    return bound if rows is None else min(bound, float(rows))


def projection_alpha(calibration: ReleaseCalibration, cells: int, norm: float) -> float:
    """The whole error of a question of ``cells`` cells to a projection, for a table whose norm is at most ``norm``.

    With probability 1 − β all of ``expected_queries`` answers keep to theirs, the bound on the norm included.
    """
    beta = CROSS_TALK_SHARE * calibration.beta
    parts, sums = calibration.parts, calibration.expected_queries
    return noise_alpha(calibration, cells) + cross_talk_reach(norm, parts, cells, sums, beta)


def noise_alpha(calibration: ReleaseCalibration, cells: int) -> float:
    """The part of ``projection_alpha`` that is noise, known before anything is released."""
    beta, sums = NOISE_SHARE * calibration.beta, calibration.expected_queries
    return projected_noise_reach(_rate_of(calibration), calibration.parts, cells, sums, beta)


def _squared_ratio(
    at: np.ndarray[tuple[int], np.dtype[np.float64]], rate: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.square(np.sinh(0.5 * at) / math.sinh(0.5 * rate))


def _rate_of(calibration: ReleaseCalibration) -> float:
    return calibration.epsilon_part / calibration.sensitivity_steps
