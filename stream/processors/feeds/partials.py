"""Reading partials."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from schemas import Partial
from schemas.wire import UNREADABLE, struct
from stream.processors.base import RecordLike
from stream.processors.feeds.asking import groups_in
from stream.processors.feeds.told import Told
from stream.processors.unread import Unread

decode_partial: Any = msgspec.json.Decoder(struct(Partial)).decode


def partial_of(record: RecordLike) -> Any | None:
    """The partial that a record holds; None if it is none that this version can read."""
    value = record.value
    if value is None or isinstance(value, Unread):
        return None
    try:
        partial = decode_partial(value)
    except UNREADABLE:
        return None
    return partial if record.key == partial.stream.encode() else None


def fits(partial: Any, told: Told) -> bool:
    """Whether a partial is of a window and of groups that its stream has."""
    cells = partial.cells
    return (
        partial.source == told.source.source
        and partial.partition < partial.partitions
        and partial.start % told.standing.window.every_ms == 0
        and len(cells) == len(partial.counts)
        and all(before < after for before, after in pairwise(cells))
        and (not cells or cells[-1] < groups_in(told))
    )
