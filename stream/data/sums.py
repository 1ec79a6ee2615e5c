"""Sums of an integer attribute: which attributes have one, and how far one row moves it."""

from __future__ import annotations

from typing import Literal

from schemas import Domain, Integers
from stream.data.errors import DataError


def summable(domain: Domain, described: str = "the attribute") -> Integers:
    """The domain, if its values can be added up; DataError if they are names or bins."""
    if not isinstance(domain, Integers):
        raise DataError(f"{described} has no sum; declare it as integers")
    return domain


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
