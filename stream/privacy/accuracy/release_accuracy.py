"""Errors of numbers computed from noisy cells: cells, their sums, projections and quantiles.

The bounds of sums hold for questions fixed before the release's noise is known, as in Blum & Roth 2011; only a single
cell's bound also holds for adaptive questions. Derivations: docs/proofs/histogram.md, docs/proofs/sparse-project.md.

A quantile has an error bound in rank, and an interval of values. The *misfit* of an edge between two codes is P − q·N,
where P is the number of rows below the edge, N the number of all rows, and q the quantile from 0 to 1 (``quantile`` in
code). A misfit is negative below the quantile and positive above it. Proofs: docs/proofs/quantiles.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from schemas import ReleaseCalibration
from stream.optional_packages import np, optimize, special
from stream.privacy.accuracy.noise_laws import (
    SUM_ROUNDING,
    laplace_sum_alpha,
    least_bound,
    noise_reach,
    normal_reach,
    sum_alpha,
    weighted_reach,
)
from stream.privacy.noise.samplers import Floats, Gaussian, IntegerArray, Symmetric, gaussian, sampler

SUMS_PART = 0.1
"""Part of β for sums of a histogram's cells; the rest of β is for single cells."""


def release_law(calibration: ReleaseCalibration) -> Symmetric:
    """Return the law of each number's noise: Gaussian, or Laplace with rate (ε of a part)/Δ."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_part) / calibration.sensitivity_steps)


def cell_alpha(calibration: ReleaseCalibration, universe: int) -> float:
    """Return the exact error bound of all cells of a histogram, for any number of questions.

    The bound fails with probability (1 − ``SUMS_PART``)·β.
    """
    return float(noise_reach(release_law(calibration), universe, (1.0 - SUMS_PART) * calibration.beta))


def histogram_alpha(
    calibration: ReleaseCalibration, universe: int, cells: int, numbers: int = 1, *, full_weights: bool = True
) -> float:
    """Bound the error of each of ``numbers`` numbers that sum up to ``cells`` cells.

    With probability 1 − β no answer to the ``expected_queries`` questions is wrong by more than its bound, if the
    questions are fixed in advance. For adaptive questions, only ``cells`` times the bound of a cell holds.
    """
    sums = numbers * calibration.expected_queries
    chosen = sum_alpha(
        release_law(calibration), cells, sums, SUMS_PART * calibration.beta, full_weights=full_weights
    )
    return min(cells * cell_alpha(calibration, universe), chosen)


def lazy_alpha(calibration: ReleaseCalibration, cells: int, *, full_weights: bool = False) -> float:
    """Bound the error of a question of ``cells`` cells to a lazy histogram."""
    return sum_alpha(
        release_law(calibration), cells, calibration.expected_queries, calibration.beta, full_weights=full_weights
    )


NOISE_PART = 0.45
"""Part of β for the noise of all answers."""

CROSS_TALK_PART = 0.45
"""Part of β for the error that other cells cause."""

NORM_PART = 0.1
"""Part of β for the bound on the table's norm, which all answers use."""

_LARGEST_TILT = 1.0
"""Largest t that ``norm_bound`` tries: a larger t never gives a better bound."""


