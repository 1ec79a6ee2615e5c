"""Exact samplers of noise on the integers, from uniform words.

**Geometric.** A geometric variable G on {0, 1, 2, …} with P(G ≥ x) = qˣ, q = exp(−rate), has independent binary digits:
digit i is 1 with probability q^(2^i) / (1 + q^(2^i)). Each digit is drawn by comparing a 128-bit uniform word with this
probability in fixed point. So the sampled distribution is a product of Bernoulli variables with known probabilities.
The number of words and comparisons depends on the rate alone, never on the outcome: timestamps reveal nothing about the
noise. (The low 64 bits are read only if the high 64 bits tie, which has probability 2⁻⁶⁴ per digit.)

**Discrete Gaussian.** A draw with P(k) ∝ exp(−k²/2σ²) is one table look-up. The first bit of a 128-bit word
is the sign; a binary search compares the other 127 bits with the cumulative probabilities of |k|
in fixed point. The work depends on σ² alone, never on the outcome. (The low 64 bits are read only
if the high ones tie with an entry, which has probability 2⁻⁶³ per entry.)

Wide noise is a sum x + 512·y of two such draws, where y may again be a sum. At every integer its probability differs by
at most one part in 2⁷⁴ from one discrete Gaussian (proof in docs/noise.md), and no table has more than 2¹⁵ entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, overload

from stream.optional_packages import np

if TYPE_CHECKING:
    import numpy.typing as npt

    from schemas import AnswersCalibration

Words: TypeAlias = "npt.NDArray[np.uint64]"
IntegerArray: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"

WORD_BITS = 64
FIXED_POINT_BITS = 128
DELTA_PER_DRAW = 2.0**-60
"""Largest total variation distance between a draw and its ideal law (docs/noise.md).

For a one-sided draw it is at most 2⁻⁶² (the probability of the tail that is cut off) plus 2⁻¹²⁰ (for rounding
the probabilities of the digits). Two-sided noise is two such draws, so its distance is at most twice as large.
The bound also holds for Gaussian noise that is a sum of draws.
"""

LowWords = Callable[[int], Words]
"""Returns the low words of a row with this number; called only on a tie."""

MAX_DIGITS: Final = 52
"""Maximum number of binary digits of a draw."""
TAIL_BITS: Final = 62
"""The cut-off tail of geometric noise has a probability of at most 2⁻⁶²."""
LARGEST_VARIANCE: Final = 1 << (2 * (MAX_DIGITS - 4) + 1)
"""Gaussian noise of a larger variance does not fit 52 binary digits."""


def geometric_digits(rate: Fraction) -> int:
    """Count the binary digits of geometric noise; larger noise has a probability of at most 2⁻⁶²."""
    with localcontext(prec=60):
        reach = Decimal(TAIL_BITS) * Decimal(2).ln() * Decimal(rate.denominator)
        steps = int(reach / Decimal(rate.numerator)) + 1
    return max(1, (steps - 1).bit_length())


class NoiseScaleError(ValueError):
    """The noise would not fit a 64-bit integer."""


def to_decimal(value: Fraction) -> Decimal:
    """Convert a fraction to a decimal with the precision of the current context."""
    return Decimal(value.numerator) / Decimal(value.denominator)


@dataclass(frozen=True)
class Geometric:
    """One-sided geometric noise with P(G ≥ x) = exp(−rate·x), x in integer steps."""

    rate: Fraction

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be above 0, got {float(self.rate)}")
        if self.digits > MAX_DIGITS:
            raise NoiseScaleError(
                f"noise of scale {float(1 / self.rate):.3g} steps does not fit {MAX_DIGITS} binary digits; "
                "raise epsilon, lower the cutoff, or coarsen the grid"
            )

    @cached_property
    def digits(self) -> int:
        """Number of binary digits of a draw."""
        return geometric_digits(self.rate)

    @property
    def words(self) -> int:
        """Number of 64-bit words that a draw reads."""
        return self.digits

    @cached_property
    def probabilities(self) -> tuple[int, ...]:
        """Each digit's probability of being 1, as an integer out of 2¹²⁸."""
        with localcontext(prec=80):
            powers = [to_decimal(-self.rate * 2**digit).exp() for digit in range(self.digits)]
            return tuple(int(power / (1 + power) * 2**FIXED_POINT_BITS) for power in powers)

    @cached_property
    def _high(self) -> Words:
        return np.array([p >> WORD_BITS for p in self.probabilities], dtype=np.uint64)

    @cached_property
    def _low(self) -> Words:
        return np.array([p & (2**WORD_BITS - 1) for p in self.probabilities], dtype=np.uint64)

    def draw(self, high: Words, low: LowWords) -> IntegerArray:
        """Turn uniform words of shape (n, words) into n draws; ``low`` breaks ties."""
        ones = high < self._high
        ties = high == self._high
        if ties.any():
            for row in np.flatnonzero(ties.any(axis=1)):
                ones[row] |= ties[row] & (low(int(row)) < self._low)
        packed = np.zeros((len(high), 8), dtype=np.uint8)
        digits = np.packbits(ones, axis=1, bitorder="little")
        packed[:, : digits.shape[1]] = digits
        return packed.view("<i8")[:, 0].astype(np.int64, copy=False)


