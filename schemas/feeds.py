"""Partials, and private progress records of the feeds' and merging's changelogs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, Event, Identifier, Incarnation, Milliseconds


class FirstWindow(Event):
    """Start of the earliest window of all streams with the same ``since``, or with none."""

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
    window to report, ``last`` that of the epoch's last window, once known. ``tally`` counts the
    epoch's windows, except those up to ``until``, which ``own`` counts because other tallies
    include events there that the stream must not count. Each counts events stamped since its
    ``since``, or behind such a mark; without ``since``, all.
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
    running count has ``windows`` windows in its sums, and asks no further questions if some are
    ``lost``.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    reached: int
    windows: Count = 0
    lost: bool = False


class NodeSums(Event):
    """The sums so far over one node of a running count, one per group."""

    incarnation: Incarnation
    sums: tuple[int, ...]