@lru_cache(maxsize=4096)
def projected_noise_reach(rate: float, projections: int, cells: int, sums: int, beta: float) -> float:
    """Bound the noise of ``sums`` questions to a projection, with probability 1 − ``beta``.

    The noise of a question is (1/T) Σ_i Q̂_i v_i over the T projections. v_i is two-sided noise of rate λ, and Q̂_i a
    sum of ``cells`` random signs with weights of at most 1. The bound is min_θ [ln(2·sums/β)/T + ln E_B E_v e^{θBv}] /
    θ over θ < λ/``cells``, where B is an unweighted sum of ``cells`` signs.
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

    ``norm`` is at least ‖D‖, the ℓ₂ norm of the table's counts. Each question names ``cells`` cells with weights of at
    most 1. The error of one cell is a sum of independent signs: at most ‖D‖·√(2 ln(2·sums/β) / T). The error of m cells
    is at most m times as large, and at most ‖D‖·√m · min_θ [ln(2·sums/β)/T − ln(1 − 2θ)/2 − θ] / θ.
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

    Here u_i is the i-th projection of the table and v_i its noise. The mean of one square is M = ‖D‖² + E v², and E
    (u+v)⁴ ≤ 3M² + κ with κ = E v⁴ − 3(E v²)². So P(squares ≤ x) is at most min_t exp(t·x/M + T·ln(1 − t + t²(3 +
    κ/M²)/2)), which falls as M grows. The result is infinite if there are too few projections for a bound.
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
    bound = norm_bound(_rate_of(calibration), calibration.parts, squares, NORM_PART * calibration.beta)
    # The norm is largest if all rows are in one cell.
    return bound if rows is None else min(bound, float(rows))


def projection_alpha(calibration: ReleaseCalibration, cells: int, norm: float) -> float:
    """Bound the error of a question of ``cells`` cells to a projection.

    With probability 1 − β no answer to the ``expected_queries`` questions is wrong by more than its bound;
    β includes the probability that the table's norm exceeds ``norm``.
    """
    beta = CROSS_TALK_PART * calibration.beta
    parts, sums = calibration.parts, calibration.expected_queries
    return noise_alpha(calibration, cells) + cross_talk_reach(norm, parts, cells, sums, beta)


def noise_alpha(calibration: ReleaseCalibration, cells: int) -> float:
    """Bound the noise of a projection's answer: the part of its error bound that is known beforehand."""
    beta, sums = NOISE_PART * calibration.beta, calibration.expected_queries
    return projected_noise_reach(_rate_of(calibration), calibration.parts, cells, sums, beta)


def _rate_of(calibration: ReleaseCalibration) -> float:
    return calibration.epsilon_part / calibration.sensitivity_steps


_GRID_POINTS: Final = 1 << 14
_POINTS_PER_DEVIATION: Final = 128.0
_MAX_KNOTS: Final = 32
_DISCRETE: Final = 0.5
"""Rows by which sums of discrete noise may exceed the quantile of continuous noise."""
_ROUNDING: Final = 1.0 + 1e-9

DRAW_BITS: Final = 192
"""Values are drawn with integer weights; a value at distance 0 has the weight 2^192."""

MOST_STEPS: Final = 1 << 18
"""Maximum number of weights on each side of a quantile; a smaller rate would need more."""


def largest_draw_distance(rate: Fraction) -> int:
    """Return the distance, in whole rows, beyond which e^{−rate·distance} is below 2⁻¹⁹²."""
    return math.floor(DRAW_BITS * math.log(2.0) / float(rate) * _ROUNDING) + 2


def draw_reach(rate: float, values: int, failure: float) -> float:
    """Return a bound in rows on the distance of a drawn value from the quantile.

    The bound holds with probability 1 − ``failure``. In the worst table one value is the quantile, and all
    other values are just beyond the bound.
    """
    if values == 1:
        return 0.0
    needed = math.log(values - 1) + math.log1p(-failure) - math.log(failure)
    return max(0.0, needed / rate) * _ROUNDING


def misfits_reach(law: Symmetric, cells: int, sums: int, quantile: float, failure: float) -> float:
    """Bound the noise of the misfits of ``sums`` edges between ``cells`` cells.

    The bound holds with probability 1 − ``failure``.
    """
    weight = max(quantile, 1.0 - quantile)
    if isinstance(law, Gaussian):
        spread = math.sqrt(float(law.variance) * cells)
        return weight * spread * math.sqrt(2.0 * math.log(2.0 * sums / failure)) * _ROUNDING
    return weight * weighted_reach(float(law.rate), cells, sums, failure)


def sums_reach(law: Symmetric, cells: int, failure: float) -> float:
    """Bound the noise of a sum of ``cells`` cells with weights of at most 1; fails with probability ``failure``."""
    if isinstance(law, Gaussian):
        return math.sqrt(float(law.variance) * cells) * math.sqrt(2.0 * math.log(2.0 / failure)) * _ROUNDING
    return laplace_sum_alpha(float(law.rate), cells, 1, failure, full_weights=False)


