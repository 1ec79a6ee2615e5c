"""Charges, and the workers' changelog: mechanism state without private or secret data."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Count, Event, Identifier, Incarnation, Reason, SparingEvent, Surplus
from schemas.domains import AttributeName
from schemas.queries import Cell, Term

StreamState = Literal["open", "exhausted", "halted", "closed"]


class Charge(SparingEvent):
    """A stream's totals so far; no answer follows a ``state`` other than ``open``."""

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
    """The state that a restore needs beside the stream's definition.

    Noise is computed again, never stored. ``offset`` is the last query that the stream answered, −1
    before the first. ``due`` is the value of the partition's ``served`` at which all requested work
    of the stream is done. ``turn`` belongs to the last answered question of a standing stream: the
    start of its window times the number of groups, plus the group's index, plus 1.
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
    """One update of a stream's public hypothesis, which is rebuilt in order of ``number`` from 0.

    The question (``terms`` or ``cells``) moves the hypothesis ``times`` steps, ``up`` or down.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    number: Count
    up: bool
    times: Annotated[int, Field(ge=1)] = 1
    terms: tuple[Term, ...] = ()
    cells: tuple[Cell, ...] = ()


class Measurement(Event):
    """The measurement of one charged answer: a marginal, and the question if it has numbers.

    A ⊤ uses its part of ε. A question with an ``alpha`` uses ``share`` 2⁻²⁰ths of a ⊤'s ε, all of
    it for its numbers if there are no attributes. The noise of a ``sum`` covers all values of the
    attribute or, with ``within``, those that its predicate admits. The noisy counts are a function
    of this record, the table and the noise key, and are computed again; the estimate is a function
    of all measurements in order of their ``number`` from 0.
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

    ``clock`` is the latest timestamp, in milliseconds, of the questions that cost work; ``served``
    is the work, in nanoseconds, that a stream with continuously pending questions would have
    received by then.
    """

    wire_omits_defaults: ClassVar[bool] = True

    offset: Count
    clock: Count = 0
    served: Count = 0
