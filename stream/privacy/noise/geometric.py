"""Exact geometric noise from uniform words, one comparison per binary digit.

A geometric variable G on {0, 1, 2, …} with P(G ≥ x) = qˣ has independent binary digits: digit i is
1 with probability q^(2^i) / (1 + q^(2^i)). Each digit compares one 128-bit uniform word with that
probability in fixed point, so that the sampled distribution is a product of known Bernoullis. The
number of words and comparisons depends on the rate alone, never on the outcome: timestamps reveal
nothing about the noise. (The low 64 bits are read only if the high 64 bits tie, which has
probability 2⁻⁶⁴ per digit.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from stream.optional_packages import np
from stream.privacy.noise.scales import MAX_DIGITS, geometric_digits

if TYPE_CHECKING:
    import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[np.uint64]"
Integers: TypeAlias = "npt.NDArray[np.int64]"

WORD_BITS = 64
FIXED_POINT_BITS = 128
DELTA_PER_DRAW = 2.0**-60
"""Largest total variation distance between a draw and its ideal law (docs/noise.md).

A one-sided draw is off by at most 2⁻⁶², the probability of the tail that is cut off, plus at most
2⁻¹²⁰ by rounding its digits' probabilities. Two-sided noise consists of two such draws and is off
by at most twice as much. Gaussian noise is off by no more, with all its draws together.
"""

LowWords = Callable[[int], Words]
"""Returns the low words of a row, given its number; called only on a tie."""


class NoiseScaleError(ValueError):
    """The noise would not fit a 64-bit integer."""


def _exponential(exponent: Fraction) -> Decimal:
    return (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()


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
                "raise epsilon, lower the cutoff, or coarsen the grid",
            )

    @cached_property
    def digits(self) -> int:
        """Number of binary digits; the tail beyond them has probability at most 2⁻⁶²."""
        return geometric_digits(self.rate)

    @property
    def words(self) -> int:
        """Number of 64-bit words that a draw reads."""
        return self.digits

    @cached_property
    def probabilities(self) -> tuple[int, ...]:
        """Each digit's probability of being 1, as an integer out of 2¹²⁸."""
        with localcontext(prec=80):
            powers = [_exponential(-self.rate * 2**digit) for digit in range(self.digits)]
            return tuple(int(power / (1 + power) * 2**FIXED_POINT_BITS) for power in powers)

    @cached_property
    def _high(self) -> Words:
        return np.array([p >> WORD_BITS for p in self.probabilities], dtype=np.uint64)

    @cached_property
    def _low(self) -> Words:
        return np.array([p & (2**WORD_BITS - 1) for p in self.probabilities], dtype=np.uint64)

    def draw(self, high: Words, low: LowWords) -> Integers:
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
        _ = self.half

    @cached_property
    def half(self) -> Geometric:
        """The law of each of the two parts."""
        return Geometric(self.rate)

    @property
    def words(self) -> int:
        """Number of 64-bit words that a draw reads."""
        return 2 * self.half.words

    def draw(self, high: Words, low: LowWords) -> Integers:
        """Turn uniform words of shape (n, words) into n draws; ``low`` breaks ties."""
        width = self.half.words
        plus = self.half.draw(high[:, :width], lambda row: low(row)[:width])
        minus = self.half.draw(high[:, width:], lambda row: low(row)[width:])
        return plus - minus
