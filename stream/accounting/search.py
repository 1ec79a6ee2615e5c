"""Search for the split of ε and the threshold's shift that leave the least error.

The search looks at public parameters only. It need not be exact: whatever it returns is private by construction, and
its error is computed afterwards by ``stream.accounting.accuracy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from stream.accounting.accuracy import Layout, alpha_of, failure_bound, negligible

LayoutFor = Callable[[float], Layout]
"""The layout that spends a given fraction of ε on the threshold."""

COARSEST_SCALE = 4096
"""Noise scale in steps from which on the grid no longer shows in the choice of split and shift."""

_BLOCKS = 192
_RESOLUTION = 4096
_PASSES = 3
_EXTREME_LOGIT = 20.0


def stated_split(width: int) -> float:
    """The threshold's fraction of ε in the split 1 : width^(2/3) of Lyu, Su & Li 2017, Section 4.2.

    ``width`` is 2c in general and c for monotone queries.
    """
    return 1.0 / (1.0 + math.pow(width, 2.0 / 3.0))


def best_split_and_shift(layout_for: LayoutFor, start_fraction: float, beta: float) -> tuple[float, int]:
    """The fraction of ε for the threshold (three significant digits) and the shift that minimise α.

    Alternates between the least α at fixed (fraction, shift) and the least failure probability at fixed α; near the
    optimum the two have the same minimiser. The noise of the layouts should span ``COARSEST_SCALE`` steps or more.
    """
    logit = math.log(start_fraction / (1.0 - start_fraction))
    layout = layout_for(start_fraction)
    shift = _first_shift(layout, beta)
    for turn in range(_PASSES):
        alpha = alpha_of(layout, round(shift), beta, blocks=_BLOCKS, resolution=_RESOLUTION)
        logit, shift = _least_failure(layout_for, alpha, (logit, shift), beta, first=turn == 0)
        layout = layout_for(_fraction(logit))
    fraction = min(float(f"{_fraction(logit):.3g}"), 0.999)
    return fraction, round(shift)


def _fraction(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-_EXTREME_LOGIT, min(_EXTREME_LOGIT, logit))))


def _first_shift(layout: Layout, beta: float) -> float:
    # Half of the failures for the largest of k query noises, half for what makes a high query fail.
    low_reach = math.log(1.0 + layout.queries / beta) / layout.query_rate
    if layout.one_sided:
        rounds = layout.tops if layout.fresh else 1
        high_reach = math.log(1.0 + rounds / beta) / layout.threshold_rate
    else:
        high_reach = math.log(1.0 + layout.tops / beta) / layout.query_rate
    return 0.5 * (low_reach - high_reach)


def _least_failure(
    layout_for: LayoutFor,
    alpha: int,
    start: tuple[float, float],
    beta: float,
    *,
    first: bool,
) -> tuple[float, float]:
    logit, shift = start
    tail = negligible(layout_for(_fraction(logit)), beta)

    def log_failure(point: NDArray[np.float64]) -> float:
        layout = layout_for(_fraction(float(point[0])))
        failure = failure_bound(layout, alpha, round(float(point[1]) * alpha), blocks=_BLOCKS, tail=tail)
        return math.log(max(failure, 1e-300))

    lean = shift / alpha
    logit_step, lean_step = (0.4, 0.1) if first else (0.1, 0.03)
    simplex = np.array([[logit, lean], [logit + logit_step, lean], [logit, lean + lean_step]])
    options = {"initial_simplex": simplex, "xatol": 2e-3, "fatol": 1e-4, "maxfev": 120}
    found = minimize(log_failure, simplex[0], method="Nelder-Mead", options=options)
    return float(found.x[0]), float(found.x[1]) * alpha
