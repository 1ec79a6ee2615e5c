"""Moments as events tell them: ISO 8601 with a zone, or milliseconds since 1970; finer ones are cut to milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas.moments import END_MS, NO_MOMENT, moment_of
from stream.data.events.flaws import SECONDS_FROM, SECONDS_TO

Moments = npt.NDArray[np.int64]

_ZERO: Final = ord("0")
_PLAIN: Final = 20
"""The length of ``2013-01-01T05:00:00Z``, which most events have, maybe with milliseconds."""
_FINE: Final = 24
_SIGNS: Final = {4: "-", 7: "-", 10: "T", 13: ":", 16: ":"}
_DIGITS: Final = tuple(place for place in range(19) if place not in _SIGNS)


def moments_of(values: Sequence[Any]) -> Moments:
    """The moment of each value; many alike take a fraction of the time."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            moments = np.array(values, dtype=np.int64)
        except OverflowError:
            pass
        else:
            return np.where((moments >= 0) & (moments < END_MS), moments, NO_MOMENT)
    if kinds == {str} and (found := _alike(values)) is not None:
        return found
    return np.array([moment_of(value) for value in values], dtype=np.int64)


def before_all(times: Moments, first: Moments, clocks: Moments) -> npt.NDArray[np.bool_]:
    """Mark the events to refuse since they are dated before the ``first`` window of every stream.

    An event that stands in the order of time, where the clock is before that window as well, is history and stays: it counts
    nowhere either. A clock below 0 has not begun. Seconds that were taken for milliseconds are refused wherever they stand.
    """
    is_history = (clocks >= 0) & (clocks < first)
    has_seconds = (times >= SECONDS_FROM) & (times < SECONDS_TO)
    return (times < first) & (has_seconds | ~is_history)


def _alike(texts: Sequence[str]) -> Moments | None:
    """The moments of texts that are all written plainly in UTC; None if any is not."""
    width = len(texts[0])
    if width not in {_PLAIN, _FINE} or set(map(len, texts)) != {width}:
        return None
    try:
        letters = np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8).reshape(-1, width)
    except UnicodeEncodeError:
        return None
    columns = np.ascontiguousarray(letters.T)
    digits = columns.astype(np.int64) - _ZERO
    signs = {**_SIGNS, width - 1: "Z"} | ({19: "."} if width == _FINE else {})
    places = [*_DIGITS, *((20, 21, 22) if width == _FINE else ())]
    numeric = digits[places]
    if (
        any((columns[place] != ord(sign)).any() for place, sign in signs.items())
        or ((numeric < 0) | (numeric > 9)).any()
    ):
        return None
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10)
    hour, minute, second = _number(digits, 11, 13), _number(digits, 14, 16), _number(digits, 17, 19)
    if (
        (month < 1) | (month > 12) | (day < 1) | (hour > 23) | (minute > 59) | (second > 59) | (year < 1970)
    ).any():
        return None
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    if (day > (months + 1).astype("datetime64[D]").astype(np.int64) - first).any():
        return None
    whole: Moments = (((first + day - 1) * 24 + hour) * 60 + minute) * 60 + second
    whole *= 1000
    if width == _FINE:
        whole += _number(digits, 20, 23)
    return whole


def _number(digits: Moments, start: int, end: int) -> Moments:
    found: Moments = digits[start].copy()
    for place in range(start + 1, end):
        found *= 10
        found += digits[place]
    return found
