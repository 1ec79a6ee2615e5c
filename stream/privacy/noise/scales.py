"""Limits of noise scales, and whether noise at a scale hides a number."""

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
    """How many binary digits geometric noise with P(G ≥ x) = exp(−rate·x) takes; the tail beyond them has probability at most 2⁻⁶²."""
    with localcontext(prec=60):
        reach = Decimal(TAIL_BITS) * Decimal(2).ln() * Decimal(rate.denominator)
        steps = int(reach / Decimal(rate.numerator)) + 1
    return max(1, (steps - 1).bit_length())


def hides(calibration: AnswersCalibration, sensitivity_steps: int, moved: int) -> bool:
    """Whether ``answer_law`` of the same figures is a law that can be drawn from, and no NoiseScaleError."""
    if calibration.method == "gaussian":
        return Fraction(calibration.deviation) ** 2 * sensitivity_steps**2 / moved <= LARGEST_VARIANCE
    return geometric_digits(Fraction(calibration.epsilon_answer) / sensitivity_steps) <= MAX_DIGITS


def too_wide(charged: str) -> str:
    """What is told of a number that one person moves further than noise can hide, on a stream that pays for so many ``charged``."""
    return (
        f"its noise would not fit {MAX_DIGITS} binary digits; ask of an attribute with a smaller range, nearer to 0, or open a "
        f"stream with a larger epsilon or fewer {charged}"
    )
