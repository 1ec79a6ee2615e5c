"""Exact transcripts of NumericSparse."""

from __future__ import annotations

from fractions import Fraction

from schemas import SparseVectorCalibration
from stream.privacy.noise.samplers import DELTA_PER_DRAW


def window(calibration: SparseVectorCalibration) -> tuple[int, ...]:
    """Return the numbers that are distinguished: those around the wanted margins, or those from the least gap on."""
    steps = calibration.sensitivity_steps
    if calibration.numbers == "gap":
        return tuple(range(2 * steps + 2))
    return tuple(range(calibration.shift - 1, calibration.shift + steps + 2))


def cut_tail(calibration: SparseVectorCalibration, queries: int) -> Fraction:
    """Return the largest amount that the sampler's cut tail adds to δ: a share for each draw, including the draws of answers."""
    rounds = calibration.cutoff if calibration.fresh_threshold else 1
    return Fraction(DELTA_PER_DRAW) * (queries + rounds + calibration.cutoff)
