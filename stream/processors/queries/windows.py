"""What the answers of standing streams are about: the window that asks, and its group."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from schemas import Query
from schemas.wire import struct
from stream.processors.rejections import Rejection

About = tuple[Any, Any]
"""The window that asks a question, and its group or None, as answers show them."""

_NO_WINDOW: Final = Rejection(
    "malformed", "window: the windows of its source ask this stream, and nobody else does; ask another stream"
)

_Asking: Any = msgspec.defstruct(
    "_Asking", [], bases=(struct(Query, only=frozenset({"window", "group"})),), forbid_unknown_fields=False
)
_decode_asking = msgspec.json.Decoder(_Asking).decode


def about_of(query: Any) -> About:
    """What a query to a standing stream is about; Rejection if it names no window."""
    if query.window is None:
        raise _NO_WINDOW
    return query.window, query.group


def about_of_event(value: bytes | None) -> About:
    """What an event is about that may be wrong in any other way, if that can be read."""
    if value is None or b'"window"' not in value:
        return None, None
    try:
        asking = _decode_asking(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    return asking.window, asking.group


def quotes_of(about: About) -> int:
    """Quotation marks in a window and a group with none in their texts: two a name and two a text."""
    _, group = about
    return 10 if group is None else 12 + 2 * len(group) + 2 * sum(isinstance(one, str) for one in group.values())
