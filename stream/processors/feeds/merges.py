"""The records that merging keeps, and their keys."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from schemas import MergedStream, NodeSums, Progress
from schemas.wire import UNREADABLE, struct
from stream.processors.base import LaterVersionError, RecordLike
from stream.processors.feeds.merged import Merged

PARTIAL: Final = "@partial"
NODE: Final = "@node"

_WireStream: Any = struct(MergedStream)
_WireNode: Any = struct(NodeSums)
_WireProgress: Any = struct(Progress)
_encode = msgspec.json.Encoder().encode
decode_stream: Any = msgspec.json.Decoder(_WireStream).decode
decode_node: Any = msgspec.json.Decoder(_WireNode).decode
decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode


def partial_key(stream: str, start: int, partition: int) -> bytes:
    """The key of what one partition has in an open window."""
    return f"{PARTIAL}|{stream}|{start}|{partition}".encode()


def node_key(stream: str, place: int) -> bytes:
    """The key of a node of a running count."""
    return f"{NODE}|{stream}|{place}".encode()


def kept_stream(merged: Merged) -> bytes:
    """How far a stream is."""
    running = merged.running
    return _encode(
        _WireStream(merged.incarnation, merged.partitions, merged.reached, running.windows, running.lost)
    )


def kept_node(merged: Merged, place: int) -> bytes:
    """A node of a stream's running count."""
    return _encode(_WireNode(merged.incarnation, merged.running.node(place)))


def kept_progress(offset: int) -> bytes:
    """How far the input has been taken in."""
    return _encode(_WireProgress(offset))


def read_kept(record: RecordLike, decode: Any) -> Any:
    """What was kept; LaterVersionError if this version cannot read it."""
    try:
        return decode(record.value)
    except UNREADABLE:
        raise LaterVersionError(record) from None
