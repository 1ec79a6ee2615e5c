"""Windows: half-open intervals of time, in which standing streams count events; and the names of periods.

All times are whole milliseconds since 1970 in UTC; the start of a window is a multiple of ``every`` since then.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from schemas.base import Event

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT_SPAN: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_ISO_SPAN: Final = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,5})D)?(?:T(?=[0-9])(?:([0-9]{1,7})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MAX_SPAN_MS: Final = 3660 * _UNITS_MS["d"]

MIN_EVERY_MS: Final = 100

MAX_OVERLAP: Final = 64
"""Maximum number of windows that contain the same time."""


@lru_cache(maxsize=4096)
def span_ms(text: str) -> int:
    """Parse a duration, as ``90s``, ``15m``, ``250ms`` or ISO 8601, into milliseconds.

    Raises:
        ValueError: the text is not a duration, or the duration is longer than ten years.
    """
    if (short := _SHORT_SPAN.fullmatch(text)) is not None:
        span = int(short[1]) * _UNITS_MS[short[2]]
    elif (iso := _ISO_SPAN.fullmatch(text)) is not None:
        span = sum(int(part or 0) * _UNITS_MS[unit] for part, unit in zip(iso.groups(), "dhms", strict=True))
    elif text == "0s":
        span = 0
    else:
        raise ValueError("is no span of time with a unit; give one as 90s, 15m, 1h, 2d, or in ISO 8601 as PT15M")
    if span > MAX_SPAN_MS:
        raise ValueError("a span is at most ten years; give a shorter one")
    return span


@lru_cache(maxsize=4096)
def moment_ms(text: str) -> int:
    """Parse a time in ISO 8601 with a zone into milliseconds since 1970.

    Raises:
        ValueError: the text is not a time, or it has no zone, is finer than a millisecond, or is before 1970.
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
def format_moment(milliseconds: int) -> str:
    """Format a time in ISO 8601 and UTC; milliseconds are left out if they are 0."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _check_span(value: Any) -> Any:
    span_ms(value if isinstance(value, str) else "")
    return value


# The check comes first, so that a number without a unit is not called too short.
Span = Annotated[str, StringConstraints(min_length=2, max_length=32), BeforeValidator(_check_span)]
"""A duration, as in ``90s``, ``15m``, ``1h``, ``2d``, or ISO 8601 as in ``PT15M``."""

Moment = Annotated[
    str, StringConstraints(max_length=40), AfterValidator(lambda text: format_moment(moment_ms(text)))
]
"""A time in ISO 8601 with a zone, which is stored in UTC."""


class Windows(Event, wire_omits={"every"}):
    """Windows of the length ``size``, whose starts have the distance ``every``.

    They overlap if ``every`` is shorter than ``size``; the default of ``every`` is ``size``. The k-th window is
    [k·every, k·every + size) since 1970 in UTC.
    """

    size: Span
    every: Span | None = None

    @model_validator(mode="after")
    def _check_sizes(self) -> Windows:
        if self.every_ms < MIN_EVERY_MS:
            raise ValueError(
                f"windows start at least {MIN_EVERY_MS} ms apart; give a longer 'every' (or 'size', without 'every')"
            )
        if self.size_ms % self.every_ms:
            raise ValueError("'size' must be a multiple of 'every'; change one of them")
        if self.overlap > MAX_OVERLAP:
            raise ValueError(f"'size' is more than {MAX_OVERLAP} times 'every'; change one of them")
        return self

    @property
    def size_ms(self) -> int:
        """Length of a window in milliseconds."""
        return span_ms(self.size)

    @property
    def every_ms(self) -> int:
        """Milliseconds from the start of one window to the start of the next."""
        return span_ms(self.every or self.size)

    @property
    def overlap(self) -> int:
        """Number of windows that contain each time."""
        return self.size_ms // self.every_ms

    def first_start_from(self, moment: int) -> int:
        """Return the start of the first window that starts at or after a time."""
        return -(-moment // self.every_ms) * self.every_ms


class Window(Event):
    """One window, from ``start`` up to but not including ``end``, in ISO 8601 and UTC."""

    start: Annotated[str, Field(max_length=40)]
    end: Annotated[str, Field(max_length=40)]


MARK_HEADER: Final = "sotto-mark"
"""The header of a watermark's record in a live topic; such a record has no private data."""

YEAR_10000_MS: Final = 253_402_300_800_000
"""The beginning of the year 10000, which ISO 8601 cannot express."""
NO_MOMENT: Final = -1

_MILLISECOND: Final = timedelta(milliseconds=1)


def parse_event_time(value: Any) -> int:
    """Convert an ISO 8601 time or a number of milliseconds to whole milliseconds since 1970, truncated.

    Returns −1 for any other value, and for times outside the years 1970 to 9999.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return NO_MOMENT
        if moment.tzinfo is None:
            return NO_MOMENT
        value = (moment - _EPOCH) // _MILLISECOND
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < YEAR_10000_MS:
        return value
    return NO_MOMENT


MAX_PARENT_NAME = 96
"""Longest name of a source or stream with periods; each period's name has the period's start after it."""


def period_name(name: str, start: int) -> str:
    """Return the name of a source or stream in the period that starts at a timestamp."""
    return f"{name}@{format_moment(start)}"


_PERIOD_NAME: Final = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z)")


def split_period_name(name: str) -> tuple[str, str] | None:
    """Split the name of a period's source or stream into parent name and start; None for other names.

    Such names are reserved, because Sotto opens periods automatically.
    """
    found = _PERIOD_NAME.fullmatch(name) if name.endswith("Z") else None
    return None if found is None else (found[1], found[2])


def registered_name(name: str) -> str:
    """Return the name of a source or stream without its period."""
    named = split_period_name(name)
    return name if named is None else named[0]
