"""What the declared domain decides of a question by itself: allowed, answered as written, charged, and hardly ever meant.

What is told follows from the question and the public definition of its source alone.
"""

from __future__ import annotations

import re
from typing import Final

from schemas import Query, Source, TableSource


def predicates_of(query: Query) -> tuple[str, ...]:
    """All predicates that a question has."""
    terms, candidates = query.terms or (), query.candidates or ()
    texts = (query.where, *(term.where for term in terms), *(candidate.where for candidate in candidates))
    return tuple(text for text in texts if text is not None)


def is_about_table(query: Query) -> bool:
    """Whether the source's definition has more to say of the answer: it is of a table, not of values that the question brings."""
    return query.value is None and query.values is None and query.category is None


def outside(source: Source, query: Query) -> tuple[str, ...]:
    """One line for each comparison that no row, or every row, passes since its constant is no value of the attribute, for each
    predicate that is so as a whole, and for a choice from one candidate.

    Other constants that a domain does not hold, such as categories, are refused by workers. A text that is no predicate
    gives no line: its refusal says what is wrong.
    """
    lines = [_ONE_CANDIDATE] if _has_one_candidate(query) else []
    texts = [text for text in predicates_of(query) if _may_be_decided(text)]
    if texts and isinstance(source, TableSource):
        from stream.questions.predicate_limits import lines_of  # noqa: PLC0415  (a parser that who has no such question does not wait for)

        lines += [line for text in texts for line in lines_of(text, source.attributes)]
    return tuple(dict.fromkeys(lines))


CHARGED: Final = "an answer is charged as any other"
"""What is said beside what is known before it is asked."""

_ONE_CANDIDATE: Final = f"candidates: there is one, so that the choice is known; {CHARGED}"

_part_that_decides = re.compile(r"\d|\b(?:and|or|in|false)\b", re.IGNORECASE)


def _has_one_candidate(query: Query) -> bool:
    return query.candidates is not None and len(query.candidates) == 1


def _may_be_decided(text: str) -> bool:
    """Whether the domain may decide a predicate: one comparison with a category alone cuts it in two."""
    return _part_that_decides.search(text) is not None
