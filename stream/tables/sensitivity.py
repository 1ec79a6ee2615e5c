"""Sensitivities of counts and sums, and the ordered values behind quantiles and variances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers, TableSource
from stream.tables.expressions import Predicate, evaluate
from stream.tables.table_errors import DataError


@dataclass(frozen=True, slots=True)
class OrderedValues:
    """The values of the codes 0 … ``size`` − 1 of an attribute, in increasing order.

    - ``low``, ``high``: the ends of the values for which a code stands; ``middle`` represents them.
    - ``step``: the distance of neighboring values; None if a code is a bin, which has no variance.
    - ``text``: returns the text of a code, for dates and ordered categories, whose numbers are the codes.
    - ``distances``: False for ordered categories, which have no distances.
    """

    size: int
    low: Callable[[int], float]
    middle: Callable[[int], float]
    high: Callable[[int], float]
    step: Fraction | None
    text: Callable[[int], str] | None = None
    distances: bool = True

    def has(self, form: str) -> bool:
        """Return whether a statistic of this form is defined for the values."""
        match form:
            case "quantile":
                return True
            case "iqr":
                return self.distances
            case _:
                return self.step is not None


def ordered_values(domain: Domain) -> OrderedValues | None:
    """Return the values of an ordered domain; None for categories without an order.

    Dates, their parts, such as an hour, and ordered categories have ranks, but no variance. The
    distance of two dates is a number of days, weeks or other cells; categories have none.
    """
    match domain:
        case Integers() | Decimals():
            return _numbers(domain.in_steps, domain.unit, domain.unit)
        case Dates() if domain.part is not None:
            return _numbers(domain.part, Fraction(1), None)
        case Dates() | Categories(ordered=True):
            text = domain.calendar.label if isinstance(domain, Dates) else domain.values.__getitem__
            return OrderedValues(domain.size, float, float, float, None, text, isinstance(domain, Dates))
        case Bins(edges=edges):
            return OrderedValues(
                domain.size,
                lambda code: float(edges[code]),
                lambda code: 0.5 * (edges[code] + edges[code + 1]),
                lambda code: float(edges[code + 1]),
                None,
            )
        case _:
            return None


def _numbers(whole: Integers, unit: Fraction, step: Fraction | None) -> OrderedValues:
    def value(code: int) -> float:
        return (whole.minimum + code) * unit.numerator / unit.denominator

    return OrderedValues(whole.size, value, value, value, step)


def require_summable(domain: Domain, described: str = "the attribute") -> Integers:
    """Return a domain of integers or decimals in whole steps; DataError for another domain."""
    if not isinstance(domain, Integers | Decimals):
        raise DataError(f"{described} has no sum; declare it as integers or decimals")
    return domain.in_steps


def codes_within(size: int, attribute: str, predicate: Predicate) -> tuple[int, int]:
    """Return the half-open range of an attribute's codes that a predicate allows.

    The result depends only on the predicate's conditions on this attribute, so it is public. It may be
    wider than necessary, and it is the range of all codes if the predicate allows none.
    """
    all_codes, no_codes = (0, size), (size, 0)
    first, end = evaluate(
        predicate,
        lambda holds: all_codes if holds else no_codes,
        lambda leaf: (leaf.cuts[0], leaf.cuts[-1]) if leaf.attribute == attribute else all_codes,
        lambda one, other: (max(one[0], other[0]), min(one[1], other[1])),
        lambda one, other: (min(one[0], other[0]), max(one[1], other[1])),
    )
    return (first, end) if first < end else all_codes


def restrict_domain(domain: Integers, attribute: str, predicate: Predicate) -> Integers:
    """Restrict a domain to the range of values that a predicate allows, as `codes_within` does."""
    first, end = codes_within(domain.size, attribute, predicate)
    return domain.model_copy(update={"minimum": domain.minimum + first, "maximum": domain.minimum + end - 1})


def sum_sensitivity(domain: Domain, neighbors: Literal["add-remove", "replace"], centre: int = 0) -> int:
    """Return the most by which ``PrivateTable.total`` differs between neighbors.

    A row adds value − centre if it satisfies the predicate, else 0. So an added row changes the total
    by at most max |value − centre|, and a replaced row by at most the width of the interval that contains
    all terms and 0. Sums of decimals are in whole steps. DataError if the domain has no sum.
    """
    integers = require_summable(domain)
    lowest, highest = integers.minimum - centre, integers.maximum - centre
    if neighbors == "add-remove":
        return max(abs(lowest), abs(highest))
    return max(highest, 0) - min(lowest, 0)


def rows_are_public(source: TableSource) -> bool:
    """Return whether neighbors have the same number of rows or, with a person column, of people."""
    return source.neighbors == "replace" and source.contribution == 1


def count_sensitivity(source: TableSource) -> int:
    """Return the most by which one person changes a count of rows."""
    return source.contribution


def groups_sensitivity(source: TableSource) -> int:
    """Return the ℓ1 sensitivity of the counts of disjoint groups."""
    return source.contribution * (2 if source.neighbors == "replace" else 1)


def total_sensitivity(source: TableSource, domain: Integers, centre: int = 0) -> int:
    """Return the most by which one person changes a sum of value − centre."""
    return source.contribution * sum_sensitivity(domain, source.neighbors, centre)


def person_range(domain: Integers, bound: int) -> tuple[int, int]:
    """Return the range to which ``bound`` clamps one person's sum of an attribute.

    The range contains 0, the sum of a person without rows. It begins or ends at 0 if the declared
    values have only one sign.
    """
    return (-bound if domain.minimum < 0 else 0), (bound if domain.maximum > 0 else 0)


def person_sensitivity(source: TableSource, domain: Integers, bound: int) -> int:
    """Return the most by which one person changes the total of all people's clamped sums."""
    low, high = person_range(domain, bound)
    return high - low if source.neighbors == "replace" else max(-low, high)


def people_groups_sensitivity(source: TableSource, groups: int) -> int:
    """Return the ℓ1 sensitivity of the counts of people in disjoint groups.

    A person is in at most ``contribution`` groups, and changes the count of each by 1.
    """
    return min(groups_sensitivity(source), groups)
