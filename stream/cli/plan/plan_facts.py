"""Converts the options of ``sotto plan`` to public facts of a source, and prints a plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from schemas import (
    Calibration,
    EstimateCalibration,
    EventsSource,
    HypothesisCalibration,
    LazyHistogram,
    Numeric,
    RecordsSource,
    RunningCountCalibration,
    Source,
    SparsePmw,
    SparseProject,
    SparseVectorCalibration,
    StreamSpec,
    TableSource,
    UnknownGroupsCalibration,
    ValuesSource,
)
from stream.cli.output import CommandError, console, show_table
from stream.cli.plan.public_data import read_source
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import Movement, SourceFacts
from stream.privacy.planning.form_accuracy import FORMS, Form, RankedAttribute, SummedAttribute
from stream.privacy.planning.inverse_plans import (
    ANSWER_CUTOFF_FIELDS,
    cutoff_field,
    largest_cutoff,
    needed_epsilon,
    needed_rows,
)
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, name_of, rank, sensitivity_steps
from stream.privacy.planning.promises import describe_uninformative, promises
from stream.tables.ordered_values import ordered_values
from stream.tables.sensitivity import sum_sensitivity

FormName = StrEnum("FormName", {form.upper(): form for form in FORMS})  # type: ignore[misc]

_VALUE_FORMS = {"value", "values"}
_VALUE_OR_TABLE_FORMS = {"alarm", "candidates"}
_SUM_FORMS: Final = {"sum", "mean"}
_WINDOW_FORM: Final = "running"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of ``sotto plan`` that describe the source: its document, or separate facts."""

    document: str | None
    neighbors: str
    sizes: tuple[int, ...]
    universe: int | None
    rows: int | None
    sensitivity: float
    grid: float
    contributions: int
    total: int | None = None
    group_by: tuple[str, ...] = ()
    attribute: str | None = None


def parse_source(options: SourceOptions) -> Source | None:
    """Parse the source's definition, if one is given."""
    return None if options.document is None else read_source(options.document)


def group_by_indices(options: SourceOptions, source: Source | None) -> tuple[int, ...]:
    """Return the index of each ``--group-by``: a name of the source, or a position (from 1) in ``--sizes``."""
    if isinstance(source, TableSource) and not options.sizes:
        names, known = list(source.attributes), "an attribute of the source, which has"
    else:
        names, known = (
            [str(index + 1) for index in range(len(options.sizes))],
            "a position in --sizes, whose positions are",
        )
    if options.group_by and not names:
        raise CommandError("--group-by: the attributes are unknown; give --sizes or --source as well")
    for number, name in enumerate(options.group_by):
        if name not in names:
            raise CommandError(f"--group-by: '{name}' is not {known} {', '.join(names)}; give one of them")
        if name in options.group_by[:number]:
            raise CommandError(f"--group-by: '{name}' is given twice; give it once")
    return tuple(names.index(name) for name in options.group_by)


def summed_attributes(form: Form, source: Source | None, attribute: str | None) -> tuple[SummedAttribute, ...]:
    """Return the attribute to sum, or every attribute with sums if none is named; empty without a table."""
    if form not in _SUM_FORMS:
        if attribute is not None and (form != "quantile" or source is None):
            raise CommandError(f"--attribute: form {form} sums no attribute; give --form sum, mean or quantile")
        return ()
    if not isinstance(source, TableSource):
        if attribute is not None:
            raise CommandError("--attribute: its range is unknown; give --source as well")
        return ()
    numeric = {name: domain for name, domain in source.attributes.items() if isinstance(domain, Numeric)}
    if not numeric:
        raise CommandError(f"--form: a {form} needs an attribute of integers or decimals, and the source has none")
    if attribute is not None and attribute not in numeric:
        raise CommandError(
            f"--attribute: '{attribute}' is not an attribute of integers or decimals of the source, which has {', '.join(numeric)}; give one of them"
        )
    return tuple(
        _summed_attribute(domain, source.neighbors)
        for name, domain in numeric.items()
        if attribute in {None, name}
    )


