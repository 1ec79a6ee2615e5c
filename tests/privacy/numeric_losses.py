"""Exact transcripts of NumericSparse."""

from __future__ import annotations

from fractions import Fraction

from schemas import SparseVectorCalibration
from stream.privacy.noise.samplers import DELTA_PER_DRAW


def window(calibration: SparseVectorCalibration) -> tuple[int, ...]:
    """Which numbers are told apart: around the margins asked for, or from the least gap on."""
    steps = calibration.sensitivity_steps
    if calibration.numbers == "gap":
        return tuple(range(2 * steps + 2))
    return tuple(range(calibration.shift - 1, calibration.shift + steps + 2))


def cut_tail(calibration: SparseVectorCalibration, queries: int) -> Fraction:
    """What the sampler's cut tail may add to δ: a share for each draw, answers among them."""
    rounds = calibration.cutoff if calibration.fresh_threshold else 1
    return Fraction(DELTA_PER_DRAW) * (queries + rounds + calibration.cutoff)
