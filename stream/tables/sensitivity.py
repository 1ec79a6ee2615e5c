"""Sensitivities of counts and sums, ordered values, and the codes and groups that a predicate allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod
from operator import and_, or_, xor
from typing import Literal

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers, TableSource
from stream.tables.expressions import Codes, Predicate, evaluate
from stream.tables.table_errors import TableDataError


@dataclass(frozen=True, slots=True)
class OrderedValues:
    """The values of an ordered attribute's codes 0 … ``size`` − 1, in increasing order.

    - A code stands for the values from ``low`` to ``high``; ``middle`` represents them.
    - ``step`` is the distance of neighboring values. It is None for bins and dates, whose values have no variance.
    - ``text`` returns the text of a code. Only dates and ordered categories have it; their numbers are the codes.
    - ``distances`` is False for ordered categories, whose values have no distances.
    """

    size: int
    low: Callable[[int], float]
    middle: Callable[[int], float]
    high: Callable[[int], float]
    step: Fraction | None
    text: Callable[[int], str] | None = None
    distances: bool = True

    def has_statistic(self, form: str) -> bool:
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

    Dates, their parts (such as the hour) and ordered categories have quantiles, but no variance. The distance of two
    dates is a number of days, weeks or other calendar cells.
    """
    match domain:
        case Integers() | Decimals():
            return _number_values(domain.in_steps, domain.unit, domain.unit)
        case Dates() if domain.part is not None:
            return _number_values(domain.part, Fraction(1), None)
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


def _number_values(whole: Integers, unit: Fraction, step: Fraction | None) -> OrderedValues:
    def value(code: int) -> float:
        return (whole.minimum + code) * unit.numerator / unit.denominator

    return OrderedValues(whole.size, value, value, value, step)


def require_summable(domain: Domain, described: str = "the attribute") -> Integers:
    """Return a domain that has sums as integers, decimals in whole steps; TableDataError for another domain."""
    if not isinstance(domain, Integers | Decimals):
        raise TableDataError(f"{described} has no sum; declare it as integers or decimals")
    return domain.in_steps


def codes_within(size: int, attribute: str, predicate: Predicate) -> tuple[int, int]:
    """Return the half-open range of an attribute's codes that a predicate allows.

    The range depends only on the predicate's conditions on this attribute, so it is public. It may be wider than
    necessary. If the predicate allows no code, the range has all codes.
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


def excluded_groups(predicate: Predicate, source: TableSource, groups: Sequence[str]) -> frozenset[int]:
    """Return the positions of the groups that a predicate excludes by the declared domains alone, so it is public."""
    sizes = [source.attributes[name].size for name in groups]
    count = prod(sizes)
    every = (1 << count) - 1
    # A set of groups is an integer with one bit for each group, because conditions may have hundreds of parts and
    # questions thousands of groups.
    below = {name: [0] for name in groups}  # for each attribute and code, the set of the groups with a lower code
    for axis, (name, size) in enumerate(zip(groups, sizes, strict=True)):
        run = prod(sizes[axis + 1 :])
        first = ((1 << run) - 1) * (every // ((1 << run * size) - 1))
        for code in range(size):
            below[name].append(below[name][-1] | first << run * code)

    def find_matching_groups(leaf: Codes) -> int:
        """Return the groups in which a leaf can hold; these are all groups if it is about another column."""
        if leaf.attribute in below:
            return reduce(xor, (below[leaf.attribute][cut] for cut in leaf.cuts))
        held = every
        for name, lower in below.items():
            if (spans := _cells_with_dates(source, leaf, name)) is not None:
                held &= reduce(or_, (lower[end] ^ lower[begin] for begin, end in spans), 0)
        return held

    may_hold = evaluate(predicate, lambda holds: every if holds else 0, find_matching_groups, and_, or_)
    return frozenset(index for index in range(count) if not may_hold >> index & 1)


def _cells_with_dates(source: TableSource, leaf: Codes, name: str) -> list[tuple[int, int]] | None:
    """Return the ranges of the cells of ``name`` that contain dates which ``leaf`` accepts.

    Both attributes read the same column, with different granularities. None if they read different columns, or
    declare different ranges or time zones: a value outside one range is clamped to another date than in the other.
    """
    domains = source.attributes[leaf.attribute], source.attributes[name]
    if source.column_of(leaf.attribute) != source.column_of(name):
        return None
    calendars = [one.calendar for one in domains if isinstance(one, Dates) and one.part is None]
    if len({(one.first, one.last, one.zone) for one in calendars}) != 1 or len(calendars) != len(domains):
        return None
    asked, grouped = calendars
    ends = [asked.start(cut) if cut < asked.size else asked.end() for cut in leaf.cuts]
    return [
        (grouped.cell_at(begin), grouped.cell_at(end - 1) + 1)
        for begin, end in zip(ends[::2], ends[1::2], strict=True)
    ]


def sum_sensitivity(domain: Domain, neighbors: Literal["add-remove", "replace"], center: int = 0) -> int:
    """Return the most by which ``CountedTable.total`` differs between neighbors.

    A row adds value − center if it satisfies the predicate, else 0. So an added row changes the total by at most
    max |value − center|. A replaced row changes it by at most the width of the interval that contains 0 and all values of
    value − center. Sums of decimals are in whole steps. TableDataError if the domain has no sum.
    """
    integers = require_summable(domain)
    lowest, highest = integers.minimum - center, integers.maximum - center
    if neighbors == "add-remove":
        return max(abs(lowest), abs(highest))
    return max(highest, 0) - min(lowest, 0)


def rows_are_public(source: TableSource) -> bool:
    """Return whether neighbors have the same number of rows or, with a person column, of people."""
    return source.neighbors == "replace" and source.contribution == 1


def groups_sensitivity(source: TableSource) -> int:
    """Return the ℓ1 sensitivity of the counts of disjoint groups."""
    return source.contribution * (2 if source.neighbors == "replace" else 1)


def total_sensitivity(source: TableSource, domain: Integers, center: int = 0) -> int:
    """Return the most by which one person changes a sum of value − center."""
    return source.contribution * sum_sensitivity(domain, source.neighbors, center)


def person_range(domain: Integers, bound: int) -> tuple[int, int]:
    """Return the range to which one person's sum of an attribute is clamped by ``bound``.

    The range contains 0, the sum of a person without rows. If all declared values have one sign, 0 is an end of it.
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
