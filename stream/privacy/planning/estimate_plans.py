"""The planner of streams that answer from an estimate: what to measure first, how many ⊤s to pay for, how to divide ε.

Everything follows from public sizes. The noise on comparisons is one-sided, so that a ⊥ is never wrong by more than the
threshold and its own noise, whatever is asked and how often; how seldom a ⊤ is raised for nothing is where the number of
questions comes in. Proofs are in docs/proofs/pmw.md. Errors are counts of rows; steps are 1/1024 of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

from schemas import EstimateCalibration, Pmw, SparseVectorCalibration, StreamSpec
from schemas.mechanisms import MAX_UNIVERSE
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import one_sided_reach, two_sided_reach
from stream.privacy.accuracy.source_facts import Setting
from stream.privacy.composition.pure_rounds import rounded_down
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import HEADROOM, LARGEST_NOISE, PlanError

THRESHOLD_PART = 0.5
"""The part of β that the threshold may be further off than said with."""

_FALSE_SHARE = 0.2
"""About so many of the ⊤s may be spent on questions that the estimate answers well."""
_WIDE_RARITY = 2.75
"""Where pairs were measured, the noise of wide sums of their cells is let off but for one question in e^2.75, about 16."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The public parameters of a stream's comparisons, in rows.

    ``slack`` is the error that the estimate may have on every question. ``wide`` is the standard deviation of the noisiest sums of
    the opening's cells, where pairs were measured and the threshold goes by that, else None.
    """

    updates: int
    queries: int
    beta: float
    slack: float
    wide: float | None = None

    @property
    def rarity(self) -> float:
        """ln of how many questions there are for each ⊤ that may be raised for nothing."""
        return math.log(max(2.0, self.queries / (_FALSE_SHARE * self.updates)))

    def raised(self, query: float) -> float:
        """The threshold, in rows: for all questions at the slack, and for the seldom ones that sum many noisy cells."""
        scale = 2.0 * self.updates / query
        plain = self.slack + scale * self.rarity
        return plain if self.wide is None else max(plain, self.wide + scale * _WIDE_RARITY)

    def divided(self, rest: float) -> tuple[float, float, float]:
        """(ε₁, ε₂) of the part ``rest`` of ε for comparisons, and the error of ⊥s that is then least.

        Slack + a/ε₂ + b/ε₁ with ε₁ + ε₂ = D is least where ε₁/D = √b/(√a + √b); the larger of two such sums is least at one of
        these points, or where both are equal.
        """
        least = -math.log(THRESHOLD_PART * self.beta)

        def query_at(rarity: float) -> float:
            return rest / (1.0 + math.sqrt(least / (2.0 * self.updates * rarity)))

        queries = [query_at(self.rarity)]
        if self.wide is not None:
            queries.append(query_at(_WIDE_RARITY))
            apart = self.wide - self.slack
            if apart > 0.0 and self.rarity > _WIDE_RARITY:
                queries.append(min(2.0 * self.updates * (self.rarity - _WIDE_RARITY) / apart, queries[0]))

        def error(query: float) -> float:
            return self.raised(query) + least / (rest - query)

        query = min(queries, key=error)
        return rest - query, query, error(query)


ROWS_PART, NUMBERS_PART, MEASURED_PART = 0.1, 0.3, 0.1
"""Parts of β: that the number of rows, what ⊤s tell, or sums of measured cells are further off than said. The threshold has the rest."""

Order = Literal[0, 1, 2]

MOST_PAIRS = 15
"""Pairs of attributes are measured in advance where there are no more of them than that: of six attributes."""
_MOST_NOISE = 320.0
"""And where half of the cells of the largest of them, summed, have no more noise, in scales of a marginal that is measured alone:
else that noise by itself would raise the ⊤s that are paid for."""

_START_SHARE = {0: 0.0, 1: 0.2, 2: 0.65}
_WHOLE_START_SHARE = 0.8
"""Share of ε for the opening where it settles every question."""
_ROWS_SHARE = 0.03
_UPDATES = {0: (16, 2), 1: (6, 2), 2: (-1, 1)}
"""How many ⊤s are paid for unless the operator says so: a number, and so many for each attribute."""
_NUMBER_SHARE, _NUMBER_SHARE_BESIDE_PAIRS = 0.3, 0.5
"""The part of a ⊤'s ε that goes to its number, where one is told; the marginal needs less where its pairs are known."""
NOISES_OF_SLACK = 3.0
"""The estimate is let off so many scales of the noise in one measured cell before it counts as wrong."""
_WIDE_CELLS = 1 << 11
"""More cells of a pair than that are mostly empty, and the fit evens out their noise."""
_LEAST_SHARE, _LARGEST_SHARE = 0.02, 0.8


