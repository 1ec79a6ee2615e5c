"""How wide noise can be: what its sampler draws must fit a 64-bit integer, with room for what it is added to."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

MAX_DIGITS: Final = 52
"""Most binary digits of a draw."""
TAIL_BITS: Final = 62
"""The tail that is cut off geometric noise has probability at most 2⁻⁶²."""
LARGEST_VARIANCE: Final = 1 << (2 * (MAX_DIGITS - 4) + 1)
"""Gaussian noise of a larger variance does not fit 52 binary digits."""


def geometric_digits(rate: Fraction) -> int:
    """How many binary digits geometric noise with P(G ≥ x) = exp(−rate·x) takes; the tail beyond them has probability at most 2⁻⁶²."""
    with localcontext(prec=60):
        reach = Decimal(TAIL_BITS) * Decimal(2).ln() * Decimal(rate.denominator)
        steps = int(reach / Decimal(rate.numerator)) + 1
    return max(1, (steps - 1).bit_length())
