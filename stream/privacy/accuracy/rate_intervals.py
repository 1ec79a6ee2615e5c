"""Intervals and estimates of shares, quotients and variances that follow from noisy numbers.

A share is the quotient of two noisy numbers, ``hits`` and ``rows``; ``misses`` are the rows that are no hits. If p is
the true share, then hits − p·rows is noise alone. The interval has every p for which |hits − p·rows| is within the
bound of this noise (Fieller 1954). Proofs: docs/noise.md, "Confidence intervals".

A variance follows from a count and two sums about a public center. The codes 0 … h of an attribute become y = 2·code −
h, from −h to h. The numbers are the count N, S = Σ y and Z = Σ (2y² − h²); one row changes them by at most 1, h and h².
The variance of y is (Z/N + h²)/2 − (S/N)²; the variance of the codes is a quarter of it (docs/proofs/quantiles.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from stream.optional_packages import np
from stream.privacy.accuracy.intervals import (
    MISS_PROBABILITY,
    SECOND_MISS_PROBABILITY,
    NoisyNumber,
    clip_interval,
    half_width,
    half_width_of_transform,
    ratio_bounds,
)
from stream.privacy.accuracy.noise_laws import SUM_ROUNDING, normal_reach, variance_of
from stream.privacy.noise.samplers import Floats, Gaussian, IntegerArray, Symmetric

_LARGEST_ODDS: Final = 1e9
"""If the odds are at least this number, a share counts as 1."""
_PARTS: Final = 64
"""Number of equal parts of [0, 1]; the same bound of the noise is used for all shares of a part."""
_DISCRETE_PART: Final = 0.01
"""Part of the miss probability for the difference between discrete and continuous noise."""
_MIDDLE_PART: Final = 0.02
"""Part of the miss probability for the distance between a share and the middle of its part."""
_MOST_POINTS: Final = 1 << 17
"""Maximum length of a transform; wider noise is bounded by continuous noise."""
_WRAPS: Final = 3
"""Number of normal densities on each side whose sum is the characteristic function of Gaussian noise."""
_LARGEST_RATE: Final = 500.0
"""Larger rates are computed as this rate; the noise is then practically always 0."""
_COVERED_DEVIATIONS: Final = 14
"""A transform covers this many standard deviations; the rest has probability below 1e−6."""
_GRID_SHARE: Final = 0.03
"""Part of the noise's deviation that the grid of a transform may add."""


class NoiseSum(NamedTuple):
    """The noise of a number: the sum of ``draws`` draws from ``law``, times ``step``."""

    law: Symmetric
    draws: int
    step: int = 1

    def half_width(self, miss: float = MISS_PROBABILITY) -> int:
        """Return a bound that the noise exceeds with probability ``miss`` at most."""
        return half_width(self.law, self.draws, miss) * self.step


def rate_bounds(hits: NoisyNumber, misses: NoisyNumber) -> tuple[float, float]:
    """Return the 95 % confidence interval of the true share of hits among hits and misses.

    The interval follows from the interval of the odds: the smaller number divided by the larger one.
    """
    top, bottom = sorted((hits, misses), key=lambda one: one.number)
    low, high = ratio_bounds(top, bottom, 0.0, _LARGEST_ODDS)
    first, last = low / (1.0 + low), 1.0 if high >= _LARGEST_ODDS else high / (1.0 + high)
    return (first, last) if top is hits else (1.0 - last, 1.0 - first)


def rate_bounds_of_sums(hits: float, misses: float, law: Symmetric, draws: tuple[int, int]) -> tuple[float, float]:
    """Return the interval of ``rate_bounds`` for two sums of noisy cells; ``draws`` has their numbers of cells."""
    if not any(draws):
        return 0.0, 1.0
    first, second = (NoiseSum(law, one) for one in draws)
    # |(1 − p)X − pY| ≤ max(|X|, |Y|)
    widest = max(first.half_width(MISS_PROBABILITY / 2), second.half_width(MISS_PROBABILITY / 2))
    return _possible_shares(hits, hits + misses, widest, first, second, of_misses=True)