@dataclass(frozen=True, slots=True)
class _Task:
    """The public parameters of a plan, but for the division of what is ``left`` of ε after rows and opening.

    ``gap`` is the slack that was asked for, in rows. ``known`` is the noise scale of the opening's cells and ``wide`` the standard
    deviation of the noisiest sums of them, where pairs were measured and the threshold goes by that, else None.
    """

    left: Fraction
    updates: int
    queries: int
    beta: float
    width: int
    number_share: float
    gap: float | None
    known: float | None = None
    wide: float = 0.0

    def comparisons(self, answer: float) -> Comparisons:
        """How comparisons are planned beside a part ``answer`` of ε for measuring."""
        measured = self.width * self.updates / ((1.0 - self.number_share) * answer)
        slack = NOISES_OF_SLACK * (measured if self.known is None else self.known)
        return Comparisons(
            updates=self.updates,
            queries=self.queries,
            beta=self.beta,
            slack=slack if self.gap is None else self.gap,
            wide=None if self.known is None else self.wide,
        )


@dataclass(frozen=True, slots=True)
class _Division:
    """Parts of ε, and the error that each kind of answer keeps to, in rows."""

    threshold: float
    query: float
    answer: float
    decisions: float
    numbers: float

    @property
    def error(self) -> float:
        return max(self.decisions, self.numbers)


def candidates(spec: StreamSpec, setting: Setting) -> tuple[EstimateCalibration, ...]:
    """The one calibration with Laplace noise; pure, whatever δ is allowed.

    Of several rows a person each has its part of ε: what is private for one row is so for all of them together.

    Raises:
        PlanError: the source has no attributes, or the noise does not fit; the message names the parameter to change.
    """
    if (rows := setting.contribution) > 1:
        of_one = spec.model_copy(update={"epsilon": rounded_down(Fraction(spec.epsilon) / rows)})
        found = _candidates(of_one, setting)
        return tuple(one.model_copy(update={"contribution": rows, "epsilon": spec.epsilon}) for one in found)
    return _candidates(spec, setting)


def _candidates(spec: StreamSpec, setting: Setting) -> tuple[EstimateCalibration, ...]:
    mechanism = spec.mechanism
    if not isinstance(mechanism, Pmw):
        raise TypeError(f"{mechanism.kind} keeps no estimate")
    # Where nothing but the number of cells is known they are taken for those of one attribute.
    sizes = setting.sizes or (() if setting.universe is None else (setting.universe,))
    if not sizes:
        raise PlanError("mechanism.kind: an estimate is about a table's cells; open it on a table")
    order = warm_start(mechanism, sizes)
    starts = len(opening(sizes, order))
    order = order if starts else 0
    width = 1 if setting.neighbors == "add-remove" else 2
    rows = 0.0 if setting.rows_public else spec.epsilon * _ROWS_SHARE
    settled = order >= len(sizes)
    start = spec.epsilon * (_WHOLE_START_SHARE if settled else _START_SHARE[order]) / starts if starts else 0.0
    updates = default_updates(sizes, order) if mechanism.updates is None else mechanism.updates
    gap = mechanism.gap
    if gap is not None and setting.rows is None:
        raise PlanError("mechanism.rows: a gap is a share of them; give a public number of rows, or leave gap out")
    task = _Task(
        left=Fraction(spec.epsilon) - Fraction(rows) - starts * Fraction(start),
        updates=updates if mechanism.updates is not None else min(updates, spec.expected_queries),
        queries=spec.expected_queries,
        beta=spec.beta,
        width=width,
        gap=None if gap is None else gap * max(1, setting.rows or 1),
        number_share=_NUMBER_SHARE,
    )
    tasks = [task]
    if order == 2 and gap is None:
        scale = width / start
        wide = scale * wide_noises(sizes)
        tasks.append(replace(task, number_share=_NUMBER_SHARE_BESIDE_PAIRS, known=scale, wide=wide))
    plans = (_finished(spec, one, order, starts, start, rows) for one in tasks)
    return (min(plans, key=lambda plan: plan.alpha),)


