"""Error bounds of answers from measured marginals, by the law of their noise alone.

The bounds hold for adaptive questions, even if the noise is known: for all single cells and all
ranges of a marginal's attributes at once, and for sums of cells by adding their bounds. Errors
are counts of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from schemas import EstimateCalibration
from stream.privacy.accuracy.noise_laws import reach, sum_alpha, variance_of
from stream.privacy.noise import Symmetric, gaussian, sampler
from stream.privacy.planning.estimate_plans import MEASURED_PART, NUMBERS_PART

_HOPELESS = 1.5
"""Sums whose deviation exceeds the promise by this factor are not computed exactly."""


class Bounds:
    """The error bounds of one stream; together they fail with at most their parts of β."""

    def __init__(self, calibration: EstimateCalibration) -> None:
        self._calibration = calibration
        self._measurements = calibration.starts + calibration.cutoff
        self._number = calibration.sparse_vector.answer_alpha
        self._promise = calibration.sparse_vector.alpha

    def number(self) -> float:
        """Return the error of all numbers on ⊤s, in units of their sensitivity."""
        return self._number

    def cells(
        self, law: Symmetric, summed: int, sizes: Sequence[int], *, ranges: bool, charges: float = 1.0
    ) -> float:
        """Bound all sums of ``summed`` cells of one marginal; infinite beyond the promise.

        A marginal with the charge of ``charges`` ⊤s has their part of β.
        """
        if summed == 0:
            return 0.0
        beta = 0.5 * MEASURED_PART * self._calibration.beta * charges / self._measurements
        single = summed * reach(law, math.prod(sizes), beta)
        if not ranges or summed == 1:
            return single
        count = math.prod(size * (size + 1) // 2 for size in sizes)
        least = math.sqrt(2.0 * variance_of(law) * summed * math.log(2.0 * count / beta))
        if least > _HOPELESS * self._promise:
            return min(single, math.inf)
        return min(single, sum_alpha(law, summed, count, beta, whole=True))

    def fresh(self, law: Symmetric, numbers: int, summed: int, *, whole: bool) -> float:
        """Bound numbers from a marginal that their own ⊤ measured, per unit of sensitivity.

        Each sums at most ``summed`` cells, with full weight if ``whole``. The marginal's noise is
        independent of the question: no other sums need a bound.
        """
        beta = NUMBERS_PART * self._calibration.beta / self._calibration.cutoff
        return sum_alpha(law, summed, numbers, beta, whole=whole)


def opening_law(calibration: EstimateCalibration) -> Symmetric:
    """Return the noise of each cell of the opening."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_start) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_start) / calibration.marginal_sensitivity)


def marginal_law(calibration: EstimateCalibration, *, numbered: bool) -> Symmetric:
    """Return the noise of each cell of a ⊤'s marginal, with a number or without."""
    if calibration.noise == "gaussian":
        precision = 1 / Fraction(calibration.deviation_answer) ** 2
        if numbered:
            precision -= 1 / (Fraction(calibration.deviation_number) ** 2 * calibration.marginal_sensitivity)
        return gaussian(1 / precision)
    part = Fraction(calibration.sparse_vector.epsilon_answer) / calibration.cutoff
    if numbered:
        part -= Fraction(calibration.epsilon_number)
    return sampler("two_sided", part / calibration.marginal_sensitivity)


def number_law(calibration: EstimateCalibration, width: int) -> Symmetric:
    """Return the noise of a number on a ⊤ with a sensitivity of ``width`` steps."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_number) ** 2 * width**2)
    return sampler("two_sided", Fraction(calibration.epsilon_number) / width)
