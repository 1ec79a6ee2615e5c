"""Limits of noise scales, and the refusal of numbers whose noise would be too wide."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

from schemas import AnswersCalibration

MAX_DIGITS: Final = 52
"""Most binary digits of a draw."""
TAIL_BITS: Final = 62
"""The tail that is cut off geometric noise has probability at most 2⁻⁶²."""
LARGEST_VARIANCE: Final = 1 << (2 * (MAX_DIGITS - 4) + 1)
"""Gaussian noise of a larger variance does not fit 52 binary digits."""


def geometric_digits(rate: Fraction) -> int:
    """Count the binary digits of geometric noise with P(G ≥ x) = exp(−rate·x).

    The tail beyond them has probability at most 2⁻⁶².
    """
    with localcontext(prec=60):
        reach = Decimal(TAIL_BITS) * Decimal(2).ln() * Decimal(rate.denominator)
        steps = int(reach / Decimal(rate.numerator)) + 1
    return max(1, (steps - 1).bit_length())


def hides(calibration: AnswersCalibration, sensitivity_steps: int, moved: int) -> bool:
    """Return True if ``answer_law`` of these values does not raise NoiseScaleError."""
    if calibration.method == "gaussian":
        return Fraction(calibration.deviation) ** 2 * sensitivity_steps**2 / moved <= LARGEST_VARIANCE
    return geometric_digits(Fraction(calibration.epsilon_answer) / sensitivity_steps) <= MAX_DIGITS


def too_wide(charged: str) -> str:
    """Return the error text for a number whose sensitivity needs noise that is too wide."""
    return (
        f"its noise would not fit {MAX_DIGITS} binary digits; ask of an attribute with a smaller range, nearer to 0, or open a "
        f"stream with a larger epsilon or fewer {charged}"
    )
