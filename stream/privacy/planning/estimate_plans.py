"""Planner of streams with an estimate: number of ⊤s, threshold, division of ε.

A ⊤ measures the marginal of its question. A plan depends on public sizes alone. The noise of comparisons is one-sided, so
the error of a ⊥ never exceeds the threshold plus the threshold's noise. The number of questions affects only
how many ⊤s noise alone causes. Proofs: docs/proofs/pmw.md. Errors are in rows; a step is 1/1024 row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from schemas import EstimateCalibration, Pmw, SparseVectorCalibration, StreamSpec
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import (
    noise_reach,
    one_sided_reach,
    sum_alpha,
    two_sided_reach,
    variance_of,
)
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.pure_rounds import round_fraction_down
from stream.privacy.noise.samplers import Symmetric
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import PlanError, require_fit
from stream.privacy.planning.warm_starts import (
    DEFAULT_UPDATES,
    TYPICAL_PART,
    WORKLOAD_START_PART,
    Order,
    WarmStart,
    WorkloadStart,
    compared_orders,
    expected_sets,
    pair_sum_noise_scales,
    plan_workload,
    resolve_warm_start,
    warm_start_axes,
    workload_axes,
)

THRESHOLD_PART = 0.5
"""The part of β for the error of the threshold."""

_FALSE_TOP_PART = 0.2
"""The largest part of the ⊤s that noise alone may cause, although the estimate answers the question well."""
_PAIR_SUM_RARITY = 2.75
"""If pairs are measured, noise may cause a ⊤ on one in e^2.75 ≈ 16 questions about many cells."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The public parameters of the comparisons of estimate and table; errors are in rows.

    - ``updates``: number of ⊤s.
    - ``slack``: an error of the estimate that rarely causes a ⊤.
    - ``pair_sum_noise``: the noise scale (√½ standard deviations) of the noisiest sum of cells of a measured pair
      of attributes; this noise must rarely cause a ⊤ either. None if the threshold ignores measured pairs.
    """

    updates: int
    queries: int
    beta: float
    slack: float
    pair_sum_noise: float | None = None

    @property
    def rarity(self) -> float:
        """ln of the number of questions among which one false ⊤ (caused by noise alone) is tolerated."""
        return math.log(max(2.0, self.queries / (_FALSE_TOP_PART * self.updates)))

    def threshold_rows(self, epsilon_2: float) -> float:
        """Return the threshold in rows, given the ε₂ of the queries' noise.

        The threshold is so high that an error of ``slack`` and the noise of a pair's sums rarely cause a ⊤.
        """
        scale = 2.0 * self.updates / epsilon_2
        without_pairs = self.slack + scale * self.rarity
        return (
            without_pairs
            if self.pair_sum_noise is None
            else max(without_pairs, self.pair_sum_noise + scale * _PAIR_SUM_RARITY)
        )

    def best_division(self, epsilon: float) -> tuple[float, float, float]:
        """Divide ``epsilon`` into ε₁ and ε₂ with the least error of ⊥s; return ε₁, ε₂ and this error.

        The error is slack + a/ε₂ + b/ε₁, which is least at ε₁/ε = √b/(√a + √b). With ``pair_sum_noise`` it is
        the maximum of two such sums, which is least at the best point of either sum, or at a point
        where both sums are equal.
        """
        least = -math.log(THRESHOLD_PART * self.beta)

        def query_at(rarity: float) -> float:
            return epsilon / (1.0 + math.sqrt(least / (2.0 * self.updates * rarity)))

        queries = [query_at(self.rarity)]
        if self.pair_sum_noise is not None:
            queries.append(query_at(_PAIR_SUM_RARITY))
            difference = self.pair_sum_noise - self.slack
            if difference > 0.0 and self.rarity > _PAIR_SUM_RARITY:
                queries.append(min(2.0 * self.updates * (self.rarity - _PAIR_SUM_RARITY) / difference, queries[0]))

        def error(query: float) -> float:
            return self.threshold_rows(query) + least / (epsilon - query)

        query = min(queries, key=error)
        return epsilon - query, query, error(query)


NUMBERS_PART, MEASURED_PART = 0.3, 0.1
"""Parts of β for the numbers of ⊤s, and for sums of measured cells."""

_WARM_START_PARTS = {0: 0.0, 1: 0.2, 2: 0.65}
"""Part of ε for the warm start, by its number of attributes."""
_WHOLE_START_PART = 0.8
"""Part of ε for a warm start that measures all cells, and so answers every question."""
_PAIRS_START_PART = 0.83
"""Part of ε for a warm start that measures all pairs, if the stream has few ⊤s."""
FEW_UPDATES = 2
"""Number of ⊤s that ``auto`` sets for questions about pairs: fewer than by default, so pairs have more of ε."""
_ROWS_PART = 0.03
"""Part of ε for the number of rows."""
_UPDATES = {0: (16, 2), 1: (6, 2), 2: (-1, 1)}
"""Default number of ⊤s by the warm start's number of attributes: a constant, and a number per attribute."""
_NUMBER_PART, _NUMBER_PART_BESIDE_PAIRS = 0.3, 0.5
"""Part of a ⊤'s ε for its number, without and with measured pairs; the rest is for its marginal."""
SLACK_NOISE_SCALES = 3.0
"""The slack, in noise scales of one measured cell, if no gap is requested."""
_LEAST_TOPS_PART, _LARGEST_TOPS_PART = 0.02, 0.8
"""Limits of the part of ``epsilon_left`` for all ⊤s."""
_EXACT_BOUND_LIMIT = 1.5
"""If the least possible error of a sum exceeds this multiple of α, the exact bound is not computed."""


