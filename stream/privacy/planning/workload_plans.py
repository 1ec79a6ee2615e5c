"""Warm starts for a workload: the sets of attributes, the number of rounds, the division of ε.

The opening measures single attributes, then chooses and measures sets of the workload, round by
round. The constants were chosen by the errors of all pairs' cells on tables of several kinds
(`python -m benchmarks.workloads`); privacy and error bounds hold for any of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

from schemas import EstimateCalibration, Pmw
from schemas.mechanisms import MAX_UNIVERSE
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.noise import Gaussian, Geometric, Symmetric, gaussian, sampler
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import PlanError

Axes = tuple[int, ...]

START_SHARE = 0.85
"""Share of ε for the warm start."""
_SINGLES, _CHOICES = 0.25, 0.2
"""Parts of it for single attributes, and for choices; the rest measures the chosen sets."""
MOST_SETS = 256
MOST_CELLS = 1 << 21
"""The sets of a workload have at most this many cells together: each round reads all of them."""
_ROUND_ROWS = 8.5
"""k sets are worth their noise from 8.5·k²·√cells/ε rows on, with the cells of the median set."""
_NEARLY_ALL = 0.75
"""From this share of the sets on, all of them are measured: choices would cost more than they save."""
UPDATES = 3
"""Default number of ⊤s: the opening measures what most of them would be for."""


@dataclass(frozen=True, slots=True)
class WorkloadStart:
    """A planned warm start: least and most rounds, rows for them, and the parts of ε."""

    rounds: int = 0
    least: int = 0
    rounds_rows: float = 0.0
    singles: float = 0.0
    choices: float = 0.0
    chosen: float = 0.0

    @property
    def epsilon(self) -> Fraction:
        """The ε of choices and chosen sets."""
        return Fraction(self.choices) + Fraction(self.chosen)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the calibration, apart from those of single attributes."""
        return {
            "warm_start": "workload",
            "rounds": self.rounds,
            "least_rounds": self.least,
            "rounds_rows": self.rounds_rows,
            "epsilon_choices": self.choices,
            "epsilon_chosen": self.chosen,
        }


def workload_axes(mechanism: Pmw, sizes: Sequence[int]) -> tuple[Axes, ...]:
    """Return the workload's sets of two or more attributes of at most 2²⁰ cells, without repeats."""
    sets: list[Axes]
    if isinstance(mechanism.workload, str):
        sets = list(combinations(range(len(sizes)), 2))
    else:
        place = {name: axis for axis, name in enumerate(mechanism.attributes)}
        sets = [tuple(sorted(place[name] for name in names)) for names in mechanism.workload if len(names) > 1]
    return tuple(axes for axes in sets if math.prod(sizes[axis] for axis in axes) <= MAX_UNIVERSE)


def can_select(sets: Sequence[Axes], sizes: Sequence[int]) -> bool:
    """Return True if there are several sets to choose from, within the limits."""
    return 2 < len(sets) <= MOST_SETS and _cells(sets, sizes) <= MOST_CELLS


def _cells(sets: Sequence[Axes], sizes: Sequence[int]) -> int:
    return sum(math.prod(sizes[axis] for axis in axes) for axes in sets)


def plan_workload(sets: Sequence[Axes], sizes: Sequence[int], epsilon: float) -> WorkloadStart:
    """Divide the ε of a warm start for these sets; raise PlanError if they are too much work."""
    cells = _cells(sets, sizes)
    if len(sets) > MOST_SETS or cells > MOST_CELLS:
        raise PlanError(
            f"mechanism.workload: {len(sets):,} sets with {cells:,} cells; list at most {MOST_SETS} with {MOST_CELLS:,} cells, "
            "or give fewer attributes"
        )
    if not sets:
        raise PlanError(
            f"mechanism.workload: no set has two attributes and at most {MAX_UNIVERSE:,} cells; use warm_start 1"
        )
    choices = epsilon * _CHOICES if len(sets) > 1 else 0.0
    singles = epsilon * _SINGLES
    median = statistics.median(math.prod(sizes[axis] for axis in axes) for axes in sets)
    return WorkloadStart(
        rounds=len(sets),
        rounds_rows=_ROUND_ROWS * math.sqrt(median) / epsilon,
        least=min(len(sizes) - 1, len(sets)),
        singles=singles,
        choices=choices,
        chosen=epsilon - singles - choices,
    )


def rounds_of(calibration: EstimateCalibration, rows: int, sets: int) -> int:
    """Return the number of rounds for a public or noisy number of rows.

    It is ⌊√(rows/r)⌋, at least ``least_rounds`` and at most ``rounds``, which it is from three
    quarters of them on.
    """
    worth = max(calibration.least_rounds, math.isqrt(math.floor(rows / calibration.rounds_rows)), 1)
    most = min(calibration.rounds, sets)
    return most if worth >= _NEARLY_ALL * most else worth


def choice_law(calibration: EstimateCalibration, rounds: int) -> Geometric:
    """Return the noise of a score in one of these rounds; one person moves it both ways."""
    moved = 2 * calibration.marginal_sensitivity * WEIGHT_STEPS
    return sampler("one_sided", Fraction(calibration.epsilon_choices) / rounds / moved)


def chosen_law(calibration: EstimateCalibration, rounds: int, *, every: bool = False) -> Symmetric:
    """Return the noise of each cell of a chosen set; with ``every``, no choice is paid for."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_chosen) ** 2 * rounds)
    part = Fraction(calibration.epsilon_chosen) + (Fraction(calibration.epsilon_choices) if every else 0)
    return sampler("two_sided", part / rounds / calibration.marginal_sensitivity)


def mean_noise(law: Symmetric) -> float:
    """Return the mean size of the noise in a cell."""
    if isinstance(law, Gaussian):
        return math.sqrt(2.0 / math.pi * variance_of(law))
    return math.sqrt(0.5 * variance_of(law))
