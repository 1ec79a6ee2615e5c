"""Confidence intervals: bounds of the noise of one number, from its public law alone.

A *half-width* h satisfies P(|noise| ≤ h) ≥ 95 %. So for any data, the interval of ±h around the released number
contains the true number with at least this probability. h depends only on the public calibration and question, so an
interval is post-processing of the released number. For a sum of few draws h is the least half-width; for other noise it
may be larger than necessary. Proofs: docs/noise.md, "Confidence intervals".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from stream.optional_packages import np, special
from stream.privacy.accuracy.noise_laws import (
    GAUSSIAN_TAIL_FACTOR,
    SUM_ROUNDING,
    noise_reach,
    normal_reach,
    sum_alpha,
    sum_reach,
    variance_of,
)
from stream.privacy.composition.gaussian_losses import LEAST_VARIANCE
from stream.privacy.noise.samplers import Floats, Gaussian, Symmetric

CONFIDENCE: Final = 0.95
"""Probability that an interval contains the true number."""
MISS_PROBABILITY: Final = 0.05
"""Probability that an interval does not contain the true number."""

SECOND_MISS_PROBABILITY: Final = 0.02
"""Part of ``MISS_PROBABILITY`` that ``widen_interval`` leaves for a second noise in the same number."""

_EXACT_TERMS: Final = 64
"""Sums of at most this many Laplace draws use the closed form of their tail."""
_MOST_EXACT_TERMS: Final = 1024
"""The same limit for wide noise, for which a transform would take long."""
_SIGNIFICANT_BITS: Final = 6
_TRANSFORM_DEVIATION: Final = 1 << 15
"""Sums with a larger standard deviation, in steps, are bounded without a transform."""
_COVERED_DEVIATIONS: Final = 24
"""A transform covers this many standard deviations; the rest has probability below 1e−6."""
_TRANSFORM_ERROR: Final = 2e-6
_MIXTURE_PART: Final = 0.02
"""Share of the miss probability for each of the two events that ``_mixture_half_width`` neglects.

They are a larger variance than its bound, and a larger sum of the remainders than its bound.
"""
_EXACT_VARIANCE: Final = 1 << 20
"""Gaussian noise of at most this variance is summed value by value."""


class NoisyNumber(NamedTuple):
    """A released number with the law of its noise, in steps."""

    number: int
    law: Symmetric


@lru_cache(maxsize=8192)
def half_width(law: Symmetric, terms: int = 1, miss: float = MISS_PROBABILITY) -> int:
    """Return an h with P(|sum of ``terms`` draws| > h) ≤ ``miss``.

    The result is the least h for one draw, and for sums of at most 64 Laplace draws. A larger number of terms
    is rounded up to six binary digits; further draws only widen a sum, so h still holds (docs/noise.md).
    """
    if terms == 0:
        return 0
    if isinstance(law, Gaussian):
        total = terms * law.variance
        if total <= _EXACT_VARIANCE and (terms == 1 or law.variance >= LEAST_VARIANCE):
            return _gaussian_half_width(float(total), miss / GAUSSIAN_TAIL_FACTOR**terms)
        return math.ceil(sum_alpha(law, terms, 1, miss, full_weights=True))
    return noise_reach(law, 1, miss) if terms == 1 else _laplace_sum_half_width(float(law.rate), terms, miss)


def _laplace_sum_half_width(rate: float, terms: int, miss: float) -> int:
    if terms > _EXACT_TERMS:
        unit = 1 << (terms.bit_length() - _SIGNIFICANT_BITS)
        terms = -(-terms // unit) * unit
    deviation = math.sqrt(2.0 * terms) / rate
    if terms <= _EXACT_TERMS or (terms <= _MOST_EXACT_TERMS and deviation > _TRANSFORM_DEVIATION):
        return sum_reach(rate, terms, 1, miss)
    if deviation <= _TRANSFORM_DEVIATION:
        return _transformed_half_width(rate, terms, math.ceil(_COVERED_DEVIATIONS * deviation), miss)
    return _mixture_half_width(rate, terms, miss)


def weighted_half_width(law: Symmetric, weights: Sequence[int]) -> int:
    """Return an h with P(|Σ weight·draw| > h) ≤ ``MISS_PROBABILITY``; Chernoff's bound if weights differ."""
    sizes = {abs(weight) for weight in weights if weight}
    if not sizes:
        return 0
    terms, largest = sum(1 for weight in weights if weight), max(sizes)
    if len(sizes) == 1:
        return largest * half_width(law, terms)
    return half_width_bound(law, terms, largest)


