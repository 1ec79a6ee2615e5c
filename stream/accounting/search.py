"""Search for the split of ε and the threshold's shift that leave the least error.

The search looks at public parameters only. It need not be exact: whatever it returns is private by construction, and
its error is computed afterwards by ``stream.accounting.accuracy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stream.accounting.accuracy import Layout, alpha_of, failure_bound, negligible
from stream.later import np, optimize

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Split:
    """How ε is divided: the fraction ``answers`` on fresh numbers, and of the rest the fraction ``threshold`` on ρ."""

    threshold: float
    answers: float = 0.0


LayoutFor = Callable[[Split], Layout]
"""The layout that divides ε so."""

COARSEST_SCALE = 4096
"""Noise scale in steps from which on the grid no longer shows in the choice of split and shift."""

_BLOCKS = 192
_RESOLUTION = 4096
_PASSES = 3
_EXTREME_LOGIT = 20.0


def stated_split(width: int) -> float:
    """The threshold's fraction of ε1 + ε2 in the split 1 : width^(2/3) of Lyu, Su & Li 2017, Section 4.2.

    ``width`` is 2c in general and c for monotone queries.
    """
    return 1.0 / (1.0 + math.pow(width, 2.0 / 3.0))


def best_split_and_shift(layout_for: LayoutFor, start: Split, beta: float) -> tuple[Split, int]:
    """The split of ε (three significant digits) and the shift that minimise α.

    Alternates between the least α at fixed (split, shift) and the least failure probability at fixed α; near the
    optimum the two have the same minimiser. The noise of the layouts should span ``COARSEST_SCALE`` steps or more.
    """
    logits = [_logit(start.threshold)] + ([_logit(start.answers)] if start.answers > 0.0 else [])
    layout = layout_for(start)
    shift = _first_shift(layout, beta)
    for turn in range(_PASSES):
        alpha = alpha_of(layout, round(shift), beta, blocks=_BLOCKS, resolution=_RESOLUTION)
        shift, *logits = _least_failure(layout_for, alpha, [shift, *logits], beta, first=turn == 0)
        layout = layout_for(_split_at(logits))
    split = _split_at(logits)
    return Split(_rounded(split.threshold), _rounded(split.answers)), round(shift)


def start_split(layout_for: LayoutFor, threshold: float, beta: float) -> Split:
    """Where to begin: the numbers' share at which, each alone, decisions and numbers would have the same error."""
    halves = layout_for(Split(threshold, 0.5))
    decisions = replace(halves, numbers="none")
    shift = round(_first_shift(decisions, beta))
    error = alpha_of(decisions, shift, beta, blocks=_BLOCKS, resolution=_RESOLUTION)
    number_error = math.log(1.0 + halves.tops / beta) / (halves.answer_rate * halves.answer_ratio)
    return Split(threshold, number_error / (error + number_error))


def best_answers(layout_for: LayoutFor, start: Split, beta: float) -> Split:
    """The numbers' share (three significant digits) that minimises α where the rest of the split and the shift 0 are given."""

    def error(logit: float) -> float:
        layout = layout_for(replace(start, answers=_fraction(logit)))
        return alpha_of(layout, 0, beta, blocks=_BLOCKS, resolution=_RESOLUTION)

    centre = _logit(start.answers)
    found = optimize.minimize_scalar(
        error, bounds=(centre - 2.0, centre + 2.0), method="bounded", options={"xatol": 2e-3, "maxiter": 40}
    )
    return replace(start, answers=_rounded(_fraction(float(found.x))))


def _rounded(fraction: float) -> float:
    return min(float(f"{fraction:.3g}"), 0.999)


def _logit(fraction: float) -> float:
    return math.log(fraction / (1.0 - fraction))


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
    start: Sequence[float],
    beta: float,
    *,
    first: bool,
) -> list[float]:
    """The shift and the split's logits with the least failure at ``alpha``."""
    shift, *logits = start
    tail = negligible(layout_for(_split_at(logits)), beta)

    def log_failure(point: NDArray[np.float64]) -> float:
        lean, layout = float(point[1]), layout_for(_split_at([point[0], *point[2:]]))
        failure = failure_bound(layout, alpha, round(lean * alpha), blocks=_BLOCKS, tail=tail)
        return math.log(max(failure, 1e-300))

    logit_step, lean_step = (0.4, 0.1) if first else (0.1, 0.03)
    begin = np.array([logits[0], shift / alpha, *logits[1:]])
    steps = np.array([logit_step, lean_step, *[logit_step] * (len(logits) - 1)])
    simplex = np.vstack([begin, begin + np.diag(steps)])
    options = {"initial_simplex": simplex, "xatol": 2e-3, "fatol": 1e-4, "maxfev": 60 * len(begin)}
    found = optimize.minimize(log_failure, simplex[0], method="Nelder-Mead", options=options)
    return [float(found.x[1]) * alpha, *np.delete(found.x, 1).tolist()]


def _split_at(logits: Sequence[float] | NDArray[np.float64]) -> Split:
    fractions = [_fraction(float(logit)) for logit in logits]
    return Split(*fractions)
