"""Constants of a predicate that lie outside the declared domain: allowed, answered as written, and hardly ever meant.

What is told follows from the question and the public definition of its source alone.
"""

from __future__ import annotations

from schemas import Query, Source, TableSource


def predicates_of(query: Query) -> tuple[str, ...]:
    """All predicates that a question has."""
    terms, candidates = query.terms or (), query.candidates or ()
    texts = (query.where, *(term.where for term in terms), *(candidate.where for candidate in candidates))
    return tuple(text for text in texts if text is not None)


def needs_domain(query: Query) -> bool:
    """Whether the declared domain may have more to say of the answer: its groups' names, or that a number lies outside."""
    return query.group_by is not None or any(_has_number(text) for text in predicates_of(query))


def outside(source: Source, query: Query) -> tuple[str, ...]:
    """One line for each comparison that no row, or every row, passes since its constant is no value of the attribute.

    Other constants that a domain does not hold, such as categories, are refused by workers. A text that is no predicate
    gives no line: its refusal says what is wrong.
    """
    if not isinstance(source, TableSource):
        return ()
    texts = [text for text in predicates_of(query) if _has_number(text)]
    if not texts:
        return ()
    from stream.asking.constants import lines_of  # noqa: PLC0415  (a parser that who has no such question does not wait for)

    return tuple(dict.fromkeys(line for text in texts for line in lines_of(text, source.attributes)))


def _has_number(text: str) -> bool:
    return any(sign.isdigit() for sign in text)
