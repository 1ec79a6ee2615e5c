"""Warns about numbers, conditions and groups that count values outside a declared domain.

A value outside the range of a clamped attribute counts as the nearer end of the range. So the end ``18`` also has the
rows below 18, and ``age = 18`` or ``age BETWEEN 18 AND 30`` counts these. In the same way a missing or undeclared
category counts as the declared ``other``, and decimals count as multiples of a coarse step. All warnings depend on the
question, the declarations and published numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from operator import add
from typing import Final

from schemas import (
    Answer,
    Bins,
    Categories,
    Dates,
    Decimals,
    Domain,
    EventsSource,
    Integers,
    Query,
    Source,
    StreamSpec,
    SumOf,
    TableSource,
    ValuesSource,
)
from schemas.calendars import format_day
from stream.caches import cache_by_identity
from stream.formatting import MAX_COARSE_STEPS
from stream.privacy.accuracy.source_facts import clamping_range
from stream.privacy.composition.costs import exact_decimal
from stream.tables.expressions import FALSE, Codes, Predicate, attributes_of, conjunction, evaluate, make_leaf
from stream.tables.sensitivity import ordered_values
from stream.tables.table_errors import MONDAY_IS_1, PredicateError


def warn_about_clamping(
    answer: Answer, query: Query, source: Source, predicates: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the warnings about clamped values in an answer's numbers, conditions and groups.

    Sums, means and spreads, also those of candidates, depend on clamped values unless the condition excludes both ends of the range. A quantile
    does only if it, or an end of its interval, is at an end of the range.
    """
    if answer.outcome in {"rejected", "halted"} or not isinstance(source, TableSource):
        return ()
    attributes = source.attributes
    name = next((found for found in map(query.__getattribute__, VALUE_FIELDS) if found is not None), None)
    lines = _describe_numbers(attributes, name, query.where)
    if query.quantile is not None:
        lines = _describe_quantile(answer, query, attributes)
    summed = dict.fromkeys((one.sum, one.where) for one in query.candidates or ())
    lines += tuple(
        dict.fromkeys(line for one, where in summed for line in _describe_numbers(attributes, one, where))
    )
    predicates += _list_cell_conditions(query, attributes)
    groups = query.group_by or ()
    lines += _describe_steps(attributes, (name, *groups))
    ends = _describe_ends(attributes, predicates, query.where, groups)
    ranked = () if query.quantile is None else (query.quantile,)
    others = describe_other_categories(attributes, predicates, query.where, (*groups, *ranked))
    days = _describe_weekdays(attributes, predicates, (*groups, *ranked))
    return (*lines, *_describe_person_sum(attributes, query), *ends, *others, *days)


@cache_by_identity(256)
def describe_clamping(spec: StreamSpec, source: Source) -> tuple[str, ...]:
    """Return warnings about clamped values in the answers of a standing stream, and about conditions that the domains decide."""
    standing = spec.standing
    if standing is None or not isinstance(source, EventsSource):
        return ()
    decided: list[str] = []
    summed = standing.count.sum if isinstance(standing.count, SumOf) else None
    groups = getattr(spec.mechanism, "attributes", None) or standing.by
    where = () if standing.where is None else (standing.where,)
    if standing.where is not None:
        from stream.questions.predicate_limits import warn_about_predicate  # noqa: PLC0415  (imports the SQL parser)

        decided = warn_about_predicate(standing.where, source.attributes, unit="event")
    name = summed if standing.quantile is None else standing.quantile
    return (
        *decided,
        *_describe_numbers(source.attributes, name, standing.where),
        *_describe_steps(source.attributes, (name, *groups)),
        *_describe_ends(source.attributes, where, standing.where, groups),
        *describe_other_categories(source.attributes, where, standing.where, groups),
        *_describe_weekdays(source.attributes, where, (name, *groups)),
    )


def describe_values(source: ValuesSource) -> str:
    """Return how a source clamps and rounds the values of its questions; this depends on its definition alone."""
    low, high = (float(end) for end in clamping_range(source.grid, source.minimum, source.maximum))
    text = (
        f"values outside {low:.15g} … {high:.15g} count as the nearer end, and values are rounded to multiples of "
        f"{source.grid:.15g}, the grid"
    )
    grid, sensitivity = exact_decimal(source.grid), exact_decimal(source.sensitivity)
    if (counted := ceil(sensitivity / grid) * grid) == sensitivity:
        return text
    return f"{text}; the noise is that of a sensitivity of {float(counted):.15g}, because the grid does not divide {source.sensitivity:.15g}: a finer grid has less"