@dataclass(frozen=True)
class TwoSidedGeometric:
    """Discrete Laplace noise, P(k) ∝ exp(−rate·|k|), as a difference of geometric draws."""

    rate: Fraction

    def __post_init__(self) -> None:
        _ = self.one_sided

    @cached_property
    def one_sided(self) -> Geometric:
        """The law of the two draws whose difference is the noise."""
        return Geometric(self.rate)

    @property
    def words(self) -> int:
        """Number of 64-bit words that a draw reads."""
        return 2 * self.one_sided.words

    def draw(self, high: Words, low: LowWords) -> IntegerArray:
        """Turn uniform words of shape (n, words) into n draws; ``low`` breaks ties."""
        width = self.one_sided.words
        plus = self.one_sided.draw(high[:, :width], lambda row: low(row)[:width])
        minus = self.one_sided.draw(high[:, width:], lambda row: low(row)[width:])
        return plus - minus


LARGEST_TABLE_VARIANCE: Final = 3 << 20
"""Noise of at most this variance is a single draw."""
STRETCH: Final = 512
"""The factor 512 in x + 512·y."""
CUT_BITS: Final = 66
"""The tail that a table leaves out has a probability of at most 2⁻⁶⁶."""
TABLE_BITS: Final = 127
"""Number of binary digits of the cumulative probabilities in a table."""

_BASE_VARIANCE: Final = 4 * STRETCH**2
_SIGN_BIT: Final = WORD_BITS - 1
_MAGNITUDE_MASK: Final = (1 << (WORD_BITS - 1)) - 1
_LOW_MASK: Final = (1 << WORD_BITS) - 1
_WEIGHT_BITS: Final = 256
_DIGITS: Final = 100
_TABLES_KEPT: Final = 256
"""Maximum number of tables in memory, of at most 256 KB each; others are computed again."""


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
                "digits; raise epsilon or delta, ask for less, or coarsen the grid"
            )

    @cached_property
    def levels(self) -> tuple[Fraction, ...]:
        """Variances of the draws x₀, x₁, … whose sum Σ 512ⁱ·xᵢ is the noise."""
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

    def draw(self, high: Words, low: LowWords) -> IntegerArray:
        """Turn uniform words of shape (n, words) into n draws; ``low`` breaks ties."""
        total = np.zeros(len(high), dtype=np.int64)
        for level in reversed(range(len(self.levels))):
            total *= STRETCH
            total += _draw_level(self.levels[level], high[:, level], level, low)
        return total


