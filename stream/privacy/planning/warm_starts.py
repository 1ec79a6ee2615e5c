"""Warm starts: the marginals that a stream with an estimate measures before its first question.

A warm start measures no marginal, all single attributes, or all pairs. With a workload it measures all single
attributes; then each *round* chooses one set of the workload and measures it. The module also plans the typical errors
of estimates: the sets of attributes over which they are averaged, and their noise. With the constants below, the errors
of all pairs' cells were small on tables of several kinds (`python -m benchmarks.workloads`); privacy and error bounds
hold for any constants. The module also has the noise laws of what a ⊤ measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal, TypeVar

from schemas import EstimateCalibration, Pmw
from schemas.mechanisms import MAX_UNIVERSE
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.noise.samplers import Gaussian, Geometric, Symmetric, TwoSidedGeometric, gaussian, sampler
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import PlanError

_Item = TypeVar("_Item")
Axes = tuple[int, ...]
Order = Literal[0, 1, 2]
"""Number of attributes of each marginal that a warm start measures without a choice."""
WarmStart = Literal[0, 1, 2, "workload"]
ExpectedSets = Mapping[int, tuple[Axes, ...]]
"""Sets of attributes about which questions are expected, by their number of attributes."""

WORKLOAD_START_PART = 0.85
"""Part of ε for a warm start with a workload."""
_SINGLES_PART, _CHOICES_PART = 0.25, 0.2
"""Parts of the warm start's ε for single attributes and for choices; the rest is for chosen sets."""
MOST_SETS = 256
"""Maximum number of sets of a workload."""
MOST_CELLS = 1 << 21
"""Maximum number of cells of all sets of a workload together, because each round reads all of them."""
_ROUND_ROWS = 8.5
"""A k-th round lowers the errors if the table has at least 8.5·k²·√m/ε rows; the median set has m cells."""
_SHARE_TO_MEASURE_ALL = 0.75
"""If at least this share of the sets would be chosen, all are measured, and no ε is spent on choices."""
DEFAULT_UPDATES = 3
"""Default number of ⊤s; it is small, because the warm start measures most of the marginals."""
TYPICAL_PART = 0.03
"""Part of ε for typical errors."""
TYPICAL_UNIT = 1 << 20
"""Unit of the weights in a typical error: a set of m cells has the weight ⌊2²⁰/√m⌋."""
_TYPICAL_PARTS = {1: 1, 2: 2, 3: 1}
"""Parts into which the ε for typical errors is divided: for one, two and three attributes."""
_MAX_TYPICAL_SETS = {1: 128, 2: 128, 3: 24}
_MAX_TYPICAL_CELLS = 1 << 14
_MAX_TYPICAL_ATTRIBUTES = 40
"""Limits of a typical error: sets over which it is averaged, by their number of attributes; cells of a set;
and attributes that occur in the sets."""
_WIDE_CELLS = 1 << 11
"""A pair with more cells is treated as one with this many, because most of its cells are empty."""
MOST_PAIRS = 15
"""The warm start measures all pairs of attributes if there are at most this many (six attributes)."""
_MOST_PAIR_NOISE = 320.0
"""Pairs are measured if the sum of half of the largest pair's cells has at most this much noise.

The unit is the noise scale of a marginal that is measured alone. More noise would cause too many ⊤s.
"""


