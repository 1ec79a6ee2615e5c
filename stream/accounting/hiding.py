"""Whether there is noise that hides a number, told from public figures and without drawing any."""

from __future__ import annotations

from fractions import Fraction

from schemas import AnswersCalibration
from stream.scales import LARGEST_VARIANCE, MAX_DIGITS, geometric_digits


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
