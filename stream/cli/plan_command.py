"""``sotto plan``: the accuracy for a budget, and the cost of a requested accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from schemas import MAX_CATEGORIES, Mechanism, SparseProject, StreamSpec
from stream.budget.mechanism_choice import describe_counted_rows
from stream.budget.plan_facts import FINE_GRID, SourceOptions, facts_of_windows
from stream.cli.output import AsJson, CommandError, say, show_json
from stream.cli.plan_comparison import show_choices, show_workload
from stream.cli.plan_output import (
    FormName,
    error_in_rows,
    find_sufficient_parameters,
    plot_error,
    print_plan,
    print_simplest_alternative,
)
from stream.cli.standing_plans import question_charge, show_standing
from stream.privacy.accuracy.source_facts import SourceFacts, require_monotone_counts
from stream.privacy.planning.choices import MODELS, mechanism_adapter
from stream.privacy.planning.form_accuracy import Form
from stream.privacy.planning.inverse_plans import VariedParameter, cutoff_field, require_alpha
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import MECHANISMS_OF, choose_calibration, plan_calibrations, sensitivity_steps
from stream.privacy.planning.promises import promises
from stream.privacy.planning.release_plans import theorem_projections
from stream.privacy.planning.workload_choices import StreamParameters

MechanismKind = StrEnum("MechanismKind", {kind.upper(): kind for kind in MODELS})  # type: ignore[misc]

_UNIVERSE = 1024
_QUERIES = 1000


def plan(
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget ε.", min=1e-6)] = None,
    mechanism: Annotated[
        MechanismKind | None, typer.Option(help="The mechanism; all are compared if omitted.")
    ] = None,
    form: Annotated[
        FormName | None,
        typer.Option(
            help="Without --mechanism: the form of the questions; alarm asks whether a number is above a threshold."
        ),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            help="With --form groups: a grouping attribute, by its name in --source or its position in --sizes; repeat it for each."
            " If omitted, α holds for every possible group-by."
        ),
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option(
            help="With --form sum, mean or quantile: the attribute, by its name in --source. If omitted, α holds for any attribute."
        ),
    ] = None,
    q: Annotated[
        float, typer.Option("--q", help="With --form quantile: the quantile, from 0 to 1.", min=0.0, max=1.0)
    ] = 0.5,
    source: Annotated[
        str | None,
        typer.Option(
            help="Without --mechanism: the source: a registered one's name, or its definition as JSON: inline, a file, or -."
        ),
    ] = None,
    standing: Annotated[
        str | None,
        typer.Option(
            help="A stream on a live topic as for 'sotto stream open': inline, a file, or -. Needs --source and no other option."
        ),
    ] = None,
    cutoff: Annotated[
        int | None,
        typer.Option(
            "--cutoff",
            "--answers",
            help="Number of charged answers: aboves, noisy answers, measurements or updates. If omitted, mechanisms that charge each answer are planned for all --queries.",
            min=1,
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            help="Expected number of queries; for a running count, of windows. If omitted, 1000; with --about, one for each pair.",
            min=1,
        ),
    ] = None,
    beta: Annotated[float, typer.Option(help="Probability that any answer has an error above α.")] = 0.05,
    delta: Annotated[float, typer.Option(help="Privacy parameter δ.", min=0.0)] = 0.0,
    monotone: Annotated[bool, typer.Option(help="One person changes all queries in the same direction.")] = False,
    sensitivity: Annotated[
        float, typer.Option(help="Most by which one person changes a number; on tables, the contribution.")
    ] = 1.0,
    grid: Annotated[float, typer.Option(help="Step to which values in queries are rounded.")] = FINE_GRID,
    neighbors: Annotated[
        Literal["add-remove", "replace"], typer.Option(help="The neighboring relation of data sets.")
    ] = "add-remove",
    numbers: Annotated[str, typer.Option(help="numeric_sparse: fresh or gap.")] = "fresh",
    dimensions: Annotated[
        int, typer.Option(help="laplace: most values per query.", min=1, max=MAX_CATEGORIES)
    ] = 1,
    categories: Annotated[
        int, typer.Option(help="randomized_response: number of categories.", min=2, max=MAX_CATEGORIES)
    ] = 2,
    counts: Annotated[bool, typer.Option(help="unknown_groups: release a noisy count with each text.")] = True,
    total: Annotated[
        int | None,
        typer.Option(
            help="running_count: how often one person counts in all windows together; --sensitivity if omitted.",
            min=1,
        ),
    ] = None,
    contributions: Annotated[int, typer.Option(help="randomized_response: events per person.", min=1)] = 1,
    universe: Annotated[
        int | None,
        typer.Option(help="Cells of the universe, for mechanisms over tables; 1024 with --mechanism.", min=1),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="pmw: number of values of each attribute, such as 85,2,16; replaces --universe."),
    ] = None,
    warm_start: Annotated[
        Literal["auto", "0", "1", "2", "workload"],
        typer.Option(
            help="pmw: attributes of each marginal that is measured first; workload chooses pairs by their dependence."
        ),
    ] = "auto",
    typical_error: Annotated[
        bool | None,
        typer.Option(
            "--typical-error/--no-typical-error",
            help="pmw: publish the typical error of estimates; by default after the warm start workload.",
        ),
    ] = None,
    worst_case: Annotated[
        bool, typer.Option(help="pmw: plan enough measurements for every table and every analyst.")
    ] = False,
    rows: Annotated[int | None, typer.Option(help="Public number of rows, for multiplicative weights.")] = None,
    gap: Annotated[
        float | None,
        typer.Option(help="Multiplicative weights: the error that triggers an update, as a share of the rows."),
    ] = None,
    sparsity: Annotated[int, typer.Option(help="Maximum number of cells per sparse query.", min=1)] = 16,
    projections: Annotated[int, typer.Option(help="sparse_project: rows of the projection.", min=1)] = 4096,
    calibration: Annotated[
        Literal["best", "textbook"], typer.Option(help="The stream's calibration field.")
    ] = "best",
    alpha: Annotated[
        float | None,
        typer.Option(
            help="A requested α: also print the ε, cutoff or rows that it needs, and the charge of a question with it."
            " Without --mechanism it may replace --epsilon. The exit status is 1 if no plan keeps it."
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="A public table: shows how many of its rows the contribution of --source leaves out."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the error to this file (png, svg or pdf).")] = None,
    against: Annotated[
        VariedParameter, typer.Option(help="The parameter that the plot varies.")
    ] = VariedParameter.EPSILON,
    about: Annotated[
        Literal["pairs"] | None,
        typer.Option(help="Compare mechanisms by the expected error of all counts of two attributes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the mechanisms for a question, or the calibrations of one, and recommend one."""
    if standing is not None:
        _refuse_if(
            any(one is not None for one in (mechanism, form, epsilon, cutoff, alpha, table, plot)),
            "--standing: the stream defines its mechanism and ε; give only --source beside it",
        )
        show_standing(standing, source, as_json=as_json)
        return
    _require_alpha(alpha)
    given_queries, queries = queries, queries or _QUERIES
    fields = {
        "numbers": numbers,
        "monotone": monotone,
        "dimensions": dimensions,
        "categories": [str(number) for number in range(categories)],
        "sparsity": sparsity,
        "projections": projections,
        "rows": rows,
        "gap": gap,
        "warm_start": int(warm_start) if warm_start.isdecimal() else warm_start,
        "typical_error": typical_error,
        "worst_case": worst_case or None,
        "steps": queries,
        "counts": None if counts else False,
    }
    given_sizes = _parse_sizes(sizes)
    if about is not None:
        _refuse_if(
            any(one is not None for one in (mechanism, form, alpha, table, plot)),
            "--about: compares mechanisms for all pairs of attributes; omit --mechanism, --form, --alpha, --table and --plot",
        )
        options = SourceOptions(neighbors, given_sizes, universe, rows, sensitivity, grid, contributions)
        _refuse_if(epsilon is None, "--epsilon: is missing; give the budget to plan with")
        parameters = StreamParameters(cast("float", epsilon), delta, beta, queries, given_queries)
        show_workload(source, options, parameters, as_json=as_json)
        return
    if mechanism is None:
        _refuse_if(plot is not None, "--plot: name the mechanism to draw, such as --mechanism laplace")
        options = SourceOptions(
            neighbors=neighbors,
            sizes=given_sizes,
            cell_count=universe,
            rows=rows,
            sensitivity=sensitivity,
            grid=grid,
            records_per_person=contributions,
            total=total,
            group_by=tuple(group_by or ()),
            attribute=attribute,
        )
        goal = {
            "queries": queries,
            "cutoff": cutoff or 1,
            "epsilon": epsilon,
            "delta": delta,
            "alpha": alpha,
            "beta": beta,
            "q": q,
        }
        show_choices(
            cast("Form | None", form and form.value), source, options, goal, fields, table, as_json=as_json
        )
        return
    _refuse_if(table is not None, "--table: needs --source and the comparison of mechanisms; omit --mechanism")
    for_comparison = {"--form": form, "--source": source, "--group-by": group_by or None, "--attribute": attribute}
    given = ", ".join(name for name, value in for_comparison.items() if value is not None)
    _refuse_if(
        bool(given),
        f"{given}: only for the comparison of all mechanisms, and --mechanism plans one; omit either {given} or --mechanism"
        + "; beside --mechanism, describe the source by --neighbors, --rows, --sizes, --sensitivity and --grid"
        * (source is not None),
    )
    _refuse_if(
        epsilon is None, "--epsilon: is missing; give the budget to plan with, or --alpha without --mechanism"
    )
    asks_values = mechanism.value in MECHANISMS_OF["values"] and not (given_sizes or universe)
    facts = SourceFacts(
        sensitivity_steps=(steps := sensitivity_steps(sensitivity, grid if asks_values else 1.0)),
        grid=grid if asks_values else 1.0,
        neighbors="replace" if mechanism.value == "randomized_response" else neighbors,
        universe=math.prod(given_sizes) if given_sizes else universe or _UNIVERSE,
        sizes=given_sizes,
        rows=rows,
        records_per_person=contributions,
        disjoint=not asks_values,
        rounding=0.5 * grid if asks_values else 0.0,
        contribution=1 if asks_values else steps,
    )
    if mechanism.value == "running_count":
        each = sensitivity_steps(sensitivity, 1.0)
        facts = facts_of_windows(each, total or each, universe or 1, neighbors)
    spec = StreamSpec(
        stream="plan",
        source="plan",
        mechanism=_build_mechanism(mechanism.value, cutoff, fields),
        epsilon=cast("float", epsilon),
        delta=delta,
        expected_queries=queries,
        beta=beta,
        calibration=calibration,
    )
    require_monotone_counts(facts.disjoint and getattr(spec.mechanism, "monotone", False), facts.neighbors)
    calibrations, chosen = plan_calibrations(spec, facts), choose_calibration(spec, facts)
    counted = _describe_rows(mechanism.value, sensitivity, of_values=asks_values)
    needs = find_sufficient_parameters(spec, facts, alpha) if alpha is not None else {}
    charge = None if alpha is None else question_charge(spec, chosen, error_in_rows(spec, facts, alpha))
    if plot is not None:
        plot_error(spec, facts, chosen, against, plot)
    if as_json:
        show_json(
            {
                "spec": spec,
                "choice": chosen.method,
                "alpha": chosen.alpha,
                "promises": [asdict(one) for one in promises(spec, chosen)],
                "counted": counted,
                "calibrations": list(calibrations),
                **({"needed": _describe_needs(needs)} if alpha is not None else {}),
                **({"question": asdict(charge)} if charge is not None else {}),
            }
        )
        _require_kept(alpha, needs)
        return
    print_plan(spec, calibrations, chosen, facts, counted)
    print_simplest_alternative(spec, facts)
    _print_needs(alpha, needs)
    if charge is not None:
        say(str(charge), soft_wrap=True)
    if isinstance(spec.mechanism, SparseProject) and rows is not None:
        say(
            f"the theorem of Blum & Roth 2011 needs {theorem_projections(rows, sparsity, queries, beta):.3g} projections"
        )
    if plot is not None:
        say(f"plotted to {plot}", soft_wrap=True)
    _require_kept(alpha, needs)


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise CommandError(message)