def edge_reaches(law: Symmetric, left: IntegerArray, quantile: float, failure: float) -> Floats:
    """Return for each edge an x that the noise of its misfit exceeds with probability ``failure``.

    Each x bounds one tail of the noise of one edge. ``left`` has the number of noisy cells below each edge; its last entry
    counts all cells. The noise of a misfit is (1 − q) times the noise of the cells below the edge, minus q
    times the noise of the other cells.
    """
    total = int(left[-1])
    if isinstance(law, Gaussian):
        squares = left * (1.0 - quantile) ** 2 + (total - left) * quantile**2
        return np.asarray(np.sqrt(float(law.variance) * squares) * normal_reach(2.0 * failure) + _DISCRETE)
    knots = np.unique(np.linspace(0, total, min(total, _MAX_KNOTS) + 1).astype(np.int64))
    reaches = np.array([_laplace_reach(int(knot), total - int(knot), quantile, failure) for knot in knots])
    # The bound is monotone in the cells below, so the larger bound of two knots holds for all edges between them.
    next_knot = np.searchsorted(knots, left)
    previous_knot = np.maximum(next_knot - (knots[next_knot] != left), 0)
    return np.asarray(np.maximum(reaches[next_knot], reaches[previous_knot]) / float(law.rate) + _DISCRETE)


@lru_cache(maxsize=1 << 14)
def _laplace_reach(left: int, right: int, quantile: float, failure: float) -> float:
    """Return x with P((1 − q)·A − q·B > x) = ``failure``, for sums A and B of unit Laplace draws.

    The masses of a grid follow from the characteristic function by a fast Fourier transform.
    """
    deviation = math.sqrt(2.0 * (left * (1.0 - quantile) ** 2 + right * quantile**2))
    if deviation == 0.0:
        return 0.0
    step = deviation / _POINTS_PER_DEVIATION
    angles = (2.0 * math.pi / (_GRID_POINTS * step)) * np.arange(_GRID_POINTS // 2 + 1)
    logs = -left * np.log1p(np.square((1.0 - quantile) * angles)) - right * np.log1p(np.square(quantile * angles))
    masses = np.fft.irfft(np.exp(logs), _GRID_POINTS)[: _GRID_POINTS // 2]
    tails = np.cumsum(masses[::-1])[::-1]
    return step * float(np.argmax(tails <= failure))


@dataclass(frozen=True, slots=True)
class LocatedQuantile:
    """A quantile's code, and the least and the largest code that it may have."""

    code: int
    low: int
    high: int


def locate_quantile(edges: IntegerArray, misfits: Floats, reaches: Floats) -> LocatedQuantile:
    """Find a quantile by the noisy misfits of the edges between ranges of codes.

    ``edges`` has the first code of each range and, as its last entry, the number of codes. If each misfit
    is wrong by more than its reach with probability p at most, then ``low`` and ``high`` of the result are
    wrong with probability p each: edges are tested from each end inwards until a test fails. So ``low`` is
    wrong only if the test of the first edge at or above the quantile is, and likewise ``high``. Noisy
    misfits may change their sign in several ranges; ``code`` is the first code of the middle one of them.
    """
    last = len(edges) - 1
    open_below = np.flatnonzero(misfits[1:] + reaches[1:] >= 0.0)
    lowest = int(open_below[0]) if len(open_below) else last - 1
    open_above = np.flatnonzero(misfits[1:last] - reaches[1:last] <= 0.0)
    highest = int(open_above[-1]) + 2 if len(open_above) else 1
    above = np.flatnonzero(misfits[1:] >= 0.0)
    first = int(above[0]) if len(above) else last - 1
    below = np.flatnonzero(misfits[1:last] < 0.0)
    final = int(below[-1]) + 1 if len(below) else 0
    middle = (first + max(first, final)) // 2
    return LocatedQuantile(
        int(edges[middle]), int(edges[lowest]), max(int(edges[lowest]), int(edges[highest]) - 1)
    )


def ranges_around(size: int, codes: tuple[int, ...]) -> IntegerArray:
    """Divide ``size`` codes into ranges whose lengths double with the distance from the given codes.

    Returns the first code of each range, and ``size`` at the end.
    """
    found = {0, size}
    for code in codes:
        length = 0
        while length < size:
            found |= {max(0, code - length), min(size, code + 1 + length)}
            length = 2 * length + 1
    return np.array(sorted(found), dtype=np.int64)


def most_ranges(size: int, codes: int) -> int:
    """Return the maximum number of ranges that `ranges_around` makes for ``codes`` given codes."""
    return min(size, codes * (2 * size.bit_length() + 1) + 1)
