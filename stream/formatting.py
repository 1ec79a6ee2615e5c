"""Formats numbers, names and cells for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from difflib import get_close_matches
from itertools import pairwise, product
from math import isfinite
from typing import Final

from schemas import Bins, Categories, Dates, Decimals, Domain, EventsSource, Integers, Query, Source, TableSource

_BOUND_DIGITS: Final = 4
_DIGITS: Final = 6
"""Digits of a number without an error bound."""

_WHOLE: Final = 2.0**53
"""Doubles of at least this size have no fraction and are not rounded."""


def bound(alpha: float, *, grouped: bool = False) -> str:
    """Format an error bound, rounded up to four digits; ``grouped`` adds thousands separators."""
    return _written(alpha, _last(alpha, _BOUND_DIGITS), ROUND_CEILING, grouped=grouped)


def estimate(number: float, alpha: float | None, *, grouped: bool = False) -> str:
    """Format a number, rounded to the last digit of its error bound ``alpha``."""
    place = _last(number, _DIGITS) if alpha is None else _last(alpha, _BOUND_DIGITS)
    return _written(number, place, ROUND_HALF_EVEN, grouped=grouped)


def interval(ends: tuple[float, float], *, grouped: bool = False) -> str:
    """Format a confidence interval, rounded as an error bound of half its length."""
    half = 0.5 * (ends[1] - ends[0]) or None
    low, high = (estimate(end, half, grouped=grouped) for end in ends)
    return f"{low} to {high}"


def _last(number: float, digits: int) -> int | None:
    """Return the power of ten of the last digit, at most 0; None to keep all digits."""
    if not number or not isfinite(number):
        return None
    return min(0, Decimal(repr(number)).adjusted() + 1 - digits)


def _written(number: float, place: int | None, rounding: str, *, grouped: bool) -> str:
    if not isfinite(number) or abs(number) >= _WHOLE:
        return f"{number:g}" if not isfinite(number) else repr(number)
    found = Decimal(repr(number))
    if place is not None and found.as_tuple().exponent < place:  # type: ignore[operator]  # it is finite
        found = found.quantize(Decimal((0, (1,), place)), rounding)
    found = found.normalize()
    if found >= 1 or found <= -1:
        found = found.quantize(Decimal((0, (1,), min(0, found.as_tuple().exponent))))  # type: ignore[arg-type]
    return f"{found or abs(found):{',' if grouped else ''}g}"


MAX_COMPARED: Final = 1000
"""Most names compared for similarity; if there are more, only a name in other case matches."""


def in_other_case(name: str, names: Collection[str]) -> str | None:
    """Return the name that equals ``name`` except for case; None if none or several do."""
    folded = name.casefold()
    alike = [one for one in names if one.casefold() == folded]
    return alike[0] if len(alike) == 1 else None


def closest(name: str, names: Collection[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar of ``names``, or None; independent of their order."""
    if (alike := in_other_case(name, names)) is not None:
        return alike
    if len(names) > MAX_COMPARED:
        return None
    of_folded = {one.casefold(): one for one in sorted(names, reverse=True)}
    found = get_close_matches(name.casefold(), sorted(of_folded), n=1, cutoff=cutoff)
    return of_folded[found[0]] if found else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Format ``; did you mean 'patients'?`` for a message; empty if no name is similar."""
    found = closest(str(name), names)
    return "" if found is None else f"; did you mean '{found}'?"


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
            bins = [f"[{low:g}, {high:g})" for low, high in pairwise(domain.edges)]
            return [*bins[:-1], f"{bins[-1][:-1]}]"]


def cells_of(attributes: Mapping[str, Domain], by: Sequence[str]) -> tuple[dict[str, str | int | float], ...]:
    """Return the cells of attributes in row-major order; one empty cell without attributes."""
    values = [values_of(attributes[name]) for name in by]
    return tuple(dict(zip(by, cell, strict=True)) for cell in product(*values))


def format_bound(person: str, most: int, what: str) -> str:
    """Format a contribution bound, as ``of each 'patient' at most 3 rows count``."""
    return f"of each '{person}' at most {most:,} {what}{'s count' if most > 1 else ' counts'}"


def rows_counted(source: Source) -> str:
    """Describe a table's contribution bound; empty for other sources and one row per person.

    Rows above the bound are not counted, and no error bound covers the missing rows.
    """
    return describe_source_bound(source) if isinstance(source, TableSource) else ""


def bound_of(source: Source) -> int | None:
    """Return a source's contribution bound, or None."""
    if isinstance(source, EventsSource) or (isinstance(source, TableSource) and source.person is not None):
        return source.contribution
    return None


def counts_people(query: Query) -> bool:
    """Whether a question counts people by all their rows; the contribution bound does not affect it."""
    if query.candidates is not None:
        return all(candidate.people for candidate in query.candidates)
    return query.person_sum is not None or (query.people and query.group_by is None)


def describe_source_bound(source: Source) -> str:
    """Describe a source's contribution bound in words; empty without one."""
    person = getattr(source, "person", None)
    return "" if person is None else describe_bound(source.kind, person, bound_of(source) or 1)


def describe_bound(kind: str, person: str, most: int) -> str:
    """Describe a contribution bound in words for a source of this kind."""
    return (
        format_bound(person, most, "event") + " in a window"
        if kind == "events"
        else format_bound(person, most, "row")
    )
