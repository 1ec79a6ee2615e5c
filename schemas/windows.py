"""Windows: spans of time, and the half-open intervals that standing streams are asked about.

All times are whole milliseconds since 1970 in UTC; windows are aligned to that moment.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from schemas.base import Event, SparingEvent

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_ISO: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,5})D)?(?:T(?=[0-9])(?:([0-9]{1,7})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MAX_SPAN_MS: Final = 3660 * _UNITS_MS["d"]
"""Longest span: ten years."""

MIN_WINDOW_MS: Final = 100
"""Shortest step from one window to the next."""

MAX_OVERLAP: Final = 64
"""Most windows that one moment lies in."""


@lru_cache(maxsize=4096)
def span_ms(text: str) -> int:
    """The milliseconds of a span as ``90s``, ``15m``, ``1h``, ``2d``, ``250ms``, or in ISO 8601 as ``PT15M`` or ``P1DT12H``.

    Raises:
        ValueError: it is no span, or longer than ten years.
    """
    if (short := _SHORT.fullmatch(text)) is not None:
        span = int(short[1]) * _UNITS_MS[short[2]]
    elif (iso := _ISO.fullmatch(text)) is not None:
        span = sum(int(part or 0) * _UNITS_MS[unit] for part, unit in zip(iso.groups(), "dhms", strict=True))
    elif text == "0s":
        span = 0
    else:
        raise ValueError("give a span of time as 90s, 15m, 1h, 2d, or in ISO 8601 as PT15M")
    if span > MAX_SPAN_MS:
        raise ValueError("a span is at most ten years; give a shorter one")
    return span


@lru_cache(maxsize=4096)
def moment_ms(text: str) -> int:
    """The milliseconds since 1970 of a moment in ISO 8601 with a zone, as ``2013-01-01T05:00:00Z``.

    Raises:
        ValueError: it is no moment, names no zone, or is finer than a millisecond or before 1970.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("give a moment in ISO 8601 with a zone, as 2013-01-01T05:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("the moment names no zone; end it with Z for UTC, or with an offset as +01:00")
    since, rest = divmod(moment - _EPOCH, timedelta(milliseconds=1))
    if rest or since < 0:
        raise ValueError("a moment is a whole number of milliseconds, from 1970 on")
    return since


@lru_cache(maxsize=1024)
def written_moment(milliseconds: int) -> str:
    """A moment in ISO 8601, in UTC and with as few digits as it takes."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _is_span(text: str) -> str:
    span_ms(text)
    return text


def _is_moment(text: str) -> str:
    return written_moment(moment_ms(text))


Span = Annotated[str, StringConstraints(min_length=2, max_length=32), AfterValidator(_is_span)]
"""A span of time, as in ``90s``, ``15m``, ``1h``, ``2d``, or ISO 8601 as in ``PT15M``."""

Moment = Annotated[str, StringConstraints(max_length=40), AfterValidator(_is_moment)]
"""A moment in ISO 8601 with a zone; kept in UTC."""


class Windows(SparingEvent):
    """Windows of one ``size``, of which one begins ``every`` so often: each moment lies in ``size / every`` of them.

    Without ``every`` they follow upon each other. The k-th is [k·every, k·every + size) since 1970 in UTC.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"every"})

    size: Span
    every: Span | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Windows:
        if self.every_ms < MIN_WINDOW_MS:
            raise ValueError(f"windows are at least {MIN_WINDOW_MS} ms apart; give a longer size, or every")
        if self.size_ms % self.every_ms:
            raise ValueError("size must be a multiple of every; change one of them")
        if self.overlap > MAX_OVERLAP:
            raise ValueError(f"size is more than {MAX_OVERLAP} times every; change one of them")
        return self

    @property
    def size_ms(self) -> int:
        """The length of a window."""
        return span_ms(self.size)

    @property
    def every_ms(self) -> int:
        """The step from the beginning of one window to that of the next."""
        return span_ms(self.every or self.size)

    @property
    def overlap(self) -> int:
        """How many windows each moment lies in."""
        return self.size_ms // self.every_ms

    def first_from(self, moment: int) -> int:
        """The beginning of the first window that begins at a moment or after it."""
        return -(-moment // self.every_ms) * self.every_ms


class Window(Event):
    """One window, from ``start`` up to but not including ``end``, in ISO 8601 and UTC."""

    start: Annotated[str, Field(max_length=40)]
    end: Annotated[str, Field(max_length=40)]


MARK_HEADER: Final = "sotto-mark"
"""The header of a record that tells the time of all that follows it: no event, and nothing private."""

END_MS: Final = 253_402_300_800_000
"""The year 10000, which no moment can be written in."""
NO_MOMENT: Final = -1

_MILLISECOND: Final = timedelta(milliseconds=1)


def moment_of(value: Any) -> int:
    """The milliseconds since 1970 of ISO 8601 with a zone, or of milliseconds; −1 for what is no moment from 1970 to 9999.

    Finer ones are cut to milliseconds.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return NO_MOMENT
        if moment.tzinfo is None:
            return NO_MOMENT
        value = (moment - _EPOCH) // _MILLISECOND
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < END_MS:
        return value
    return NO_MOMENT
