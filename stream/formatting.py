"""Formats numbers, names and cells for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from difflib import get_close_matches
from itertools import pairwise, product
from math import isfinite
from typing import Final

from schemas import (
    Bins,
    Categories,
    ComparedMechanism,
    Dates,
    Decimals,
    Domain,
    EventsSource,
    Integers,
    Query,
    Source,
    StreamSpec,
    TableSource,
)

_BOUND_DIGITS: Final = 4
_DIGITS_WITHOUT_BOUND: Final = 6
"""Number of digits with which a number without an error bound is written."""
_DIGITS_OF_EXACT: Final = 15
"""Number of digits with which a number without an error is written: more would show how doubles are stored."""

_MIN_INTEGER_DOUBLE: Final = 2.0**53
"""Doubles from this size on are integers, and are written in full."""


def format_count(number: int, one: str, many: str = "") -> str:
    """Format a number with its noun: ``1 answer``, ``2,000 answers``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


_LATER_GRANTS: Final = {
    "nothing": "nothing was granted later",
    "halt": "later grants are unknown, so all sources are halted",
    "accept_loss": "later grants are unknown, and sources continue",
}


def format_loss(since: str, lost: int, *, is_rollback: bool) -> str:
    """Format the loss by a restored backup or an accepted rollback; ``since`` is the operator's statement."""
    event = "a rollback was accepted" if is_rollback else "a backup was restored"
    streams = format_count(lost, "stream that was not closed has ended", "streams that were not closed have ended")
    return f"{event}: later entries are lost; {_LATER_GRANTS.get(since, since)}; {streams}"


def format_share(share: float) -> str:
    """Format a share from 0 to 1 in percent; only an exact 0 is shown as 0 %, and only an exact 1 as 100 %."""
    if 0.0 < share < 0.001:
        return "< 0.1%"
    return "> 99.9%" if 0.999 < share < 1.0 else f"{share:.1%}"


def floor_left(left: float, digits: int) -> float:
    """Round a part of what is left of a budget down; less than 1e-15, a rest of a rounded plan, counts as 0."""
    return 0.0 if left < 1e-15 else float(Context(digits, ROUND_FLOOR).create_decimal(repr(left)))


def format_error_bound(alpha: float, *, grouped: bool = False) -> str:
    """Format an error bound, rounded up, with four digits; ``grouped`` adds thousands separators."""
    return _format_number(alpha, _last_digit_exponent(alpha, _BOUND_DIGITS), ROUND_CEILING, grouped=grouped)


def format_estimate(
    number: float, alpha: float | None, ends: tuple[float, float] | None = None, *, grouped: bool = False
) -> str:
    """Format a number, cut to the ``ends`` of its interval and rounded to the last digit of its bound ``alpha``."""
    number = cut_to_interval(number, ends)
    last_exponent = (
        _last_digit_exponent(alpha, _BOUND_DIGITS)
        if alpha
        else _last_digit_exponent(number, _DIGITS_WITHOUT_BOUND if alpha is None else _DIGITS_OF_EXACT)
    )
    return _format_number(number, last_exponent, ROUND_HALF_EVEN, grouped=grouped)


def cut_to_interval(number: float, ends: tuple[float, float] | None) -> float:
    """Return the number or, if it is outside its confidence interval, the nearer end.

    An interval is cut off where the true number cannot be, such as below 0 rows.
    """
    return number if ends is None else min(max(number, ends[0]), ends[1])


def half_length(ends: tuple[float, float] | None) -> float | None:
    """Return half of an interval, as the error bound that decides a number's digits; None without an interval."""
    return None if ends is None else 0.5 * (ends[1] - ends[0])


def format_interval(ends: tuple[float, float], number: float | None, *, grouped: bool = False) -> str:
    """Format the confidence interval of ``number``; its ends are rounded as for an error bound of half its length.

    If noise moved the number so far out of its range that nothing of the interval is left, the text says so: ``0 to 0``
    would look exact.
    """
    if number is not None and ends[0] == ends[1] != number:
        end = format_estimate(ends[0], None, grouped=grouped)
        return f"{'below' if number < ends[0] else 'above'} {end}, by noise"
    low, high = (format_estimate(end, half_length(ends), grouped=grouped) for end in ends)
    return f"{low} to {high}"


def _last_digit_exponent(number: float, digits: int) -> int | None:
    """Return the power of ten of the last digit to write, as an exponent of at most 0; None for all digits."""
    if not number or not isfinite(number):
        return None
    return min(0, Decimal(repr(number)).adjusted() + 1 - digits)