def ranked_attributes(form: Form, source: Source | None, attribute: str | None) -> tuple[RankedAttribute, ...]:
    """Return the attribute of a quantile, or every ordered one if none is named; empty without a table."""
    if form != "quantile" or not isinstance(source, TableSource):
        return ()
    ordered = {
        name: values
        for name, domain in source.attributes.items()
        if (values := ordered_values(domain)) is not None
    }
    if not ordered:
        raise CommandError(
            "--form: a quantile needs an attribute of integers, decimals or bins, and the source has none"
        )
    if attribute is not None and attribute not in ordered:
        raise CommandError(f"--attribute: '{attribute}' has no quantiles; give one of {', '.join(ordered)}")
    chosen = ordered.values() if attribute is None else [ordered[attribute]]
    return tuple(RankedAttribute(one.size, one.high(one.size - 1) - one.low(0)) for one in chosen)


def _summed_attribute(domain: Numeric, neighbors: Literal["add-remove", "replace"]) -> SummedAttribute:
    whole = domain.in_steps
    return SummedAttribute(
        range=whole.maximum - whole.minimum,
        moves=sum_sensitivity(whole, neighbors),
        centred=sum_sensitivity(whole, neighbors, (whole.minimum + whole.maximum) // 2),
        unit=float(domain.unit),
    )


def choose_form(given: Form | None, source: Source | None) -> Form:
    """Return the given form of questions, or the source's usual form; CommandError if the source does not accept it."""
    default_form: Form
    accepted_forms: set[Form] | set[str]
    match source:
        case ValuesSource():
            default_form, accepted_forms = "value", _VALUE_FORMS | _VALUE_OR_TABLE_FORMS
        case RecordsSource():
            default_form, accepted_forms = "category", {"category"}
        case EventsSource():
            default_form, accepted_forms = _WINDOW_FORM, {_WINDOW_FORM}
        case _:
            default_form, accepted_forms = "count", set(FORMS) - _VALUE_FORMS - {"category", _WINDOW_FORM}
    form = given or default_form
    if source is not None and form not in accepted_forms:
        raise CommandError(
            f"--form: a source of kind '{source.kind}' has no questions of form {form}; give one of "
            + ", ".join(sorted(accepted_forms))
            + ("; --standing plans any other stream on a live topic" if isinstance(source, EventsSource) else "")
        )
    return form


def facts_of_source(form: Form, source: Source | None, options: SourceOptions) -> SourceFacts:
    """Return the public facts of the source that plans depend on."""
    match source:
        case ValuesSource():
            steps = sensitivity_steps(source.sensitivity, source.grid)
            return _facts_of_values(steps, source.grid, source.neighbors)
        case RecordsSource():
            return SourceFacts(neighbors=source.neighbors, contributions=source.contributions)
        case EventsSource():
            if source.total is None:
                raise CommandError(
                    "--source: a running count needs a bound on a person's events in all windows; declare the source's total"
                )
            return facts_of_windows(source.contribution, source.total, options.universe or 1, source.neighbors)
        case TableSource():
            sizes = options.sizes or tuple(domain.size for domain in source.attributes.values())
            # One person changes a count of people by one, whatever the contribution bound.
            each = 1 if form == "people" else source.contribution
            return _facts_of_table(source.neighbors, sizes, math.prod(sizes), options.rows, each)
    if form == "category":
        return SourceFacts(neighbors="replace", contributions=options.contributions)
    return _facts_of_options(form, options)


def _facts_of_options(form: Form, options: SourceOptions) -> SourceFacts:
    """Return the public facts from options."""
    if form == _WINDOW_FORM:
        each = sensitivity_steps(options.sensitivity, 1.0)
        return facts_of_windows(each, options.total or each, options.universe or 1, options.neighbors)
    sizes = options.sizes
    universe = math.prod(sizes) if sizes else options.universe
    if form in _VALUE_FORMS or (form in _VALUE_OR_TABLE_FORMS and universe is None and options.rows is None):
        return _facts_of_values(
            sensitivity_steps(options.sensitivity, options.grid), options.grid, options.neighbors
        )
    return _facts_of_table(options.neighbors, sizes, universe, options.rows)


def _facts_of_values(steps: int, grid: float, neighbors: Any) -> SourceFacts:
    return SourceFacts(sensitivity_steps=steps, grid=grid, neighbors=neighbors, rounding=0.5 * grid)


def facts_of_windows(each: int, total: int, groups: int, neighbors: Any) -> SourceFacts:
    """Return the facts of windows: a person changes one by ``each``, all together by ``total``."""
    people = 2 if neighbors == "replace" else 1
    moved = Movement(each=total, together=people * total, spread=people, numbers=people * total)
    return SourceFacts(sensitivity_steps=each, neighbors=neighbors, universe=groups, horizon=moved)


def _facts_of_table(
    neighbors: Any, sizes: tuple[int, ...], universe: int | None, rows: int | None, contribution: int = 1
) -> SourceFacts:
    return SourceFacts(
        sensitivity_steps=contribution,
        neighbors=neighbors,
        universe=universe,
        sizes=sizes,
        rows=rows,
        disjoint=True,
        contribution=contribution,
    )


def describe_noise(calibration: Calibration) -> str:  # noqa: PLR0911 - one for each kind of calibration
    """Describe the parts of ε that a calibration spends, or the σ of its Gaussian noise."""
    match calibration:
        case SparseVectorCalibration():
            return _describe_sparse_vector(calibration)
        case HypothesisCalibration():
            rows = f", ε {calibration.epsilon_rows:.4g} for the number of rows" if calibration.epsilon_rows else ""
            inner = _describe_sparse_vector(calibration.sparse_vector)
            return f"{calibration.cutoff} updates, learning rate {calibration.learning_rate:.3g}{rows}; {inner}"
        case EstimateCalibration():
            return _describe_estimate(calibration)
        case RunningCountCalibration():
            gaussian = f"Gaussian noise, σ {calibration.deviation:.4g} per sum"
            pure = f"ε {(calibration.epsilon - calibration.epsilon_size) / calibration.levels:.4g} per level"
            needed = (
                f"; a text needs a noisy count so far of {calibration.threshold:,}"
                if calibration.threshold
                else ""
            )
            return (
                f"{gaussian if calibration.method == 'gaussian' else pure}; a {calibration.tree} tree of {calibration.levels} "
                f"levels, up to {calibration.nodes} sums an answer; charged once{needed}"
            )
        case UnknownGroupsCalibration(method="selection"):
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; a text of "
                f"{calibration.threshold:,} people is released for certain"
            )
        case UnknownGroupsCalibration():
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; a text needs a noisy count of "
                f"{calibration.threshold:,}"
            )
        case _ if calibration.method == "gaussian":
            per = "answer" if calibration.kind == "answers" else "number"
            return f"Gaussian noise, σ {calibration.deviation:.4g} per {per}"
        case _ if calibration.kind == "answers":
            return f"ε {calibration.epsilon_answer:.4g} per answer"
        case _:
            return f"{calibration.parts} × ε {calibration.epsilon_part:.4g}, once"


