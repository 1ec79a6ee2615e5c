"""Exact discrete Gaussian noise from uniform words, P(k) ∝ exp(−k²/2σ²), by looking one word up in a table.

The first bit of a 128-bit word is the sign, the other 127 are compared with the cumulated probabilities of |k| in fixed point,
in as many steps as the table has binary digits: the work depends on σ² alone, never on the outcome. (The low 64 bits are
looked at only when the high ones tie with an entry, which has probability 2⁻⁶³ for each.)

Wide noise is a sum x + 512·y of two such draws, y as wide as it takes and so on: its law is that of one discrete Gaussian
within one part in 2⁷⁴ at every integer (docs/noise.md proves it), and no table has more than 2¹⁵ entries.
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
"""The second of two draws counts so many times."""
CUT_BITS: Final = 66
"""Each table leaves out a tail of probability at most 2⁻⁶⁶."""
TABLE_BITS: Final = 127
"""Binary digits of the cumulated probabilities."""

_BASE_VARIANCE: Final = 4 * STRETCH**2
_SIGN_BIT: Final = WORD_BITS - 1
_REST: Final = (1 << (WORD_BITS - 1)) - 1
_LOW_MASK: Final = (1 << WORD_BITS) - 1
_WEIGHT_BITS: Final = 256
_DIGITS: Final = 100
_TABLES_KEPT: Final = 256
"""Tables in memory, of at most a quarter of a megabyte each; one that was dropped is computed again."""


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
        """The variances of the draws x₀, x₁, … that add up to Σ 512ⁱ·xᵢ."""
        found, left = [], self.variance
        while left > LARGEST_TABLE_VARIANCE:
            above = Fraction((left - _BASE_VARIANCE) // STRETCH**2)
            found.append(left - STRETCH**2 * above)
            left = above
        return (*found, left)

    @property
    def words(self) -> int:
        """How many 64-bit words a draw reads."""
        return len(self.levels)

    def draw(self, high: Words, low: LowWords) -> Integers:
        """Turn uniform words of shape (n, words) into n draws; ``low`` supplies a row's low words on a tie."""
        total = np.zeros(len(high), dtype=np.int64)
        for level in reversed(range(len(self.levels))):
            total *= STRETCH
            total += _drawn(self.levels[level], high[:, level], level, low)
        return total


def cumulated(variance: Fraction) -> tuple[int, ...]:
    """P(|k| < j) for j = 1, 2, … out of 2¹²⁷, rounded down, of noise that is a single draw; the tail is cut off."""
    reach = _reach(variance)
    one = 1 << _WEIGHT_BITS
    with localcontext(prec=_DIGITS):
        exponent = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
        ratio, ratios_ratio = int((-exponent).exp() * one), int((-2 * exponent).exp() * one)
    # w(k) = exp(−k²/2σ²) by w(k+1) = w(k)·r(k), r(k+1) = r(k)·exp(−1/σ²): off by less than k²·2⁻²⁵⁵.
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
    """The high and low words of the cumulated probabilities; a last high word is above all others, up to a power of 2."""
    sums = cumulated(variance)
    size = 1 << len(sums).bit_length()
    high = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    high[: len(sums)] = [part >> WORD_BITS for part in sums]
    low = np.array([part & _LOW_MASK for part in sums], dtype=np.uint64)
    return high, low


def _drawn(variance: Fraction, words: Words, column: int, low: LowWords) -> Integers:
    """One draw for each word: how many cumulated probabilities are not above it, with its sign."""
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
    """How many of the first ``count`` entries have this high word and a low word above that of the draw."""
    found = 0
    while found < count and table[count - 1 - found] == high and lower[count - 1 - found] > low:
        found += 1
    return found
