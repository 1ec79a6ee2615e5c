"""Gaussian noise for every question, as wide as the analytic Gaussian mechanism asks for (Balle & Wang, ICML 2018).

Counts of k questions move by at most √k together in the Euclidean norm; a mechanism that adds equal Gaussian noise to all is
(ε, δ)-private as one of a single count with a sensitivity of √k is, also for questions chosen one after the other
(Dong, Roth & Su 2022). numpy's noise: a peer's figure, not a release.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtri

Floats = npt.NDArray[np.float64]


def delta_of(scale: float, sensitivity: float, epsilon: float) -> float:
    """The exact δ of Gaussian noise at ε."""
    half, shift = sensitivity / (2.0 * scale), epsilon * scale / sensitivity
    return math.exp(log_ndtr(half - shift)) - math.exp(epsilon + log_ndtr(-half - shift))


def gaussian_scale(epsilon: float, delta: float, sensitivity: float) -> float:
    """The least standard deviation, to one part in a million, that is (ε, δ)-private."""
    low, high = 1e-6 * sensitivity, sensitivity
    while delta_of(high, sensitivity, epsilon) > delta:
        low, high = high, 2.0 * high
    while high > low * (1.0 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_of(middle, sensitivity, epsilon) > delta else (low, middle)
    return high


def answers(
    truth: Floats, epsilon: float, delta: float, beta: float, generator: np.random.Generator
) -> tuple[Floats, float]:
    """Every answer, and an error that all keep to with probability 1 − β."""
    count = len(truth)
    scale = gaussian_scale(epsilon, delta, math.sqrt(count))
    each = -math.expm1(math.log1p(-beta) / count)
    return truth + generator.normal(0.0, scale, count), float(-ndtri(each / 2.0)) * scale
