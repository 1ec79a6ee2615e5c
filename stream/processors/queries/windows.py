"""What the answers of standing streams are about: the window that asks, and its group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from schemas import Query, moment_ms
from schemas.wire import UNREADABLE, struct
from stream.processors.rejections import Rejection, without_constants


class About(NamedTuple):
    """The window that asks a question, and its group or None, as answers show them.

    ``turn`` grows from each question of a stream to the next: windows ask in their order, and their groups in row-major order.
    """

    window: Any
    group: Any
    turn: int


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a stream's questions name: their attributes, and the place of each in row-major order."""

    by: tuple[str, ...]
    places: Mapping[tuple[str | int, ...], int]

    def place(self, group: Mapping[str, str | int] | None) -> int:
        """The place of a group; Rejection if it is none of the stream's."""
        named = group or {}
        if len(named) == len(self.by):
            try:
                return self.places[tuple([named[name] for name in self.by])]
            except KeyError:
                pass
        attributes = ", ".join(self.by) or "none"
        raise Rejection(
            "malformed",
            f"group: it is none of the stream's; give a declared value of each attribute: {attributes}",
        )


_NO_WINDOW: Final = Rejection(
    "malformed", "window: the windows of its source ask this stream, and nobody else does; ask another stream"
)

_Asking: Any = msgspec.defstruct(
    "_Asking", [], bases=(struct(Query, only=frozenset({"window", "group"})),), forbid_unknown_fields=False
)
_moment_ms = lru_cache(maxsize=64)(moment_ms)
_decode_asking = msgspec.json.Decoder(_Asking).decode


def about_of(query: Any, groups: Groups) -> About:
    """What a query to a standing stream is about; Rejection if it names no window, or none of its groups."""
    if query.window is None:
        raise _NO_WINDOW
    try:
        start = _moment_ms(query.window.start)
    except ValueError as error:
        raise Rejection("malformed", f"window: {error}") from None
    return About(query.window, query.group, start * len(groups.places) + groups.place(query.group) + 1)


def about_of_event(value: bytes | None) -> tuple[Any, Any]:
    """What an event is about that may be wrong in any other way, if that can be read."""
    if value is None or b'"window"' not in value:
        return None, None
    try:
        asking = _decode_asking(without_constants(value))
    except UNREADABLE:
        return None, None
    return asking.window, asking.group


def quotes_of(group: Mapping[str, Any] | None) -> int:
    """Quotation marks in a window and a group with none in their texts: two a name and two a text."""
    return 10 if group is None else 12 + 2 * len(group) + 2 * sum(isinstance(one, str) for one in group.values())
