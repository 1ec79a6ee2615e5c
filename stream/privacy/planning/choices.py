"""Choice of a mechanism for questions of one form, for a given ε or a largest error α.

Every mechanism that answers questions of the form is planned and ranked by its error. The choice depends
on public parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas import (
    AboveThreshold,
    Calibration,
    EstimateCalibration,
    Exponential,
    Histogram,
    Laplace,
    LazyHistogram,
    Mechanism,
    NoisyMax,
    NumericSparse,
    Pmw,
    RandomizedResponse,
    ReleaseCalibration,
    RunningCount,
    RunningCountCalibration,
    SparsePmw,
    SparseProject,
    StreamSpec,
    UnknownGroups,
)
from schemas.wire import describe
from stream.formatting import format_count
from stream.privacy.planning.form_accuracy import Form, PlanGoal, as_count_error, form_alpha, listed_groups
from stream.privacy.planning.inverse_plans import needed_epsilon
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import TIE_FACTOR, choose_calibration
from stream.privacy.planning.promises import is_vacuous

MODELS: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(Mechanism)[0])
}
"""The model of each kind of mechanism."""

_FORMS_OF_MECHANISM: Final[dict[str, tuple[Form, ...]]] = {
    "laplace": (
        *("count", "people", "fraction", "sum", "mean", "groups", "value", "values", "alarm", "running"),
        *("rate", "people_groups", "person_sum", "quantile"),
    ),
    "histogram": ("count", "fraction", "groups", "cells", "alarm", "rate", "quantile"),
    "pmw": ("count", "fraction", "sum", "mean", "groups", "terms", "alarm", "rate", "quantile"),
    "above_threshold": ("alarm",),
    "numeric_sparse": ("alarm",),
    "noisy_max": ("candidates",),
    "exponential": ("candidates",),
    "lazy_histogram": ("cells",),
    "sparse_pmw": ("cells",),
    "sparse_project": ("cells",),
    "randomized_response": ("category",),
    "running_count": ("running",),
    "unknown_groups": ("texts",),
}
"""The forms that each mechanism answers. Simple mechanisms come first, because in a tie the first is chosen."""

_ABILITY_OF_MECHANISM: Final[dict[str, str]] = {
    "above_threshold": "answers above or below, no number",
    "numeric_sparse": "answers above or below, and a number only with an above",
    "noisy_max": "chooses among candidates",
    "exponential": "chooses among candidates",
    "histogram": "answers counts, rates and quantiles of a table's cells",
    "lazy_histogram": "answers sums of a few cells",
    "sparse_pmw": "answers sums of a few cells",
    "sparse_project": "answers sums of a few cells",
    "randomized_response": "takes one person's category",
    "running_count": "answers the number so far after each window of a live topic",
    "unknown_groups": "answers counts of the texts of a column whose values are private",
    "laplace": "answers values, counts of rows and people, sums, means, quantiles, rates and groups",
    "pmw": "answers counts, weighted counts, sums, means, quantiles, rates and groups of a table",
}
_FORMS_WITHOUT_WORST_CASE: Final = {"sum", "mean", "groups", "rate", "quantile"}
_TABLE_MECHANISMS: Final = {"histogram", "pmw", "lazy_histogram", "sparse_pmw", "sparse_project"}

mechanism_adapter: TypeAdapter[Mechanism] = TypeAdapter(Mechanism)


@dataclass(frozen=True, slots=True)
class Choice:
    """A mechanism in the ranking.

    ``alpha`` is its error at the goal's ε, and ``epsilon`` the ε that it needs for the goal's error. ``why``
    describes how ε is spent. If the mechanism does not apply, ``why`` is the reason, and ``alpha`` and
    ``epsilon`` are None. If ``alone`` is True, the mechanism is planned over the grouped or ranked attributes alone.
    """

    kind: str
    why: str
    spec: StreamSpec | None = None
    calibration: Calibration | None = None
    alpha: float | None = None
    epsilon: float | None = None
    vacuous: bool = False
    alone: bool = False

    @property
    def applies(self) -> bool:
        """True if the mechanism answers such questions about such a source."""
        return self.spec is not None


def rank_mechanisms(goal: PlanGoal, on_mechanism: Callable[[str], None] = lambda _: None) -> tuple[Choice, ...]:
    """Return all mechanisms, best first; mechanisms that do not apply are last.

    ``on_mechanism`` is called with each kind before it is planned. With groups or a quantile's attribute, a
    mechanism over a table's attributes may appear twice: with all attributes, and with these alone. If ε is given, mechanisms are ranked
    by α, otherwise by ε. Of two that differ by at most a thousandth, the simpler one is first.

    Raises:
        PlanError: the goal has neither ε nor α, α depends on private facts, or there are too many groups.
    """
    goal.require_alpha()
    if goal.form in {"groups", "people_groups"}:
        listed_groups(goal)
    choices = []
    for kind in _FORMS_OF_MECHANISM:
        on_mechanism(kind)
        choices += _plan_all_and_grouped(kind, goal)
    applying = [choice for choice in choices if choice.applies]
    least = min((_ranking_value(choice, goal) for choice in applying), default=math.inf)
    ranked = sorted(applying, key=lambda choice: max(_ranking_value(choice, goal), TIE_FACTOR * least))
    return (*ranked, *(choice for choice in choices if not choice.applies))


def _ranking_value(choice: Choice, goal: PlanGoal) -> float:
    """Return the α or ε by which a choice is ranked; infinite if no ε is enough for the requested error."""
    value = choice.alpha if goal.epsilon is not None else choice.epsilon
    return math.inf if value is None else value


def _plan_all_and_grouped(kind: str, goal: PlanGoal) -> list[Choice]:
    over_all = _plan_mechanism(kind, goal)
    grouped_goal = goal.restrict_to_groups() if kind in _TABLE_MECHANISMS else None
    if grouped_goal is None:
        return [over_all]
    grouped = replace(_plan_mechanism(kind, grouped_goal), alone=True)
    return [choice for choice in (over_all, grouped) if choice.applies] or [over_all]


def _plan_mechanism(kind: str, goal: PlanGoal) -> Choice:
    try:
        spec = _build_spec(kind, goal)
        needed = None if goal.alpha is None else _needed_epsilon_or_none(spec, goal, goal.alpha)
        if goal.epsilon is None and needed is not None:
            spec = spec.model_copy(update={"epsilon": needed})
        calibration = choose_calibration(spec, goal.facts)
        if isinstance(calibration, ReleaseCalibration) and calibration.noise_only:
            return Choice(
                kind, "its error depends on the table, because the number of rows is private; give --rows"
            )
        alpha = form_alpha(calibration, spec.mechanism, goal)
    except PlanError as error:
        return Choice(kind, str(error))
    except ValidationError as error:
        return Choice(kind, describe(error))
    vacuous = is_vacuous(
        spec, calibration.model_copy(update={"alpha": as_count_error(alpha, goal)}), goal.facts.rows
    )
    why = _describe_spending(calibration, spec.mechanism, goal)
    return Choice(kind, why, spec, calibration, alpha, needed, vacuous)


def _build_spec(kind: str, goal: PlanGoal) -> StreamSpec:
    if goal.form not in _FORMS_OF_MECHANISM[kind]:
        raise PlanError(_ABILITY_OF_MECHANISM[kind])
    if kind == "pmw" and goal.form in _FORMS_WITHOUT_WORST_CASE and goal.fields.get("worst_case"):
        raise PlanError("answers only counts, weighted counts and shares if it is planned for the worst case")
    if kind in _TABLE_MECHANISMS and goal.facts.universe is None:
        raise PlanError("the attributes are not known; give --sizes, --universe or --source")
    model_fields = MODELS[kind].model_fields
    fields: dict[str, Any] = {
        name: value for name, value in goal.fields.items() if name in model_fields and value is not None
    }
    fields |= {"threshold": 0.0} if "threshold" in model_fields else {}
    fields |= {"attributes": ["any"]} if "attributes" in model_fields else {}
    fields |= {"answers": _count_charged(goal)} if "answers" in model_fields else {}
    fields |= {"steps": goal.queries} if "steps" in model_fields else {}
    fields |= {"cutoff": goal.cutoff} if "cutoff" in model_fields else {}
    if kind == "laplace" and goal.form in {"groups", "people_groups"}:
        fields["dimensions"] = listed_groups(goal).groups
    return StreamSpec(
        stream="plan",
        source="plan",
        mechanism=mechanism_adapter.validate_python({"kind": kind, **fields}),
        epsilon=goal.epsilon or 1.0,
        delta=goal.delta,
        expected_queries=_count_charged(goal),
        beta=goal.beta,
    )


def _count_charged(goal: PlanGoal) -> int:
    """Count the charged answers, one for each group of a window."""
    return goal.queries * (goal.facts.universe or 1) if goal.form == "running" else goal.queries


def _needed_epsilon_or_none(spec: StreamSpec, goal: PlanGoal, alpha: float) -> float | None:
    """Return the ε that the goal's error needs; None if no ε is enough.

    Raises:
        PlanError: no ε is enough and the goal has no ε either, so the mechanism cannot be ranked.
    """
    try:
        return needed_epsilon(spec, goal.facts, alpha, lambda one: form_alpha(one, spec.mechanism, goal))
    except PlanError:
        if goal.epsilon is None:
            raise
        return None


def _describe_spending(calibration: Calibration, mechanism: Mechanism, goal: PlanGoal) -> str:  # noqa: C901, PLR0911, PLR0912 - one for each mechanism
    """Describe how the mechanism spends ε, so that a reader can compare the choices."""
    gaussian = (
        ", with Gaussian noise" if "gaussian" in {calibration.method, getattr(calibration, "noise", None)} else ""
    )
    answers = _count_charged(goal)
    charged = f"each of {answers:,} answers is charged" if answers > 1 else "one answer is charged"
    match mechanism:
        case RunningCount():
            most = calibration.nodes if isinstance(calibration, RunningCountCalibration) else 1
            return f"charged once; the number so far is the sum of at most {format_count(most, 'noisy number')}{gaussian}"
        case Laplace() if goal.form == "running":
            return f"{charged}, and the number so far has the noise of all of them{gaussian}"
        case Laplace():
            return f"{charged}{gaussian}"
        case Histogram() if goal.form == "cells" or (
            goal.form == "groups" and listed_groups(goal).cells_per_group == 1
        ):
            return f"charged once, for all cells{gaussian}"
        case Histogram():
            cells = listed_groups(goal).cells_per_group if goal.form == "groups" else goal.facts.universe
            what = "group" if goal.form == "groups" else "count"
            added = f"a {what} has the noise of up to {cells:,} cells{gaussian}"
            return f"charged once; {added}; for questions fixed beforehand"
        case AboveThreshold():
            return f"charged for {format_count(goal.cutoff, 'above')}, not for questions; no numbers"
        case NumericSparse():
            return f"charged for {format_count(goal.cutoff, 'above')}; a part of ε goes to the number on each"
        case Pmw() if isinstance(calibration, EstimateCalibration):
            opening = f"{format_count(calibration.starts, 'marginal')} and " if calibration.starts else ""
            if calibration.rounds:
                opening = (
                    f"{format_count(calibration.starts, 'marginal')}, up to {calibration.rounds} chosen ones and "
                )
            return f"charged for {opening}up to {format_count(calibration.cutoff, 'measurement')}, not for questions{gaussian}"
        case Pmw() | SparsePmw():
            return f"charged for {format_count(calibration.cutoff, 'update')}, enough for every table"
        case LazyHistogram():
            return f"charged once; only the cells asked for have noise{gaussian}"
        case SparseProject():
            return "charged once; the projection has an error in addition to its noise"
        case UnknownGroups(counts=False):
            return f"{charged}, with a part of δ; all of ε decides which texts are released, and none has a count"
        case UnknownGroups():
            return f"{charged}, with a part of δ for the texts that few rows have"
        case NoisyMax():
            return f"{charged}; this choice has the least noise"
        case Exponential():
            return f"{charged}; drawn from an exact distribution, with a larger error"
        case RandomizedResponse():
            return "each person's category has noise before it is stored"
        case _:
            assert_never(mechanism)
