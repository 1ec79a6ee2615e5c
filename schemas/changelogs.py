"""Charges, partials, and the records of changelogs.

Charges and the workers' changelog have the state of mechanisms, and no private or secret data. Partials and the
changelogs of feeds and merging are private.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

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
    Surplus,
)
from schemas.domains import AttributeName
from schemas.queries import Cell, Term
from schemas.wire import Codec

StreamState = Literal["open", "exhausted", "halted", "closed"]
STREAM_STATES: Final[tuple[StreamState, ...]] = get_args(StreamState)
"""All states, in the order in which a stream passes them."""


class Charge(Event, wire_omits={"surplus"}):
    """A stream's running totals; no answer follows a ``state`` other than ``open``."""

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    spent: Amount
    reason: Reason | None = None
    surplus: Surplus = 0


class Checkpoint(Event, wire_omits={"surplus", "turn"}):
    """The state of a stream that a restore needs beside the stream's definition.

    Noise is never stored, but computed again. ``offset`` is the offset of the last query that the stream answered,
    and −1 before the first. All work that the stream's questions have asked for is done when ``Progress.served``
    reaches ``due``. ``turn`` identifies the last answered question of a standing stream: it is the start
    of the window times the number of groups, plus the group's index, plus 1.
    """

    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    offset: int
    reason: Reason | None = None
    due: Count = 0
    surplus: Surplus = 0
    turn: Count = 0


class HypothesisUpdate(Event, wire_omits_defaults=True):
    """One update of a stream's public hypothesis, which is rebuilt from its updates in order.

    ``number`` counts the updates from 0. The question (``terms`` or ``cells``) moves the hypothesis by
    ``times`` steps, ``up`` or down.
    """

    incarnation: Incarnation
    number: Count
    up: bool
    times: Annotated[int, Field(ge=1)] = 1
    terms: tuple[Term, ...] = ()
    cells: tuple[Cell, ...] = ()


class Measurement(Event, wire_omits_defaults=True):
    """The measurement of one charged answer: a marginal, and the question if it has numbers.

    A ⊤ uses its part of ε. A question with an ``alpha`` uses ``share`` · 2⁻²⁰ of the ε of a ⊤; without
    ``attributes``, no marginal is measured, and the question's numbers use all of that ε. The noise of a ``sum``
    fits all values of the attribute or, with ``within``, only the values that the question's predicate admits.
    The noisy counts are a function of this record, the table and the noise key, and are computed again. The
    estimate is a function of all measurements, in the order of their ``number`` from 0.
    """

    incarnation: Incarnation
    number: Count
    attributes: tuple[AttributeName, ...] = ()
    terms: tuple[Term, ...] = ()
    sum: AttributeName | None = None
    group_by: tuple[AttributeName, ...] = ()
    share: Annotated[int, Field(ge=1, le=2**62)] | None = None
    within: bool = False


class ReleasedTexts(Event, wire_omits_defaults=True):
    """The texts that one answer of a running count released as the first answer.

    Records are read in order of their ``number`` from 0. After the answer with ``last``, the stream releases
    nothing more, because by a noisy test all texts together are too large.
    """

    incarnation: Incarnation
    number: Count
    texts: tuple[str, ...]
    last: bool = False


class Progress(Event, wire_omits_defaults=True):
    """The position up to which a partition's input has been answered: the next offset to read.

    ``clock`` is the latest timestamp, in milliseconds, of the questions that cost work. ``served`` is the work, in
    nanoseconds, that a stream with a question waiting at all times has received up to this time.
    """

    offset: Count
    clock: Count = 0
    served: Count = 0


class FirstWindow(Event, wire_omits_defaults=True):
    """The earliest window start of the streams with the time ``since``; null stands for streams without a time."""

    start: Count
    since: Count | None = None


class FeedProgress(Event, wire_omits_defaults=True):
    """The position up to which a partition of a live topic has been counted: the next offset to read.

    ``clock`` is the partition's clock in milliseconds since 1970, and −1 before its first event. ``stamped``
    is the latest stamp of a mark. ``piece`` is the next free number of a changelog record with counts, and
    ``tally`` the next free number of a tally. A tally has the counts of events by one rule, for one or several
    streams. ``first_windows`` includes streams that have ended.
    """

    offset: Count
    clock: Annotated[int, Field(ge=-1)]
    partitions: Annotated[int, Field(ge=1)]
    piece: Count
    tally: Count
    stamped: Annotated[int, Field(ge=-1)] = -1
    first_windows: tuple[FirstWindow, ...] = ()


class FeedStream(Event, wire_omits_defaults=True):
    """The progress of a partition in an epoch of a standing stream.

    An epoch lasts from an opening, or from an extension after an end, to the next end. ``epoch`` is the number
    of extensions at its beginning.

    - The epoch counts events from ``offset`` on.
    - ``next`` is the start of the next window to report; ``last`` is the start of the epoch's last window, or
      null while that is unknown.
    - The tally with the number ``tally`` counts the windows of the epoch. The windows up to ``until`` are counted
      by a separate tally ``own``, because the shared tally includes events that the stream must not count.
    - ``since`` and ``own_since`` are times, or null: the tallies ``tally`` and ``own`` count the events that are
      stamped at or after this time, or that follow a mark with such a stamp; without a time, all events.
    """

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


class Partial(Event, wire_omits_defaults=True):
    """The counts of one partition of a live topic in one closed window of a standing stream.

    ``cells`` are the row-major indexes of the groups with a nonzero count; without groups, the index is 0.
    The counts of unknown groups are in ``texts``, in the form of ``Query.texts``.
    """

    source: Identifier
    stream: Identifier
    incarnation: Incarnation
    partition: Count
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    start: Milliseconds
    cells: Annotated[tuple[Count, ...], Field(strict=False)]
    counts: Annotated[tuple[int, ...], Field(strict=False)]
    texts: str | None = None


class MergedStream(Event, wire_omits_defaults=True):
    """The progress of merging in a standing stream.

    ``reached`` is the start of the last window that was asked or skipped, and −1 before the first. In a running
    count, ``windows`` is the number of windows in the sums. If windows are ``lost``, no further window is asked.
    """

    incarnation: Incarnation
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    reached: int
    windows: Count = 0
    lost: bool = False


class TextTotals(Event):
    """The counts of a running count's texts in all windows up to now, in the form of ``Query.texts``."""

    incarnation: Incarnation
    texts: str


class NodeSums(Event):
    """The sums of one node of a running count up to now, one for each group."""

    incarnation: Incarnation
    sums: tuple[int, ...]


charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