@dataclass(frozen=True, slots=True)
class _EstimateInputs:
    """The public parameters of a plan, before ``epsilon_left`` is divided.

    - ``epsilon_left``: the ε that remains after the warm start and the row count.
    - ``width``: the sensitivity of a marginal; ``number_part``: part of a ⊤'s ε for its number.
    - ``requested_slack``: the requested ``gap``, in rows.
    - ``pair_noise``: the noise scale of the cells of a measured pair, None if no pairs are measured;
      ``pair_sum_noise`` is as in ``Comparisons``.
    """

    epsilon_left: Fraction
    updates: int
    queries: int
    beta: float
    width: int
    number_part: float
    requested_slack: float | None
    pair_noise: float | None = None
    pair_sum_noise: float = 0.0

    def build_comparisons(self, tops_epsilon: float) -> Comparisons:
        measured = self.width * self.updates / ((1.0 - self.number_part) * tops_epsilon)
        slack = SLACK_NOISE_SCALES * (measured if self.pair_noise is None else self.pair_noise)
        return Comparisons(
            updates=self.updates,
            queries=self.queries,
            beta=self.beta,
            slack=slack if self.requested_slack is None else self.requested_slack,
            pair_sum_noise=None if self.pair_noise is None else self.pair_sum_noise,
        )


class _Division(NamedTuple):
    """A division of ε between the threshold's noise, the queries' noise and all ⊤s; the error is in rows."""

    error: float
    threshold_epsilon: float
    tops_epsilon: float


def plan_laplace_estimate(spec: StreamSpec, facts: SourceFacts) -> EstimateCalibration:
    """Return the best calibration with Laplace noise; it uses no δ.

    If a person has several rows, the plan is made with ε divided by their number (group privacy).
    """
    if (rows := facts.contribution) == 1:
        return _plan_for_one_row(spec, facts)
    spec_of_one_row = spec.model_copy(update={"epsilon": round_fraction_down(Fraction(spec.epsilon) / rows)})
    plan = _plan_for_one_row(spec_of_one_row, facts)
    return plan.model_copy(update={"contribution": rows, "epsilon": spec.epsilon})


