"""How far off answers of one form are, by a plan of the stream that gives them: from public facts alone.

It is what an answer's own ``alpha`` says, wherever that follows from them. A quotient of two private numbers carries an error that falls with the lower
one: of shares where the number of rows is private, and of means, the error times that number is told. An answer carries as much over its noisy lower
number, less that number's own error, at most (docs/proofs/laplace.md, docs/proofs/pmw.md).
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
from schemas.queries import Form as QuestionForm
from stream.privacy.accuracy.noise_laws import sum_alpha
from stream.privacy.accuracy.release_accuracy import histogram_alpha
from stream.privacy.accuracy.source_facts import Setting
from stream.privacy.planning import estimate_plans, hypothesis_plans
from stream.privacy.planning.answer_plans import alpha_for, answer_law
from stream.privacy.planning.inverse_plans import promised_alpha
from stream.privacy.planning.measurement_accuracy import Bounds, marginal_law
from stream.privacy.planning.noise_layouts import PlanError

Form = QuestionForm | Literal["alarm", "running"]
"""The forms of a question, ``alarm``: whether a value or a count is above a threshold, and ``running``: the number so far."""

FORMS: Final[tuple[Form, ...]] = (*get_args(QuestionForm), "alarm", "running")


@dataclass(frozen=True, slots=True)
class Summed:
    """An attribute of integers that is summed: the distance from its least value to its greatest, and how far one row moves its sum.

    ``centred`` is how far it moves the sum of what the values are above the middle of their range.
    """

    range: int
    moves: int
    centred: int


UNKNOWN_RANGE: Final = Summed(range=1, moves=1, centred=1)
"""For an attribute of which nothing is known: errors in ranges of it, or of its sum in what one row moves that by."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``queries`` questions of one form, or windows of one stream, at ``epsilon`` or within ``alpha``; one of the two at least.

    ``fields`` are those of mechanisms that are given beside, each for the mechanisms that have it. ``group_by`` has the places among the
    setting's sizes of the attributes that groups are of; none for any group-by that can be asked. ``summed`` are the attributes that sums and
    means are of; none where their ranges are not known.
    """

    form: Form
    queries: int
    epsilon: float | None
    alpha: float | None
    beta: float
    delta: float
    setting: Setting
    fields: Mapping[str, Any]
    cutoff: int = 1
    group_by: tuple[int, ...] = ()
    summed: tuple[Summed, ...] = ()

    @property
    def shares(self) -> bool:
        """Whether errors are told as shares of the rows, whose number is public and known."""
        return self.form == "fraction" and self.setting.rows_public and self.setting.rows is not None

    def of_its_groups(self) -> Wanted | None:
        """The same of a stream over the attributes that are grouped by alone; None where it has no others, or any may be grouped by."""
        if self.form != "groups" or not 0 < len(self.group_by) < len(self.setting.sizes):
            return None
        sizes = tuple(self.setting.sizes[place] for place in self.group_by)
        setting = replace(self.setting, sizes=sizes, universe=math.prod(sizes))
        return replace(self, setting=setting, group_by=tuple(range(len(sizes))))

    def require_alpha(self) -> None:
        """PlanError where an error is wanted that follows from no public fact, or nothing is."""
        if self.epsilon is None and self.alpha is None:
            raise PlanError("epsilon: give it, or alpha, the error that is wanted")
        if self.alpha is None:
            return
        if self.form == "mean":
            raise PlanError(
                "--alpha: a mean's error depends on how many rows it is over; plan the sums and the counts, each with an alpha of its own"
            )
        if self.form == "fraction" and not self.setting.rows_public:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows, which is private here; plan the counts with an alpha in rows"
            )
        if self.form == "fraction" and self.setting.rows is None:
            raise PlanError(
                "--alpha: a share's error depends on the number of rows; give --rows, or plan the counts with an alpha in rows"
            )
        if self.form == "sum" and not self.summed:
            raise PlanError(
                "--alpha: a sum's error depends on the range of its attribute; give --source, which declares it"
            )


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """``most`` groups that an answer lists, and the most ``cells`` of the table that one of them adds up."""

    most: int
    cells: int


def groups_of(wanted: Wanted) -> ListedGroups:
    """The groups that are meant: of all group-bys the finest has the most groups, and the coarsest the most cells in each."""
    sizes = wanted.setting.sizes
    if not sizes:
        raise PlanError("--sizes: the groups are not known without; give it, or --source")
    universe = math.prod(sizes)
    fewest = math.prod(sizes[place] for place in wanted.group_by) if wanted.group_by else min(sizes)
    if fewest > MAX_CATEGORIES:
        found = (
            f"there are {fewest:,} groups" if wanted.group_by else f"each attribute has {fewest:,} groups or more"
        )
        raise PlanError(
            f"--group-by: {found}, and an answer lists {MAX_CATEGORIES:,} at most; group by fewer or smaller attributes"
        )
    return ListedGroups(fewest if wanted.group_by else min(universe, MAX_CATEGORIES), universe // fewest)


_BOTH = 2
"""The numbers of a quotient, which share an answer's ε, so that each has twice the noise."""