def warm_start(mechanism: Pmw, sizes: Sequence[int]) -> Order:
    """How many attributes the marginals of the opening have."""
    if mechanism.warm_start != "auto":
        return mechanism.warm_start
    pairs = len(opening(sizes, 2))
    if not pairs or math.comb(len(sizes), 2) > MOST_PAIRS:
        return 1
    return 2 if pairs * math.sqrt(largest_pair(sizes) / 2.0) <= _MOST_NOISE else 1


def opening(sizes: Sequence[int], order: Order) -> tuple[tuple[int, ...], ...]:
    """The axes of each marginal that the opening measures; those of more than 2²⁰ cells are left out."""
    if order == 0:
        return ()
    return tuple(
        axes
        for axes in combinations(range(len(sizes)), order)
        if math.prod(sizes[axis] for axis in axes) <= MAX_UNIVERSE
    )


def default_updates(sizes: Sequence[int], order: Order) -> int:
    """The small number of ⊤s that is paid for by default; at most twice the marginals that the opening leaves open."""
    fixed, each = _UPDATES[order]
    count = len(sizes)
    unsettled = sum(math.comb(count, named) for named in range(order + 1, min(count, 8) + 1))
    return max(1, min(fixed + each * count, 2 * unsettled))


def rows_reach(calibration: EstimateCalibration) -> int:
    """How far the noisy number of rows may be off; at least 1 where there is noise, for it is never taken below 1."""
    if calibration.epsilon_rows == 0.0:
        return 0
    return max(1, two_sided_reach(calibration.epsilon_rows, 1, ROWS_PART * calibration.beta))


def _finished(
    spec: StreamSpec, task: _Task, order: Order, starts: int, start: float, rows: float
) -> EstimateCalibration:
    division = _best_division(task)
    grid = 1.0 / WEIGHT_STEPS
    answer = division.answer
    query = rounded_down(task.left - Fraction(answer) - Fraction(division.threshold))
    number = task.number_share * answer / task.updates
    _check_scale(min(division.threshold, query / (2.0 * task.updates), number) / WEIGHT_STEPS)
    threshold = math.ceil(task.comparisons(answer).raised(query) / grid)
    reach = one_sided_reach(division.threshold / WEIGHT_STEPS, 1, THRESHOLD_PART * spec.beta)
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
        epsilon_threshold=division.threshold,
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


def _best_division(task: _Task) -> _Division:
    """The division of what is left that makes the larger of both errors least: of ⊥s, and of the numbers on ⊤s."""
    found = optimize.minimize_scalar(
        lambda share: _division(task, share).error,
        bounds=(_LEAST_SHARE, _LARGEST_SHARE),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return _division(task, float(found.x))


def _division(task: _Task, share: float) -> _Division:
    """With a part ``share`` of what is left for measuring."""
    left = float(task.left)
    answer = share * left
    threshold, query, decisions = task.comparisons(answer).divided(left - answer)
    number = task.number_share * answer / task.updates
    return _Division(
        threshold=threshold,
        query=query,
        answer=answer,
        decisions=decisions,
        numbers=math.log(task.updates / (NUMBERS_PART * task.beta)) / number,
    )


def wide_noises(sizes: Sequence[int]) -> float:
    """The standard deviation of a sum of half of the cells of the largest measured pair, whose total is known; in noise scales."""
    return math.sqrt(min(largest_pair(sizes), _WIDE_CELLS) / 2.0)


def largest_pair(sizes: Sequence[int]) -> int:
    """The number of cells of the largest pair that an opening measures."""
    return max(math.prod(sizes[axis] for axis in axes) for axes in opening(sizes, 2))


def _check_scale(rate: float) -> None:
    if HEADROOM / rate > LARGEST_NOISE:
        raise PlanError(
            f"noise of scale {1.0 / rate:.3g} grid steps does not fit 52 binary digits; raise epsilon or lower updates"
        )
