"""Compares the mechanisms for questions of one form, and chooses the mechanism of an ``auto`` stream.

Comparison and choice depend on public facts alone. The opened stream's definition has the chosen
mechanism, so workers and replays need not know how it was chosen. The receipt lists the compared
mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas import Auto, Calibration, ComparedMechanism, OpeningSpec, Pmw, Source, StreamSpec, TableSource
from stream.budget.openings import facts_for_plan
from stream.budget.plan_facts import (
    SourceOptions,
    choose_form,
    facts_of_source,
    ranked_attributes,
    summed_attributes,
)
from stream.formatting import NOT_INFORMATIVE, ROW_IS_PERSON, describe_table_bound, format_error_bound
from stream.privacy.accuracy.source_facts import require_monotone_counts
from stream.privacy.composition.costs import RefusedError
from stream.privacy.planning.answer_plans import parse_quantiles
from stream.privacy.planning.choices import Choice, rank_mechanisms
from stream.privacy.planning.form_accuracy import Form, PlanGoal, value_error
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.promises import describe_uninformative
from stream.privacy.planning.workload_choices import (
    StreamParameters,
    compare_mechanisms,
    is_informative,
    mean_count,
)

_GROUPED_FORMS: Final = {"groups", "people_groups", "rate"}
"""Forms of questions for which ``--group-by`` can be given."""

_FORMS_WITHOUT_ROWS: Final = {"value", "values", "category", "alarm", "running", "people", "person_sum"}
"""Forms of questions to which the number of rows of a person does not matter."""

MECHANISM_DEFAULTS: Final[dict[str, Any]] = {"monotone": False, "sparsity": 16}
"""Values of mechanisms' fields, unless a comparison gives others.

``monotone`` is False because it is a promise about the questions. In the form ``cells``, a question to a
histogram, too, has at most ``sparsity`` cells.
"""


@dataclass(frozen=True, slots=True)
class MechanismComparison:
    """All mechanisms for a goal, best first.

    ``counted`` describes how many rows of one person count; it is empty for questions about people or values.
    """

    goal: PlanGoal
    choices: tuple[Choice, ...]
    options: SourceOptions
    counted: str

    @property
    def alpha_quantity(self) -> str:
        """The quantity whose error α bounds; empty if α bounds the error of each answer."""
        return _describe_alpha(self.goal, self.options.attribute)

    @property
    def warning(self) -> str | None:
        """A warning with its remedy if the best mechanism's promise is not informative, else None."""
        best = self.choices[0]
        if best.spec is None or best.calibration is None:
            return None
        return describe_uninformative(best.spec, best.calibration, self.goal.facts)

    def keeps_alpha(self, choice: Choice) -> bool:
        """Return True if a choice keeps the requested error, or if none was requested."""
        return self.goal.alpha is None or (choice.alpha is not None and choice.alpha <= self.goal.alpha)

    def value_error(self, choice: Choice) -> dict[str, float]:
        """Return a quantile's error in value as a field; empty if it is unknown."""
        error = None if choice.alpha is None else value_error(choice.alpha, self.goal)
        return {} if error is None else {"value_error": error}

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        goal, best = self.goal, self.choices[0]
        asked = {name: getattr(goal, name) for name in ("form", "queries", "epsilon", "alpha", "beta", "delta")}
        return {
            "wanted": {**asked, "group_by": self.options.group_by, "attribute": self.options.attribute},
            "least_alpha": self.alpha_quantity,
            "counted": self.counted,
            "choice": best.kind if best.applies else None,
            "keeps": best.applies and self.keeps_alpha(best),
            "mechanisms": [
                {
                    "mechanism": one.kind,
                    "over": self.options.alone if one.alone else None,
                    **{name: getattr(one, name) for name in ("applies", "alpha", "epsilon", "vacuous")},
                    "calibration": None if one.calibration is None else one.calibration.method,
                    "why": one.why,
                    **self.value_error(one),
                }
                for one in self.choices
            ],
        }


