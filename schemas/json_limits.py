"""Limits on JSON texts: repeated fields, size and nesting are refused.

JSON readers silently take one of two fields with the same name, some the first, some the last.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Final

import msgspec

REPEATED_FIELD: Final = "event: a field is given twice; give each field once"

_encode = msgspec.json.Encoder().encode


class _RepeatedError(Exception):
    pass


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _RepeatedError


_decoder = json.JSONDecoder(object_pairs_hook=_require_unique, parse_int=str, parse_float=str)


def repeats_a_field(data: bytes | str) -> bool:
    """Return True if an object in this valid JSON text repeats a name."""
    text, raw = (data, data.encode()) if isinstance(data, str) else (data.decode(), data)
    # Texts that msgspec cannot decode and encode again (very long numbers) are checked name by name.
    with suppress(msgspec.MsgspecError, OverflowError, RecursionError):
        if not may_repeat_a_field(raw, msgspec.json.decode(raw)):
            return False
    try:
        _decoder.decode(text)
    except _RepeatedError:
        return True
    return False


def may_repeat_a_field(data: bytes, event: Any) -> bool:
    """Test quickly for repeated names; False means that no name is repeated.

    ``event`` is the decoded text: plain objects, or a struct that leaves out defaults. Encoding it
    gives each name once, and no name that ``data`` lacks. A name takes two unescaped quotation marks,
    so both texts have equally many only if ``data`` has each name once. Escaped marks are subtracted
    in the encoded event only, so a text with escaped marks may be reported without a repeat.
    """
    again = _encode(event)
    return data.count(b'"') != again.count(b'"') - again.count(b'\\"')


MAX_NAMES: Final = 8192
"""Most fields, and most objects and lists, in a text; a definition has at most 5,400."""

MAX_NESTING: Final = 64

MAX_FAULTS: Final = 1000
"""Most faults that are described one by one."""

# Possessive, with an optional closing quote: an unterminated string is scanned only once.
STRING: Final = rb'"(?:[^"\\]|\\.)*+"?'
"""Pattern of a JSON string, for re.DOTALL."""

_string: Final = re.compile(STRING, re.DOTALL)
_BRACKETS: Final = b"{}[]"
_NO_BRACKETS: Final = bytes(letter for letter in range(256) if letter not in _BRACKETS)


def shape_fault(data: bytes | str, *, names: int = MAX_NAMES, nesting: int = MAX_NESTING) -> str | None:
    """Describe how a JSON text, valid or not, exceeds the limits; None if it does not."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    opened = raw.count(b"{") + raw.count(b"[")
    if opened <= nesting and raw.count(b":") <= names:
        return None
    structure = _string.sub(b"", raw)
    if (found := structure.count(b":")) > names:
        return f"{found} fields; give at most {names}"
    if (found := structure.count(b"{") + structure.count(b"[")) > names:
        return f"{found} objects and lists; give at most {names}"
    if _deepest_nesting(structure) > nesting:
        return f"nested deeper than {nesting}; give one JSON object with the contract's fields"
    return None


def nesting_of(data: bytes) -> int:
    """Return the deepest nesting of objects and lists in a JSON text, valid or not."""
    return _deepest_nesting(_string.sub(b"", data))


def _deepest_nesting(structure: bytes) -> int:
    deepest = depth = 0
    for bracket in structure.translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in b"{[" else -1
        deepest = max(deepest, depth)
    return deepest
