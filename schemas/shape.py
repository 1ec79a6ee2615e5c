"""Bounds of a JSON text's shape, checked before anything is built from it.

A validator makes a fault of every name that it does not know and of every value that it cannot take, and each costs far more than
the bytes that it stands in. All that reads JSON of other people checks it here first.
"""

from __future__ import annotations

import re
from typing import Final

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