def _describe_rows(kind: str, sensitivity: float, *, of_values: bool) -> str:
    """Describe how many rows of one person a mechanism counts on a table; empty if it answers no table."""
    if kind not in MECHANISMS_OF["table"]:
        return ""
    counted = describe_counted_rows("count", None, sensitivity_steps(sensitivity, 1.0))
    return f"on a table, {counted}" if of_values else counted


def _print_needs(alpha: float | None, needs: Mapping[str, str | PlanError]) -> None:
    for what, value in _describe_needs(needs).items():
        say(f"α ≤ {alpha:g} needs {what} {value}")


def _describe_needs(needs: Mapping[str, str | PlanError]) -> dict[str, str]:
    return {what: value if isinstance(value, str) else f"(none: {value})" for what, value in needs.items()}


def _require_kept(alpha: float | None, needs: Mapping[str, str | PlanError]) -> None:
    is_kept = not isinstance(needs.get("ε ≥"), PlanError)
    _refuse_if(not is_kept, f"--alpha: no ε keeps an α of {alpha}; give a larger --alpha")


def _require_alpha(alpha: float | None) -> None:
    try:
        if alpha is not None:
            require_alpha(alpha)
    except PlanError as error:
        raise CommandError(f"--{error}") from None


def _parse_sizes(text: str | None) -> tuple[int, ...]:
    """Parse the attributes' sizes; empty if omitted."""
    try:
        found = tuple(int(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        found = (0,)
    if any(size < 1 for size in found):
        raise CommandError(f"--sizes: '{text}' is not a list of sizes; write it as 85,2,16")
    return found


def _build_mechanism(kind: str, cutoff: int | None, options: dict[str, Any]) -> Mechanism:
    known = MODELS[kind].model_fields
    given = {name: value for name, value in options.items() if name in known and value is not None}
    given |= {"threshold": 0.0} if "threshold" in known else {}
    given |= {"attributes": ["any"]} if "attributes" in known else {}
    name = cutoff_field(kind, MODELS[kind], standing=False)
    if cutoff is not None:
        if name is None:
            raise CommandError(f"--cutoff: {kind} is charged once; omit it")
        given[name] = cutoff
    elif name == "answers":
        given[name] = options["steps"]  # each of the expected queries is charged
    return mechanism_adapter.validate_python({"kind": kind, **given})
