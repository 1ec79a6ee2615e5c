"""Sums of an integer attribute: which attributes have one, which values it is over, and how far one row moves it."""

from __future__ import annotations

from typing import Literal

from schemas import Domain, Integers, TableSource
from stream.tables.expressions import Predicate, evaluate
from stream.tables.table_errors import DataError


def summable(domain: Domain, described: str = "the attribute") -> Integers:
    """The domain, if its values can be added up; DataError if they are names or bins."""
    if not isinstance(domain, Integers):
        raise DataError(f"{described} has no sum; declare it as integers")
    return domain


def within(domain: Integers, attribute: str, predicate: Predicate) -> Integers:
    """The domain from the least to the greatest value that a row may have which satisfies a predicate.

    What a predicate says of the attribute itself decides it, and so what is public; it may be wider than need be where conditions
    on several attributes belong together. The whole domain if no value is left.
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
    """The most by which ``Table.total`` of an attribute of this domain, and this centre, differs between neighbours.

    A row adds its value − centre if it satisfies the predicate, and 0 if not. So one row more or less makes at most
    max |value − centre|; one row in another's place, the distance from the least to the greatest of these terms,
    0 among them. The domain alone decides it; DataError if its values are not integers.
    """
    integers = summable(domain)
    lowest, highest = integers.minimum - centre, integers.maximum - centre
    if neighbors == "add-remove":
        return max(abs(lowest), abs(highest))
    return max(highest, 0) - min(lowest, 0)


def rows_are_public(source: TableSource) -> bool:
    """Whether all neighbours have the same number of rows or, where rows have persons, of people, one row of each counting."""
    return source.neighbors == "replace" and source.contribution == 1


def count_sensitivity(source: TableSource) -> int:
    """How far one person moves a count of rows: with all rows within, at most."""
    return source.contribution


def groups_sensitivity(source: TableSource) -> int:
    """How far one person moves all counts of disjoint groups together; two persons, where one stands in another's place."""
    return source.contribution * (2 if source.neighbors == "replace" else 1)


def total_sensitivity(source: TableSource, domain: Integers, centre: int = 0) -> int:
    """How far one person moves a sum of an attribute of this domain, less ``centre`` for each row."""
    return source.contribution * sum_sensitivity(domain, source.neighbors, centre)
