"""Queries: the questions that producers send."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from schemas.base import (
    MAX_EVENT_BYTES,
    MAX_MAGNITUDE,
    Event,
    EventId,
    Number,
    OneOf,
    PrivateNumber,
    text_matching,
)
from schemas.domains import AttributeName
from schemas.mechanisms import MAX_CATEGORIES
from schemas.windows import Window
from schemas.wire import Codec

Group = dict[AttributeName, str | int | float]
"""One group of a standing stream: the value of each attribute; a bin is written as ``[0, 10)``."""

MAX_PREDICATE_LENGTH = 2048

MAX_CANDIDATES = 256
"""Maximum number of candidates, cells or terms in one query, and of sums in one query of a running count."""

MAX_VALUES = 1664
"""Maximum number of ``values`` in one query, so that a quantile's counts, one for each value, fit into an event."""

MAX_VALUE_COUNT = 99_999_999
"""Largest count of one value of an attribute in a window's quantile; larger counts are lowered to it."""

MAX_BOUND = 2**31 - 1
"""Largest ``bound`` of a person's sum, and largest ``min_rows``."""

MAX_QUANTILES = 32

MAX_WEIGHT = 1024.0
"""Largest absolute weight in a query."""

_PRICE_MESSAGE: Final = "give an ε from 0 to 1000, as 0.1, or a part of the stream's grant in quotes, as '10%'"

Where = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PREDICATE_LENGTH)]
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
Percentage = Annotated[
    str, text_matching(r"^(100|[1-9]?[0-9](\.[0-9]{1,6})?)%$", "give a part of the grant from 0% to 100%, as 10%")
]
MaxPrice = Annotated[Annotated[float, Field(ge=0.0, le=1000.0)] | Percentage, OneOf(_PRICE_MESSAGE)]
"""The most that an answer may cost: an ε, or a part of the grant with which the stream was opened."""
WantedAlpha = Annotated[float, Field(gt=0.0, le=MAX_MAGNITUDE)]

QuantileLevel = Annotated[float, Field(ge=0.0, le=1.0)]
Quantiles = Annotated[
    QuantileLevel
    | Annotated[tuple[QuantileLevel, ...], Field(min_length=1, max_length=MAX_QUANTILES, strict=False)],
    OneOf(f"give a number from 0 to 1, as 0.5, or a list of at most {MAX_QUANTILES} of them"),
]