@dataclass(frozen=True, slots=True)
class WorkloadStart:
    """A planned warm start with a workload.

    It has ``least_rounds`` to ``rounds`` rounds: k rounds if the table has k²·``rounds_rows`` rows. Its ε is
    divided between single attributes, choices of sets, and measurements of chosen sets.
    """

    rounds: int = 0
    least_rounds: int = 0
    rounds_rows: float = 0.0
    singles_epsilon: float = 0.0
    choices_epsilon: float = 0.0
    chosen_epsilon: float = 0.0

    @property
    def epsilon(self) -> Fraction:
        """The ε of choices and chosen sets."""
        return Fraction(self.choices_epsilon) + Fraction(self.chosen_epsilon)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the calibration, except those about single attributes."""
        return {
            "warm_start": "workload",
            "rounds": self.rounds,
            "least_rounds": self.least_rounds,
            "rounds_rows": self.rounds_rows,
            "epsilon_choices": self.choices_epsilon,
            "epsilon_chosen": self.chosen_epsilon,
        }


def resolve_warm_start(mechanism: Pmw, sizes: Sequence[int]) -> WarmStart:
    """Choose the warm start: the number of attributes of each measured marginal, or ``workload``."""
    if mechanism.warm_start != "auto":
        return mechanism.warm_start
    if mechanism.workload != "pairs":
        return "workload"
    pairs = len(warm_start_axes(sizes, 2))
    if (
        pairs
        and math.comb(len(sizes), 2) <= MOST_PAIRS
        and pairs * math.sqrt(largest_pair(sizes) / 2.0) <= _MOST_PAIR_NOISE
    ):
        return 2
    sets = workload_axes(mechanism, sizes)
    can_select = 2 < len(sets) <= MOST_SETS and count_cells(sets, sizes) <= MOST_CELLS
    return "workload" if can_select else 1


def warm_start_axes(sizes: Sequence[int], order: Order) -> tuple[Axes, ...]:
    """Return the axes of each marginal that the warm start measures; a marginal has at most 2²⁰ cells."""
    if order == 0:
        return ()
    return tuple(
        axes
        for axes in combinations(range(len(sizes)), order)
        if math.prod(sizes[axis] for axis in axes) <= MAX_UNIVERSE
    )


def warm_start_order(calibration: EstimateCalibration) -> Order:
    """Return the number of attributes of each marginal that the warm start measures without a choice."""
    return 1 if calibration.warm_start == "workload" else calibration.warm_start


def warm_start_law(calibration: EstimateCalibration) -> Symmetric:
    """Return the law of the noise of each cell that the warm start measures without a choice."""
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_start) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_start) / calibration.marginal_sensitivity)


def pair_sum_noise_scales(sizes: Sequence[int]) -> float:
    """Return the noise scale of a sum of half of the largest pair's cells, in noise scales of one cell."""
    return math.sqrt(min(largest_pair(sizes), _WIDE_CELLS) / 2.0)


def largest_pair(sizes: Sequence[int]) -> int:
    """Return the number of cells of the largest pair that a warm start measures."""
    return max(math.prod(sizes[axis] for axis in axes) for axes in warm_start_axes(sizes, 2))


def workload_axes(mechanism: Pmw, sizes: Sequence[int]) -> tuple[Axes, ...]:
    """Return the workload's different sets of two or more attributes with at most 2²⁰ cells."""
    sets: list[Axes]
    if isinstance(mechanism.workload, str):
        sets = list(combinations(range(len(sizes)), 2))
    else:
        axis_of = {name: axis for axis, name in enumerate(mechanism.attributes)}
        sets = [tuple(sorted(axis_of[name] for name in names)) for names in mechanism.workload if len(names) > 1]
    return tuple(axes for axes in sets if math.prod(sizes[axis] for axis in axes) <= MAX_UNIVERSE)


def count_cells(sets: Sequence[Axes], sizes: Sequence[int]) -> int:
    """Return the number of cells of all sets together."""
    return sum(math.prod(sizes[axis] for axis in axes) for axes in sets)


def plan_workload(sets: Sequence[Axes], sizes: Sequence[int], epsilon: float) -> WorkloadStart:
    """Divide the ε of a warm start for these sets; raise PlanError if the sets exceed a limit."""
    cells = count_cells(sets, sizes)
    if len(sets) > MOST_SETS or cells > MOST_CELLS:
        raise PlanError(
            f"mechanism.workload: {len(sets):,} sets with {cells:,} cells; list at most {MOST_SETS} with {MOST_CELLS:,} cells, "
            "or give fewer attributes"
        )
    if not sets:
        raise PlanError(
            f"mechanism.workload: no set has two attributes and at most {MAX_UNIVERSE:,} cells; use warm_start 1"
        )
    choices = epsilon * _CHOICES_PART if len(sets) > 1 else 0.0
    singles = epsilon * _SINGLES_PART
    median = statistics.median(math.prod(sizes[axis] for axis in axes) for axes in sets)
    return WorkloadStart(
        rounds=len(sets),
        rounds_rows=_ROUND_ROWS * math.sqrt(median) / epsilon,
        least_rounds=min(len(sizes) - 1, len(sets)),
        singles_epsilon=singles,
        choices_epsilon=choices,
        chosen_epsilon=epsilon - singles - choices,
    )