def _format_number(number: float, last_exponent: int | None, rounding: str, *, grouped: bool) -> str:
    if not isfinite(number) or abs(number) >= _MIN_INTEGER_DOUBLE:
        return f"{number:g}" if not isfinite(number) else repr(number)
    decimal = Decimal(repr(number))
    if last_exponent is not None and decimal.as_tuple().exponent < last_exponent:  # type: ignore[operator]  # it is finite
        decimal = decimal.quantize(Decimal((0, (1,), last_exponent)), rounding)
    decimal = decimal.normalize()
    if decimal >= 1 or decimal <= -1:
        decimal = decimal.quantize(Decimal((0, (1,), min(0, decimal.as_tuple().exponent))))  # type: ignore[arg-type]
    return f"{decimal or abs(decimal):{',' if grouped else ''}g}"


MAX_COMPARED_NAMES: Final = 1000
"""Maximum number of names that are compared for similarity; more names are compared without letter case only."""


def find_name_in_other_case(name: str, names: Collection[str]) -> str | None:
    """Return the only one of ``names`` that equals ``name`` apart from letter case, or None."""
    folded = name.casefold()
    alike = [one for one in names if one.casefold() == folded]
    return alike[0] if len(alike) == 1 else None


def find_closest_name(name: str, names: Collection[str]) -> str | None:
    """Return the most similar of ``names``, or None; the order of ``names`` has no effect."""
    if (alike := find_name_in_other_case(name, names)) is not None:
        return alike
    if len(names) > MAX_COMPARED_NAMES:
        return None
    name_by_folded = {one.casefold(): one for one in sorted(names, reverse=True)}
    matches = get_close_matches(name.casefold(), sorted(name_by_folded), n=1)
    return name_by_folded[matches[0]] if matches else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Format ``; did you mean 'patients'?`` for a message; empty if no name is similar."""
    closest = find_closest_name(str(name), names)
    return "" if closest is None else f"; did you mean '{closest}'?"


def suggest_public_name(name: str, names: Collection[str]) -> str:
    """Format as ``did_you_mean`` for a service, which compares no more than ``MAX_COMPARED_NAMES`` names."""
    return did_you_mean(name, names) if len(names) <= MAX_COMPARED_NAMES else ""


def values_of(domain: Domain) -> Sequence[str | int | float]:
    """Return the values of a domain; bins are written ``[0, 10)``."""
    match domain:
        case Categories():
            return domain.values
        case Integers():
            return range(domain.minimum, domain.maximum + 1)
        case Decimals() | Dates():
            return domain.values()
        case Bins():
            texts = [f"{edge:g}" for edge in domain.edges]
            if len(set(texts)) < len(texts):  # six digits do not tell times in seconds apart
                texts = [repr(edge).removesuffix(".0") for edge in domain.edges]
            bins = [f"[{low}, {high})" for low, high in pairwise(texts)]
            return [*bins[:-1], f"{bins[-1][:-1]}]"]


def cells_of(attributes: Mapping[str, Domain], by: Sequence[str]) -> tuple[dict[str, str | int | float], ...]:
    """Return the cells of the attributes ``by`` in row-major order; for none, one empty cell."""
    values = [values_of(attributes[name]) for name in by]
    return tuple(dict(zip(by, cell, strict=True)) for cell in product(*values))


MAX_NAMES_LENGTH: Final = 1 << 16
"""Maximum number of characters in the names of an answer's groups together."""


def longest_name(attributes: Mapping[str, Domain], by: Sequence[str]) -> int:
    """Return the number of characters in the names of the attributes ``by`` and their longest values."""
    return sum(len(name) + max(len(str(value)) for value in values_of(attributes[name])) for name in by)


def describe_choice(compared: Sequence[ComparedMechanism]) -> str:
    """Describe the mechanism that ``auto`` chose and the next best mechanisms, with their expected errors."""
    chosen, *others = compared
    text = f"auto took {chosen.kind}: a count of the workload {_expected_error(chosen)}"
    return "; ".join([text, *(f"{one.kind} {_expected_error(one)}" for one in others)])


def remark_on_rows(rows: int | None, alpha: float) -> str | None:
    """Describe what ``auto``'s choice means for a private number of rows; ``rows`` is the given guess of it."""
    if rows is None:
        return (
            "whether that is informative depends on the number of rows, which is private: give a public guess in "
            "mechanism.rows, and a stream that is not informative is refused"
        )
    if alpha <= LARGEST_SHARE * rows:
        return None
    return (
        f"the promise of {format_error_bound(alpha, grouped=True)} is more than a third of the {rows:,} rows: counts of the "
        "workload are expected to err far less, but only a larger epsilon promises it"
    )


def _expected_error(one: ComparedMechanism) -> str:
    if one.error is None:
        return f"does not apply: {one.why}"
    error = f"is expected to err by {format_error_bound(one.error, grouped=True)} rows"
    return f"{error}{' on average over example tables' * (one.kind == 'pmw')} ({one.why})"