def _describe_estimate(calibration: EstimateCalibration) -> str:
    parts = [
        f"{calibration.cutoff} measurements",
        f"each made if the estimate's error exceeds about {calibration.threshold * calibration.grid:.4g}",
    ]
    gaussian = calibration.noise == "gaussian"
    if calibration.starts:
        each = f"σ {calibration.deviation_start:.4g}" if gaussian else f"ε {calibration.epsilon_start:.4g}"
        parts.append(f"{calibration.starts} marginals first, {each} each")
    if calibration.rounds:
        chosen = (
            f"σ {calibration.deviation_chosen:.4g}·√k for each of k sets"
            if gaussian
            else f"ε {calibration.epsilon_chosen:.4g} for all their measurements"
        )
        parts.append(
            f"then up to {calibration.rounds} sets of the workload, ε {calibration.epsilon_choices:.4g} for the choices, {chosen}"
        )
    if gaussian:
        parts.append(
            f"Gaussian noise on measurements, σ {calibration.deviation_answer:.4g} in cells and {calibration.deviation_number:.4g} "
            "in numbers"
        )
    if calibration.epsilon_rows:
        parts.append(f"ε {calibration.epsilon_rows:.4g} for the number of rows")
    if calibration.epsilon_typical:
        parts.append(f"ε {calibration.epsilon_typical:.4g} for typical errors")
    return f"{', '.join(parts)}; {_describe_sparse_vector(calibration.sparse_vector)}"