def count_rounds(calibration: EstimateCalibration, rows: int, sets: int) -> int:
    """Return the number of rounds for a public or noisy number of rows.

    The number is ⌊√(rows/r)⌋ with r = ``rounds_rows``, but at least ``least_rounds``. If this number is at
    least three quarters of ``rounds``, the result is ``rounds``.
    """
    worthwhile = max(calibration.least_rounds, math.isqrt(math.floor(rows / calibration.rounds_rows)), 1)
    most = min(calibration.rounds, sets)
    return most if worthwhile >= _SHARE_TO_MEASURE_ALL * most else worthwhile


def set_choice_law(calibration: EstimateCalibration, rounds: int) -> Geometric:
    """Return the law of a score's noise if there are ``rounds`` rounds; a person may raise or lower scores."""
    moved = 2 * calibration.marginal_sensitivity * WEIGHT_STEPS
    return sampler("one_sided", Fraction(calibration.epsilon_choices) / rounds / moved)


def chosen_set_law(calibration: EstimateCalibration, rounds: int, *, measures_all: bool = False) -> Symmetric:
    """Return the law of the noise of each cell of a chosen set.

    With ``measures_all``, all sets are measured without choices, and the ε of choices is also used for measuring.
    """
    if calibration.noise == "gaussian":
        return gaussian(Fraction(calibration.deviation_chosen) ** 2 * rounds)
    part = Fraction(calibration.epsilon_chosen) + (Fraction(calibration.epsilon_choices) if measures_all else 0)
    return sampler("two_sided", part / rounds / calibration.marginal_sensitivity)


def mean_noise(law: Symmetric) -> float:
    """Return the mean of the absolute noise in a cell."""
    if isinstance(law, Gaussian):
        return math.sqrt(2.0 / math.pi * variance_of(law))
    return math.sqrt(0.5 * variance_of(law))


def expected_sets(mechanism: Pmw, sizes: Sequence[int]) -> ExpectedSets:
    """Return the sets of one, two and three attributes over which typical errors are averaged.

    Without a workload these are all sets of attributes. If there are too many, they are thinned out evenly.
    """
    given: tuple[Axes, ...] = ()
    if not isinstance(mechanism.workload, str):
        place = {name: axis for axis, name in enumerate(mechanism.attributes)}
        given = tuple(tuple(sorted(place[name] for name in names)) for names in mechanism.workload)
    few = _thin_out(range(len(sizes)), _MAX_TYPICAL_ATTRIBUTES)
    found: dict[int, tuple[Axes, ...]] = {}
    for order, most in _MAX_TYPICAL_SETS.items():
        named = [axes for axes in given if len(axes) == order]
        sets = named or list(combinations(few, order))
        small = [axes for axes in sets if math.prod(sizes[axis] for axis in axes) <= _MAX_TYPICAL_CELLS]
        if small:
            found[order] = tuple(_thin_out(small, most))
    return found


def compared_orders(measured: int, sets: ExpectedSets) -> tuple[int, ...]:
    """Return the numbers of attributes (orders) of expected sets that the warm start does not measure.

    The typical errors of these sets follow from the table only.
    """
    return tuple(order for order in sets if order > measured)


def typical_law(calibration: EstimateCalibration, orders: Sequence[int], order: int) -> TwoSidedGeometric:
    """Return the law of the noise of the mean distance of sets of ``order`` attributes, in steps.

    One person moves the mean distance by at most the sensitivity.
    """
    part = Fraction(_TYPICAL_PARTS[order], sum(_TYPICAL_PARTS[one] for one in orders))
    moved = calibration.marginal_sensitivity * WEIGHT_STEPS
    return sampler("two_sided", Fraction(calibration.epsilon_typical) * part / moved)


def set_weights(sets: Sequence[Axes], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the weight of each set's distance in the typical error: ⌊2²⁰/√cells⌋."""
    return tuple(math.isqrt(TYPICAL_UNIT**2 // math.prod(sizes[axis] for axis in axes)) for axes in sets)


def _thin_out(places: Sequence[_Item], max_count: int) -> list[_Item]:
    """Return at most ``max_count`` of the items, evenly spaced."""
    if len(places) <= max_count:
        return list(places)
    return [places[number * len(places) // max_count] for number in range(max_count)]


def marginal_law(calibration: EstimateCalibration, *, numbered: bool) -> Symmetric:
    """Return the noise of the cells of a ⊤'s marginal; ``numbered`` is True if a number is published too."""
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
