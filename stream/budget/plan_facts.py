"""Computes the public facts that a plan needs, from a source's definition or from command options.

It also refuses mechanisms, attributes and questions that do not fit a source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from schemas import (
    MAX_EVENT_BYTES,
    MAX_GROUPS,
    EventsSource,
    Histogram,
    Laplace,
    Mechanism,
    Numeric,
    RecordsSource,
    Source,
    StandingQuery,
    StreamSpec,
    TableSource,
    ValuesSource,
)
from schemas.queries import MAX_VALUE_COUNT, MAX_VALUES
from stream.formatting import values_of
from stream.privacy.accuracy.source_facts import GroupSensitivity, QuantileFacts, SourceFacts, window_sensitivity
from stream.privacy.composition.costs import RefusedError
from stream.privacy.planning.answer_plans import parse_quantiles
from stream.privacy.planning.form_accuracy import FORMS, Form, RankedAttribute, SummedAttribute
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import sensitivity_steps
from stream.tables.expressions import TRUE
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import codes_within, ordered_values, sum_sensitivity
from stream.tables.table_errors import private_text_message, undeclared_name_message

FINE_GRID: Final = 1 / 1024
"""Default grid of values in queries; its rounding does not visibly change α."""

_VALUE_FORMS: Final[set[Form]] = {"value", "values"}
_VALUE_OR_TABLE_FORMS: Final[set[Form]] = {"alarm", "candidates"}
_SUM_FORMS: Final = {"sum", "mean"}
_RUNNING_COUNT_FORM: Final = "running"
_USUAL_FORMS: Final[tuple[Form, ...]] = ("count", "value", "category", _RUNNING_COUNT_FORM)
"""Default forms of a comparison; the first form that the source accepts is used."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a comparison of mechanisms, in addition to a source's definition or in place of it."""

    neighbors: str = "add-remove"
    sizes: tuple[int, ...] = ()
    cell_count: int | None = None
    rows: int | None = None
    sensitivity: float = 1.0
    grid: float = FINE_GRID
    records_per_person: int = 1
    total: int | None = None
    group_by: tuple[str, ...] = ()
    attribute: str | None = None

    @property
    def alone(self) -> tuple[str, ...]:
        """The attributes over which alone a mechanism over a table may be planned."""
        return self.group_by or (() if self.attribute is None else (self.attribute,))


def summed_attributes(form: Form, source: Source | None, attribute: str | None) -> tuple[SummedAttribute, ...]:
    """Return the attribute to sum, or all attributes that can be summed if none is named."""
    if form not in _SUM_FORMS:
        if attribute is not None and form == "quantile" and source is None:
            raise PlanError("--attribute: its values are unknown; give --source as well")
        if attribute is not None and form != "quantile":
            remedy = (
                "leave it out: α is in bounds" if form == "person_sum" else "give --form sum, mean or quantile"
            )
            raise PlanError(f"--attribute: the α of form {form} does not depend on an attribute; {remedy}")
        return ()
    if not isinstance(source, TableSource):
        if attribute is not None:
            raise PlanError("--attribute: its range is unknown; give --source as well")
        return ()
    numeric = {name: domain for name, domain in source.attributes.items() if isinstance(domain, Numeric)}
    if not numeric:
        raise PlanError(
            f"--form: a {form} needs an attribute of integers or decimals; choose one, if the source has one"
        )
    if attribute is not None and attribute not in numeric:
        raise PlanError(
            f"--attribute: '{attribute}' is not an attribute of integers or decimals of the source, which has {', '.join(numeric)}; give one of them"
        )
    chosen = numeric.values() if attribute is None else [numeric[attribute]]
    return tuple(_summed_attribute(domain, source.neighbors) for domain in chosen)


def ranked_attributes(form: Form, source: Source | None, attribute: str | None) -> tuple[RankedAttribute, ...]:
    """Return the attribute of a quantile, or all ordered attributes if none is named."""
    if form != "quantile" or not isinstance(source, TableSource):
        return ()
    ordered = {
        name: values
        for name, domain in source.attributes.items()
        if (values := ordered_values(domain)) is not None
    }
    if not ordered:
        raise PlanError(
            "--form: a quantile needs an attribute of integers, decimals or bins; choose one, if the source has one"
        )
    if attribute is not None and attribute not in ordered:
        raise PlanError(f"--attribute: '{attribute}' has no quantiles; give one of {', '.join(ordered)}")
    chosen = ordered.values() if attribute is None else [ordered[attribute]]
    return tuple(RankedAttribute(one.size, one.high(one.size - 1) - one.low(0)) for one in chosen)


