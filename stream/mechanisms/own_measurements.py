"""What is measured for a question that says how accurate it must be, where nothing known keeps to that.

The numbers that it asks for, or, where it costs no more, the whole marginal on its axes. All of it follows from public sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from schemas import EstimateCalibration
from stream.accounting.costs import PARTS
from stream.accounting.prices import Price, estimate_price, numbers_failure, rate_of
from stream.accounting.tails import two_sided_reach
from stream.mechanisms.estimate_questions import Groups, Question
from stream.noise import Symmetric, sampler


@dataclass(frozen=True, slots=True)
class OwnMeasurement:
    """The law of its noise, and the error of the numbers, in units of what one person moves a number by."""

    law: Symmetric
    reach: Fraction


def own_price(calibration: EstimateCalibration, question: Question, alpha: Fraction) -> tuple[Price, bool]:
    """The least price at which every number is within ``alpha``, in the unit that is asked for; and whether a marginal has it."""
    steps = alpha * question.unit
    numbers = estimate_price(calibration, _width(calibration, question), question.count, math.floor(steps))
    if not question.whole or question.summed != 1:
        return numbers, False
    # Each number is one cell, in full: a marginal costs what one of its cells does where a row is added or removed.
    rows = math.floor(steps / question.width)
    cells = estimate_price(calibration, calibration.marginal_sensitivity, question.count, rows)
    return (cells, True) if cells.parts <= numbers.parts else (numbers, False)


def own_measurement(
    calibration: EstimateCalibration, question: Question, share: int, *, marginal: bool
) -> OwnMeasurement:
    """The measurement that has so many parts of a ⊤'s ε."""
    width = calibration.marginal_sensitivity if marginal else _width(calibration, question)
    rate = rate_of(calibration, share, width)
    reach = two_sided_reach(float(rate), question.count, numbers_failure(calibration, share / PARTS))
    law = sampler("two_sided", rate)
    return OwnMeasurement(law, Fraction(reach) if marginal else Fraction(reach, question.width))


def _width(calibration: EstimateCalibration, question: Question) -> int:
    """How far one person moves all numbers together: the counts of groups as they move a marginal."""
    return question.width * (calibration.marginal_sensitivity if isinstance(question, Groups) else 1)
