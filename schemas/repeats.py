"""Fields given twice: JSON readers take one of the two without a word, and which one differs. Here they are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

import msgspec

REPEATED: Final = "event: a field is given twice; give each field once"
"""What is said of such an event."""

_encode = msgspec.json.Encoder().encode


class _RepeatedError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _RepeatedError


_decoder = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)


def repeats_a_field(data: bytes | str) -> bool:
    """Whether an object in this JSON, which was read without complaint, has a name twice."""
    text, raw = (data, data.encode()) if isinstance(data, str) else (data.decode(), data)
    # What cannot be read and written so, as numbers of very many digits, is looked through name by name.
    with suppress(msgspec.MsgspecError, OverflowError, RecursionError):
        if not may_repeat_a_field(raw, msgspec.json.decode(raw)):
            return False
    try:
        _decoder.decode(text)
    except _RepeatedError:
        return True
    return False


def may_repeat_a_field(data: bytes, event: Any) -> bool:
    """A test in a fraction of the time: False means that no name is there twice.

    ``event`` is what was read: plain objects, or a struct that leaves out defaults. Written again it has each of its names once, and no
    name that ``data`` lacks. Each name takes two quotation marks that are not escaped, so ``data`` has as many of them
    only if it has each name once. Escaped ones are not counted in the event written again, and are in ``data``.
    """
    again = _encode(event)
    return data.count(b'"') != again.count(b'"') - again.count(b'\\"')
