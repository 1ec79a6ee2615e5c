"""Fields given twice: JSON readers take one of the two without a word, and which one differs. Here they are refused."""

from __future__ import annotations

import json
import re
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


MAX_NAMES: Final = 8192
"""Most names of fields, and most objects and lists, in a text of ``MAX_DEFINITION_BYTES``: a definition has at most 5,400."""

MAX_NESTING: Final = 64
"""Deepest nesting of objects and lists."""

MAX_FAULTS: Final = 1000
"""Most faults that are looked at one by one."""

# Possessive, and with the closing mark optional: what begins as a string and never ends is looked through once.
STRING: Final = rb'"(?:[^"\\]|\\.)*+"?'
"""A string of JSON, in a pattern that dots match everything in."""

_string: Final = re.compile(STRING, re.DOTALL)
_BRACKETS: Final = b"{}[]"
_NO_BRACKETS: Final = bytes(letter for letter in range(256) if letter not in _BRACKETS)


def shape_fault(data: bytes | str, *, names: int = MAX_NAMES, nesting: int = MAX_NESTING) -> str | None:
    """Say what is wrong with the shape of a JSON text, valid or not; None if it is within bounds."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    opened = raw.count(b"{") + raw.count(b"[")
    if opened <= nesting and raw.count(b":") <= names:
        return None
    bare = _string.sub(b"", raw)
    if (found := bare.count(b":")) > names:
        return f"{found} fields; give at most {names}"
    if (found := bare.count(b"{") + bare.count(b"[")) > names:
        return f"{found} objects and lists; give at most {names}"
    if _nesting(bare) > nesting:
        return f"nested deeper than {nesting}; give one JSON object with the contract's fields"
    return None


def nesting_of(data: bytes) -> int:
    """The deepest nesting of objects and lists in a JSON text, valid or not."""
    return _nesting(_string.sub(b"", data))


def _nesting(bare: bytes) -> int:
    deepest = depth = 0
    for bracket in bare.translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in b"{[" else -1
        deepest = max(deepest, depth)
    return deepest
