"""Error of answers of one form under a plan, from public facts alone.

If public facts determine the ``alpha`` of such answers, the result is this ``alpha``. The error of a quotient
of two private numbers also depends on the private denominator. So for means, and for shares with a private row
count, the result is the error times the denominator: the ``alpha`` of an answer is at most the result divided
by (noisy denominator − error of the denominator). Proofs: docs/proofs/laplace.md and pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from schemas import (
    MAX_CATEGORIES,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Histogram,
    HypothesisCalibration,
    Laplace,
    Mechanism,
    ReleaseCalibration,
)
from schemas.queries import STATISTICS
from schemas.queries import Form as QuestionForm
from stream.privacy.accuracy.noise_laws import sum_alpha
from stream.privacy.accuracy.release_accuracy import SUMS_PART, histogram_alpha, misfits_reach, release_law
from stream.privacy.accuracy.source_facts import QuantileFacts, SourceFacts
from stream.privacy.planning.answer_plans import (
    alpha_for,
    answer_law,
    parse_quantiles,
    planned_rank_alpha,
    rates_reach,
)
from stream.privacy.planning.estimate_plans import ErrorBounds
from stream.privacy.planning.hypothesis_plans import rows_reach
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import promised_alpha
from stream.privacy.planning.warm_starts import marginal_law

Form = QuestionForm | Literal["alarm", "running", "texts"]
"""The form of a question, or one of three further forms: ``alarm`` (is a number above a threshold?), ``running``
(running count) and ``texts`` (groups by a text attribute)."""

FORMS: Final[tuple[Form, ...]] = (
    *(form for form in get_args(QuestionForm) if form not in STATISTICS or form == "quantile"),
    *("alarm", "running", "texts"),
)
"""The forms that can be planned; the errors of other statistics depend on how the values are spread."""


@dataclass(frozen=True, slots=True)
class SummedAttribute:
    """A summed attribute, in steps of ``unit``: its range, and the most that one row ``moves`` its sum.

    ``centered`` is the most by which one row changes the sum of the distances from the middle of the range.
    """

    range: int
    moves: int
    centered: int
    unit: float = 1.0


UNKNOWN_RANGE: Final = SummedAttribute(range=1, moves=1, centered=1)
"""Stands for an unknown attribute: errors are then multiples of its range or of its sum's sensitivity."""


