"""Planner of multiplicative weights: the number of updates, and the division of ε.

Each ⊤ of the sparse vector causes one update of the hypothesis. Let each update correct an error above the gap γ (a
share of the rows), and let the learning rate be η = 4γ. Then fewer than c = ln|X| / (2γ²) updates occur, where |X| is
the number of cells. Proofs: docs/proofs/pmw-weights.md. Errors are in rows; a step is 1/1024 row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from schemas import EstimateCalibration, HypothesisCalibration, Pmw, SparsePmw, SparseVectorCalibration, StreamSpec
from schemas.mechanisms import MAX_ANSWERS, MAX_UNIVERSE
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import two_sided_reach
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError
from stream.privacy.composition.pure_rounds import round_fraction_down
from stream.privacy.planning.noise_layouts import (
    PlanError,
    PlanInputs,
    fitting_calibrations,
    plan_one_sided,
    plan_one_sided_rounds,
    plan_textbook,
)

WEIGHT_STEPS = 1024
"""Number of steps in one row: the weight that a question gives to a row is a multiple of 1/1024."""


def steps_of_weight(weight: float) -> int:
    """Convert a finite weight to steps of 1/1024; raise ValueError if it is not a whole number."""
    steps = weight * WEIGHT_STEPS
    nearest = round(steps)
    if steps != nearest:
        raise ValueError(f"weights are multiples of 1/{WEIGHT_STEPS}; round it to one")
    return nearest


def steps_of_limited_weight(weight: float) -> int:
    """Convert a weight from 0 to 1 to steps of 1/1024; raise ValueError for other weights."""
    if not 0.0 <= weight <= 1.0:
        raise ValueError("a weight must be from 0 to 1; scale the question down")
    return steps_of_weight(weight)


RESOLUTION = 2.0**-20
"""Largest error from rounding a hypothesis to integers, as a share of the rows."""

ROWS_PART = 0.1
"""Part of β for the noisy number of rows."""

TEXTBOOK_ROWS_PART = 0.01
"""Part of ε for the noisy row count in the textbook's calibration; textbooks assume a public row count."""

_LEAST_SPLIT = 1e-4
_LARGEST_SPLIT = 0.5
_UPDATES_TOLERANCE = 0.04
"""Tolerance of the search for ln c: near the best c, 4 % more updates change α by less than 0.1 %."""

_Planner = Callable[[PlanInputs], SparseVectorCalibration]


@dataclass(frozen=True, slots=True)
class _HypothesisTask:
    """The public parameters of a plan; the table has at most ``rows`` rows."""

    spec: StreamSpec
    facts: SourceFacts
    mechanism: Pmw | SparsePmw
    rows: int
    universe: int

    def log_universe(self, updates: int) -> float:
        """Return ln of the number of cells that the hypothesis distinguishes."""
        return math.log(max(2, self.count_cells(updates) or self.universe))

    def count_cells(self, updates: int) -> int | None:
        """Return the number of cells that a sparse hypothesis distinguishes; None for a tensor."""
        if isinstance(self.mechanism, Pmw):
            return None
        return count_cells(self.universe, self.mechanism.sparsity, updates, self.rows)

    def plan_inputs(self, updates: int, **parameters: Any) -> PlanInputs:
        """Return the plan inputs of the sparse vector that compares the hypothesis's error with a threshold."""
        beta = self.spec.beta
        fields: dict[str, Any] = {
            "cutoff": updates,
            "monotone": False,
            "epsilon": self.spec.epsilon,
            "delta": self.spec.delta,
            "expected_queries": self.spec.expected_queries,
            "beta": beta if self.facts.rows_public else beta * (1.0 - ROWS_PART),
            "sensitivity_steps": WEIGHT_STEPS * self.facts.contribution,
            "grid": 1.0 / WEIGHT_STEPS,
        }
        return PlanInputs(**(fields | parameters))