def half_width_bound(law: Symmetric, terms: int, largest: int) -> int:
    """Return an h that bounds ``weighted_half_width`` for ``terms`` weights of at most ``largest``."""
    return math.ceil(largest * sum_alpha(law, terms, 1, MISS_PROBABILITY, full_weights=False))


def ratio_bounds(numerator: NoisyNumber, denominator: NoisyNumber, low: float, high: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a quotient that lies from ``low`` to ``high``.

    If r is the true quotient, then numerator − r·denominator is noise alone: the difference of two
    independent draws (Fieller 1954). The interval has every r for which noise of at least this size has a
    probability above 5 %. If the denominator is within its own noise, every r may be possible.
    """

    def is_possible(r: float) -> bool:
        return (
            _difference_tail(numerator.law, denominator.law, r, abs(numerator.number - r * denominator.number))
            > MISS_PROBABILITY
        )

    if denominator.number <= _denominator_half_width(numerator.law, denominator.law):
        return low, high
    middle = min(max(numerator.number / denominator.number, low), high)
    if not is_possible(middle):
        # No quotient in the range is possible, so the interval is the nearest end of the range.
        return middle, middle
    return (
        low if is_possible(low) else _find_edge(middle, low, is_possible),
        high if is_possible(high) else _find_edge(middle, high, is_possible),
    )


def _find_edge(inside: float, outside: float, is_possible: Callable[[float], bool]) -> float:
    """Search for the end of the possible quotients between two values; round it outwards."""
    for _ in range(60):
        middle = 0.5 * (inside + outside)
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if is_possible(middle) else (inside, middle)
    return outside


def widen_interval(low: float, high: float) -> tuple[float, float]:
    """Widen a 95 % interval so that it misses the true number with a probability of at most 3 %.

    The number must have a single noise. The tail of a sum S of independent draws is log-concave: for every
    x and every λ ≥ 1, P(|S| > λx) is at most P(|S| > x)^λ. Here x is the half-width, and 0.05^λ = 0.03. One
    more unit covers the rounding to integers.
    """
    factor = math.log(MISS_PROBABILITY - SECOND_MISS_PROBABILITY) / math.log(MISS_PROBABILITY) - 1.0
    more = factor * (0.5 * (high - low) + 1.0) + 1.0
    return low - more, high + more


def clip_interval(interval: tuple[float, float], low: float | None, high: float | None) -> tuple[float, float]:
    """Restrict an interval to the public range of the true number."""
    first, last = interval
    if low is not None:
        first, last = max(first, low), max(last, low)
    if high is not None:
        first, last = min(first, high), min(last, high)
    return first, last


def _gaussian_half_width(variance: float, miss: float) -> int:
    """Return the least half-width of one draw of discrete Gaussian noise."""
    values = np.arange(1, math.ceil(12.0 * math.sqrt(variance)) + 12, dtype=np.float64)
    masses = np.exp(-values * values / (2.0 * variance))
    beyond = np.cumsum(masses[::-1])[::-1]
    # beyond[x] is the probability weight of all values above x, on one side.
    tails = 2.0 * beyond / (1.0 + 2.0 * beyond[0]) * SUM_ROUNDING
    return int(np.argmax(tails <= miss))


def _mixture_half_width(rate: float, terms: int, miss: float) -> int:
    """Bound a sum of many Laplace draws whose range is too wide for a transform.

    A Laplace variable is a normal variable whose variance is exponentially distributed. Discrete draws
    differ from continuous ones by independent remainders in (−1, 1).
    """
    share = _MIXTURE_PART * miss
    variance = 2.0 * float(special.gammainccinv(terms, share)) / (rate * rate)
    remainder = math.sqrt(2.0 * terms * math.log(2.0 / share))
    z = normal_reach(miss * (1.0 - share) - share)
    return math.ceil((math.sqrt(variance) * z + remainder) * SUM_ROUNDING)


def _transformed_half_width(rate: float, terms: int, span: int, miss: float) -> int:
    """Return the half-width of a sum, from its characteristic function at ``span`` or more points."""
    size = 1 << (span + 64).bit_length()
    angles = np.arange(size // 2 + 1, dtype=np.float64) * (2.0 * math.pi / size)
    q, gap = math.exp(-rate), -math.expm1(-rate)
    # 1 − 2q·cos θ + q² = (1 − q)² + 4q·sin²(θ/2)
    logs = -np.log1p(4.0 * q * np.square(np.sin(0.5 * angles)) / (gap * gap))
    return half_width_of_transform(terms * logs, size, miss)


def half_width_of_transform(logs: Floats, size: int, miss: float) -> int:
    """Return the least k with P(|S| > k) ≤ ``miss`` from the logarithms of the characteristic function of S."""
    masses = np.fft.irfft(np.exp(logs), size)[: size // 2]
    tails = 1.0 - (2.0 * np.cumsum(masses) - masses[0])
    return int(np.argmax(tails + _TRANSFORM_ERROR <= miss))


def _difference_tail(first: Symmetric, second: Symmetric, factor: float, at_least: float) -> float:
    """Bound P(|X − factor·Y| ≥ ``at_least``) for independent draws X and Y: both Laplace or both Gaussian."""
    factor = abs(factor)
    if isinstance(first, Gaussian) or isinstance(second, Gaussian):
        spread = math.sqrt(variance_of(first) + factor * factor * variance_of(second))
        beyond = max(0.0, at_least - 1.0 - factor) / spread
        return _gaussian_factor(first) * _gaussian_factor(second) * math.erfc(beyond / math.sqrt(2.0))
    wide, narrow = 1.0 / float(first.rate), factor / float(second.rate)
    wide, narrow = max(wide, narrow), min(wide, narrow)
    # The tail is (w²·e^{−x/w} − n²·e^{−x/n}) / (w² − n²), computed without division by 0 if w = n.
    apart = at_least * (wide - narrow) / (wide * narrow) if narrow > 0.0 else math.inf
    if apart < 1e-6:
        tail = (1.0 + 0.5 * at_least / narrow) * math.exp(-at_least / wide)
    else:
        ratio = (narrow / wide) ** 2
        tail = math.exp(-at_least / wide) * (1.0 - ratio * math.exp(-apart)) / (1.0 - ratio)
    return min(1.0, tail * _laplace_factor(first) * _laplace_factor(second) * SUM_ROUNDING)


def _denominator_half_width(first: Symmetric, second: Symmetric) -> float:
    """Return the half-width of the denominator's noise ``second``.

    It follows from the limit of ``_difference_tail`` as the quotient (``factor``) grows.
    """
    if isinstance(first, Gaussian) or isinstance(second, Gaussian):
        miss = MISS_PROBABILITY / (_gaussian_factor(first) * _gaussian_factor(second))
        return math.sqrt(variance_of(second)) * normal_reach(miss) + 1.0
    log_ratio = math.log(_laplace_factor(first) * _laplace_factor(second) / MISS_PROBABILITY)
    return log_ratio / float(second.rate) * SUM_ROUNDING


def _laplace_factor(law: Symmetric) -> float:
    """Return c with P(X ≥ y) ≤ c·P(L ≥ y) for every y, with discrete noise X and continuous Laplace noise L."""
    return 1.0 if isinstance(law, Gaussian) else 2.0 / (1.0 + math.exp(-float(law.rate)))


def _gaussian_factor(law: Symmetric) -> float:
    """Return c with P(X ≥ y) ≤ c·P(N + 1 ≥ y), with discrete noise X and continuous Gaussian noise N."""
    return 1.0 + 3.0 * math.exp(-2.0 * math.pi**2 * float(law.variance)) if isinstance(law, Gaussian) else 1.0