def _summed_attribute(domain: Numeric, neighbors: Literal["add-remove", "replace"]) -> SummedAttribute:
    in_steps = domain.in_steps
    return SummedAttribute(
        range=in_steps.maximum - in_steps.minimum,
        moves=sum_sensitivity(in_steps, neighbors),
        centered=sum_sensitivity(in_steps, neighbors, (in_steps.minimum + in_steps.maximum) // 2),
        unit=float(domain.unit),
    )


def accepted_forms(source: Source | None) -> set[Form]:
    """Return the forms that questions about a source may have."""
    match source:
        case ValuesSource():
            return _VALUE_FORMS | _VALUE_OR_TABLE_FORMS
        case RecordsSource():
            return {"category"}
        case EventsSource():
            return {_RUNNING_COUNT_FORM}
        case TableSource():
            return set(FORMS) - _VALUE_FORMS - {"category", _RUNNING_COUNT_FORM}
        case None:
            return set(FORMS)


def choose_form(given: Form | None, source: Source | None) -> Form:
    """Return the given form, or the source's usual form; PlanError if the source does not accept it."""
    accepted = accepted_forms(source)
    form = given or next(one for one in _USUAL_FORMS if one in accepted)
    if form not in accepted:
        kind = "" if source is None else source.kind
        raise PlanError(
            f"--form: a source of kind '{kind}' has no questions of form {form}; give one of "
            + ", ".join(sorted(accepted))
            + ("; --standing plans any other stream on a live topic" if isinstance(source, EventsSource) else "")
        )
    return form


def facts_of_source(form: Form, source: Source | None, options: SourceOptions) -> SourceFacts:
    """Return the public facts of the source that plans depend on."""
    match source:
        case ValuesSource():
            steps = sensitivity_steps(source.sensitivity, source.grid)
            return facts_of_values(steps, source.grid, source.neighbors)
        case RecordsSource():
            return SourceFacts(neighbors=source.neighbors, records_per_person=source.contributions)
        case EventsSource():
            if source.total is None:
                raise PlanError(
                    "--source: a running count needs a bound on a person's events in all windows; declare the source's total"
                )
            return facts_of_windows(source.contribution, source.total, options.cell_count or 1, source.neighbors)
        case TableSource():
            sizes = options.sizes or tuple(domain.size for domain in source.attributes.values())
            # One person changes a count of people by one, whatever the contribution bound.
            each = 1 if form == "people" else source.contribution
            return _facts_of_table(source.neighbors, sizes, math.prod(sizes), options.rows, each)
    if form == "category":
        return SourceFacts(neighbors="replace", records_per_person=options.records_per_person)
    return _facts_of_options(form, options)


def _facts_of_options(form: Form, options: SourceOptions) -> SourceFacts:
    if form == _RUNNING_COUNT_FORM:
        each = sensitivity_steps(options.sensitivity, 1.0)
        return facts_of_windows(each, options.total or each, options.cell_count or 1, options.neighbors)
    sizes = options.sizes
    cell_count = math.prod(sizes) if sizes else options.cell_count
    if form in _VALUE_FORMS or (form in _VALUE_OR_TABLE_FORMS and cell_count is None and options.rows is None):
        return facts_of_values(
            sensitivity_steps(options.sensitivity, options.grid), options.grid, options.neighbors
        )
    each = 1 if form == "people" else sensitivity_steps(options.sensitivity, 1.0)
    return _facts_of_table(options.neighbors, sizes, cell_count, options.rows, each)


def facts_of_values(steps: int, grid: float, neighbors: Any) -> SourceFacts:
    """Return the facts of a source of values, which one unit changes by ``steps`` of the grid."""
    return SourceFacts(sensitivity_steps=steps, grid=grid, neighbors=neighbors, rounding=0.5 * grid)


def facts_of_windows(each: int, total: int, groups: int, neighbors: Any) -> SourceFacts:
    """Return the facts of windows if a person changes each window by ``each`` and all together by ``total``."""
    people = 2 if neighbors == "replace" else 1
    moved = GroupSensitivity(each=total, together=people * total, spread=people, numbers=people * total)
    return SourceFacts(sensitivity_steps=each, neighbors=neighbors, universe=groups, horizon=moved)


def _facts_of_table(
    neighbors: Any, sizes: tuple[int, ...], cell_count: int | None, rows: int | None, contribution: int
) -> SourceFacts:
    return SourceFacts(
        sensitivity_steps=contribution,
        neighbors=neighbors,
        universe=cell_count,
        sizes=sizes,
        rows=rows,
        disjoint=True,
        contribution=contribution,
    )


def quantile_facts(
    mechanism: Mechanism, source: EventsSource, standing: StandingQuery, group_count: int
) -> QuantileFacts:
    """Return the public facts by which a standing stream's quantiles are planned.

    Each question carries one count per value of the attribute. ``group_count`` is the number of groups
    in a window. RefusedError if mechanism, attribute and limits do not fit.
    """
    quantile = standing.quantile or ""
    together = isinstance(mechanism, Histogram)
    if not isinstance(mechanism, Laplace | Histogram):
        raise RefusedError(
            f"mechanism.kind: {mechanism.kind} answers no quantiles; use laplace, or histogram for all groups of a window at once"
        )
    ordered = {name: one.size for name, one in source.attributes.items() if ordered_values(one) is not None}
    if quantile not in ordered:
        declared = f"the source declares {', '.join(sorted(ordered))}" if ordered else "the source declares none"
        raise RefusedError(
            f"standing.quantile: must name an ordered attribute (numbers, bins, dates or ordered categories); {declared}"
        )
    if quantile in standing.by:
        raise RefusedError(
            "standing.by: must not name the attribute of the quantile, which would be the same in all events of a group; remove it"
        )
    try:
        quantiles = parse_quantiles(0.5 if standing.q is None else standing.q)
    except ValueError as error:
        raise RefusedError(f"standing.q: {error}") from None
    if together and isinstance(standing.q, tuple):
        raise RefusedError(
            "standing.q: must be one number, because an answer of a histogram has one number per group; give one, or use laplace"
        )
    predicate = TRUE if standing.where is None else PredicateParser(source.attributes).parse(standing.where)
    first, end = codes_within(ordered[quantile], quantile, predicate)
    if (counts_per_window := ordered[quantile] * group_count) > MAX_GROUPS:
        raise RefusedError(
            f"standing.quantile: '{quantile}' has {ordered[quantile]:,} values in {group_count:,} groups, so a window would have "
            f"{counts_per_window:,} counts, and at most {MAX_GROUPS:,} are allowed; declare it with bins, a larger step or a smaller "
            "range, or group by fewer or smaller attributes"
        )
    counts = (end - first) * (group_count if together else 1)
    if counts > MAX_VALUES:
        raise RefusedError(
            f"standing.quantile: a question would carry {counts:,} counts (one per value of '{quantile}' allowed by where"
            f"{', in each group' if together else ''}), and at most {MAX_VALUES:,} are allowed; declare it with bins or a larger step, "
            f"allow fewer values in where{', or use laplace, which asks a question per group' if together else ''}"
        )
    return QuantileFacts(
        quantiles,
        end - first,
        group_count if together else 1,
        source.contribution,
        source.neighbors == "replace",
        grouped=together,
    )


_QUESTION_BYTES: Final = 512
"""Maximum number of bytes of a window's question without its numbers and its group."""
_NUMBER_BYTES: Final = 40
"""Maximum number of characters of a count or sum; the largest is the sum of 2⁶³ events of 10¹⁵ each."""
_COUNT_BYTES: Final = len(f"{MAX_VALUE_COUNT},")
"""Maximum number of characters of the count of a quantile's value."""


def require_texts(source: TableSource | EventsSource, kind: str = "unknown_groups") -> None:
    """Refuse private groups of a source without texts, or with an accountant that cannot count δ."""
    if not source.texts:
        raise RefusedError(
            "mechanism.kind: unknown_groups counts the values of a text attribute, and the source has none; declare one as "
            "{'kind': 'text'}, or use laplace over declared values"
        )
    if source.accountant != "pure":
        raise RefusedError(
            f"mechanism.kind: {kind} costs ε and δ for texts, which the accountant 'zcdp' does not add up; register the source with 'pure'"
        )


def quantile_stream_facts(
    spec: StreamSpec, standing: StandingQuery, source: EventsSource, groups: int
) -> SourceFacts:
    """Return the public facts of a standing stream of quantiles; RefusedError if its parts do not fit each other."""
    mechanism = spec.mechanism
    found = quantile_facts(mechanism, source, standing, groups)
    require_no_repeated_fields(mechanism, standing)
    counts, together = found.value_count * found.group_count, isinstance(mechanism, Histogram)
    require_small_questions(standing, source, numbers=counts, number_bytes=_COUNT_BYTES, together=together)
    if not together:
        require_one_window(spec, groups)
    change = window_sensitivity(source, standing, found.group_count)
    return SourceFacts(
        sensitivity_steps=change.together,
        neighbors=source.neighbors,
        universe=groups if together else None,
        window=change,
        quantiles=found,
    )


def declared_sizes(source: TableSource | EventsSource, names: Sequence[str], field: str) -> tuple[int, ...]:
    """Return the sizes of attributes; RefusedError about ``field`` if one is undeclared or named twice."""
    for index, name in enumerate(names):
        if name in source.texts:
            raise RefusedError(f"{field}.{index}: {private_text_message(name)}")
        if name not in source.attributes:
            message = undeclared_name_message(index, name, source.attributes, "the source, which has")
            raise RefusedError(f"{field}: {message}")
    if len(set(names)) < len(names):
        raise RefusedError(f"{field}: the list contains an attribute twice; remove one of them")
    return tuple(source.attributes[name].size for name in names)


def require_small_questions(
    standing: StandingQuery,
    source: EventsSource,
    *,
    numbers: int,
    number_bytes: int = _NUMBER_BYTES,
    together: bool = False,
) -> None:
    """Refuse a standing query if a question with large counts would exceed an event's size.

    A later refusal of the question would depend on its counts, which are private. A question about all
    groups ``together`` contains no group's name.
    """
    group = sum(
        max(len(msgspec.json.encode({name: value})) for value in values_of(source.attributes[name]))
        for name in (() if together else standing.by)
    )
    if (size := _QUESTION_BYTES + number_bytes * numbers + group) > MAX_EVENT_BYTES:
        raise RefusedError(
            f"standing.by: the question of the group with the longest values may have {size:,} bytes, and an event has at most "
            f"{MAX_EVENT_BYTES:,}; group by fewer attributes, or declare them with shorter names and values"
        )


def require_no_repeated_fields(mechanism: Mechanism, standing: StandingQuery) -> None:
    """Refuse fields of the mechanism whose values the standing query determines."""
    for name in ("sums", "people"):
        if getattr(mechanism, name, None):
            raise RefusedError(
                f"mechanism.{name}: standing.count says what a standing stream counts; remove mechanism.{name}"
            )
    if isinstance(mechanism, Laplace) and mechanism.dimensions > 1:
        raise RefusedError(
            "mechanism.dimensions: a standing stream's answer is one number; remove it, or use histogram for one answer with all groups"
        )
    if isinstance(mechanism, Histogram) and mechanism.attributes != standing.by:
        raise RefusedError(
            "mechanism.attributes: must have the attributes of standing.by in the same order; leave standing.by out"
        )


def require_one_window(spec: StreamSpec, groups: int) -> None:
    """Refuse a stream whose error bound or answers are not enough for one window."""
    if spec.expected_queries < groups:
        raise RefusedError(
            f"expected_queries: each window asks {groups:,} questions, one for each group, so alpha would not hold for a single "
            "window; give the number of windows times the number of groups"
        )
    answers = getattr(spec.mechanism, "answers", groups)
    if answers < groups:
        raise RefusedError(
            f"mechanism.answers: {answers:,} would not last for one window, which asks {groups:,} questions, one for each group; give the "
            "number of windows times the number of groups, or use histogram"
        )
