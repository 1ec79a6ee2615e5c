"""Errors of numbers computed from one noisy release: cells, sums of cells, projections.

The bounds hold for questions fixed before the release's noise is known, as in Blum & Roth 2011;
only a single cell's bound also holds for adaptive questions. Derivations:
docs/proofs/histogram.md, docs/proofs/lazy-histogram.md, docs/proofs/sparse-project.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from schemas import ReleaseCalibration
from stream.optional_packages import np, optimize, special
from stream.privacy.accuracy.noise_laws import SUM_ROUNDING, least_bound, noise_reach, sum_alpha
from stream.privacy.noise.samplers import Symmetric, gaussian, sampler

SUMS_SHARE = 0.1
"""Share of β for sums of a histogram's cells; single cells have the rest of β."""


def release_law(calibration: ReleaseCalibration) -> Symmetric:
    """Return the law of each number's noise: Gaussian, or Laplace with rate (ε of a part)/Δ."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_part) / calibration.sensitivity_steps)


def cell_alpha(calibration: ReleaseCalibration, universe: int) -> float:
    """Return the exact error bound of all cells of a histogram, for any number of questions.

    It fails with probability (1 − ``SUMS_SHARE``)·β.
    """
    return float(noise_reach(release_law(calibration), universe, (1.0 - SUMS_SHARE) * calibration.beta))


def histogram_alpha(
    calibration: ReleaseCalibration, universe: int, cells: int, numbers: int = 1, *, full_weights: bool = True
) -> float:
    """Bound the error of each of ``numbers`` numbers that sum up to ``cells`` cells.

    With probability 1 − β no answer to the ``expected_queries`` questions exceeds its bound. If
    questions are adaptive, only ``cells`` times the bound of a cell holds.
    """
    sums = numbers * calibration.expected_queries
    chosen = sum_alpha(
        release_law(calibration), cells, sums, SUMS_SHARE * calibration.beta, full_weights=full_weights
    )
    return min(cells * cell_alpha(calibration, universe), chosen)


def lazy_alpha(calibration: ReleaseCalibration, cells: int, *, full_weights: bool = False) -> float:
    """Bound the error of a question of ``cells`` cells to a lazy histogram."""
    return sum_alpha(
        release_law(calibration), cells, calibration.expected_queries, calibration.beta, full_weights=full_weights
    )


NOISE_SHARE = 0.45
"""Share of β for the noise of all answers."""

CROSS_TALK_SHARE = 0.45
"""Share of β for the error from other cells."""

NORM_SHARE = 0.1
"""Share of β for the bound on the table's norm, which all answers use."""

_LARGEST_TILT = 1.0
"""E e^{−tY} ≤ 1 − t + …: no quadratic bound is better beyond a tilt of 1."""


@lru_cache(maxsize=4096)
def projected_noise_reach(rate: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """Bound the noise of ``sums`` questions to a projection, with probability 1 − ``beta``.

    The noise of a question is (1/T) Σ_i Q̂_i v_i with v_i two-sided and Q̂_i a sum of ``cells``
    random signs with weights of at most 1: x = min_θ [ln(2·sums/β)/T + ln E_B E_v e^{θBv}] / θ, B
    an unweighted sum of ``cells`` signs, θ < λ/``cells``.
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
        ratios = np.sinh(0.5 * (theta * np.abs(signed))) / math.sinh(0.5 * rate)
        log_moments = -np.log1p(-np.square(ratios))
        return (allowed + float(special.logsumexp(log_chances + log_moments))) / theta

    return least_bound(bound)


@lru_cache(maxsize=4096)
def cross_talk_reach(norm: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """Bound the error that other cells cause, with probability 1 − ``beta`` over the random matrix.

    ``norm`` is at least ‖D‖; each question names ``cells`` cells with weights of at most 1. One
    cell's error is a sum of independent signs, at most ‖D‖·√(2 ln(2·sums/β) / T). The error of m
    cells is at most m times this, and at most ‖D‖·√m · min_θ [ln(2·sums/β)/T − ln(1 − 2θ)/2 − θ] /
    θ.
    """
    allowed = math.log(2.0 * sums / beta) / projections
    signs = cells * math.sqrt(2.0 * allowed)
    if cells == 1:
        return norm * signs * SUM_ROUNDING

    def bound(fraction: float) -> float:
        theta = 0.5 * fraction
        return (allowed - 0.5 * math.log1p(-fraction) - theta) / theta

    return norm * min(signs, math.sqrt(cells) * least_bound(bound)) * SUM_ROUNDING


@lru_cache(maxsize=256)
def norm_bound(rate: float, projections: int, squares: float, beta: float) -> float:
    """Bound the table's norm with probability 1 − ``beta``; ``squares`` is Σ_i (u_i + v_i)².

    With M = ‖D‖² + E v² the mean of one square, and E (u+v)⁴ ≤ 3M² + κ, κ = E v⁴ − 3(E v²)²,
    P(squares ≤ x) ≤ min_t exp(t·x/M + T·ln(1 − t + t²(3 + κ/M²)/2)), which falls as M grows.
    The result is infinite if there are too few projections for a bound.
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
    return math.sqrt(max(0.0, high * SUM_ROUNDING - variance))


def released_norm(calibration: ReleaseCalibration, squares: float, rows: int | None) -> float:
    """Bound the table's norm from a release and, if it is public, from the number of rows."""
    bound = norm_bound(_rate_of(calibration), calibration.parts, squares, NORM_SHARE * calibration.beta)
    # The norm is largest if all rows are in one cell.
    return bound if rows is None else min(bound, float(rows))


def projection_alpha(calibration: ReleaseCalibration, cells: int, norm: float) -> float:
    """Bound the error of a question of ``cells`` cells to a projection.

    With probability 1 − β no answer of ``expected_queries`` exceeds its bound; this includes the
    probability that ``norm`` is exceeded.
    """
    beta = CROSS_TALK_SHARE * calibration.beta
    parts, sums = calibration.parts, calibration.expected_queries
    return noise_alpha(calibration, cells) + cross_talk_reach(norm, parts, cells, sums, beta)


def noise_alpha(calibration: ReleaseCalibration, cells: int) -> float:
    """Bound the noise in an answer; this part of its error bound is known before the release."""
    beta, sums = NOISE_SHARE * calibration.beta, calibration.expected_queries
    return projected_noise_reach(_rate_of(calibration), calibration.parts, cells, sums, beta)


def _rate_of(calibration: ReleaseCalibration) -> float:
    return calibration.epsilon_part / calibration.sensitivity_steps
