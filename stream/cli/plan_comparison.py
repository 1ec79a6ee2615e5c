"""``sotto plan`` without ``--mechanism`` or with ``--about``: recommends a mechanism."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from schemas import Source, TableSource, ValuesSource
from stream.budget.mechanism_choice import MechanismComparison, compare_for_source
from stream.budget.plan_facts import SourceOptions, choose_form, facts_of_source
from stream.cli.output import CommandError, say, show_json, show_table
from stream.cli.simulate_command import RegisteredSources, find_public_path, read_source
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.choices import MODELS, Choice
from stream.privacy.planning.form_accuracy import Form, PlanGoal
from stream.privacy.planning.inverse_plans import cutoff_field
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import promised_alpha
from stream.privacy.planning.promises import VACUOUS
from stream.privacy.planning.workload_choices import (
    StreamParameters,
    compare_mechanisms,
    count_pairs,
    is_informative,
    mean_count,
)
from stream.tables.checks import PersonRows, check_table
from stream.tables.checks.table_check import describe_bounds
from stream.tables.table_errors import UnreadableError

_FIELDS_WITH_OTHER_OPTIONS: Final = {"rows", "steps", "categories"}
"""Fields of mechanisms for which ``sotto plan`` has no option of the same name and meaning."""


def show_choices(
    form: Form | None,
    document: str | None,
    options: SourceOptions,
    goal_fields: Mapping[str, Any],
    fields: Mapping[str, Any],
    table: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compare the mechanisms and recommend one.

    ``document`` is the source as JSON or a file, ``goal_fields`` are further fields of ``PlanGoal``, and ``fields`` are
    fields of the mechanisms.
    """
    source = None if document is None else read_source(document)
    form = choose_form(form, source)
    people = None if table is None else _count_people(source, table)
    with Console(stderr=True).status("planning") as progress:
        found = compare_for_source(
            form, source, options, goal_fields, fields, lambda kind: progress.update(f"planning {kind}")
        )
    if as_json:
        show_json({**found.document(), **({} if people is None else {"people": asdict(people)})})
    else:
        _print_comparison(found, source.sensitivity if isinstance(source, ValuesSource) else options.sensitivity)
        if people is not None:
            words = (
                describe_bounds(people)
                if people.rows_beyond
                else "no person has more rows than the contribution bound"
            )
            say(f"  in {table}: {words}", soft_wrap=True)
    best = found.choices[0]
    if not best.applies:
        raise CommandError("no mechanism answers these questions about this source; see the reasons above")
    if not found.keeps_alpha(best):
        needed = [one.epsilon for one in found.choices if one.epsilon is not None]
        more = f"--epsilon {format_error_bound(min(needed))} or " if needed else ""
        raise CommandError(
            f"--alpha: no plan above keeps an α of {found.goal.alpha:g}; give {more}a larger --alpha"
        )


def _count_people(source: Source | None, table: Path) -> PersonRows:
    """Count the rows of a public table that the source's contribution leaves out."""
    if not isinstance(source, TableSource) or source.person is None:
        raise CommandError("--table: needs --source with a table source that declares person")
    try:
        path, _ = find_public_path(source, RegisteredSources(), table)
        people = check_table(source, str(path)).people
    except UnreadableError as error:
        raise CommandError(f"--table: {table} cannot be read: {error.problem}") from None
    if people is None:
        raise AssertionError("a declared person was not counted")
    return people


def _print_comparison(comparison: MechanismComparison, sensitivity: float) -> None:
    goal, options, choices = comparison.goal, comparison.options, comparison.choices
    applicable = [one for one in choices if one.applies]
    questions = f"{goal.queries:,} questions" if goal.queries > 1 else "1 question"
    limits = [f"ε {goal.epsilon:g}"] if goal.epsilon is not None else []
    limits += [f"α ≤ {goal.alpha:g}"] if goal.alpha is not None else []
    form = f"{goal.form} by {', '.join(options.group_by)}" if options.group_by else goal.form
    title = f"{questions} of form {form}: {', '.join(limits)}, δ {goal.delta:g}, β {goal.beta:g}"
    needed = [f"ε for α ≤ {goal.alpha:g}"] if goal.alpha is not None else []
    if applicable:
        show_table(
            title,
            ["", "mechanism", "α", *needed, "why"],
            [
                [
                    "→" if one is applicable[0] else "",
                    one.kind,
                    f"{_format_bound(one.alpha)}{' (vacuous)' if one.vacuous else ''}",
                    *([_format_bound(one.epsilon)] if needed else []),
                    f"{_describe_attributes(options)}; {one.why}" if one.alone else one.why,
                ]
                for one in applicable
            ],
        )
    else:
        say(title, soft_wrap=True)
    _print_inapplicable([one for one in choices if not one.applies])
    if applicable:
        _print_choice(comparison, sensitivity)


