"""Checkpoints: a stream's mechanism state in the workers' compacted changelog. Nothing private, nothing secret."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Count, Event, Identifier, Incarnation, Reason, SparingEvent, Surplus
from schemas.queries import Cell, Term
from schemas.sources import AttributeName

StreamState = Literal["open", "exhausted", "halted", "closed"]


class Charge(SparingEvent):
    """A stream's totals so far; any ``state`` but ``open`` is final: no answer follows it."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"surplus"})

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    spent: Amount
    reason: Reason | None = None
    surplus: Surplus = 0


class Checkpoint(SparingEvent):
    """All that a successor needs beside the stream's definition: noise is derived anew, never stored.

    ``offset`` is the last query event that the stream answered, −1 before the first. ``due`` is what its partition's
    ``served`` will be when all work that the stream has asked for is done. ``turn`` is that of the last question that a standing
    stream answered: its window's beginning times the number of groups, plus the group's place, plus 1.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"surplus", "turn"})

    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    offset: int
    reason: Reason | None = None
    due: Count = 0
    surplus: Surplus = 0
    turn: Count = 0


class HypothesisUpdate(Event):
    """One step of a stream's public hypothesis: the question as it was asked, which way its answer went and how far.

    A hypothesis is rebuilt from its updates alone, in order of their ``number`` from 0.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    number: Count
    up: bool
    times: Annotated[int, Field(ge=1)] = 1
    terms: tuple[Term, ...] = ()
    cells: tuple[Cell, ...] = ()


class Measurement(Event):
    """What one charged answer measured: the marginal of these attributes and, where numbers were told, the question.

    A ⊤ has its part of ε; a question with an ``alpha`` has ``share`` 2⁻²⁰ths of a ⊤'s whole ε, for its numbers alone where
    there are no attributes. The noise of a ``sum`` is for all values of the attribute or, ``within``, for those that its predicate leaves. The noisy counts are a function of this record, the table and the noise key, and are derived again; the
    estimate is a function of all measurements in order of their ``number`` from 0.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    number: Count
    attributes: tuple[AttributeName, ...] = ()
    terms: tuple[Term, ...] = ()
    sum: AttributeName | None = None
    group_by: tuple[AttributeName, ...] = ()
    share: Annotated[int, Field(ge=1, le=2**62)] | None = None
    within: bool = False


class Progress(Event):
    """How far a partition's input has been answered: the next offset to read.

    ``clock`` is the latest timestamp, in milliseconds, of the questions that cost work, and ``served`` how many nanoseconds
    of work a stream would have been served by then that always had some outstanding.
    """

    wire_omits_defaults: ClassVar[bool] = True

    offset: Count
    clock: Count = 0
    served: Count = 0