@dataclass(frozen=True, slots=True)
class RankedAttribute:
    """An attribute of which quantiles are asked: its number of values, and the length of its range."""

    size: int
    span: float


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """The goal of a plan: to answer ``queries`` questions (or windows) with ``epsilon``, or within ``alpha``.

    ``fields`` has further fields of mechanisms, each for the mechanisms that have a field of this name.
    ``group_by`` has the positions of the grouped attributes, or of a quantile's, in ``facts.sizes``; it is empty
    if questions may have any. ``summed`` has the attributes of sums and means, and ``ranked`` the attributes of
    quantiles; both are empty if their ranges are unknown. ``q`` is the quantile.
    """

    form: Form
    queries: int
    epsilon: float | None
    alpha: float | None
    beta: float
    delta: float
    facts: SourceFacts
    fields: Mapping[str, Any]
    cutoff: int = 1
    group_by: tuple[int, ...] = ()
    summed: tuple[SummedAttribute, ...] = ()
    ranked: tuple[RankedAttribute, ...] = ()
    q: float = 0.5

    @property
    def errors_are_shares(self) -> bool:
        """True if errors are shares of the number of rows, which is public and given."""
        return self.form == "fraction" and self.facts.rows_public and self.facts.rows is not None

    def restrict_to_groups(self) -> PlanGoal | None:
        """Return the goal with the grouped attributes or a quantile's alone; None if there are none or no others."""
        if self.form not in {"groups", "quantile"} or not 0 < len(self.group_by) < len(self.facts.sizes):
            return None
        sizes = tuple(self.facts.sizes[axis] for axis in self.group_by)
        facts = replace(self.facts, sizes=sizes, universe=math.prod(sizes))
        return replace(self, facts=facts, group_by=tuple(range(len(sizes))))

    def require_alpha(self) -> None:
        """Raise PlanError if neither ε nor α is given, or if α depends on facts that are not given."""
        if self.epsilon is None and self.alpha is None:
            raise PlanError("epsilon: missing, and so is alpha; give epsilon, or alpha, the largest allowed error")
        if self.alpha is None:
            return
        if self.form in {"mean", "rate"}:
            raise PlanError(
                f"--alpha: a {self.form}'s error depends on how many rows it is over; plan the "
                f"{'sums and the ' if self.form == 'mean' else ''}counts, each with its alpha"
            )
        if self.form == "person_sum":
            raise PlanError(
                "--alpha: the error of a sum over people is a multiple of each person's bound; give --epsilon, or plan "
                "a count with alpha divided by the bound"
            )
        if self.form == "fraction" and not self.facts.rows_public:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows, which is private here; plan the counts with an alpha in rows"
            )
        if self.form == "fraction" and self.facts.rows is None:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows; give --rows, or plan the counts with an alpha in rows"
            )
        if self.form == "sum" and not self.summed:
            raise PlanError(
                "--alpha: a sum's error depends on the range of its attribute; give --source, which declares it"
            )


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The largest number of groups in an answer, and the largest number of table cells in a group."""

    groups: int
    cells_per_group: int


def listed_groups(goal: PlanGoal) -> ListedGroups:
    """Return the groups of the finest grouping and the cells of the coarsest one."""
    sizes = goal.facts.sizes
    if not sizes:
        raise PlanError("--sizes: missing, and so the groups are unknown; give --sizes or --source")
    universe = math.prod(sizes)
    fewest = math.prod(sizes[axis] for axis in goal.group_by) if goal.group_by else min(sizes)
    if fewest > MAX_CATEGORIES:
        problem = (
            f"there are {fewest:,} groups" if goal.group_by else f"each attribute has {fewest:,} groups or more"
        )
        raise PlanError(
            f"--group-by: {problem}, and an answer lists {MAX_CATEGORIES:,} at most; group by fewer or smaller attributes"
        )
    return ListedGroups(fewest if goal.group_by else min(universe, MAX_CATEGORIES), universe // fewest)


_QUOTIENT_NUMBERS = 2
"""Number of noisy numbers of a quotient, between which ε is divided."""


def form_alpha(  # noqa: PLR0911 - one for each form
    calibration: Calibration, mechanism: Mechanism, goal: PlanGoal
) -> float:
    """Return the error of each answer to a question of the form.

    The error is in rows. For a share with a public row count, it is a share. For sums and means it is in the
    attribute's unit; with several attributes, the largest error is returned. Groups and means are over all rows. If a
    mechanism counts each window separately, its error of a running count is the error of the sum of all windows.
    """
    match goal.form:
        case "fraction":
            error = _share_error(calibration, mechanism, goal)
            return error / max(1, goal.facts.rows or 1) if goal.errors_are_shares else error
        case "rate":
            return _rate_error(calibration, mechanism, goal)
        case "people_groups" if isinstance(calibration, AnswersCalibration):
            groups = listed_groups(goal).groups
            moved = min(goal.facts.groups_steps, groups)
            return alpha_for(calibration, moved, groups, moved)
        case "person_sum" if isinstance(calibration, AnswersCalibration):
            return alpha_for(calibration, 1, 1)
        case "quantile":
            return _rank_error(calibration, goal)
        case "sum":
            return max(_sum_error(calibration, goal, one) * one.unit for one in goal.summed or (UNKNOWN_RANGE,))
        case "mean":
            return max(_mean_error(calibration, goal, one) * one.unit for one in goal.summed or (UNKNOWN_RANGE,))
        case "running" if isinstance(calibration, AnswersCalibration):
            law = answer_law(calibration, calibration.sensitivity_steps, 1)
            sums = goal.queries * (goal.facts.universe or 1)
            return sum_alpha(law, goal.queries, sums, calibration.beta, full_weights=True) * calibration.grid
        case "groups" if isinstance(calibration, EstimateCalibration):
            law, groups = marginal_law(calibration, numbered=False), listed_groups(goal).groups
            measured = ErrorBounds(calibration).bound_new_numbers(law, groups, 1, full_weights=True)
            return max(promised_alpha(calibration), measured)
        case _:
            return _count_error(calibration, mechanism, goal)


def as_count_error(alpha: float, goal: PlanGoal) -> float:
    """Convert an error of the goal's form to the equivalent error of a count."""
    if goal.form == "fraction":
        return alpha * (goal.facts.rows or 1) if goal.errors_are_shares else alpha
    if goal.form in {"sum", "mean"}:
        return alpha / max(1, *(one.range * one.unit for one in goal.summed or (UNKNOWN_RANGE,)))
    return alpha


def value_error(alpha: float, goal: PlanGoal) -> float | None:
    """Convert an error in rank to an error in value, for rows that are spread evenly over the range.

    The result is None if the number of rows or the range is not given.
    """
    if goal.form != "quantile" or not goal.ranked or not goal.facts.rows:
        return None
    span = max(one.span for one in goal.ranked)
    return min(span, alpha / goal.facts.rows * span)


