"""Error of answers of one form under a plan, from public facts alone.

The result is the ``alpha`` of such answers if public facts determine it. The error of a quotient
of two private numbers also depends on its denominator: for shares with a private row count, and
for means, the result is the error times the denominator. The ``alpha`` of an answer is at most
this result divided by (noisy denominator − its error); see docs/proofs/laplace.md and pmw.md.
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
from stream.privacy.accuracy.release_accuracy import histogram_alpha
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import alpha_for, answer_law, rates_reach
from stream.privacy.planning.estimate_plans import Bounds, marginal_law
from stream.privacy.planning.hypothesis_plans import rows_reach
from stream.privacy.planning.inverse_plans import promised_alpha
from stream.privacy.planning.noise_layouts import PlanError

Form = QuestionForm | Literal["alarm", "running", "texts"]
"""A question's form, ``alarm`` (is a number above a threshold?), ``running`` (running count) or
``texts`` (groups by a text attribute)."""

FORMS: Final[tuple[Form, ...]] = (
    *(form for form in get_args(QuestionForm) if form not in STATISTICS),
    *("alarm", "running", "texts"),
)
"""The forms that can be planned; the error of a statistic depends on how the values are spread."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A summed attribute: its range, and the sensitivity of its sum to one row, in steps of ``unit``.

    ``centred`` is the sensitivity of the sum of distances from the middle of the range.
    """

    range: int
    moves: int
    centred: int
    unit: float = 1.0


UNKNOWN_RANGE: Final = Summed(range=1, moves=1, centred=1)
"""For an unknown attribute: errors are in units of its range or of its sum's sensitivity."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted plan: ``queries`` questions (or windows), for ``epsilon`` or an error ``alpha``.

    ``fields`` are further fields of mechanisms, each for the mechanisms that have it.
    ``group_by`` holds the places of the grouped attributes in ``setting.sizes`` and is empty if
    any grouping may be asked. ``summed`` are the attributes of sums and means; it is empty if
    their ranges are unknown.
    """

    form: Form
    queries: int
    epsilon: float | None
    alpha: float | None
    beta: float
    delta: float
    setting: SourceFacts
    fields: Mapping[str, Any]
    cutoff: int = 1
    group_by: tuple[int, ...] = ()
    summed: tuple[Summed, ...] = ()

    @property
    def shares(self) -> bool:
        """True if errors are shares of a public and known row count."""
        return self.form == "fraction" and self.setting.rows_public and self.setting.rows is not None

    def of_its_groups(self) -> Wanted | None:
        """Restrict to the grouped attributes; None if that changes nothing."""
        if self.form != "groups" or not 0 < len(self.group_by) < len(self.setting.sizes):
            return None
        sizes = tuple(self.setting.sizes[place] for place in self.group_by)
        setting = replace(self.setting, sizes=sizes, universe=math.prod(sizes))
        return replace(self, setting=setting, group_by=tuple(range(len(sizes))))

    def require_alpha(self) -> None:
        """Raise PlanError without ε and α, or if α depends on facts that are not given."""
        if self.epsilon is None and self.alpha is None:
            raise PlanError("epsilon: give it, or alpha, the largest allowed error")
        if self.alpha is None:
            return
        if self.form in {"mean", "rate"}:
            raise PlanError(
                f"--alpha: a {self.form}'s error depends on how many rows it is over; plan the "
                f"{'sums and the ' if self.form == 'mean' else ''}counts, each with its alpha"
            )
        if self.form == "person_sum":
            raise PlanError("--alpha: the error of a sum over people depends on the bound; divide it by the bound")
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
    """The most groups that an answer lists, and the most table cells in one group."""

    most: int
    cells: int


def groups_of(wanted: Wanted) -> ListedGroups:
    """Return the groups of the finest grouping and the cells of the coarsest one."""
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
"""A quotient has two numbers, which share ε, so that each has twice the noise."""


def form_alpha(  # noqa: PLR0911 - one for each form
    calibration: Calibration, mechanism: Mechanism, wanted: Wanted
) -> float:
    """Return the error of each answer to a question of the form.

    It is in rows; for a fraction in shares, if the row count is public; for sums and means in the
    attribute's unit, the largest if there are several. Groups and means are taken over all rows.
    A mechanism that counts each window separately sums all windows for a running count.
    """
    match wanted.form:
        case "fraction":
            error = _shared(calibration, mechanism, wanted)
            return error / max(1, wanted.setting.rows or 1) if wanted.shares else error
        case "rate":
            return _rate(calibration, mechanism, wanted)
        case "people_groups" if isinstance(calibration, AnswersCalibration):
            groups = groups_of(wanted).most
            moved = min(wanted.setting.groups_steps, groups)
            return alpha_for(calibration, moved, groups, moved)
        case "person_sum" if isinstance(calibration, AnswersCalibration):
            return alpha_for(calibration, 1, 1)
        case "sum":
            return max(_sum(calibration, wanted, one) * one.unit for one in wanted.summed or (UNKNOWN_RANGE,))
        case "mean":
            return max(_mean(calibration, wanted, one) * one.unit for one in wanted.summed or (UNKNOWN_RANGE,))
        case "running" if isinstance(calibration, AnswersCalibration):
            law = answer_law(calibration, calibration.sensitivity_steps, 1)
            sums = wanted.queries * (wanted.setting.universe or 1)
            return sum_alpha(law, wanted.queries, sums, calibration.beta, whole=True) * calibration.grid
        case "groups" if isinstance(calibration, EstimateCalibration):
            law, groups = marginal_law(calibration, numbered=False), groups_of(wanted).most
            return max(promised_alpha(calibration), Bounds(calibration).fresh(law, groups, 1, whole=True))
        case _:
            return _counted(calibration, mechanism, wanted)


def as_count_error(alpha: float, wanted: Wanted) -> float:
    """Convert an error of the form to the equivalent error of a count."""
    if wanted.form == "fraction":
        return alpha * (wanted.setting.rows or 1) if wanted.shares else alpha
    if wanted.form in {"sum", "mean"}:
        return alpha / max(1, *(one.range * one.unit for one in wanted.summed or (UNKNOWN_RANGE,)))
    return alpha


def _counted(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """Return the error of a count; from a histogram, a count may sum up to all cells."""
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
    """Return the error of a share times the number of rows."""
    setting = wanted.setting
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration) and not setting.rows_public:
        # A share is a rate of hits and misses among all rows.
        return rates_reach(calibration, setting.groups_steps, 1, 2 if setting.neighbors == "replace" else 1)
    if isinstance(mechanism, Histogram) and not setting.rows_public:
        return _rate(calibration, mechanism, replace(wanted, group_by=()))
    error = _counted(calibration, mechanism, wanted)
    if isinstance(calibration, EstimateCalibration | HypothesisCalibration):
        return error + rows_reach(calibration)
    return error


def _rate(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """Return the error of a rate times its number of rows."""
    groups = groups_of(wanted).most if wanted.group_by else 1
    setting = wanted.setting
    if isinstance(calibration, AnswersCalibration):
        moved = 2 if setting.neighbors == "replace" else 1
        return rates_reach(calibration, setting.groups_steps, groups, moved)
    if isinstance(mechanism, Histogram) and isinstance(calibration, ReleaseCalibration):
        universe = setting.universe or 1
        return histogram_alpha(calibration, universe, max(1, universe // groups), 2 * groups)
    error = promised_alpha(calibration)
    if isinstance(calibration, EstimateCalibration):
        law, cells = marginal_law(calibration, numbered=False), max(1, (setting.universe or 1) // groups)
        error = max(error, Bounds(calibration).fresh(law, 2 * groups, min(cells, MAX_CATEGORIES), whole=True))
    return error


def _sum(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    width = max(1, summed.moves)
    if isinstance(calibration, AnswersCalibration):
        return alpha_for(calibration, wanted.setting.contribution * width, 1)
    return promised_alpha(calibration) * width


def _mean(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    rows, width = wanted.setting.contribution, max(1, summed.range)
    if isinstance(calibration, AnswersCalibration):
        top = alpha_for(calibration, _BOTH * rows * max(1, summed.centred), _BOTH, _BOTH)
        bottom = alpha_for(calibration, _BOTH * rows, _BOTH, _BOTH)
        # As for a share; a mean differs from the middle of the range by at most half the range.
        return top + (summed.range - summed.range // 2) * bottom
    told = width * promised_alpha(calibration)
    if not isinstance(calibration, EstimateCalibration):
        return told
    # For a mean, a ⊤ measures its attribute's marginal and publishes two sums over all values.
    cells = summed.range + 1 if wanted.summed else max(wanted.setting.sizes or (wanted.setting.universe or 1,))
    fresh = Bounds(calibration).fresh(marginal_law(calibration, numbered=False), _BOTH, cells, whole=False)
    return max(told, 2.0 * width * fresh)
