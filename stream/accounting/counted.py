"""How much of one person counts, in words: what numbers are about, where a source bounds it. A public fact of the source alone."""

from __future__ import annotations

from schemas import Source, TableSource


def of_each(person: str, most: int, what: str) -> str:
    """Of how many of one person's rows or events numbers are."""
    return f"of each '{person}' at most {most:,} {what}{'s count' if most > 1 else ' counts'}"


def rows_counted(source: Source) -> str:
    """How many rows of one person count in a table; empty where one row is one person, and of other sources.

    Rows beyond are in no count, sum or mean, and no error tells of them. A count of people is of all people.
    """
    if not isinstance(source, TableSource) or source.person is None:
        return ""
    return of_each(source.person, source.contribution, "row")