def _describe_sparse_vector(calibration: SparseVectorCalibration) -> str:
    drawn: Literal["after each above", "once"] = "after each above" if calibration.fresh_threshold else "once"
    parts = f"ε₁ {calibration.epsilon_threshold:.4g} (drawn {drawn}), ε₂ {calibration.epsilon_query:.4g}"
    if calibration.numbers == "fresh" and calibration.epsilon_answer:
        parts += f", ε₃ {calibration.epsilon_answer:.4g}"
    if calibration.numbers != "none":
        parts += f", numbers within {format_error_bound(calibration.answer_alpha, grouped=True)}"
    return f"{parts}, shift {calibration.shift * calibration.grid:.4g}"


def print_simplest_alternative(spec: StreamSpec, facts: SourceFacts) -> None:
    """For a sparse mechanism, print the error bound of lazy_histogram, the simplest alternative."""
    if isinstance(spec.mechanism, SparsePmw | SparseProject):
        sparse = spec.mechanism.model_dump(include={"attributes", "sparsity"})
        lazy = LazyHistogram(kind="lazy_histogram", **sparse)
        alpha = choose_calibration(spec.model_copy(update={"mechanism": lazy, "calibration": "best"}), facts).alpha
        console.print(
            f"a lazy_histogram with the same ε answers such questions within ±{format_error_bound(alpha, grouped=True)}"
        )


def to_rows(spec: StreamSpec, facts: SourceFacts, alpha: float) -> float:
    """Return a requested error in rows; if the mechanism has ``rows``, an α below 1 is a share of them."""
    share = "rows" in type(spec.mechanism).model_fields and alpha < 1.0
    return alpha * facts.rows if share and facts.rows is not None else alpha


def find_sufficient_parameters(spec: StreamSpec, facts: SourceFacts, alpha: float) -> dict[str, str]:
    """For each parameter, return the value that reaches the error with the others unchanged."""
    known = type(spec.mechanism).model_fields
    share = "rows" in known and alpha < 1.0
    wanted = to_rows(spec, facts, alpha)
    questions: list[tuple[str, Callable[[], float]]] = [("ε ≥", lambda: needed_epsilon(spec, facts, wanted))]
    if (
        cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None)
        in ANSWER_CUTOFF_FIELDS
    ):
        questions.append(("cutoff ≤", lambda: largest_cutoff(spec, facts, wanted)))
    if share:
        questions.append(("rows ≥", lambda: needed_rows(spec, facts, alpha)))
    needs: dict[str, str] = {}
    for name, question in questions:
        try:
            needs[name] = format_error_bound(question())
        except PlanError as error:
            needs[name] = f"(none: {error})"
    return needs


def print_plan(
    spec: StreamSpec, listed: tuple[Calibration, ...], calibration: Calibration, facts: SourceFacts
) -> None:
    """Print every calibration, the reason for the chosen one, and its error bounds."""
    mechanism = spec.mechanism.kind
    once = not calibration.cutoff or isinstance(calibration, RunningCountCalibration)
    cutoff = "charged once" if once else f"cutoff {calibration.cutoff}"
    show_table(
        f"{mechanism}: ε {spec.epsilon:g}, δ {spec.delta:g}, {cutoff}, β {spec.beta:g}",
        ["", "calibration", "α", "exact α", "noise"],
        [
            [
                "→" if one == calibration else "",
                name_of(one),
                f"{format_error_bound(one.alpha, grouped=True)}{' (vacuous)' if one.vacuous else ''}",
                format_error_bound(rank(one), grouped=True),
                describe_noise(one),
            ]
            for one in listed
        ],
    )
    if spec.calibration == "textbook":
        console.print("→ requested")
    elif rank(calibration) == min(rank(one) for one in listed):
        console.print("→ the smallest exact error")
    else:
        console.print("→ the simplest within a thousandth of the smallest exact error")
    for promise in promises(spec, calibration):
        console.print(f"{promise}.", soft_wrap=True)
    if (warning := describe_uninformative(spec, calibration, facts)) is not None:
        console.print(f"{warning}.", soft_wrap=True)