def _describe_numbers(attributes: Mapping[str, Domain], name: str | None, where: str | None) -> tuple[str, ...]:
    domain = attributes.get(name or "")
    if name is None or domain is None or not _is_clamped(domain):
        return ()
    if where is not None and not any(True for _ in _ends_in_groups(where, name, attributes)):
        return ()
    return (f"values of '{name}' outside {range_text(domain)} count as its ends; no ± covers this",)


def _list_cell_conditions(query: Query, attributes: Mapping[str, Domain]) -> tuple[str, ...]:
    """Return a condition for each value that a question's cells name; bins have none, because they name edges only."""
    values = dict.fromkeys(item for cell in query.cells or () for item in cell.at.items())
    return tuple(
        '"{}" = {}'.format(
            name.replace('"', '""'), "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else value
        )
        for name, value in values
        if name in attributes and not isinstance(attributes[name], Bins)
    )


def _describe_steps(attributes: Mapping[str, Domain], names: Iterable[str | None]) -> tuple[str, ...]:
    """Describe how far values are rounded; in a range of many steps, half a step is too small to matter."""
    found = {name: attributes.get(name or "") for name in names}
    return tuple(
        f"values of '{name}' are rounded to multiples of {domain.step:.15g}, each by up to {float(domain.unit / 2):.15g}; no ± covers this"
        for name, domain in found.items()
        if isinstance(domain, Decimals) and domain.size <= MAX_COARSE_STEPS
    )


def _describe_person_sum(attributes: Mapping[str, Domain], query: Query) -> tuple[str, ...]:
    domain, bound = attributes.get(query.person_sum or ""), query.bound
    if bound is None or not isinstance(domain, Integers | Decimals):
        return ()
    lines = []
    counted = float(floor(Fraction(bound) / domain.unit) * domain.unit)
    if 0 < counted < bound:
        lines.append(
            f"bound: each person's sum counts up to {counted:.15g}, because '{query.person_sum}' has steps of {float(domain.unit):.15g}"
        )
    if domain.minimum < 0:
        low = f"-{counted:.15g}"
        lines.append(f"each person's sum counts from {low} to {counted:.15g}: lower sums count as {low}")
    return tuple(lines)


def _describe_quantile(answer: Answer, query: Query, attributes: Mapping[str, Domain]) -> tuple[str, ...]:
    domain = attributes.get(query.quantile or "")
    values = None if domain is None or not _is_clamped(domain) else ordered_values(domain)
    if domain is None or values is None:
        return ()
    first, last = 0, domain.size - 1
    if values.text is not None:
        at_end: set[float | str | None] = {values.text(first), values.text(last)}
    else:
        at_end = {values.low(first), values.middle(first), values.middle(last), values.high(last)}
    intervals = (answer.interval, *(answer.intervals or ()), *(answer.choice_intervals or ()))
    published = {answer.estimate, answer.choice, *(answer.estimates or ()), *(answer.choices or ())}
    published |= {end for interval in intervals if interval is not None for end in interval}
    if at_end.isdisjoint(published):
        return ()
    ends = range_text(domain)
    return (
        f"'{query.quantile}': a quantile or its interval is at the end of the declared range, {ends}; the true quantile may lie beyond",
    )


def _describe_ends(
    attributes: Mapping[str, Domain], predicates: Iterable[str], where: str | None, groups: Iterable[str]
) -> tuple[str, ...]:
    """Describe each end of a range that a condition or a group selects without the values beyond it."""
    clamped = {name: domain for name, domain in attributes.items() if _is_clamped(domain)}
    groups = [name for name in groups if name in clamped]
    found: dict[str, set[bool]] = {}
    for text in predicates:
        if any(name.casefold() in text.casefold() for name in clamped):
            for name, is_last in _ends_in_condition(text, attributes):
                found.setdefault(name, set()).add(is_last)
    for name in groups:
        found.setdefault(name, set()).update(_ends_in_groups(where or "TRUE", name, attributes))
    return tuple(_describe_end(name, clamped[name], ends) for name, ends in found.items() if ends)


