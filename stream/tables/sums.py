"""Computes the sensitivity of counts and of sums of integer attributes."""

from __future__ import annotations

from typing import Literal

from schemas import Domain, Integers, TableSource
from stream.tables.expressions import Predicate, evaluate
from stream.tables.table_errors import DataError


def summable(domain: Domain, described: str = "the attribute") -> Integers:
    """Return the domain if it is one of integers; DataError for categories or bins."""
    if not isinstance(domain, Integers):
        raise DataError(f"{described} has no sum; declare it as integers")
    return domain


def within(domain: Integers, attribute: str, predicate: Predicate) -> Integers:
    """Restrict a domain to the range of values that a predicate allows.

    The result depends only on the predicate's conditions on this attribute, so it is public; it may be
    wider than necessary. If the predicate allows no value, the result is the unchanged domain.
    """
    whole, none = (0, domain.size), (domain.size, 0)
    first, end = evaluate(
        predicate,
        lambda holds: whole if holds else none,
        lambda leaf: (leaf.cuts[0], leaf.cuts[-1]) if leaf.attribute == attribute else whole,
        lambda one, other: (max(one[0], other[0]), min(one[1], other[1])),
        lambda one, other: (min(one[0], other[0]), max(one[1], other[1])),
    )
    if first >= end:
        return domain
    return domain.model_copy(update={"minimum": domain.minimum + first, "maximum": domain.minimum + end - 1})


def sum_sensitivity(domain: Domain, neighbors: Literal["add-remove", "replace"], centre: int = 0) -> int:
    """Return the most by which ``PrivateTable.total`` differs between neighbors.

    A row adds value − centre if it satisfies the predicate, else 0. So an added row changes the total
    by at most max |value − centre|, and a replaced row by at most the width of the interval that contains
    all terms and 0. DataError if the domain is not one of integers.
    """
    integers = summable(domain)
    lowest, highest = integers.minimum - centre, integers.maximum - centre
    if neighbors == "add-remove":
        return max(abs(lowest), abs(highest))
    return max(highest, 0) - min(lowest, 0)


def rows_are_public(source: TableSource) -> bool:
    """Return whether neighbors have equally many rows (or people, with a person column)."""
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
