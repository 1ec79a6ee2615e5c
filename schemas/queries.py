"""Queries: what producers ask."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from pydantic import Field, StringConstraints, model_validator

from schemas.base import MAX_MAGNITUDE, Event, EventId, Number, OneOf, PrivateNumber, matching
from schemas.sources import AttributeName
from schemas.windows import Window

Group = dict[AttributeName, str | int]
"""One group of a standing stream: the value of each attribute; of a binned one its bin, as ``[0, 10)``."""

MAX_PREDICATE_LENGTH = 2048
"""Longest predicate in characters."""

MAX_CANDIDATES = 256
"""Most candidates, cells, terms or trusted values in one query."""

MAX_WEIGHT = 1024.0
"""Largest absolute weight in a query."""

_FORMS_OF_PRICE: Final = "give an ε from 0 to 1000, as 0.1, or a part of the stream's grant in quotes, as '10%'"

Where = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PREDICATE_LENGTH)]
Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
Percentage = Annotated[
    str, matching(r"^(100|[1-9]?[0-9](\.[0-9]{1,6})?)%$", "give a part of the grant from 0% to 100%, as 10%")
]
"""A part of a stream's grant."""
MaxPrice = Annotated[Annotated[float, Field(ge=0.0, le=1000.0)] | Percentage, OneOf(_FORMS_OF_PRICE)]
"""The most that an answer may cost: an ε, or a part of the grant with which its stream was opened."""
WantedAlpha = Annotated[float, Field(gt=0.0, le=MAX_MAGNITUDE)]


class Candidate(Event):
    """One of several things to choose from: a trusted ``value`` as its score, or what a table counts or sums.

    With ``people`` it counts people who have a row that satisfies ``where``, not rows.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    value: PrivateNumber | None = None
    where: Where | None = None
    sum: AttributeName | None = None
    people: bool = False


class Term(Event):
    """One part of a weighted linear query: ``weight`` for every row that satisfies ``where``."""

    wire_omits_defaults: ClassVar[bool] = True

    where: Where
    weight: Weight = 1.0


class Cell(Event):
    """One element of a universe, by the value of each of its attributes, and its weight in the query."""

    wire_omits_defaults: ClassVar[bool] = True

    at: Annotated[dict[AttributeName, str | int | float], Field(min_length=1, max_length=64)]
    weight: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0


class Query(Event):
    """One question to one stream, in exactly one form; which forms a stream takes, its mechanism says.

    * ``value``, ``values``: trusted numbers, of any size; ``category``: one person's own category, any string.
    * ``where``: how many rows satisfy the predicate; with ``fraction`` which share of all rows; with ``sum`` or ``mean``
      of an attribute over those rows (over all rows if ``where`` is not given).
    * ``people``: how many people have a row that satisfies ``where``, or any row if there is none. Without persons, each row is one.
    * ``group_by``: the counts of the cells of these attributes, over the rows of ``where``.
    * ``terms``: a weighted sum of predicates; ``cells``: a weighted sum of single cells.
    * ``candidates``: named scores to choose from.

    What is private (these numbers, the category) is never a reason to refuse a query. Numbers are the decimals that are
    written: a value is rounded to its feed's grid in exact arithmetic. ``threshold`` is public and replaces the stream's
    own for this query. ``alpha`` is public too, and the error that the answer must keep to, in the unit of what is asked: it
    is charged the least that keeps it. Streams of laplace over tables take it, and those of pmw that answer from an
    estimate, beside ``where``, ``terms``, ``sum`` and ``group_by``, and beside ``fraction`` where the number of rows is public.
    The same streams take ``max_price``: a question that may cost more is rejected and costs nothing, and the answer has its price.
    With 0 it is a dry run.
    """

    wire_omits_defaults: ClassVar[bool] = True

    id: EventId
    stream: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    value: PrivateNumber | None = None
    where: Where | None = None
    threshold: Annotated[Number | None, Field()] = None
    values: (
        Annotated[tuple[PrivateNumber, ...], Field(min_length=1, max_length=MAX_CANDIDATES, strict=False)] | None
    ) = None
    category: str | None = None
    fraction: bool = False
    sum: AttributeName | None = None
    mean: AttributeName | None = None
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

    @model_validator(mode="after")
    def _one_question(self) -> Query:
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
    "groups",
    "terms",
    "cells",
    "candidates",
]
"""The forms of a question."""


class QueryLike(Protocol):
    """A query, or its struct on the fast path."""

    @property
    def where(self) -> str | None: ...  # noqa: D102
    @property
    def fraction(self) -> bool: ...  # noqa: D102
    @property
    def people(self) -> bool: ...  # noqa: D102


QUESTION_FIELDS: Final[tuple[tuple[str, Form, bool], ...]] = (
    ("value", "value", False),
    ("values", "values", False),
    ("category", "category", False),
    ("sum", "sum", True),
    ("mean", "mean", True),
    ("group_by", "groups", True),
    ("terms", "terms", False),
    ("cells", "cells", False),
    ("candidates", "candidates", False),
)
"""The field that makes a form, the form, and whether ``where`` may stand beside it."""


def form_of(query: QueryLike) -> Form:
    """The form of a question.

    Raises:
        ValueError: the query asks nothing or several things at once.
    """
    if _asks_by_where_alone(query):
        if query.people and query.fraction:
            raise ValueError("people, fraction: give exactly one of them; ask for the people and for all of them")
        return "people" if query.people else "fraction" if query.fraction else "count"
    found = [(field, form, beside) for field, form, beside in QUESTION_FIELDS if getattr(query, field) is not None]
    if len(found) > 1:
        raise ValueError(f"{found[0][0]}, {found[1][0]}: give exactly one of them; ask the other by itself")
    if not found:
        if query.people and not query.fraction:
            return "people"
        raise ValueError(
            "give exactly one question: value, where, people, sum, mean, group_by, terms, cells, candidates …"
        )
    field, form, where_allowed = found[0]
    if query.fraction or query.people:
        raise ValueError(
            f"{'fraction' if query.fraction else 'people'}: goes with where alone; remove it or {field}"
        )
    if query.where is not None and not where_allowed:
        raise ValueError(f"{field}, where: give exactly one of them; ask the other by itself")
    return form


def _asks_by_where_alone(query: Any) -> bool:
    """Whether there is a predicate and no field that makes another form: what is asked most, at a fraction of the time."""
    return (
        query.where is not None
        and query.value is None
        and query.values is None
        and query.category is None
        and query.sum is None
        and query.mean is None
        and query.group_by is None
        and query.terms is None
        and query.cells is None
        and query.candidates is None
    )
