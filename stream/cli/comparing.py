"""``sotto plan`` without a mechanism: all of them beside each other, and which one to take for what is wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter
from rich.console import Console

from schemas import EventsSource, RecordsSource, Source, TableSource, ValuesSource
from stream.accounting.choices import FORMS, MODELS, Choice, Form, Wanted, compare
from stream.accounting.cutoffs import cutoff_field
from stream.accounting.inverse import promised_alpha
from stream.accounting.planner import sensitivity_steps
from stream.accounting.promises import VACUOUS
from stream.accounting.refusals import require_monotone_counts
from stream.accounting.setting import Movement, Setting
from stream.cli.documents import read_as
from stream.cli.output import CommandError, console, show_json, show_table
from stream.figures import bound

FormName = StrEnum("FormName", {form.upper(): form for form in FORMS})  # type: ignore[misc]

_OF_VALUES = {"value", "values"}
_OF_EITHER = {"alarm", "candidates"}
_OF_WINDOWS: Final = "running"

_OPTIONS: Final = ("numbers", "dimensions", "sparsity", "projections", "gap", "warm_start")
"""Fields of mechanisms that have an option of their name."""

_sources: TypeAdapter[Source] = TypeAdapter(Source)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is said of the source, by a document or option by option."""

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


@dataclass(frozen=True, slots=True)
class Goal:
    """How much is asked, and what it may cost or how far off it may be."""

    queries: int
    cutoff: int | None
    epsilon: float | None
    delta: float
    alpha: float | None
    beta: float