def _plan_for_one_row(spec: StreamSpec, facts: SourceFacts) -> EstimateCalibration:
    mechanism = spec.mechanism
    if not isinstance(mechanism, Pmw):
        raise TypeError(f"{mechanism.kind} has no estimate")
    # If only the number of cells is known, the plan is for a single attribute.
    sizes = facts.sizes or (() if facts.universe is None else (facts.universe,))
    if not sizes:
        raise PlanError("mechanism.kind: an estimate needs a table's cells; open the stream on a table")
    warm_start = resolve_warm_start(mechanism, sizes)
    order: Order = 1 if warm_start == "workload" else warm_start
    starts = len(warm_start_axes(sizes, order))
    order = order if starts else 0
    width = 1 if facts.neighbors == "add-remove" else 2
    typical = spec.epsilon * _typical_part(mechanism, warm_start, order, sizes)
    epsilon = spec.epsilon - typical
    rows = 0.0 if facts.rows_public else epsilon * _ROWS_PART
    part = _WARM_START_PARTS[order]
    if order >= len(sizes):
        part = _WHOLE_START_PART
    elif order == 2 and mechanism.updates is not None and mechanism.updates <= FEW_UPDATES:
        part = _PAIRS_START_PART
    start = epsilon * part / starts if starts else 0.0
    workload = WorkloadStart()
    updates = default_updates(sizes, order)
    if warm_start == "workload":
        workload = plan_workload(workload_axes(mechanism, sizes), sizes, epsilon * WORKLOAD_START_PART)
        start, updates = workload.singles_epsilon / starts, DEFAULT_UPDATES
    updates = mechanism.updates or updates
    gap = mechanism.gap
    if gap is not None and facts.rows is None:
        raise PlanError(
            "mechanism.rows: missing, but gap is a share of the rows; give a public number of rows, or leave gap out"
        )
    task = _EstimateInputs(
        epsilon_left=Fraction(spec.epsilon)
        - Fraction(typical)
        - Fraction(rows)
        - starts * Fraction(start)
        - workload.epsilon,
        updates=updates if mechanism.updates is not None else min(updates, spec.expected_queries),
        queries=spec.expected_queries,
        beta=spec.beta,
        width=width,
        requested_slack=None if gap is None else gap * max(1, facts.rows or 1),
        number_part=_NUMBER_PART,
    )
    tasks = [task]
    if order == 2 and gap is None:
        scale = width / start
        pair_sum_noise = scale * pair_sum_noise_scales(sizes)
        tasks.append(
            replace(task, number_part=_NUMBER_PART_BESIDE_PAIRS, pair_noise=scale, pair_sum_noise=pair_sum_noise)
        )
    plans = (_make_calibration(spec, task, order, starts, start, rows) for task in tasks)
    best = min(plans, key=lambda plan: plan.alpha)
    more: dict[str, Any] = {
        **(workload.fields if workload.rounds else {}),
        "epsilon_typical": typical,
        "marks_guesses": warm_start in {0, 1},
        "estimate": 2 if workload.rounds else 1,
    }
    return best.model_copy(update=more)


def _typical_part(mechanism: Pmw, warm_start: WarmStart, order: Order, sizes: Sequence[int]) -> float:
    """Return the part of ε for typical errors; by default, only a warm start for a workload has one."""
    wanted = warm_start == "workload" if mechanism.typical_error is None else mechanism.typical_error
    if not wanted:
        return 0.0
    if not compared_orders(order, expected_sets(mechanism, sizes)):
        if mechanism.typical_error is None:
            return 0.0
        raise PlanError(
            "mechanism.typical_error: the warm start measures all questions of up to three attributes, so none "
            "has a typical error; leave typical_error out"
        )
    return TYPICAL_PART


def default_updates(sizes: Sequence[int], order: Order) -> int:
    """Return the default number of ⊤s, at most twice the number of unmeasured marginals."""
    constant, per_attribute = _UPDATES[order]
    count = len(sizes)
    unmeasured = sum(math.comb(count, named) for named in range(order + 1, min(count, 8) + 1))
    return max(1, min(constant + per_attribute * count, 2 * unmeasured))


