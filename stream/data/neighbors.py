"""What neighbouring tables of a source may differ in, and how far counts and sums then differ.

Neighbours differ in one person, who has at most ``contribution`` rows that count: one more, one less, or another in the
place of one. Whatever one row moves by Δ, a person so moves by ``contribution``·Δ, one row after the other.
"""

from __future__ import annotations

from schemas import Integers, TableSource
from stream.data.sums import sum_sensitivity


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