def cumulative_probabilities(variance: Fraction) -> tuple[int, ...]:
    """Return P(|k| < j)·2¹²⁷ for j = 1, 2, …, rounded down, for the law without its cut-off tail."""
    reach = _table_reach(variance)
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


def _table_reach(variance: Fraction) -> int:
    """Return the least R with exp(−R²/2σ²) ≤ 2⁻⁶⁶, which bounds P(|k| > R)."""
    with localcontext(prec=_DIGITS):
        squared = 2 * CUT_BITS * Decimal(2).ln() * Decimal(variance.numerator) / Decimal(variance.denominator)
        return int(squared.sqrt()) + 1


@lru_cache(maxsize=_TABLES_KEPT)
def _cumulative_table(variance: Fraction) -> tuple[Words, Words]:
    sums = cumulative_probabilities(variance)
    size = 1 << len(sums).bit_length()
    high = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
    high[: len(sums)] = [part >> WORD_BITS for part in sums]
    low = np.array([part & _LOW_MASK for part in sums], dtype=np.uint64)
    return high, low


def _draw_level(variance: Fraction, words: Words, column: int, low: LowWords) -> IntegerArray:
    table, lower = _cumulative_table(variance)
    magnitudes = words & np.uint64(_MAGNITUDE_MASK)
    size = np.zeros(len(words), dtype=np.int64)
    step = len(table) >> 1
    while step:
        size += step * (table[size + (step - 1)] <= magnitudes)
        step >>= 1
    for row in np.flatnonzero((size > 0) & (table[size - 1] == magnitudes)).tolist():
        size[row] -= _count_excess(table, lower, int(size[row]), magnitudes[row], low(row)[column])
    return np.where(words >> np.uint64(_SIGN_BIT), -size, size)


def _count_excess(table: Words, lower: Words, count: int, high: np.uint64, low: np.uint64) -> int:
    """Return by how much ``count`` is too large, according to the low words of the entries that tie."""
    excess = 0
    while excess < count and table[count - 1 - excess] == high and lower[count - 1 - excess] > low:
        excess += 1
    return excess


Symmetric = TwoSidedGeometric | Gaussian
"""The laws of noise that is added to a number: symmetric around 0."""
Sampler = Geometric | Symmetric


@overload
def sampler(noise: Literal["one_sided"], rate: Fraction) -> Geometric: ...
@overload
def sampler(noise: Literal["two_sided"], rate: Fraction) -> TwoSidedGeometric: ...
@overload
def sampler(noise: Literal["one_sided", "two_sided"], rate: Fraction) -> Geometric | TwoSidedGeometric: ...
def sampler(noise: Literal["one_sided", "two_sided"], rate: Fraction) -> Geometric | TwoSidedGeometric:
    """Return the sampler of geometric noise or of discrete Laplace noise."""
    return _geometric(rate) if noise == "one_sided" else _two_sided(rate)


gaussian = lru_cache(maxsize=4096)(Gaussian)
"""Returns the sampler of discrete Gaussian noise."""
_geometric = lru_cache(maxsize=4096)(Geometric)
_two_sided = lru_cache(maxsize=4096)(TwoSidedGeometric)


def noise_fits(calibration: AnswersCalibration, sensitivity_steps: int, moved: int) -> bool:
    """Return True if the noise of ``answer_law`` for these arguments fits 52 binary digits."""
    if calibration.method == "gaussian":
        return Fraction(calibration.deviation) ** 2 * sensitivity_steps**2 / moved <= LARGEST_VARIANCE
    return geometric_digits(Fraction(calibration.epsilon_answer) / sensitivity_steps) <= MAX_DIGITS


def wide_noise_message(charged: str) -> str:
    """Return the error text for a number with too much noise; ``charged`` is a name of the charged answers."""
    return (
        f"its noise would not fit {MAX_DIGITS} binary digits; ask of an attribute with a smaller range, nearer to 0, or open a "
        f"stream with a larger epsilon or fewer {charged}"
    )
