"""What the tasks of a live topic keep in their changelog beside the pieces of their counts. All of it is private."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, Event, Identifier, Incarnation, Milliseconds


class FirstWindow(Event):
    """The beginning of the earliest window of all streams for which events count from a stamp ``since`` on; without one, all that come."""

    wire_omits_defaults: ClassVar[bool] = True

    start: Count
    since: Count | None = None


class FeedProgress(Event):
    """How far a partition of a live topic has been counted: the next offset to read.

    ``clock`` is where the partition's clock stands in milliseconds since 1970, −1 before it has begun, and ``stamped`` the latest
    stamp of a mark. ``piece`` and ``tally`` are the numbers that come next. ``first_windows`` are of the streams
    that have begun, ended ones among them.
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
    """How far a partition is with an epoch of a standing stream: from its opening, or an extension after an end, up to its next end.

    ``epoch`` is how many extensions the stream had when the epoch began; earlier versions left it out. It counts from ``offset`` on, and
    ``next`` is the beginning of the window that it tells of next, ``last`` that of the last one, once it is known where the epoch ends.
    ``tally`` counts its windows, but those up to ``until``, which ``own`` counts: others were, or may yet be, counted in them that do not
    count for this stream. Either counts what has a stamp of its ``since`` or later, in milliseconds since 1970, or stands behind a mark
    that has; without one, all that comes.
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
    """What one partition of a live topic has in one window of a standing stream, once it has closed it.

    ``cells`` are those of the stream's groups in row-major order that have a count other than 0, by place; without groups there is one.
    """

    source: Identifier
    stream: Identifier
    incarnation: Incarnation
    partition: Count
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    start: Milliseconds
    cells: Annotated[tuple[Count, ...], Field(strict=False)]
    counts: Annotated[tuple[int, ...], Field(strict=False)]


class MergedStream(Event):
    """How far merging is with a standing stream.

    ``reached`` is the beginning of the last window that was asked or passed over, −1 before the first; of a running count
    ``windows`` is how many windows its sums are about, and ``lost`` says that some are missing, so that nothing more is asked.
    """

    wire_omits_defaults: ClassVar[bool] = True

    incarnation: Incarnation
    partitions: Annotated[int, Field(ge=1, le=1_000_000)]
    reached: int
    windows: Count = 0
    lost: bool = False


class NodeSums(Event):
    """Of a running count, the sums over one node of its windows so far, one a group."""

    incarnation: Incarnation
    sums: tuple[int, ...]