def _format_bound(bound: float | None) -> str:
    return "none" if bound is None else format_error_bound(bound, grouped=True)


def _print_inapplicable(others: list[Choice]) -> None:
    reasons: dict[str, list[str]] = {}
    for one in others:
        reasons.setdefault(one.why, []).append(one.kind)
    if reasons:
        say("not applicable:")
    for why, kinds in reasons.items():
        say(f"  {', '.join(kinds)}: {why}")


def _describe_attributes(options: SourceOptions) -> str:
    return f"over the attribute{'s' * (len(options.alone) > 1)} {', '.join(options.alone)} only"


def _print_choice(comparison: MechanismComparison, sensitivity: float) -> None:
    best, goal, options = comparison.choices[0], comparison.goal, comparison.options
    alpha_text = f"; {comparison.alpha_quantity}" if comparison.alpha_quantity else ""
    choice_text = f"{best.kind} {_describe_attributes(options)}" if best.alone else best.kind
    if goal.epsilon is None:
        say(
            f"→ take {choice_text}: the smallest ε, {_format_bound(best.epsilon)}, for an α of {goal.alpha:g}{alpha_text}",
            soft_wrap=True,
        )
    else:
        say(f"→ take {choice_text}: the smallest α, {_format_bound(best.alpha)}{alpha_text}", soft_wrap=True)
    if (error := comparison.value_error(best)) and goal.facts.rows is not None:
        shown = format_error_bound(error["value_error"], grouped=True)
        say(
            f"  in the attribute's unit, that is ±{shown} if the {goal.facts.rows:,} rows are spread evenly over the range",
            soft_wrap=True,
        )
    if comparison.counted:
        say(f"  {comparison.counted}")
    if comparison.warning is not None:
        say(f"  {comparison.warning}", soft_wrap=True)
    elif best.vacuous:
        say(f"  {VACUOUS}")
    by_window = goal.facts.horizon is not None and best.kind != "running_count"
    if by_window:
        return  # ``sotto plan --mechanism`` has windows only for running_count
    say(f"its calibrations{_describe_other_alpha(best)}:")
    say(f"  {_plan_command(best, goal, sensitivity)}", soft_wrap=True)


def _describe_other_alpha(best: Choice) -> str:
    """Describe the α that ``sotto plan --mechanism`` will print, if it differs from the α that is printed here."""
    if best.calibration is None or best.alpha == promised_alpha(best.calibration):
        return ""
    one = "cell" if best.kind == "histogram" else "count"
    return f" (its table shows the α of one {one})"


