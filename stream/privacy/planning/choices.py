"""Choice of a mechanism for questions of one form, for a given ε or a largest error α.

Every mechanism that answers the form is planned and ranked by its error on such a question. The
choice depends on public parameters alone.
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
from stream.privacy.planning.form_accuracy import Form, Wanted, as_count_error, form_alpha, groups_of
from stream.privacy.planning.inverse_plans import needed_epsilon
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import TIE, choose
from stream.privacy.planning.promises import vacuous

MODELS: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(Mechanism)[0])
}
"""The model of each kind of mechanism."""

_TAKES: Final[dict[str, tuple[Form, ...]]] = {
    "laplace": (
        *("count", "people", "fraction", "sum", "mean", "groups", "value", "values", "alarm", "running"),
        *("rate", "people_groups", "person_sum"),
    ),
    "histogram": ("count", "fraction", "groups", "cells", "alarm", "rate"),
    "pmw": ("count", "fraction", "sum", "mean", "groups", "terms", "alarm", "rate"),
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
"""The forms that each mechanism answers. The first of equals wins: simple ones are first."""

_ONLY: Final[dict[str, str]] = {
    "above_threshold": "answers above or below, no number",
    "numeric_sparse": "answers above or below, a number on aboves alone",
    "noisy_max": "chooses among candidates",
    "exponential": "chooses among candidates",
    "histogram": "answers counts and rates of a table's cells",
    "lazy_histogram": "answers sums of a few cells",
    "sparse_pmw": "answers sums of a few cells",
    "sparse_project": "answers sums of a few cells",
    "randomized_response": "takes one person's category",
    "running_count": "answers the number so far after each window of a live topic",
    "unknown_groups": "answers counts of the texts of a column whose values are private",
    "laplace": "answers values, counts of rows and people, sums, means, rates and groups",
    "pmw": "answers counts, weighted counts, sums, means, rates and groups of a table",
}
_NOT_IN_THE_WORST_CASE: Final = {"sum", "mean", "groups", "rate"}
_OVER_TABLES: Final = {"histogram", "pmw", "lazy_histogram", "sparse_pmw", "sparse_project"}

_mechanisms: TypeAdapter[Mechanism] = TypeAdapter(Mechanism)


@dataclass(frozen=True, slots=True)
class Choice:
    """A mechanism in the ranking: ``alpha`` at the wanted ε, ``epsilon`` for the wanted error.

    ``why`` describes the use of ε or says why the mechanism does not apply; then ``alpha`` and
    ``epsilon`` are None. With ``alone`` the mechanism covers only the grouped attributes.
    """

    kind: str
    spec: StreamSpec | None
    calibration: Calibration | None
    alpha: float | None
    epsilon: float | None
    vacuous: bool
    why: str
    alone: bool = False

    @property
    def applies(self) -> bool:
        """True if the mechanism answers such questions about such a source."""
        return self.spec is not None


def compare(wanted: Wanted, say: Callable[[str], None] = lambda _: None) -> tuple[Choice, ...]:
    """Return all mechanisms, best first, and those that do not apply last.

    ``say`` is called with each kind before it is planned. With groups, a mechanism over a table's
    attributes may appear twice: over all attributes and over the grouped ones alone. If ε is
    given, the least α is best, otherwise the least ε; within a thousandth the simpler mechanism
    wins.

    Raises:
        PlanError: ε and α are both missing, α depends on private facts, or there are too many groups.
    """
    wanted.require_alpha()
    if wanted.form in {"groups", "people_groups"}:
        groups_of(wanted)
    found = []
    for kind in _TAKES:
        say(kind)
        found += _choices(kind, wanted)
    applying = [one for one in found if one.applies]
    least = min((_figure(one, wanted) for one in applying), default=math.inf)
    ranked = sorted(applying, key=lambda one: max(_figure(one, wanted), TIE * least))
    return (*ranked, *(one for one in found if not one.applies))


def _figure(choice: Choice, wanted: Wanted) -> float:
    """Return the α or ε by which a choice is ranked; infinite if no ε reaches the wanted error."""
    figure = choice.alpha if wanted.epsilon is not None else choice.epsilon
    return math.inf if figure is None else figure


def _choices(kind: str, wanted: Wanted) -> list[Choice]:
    over_all = _choice(kind, wanted)
    own = wanted.of_its_groups() if kind in _OVER_TABLES else None
    if own is None:
        return [over_all]
    alone = replace(_choice(kind, own), alone=True)
    return [one for one in (over_all, alone) if one.applies] or [over_all]


def _choice(kind: str, wanted: Wanted) -> Choice:
    try:
        spec = _spec(kind, wanted)
        needed = None if wanted.alpha is None else _needed(spec, wanted, wanted.alpha)
        if wanted.epsilon is None and needed is not None:
            spec = spec.model_copy(update={"epsilon": needed})
        chosen = choose(spec, wanted.setting)
    except PlanError as refused:
        return _not(kind, str(refused))
    except ValidationError as refused:
        return _not(kind, describe(refused))
    if isinstance(chosen, ReleaseCalibration) and chosen.noise_only:
        return _not(kind, "where the number of rows is private its error depends on the table; give --rows")
    alpha = form_alpha(chosen, spec.mechanism, wanted)
    worthless = vacuous(
        spec, chosen.model_copy(update={"alpha": as_count_error(alpha, wanted)}), wanted.setting.rows
    )
    return Choice(kind, spec, chosen, alpha, needed, worthless, _why(chosen, spec.mechanism, wanted))


def _not(kind: str, why: str) -> Choice:
    return Choice(kind, None, None, None, None, vacuous=False, why=why)


def _spec(kind: str, wanted: Wanted) -> StreamSpec:
    if wanted.form not in _TAKES[kind]:
        raise PlanError(_ONLY[kind])
    if kind == "pmw" and wanted.form in _NOT_IN_THE_WORST_CASE and wanted.fields.get("worst_case"):
        raise PlanError("planned for the worst case it answers counts, weighted counts and shares alone")
    if kind in _OVER_TABLES and wanted.setting.universe is None:
        raise PlanError("the attributes are not known; give --sizes, --universe or --source")
    known = MODELS[kind].model_fields
    fields: dict[str, Any] = {
        name: one for name, one in wanted.fields.items() if name in known and one is not None
    }
    fields |= {"threshold": 0.0} if "threshold" in known else {}
    fields |= {"attributes": ["any"]} if "attributes" in known else {}
    fields |= {"answers": _charged(wanted)} if "answers" in known else {}
    fields |= {"steps": wanted.queries} if "steps" in known else {}
    fields |= {"cutoff": wanted.cutoff} if "cutoff" in known else {}
    if kind == "laplace" and wanted.form in {"groups", "people_groups"}:
        fields["dimensions"] = groups_of(wanted).most
    return StreamSpec(
        stream="plan",
        source="plan",
        mechanism=_mechanisms.validate_python({"kind": kind, **fields}),
        epsilon=wanted.epsilon or 1.0,
        delta=wanted.delta,
        expected_queries=_charged(wanted),
        beta=wanted.beta,
    )


def _charged(wanted: Wanted) -> int:
    """Count the charged answers, one for each group of a window."""
    return wanted.queries * (wanted.setting.universe or 1) if wanted.form == "running" else wanted.queries


def _needed(spec: StreamSpec, wanted: Wanted, alpha: float) -> float | None:
    """Return the ε for the wanted error, or None if no ε suffices.

    Without a given ε, that is a PlanError: nothing could be ranked.
    """
    try:
        return needed_epsilon(spec, wanted.setting, alpha, lambda one: form_alpha(one, spec.mechanism, wanted))
    except PlanError:
        if wanted.epsilon is None:
            raise
        return None


def _why(chosen: Calibration, mechanism: Mechanism, wanted: Wanted) -> str:  # noqa: C901, PLR0911, PLR0912 - one for each mechanism
    """Describe how the mechanism spends ε, so that a reader can compare the choices."""
    gaussian = ", with Gaussian noise" if "gaussian" in {chosen.method, getattr(chosen, "noise", None)} else ""
    answers = _charged(wanted)
    charged = f"each of {answers:,} answers is charged" if answers > 1 else "one answer is charged"
    match mechanism:
        case RunningCount():
            most = chosen.nodes if isinstance(chosen, RunningCountCalibration) else 1
            return f"charged once; the number so far adds up {_several(most, 'noisy sum')} at most{gaussian}"
        case Laplace() if wanted.form == "running":
            return f"{charged}, and the number so far adds up all of their noise{gaussian}"
        case Laplace():
            return f"{charged}{gaussian}"
        case Histogram() if wanted.form == "cells" or (wanted.form == "groups" and groups_of(wanted).cells == 1):
            return f"charged once, for all cells{gaussian}"
        case Histogram():
            cells = groups_of(wanted).cells if wanted.form == "groups" else wanted.setting.universe
            what = "group" if wanted.form == "groups" else "count"
            added = f"a {what} adds up the noise of up to {cells:,} cells{gaussian}"
            return f"charged once; {added}; for questions fixed beforehand"
        case AboveThreshold():
            return f"charged for {_several(wanted.cutoff, 'above')}, not for questions; no numbers"
        case NumericSparse():
            return f"charged for {_several(wanted.cutoff, 'above')}; a part of ε goes to the number on each"
        case Pmw() if isinstance(chosen, EstimateCalibration):
            opening = f"{_several(chosen.starts, 'marginal')} and " if chosen.starts else ""
            if chosen.rounds:
                opening = f"{_several(chosen.starts, 'marginal')}, up to {chosen.rounds} chosen ones and "
            return (
                f"charged for {opening}up to {_several(chosen.cutoff, 'measurement')}, not for questions{gaussian}"
            )
        case Pmw() | SparsePmw():
            return f"charged for {_several(chosen.cutoff, 'update')}, enough for every table"
        case LazyHistogram():
            return f"charged once; only the cells asked for have noise{gaussian}"
        case SparseProject():
            return "charged once; the projection errs beside its noise"
        case UnknownGroups(counts=False):
            return f"{charged}, with a part of δ; all of ε decides which texts are released, and none has a count"
        case UnknownGroups():
            return f"{charged}, with a part of δ for the texts that few rows have"
        case NoisyMax():
            return f"{charged}; the least noise for a choice"
        case Exponential():
            return f"{charged}; an exact law, at a larger error"
        case RandomizedResponse():
            return "each person's category has noise before it is stored"
        case _:
            assert_never(mechanism)


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