def compare_for_source(
    form: Form | None,
    source: Source | None,
    options: SourceOptions,
    goal_fields: Mapping[str, Any],
    fields: Mapping[str, Any],
    on_mechanism: Callable[[str], None] = lambda _: None,
) -> MechanismComparison:
    """Compare all mechanisms for questions about a source.

    Without a source, ``options`` give the number of rows and the attributes' sizes. ``fields`` replace values of
    ``MECHANISM_DEFAULTS``; ``goal_fields`` are further fields of ``PlanGoal``; ``on_mechanism`` is called before each plan.

    Raises:
        PlanError: the form or an option does not fit the source, or α depends on private facts.
    """
    form = choose_form(form, source)
    facts = facts_of_source(form, source, options)
    if options.group_by and form not in _GROUPED_FORMS:
        raise PlanError(f"--group-by: form {form} has no groups; give --form groups")
    fields = {**MECHANISM_DEFAULTS, "rows": options.rows, "steps": goal_fields["queries"], **fields}
    if facts.disjoint:
        require_monotone_counts(fields["monotone"], facts.neighbors)
        fields["monotone"] = facts.neighbors == "add-remove"  # no count falls if a row is added
    try:
        parse_quantiles(goal_fields["q"])
    except ValueError as error:
        raise PlanError(f"--q: {error}") from None
    goal = PlanGoal(
        form=form,
        facts=facts,
        fields=fields,
        group_by=_alone_indices(form, options, source),
        summed=summed_attributes(form, source, options.attribute),
        ranked=ranked_attributes(form, source, options.attribute),
        **goal_fields,
    )
    choices = rank_mechanisms(goal, on_mechanism)
    return MechanismComparison(
        goal, choices, options, describe_counted_rows(form, source, goal.facts.contribution)
    )


def _alone_indices(form: Form, options: SourceOptions, source: Source | None) -> tuple[int, ...]:
    """Return the index of each ``--group-by``, or of a quantile's attribute.

    A grouping is an attribute's name, or a position (from 1) in ``--sizes``.
    """
    if form == "quantile" and isinstance(source, TableSource) and options.attribute in source.attributes:
        return () if options.sizes else (list(source.attributes).index(options.attribute),)
    names = [str(index + 1) for index in range(len(options.sizes))]
    known = "a position in --sizes, whose positions are"
    if isinstance(source, TableSource) and not options.sizes:
        names, known = list(source.attributes), "an attribute of the source, which has"
    if options.group_by and not names:
        raise PlanError("--group-by: the attributes are unknown; give --sizes or --source as well")
    for number, name in enumerate(options.group_by):
        if name not in names:
            raise PlanError(f"--group-by: '{name}' is not {known} {', '.join(names)}; give one of them")
        if name in options.group_by[:number]:
            raise PlanError(f"--group-by: '{name}' is given twice; give it once")
    return tuple(names.index(name) for name in options.group_by)


def describe_counted_rows(form: Form, source: Source | None, contribution: int) -> str:
    """Describe how many rows of one person a question of this form counts; empty if that does not matter."""
    if form in _FORMS_WITHOUT_ROWS and not (form == "alarm" and isinstance(source, TableSource)):
        return ""
    if source is None and contribution > 1:
        return f"of each person at most {contribution:,} rows count"
    if source is None or (isinstance(source, TableSource) and source.person is None):
        return ROW_IS_PERSON
    return describe_table_bound(source)


def _describe_alpha(goal: PlanGoal, attribute: str | None) -> str:  # noqa: C901, PLR0911, PLR0912 - one for each form
    """Describe the quantity whose error α bounds; empty if that is simply each answer."""
    rows, any_of = (goal.facts.rows, "" if attribute else ", of any attribute: --attribute selects one")
    match goal.form:
        case "fraction" if goal.errors_are_shares:
            return f"a share of the {rows:,} rows"
        case "fraction" if goal.facts.rows_public:
            return "in rows: a share's α is this divided by the number of rows, --rows"
        case "fraction":
            return "in rows: a share's α is about this divided by the number of rows, which is private"
        case "sum" if goal.summed:
            return f"of a sum{any_of}"
        case "sum":
            return "of a count: a sum's α is this times the most by which one row changes the sum, which --source declares"
        case "mean" if goal.summed:
            return f"of a mean times its number of rows: divide it by the number of rows for about the mean's α{any_of}"
        case "mean":
            return "of a mean times its number of rows, in multiples of its attribute's range, which --source declares"
        case "quantile" if not goal.ranked:
            return "in rows of rank; --source and --rows give the error in value"
        case "quantile":
            return f"in rows of rank{any_of}" + ("" if goal.facts.rows else "; --rows gives the error in value")
        case "rate":
            return "in rows: a rate's α is this divided by the number of rows that it is over, which is private"
        case "person_sum":
            return "in bounds: the α of a sum over people is this times its bound"
        case "groups" | "people_groups" if not goal.group_by:
            return "of every possible group-by: --group-by selects one"
        case "running" if (goal.facts.universe or 1) == 1:
            return "of a count without groups: groups, declared or of texts, have a larger α, which the stream's own plan shows"
        case _:
            return ""