def _plan_command(best: Choice, goal: PlanGoal, sensitivity: float) -> str:
    grouped_goal = goal.restrict_to_groups() if best.alone else None
    facts = goal.facts if grouped_goal is None else grouped_goal.facts
    spec = best.spec.model_dump() if best.spec is not None else {}
    mechanism: dict[str, Any] = spec.get("mechanism", {})
    cutoff = cutoff_field(best.kind, MODELS[best.kind], standing=False)
    categories = mechanism.get("categories")
    options: dict[str, object] = {
        "--mechanism": best.kind,
        "--epsilon": spec.get("epsilon"),
        "--queries": goal.queries,
        "--answers" if cutoff == "answers" else "--cutoff": None if cutoff is None else mechanism.get(cutoff),
        "--delta": goal.delta or None,
        "--beta": goal.beta,
        **_cell_options(facts),
        "--rows": mechanism.get("rows") or facts.rows,
        "--categories": None if categories is None else len(categories),
        "--contributions": facts.records_per_person if facts.records_per_person > 1 else None,
        "--neighbors": facts.neighbors if facts.neighbors != "add-remove" else None,
    }
    if facts.horizon is not None:
        options |= {"--sensitivity": facts.sensitivity_steps, "--total": facts.horizon.each}
    elif not facts.disjoint and categories is None:
        options |= {"--sensitivity": sensitivity, "--grid": facts.grid}
    elif facts.contribution > 1:
        options |= {"--sensitivity": facts.contribution}
    if best.spec is not None:
        changed = best.spec.mechanism.model_dump(exclude_defaults=True)
        changed_fields = [
            name for name in goal.fields if name in changed and name not in _FIELDS_WITH_OTHER_OPTIONS
        ]
        options |= {f"--{name.replace('_', '-')}": changed[name] for name in changed_fields}
    words = [_format_option(name, value) for name, value in options.items() if value is not None]
    return " ".join(["sotto plan", *words])


def _cell_options(facts: SourceFacts) -> dict[str, object]:
    """Return the option for a table's cells; none for values in queries."""
    if facts.sizes:
        return {"--sizes": ",".join(map(str, facts.sizes))}
    if facts.universe or facts.disjoint:
        return {"--universe": facts.universe or 1}
    return {}


def _format_option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"--no-{name.removeprefix('--')}"
    return f"{name} {repr(value).removesuffix('.0') if isinstance(value, float) else value}"


_ATTRIBUTE_PREFIX: Final = "any"
"""Prefix of the names of attributes for which only sizes are given."""


def show_workload(
    document: str | None, options: SourceOptions, parameters: StreamParameters, *, as_json: bool
) -> None:
    """Print, for counts of all pairs of attributes, each mechanism's expected error; recommend the best one."""
    source = None if document is None else read_source(document)
    if source is not None and not isinstance(source, TableSource):
        raise CommandError(
            "--about: needs the attributes of a table; give --source with a table source, or --sizes"
        )
    facts = facts_of_source("groups", source, options)
    declared = source.attributes if isinstance(source, TableSource) else None
    names = list(declared or (f"{_ATTRIBUTE_PREFIX}{n}" for n in range(len(facts.sizes))))
    option = "--sizes" if source is None else "--source"
    if len(facts.sizes) < 2:
        raise CommandError(f"{option}: pairs need at least 2 attributes, not {len(facts.sizes)}; give more")
    try:
        found = compare_mechanisms(facts, names, parameters)
    except PlanError as error:
        raise CommandError(str(error).replace("mechanism.workload", option)) from None
    best, mean = found[0], mean_count(facts)
    informative = None if best.error is None or mean is None else is_informative(best.error, mean)
    if as_json:
        show_json(
            {
                "about": "pairs",
                "choice": None if best.error is None else best.kind,
                "mechanism": None if best.error is None else best.mechanism,
                "mean_count": mean,
                "informative": informative,
                "mechanisms": [asdict(one) for one in found],
            }
        )
        return
    countable, pairs = count_pairs(facts.sizes)
    counted = (
        "all pairs" if countable == pairs else f"{countable} of {pairs} pairs, without those of over 4,096 cells,"
    )
    show_table(
        f"counts of {counted} of {len(facts.sizes)} attributes: ε {parameters.epsilon:g}, δ {parameters.delta:g}",
        ["", "mechanism", "expected error of a cell", "why"],
        [
            ["→" if one is best and one.error is not None else "", one.kind, _format_bound(one.error), one.why]
            for one in found
        ],
    )
    if best.error is None:
        raise CommandError("--about: no mechanism answers questions about two of these attributes; see above")
    say(f"→ take {best.kind}: a count of a cell errs by about {_format_bound(best.error)} rows", soft_wrap=True)
    if informative is False and mean is not None:
        say(
            f"  not informative: a cell has about {mean:,.3g} rows; give a larger ε, or fewer or smaller attributes",
            soft_wrap=True,
        )
    elif mean is None:
        say("  with --rows it also says whether that is informative", soft_wrap=True)
    say(f"  mechanism: {json.dumps(best.mechanism)}", soft_wrap=True)
