"""Warns about questions whose answer follows from the declared domain, such as ``age >= 0``.

Such questions are answered and charged as usual. Warnings use only public data: the question and
the source's definition.
"""

from __future__ import annotations

import re
from typing import Final

from schemas import Query, Source, TableSource


def predicates_of(query: Query) -> tuple[str, ...]:
    """Return all predicates of a question."""
    terms, candidates = query.terms or (), query.candidates or ()
    texts = (
        query.where,
        query.rate,
        *(term.where for term in terms),
        *(candidate.where for candidate in candidates),
    )
    return tuple(text for text in texts if text is not None)


def is_about_table(query: Query) -> bool:
    """Whether a question is about a table, and not about values that the query carries."""
    return query.value is None and query.values is None and query.category is None


def warn_about_domains(source: Source, query: Query) -> tuple[str, ...]:
    """Return a warning for each comparison or predicate that holds for every row or for no row.

    A choice with only one candidate gets a warning too. Unknown categories and invalid predicates
    get none, because workers refuse them.
    """
    lines = [_ONE_CANDIDATE_WARNING] if query.candidates is not None and len(query.candidates) == 1 else []
    texts = [text for text in predicates_of(query) if _deciding_pattern.search(text)]
    if texts and isinstance(source, TableSource):
        from stream.questions.predicate_limits import warn_about_predicate  # noqa: PLC0415  (the SQL parser is slow to import)

        lines += [line for text in texts for line in warn_about_predicate(text, source.attributes)]
    return tuple(dict.fromkeys(lines))


CHARGED_AS_USUAL_TEXT: Final = "an answer is charged as any other"
"""The last words of a warning about a question whose answer is known in advance."""

_ONE_CANDIDATE_WARNING: Final = (
    f"candidates: with one candidate the choice is known in advance; {CHARGED_AS_USUAL_TEXT}"
)

_deciding_pattern = re.compile(r"\d|\b(?:and|or|in|false)\b", re.IGNORECASE)
