"""Words for numbers, names and cells that people read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from difflib import get_close_matches
from itertools import pairwise, product
from math import isfinite
from typing import Final

from schemas import Bins, Categories, Domain, EventsSource, Integers, Query, Source, TableSource

_BOUND_DIGITS: Final = 4
_DIGITS: Final = 6
"""Of a number that comes without a bound."""

_WHOLE: Final = 2.0**53
"""From here on floats have no fraction, and are written as they are."""


def bound(alpha: float, *, grouped: bool = False) -> str:
    """A bound in four digits or all whole ones, never less than it is; ``grouped`` sets commas, as in tables and sentences."""
    return _written(alpha, _last(alpha, _BOUND_DIGITS), ROUND_CEILING, grouped=grouped)


def estimate(number: float, alpha: float | None, *, grouped: bool = False) -> str:
    """A number that is off by at most ``alpha``, to the last digit that its bound is written with."""
    place = _last(number, _DIGITS) if alpha is None else _last(alpha, _BOUND_DIGITS)
    return _written(number, place, ROUND_HALF_EVEN, grouped=grouped)


def _last(number: float, digits: int) -> int | None:
    """The power of ten of a number's last digit of so many, units at most; None where all of them are written."""
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
"""Most names that are compared letter by letter; among more, only those in letters of another case are found."""


def in_other_case(name: str, names: Collection[str]) -> str | None:
    """The one of ``names`` that differs from ``name`` in the case of its letters alone, if there is exactly one."""
    folded = name.casefold()
    alike = [one for one in names if one.casefold() == folded]
    return alike[0] if len(alike) == 1 else None


def closest(name: str, names: Collection[str], *, cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that is closest to ``name``, if any is close; the same one whatever their order."""
    if (alike := in_other_case(name, names)) is not None:
        return alike
    if len(names) > MAX_COMPARED:
        return None
    of_folded = {one.casefold(): one for one in sorted(names, reverse=True)}
    found = get_close_matches(name.casefold(), sorted(of_folded), n=1, cutoff=cutoff)
    return of_folded[found[0]] if found else None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """The end of a message about an unknown name: ``; did you mean 'patients'?``, or nothing if no name is close."""
    found = closest(str(name), names)
    return "" if found is None else f"; did you mean '{found}'?"


def values_of(domain: Domain) -> Sequence[str | int]:
    """The values of a domain; of a binned one its bins, as ``[0, 10)``."""
    match domain:
        case Categories():
            return domain.values
        case Integers():
            return range(domain.minimum, domain.maximum + 1)
        case Bins():
            bins = [f"[{low:g}, {high:g})" for low, high in pairwise(domain.edges)]
            return [*bins[:-1], f"{bins[-1][:-1]}]"]


def cells_of(attributes: Mapping[str, Domain], by: Sequence[str]) -> tuple[dict[str, str | int], ...]:
    """The cells of these attributes in row-major order; one that says nothing if there are none."""
    values = [values_of(attributes[name]) for name in by]
    return tuple(dict(zip(by, cell, strict=True)) for cell in product(*values))


def of_each(person: str, most: int, what: str) -> str:
    """Of how many of one person's rows or events numbers are."""
    return f"of each '{person}' at most {most:,} {what}{'s count' if most > 1 else ' counts'}"


def rows_counted(source: Source) -> str:
    """How many rows of one person count in a table; empty where one row is one person, and of other sources.

    Rows beyond are in no count, sum or mean, and no error tells of them. A count of people is of all people.
    """
    return counted_words(source) if isinstance(source, TableSource) else ""


def bound_of(source: Source) -> int | None:
    """How many rows or events of one person count; None on sources that bound none."""
    if isinstance(source, EventsSource) or (isinstance(source, TableSource) and source.person is not None):
        return source.contribution
    return None


def counts_people(query: Query) -> bool:
    """Whether a question is of people, all of whom count whatever the bound."""
    if query.candidates is not None:
        return all(candidate.people for candidate in query.candidates)
    return query.people


def counted_words(source: Source) -> str:
    """How many rows or events of one person count; empty on sources that bound none."""
    person = getattr(source, "person", None)
    return "" if person is None else bounded_words(source.kind, person, bound_of(source) or 1)


def bounded_words(kind: str, person: str, most: int) -> str:
    """Of how many of one person's rows or events the numbers of a source of this kind are."""
    return of_each(person, most, "event") + " in a window" if kind == "events" else of_each(person, most, "row")