@dataclass(frozen=True, slots=True)
class _HypothesisDivision:
    """A division of ε.

    ``rows_part`` is the part of ε for the row count. The error of numbers is ``number_error_ratio`` times the
    error of decisions. ``error`` is the error bound in rows.
    """

    rows_part: float
    number_error_ratio: float
    error: float


def plan_calibrations(
    spec: StreamSpec, facts: SourceFacts, *, textbook_alone: bool = False
) -> tuple[HypothesisCalibration, ...]:
    """Return the textbook's calibration, one that draws the threshold's noise once and, if δ > 0, a third.

    The third draws the threshold's noise again after each ⊤. ``alpha`` is in rows and holds for tables of at
    most ``rows`` rows; cost and noise do not depend on the true number of rows.
    """
    task = _task_for(spec, facts)
    makers: list[Callable[[], HypothesisCalibration]] = [lambda: _plan_textbook_hypothesis(task)]
    if not textbook_alone:
        makers.append(lambda: _plan_calibrated(task, plan_one_sided))
        if spec.delta > 0.0:
            makers.append(lambda: _plan_calibrated(task, plan_one_sided_rounds))
    return fitting_calibrations(makers)


def count_cells(universe: int, sparsity: int, updates: int, rows: int) -> int:
    """Return the number of cells over which a sparse hypothesis spreads the rows initially.

    If the universe (all cells) is small, the result is its size. Otherwise the result exceeds the number of cells that
    updates can name, and is so large that a question about other cells is answered with at most one row. The bound on
    updates holds with the logarithm of this number, and of any larger number (docs/proofs/pmw-weights.md, Theorem 4).
    """
    return min(universe, max(sparsity * updates + 1, sparsity * rows))


def guaranteed_gap(log_universe: float, updates: int) -> float:
    """Return the gap γ with which fewer than ``updates`` updates with learning rate 4γ occur."""
    return math.sqrt(log_universe / (2.0 * updates))


def updates_for(log_universe: float, gap: float, factor: float = 0.5) -> int:
    """Return c = ⌈ln|X| / (2γ²)⌉: with learning rate 4γ, fewer than c updates occur.

    ``factor`` replaces the ½ in this formula; it is 4 in the textbook.
    """
    return max(1, math.ceil(factor * log_universe / (gap * gap)))


def rows_reach(calibration: HypothesisCalibration | EstimateCalibration) -> int:
    """Bound the error of the noisy row count; the bound fails with probability ``ROWS_PART``·β at most.

    If there is noise, the bound is at least 1, because a smaller noisy count is raised to 1.
    """
    if calibration.epsilon_rows == 0.0:
        return 0
    return max(1, two_sided_reach(float(rows_rate(calibration)), 1, ROWS_PART * calibration.beta))


