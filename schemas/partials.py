"""What the tasks of a live topic leave for merging, and what merging keeps of it. All of it is private."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Count, Event, Identifier, Incarnation, Milliseconds


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
