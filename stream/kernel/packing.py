"""Texts out of parts, by the thousand."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stream.kernel.columns import Column, Spans, address, spans_of
from stream.kernel.library import compiled

Picked = tuple[Spans, Column]
"""Texts, and the number of that which each row has."""
Part = bytes | Spans | Picked | Column
"""What each row has in one place: the same bytes, a text of its own, one of several texts, or a whole number."""


class _Part(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("which", ctypes.c_void_p),
        ("length", ctypes.c_int64),
    )


def pack(count: int, parts: Sequence[Part]) -> Spans:
    """So many texts, each of all its parts one behind another; whole numbers are written in decimal digits."""
    if (library := compiled()) is None:
        return spans_of([b"".join(row) for row in zip(*map(_spelt, parts, [count] * len(parts)), strict=True)])
    parts = _with_constants_joined(parts)
    laid_out = (_Part * len(parts))(*[_Part(*_laid_out(part)) for part in parts])
    out = np.empty(library.sotto_room(count, laid_out, len(parts)), dtype=np.uint8)
    at, size = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
    written = library.sotto_pack(count, laid_out, len(parts), address(out), address(at), address(size))
    return Spans(out[:written], at, size)


def _with_constants_joined(parts: Sequence[Part]) -> list[Part]:
    """The same with no constant beside another, nor one of nothing."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and found and isinstance(before := found[-1], bytes):
            found[-1] = before + part
        elif not isinstance(part, bytes) or part:
            found.append(part)
    return found


def _laid_out(part: Part) -> tuple[Any, ...]:
    if isinstance(part, bytes):
        return (part, None, None, None, len(part))
    if isinstance(part, np.ndarray):
        return (None, address(part), None, None, 0)
    if isinstance(part, tuple):
        texts, which = part
        return (address(texts.data), address(texts.at), address(texts.size), address(which), 0)
    return (address(part.data), address(part.at), address(part.size), None, 0)


def _spelt(part: Part, count: int) -> Iterator[bytes]:
    if isinstance(part, bytes):
        return iter([part] * count)
    if isinstance(part, np.ndarray):
        return (b"%d" % number for number in part.tolist())
    if not isinstance(part, tuple):
        return iter(part)
    texts, places = part
    used, which = np.unique(places, return_inverse=True)
    listed = list(texts.picked(used))
    return (listed[place] for place in which.tolist())