def describe_other_categories(
    attributes: Mapping[str, Domain], predicates: Iterable[str], where: str | None, groups: Iterable[str]
) -> tuple[str, ...]:
    """Describe each category ``other`` that a condition or a group counts."""
    others = {
        name: domain.values.index(domain.other)
        for name, domain in attributes.items()
        if isinstance(domain, Categories) and domain.other is not None
    }
    named = {
        name for name in groups if name in others and _holds_at(where or "TRUE", name, others[name], attributes)
    }
    for text in predicates:
        if any(name.casefold() in text.casefold() for name in others):
            found = attributes_of(parse_condition(text, attributes)) & others.keys()
            named |= {name for name in found if _holds_at(text, name, others[name], attributes)}
    return tuple(
        f"'{name}': '{getattr(attributes[name], 'other', None)}' also counts missing and undeclared categories"
        for name in others
        if name in named
    )


def _describe_weekdays(
    attributes: Mapping[str, Domain], predicates: Iterable[str], names: Iterable[str | None]
) -> tuple[str, ...]:
    """Describe the numbers of weekdays, because other programs begin with 0 or with Sunday."""
    texts = [*filter(None, names), *predicates]
    return tuple(
        f"'{name}': {MONDAY_IS_1}"
        for name, domain in attributes.items()
        if isinstance(domain, Dates)
        and domain.granularity == "weekday"
        and any(name.casefold() in text.casefold() for text in texts)
    )


def _holds_at(where: str, name: str, code: int, attributes: Mapping[str, Domain]) -> bool:
    """Return whether a condition holds for some row with this value of an attribute."""
    leaf = make_leaf(name, attributes[name].size, (code, code + 1))
    return conjunction([parse_condition(where, attributes), leaf]) != FALSE


def _ends_in_condition(text: str, attributes: Mapping[str, Domain]) -> Iterator[tuple[str, bool]]:
    """Yield each end of a range beyond which a condition holds for other rows than at the end.

    An end is an attribute, and whether it is the last end. A condition holds for other rows if it distinguishes the end
    from values beyond it, or compares with a number beyond it and holds at the end.
    """
    beyond = set(_ends_before_numbers(text, attributes))
    wider = _widen(attributes)
    predicate = parse_condition(text, {**attributes, **{name: domain for name, (domain, _) in wider.items()}})
    leaves: list[Codes] = evaluate(predicate, lambda _: [], lambda leaf: [leaf], add, add)
    for leaf in leaves:
        if leaf.attribute in wider:
            wide, first = wider[leaf.attribute]
            after = first + attributes[leaf.attribute].size
            yield from ((leaf.attribute, cut == after) for cut in leaf.cuts if cut in {first, after})
            beyond.update(
                (leaf.attribute, cut > after) for cut in leaf.cuts if 0 < cut < first or after < cut < wide.size
            )
    for name, is_last in beyond:
        if is_last in _ends_in_groups(text, name, attributes):
            yield name, is_last


def _ends_before_numbers(text: str, attributes: Mapping[str, Domain]) -> Iterator[tuple[str, bool]]:
    """Yield each end of a clamped range of numbers if a condition compares with a number beyond it.

    Bins have no such numbers, because conditions on bins may name their edges only.
    """
    from stream.questions.predicate_limits import find_number_comparisons  # noqa: PLC0415  (imports the SQL parser)

    for name, _, _, number in find_number_comparisons(text, attributes):
        domain = attributes[name]
        if not isinstance(domain, Integers | Decimals) or not _is_clamped(domain):
            continue
        if not domain.minimum <= number <= domain.maximum:
            yield name, number > domain.maximum


def _ends_in_groups(where: str, name: str, attributes: Mapping[str, Domain]) -> Iterator[bool]:
    """Yield the ends of an attribute's range that a condition does not exclude.

    False stands for the first end, True for the last.
    """
    for is_last, code in ((False, 0), (True, attributes[name].size - 1)):
        if _holds_at(where, name, code, attributes):
            yield is_last


def parse_condition(text: str, attributes: Mapping[str, Domain]) -> Predicate:
    """Parse a predicate; one that the worker will refuse holds for no row."""
    from stream.tables.predicates import PredicateParser  # noqa: PLC0415  (the SQL parser is slow to import)

    try:
        return PredicateParser(attributes).parse(text)
    except PredicateError:
        return FALSE