def _make_calibration(
    spec: StreamSpec, task: _EstimateInputs, order: Order, starts: int, start: float, rows: float
) -> EstimateCalibration:
    division = _best_division(task)
    grid = 1.0 / WEIGHT_STEPS
    answer = division.tops_epsilon
    query = round_fraction_down(task.epsilon_left - Fraction(answer) - Fraction(division.threshold_epsilon))
    number = task.number_part * answer / task.updates
    least = min(division.threshold_epsilon, query / (2.0 * task.updates), number)
    require_fit(WEIGHT_STEPS / least, " or lower updates")
    threshold = math.ceil(task.build_comparisons(answer).threshold_rows(query) / grid)
    reach = one_sided_reach(division.threshold_epsilon / WEIGHT_STEPS, 1, THRESHOLD_PART * spec.beta)
    numbers = two_sided_reach(number / WEIGHT_STEPS, task.updates, NUMBERS_PART * spec.beta)
    decisions = (threshold + reach) * grid
    alpha = max(decisions, numbers * grid)
    shared: dict[str, Any] = {
        "epsilon": spec.epsilon,
        "delta": 0.0,
        "grid": grid,
        "sensitivity_steps": WEIGHT_STEPS,
        "cutoff": task.updates,
        "expected_queries": spec.expected_queries,
        "beta": spec.beta,
    }
    vector = SparseVectorCalibration(
        method="one_sided",
        noise="one_sided",
        fresh_threshold=False,
        epsilon_threshold=division.threshold_epsilon,
        epsilon_query=query,
        epsilon_answer=answer,
        shift=0,
        monotone=False,
        numbers="fresh",
        answer_alpha=numbers * grid,
        alpha=decisions,
        **shared,
    )
    return EstimateCalibration(
        sparse_vector=vector,
        threshold=threshold,
        epsilon_rows=rows,
        warm_start=order,
        starts=starts,
        epsilon_start=start,
        epsilon_number=number,
        marginal_sensitivity=task.width,
        alpha=alpha,
        **shared,
    )


def _best_division(task: _EstimateInputs) -> _Division:
    """Return the division of ``epsilon_left`` that minimizes the larger of the errors of ⊥s and of numbers."""
    optimum = optimize.minimize_scalar(
        lambda part: _make_division(task, part).error,
        bounds=(_LEAST_TOPS_PART, _LARGEST_TOPS_PART),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return _make_division(task, float(optimum.x))


def _make_division(task: _EstimateInputs, part: float) -> _Division:
    left = float(task.epsilon_left)
    answer = part * left
    threshold, _, decisions = task.build_comparisons(answer).best_division(left - answer)
    number = task.number_part * answer / task.updates
    return _Division(
        max(decisions, math.log(task.updates / (NUMBERS_PART * task.beta)) / number), threshold, answer
    )


@dataclass(frozen=True)
class ErrorBounds:
    """The error bounds of one stream; together they fail with a probability of at most their parts of β.

    The bounds cover all single cells of a marginal and all ranges of its attributes at once. So they hold even for
    questions that are chosen after the noise is known. Bounds of single cells add up to a bound of any sum of cells.
    """

    calibration: EstimateCalibration

    def bound_cell_sums(
        self, law: Symmetric, summed_cells: int, sizes: Sequence[int], *, ranges: bool, charges: float = 1.0
    ) -> float:
        """Bound the error of all sums of ``summed_cells`` cells of one marginal.

        If ``ranges`` is True, the cells form a range of each attribute, which allows a smaller bound. The part
        of β grows with the marginal's price: ``charges`` times the price of a ⊤.
        """
        if summed_cells == 0:
            return 0.0
        beta = 0.5 * MEASURED_PART * self.calibration.beta * charges
        beta /= self.calibration.starts + self.calibration.rounds + self.calibration.cutoff
        single = summed_cells * noise_reach(law, math.prod(sizes), beta)
        if not ranges or summed_cells == 1:
            return single
        count = math.prod(size * (size + 1) // 2 for size in sizes)
        least = math.sqrt(2.0 * variance_of(law) * summed_cells * math.log(2.0 * count / beta))
        if least > _EXACT_BOUND_LIMIT * self.calibration.sparse_vector.alpha:
            return min(single, math.inf)
        return min(single, sum_alpha(law, summed_cells, count, beta, full_weights=True))

    def bound_new_numbers(
        self, law: Symmetric, number_count: int, summed_cells: int, *, full_weights: bool
    ) -> float:
        """Bound the error of ``number_count`` numbers that are sums of a ⊤'s new marginal.

        The bound is in units of the sensitivity. Each number sums at most ``summed_cells`` cells, with weights of 1 if
        ``full_weights``. The question was asked before the noise was drawn, so only these sums need a bound.
        """
        beta = NUMBERS_PART * self.calibration.beta / self.calibration.cutoff
        return sum_alpha(law, summed_cells, number_count, beta, full_weights=full_weights)
