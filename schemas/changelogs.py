"""Charges, partials, and the records of changelogs.

Charges and the workers' changelog have mechanism state without private or secret data. Partials and
the changelogs of feeds and merging are private.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    MAX_DEFINITION_BYTES,
    Amount,
    Count,
    Event,
    Identifier,
    Incarnation,
    Milliseconds,
    Reason,
    SparingEvent,
    Surplus,
)
from schemas.domains import AttributeName
from schemas.queries import Cell, Term
from schemas.wire import Codec

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


class ReleasedTexts(Event):
    """One answer of a running count of texts: the texts that it was the first to release.

    Records are read in order of ``number`` from 0. After the answer that is the ``last``, the stream
    releases nothing: all texts so far are too large, by a noisy test.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    number: Count
    texts: tuple[str, ...]
    last: bool = False


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


class FirstWindow(Event):
    """Start of the earliest window of all streams with the same ``since``, or without ``since``."""

    wire_omits_defaults: ClassVar[bool] = True

    start: Count
    since: Count | None = None


class FeedProgress(Event):
    """How far a partition of a live topic has been counted: the next offset to read.

    ``clock`` is the partition's clock in milliseconds since 1970, −1 before its first event;
    ``stamped`` is the latest stamp of a mark. ``piece`` and ``tally`` are the next free numbers.
    ``first_windows`` covers the streams that have begun, ended ones included.
    """

    wire_omits_defaults: ClassVar[bool] = True

    offset: Count
    clock: Annotated[int, Field(ge=-1)]
    partitions: Annotated[int, Field(ge=1)]
    piece: Count
    tally: Count
    stamped: Annotated[int, Field(ge=-1)] = -1
    first_windows: tuple[FirstWindow, ...] = ()


class FeedStream(Event):
    """Progress of a partition in an epoch of a standing stream.

    An epoch lasts from an opening, or an extension after an end, to the next end; ``epoch`` is the
    number of extensions when it began. It counts from ``offset``. ``next`` is the start of the next
    window to report, ``last`` that of the epoch's last window, once known. The tally with
    number ``tally`` counts the epoch's windows. Windows up to ``until`` are counted by the stream's
    own tally ``own``, because shared tallies include events that the stream must not count. A tally
    counts events with a stamp from ``since`` (``own_since``) on, or after such a mark; null: all.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    offset: Count
    next: Count
    state: Literal["open", "ended"] = "open"
    tally: Count = 0
    own: Count | None = None
    until: Count | None = None
    since: Count | None = None
    own_since: Count | None = None
    epoch: Count | None = None
    last: Annotated[int, Field(ge=-1)] | None = None


class Partial(Event):
    """Counts of one partition of a live topic in one closed window of a standing stream.

    ``cells`` are the row-major indexes of the stream's groups with a nonzero count; 0 without
    groups. The counts of unknown groups are in ``texts``, as in ``Query``.
    """

    wire_omits_defaults: ClassVar[bool] = True

    source: Identifier
    stream: Identifier
    incarnation: Incarnation
    partition: Count
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    start: Milliseconds
    cells: Annotated[tuple[Count, ...], Field(strict=False)]
    counts: Annotated[tuple[int, ...], Field(strict=False)]
    texts: str | None = None


class MergedStream(Event):
    """Progress of merging in a standing stream.

    ``reached`` is the start of the last window that was asked or skipped, −1 before the first. A
    running count has ``windows`` windows in its sums, and asks no further question if windows are
    ``lost``.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    reached: int
    windows: Count = 0
    lost: bool = False


class TextTotals(Event):
    """The counts of a running count's texts in all windows so far, as in ``Query``."""

    incarnation: Incarnation
    texts: str


class NodeSums(Event):
    """The sums so far over one node of a running count, one per group."""

    incarnation: Incarnation
    sums: tuple[int, ...]


charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
