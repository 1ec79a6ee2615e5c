"""What the page's forms are answered: what a source declares, how a plan's error runs, what was asked. As ``models``, of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from schemas import Amount, Answer, Source, StreamSpec
from schemas.base import EventId
from schemas.queries import MaxPrice
from stream.monitor.models import SourceRow, View
from stream.sql.statements import MAX_STATEMENT_LENGTH


class AttributeView(View):
    """One attribute of a table: its kind, how many values it has, and what becomes of others, in words."""

    name: str
    kind: Literal["categories", "integers", "bins"]
    size: int
    outside: str


class Declaration(View):
    """What a source declares. ``source`` is what would be registered, with all defaults filled in."""

    source: Source
    attributes: list[AttributeView]
    cells: Annotated[int | None, Field(description="Cells of all attributes together; null for what is no table.")]
    total: Amount
    neighbors: Annotated[str, Field(description="What two neighbouring data sets differ in, in words.")]
    remarks: list[str]


class SourceDetail(View):
    """A source with its budget and what it declares."""

    row: SourceRow
    declaration: Declaration


class CurveRequest(View):
    """A curve of a stream that is only planned: its error against ε, or against the charged answers paid for."""

    stream: StreamSpec
    against: Literal["epsilon", "cutoff"] = "epsilon"


class CurvePoint(View):
    """The promised error at one place; ``vacuous`` where a constant answer would keep it."""

    value: float
    alpha: float
    vacuous: bool


class CurveLine(View):
    """One calibration at all places where it fits."""

    method: str
    points: list[CurvePoint]


class Curve(View):
    """How a plan's error runs. ``chosen`` is the place that was asked for, ``method`` what the stream would get there.

    Not ``complete`` where the time for it was up: the places left out are those of the largest values.
    """

    against: Literal["epsilon", "cutoff"]
    chosen: float | None
    method: str | None
    lines: list[CurveLine]
    complete: bool


class QuestionAnswered(View):
    """The answer to one question, its numbers by what they stand for, and what it added to the stream's loss.

    ``charged`` answers are those that the grant pays for by number, whether or not they add to the loss.
    """

    answer: Answer
    rows: list[dict[str, str | float | int | None]]
    cost: Amount
    charged: int
    warnings: list[str]


class Statement(View):
    """One SELECT. Under the same ``id`` the same statement is asked once, however often it is sent."""

    id: EventId
    statement: Annotated[str, StringConstraints(min_length=1, max_length=MAX_STATEMENT_LENGTH)]
    max_price: Annotated[
        MaxPrice | None,
        Field(
            description="The most that each question of it may cost, an ε or a percentage of the grant; 0 for a dry run."
        ),
    ] = None


class StatementAnswered(View):
    """The rows of a statement; beside each number's column stands that of its bound, with `` ±`` behind its name."""

    stream: str
    columns: list[str]
    rows: list[dict[str, str | float | int | None]]
    cost: Amount
    charged: int
    questions: int
    answers: list[Answer]
    warnings: list[str]