def show_choices(form: Form | None, facts: Facts, goal: Goal, fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Compare the mechanisms and say which to take."""
    source = None if facts.document is None else read_as(_sources, facts.document)
    form = _form(form, source)
    setting = _setting(form, source, facts)
    if facts.group_by and form != "groups":
        raise CommandError(f"--group-by: questions of form {form} have no groups; give --form groups")
    if setting.disjoint:
        require_monotone_counts(fields["monotone"], setting.neighbors)
        fields = {**fields, "monotone": setting.neighbors == "add-remove"}  # a row more lowers no count
    wanted = Wanted(
        form=form,
        queries=goal.queries,
        epsilon=goal.epsilon,
        alpha=goal.alpha,
        beta=goal.beta,
        delta=goal.delta,
        setting=setting,
        fields=fields,
        cutoff=goal.cutoff or 1,
        group_by=_places(facts, source),
    )
    with Console(stderr=True).status("planning") as progress:
        found = compare(wanted, lambda kind: progress.update(f"planning {kind}"))
    if as_json:
        show_json(_document(wanted, found, facts))
    else:
        sensitivity = source.sensitivity if isinstance(source, ValuesSource) else facts.sensitivity
        _print(wanted, found, facts.group_by, sensitivity)


def _places(facts: Facts, source: Source | None) -> tuple[int, ...]:
    """The places of the attributes that are grouped by: by their names in a source, by number in --sizes."""
    if isinstance(source, TableSource) and not facts.sizes:
        names, known = list(source.attributes), "attribute of the source, which has"
    else:
        names, known = [str(place + 1) for place in range(len(facts.sizes))], "place in --sizes, whose places are"
    if facts.group_by and not names:
        raise CommandError(
            "--group-by: it is not known what there is to group by; give --sizes or --source as well"
        )
    for number, name in enumerate(facts.group_by):
        if name not in names:
            raise CommandError(f"--group-by: '{name}' is no {known} {', '.join(names)}; give one of them")
        if name in facts.group_by[:number]:
            raise CommandError(f"--group-by: '{name}' is given twice; give it once")
    return tuple(names.index(name) for name in facts.group_by)


def _form(given: Form | None, source: Source | None) -> Form:
    """The form that is given, or the one that is asked most of such a source; CommandError if it does not take it."""
    usual: Form
    others: set[Form] | set[str]
    match source:
        case ValuesSource():
            usual, others = "value", _OF_VALUES | _OF_EITHER
        case RecordsSource():
            usual, others = "category", {"category"}
        case EventsSource():
            usual, others = _OF_WINDOWS, {_OF_WINDOWS}
        case _:
            usual, others = "count", set(FORMS) - _OF_VALUES - {"category", _OF_WINDOWS}
    form = given or usual
    if source is not None and form not in others:
        raise CommandError(
            f"--form: a source of kind '{source.kind}' takes no questions of form {form}; give one of "
            + ", ".join(sorted(others))
        )
    return form


def _setting(form: Form, source: Source | None, facts: Facts) -> Setting:
    """The public facts of the source, as far as plans depend on them."""
    match source:
        case ValuesSource():
            steps = sensitivity_steps(source.sensitivity, source.grid)
            return _of_values(steps, source.grid, source.neighbors)
        case RecordsSource():
            return Setting(neighbors=source.neighbors, contributions=source.contributions)
        case EventsSource():
            return _of_events(source, facts)
        case TableSource():
            sizes = facts.sizes or tuple(domain.size for domain in source.attributes.values())
            # One person moves a count of people by one, however many rows of theirs count.
            each = 1 if form == "people" else source.contribution
            return _of_table(source.neighbors, sizes, math.prod(sizes), facts.rows, each)
    if form == "category":
        return Setting(neighbors="replace", contributions=facts.contributions)
    return _of_options(form, facts)


def _of_options(form: Form, facts: Facts) -> Setting:
    """What is said of the source option by option."""
    if form == _OF_WINDOWS:
        each = sensitivity_steps(facts.sensitivity, 1.0)
        return of_windows(each, facts.total or each, facts.universe or 1, facts.neighbors)
    sizes = facts.sizes
    universe = math.prod(sizes) if sizes else facts.universe
    if form in _OF_VALUES or (form in _OF_EITHER and universe is None and facts.rows is None):
        return _of_values(sensitivity_steps(facts.sensitivity, facts.grid), facts.grid, facts.neighbors)
    return _of_table(facts.neighbors, sizes, universe, facts.rows)


def _of_values(steps: int, grid: float, neighbors: Any) -> Setting:
    return Setting(sensitivity_steps=steps, grid=grid, neighbors=neighbors, rounding=0.5 * grid)


def _of_events(source: EventsSource, facts: Facts) -> Setting:
    if source.total is None:
        raise CommandError(
            "--source: a running count needs a bound on how often a person counts in all windows; declare the source's total"
        )
    return of_windows(source.contribution, source.total, facts.universe or 1, source.neighbors)


def of_windows(each: int, total: int, groups: int, neighbors: Any) -> Setting:
    """What one person moves of so many groups' counts: of one window by ``each``, of all windows together by ``total``."""
    people = 2 if neighbors == "replace" else 1
    moved = Movement(each=total, together=people * total, spread=people, numbers=people * total)
    return Setting(sensitivity_steps=each, neighbors=neighbors, universe=groups, horizon=moved)


def _of_table(
    neighbors: Any, sizes: tuple[int, ...], universe: int | None, rows: int | None, contribution: int = 1
) -> Setting:
    return Setting(
        sensitivity_steps=contribution,
        neighbors=neighbors,
        universe=universe,
        sizes=sizes,
        rows=rows,
        disjoint=True,
        contribution=contribution,
    )


def _document(wanted: Wanted, found: tuple[Choice, ...], facts: Facts) -> dict[str, Any]:
    asked = {name: getattr(wanted, name) for name in ("form", "queries", "epsilon", "alpha", "beta", "delta")}
    return {
        "wanted": {**asked, "group_by": facts.group_by},
        "choice": found[0].kind if found[0].applies else None,
        "keeps": found[0].applies and _keeps(found[0], wanted),
        "mechanisms": [
            {
                "mechanism": one.kind,
                "applies": one.applies,
                "alpha": one.alpha,
                "epsilon": one.epsilon,
                "vacuous": one.vacuous,
                "calibration": None if one.calibration is None else one.calibration.method,
                "why": one.why,
            }
            for one in found
        ],
    }


def _keeps(choice: Choice, wanted: Wanted) -> bool:
    """Whether the wanted error is kept to, if one is wanted."""
    return wanted.alpha is None or (choice.alpha is not None and choice.alpha <= wanted.alpha)


def _print(wanted: Wanted, found: tuple[Choice, ...], group_by: tuple[str, ...], sensitivity: float) -> None:
    applying = [one for one in found if one.applies]
    questions = f"{wanted.queries:,} questions" if wanted.queries > 1 else "1 question"
    at = [f"ε {wanted.epsilon:g}"] if wanted.epsilon is not None else []
    at += [f"α ≤ {wanted.alpha:g}"] if wanted.alpha is not None else []
    form = f"{wanted.form} by {', '.join(group_by)}" if group_by else wanted.form
    title = f"{questions} of form {form}: {', '.join(at)}, δ {wanted.delta:g}, β {wanted.beta:g}"
    needed = [f"ε for α ≤ {wanted.alpha:g}"] if wanted.alpha is not None else []
    if applying:
        show_table(
            title,
            ["", "mechanism", "α", *needed, "why"],
            [
                [
                    "→" if one is applying[0] else "",
                    one.kind,
                    f"{_alpha(one)}{' (vacuous)' if one.vacuous else ''}",
                    *([_epsilon(one)] if needed else []),
                    one.why,
                ]
                for one in applying
            ],
        )
    else:
        console.print(title, soft_wrap=True)
    _print_others([one for one in found if not one.applies])
    if not applying:
        raise CommandError("no mechanism answers such questions about such a source; see the reasons above")
    _print_choice(applying[0], wanted, sensitivity)


def _alpha(choice: Choice) -> str:
    return "none" if choice.alpha is None else bound(choice.alpha, grouped=True)


def _epsilon(choice: Choice) -> str:
    return "none" if choice.epsilon is None else bound(choice.epsilon)


def _print_others(others: list[Choice]) -> None:
    reasons: dict[str, list[str]] = {}
    for one in others:
        reasons.setdefault(one.why, []).append(one.kind)
    if reasons:
        console.print("do not apply:")
    for why, kinds in reasons.items():
        console.print(f"  {', '.join(kinds)}: {why}", highlight=False)


def _print_choice(best: Choice, wanted: Wanted, sensitivity: float) -> None:
    what = {"sum": "; of a count: a sum's is larger", "mean": "; of a count: a mean carries its own"}
    if not wanted.group_by:
        what["groups"] = "; of every group-by that can be asked: --group-by says which one is meant"
    of = what.get(wanted.form, "")
    if wanted.epsilon is None:
        console.print(f"→ take {best.kind}: the least ε, {_epsilon(best)}, for an α of {wanted.alpha:g}{of}")
    else:
        console.print(f"→ take {best.kind}: the least α, {_alpha(best)}{of}")
    if not _keeps(best, wanted):
        more = "no ε is enough" if best.epsilon is None else f"that takes ε {bound(best.epsilon)}"
        console.print(f"  it does not keep to an α of {wanted.alpha:g}: {more}")
    if best.vacuous:
        console.print(f"  {VACUOUS}")
    by_window = wanted.setting.horizon is not None and best.kind != "running_count"
    if wanted.setting.contribution > 1 or by_window:
        return  # a plan by itself is about one row a person, and about windows only of a running count
    console.print(f"its calibrations{_by_what(best)}:")
    console.print(f"  {_command(best, wanted, sensitivity)}", highlight=False, soft_wrap=True)


def _by_what(best: Choice) -> str:
    """What the α of a plan by itself is of, where the questions that were compared have another."""
    if best.calibration is None or best.alpha == promised_alpha(best.calibration):
        return ""
    return ", by the α of a cell" if best.kind == "histogram" else ", by the α of a count"


def _command(best: Choice, wanted: Wanted, sensitivity: float) -> str:
    """The command that plans the chosen mechanism by itself."""
    setting = wanted.setting
    spec = best.spec.model_dump() if best.spec is not None else {}
    mechanism: dict[str, Any] = spec.get("mechanism", {})
    cutoff = cutoff_field(best.kind, MODELS[best.kind], standing=False)
    categories = mechanism.get("categories")
    options: dict[str, object] = {
        "--mechanism": best.kind,
        "--epsilon": spec.get("epsilon"),
        "--queries": wanted.queries,
        "--cutoff": None if cutoff is None else mechanism.get(cutoff),
        "--delta": wanted.delta or None,
        "--beta": wanted.beta,
        **_cells(setting),
        "--rows": mechanism.get("rows") or setting.rows,
        **{f"--{name.replace('_', '-')}": mechanism.get(name) for name in _OPTIONS},
        "--categories": None if categories is None else len(categories),
        "--contributions": setting.contributions if setting.contributions > 1 else None,
        "--neighbors": setting.neighbors if setting.neighbors != "add-remove" else None,
    }
    if setting.horizon is not None:
        options |= {"--sensitivity": setting.sensitivity_steps, "--total": setting.horizon.each}
    elif not setting.disjoint and categories is None:
        options |= {"--sensitivity": sensitivity, "--grid": setting.grid}
    words = [f"{name} {_word(value)}" for name, value in options.items() if value is not None]
    flags = [f"--{name.replace('_', '-')}" for name in ("monotone", "worst_case") if mechanism.get(name)]
    return " ".join(["sotto plan", *words, *flags])


def _cells(setting: Setting) -> dict[str, object]:
    """What says of how many cells a table is; without it a mechanism is planned over trusted values."""
    if setting.sizes:
        return {"--sizes": ",".join(map(str, setting.sizes))}
    if setting.universe or setting.disjoint:
        return {"--universe": setting.universe or 1}
    return {}


def _word(value: object) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