def describe_table_bound(source: Source) -> str:
    """Describe a table's contribution bound; empty for other sources and for a table without ``person``.

    Rows beyond the bound are not counted, and error bounds do not cover these rows.
    """
    return describe_source_bound(source) if isinstance(source, TableSource) else ""


def contribution_bound_of(source: Source) -> int | None:
    """Return a source's contribution bound, or None."""
    if isinstance(source, EventsSource | TableSource) and source.person is not None:
        return source.contribution
    return None


ROW_IS_PERSON: Final = (
    "each row is taken as one person; if a person has several rows, declare 'person' and 'contribution'"
)

EVENT_IS_PERSON: Final = (
    "each event is taken as one person; if a person sends several events to a stream, declare 'contributions'"
)


def describe_public_number(source: TableSource) -> str | None:
    """Describe the number of rows or people that all neighbors share; None if it is private."""
    if source.neighbors != "replace" or source.contribution > 1:
        return None
    counted = "rows in the file" if source.person is None else f"people plus rows without a '{source.person}'"
    return f"under 'replace' the number of {counted} is public"


def describe_rows(source: TableSource) -> tuple[str, ...]:
    """Describe the rows of a view, the person of each row if no column names persons, and the rows left out."""
    lines = [] if source.view is None else [f"its rows are those of {' '.join(source.view.select.split())}"]
    lines += [] if source.person is not None else [ROW_IS_PERSON]
    domains = source.attributes.items()
    texts = " except texts" if source.texts else ""
    person = "" if source.person is None else f", or of '{source.person}',"
    reasons = [f"a cell of any attribute{texts}{person} is missing or unreadable"]
    if any(isinstance(domain, Categories) and domain.other is None for _, domain in domains):
        reasons.append("a category is not declared")
    if rejecting := [repr(name) for name, domain in domains if getattr(domain, "outside", None) == "reject"]:
        reasons.append(f"{' or '.join(rejecting)} is outside its range")
    with_other = [repr(name) for name, domain in domains if getattr(domain, "other", None) is not None]
    names = " and ".join(with_other)
    other = f"; a missing or undeclared category of {names} counts as the declared 'other'" if names else ""
    public = describe_public_number(source)
    lines += [] if public is None else [public]
    return (*lines, f"a row is left out if {', or '.join(reasons)}{other}")


NOT_INFORMATIVE: Final = "not informative"
"""The words that begin each warning about an error that is too large."""
LARGEST_SHARE: Final = 1 / 3
"""The largest error of an informative number, as a share of the rows or of the range."""

CHARGED_AS_USUAL_TEXT: Final = "an answer is charged as any other"
"""The last words of a warning about a question whose answer is known in advance."""
MAX_COARSE_STEPS: Final = 10_000
"""The largest number of values for which answers warn that values are rounded to the step."""

ROWS_LEFT_OUT: Final = (
    "rows with a missing or invalid cell are left out, also if the question does not use that attribute"
)
"""The warning about each question to a table; ``describe_rows`` gives the details."""


def counts_people(query: Query) -> bool:
    """Return whether a question counts people by all their rows, so that no contribution bound applies."""
    if query.candidates is not None:
        return all(candidate.people for candidate in query.candidates)
    return query.person_sum is not None or (query.people and query.group_by is None)


def describe_source_bound(source: Source) -> str:
    """Describe a source's contribution bound in words; empty without one."""
    if not isinstance(source, EventsSource | TableSource) or source.person is None:
        return ""
    return describe_bound(source.kind, source.person, source.contribution)


def describe_counted_events(count: object, bound_text: str) -> str:
    """Describe which events of a person a standing stream with this ``count`` counts in a window.

    ``bound_text`` describes the contribution bound of its source. A stream that counts people ignores it.
    """
    if count != "people" or not bound_text:
        return bound_text
    return "each person counts once in a window, with groups in the group of the person's first event"


def describe_promise_bound(spec: StreamSpec, bound_text: str, total: int | None) -> str:
    """Describe which rows or events of a person a stream's promise covers.

    ``total`` is the bound of its source over all windows, which holds for running counts.
    """
    counted = describe_counted_events(spec.standing and spec.standing.count, bound_text)
    if spec.mechanism.kind != "running_count" or total is None:
        return counted
    return f"{counted}; in all windows together, at most {total:,}"


def describe_bound(kind: str, person: str, contribution: int) -> str:
    """Describe the contribution bound of a source of this kind, as ``of each 'patient' at most 3 rows count``."""
    what, where = ("event", " in a window") if kind == "events" else ("row", "")
    return (
        f"of each '{person}' at most {contribution:,} {what}{'s count' if contribution > 1 else ' counts'}{where}"
    )
