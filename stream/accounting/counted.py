"""How much of one person counts, in words: what numbers are about, where a source bounds it. A public fact of the source alone."""

from __future__ import annotations

from schemas import EventsSource, Query, Source, TableSource


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
