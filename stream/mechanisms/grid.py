"""Private numbers as integers: how values meet the declared grid.

Everything private is compared as an integer count of grid steps. Rounding must not move two neighbouring values
further apart than the sensitivity says, whatever floating point does: the remainder by the grid is computed with
``fmod``, which IEEE 754 makes exact, so that a double x becomes floor(x/γ + 1/2) with no rounding error. Hence
|x − x′| ≤ Δ gives integers at most ⌈Δ/γ⌉ apart, which is the sensitivity that the noise is calibrated to.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_STEPS = 1 << 50
"""Values are clamped to ±2⁵⁰ steps; clamping brings values no further apart, and noise of 52 digits still fits."""


def to_steps(values: npt.ArrayLike, grid: float) -> npt.NDArray[np.int64]:
    """Round finite doubles to the nearest whole number of grid steps, ties upwards, clamped to ±2⁵⁰ steps."""
    exact = np.asarray(values, dtype=np.float64)
    reach = min(grid * MAX_STEPS, np.finfo(np.float64).max)
    exact = np.clip(exact, -reach, reach)
    remainder = np.fmod(exact, grid)
    whole = np.rint((exact - remainder) / grid).astype(np.int64)
    half = grid / 2
    return whole + (remainder >= half) - (remainder < -half)
