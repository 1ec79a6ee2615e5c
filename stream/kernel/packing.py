"""Texts out of parts, by the thousand."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Column, Spans, spans_of
from stream.kernel.library import compiled

_LONGEST_NUMBER: Final = 20

Picked = tuple[Spans, Column]
"""Texts, and the number of that which each row has."""
Part = bytes | Spans | Picked | Column
"""What each row has in one place: the same bytes, a text of its own, one of several texts, or a whole number."""


class _Part(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("at", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("which", ctypes.c_void_p),
        ("length", ctypes.c_int64),
    )


def pack(count: int, parts: Sequence[Part]) -> Spans:
    """So many texts, each of all its parts one behind another; whole numbers are written in decimal digits."""
    if (library := compiled()) is None:
        return spans_of([b"".join(row) for row in zip(*map(_spelt, parts, [count] * len(parts)), strict=True)])
    laid_out = (_Part * len(parts))(*map(_laid_out, parts))
    out = np.empty(sum(_room(count, part) for part in parts), dtype=np.uint8)
    at, size = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32)
    written = library.sotto_pack(count, laid_out, len(parts), out.ctypes.data, at.ctypes.data, size.ctypes.data)
    return Spans(out[:written], at, size)


def _laid_out(part: Part) -> _Part:
    if isinstance(part, bytes):
        return _Part(ctypes.cast(ctypes.c_char_p(part), ctypes.c_void_p).value, None, None, None, len(part))
    if isinstance(part, np.ndarray):
        return _Part(None, part.ctypes.data, None, None, 0)
    spans, which = part if isinstance(part, tuple) else (part, None)
    places = None if which is None else which.ctypes.data
    return _Part(spans.data.ctypes.data, spans.at.ctypes.data, spans.size.ctypes.data, places, 0)


def _room(count: int, part: Part) -> int:
    if isinstance(part, bytes):
        return count * len(part)
    if isinstance(part, np.ndarray):
        return count * _LONGEST_NUMBER
    sizes: npt.NDArray[Any] = part[0].size[part[1]] if isinstance(part, tuple) else part.size
    return int(sizes.sum())


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