def _rank_error(calibration: Calibration, goal: PlanGoal) -> float:
    """Return the rank error of a quantile, in rows (docs/proofs/quantiles.md)."""
    facts = goal.facts
    sizes = [one.size for one in goal.ranked] or list(facts.sizes) or [facts.universe or 1]
    size = max(sizes)
    if isinstance(calibration, AnswersCalibration):
        asked = QuantileFacts(
            value_count=size,
            quantiles=parse_quantiles(goal.q),
            group_count=1,
            grouped=False,
            contribution=facts.contribution,
            replaced=facts.neighbors == "replace",
        )
        return planned_rank_alpha(calibration, asked)
    if isinstance(calibration, ReleaseCalibration):
        failure = SUMS_PART * calibration.beta / calibration.expected_queries
        return misfits_reach(release_law(calibration), facts.universe or 1, 2 * size, goal.q, failure)
    error = promised_alpha(calibration)
    if isinstance(calibration, EstimateCalibration):  # a ⊤ publishes sums of up to all cells of its noisy marginal
        law = marginal_law(calibration, numbered=False)
        measured = ErrorBounds(calibration).bound_new_numbers(law, size, size, full_weights=True)
        error = max(error, measured)
    return (1.0 + goal.q) * error


def _count_error(calibration: Calibration, mechanism: Mechanism, goal: PlanGoal) -> float:
    """Return the error of a count; a count from a histogram may be the sum of all cells."""
    if not isinstance(mechanism, Histogram) or not isinstance(calibration, ReleaseCalibration):
        return promised_alpha(calibration)
    universe = goal.facts.universe or 1
    if goal.form == "groups":
        cells = listed_groups(goal).cells_per_group
        return histogram_alpha(calibration, universe, cells, universe // cells)
    few = goal.form == "cells"
    cells = min(goal.fields.get("sparsity") or 1, universe) if few else universe
    return histogram_alpha(calibration, universe, cells, full_weights=not few)


def _share_error(calibration: Calibration, mechanism: Mechanism, goal: PlanGoal) -> float:
    """Return the error of a share times the number of rows."""
    facts = goal.facts
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration) and not facts.rows_public:
        # A share is the rate of hits among all rows.
        return rates_reach(calibration, facts.groups_steps, 1, 2 if facts.neighbors == "replace" else 1)
    if isinstance(mechanism, Histogram) and not facts.rows_public:
        return _rate_error(calibration, mechanism, replace(goal, group_by=()))
    error = _count_error(calibration, mechanism, goal)
    if isinstance(calibration, EstimateCalibration | HypothesisCalibration):
        return error + rows_reach(calibration)
    return error


def _rate_error(calibration: Calibration, mechanism: Mechanism, goal: PlanGoal) -> float:
    """Return the error of a rate times its number of rows."""
    groups = listed_groups(goal).groups if goal.group_by else 1
    facts = goal.facts
    if isinstance(calibration, AnswersCalibration):
        moved = 2 if facts.neighbors == "replace" else 1
        return rates_reach(calibration, facts.groups_steps, groups, moved)
    if isinstance(mechanism, Histogram) and isinstance(calibration, ReleaseCalibration):
        universe = facts.universe or 1
        return histogram_alpha(calibration, universe, max(1, universe // groups), 2 * groups)
    error = promised_alpha(calibration)
    if isinstance(calibration, EstimateCalibration):
        law, cells = marginal_law(calibration, numbered=False), max(1, (facts.universe or 1) // groups)
        bounds, summed = ErrorBounds(calibration), min(cells, MAX_CATEGORIES)
        error = max(error, bounds.bound_new_numbers(law, 2 * groups, summed, full_weights=True))
    return error


def _sum_error(calibration: Calibration, goal: PlanGoal, summed: SummedAttribute) -> float:
    width = max(1, summed.moves)
    if isinstance(calibration, AnswersCalibration):
        return alpha_for(calibration, goal.facts.contribution * width, 1)
    return promised_alpha(calibration) * width


def _mean_error(calibration: Calibration, goal: PlanGoal, summed: SummedAttribute) -> float:
    rows, width = goal.facts.contribution, max(1, summed.range)
    if isinstance(calibration, AnswersCalibration):
        top = alpha_for(
            calibration, _QUOTIENT_NUMBERS * rows * max(1, summed.centered), _QUOTIENT_NUMBERS, _QUOTIENT_NUMBERS
        )
        bottom = alpha_for(calibration, _QUOTIENT_NUMBERS * rows, _QUOTIENT_NUMBERS, _QUOTIENT_NUMBERS)
        # A mean differs from the middle of the range by at most half the range.
        return top + (summed.range - summed.range // 2) * bottom
    error = width * promised_alpha(calibration)
    if not isinstance(calibration, EstimateCalibration):
        return error
    # A ⊤ of a mean measures the attribute's marginal and publishes two sums over all values.
    cells = summed.range + 1 if goal.summed else max(goal.facts.sizes or (goal.facts.universe or 1,))
    measured_error = ErrorBounds(calibration).bound_new_numbers(
        marginal_law(calibration, numbered=False), _QUOTIENT_NUMBERS, cells, full_weights=False
    )
    return max(error, 2.0 * width * measured_error)