def share_bounds_of_rows(hits: float, noise: NoiseSum, rows: NoisyNumber, unit: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of hits / rows; one row counts ``unit`` in ``hits``."""
    second = NoiseSum(rows.law, 1, unit)
    widest = noise.half_width(MISS_PROBABILITY / 2) + second.half_width(MISS_PROBABILITY / 2)
    return _possible_shares(hits, rows.number * unit, widest, noise, second, of_misses=False)


def _possible_shares(
    hits: float, rows: float, widest: float, first: NoiseSum, second: NoiseSum, *, of_misses: bool
) -> tuple[float, float]:
    """Return the least and the greatest p for which |hits − p·rows| is within the bound of the noise."""
    if rows <= 0.0:
        return 0.0, 1.0
    least, most = clip_interval(((hits - widest) / rows, (hits + widest) / rows), 0.0, 1.0)

    def end(outside: float, direction: int) -> float | None:
        part = min(_PARTS - 1, int(outside * _PARTS))
        while 0 <= part < _PARTS:
            reach = min(widest, _share_reach(first, second, part, of_misses))
            low = max((hits - reach) / rows, part / _PARTS)
            high = min((hits + reach) / rows, (part + 1) / _PARTS)
            if low <= high:
                return low if direction > 0 else high
            part += direction
        return None

    low, high = end(least, 1), end(most, -1)
    return (least, most) if low is None or high is None else (low, high)


@lru_cache(maxsize=1 << 14)
def _share_reach(first: NoiseSum, second: NoiseSum, part: int, of_misses: bool) -> float:
    """Return an x with P(|aX − pY| > x) ≤ 5 % for all p of a part; a is 1 − p if ``of_misses``, else 1."""
    weights = (1.0 - part / _PARTS if of_misses else 1.0) * first.step, (part + 1) / _PARTS * second.step
    sums = (first, weights[0]), (second, weights[1])
    deviation = math.sqrt(sum(weight * weight * one.draws * variance_of(one.law) for one, weight in sums))
    size = _transform_size(2 * _PARTS * deviation)
    if size <= _MOST_POINTS and first.step == second.step == 1:
        return _lattice_reach(first, second, part, of_misses, size)
    squares = sum(weight * weight * one.draws for one, weight in sums)
    if not isinstance(first.law, Gaussian) and not isinstance(second.law, Gaussian):
        rest = math.sqrt(squares * math.log(2.0 / _DISCRETE_PART) / 3.0)
        rates = float(first.law.rate), float(second.law.rate)
        scales = [(one.draws, weight / rate) for (one, weight), rate in zip(sums, rates, strict=True)]
        return (_laplace_reach(scales, deviation) + rest) * SUM_ROUNDING
    if isinstance(first.law, Gaussian) and isinstance(second.law, Gaussian):
        rounded = sum(one.draws / (24.0 * float(variance_of(one.law))) for one, _ in sums)
        missed = MISS_PROBABILITY * (math.exp(-rounded) - _DISCRETE_PART)
        rest = math.sqrt(0.5 * squares * math.log(2.0 / (MISS_PROBABILITY * _DISCRETE_PART)))
        if missed > 0.0:
            return deviation * normal_reach(missed) + rest
    parts = MISS_PROBABILITY - SECOND_MISS_PROBABILITY, SECOND_MISS_PROBABILITY
    return sum(
        weight * half_width(one.law, one.draws, part) for (one, weight), part in zip(sums, parts, strict=True)
    )


def _transform_size(deviation: float) -> int:
    """Return the number of points that a transform needs for noise of this standard deviation, in steps."""
    return 1 << math.ceil(2.0 * _COVERED_DEVIATIONS * deviation + 64.0).bit_length()


def _lattice_reach(first: NoiseSum, second: NoiseSum, part: int, of_misses: bool, size: int) -> float:
    """Bound the noise for the middle share of a part, plus its change between the middle and other shares."""
    unit = 2 * _PARTS
    middle = 2 * part + 1
    logs = np.zeros(size // 2 + 1)
    for one, weight in ((first, unit - middle if of_misses else unit), (second, middle)):
        if one.draws:
            logs += one.draws * _log_characteristic(one.law, np.arange(size // 2 + 1) * weight % size, size)
    moved = half_width(
        second.law, second.draws + (first.draws if of_misses else 0), MISS_PROBABILITY * _MIDDLE_PART
    )
    return (half_width_of_transform(logs, size, MISS_PROBABILITY * (1.0 - _MIDDLE_PART)) + 0.5 * moved) / unit


def _log_characteristic(law: Symmetric, turns: IntegerArray, size: int) -> Floats:
    """Return the logarithms of a law's characteristic function at the angles 2π·``turns``/``size``."""
    if not isinstance(law, Gaussian):
        return _log_of_laplace(float(law.rate), turns, size)
    # By Poisson's summation formula, the function is a sum of normal densities around the multiples of 2π.
    variance = float(law.variance)
    angles = np.minimum(turns, size - turns) * (2.0 * math.pi / size)
    shifts = [2.0 * math.pi * around for around in range(-_WRAPS, _WRAPS + 1) if around]
    others = sum(np.exp(-0.5 * variance * shift * (shift + 2.0 * angles)) for shift in shifts)
    at_zero = sum(math.exp(-0.5 * variance * shift * shift) for shift in shifts)
    found: Floats = -0.5 * variance * np.square(angles) + np.log1p(others) - math.log1p(at_zero)
    return found


def _log_of_laplace(rate: float, turns: IntegerArray, size: int) -> Floats:
    gap = math.expm1(min(rate, _LARGEST_RATE))
    # The function is 1 / (1 + 4q·sin²(θ/2) / (1 − q)²), and q/(1 − q)² = (1 + gap)/gap².
    found: Floats = -np.log1p(4.0 * (1.0 + gap) / gap / gap * np.square(np.sin(turns * (math.pi / size))))
    return found


def _laplace_reach(sums: Sequence[tuple[int, float]], deviation: float) -> float:
    """Return an x that sums of continuous Laplace noise exceed with 5 % · (1 − ``_DISCRETE_PART``) at most.

    ``sums`` has pairs of a number of draws and their scale. Each draw is a
    multiple of a fine grid's step plus a remainder; the result adds the bounds of both sums.
    """
    missed = MISS_PROBABILITY * _DISCRETE_PART
    rest = math.sqrt(sum(draws for draws, _ in sums) * math.log(2.0 / missed) / 3.0)
    grid = _GRID_SHARE * deviation / rest
    size = _transform_size(deviation / grid)
    logs = np.zeros(size // 2 + 1)
    for draws, scale in sums:
        if draws:
            logs += draws * _log_of_laplace(grid / scale, np.arange(size // 2 + 1), size)
    return grid * (half_width_of_transform(logs, size, MISS_PROBABILITY * (1.0 - _DISCRETE_PART) - missed) + rest)


def ratio_interval(
    numerator: tuple[float, float], denominator: tuple[float, float], bounds: tuple[float, float]
) -> tuple[float, float]:
    """Return an estimate of a quotient and the estimate's error bound.

    ``numerator`` and ``denominator`` are noisy numbers with their error bounds, and ``bounds`` is the public range of
    the true quotient. The result's bound holds if the bounds of both numbers hold. If these bounds exclude no part of
    the range and the noisy quotient is outside the range, the estimate is the middle of the range.
    """
    (top, top_alpha), (bottom, bottom_alpha) = numerator, denominator
    interval = bounds
    if bottom - bottom_alpha > 0.0:
        corners = [
            bound / divisor
            for bound in (top - top_alpha, top + top_alpha)
            for divisor in (bottom - bottom_alpha, bottom + bottom_alpha)
        ]
        interval = min(corners), max(corners)
    return _estimate_within(top / bottom if bottom > 0.0 else bounds[0], interval, bounds)


def _estimate_within(
    noisy_quotient: float, interval: tuple[float, float], bounds: tuple[float, float]
) -> tuple[float, float]:
    """Return an estimate within an interval and the public range, and its largest error there.

    If the interval lies outside the range, some noise exceeded its bound, and only the range is
    certain. If the interval does not narrow the range, the estimate is ``noisy_quotient``, or the
    middle of the range if the quotient is outside the range.
    """
    low, high = bounds
    least, greatest = low, high
    if interval[0] <= high and interval[1] >= low:
        least, greatest = max(interval[0], low), min(interval[1], high)
    if (least, greatest) == (low, high) and not low < noisy_quotient < high:
        noisy_quotient = 0.5 * (low + high)
    estimate = min(max(noisy_quotient, least), greatest)
    return estimate, max(greatest - estimate, estimate - least)


def rate_interval(hits: float, misses: float, reach: float) -> tuple[float, float]:
    """Return an estimate of the share of hits among hits and misses, and its error bound.

    ``reach`` bounds |(1 − p)·X − p·Y| for the true share p, with the noise X of ``hits`` and Y of
    ``misses``. So the true and the noisy share differ by at most ``reach`` / (hits + misses).
    """
    rows = hits + misses
    if rows <= 0.0:
        return 0.5, 0.5
    return _estimate_within(hits / rows, ((hits - reach) / rows, (hits + reach) / rows), (0.0, 1.0))


NUMBERS_PER_VARIANCE: Final = 3
"""Number of noisy numbers from which a variance follows: a count and two sums."""

_LOW_BITS: Final = 20


def row_sensitivities(size: int) -> tuple[int, int, int]:
    """Return the most by which one row changes each number; at least 1, because noise needs a scale."""
    most = max(1, size - 1)
    return 1, most, most * most


def person_sensitivities(size: int, *, replaced: bool) -> tuple[int, int, int]:
    """Return the most by which one person changes each number, divided by the contribution bound.

    Replacing a row may move a sum by twice its sensitivity.
    """
    count, total, squared = row_sensitivities(size)
    return (count, 2 * total, 2 * squared) if replaced else (count, total, squared)


def compute_moments(counts: IntegerArray) -> tuple[int, int, int]:
    """Return the private numbers N, S and Z; ``counts`` has the number of rows of each code."""
    most = len(counts) - 1
    centered = 2 * np.arange(len(counts), dtype=np.int64) - most
    squares = 2 * centered * centered - most * most
    # Products of 30-bit counts and 42-bit squares could overflow 64 bits together.
    high, low = squares >> _LOW_BITS, squares & ((1 << _LOW_BITS) - 1)
    squared = (int(counts @ high) << _LOW_BITS) + int(counts @ low)
    return int(counts.sum()), int(counts @ centered), squared


def code_variance(numbers: Sequence[float], reaches: Sequence[float], size: int) -> tuple[float, float, float]:
    """Return the variance of the codes, and the range in which the true variance lies.

    The range is correct if each noisy number is wrong by at most its entry of ``reaches``. If the numbers do
    not limit the range, it is the range of the variances of all tables.
    """
    most = float(size - 1)
    (count, total, squared), (count_reach, total_reach, squared_reach) = numbers, reaches
    largest_variance = most * most
    low, high = 0.0, largest_variance
    if count - count_reach > 0.0:
        ends = [1.0 / (count + count_reach), 1.0 / (count - count_reach)]
        least, largest = max(0.0, abs(total) - total_reach), abs(total) + total_reach
        low = min(_variance(end, squared - squared_reach, largest, largest_variance) for end in ends)
        upper = squared + squared_reach
        if least > 0.0 and ends[0] < (peak := upper / (4.0 * least * least)) < ends[1]:
            ends.append(peak)
        high = max(_variance(end, upper, least, largest_variance) for end in ends)
        low, high = min(max(low, 0.0), largest_variance), min(max(high, 0.0), largest_variance)
    noisy_variance = (
        _variance(1.0 / count, squared, abs(total), largest_variance) if count > 0.0 else 0.5 * largest_variance
    )
    estimate = min(max(noisy_variance, low), high)
    return 0.25 * estimate, 0.25 * low, 0.25 * high


def _variance(inverse: float, squared: float, total: float, largest_variance: float) -> float:
    return 0.5 * (squared * inverse + largest_variance) - (total * inverse) ** 2
