"""Exact discrete Gaussian noise from uniform words, P(k) ∝ exp(−k²/2σ²), by one table look-up.

The first bit of a 128-bit word is the sign; a binary search compares the other 127 bits with the
cumulative probabilities of |k| in fixed point. The work depends on σ² alone, never on the outcome.
(The low 64 bits are read only if the high ones tie with an entry: probability 2⁻⁶³ for each.)

Wide noise is a sum x + 512·y of two such draws, where y may be such a sum again. Its probabilities
are those of one discrete Gaussian within one part in 2⁷⁴ at every integer (proof in docs/noise.md),
and no table has more than 2¹⁵ entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final

from stream.optional_packages import np
from stream.privacy.noise.geometric import WORD_BITS, Integers, LowWords, NoiseScaleError, Words
from stream.privacy.noise.scales import LARGEST_VARIANCE, MAX_DIGITS

LARGEST_TABLE_VARIANCE: Final = 3 << 20
"""Noise of at most this variance is a single draw."""
STRETCH: Final = 512
"""The factor of the second of two draws."""
CUT_BITS: Final = 66
"""Each table leaves out a tail of probability at most 2⁻⁶⁶."""
TABLE_BITS: Final = 127
"""Binary digits of the cumulative probabilities."""

_BASE_VARIANCE: Final = 4 * STRETCH**2
_SIGN_BIT: Final = WORD_BITS - 1
_REST: Final = (1 << (WORD_BITS - 1)) - 1
_LOW_MASK: Final = (1 << WORD_BITS) - 1
_WEIGHT_BITS: Final = 256
_DIGITS: Final = 100
_TABLES_KEPT: Final = 256
"""Tables in memory, of at most 256 KB each; a dropped table is computed again."""


@dataclass(frozen=True)
class Gaussian:
    """Discrete Gaussian noise, P(k) ∝ exp(−k²/(2·variance)) on the integers."""

    variance: Fraction

    def __post_init__(self) -> None:
        if self.variance <= 0:
            raise ValueError(f"variance must be above 0, got {float(self.variance)}")
        if self.variance > LARGEST_VARIANCE:
            raise NoiseScaleError(
                f"Gaussian noise of deviation {math.sqrt(self.variance):.3g} steps does not fit {MAX_DIGITS} binary "
                "digits; raise epsilon or delta, ask for less, or coarsen the grid",
            )

    @cached_property
    def levels(self) -> tuple[Fraction, ...]:
        """Variances of the draws x₀, x₁, … that add up to Σ 512ⁱ·xᵢ."""
        found, left = [], self.variance
        while left > LARGEST_TABLE_VARIANCE:
            above = Fraction((left - _BASE_VARIANCE) // STRETCH**2)
            found.append(left - STRETCH**2 * above)
            left = above
        return (*found, left)

    @property
    def words(self) -> int:
        """Number of 64-bit words that a draw reads."""
        return len(self.levels)

    def draw(self, high: Words, low: LowWords) -> Integers:
        """Turn uniform words of shape (n, words) into n draws; ``low`` breaks ties."""
        total = np.zeros(len(high), dtype=np.int64)
        for level in reversed(range(len(self.levels))):
            total *= STRETCH
            total += _drawn(self.levels[level], high[:, level], level, low)
        return total


def cumulated(variance: Fraction) -> tuple[int, ...]:
    """Return P(|k| < j)·2¹²⁷ for j = 1, 2, …, rounded down, without the cut tail."""
    reach = _reach(variance)
    one = 1 << _WEIGHT_BITS
    with localcontext(prec=_DIGITS):
        exponent = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
        ratio, ratios_ratio = int((-exponent).exp() * one), int((-2 * exponent).exp() * one)
    # w(k+1) = w(k)·r(k), r(k+1) = r(k)·exp(−1/σ²); error below k²·2⁻²⁵⁵.
    weight, sums, total = one, [], one
    for _ in range(reach):
        sums.append(total)
        weight = weight * ratio >> _WEIGHT_BITS
        ratio = ratio * ratios_ratio >> _WEIGHT_BITS
        total += 2 * weight
    return tuple((part << TABLE_BITS) // total for part in sums)


def _reach(variance: Fraction) -> int:
    """The least R with exp(−R²/2σ²) ≤ 2⁻⁶⁶, which bounds P(|k| > R)."""
    with localcontext(prec=_DIGITS):
        squared = 2 * CUT_BITS * Decimal(2).ln() * Decimal(variance.numerator) / Decimal(variance.denominator)
        return int(squared.sqrt()) + 1


@lru_cache(maxsize=_TABLES_KEPT)
def _table(variance: Fraction) -> tuple[Words, Words]:
    sums = cumulated(variance)
    size = 1 << len(sums).bit_length()
    high = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    high[: len(sums)] = [part >> WORD_BITS for part in sums]
    low = np.array([part & _LOW_MASK for part in sums], dtype=np.uint64)
    return high, low


def _drawn(variance: Fraction, words: Words, column: int, low: LowWords) -> Integers:
    table, lower = _table(variance)
    looked_up = words & np.uint64(_REST)
    size = np.zeros(len(words), dtype=np.int64)
    step = len(table) >> 1
    while step:
        size += step * (table[size + (step - 1)] <= looked_up)
        step >>= 1
    for row in np.flatnonzero((size > 0) & (table[size - 1] == looked_up)).tolist():
        size[row] -= _too_many(table, lower, int(size[row]), looked_up[row], low(row)[column])
    return np.where(words >> np.uint64(_SIGN_BIT), -size, size)


def _too_many(table: Words, lower: Words, count: int, high: np.uint64, low: np.uint64) -> int:
    found = 0
    while found < count and table[count - 1 - found] == high and lower[count - 1 - found] > low:
        found += 1
    return found
