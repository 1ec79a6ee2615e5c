"""The laws of the noise in what a stream with an estimate measures; docs/proofs/pmw.md says why they are private."""

from __future__ import annotations

from fractions import Fraction

from schemas import EstimateCalibration
from stream.noise import Symmetric, gaussian, sampler


def opening_law(calibration: EstimateCalibration) -> Symmetric:
    """The noise of each cell that is measured with the first answer."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_start) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_start) / calibration.marginal_sensitivity)


def marginal_law(calibration: EstimateCalibration, *, numbered: bool) -> Symmetric:
    """The noise of each cell of the marginal that a ⊤ measures, with a number beside it or without."""
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
    """The noise of a number told on a ⊤, which one person moves by ``width`` steps."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_number) ** 2 * width**2)
    return sampler("two_sided", Fraction(calibration.epsilon_number) / width)