def rows_rate(calibration: HypothesisCalibration | EstimateCalibration) -> Fraction:
    """Return the rate of the noise on the row count; its sensitivity is the contribution bound."""
    return Fraction(calibration.epsilon_rows) / (calibration.sensitivity_steps // WEIGHT_STEPS)


def hypothesis_reach(calibration: HypothesisCalibration) -> float:
    """Bound the difference, in rows, between the answers of this and of an exact hypothesis.

    The difference comes from the noisy row count, integer weights, and the rounding of answer and threshold.
    """
    return RESOLUTION * calibration.rows + rows_reach(calibration) + 2 * calibration.grid


def _task_for(spec: StreamSpec, facts: SourceFacts) -> _HypothesisTask:
    mechanism = spec.mechanism
    if not isinstance(mechanism, Pmw | SparsePmw):
        raise TypeError(f"{mechanism.kind} has no hypothesis")
    if facts.rows is None:
        raise PlanError(
            "mechanism.rows: give a public number that the table's rows do not exceed; the true number is private"
        )
    if facts.universe is None:
        raise PlanError("mechanism.kind: a hypothesis needs a table's cells; open the stream on a table")
    if isinstance(mechanism, Pmw) and facts.universe > MAX_UNIVERSE:
        raise PlanError(
            f"mechanism.attributes: the attributes have more than {MAX_UNIVERSE} cells together; name fewer or smaller "
            "attributes, or use sparse_pmw"
        )
    return _HypothesisTask(spec, facts, mechanism, max(1, facts.rows), facts.universe)


def _plan_calibrated(task: _HypothesisTask, make: _Planner) -> HypothesisCalibration:
    updates = task.mechanism.updates
    if updates is None:
        updates = (
            _best_updates(task, make) if task.mechanism.gap is None else _least_updates(task, task.mechanism.gap)
        )
    division = _best_division(task, updates, make)
    epsilon_rows, other_epsilon = _divide_epsilon(task, division.rows_part)
    vector = make(
        task.plan_inputs(
            updates, epsilon=other_epsilon, numbers="fresh", number_error_ratio=division.number_error_ratio
        )
    )
    gap = task.mechanism.gap or guaranteed_gap(task.log_universe(updates), updates)
    return _make_calibration(task, "calibrated", vector, gap, 4.0 * gap, epsilon_rows)


def _least_updates(task: _HypothesisTask, gap: float, factor: float = 0.5) -> int:
    """Return the number of updates that a gap requires."""
    updates = updates_for(math.log(max(2, task.universe)), gap, factor)
    # Fewer updates name fewer cells, for which still fewer updates may be enough.
    while (fewer := updates_for(task.log_universe(updates), gap, factor)) < updates:
        updates = fewer
    if updates > MAX_ANSWERS:
        raise PlanError(
            f"mechanism.gap: would need more than {MAX_ANSWERS} updates to hold for certain; raise gap, or give updates"
        )
    return updates


def _best_updates(task: _HypothesisTask, make: _Planner) -> int:
    least = max(1, math.ceil(task.log_universe(1) / 2.0))
    most = min(MAX_ANSWERS, max(least, math.ceil(task.log_universe(MAX_ANSWERS) * float(task.rows) ** 2)))

    def error(log_updates: float) -> float:
        try:
            return _best_division(task, round(math.exp(log_updates)), make).error
        except (PlanError, AccuracyError):
            return math.inf

    optimum = optimize.minimize_scalar(
        error,
        bounds=(math.log(least), math.log(most) + 1e-9),
        method="bounded",
        options={"xatol": _UPDATES_TOLERANCE},
    )
    return max(least, round(math.exp(optimum.x)))


def _best_division(task: _HypothesisTask, updates: int, make: _Planner) -> _HypothesisDivision:
    """Return the division of ε with the least error; noise scales are proportional to 1/ε.

    Let A, B and R be the errors of decisions, numbers and row count if each of them had all of ε. If the
    row count has the part r of ε, and numbers the part f of the rest, the error is
    2A/((1−f)(1−r)) + max(γ·rows + R/r, B/(f(1−r))). It is least at the f where both terms of the
    maximum are equal, or at the f where the first term and B/(f(1−r)) have the least sum.
    """
    vector = make(task.plan_inputs(updates))
    each = vector.epsilon_threshold + vector.epsilon_query
    rate = each / ((1 if vector.fresh_threshold else updates) * vector.sensitivity_steps)
    numbers = max(1, two_sided_reach(rate, updates, vector.beta)) * vector.grid
    gap = (task.mechanism.gap or guaranteed_gap(task.log_universe(updates), updates)) * task.rows
    rows = -math.log(ROWS_PART * task.spec.beta) * task.facts.contribution / task.spec.epsilon

    def division_at(part: float) -> _HypothesisDivision:
        slack = gap + (rows / part if part else 0.0)
        balanced = 1.0 / (1.0 + math.sqrt(2.0 * vector.alpha / numbers))
        share = min(numbers / ((1.0 - part) * slack), balanced)
        decisions = vector.alpha / ((1.0 - part) * (1.0 - share))
        number = numbers / ((1.0 - part) * share)
        return _HypothesisDivision(part, number / decisions, 2.0 * decisions + max(slack, number))

    if task.facts.rows_public:
        return division_at(0.0)
    optimum = optimize.minimize_scalar(
        lambda log_part: division_at(math.exp(log_part)).error,
        bounds=(math.log(_LEAST_SPLIT), math.log(_LARGEST_SPLIT)),
        method="bounded",
    )
    return division_at(math.exp(optimum.x))


def _plan_textbook_hypothesis(task: _HypothesisTask) -> HypothesisCalibration:
    """Plan Algorithm 6 of Dwork & Roth 2014: c = 4 ln|X|/γ², η = γ/2, and NumericSparse.

    γ is the least gap for which the error of NumericSparse with c answers is at most γ·rows. The error of
    the stream is then 3γ·rows (Theorem 4.14 there) plus the error of the noisy row count.
    """
    epsilon_rows, other_epsilon = _divide_epsilon(task, 0.0 if task.facts.rows_public else TEXTBOOK_ROWS_PART)

    def gap_of(updates: int) -> float:
        return math.sqrt(4.0 * math.log(max(2, task.universe)) / updates)

    def is_accurate(updates: int) -> bool:
        try:
            vector = plan_textbook(task.plan_inputs(updates, epsilon=other_epsilon, numbers="fresh"))
        except (PlanError, AccuracyError):
            return False
        return vector.alpha <= gap_of(updates) * task.rows

    updates = task.mechanism.updates
    if updates is None and task.mechanism.gap is not None:
        updates = _least_updates(task, task.mechanism.gap, 4.0)
    elif updates is None:
        updates, beyond = 1, MAX_ANSWERS
        while beyond - updates > max(1, updates // 1000):
            middle = min(max(round(math.sqrt(updates * beyond)), updates + 1), beyond - 1)
            updates, beyond = (middle, beyond) if is_accurate(middle) else (updates, middle)
    vector = plan_textbook(task.plan_inputs(updates, epsilon=other_epsilon, numbers="fresh"))
    gap = task.mechanism.gap or gap_of(updates)
    return _make_calibration(task, "textbook", vector, gap, gap / 2.0, epsilon_rows)


def _divide_epsilon(task: _HypothesisTask, part: float) -> tuple[float, float]:
    """Return the ε of the noisy row count and the remaining ε; their exact sum is at most the stream's ε."""
    epsilon_rows = task.spec.epsilon * part
    return epsilon_rows, round_fraction_down(Fraction(task.spec.epsilon) - Fraction(epsilon_rows))


def _make_calibration(
    task: _HypothesisTask,
    method: Literal["calibrated", "textbook"],
    vector: SparseVectorCalibration,
    gap: float,
    learning_rate: float,
    epsilon_rows: float,
) -> HypothesisCalibration:
    """Set error bound and threshold so that each ⊤ proves an error above γ, and the sign of this error."""
    draft = HypothesisCalibration(
        method=method,
        sparse_vector=vector,
        threshold=0,
        learning_rate=learning_rate,
        epsilon_rows=epsilon_rows,
        rows=task.rows,
        places=task.count_cells(vector.cutoff),
        epsilon=task.spec.epsilon,
        delta=vector.delta,
        grid=vector.grid,
        sensitivity_steps=vector.sensitivity_steps,
        cutoff=vector.cutoff,
        expected_queries=task.spec.expected_queries,
        beta=task.spec.beta,
        alpha=0.0,
    )
    slack = max(gap * task.rows + hypothesis_reach(draft), vector.answer_alpha + vector.grid)
    threshold = math.ceil((vector.alpha + slack) / vector.grid)
    alpha = threshold * vector.grid + vector.alpha
    return draft.model_copy(update={"threshold": threshold, "alpha": alpha})