class Candidate(Event):
    """One of several choices, with a score: a trusted ``value``, or a count or sum.

    With ``people``, the score is the number of people who have a row that satisfies ``where``.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    value: PrivateNumber | None = None
    where: Where | None = None
    sum: AttributeName | None = None
    people: bool = False


class Term(Event, wire_omits_defaults=True):
    """One part of a weighted linear query: ``weight`` for every row that satisfies ``where``."""

    where: Where
    weight: Weight = 1.0


class Cell(Event, wire_omits_defaults=True):
    """One cell, as the values of its attributes, with its weight in the query."""

    at: Annotated[dict[AttributeName, str | int | float], Field(min_length=1, max_length=64)]
    weight: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0


class Query(Event, wire_omits_defaults=True):
    """One question to one stream, in exactly one form that the stream's mechanism accepts.

    * ``value`` or ``values``: trusted numbers of any size.
    * ``category``: one person's category, which may be any string.
    * ``where``: the number of rows that satisfy the predicate. With ``fraction``, their share of all rows.
    * ``sum`` or ``mean``: the sum or mean of this attribute over the rows of ``where``, or without it over all rows.
    * ``quantile``: the value of this ordered attribute below which a share ``q`` of the rows of ``where`` lies. The
      default of ``q`` is 0.5, the median; a list ``q`` asks for several values. The answer's ``alpha`` is a
      number of rows.
    * ``iqr``, ``variance`` or ``stddev``: the distance of this attribute's quartiles, its population variance, or
      its standard deviation, over the rows of ``where``.
    * ``people``: the number of people with a row that satisfies ``where`` or, without it, with any row. With
      ``min_rows``, the number of people with at least ``min_rows`` such rows. With ``group_by``, the number of
      people with a counted row in each cell. Without a person column, each row is one person.
    * ``person_sum``: the total of all people's sums of this attribute, each clamped to the range from ``-bound`` to
      ``bound``.
    * ``group_by``: the counts of the cells of these attributes, over the rows of ``where``. With ``top``, only the
      ``top`` largest noisy counts, in decreasing order. With a statistic or ``rate``, one number for each cell.
    * ``rate``: the share of the rows of ``where`` that satisfy this predicate.
    * ``terms``: a weighted sum of predicates. ``cells``: a weighted sum of single cells.
    * ``candidates``: named scores, of which one is chosen.
    * ``texts``: the counts of the texts of a window, from a feed. They are base64 of MessagePack, a map from each
      text's bytes to its count, or null if the texts exceed the plan's limit.

    Private fields (the trusted numbers and the category) never cause a refusal. Numbers are read as exact decimals,
    and a value is rounded to its source's grid in exact arithmetic. ``threshold`` is public and replaces the stream's
    threshold for this query.

    ``alpha`` is the requested error in the question's unit, and is public; the query is charged the least ε that keeps
    to it. Streams of laplace over tables, and of pmw with an estimate, accept it for ``where``, ``terms``, ``sum`` and
    ``group_by``, and for ``fraction`` if the number of rows is public. They also accept ``max_price``: a question
    that may cost more is rejected without a charge, and the rejection has the question's price. ``max_price`` 0 is a
    dry run.

    Examples:
        >>> query = Query(id="q-1", stream="counts", where="age >= 65")
        >>> client.ask(query).id
        'q-1'
    """

    id: EventId
    stream: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    value: PrivateNumber | None = None
    where: Where | None = None
    threshold: Annotated[Number | None, Field()] = None
    values: (
        Annotated[tuple[PrivateNumber, ...], Field(min_length=1, max_length=MAX_VALUES, strict=False)] | None
    ) = None
    category: str | None = None
    fraction: bool = False
    sum: AttributeName | None = None
    mean: AttributeName | None = None
    quantile: AttributeName | None = None
    q: Quantiles | None = None
    iqr: AttributeName | None = None
    variance: AttributeName | None = None
    stddev: AttributeName | None = None
    group_by: Annotated[tuple[AttributeName, ...], Field(min_length=1, max_length=64, strict=False)] | None = None
    candidates: (
        Annotated[tuple[Candidate, ...], Field(min_length=1, max_length=MAX_CANDIDATES, strict=False)] | None
    ) = None
    terms: Annotated[tuple[Term, ...], Field(min_length=1, max_length=MAX_CANDIDATES, strict=False)] | None = None
    cells: Annotated[tuple[Cell, ...], Field(min_length=1, max_length=MAX_CANDIDATES, strict=False)] | None = None
    alpha: WantedAlpha | None = None
    people: bool = False
    window: Window | None = None
    group: Group | None = None
    max_price: MaxPrice | None = None
    rate: Where | None = None
    min_rows: Annotated[int, Field(ge=1, le=MAX_BOUND)] | None = None
    person_sum: AttributeName | None = None
    bound: Annotated[int, Field(ge=1, le=MAX_BOUND)] | None = None
    top: Annotated[int, Field(ge=1, le=MAX_CATEGORIES)] | None = None
    texts: str | None = None

    @model_validator(mode="after")
    def _require_one_question(self) -> Query:
        form_of(self)
        return self


Form = Literal[
    "value",
    "values",
    "category",
    "count",
    "people",
    "fraction",
    "sum",
    "mean",
    "quantile",
    "iqr",
    "variance",
    "stddev",
    "groups",
    "terms",
    "cells",
    "candidates",
    "rate",
    "people_groups",
    "person_sum",
    "texts",
]

QUESTION_FIELDS: Final[tuple[tuple[str, Form, bool], ...]] = (
    ("value", "value", False),
    ("values", "values", False),
    ("category", "category", False),
    ("sum", "sum", True),
    ("mean", "mean", True),
    ("rate", "rate", True),
    ("person_sum", "person_sum", True),
    ("quantile", "quantile", True),
    ("iqr", "iqr", True),
    ("variance", "variance", True),
    ("stddev", "stddev", True),
    ("group_by", "groups", True),
    ("terms", "terms", False),
    ("cells", "cells", False),
    ("candidates", "candidates", False),
    ("texts", "texts", False),
)
"""The fields that ask a question, each with the question's form, and whether ``where`` may be given too."""