_MOST_ATTRIBUTES: Final = 64


@dataclass(frozen=True, slots=True)
class ChosenStream:
    """A stream's specification with its mechanism.

    ``compared`` lists the compared mechanisms; it is empty if the request named a mechanism.
    ``mean_count`` is the mean count of a cell of the workload, or None if the number of rows is not public.
    """

    spec: StreamSpec
    compared: tuple[ComparedMechanism, ...] = ()
    mean_count: float | None = None

    @property
    def warning(self) -> str | None:
        """A warning if counts of the workload are expected to err by more than a third of their mean."""
        error = self.compared[0].error if self.compared else None
        if error is None or self.mean_count is None or is_informative(error, self.mean_count):
            return None
        shown = format_error_bound(error, grouped=True)
        return (
            f"{NOT_INFORMATIVE}: the expected error of a count of the workload is {shown} rows, and the mean count {self.mean_count:,.3g}; "
            "give a larger epsilon, fewer or smaller attributes, or fewer expected_queries"
        )


def choose_mechanism(
    asked: OpeningSpec, source: Source, table_rows: Callable[[], int] | None = None
) -> ChosenStream:
    """Return the stream to open; ``auto`` is replaced by the best mechanism for its workload.

    Raises:
        RefusedError: the source is not a table, a field does not fit it, or no mechanism applies.
        PlanError: each set of attributes in the workload has more than 4,096 cells.
    """
    auto = asked.mechanism
    if not isinstance(auto, Auto):
        return ChosenStream(_with_mechanism(asked, auto))
    if not isinstance(source, TableSource):
        raise RefusedError(
            f"mechanism.kind: auto chooses a mechanism for a table, and the source is of kind '{source.kind}'; name a mechanism"
        )
    if asked.calibration != "best":
        raise RefusedError("calibration: auto always uses 'best'; leave it out, or name a mechanism")
    names = tuple(source.attributes) if auto.attributes is None else auto.attributes
    if not 0 < len(names) <= _MOST_ATTRIBUTES:
        raise RefusedError(
            f"mechanism.attributes: the table has {len(names)}; name from 1 to {_MOST_ATTRIBUTES} of them"
        )
    widest_spec = _with_mechanism(asked, Pmw(kind="pmw", attributes=names, rows=auto.rows))
    facts = facts_for_plan(widest_spec, source, table_rows)
    parameters = StreamParameters(
        asked.epsilon, asked.delta, asked.beta, asked.expected_queries, asked.expected_queries
    )
    found = compare_mechanisms(facts, names, parameters, auto.workload)
    best = found[0]
    if best.error is None:
        reasons = "; ".join(f"{one.kind}: {one.why}" for one in found)
        raise RefusedError(
            f"mechanism.kind: no mechanism fits the workload; name one, or fewer attributes ({reasons})"[:1024]
        )
    return ChosenStream(
        spec=_with_mechanism(asked, best.mechanism),
        compared=tuple(ComparedMechanism(kind=one.kind, error=one.error, why=one.why[:256]) for one in found),
        mean_count=mean_count(facts, names, auto.workload),
    )


def opening_warning(
    chosen: ChosenStream,
    calibration: Calibration,
    source: Source,
    table_rows: Callable[[], int] | None = None,
    *,
    about_rows: int | None = None,
    expected: float | None = None,
) -> str | None:
    """Return a warning with its remedy if the promise of an opening is not informative, else None.

    ``about_rows`` and ``expected`` are public guesses of the number of rows and of an answer.
    """
    if chosen.warning is not None:
        return chosen.warning
    facts = facts_for_plan(chosen.spec, source, table_rows)
    if facts.rows is None:
        facts = replace(facts, rows=about_rows)
    is_chosen = bool(chosen.compared)
    return describe_uninformative(chosen.spec, calibration, facts, source, expected, is_chosen=is_chosen)


def _with_mechanism(asked: OpeningSpec, mechanism: Any) -> StreamSpec:
    return StreamSpec.model_validate({**dict(asked), "mechanism": mechanism})
