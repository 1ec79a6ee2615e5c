"""Variance from a count and two sums about a public centre.

The codes 0 … h of an attribute become y = 2·code − h, from −h to h. The numbers are the count N,
S = Σ y and Z = Σ (2y² − h²); one row changes them by at most 1, h and h². The variance of y is
(Z/N + h²)/2 − (S/N)²; the variance of the codes is a quarter of it (docs/proofs/quantiles.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stream.optional_packages import np

if TYPE_CHECKING:
    import numpy.typing as npt

NUMBERS_PER_VARIANCE: Final = 3
"""A variance follows from this many numbers: a count and two sums."""

_LOW_BITS: Final = 20


def row_sensitivities(size: int) -> tuple[int, int, int]:
    """Return the most by which one row changes each number, and at least 1, as noise needs a scale."""
    most = max(1, size - 1)
    return 1, most, most * most


def person_sensitivities(size: int, *, replaced: bool) -> tuple[int, int, int]:
    """Return the most by which one person changes each number, per row.

    Replacing a row may move a sum by twice its sensitivity.
    """
    count, total, squared = row_sensitivities(size)
    return (count, 2 * total, 2 * squared) if replaced else (count, total, squared)


def compute_moments(counts: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    """Return count, sum and sum of squares of the rows in each code: private."""
    most = len(counts) - 1
    centred = 2 * np.arange(len(counts), dtype=np.int64) - most
    squares = 2 * centred * centred - most * most
    # Products of 30-bit counts and 42-bit squares could overflow 64 bits together.
    high, low = squares >> _LOW_BITS, squares & ((1 << _LOW_BITS) - 1)
    squared = (int(counts @ high) << _LOW_BITS) + int(counts @ low)
    return int(counts.sum()), int(counts @ centred), squared


def variance_of(numbers: Sequence[float], reaches: Sequence[float], size: int) -> tuple[float, float, float]:
    """Return the variance of the codes, and the range in which the true variance lies.

    ``numbers`` are noisy, and the range holds if none is wrong by more than its reach. If they do not
    limit the range, it is the range of all tables.
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