def _widen(attributes: Mapping[str, Domain]) -> dict[str, tuple[Domain, int]]:
    """Return each clamped attribute's domain with added cells beyond both ends.

    Also return the number of cells that are added before the first value.
    """
    wider = {}
    for name, domain in attributes.items():
        if _is_clamped(domain):
            with suppress(ValueError, OverflowError):  # the wider range may exceed a limit of domains
                wider[name] = _with_cells_beyond(domain)
    return wider


def _with_cells_beyond(domain: Domain) -> tuple[Domain, int]:
    match domain:
        case Integers():
            return Integers(minimum=domain.minimum - 1, maximum=domain.maximum + 1), 1
        case Decimals():
            low, high = (domain.in_steps.minimum - 1) * domain.unit, (domain.in_steps.maximum + 1) * domain.unit
            return Decimals(minimum=float(low), maximum=float(high), step=domain.step), 1
        case Bins(edges=edges):
            return Bins(edges=(edges[0] - 1.0, *edges, edges[-1] + 1.0)), 1
        case Dates():
            days = replace(domain.calendar, zone=None)
            is_hours = domain.granularity == "hour"
            first = days.first - 1 if is_hours else days.start(-1)
            last = days.last + 1 if is_hours else days.start(days.size + 1) - 1
            # Conditions may name dates that are years beyond the range.
            years = _HOURLY_YEARS if is_hours else _DAILY_YEARS
            begin, end = (int(format_day(day)[:4]) for day in (days.first, days.last))
            ranges = (
                (f"{max(1, begin - years):04}-01-01", f"{min(9998, end + years):04}-12-31"),
                (format_day(first), format_day(last)),
            )
            declared = domain.model_dump()
            for minimum, maximum in ranges:
                with suppress(ValueError):  # the wider range may exceed a limit of domains
                    wide = Dates.model_validate({**declared, "minimum": minimum, "maximum": maximum})
                    return wide, wide.calendar.cell_at(domain.calendar.start(0))
            raise ValueError("the domain cannot be wider")
        case _:
            raise ValueError("no value lies beyond the domain")


def _describe_end(name: str, domain: Domain, ends: set[bool]) -> str:
    """Describe the values beyond a range that its ends count too."""
    is_dates = isinstance(domain, Dates)
    lower, higher, values = ("earlier", "later", "dates") if is_dates else ("lower", "higher", "values")
    low, high = _end_labels(domain)
    if len(ends) == 2:
        return f"'{name}': {low} also counts all {lower} {values}, {high} all {higher} ones"
    return f"'{name}': " + (
        f"{high} also counts all {higher} {values}" if True in ends else f"{low} also counts all {lower} {values}"
    )


def _end_labels(domain: Domain) -> tuple[str, str]:
    match domain:
        case Dates():
            return domain.calendar.label(0), domain.calendar.label(domain.size - 1)
        case Bins(edges=edges):
            return f"[{edges[0]:.15g}, {edges[1]:.15g})", f"[{edges[-2]:.15g}, {edges[-1]:.15g}]"
        case Integers() | Decimals():
            return f"{domain.minimum:.15g}", f"{domain.maximum:.15g}"
        case _:
            raise TypeError("the domain has no ends")


def range_text(domain: Domain) -> str:
    """Format the declared range of a domain with ends."""
    match domain:
        case Dates():
            return f"{domain.minimum} to {domain.maximum}"
        case Bins(edges=edges):
            return f"{edges[0]:.15g} to {edges[-1]:.15g}"
        case _:
            return " to ".join(_end_labels(domain))


def _is_clamped(domain: Domain) -> bool:
    """Return whether values outside a domain count as its ends.

    Parts of dates, such as the hour, are never outside.
    """
    match domain:
        case Dates():
            return domain.part is None and domain.outside == "clamp"
        case Integers() | Decimals() | Bins():
            return domain.outside == "clamp"
        case _:
            return False


_DAILY_YEARS: Final = 1000
_HOURLY_YEARS: Final = 40
"""Years beyond a range of days or longer periods, and of hours, in which conditions are examined."""

VALUE_FIELDS: Final = ("sum", "mean", "quantile", "iqr", "variance", "stddev", "person_sum")
