"""The records that merging keeps, by their keys."""

from __future__ import annotations

from typing import Any, Final

from schemas.wire import UNREADABLE
from stream.processors.base import LaterVersionError, RecordLike

PARTIAL: Final = "@partial"
NODE: Final = "@node"


def partial_key(stream: str, start: int, partition: int) -> bytes:
    """The key of what one partition has in an open window."""
    return f"{PARTIAL}|{stream}|{start}|{partition}".encode()


def node_key(stream: str, place: int) -> bytes:
    """The key of a node of a running count."""
    return f"{NODE}|{stream}|{place}".encode()


def read_kept(record: RecordLike, decode: Any) -> Any:
    """What was kept; LaterVersionError if this version cannot read it."""
    try:
        return decode(record.value)
    except UNREADABLE:
        raise LaterVersionError(record) from None