STATISTICS: Final = ("quantile", "iqr", "variance", "stddev")
"""Forms about one ordered attribute; with ``group_by`` they ask for one number for each cell."""

COMPANION_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "where": ("people", "min_rows"),
    "people": ("min_rows",),
    "rate": ("group_by",),
    "quantile": ("group_by", "q"),
    **dict.fromkeys(STATISTICS[1:], ("group_by",)),
    "person_sum": ("bound",),
    "group_by": ("people", "top"),
}
"""For some fields that ask a question, the further fields that may be given with them."""

_SEPARATE_QUESTIONS: Final = "ask for the other in a separate question"
_REMEDIES: Final = dict.fromkeys(
    ("sum, group_by", "mean, group_by"), "ask in SQL with GROUP BY, or for each group"
)

_FRACTION_ALONE: Final = "fraction: belongs to where; give both"
_NO_QUESTION: Final = (
    "give exactly one question: value, where, people, sum, mean, group_by, terms, cells, candidates …"
)


def form_of(query: Any) -> Form:
    """Return the form of a ``Query`` or its struct; ValueError if it contains no question, or several."""
    if _asks_by_where_alone(query):
        if query.people and query.fraction:
            raise ValueError(
                "people, fraction: give exactly one of them; for a share of people, divide two counts of people"
            )
        if query.min_rows is not None or query.bound is not None or query.top is not None:
            _require_companions(query, "where")
        return "people" if query.people else "fraction" if query.fraction else "count"
    found = [one for one in QUESTION_FIELDS if getattr(query, one[0]) is not None]
    _check_quantiles(query)
    if len(found) > 1 and found[1][0] in COMPANION_FIELDS.get(found[0][0], ()):
        del found[1]
    if len(found) > 1:
        names = f"{found[0][0]}, {found[1][0]}"
        raise ValueError(f"{names}: give exactly one of them; {_REMEDIES.get(names, _SEPARATE_QUESTIONS)}")
    if not found:
        if query.people and not query.fraction:
            _require_companions(query, "people")
            return "people"
        raise ValueError(_FRACTION_ALONE if query.fraction else _NO_QUESTION)
    field, form, where_allowed = found[0]
    if query.fraction or (query.people and field != "group_by"):
        raise ValueError(
            f"{'fraction' if query.fraction else 'people'}: belongs to where alone; remove it or {field}"
        )
    if query.where is not None and not where_allowed:
        raise ValueError(f"{field}, where: give exactly one of them; {_SEPARATE_QUESTIONS}")
    _require_companions(query, field)
    return "people_groups" if query.people else form


def _require_companions(query: Any, field: str) -> None:
    """Refuse further fields that do not belong to the question ``field``, and a missing ``bound``."""
    allowed = COMPANION_FIELDS.get(field, ())
    if query.min_rows is not None and not (query.people and "min_rows" in allowed):
        raise ValueError("min_rows: belongs to people without group_by; add people, or remove min_rows")
    if query.bound is not None and "bound" not in allowed:
        raise ValueError("bound: belongs to person_sum; name the attribute in person_sum, or remove bound")
    if query.top is not None and "top" not in allowed:
        raise ValueError("top: belongs to group_by; name the attributes in group_by, or remove top")
    if query.person_sum is not None and query.bound is None:
        raise ValueError("bound: is missing; give the most that one person's sum may count")


def _check_quantiles(query: Any) -> None:
    """Refuse ``q`` without ``quantile``, and several quantiles of each group."""
    if query.q is None:
        return
    if query.quantile is None:
        raise ValueError("q: belongs to quantile; name the attribute in quantile, or remove q")
    if query.group_by is not None and isinstance(query.q, list | tuple):
        raise ValueError("q: with group_by, give one number; ask for other quantiles in separate questions")


def _asks_by_where_alone(query: Any) -> bool:
    """Recognize the most common form quickly: ``where`` without another field that asks a question."""
    return (
        query.where is not None
        and query.value is None
        and query.values is None
        and query.category is None
        and query.sum is None
        and query.mean is None
        and query.quantile is None
        and query.q is None
        and query.iqr is None
        and query.variance is None
        and query.stddev is None
        and query.group_by is None
        and query.terms is None
        and query.cells is None
        and query.candidates is None
        and query.rate is None
        and query.person_sum is None
        and query.texts is None
    )


query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