def form_alpha(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """The error of each answer to a question of the form; the largest, if it may be about several attributes.

    In rows; of a share in shares where the number of rows is public and given; of sums and means in what their attributes are measured in.
    Groups and means are over all rows. Of windows that are each counted by themselves the number so far adds up all.
    """
    match wanted.form:
        case "fraction":
            error = _shared(calibration, mechanism, wanted)
            return error / max(1, wanted.setting.rows or 1) if wanted.shares else error
        case "sum":
            return max(_sum(calibration, wanted, one) for one in wanted.summed or (UNKNOWN_RANGE,))
        case "mean":
            return max(_mean(calibration, wanted, one) for one in wanted.summed or (UNKNOWN_RANGE,))
        case "running" if isinstance(calibration, AnswersCalibration):
            law = answer_law(calibration, calibration.sensitivity_steps, 1)
            sums = wanted.queries * (wanted.setting.universe or 1)
            return sum_alpha(law, wanted.queries, sums, calibration.beta, whole=True) * calibration.grid
        case "groups" if isinstance(calibration, EstimateCalibration):
            law, groups = marginal_law(calibration, numbered=False), groups_of(wanted).most
            return max(promised_alpha(calibration), Bounds(calibration).fresh(law, groups, 1, whole=True))
        case _:
            return _counted(calibration, mechanism, wanted)


def of_rows(alpha: float, wanted: Wanted) -> float:
    """An error of the form as that of a count which says as much: a constant's is half of the rows."""
    if wanted.form == "fraction":
        return alpha * (wanted.setting.rows or 1) if wanted.shares else alpha
    if wanted.form in {"sum", "mean"}:
        return alpha / max(1, *(one.range for one in wanted.summed or (UNKNOWN_RANGE,)))
    return alpha


def _counted(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """A histogram promises its cells, and a count adds cells up: up to all of them, a group those of the attributes that it is not of."""
    if not isinstance(mechanism, Histogram) or not isinstance(calibration, ReleaseCalibration):
        return promised_alpha(calibration)
    universe = wanted.setting.universe or 1
    if wanted.form == "groups":
        cells = groups_of(wanted).cells
        return histogram_alpha(calibration, universe, cells, universe // cells)
    few = wanted.form == "cells"
    cells = min(wanted.fields.get("sparsity") or 1, universe) if few else universe
    return histogram_alpha(calibration, universe, cells, whole=not few)


def _shared(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """The error of a share times the number of rows."""
    setting = wanted.setting
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration) and not setting.rows_public:
        # (t + r)/(b − r) − t/b = r(1 + t/b)/(b − r), and no share is above 1.
        return 2.0 * alpha_for(calibration, _BOTH * setting.contribution, _BOTH, _BOTH)
    error = _counted(calibration, mechanism, wanted)
    if isinstance(calibration, EstimateCalibration):
        return error + estimate_plans.rows_reach(calibration)
    return error + (
        hypothesis_plans.rows_reach(calibration) if isinstance(calibration, HypothesisCalibration) else 0
    )


def _sum(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    width = max(1, summed.moves)
    if isinstance(calibration, AnswersCalibration):
        return alpha_for(calibration, wanted.setting.contribution * width, 1)
    return promised_alpha(calibration) * width


def _mean(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    """The error of a mean over all rows times their number."""
    rows, width = wanted.setting.contribution, max(1, summed.range)
    if isinstance(calibration, AnswersCalibration):
        top = alpha_for(calibration, _BOTH * rows * max(1, summed.centred), _BOTH, _BOTH)
        bottom = alpha_for(calibration, _BOTH * rows, _BOTH, _BOTH)
        # As of a share; the mean is no further from the middle of the range than its larger half.
        return top + (summed.range - summed.range // 2) * bottom
    told = width * promised_alpha(calibration)
    if not isinstance(calibration, EstimateCalibration):
        return told
    # What a ⊤ measures for a mean is the marginal of its attribute, two sums over all of whose values are told.
    cells = summed.range + 1 if wanted.summed else max(wanted.setting.sizes or (wanted.setting.universe or 1,))
    fresh = Bounds(calibration).fresh(marginal_law(calibration, numbered=False), _BOTH, cells, whole=False)
    return max(told, 2.0 * width * fresh)
