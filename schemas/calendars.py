"""Calendar cells: days, weeks, months and hours between two dates, and parts of dates.

Dates are numbers of days since 1970; times are microseconds since 1970 in UTC. The day of a time is the local day of
the zone, so a day on which clocks change has 23 or 25 hours.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, Literal
from zoneinfo import ZoneInfo

Granularity = Literal["hour", "day", "week", "month", "quarter", "year", "weekday", "hour-of-day", "month-of-year"]

DATE_PARTS: Final = {"weekday": (1, 7), "hour-of-day": (0, 23), "month-of-year": (1, 12)}
"""Granularities that repeat, each with its first and last value; Monday is weekday 1."""

MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
"""Granularities of whole months, each with its number of months."""

HOUR_US: Final = 3_600_000_000
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 2199
"""First and last year of timestamps, between which the offsets of zones are known."""

_EPOCH: Final = date(1970, 1, 1)
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_PERIOD_LITERAL: Final = re.compile(
    r"(?P<year>[0-9]{4})(?:-Q(?P<quarter>[1-4])|-W(?P<week>[0-9]{2})|-(?P<month>[0-9]{2})"
    r"(?:-(?P<day>[0-9]{2})(?P<time>[T ](?P<hour>[0-9]{2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,6}))?)?)?(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?)?)?"
)


@lru_cache(maxsize=64)
def find_zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name; ValueError if this machine does not know it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"there is no time zone '{name}' on this machine; give an IANA name, as Europe/Berlin, or install tzdata"
        ) from None


def parse_day(text: str) -> int:
    """Parse a date, YYYY-MM-DD, into days since 1970; ValueError if the text is not a date."""
    if (found := _DATE.fullmatch(text)) is not None:
        with suppress(ValueError):
            return (date(*map(int, found.groups())) - _EPOCH).days
    raise ValueError("give a date in the form YYYY-MM-DD, such as 2024-03-31")


def format_day(day: int) -> str:
    """Write days since 1970 as YYYY-MM-DD."""
    return (_EPOCH + timedelta(days=day)).isoformat()


@lru_cache(maxsize=1 << 16)
def start_of_day(day: int, zone: str) -> int:
    """Return the first instant of a local day; this is the end of the gap if the clock skips midnight."""
    local = datetime.combine(_EPOCH + timedelta(days=day), datetime.min.time(), tzinfo=find_zone(zone))
    return (local.astimezone(UTC) - _EPOCH_START) // _MICROSECOND


def local_time(instant: int, zone: str) -> datetime:
    """Return the local time of an instant."""
    return (_EPOCH_START + timedelta(microseconds=instant)).astimezone(find_zone(zone))


@dataclass(frozen=True, slots=True)
class Calendar:
    """Consecutive calendar cells of one granularity, from the day ``first`` to the day ``last``.

    ``zone`` is the time zone of instants, or None if values are dates.
    """

    granularity: str
    first: int
    last: int
    zone: str | None

    @property
    def size(self) -> int:
        """Number of cells."""
        if self.granularity == "hour":
            hours = start_of_day(self.last + 1, self.zone or "UTC") - start_of_day(self.first, self.zone or "UTC")
            return -(-hours // HOUR_US)
        return self._cell_of_day(self.last) + 1

    def misfit(self) -> str | None:
        """Return why ``first`` does not begin a cell, or ``last`` does not end one; None if both do."""
        if self.granularity == "hour":
            return None
        for name, end, day in (("minimum", "first", self.first), ("maximum", "last", self.last)):
            at = day if end == "first" else day + 1
            low = self._first_day(self._cell_of_day(at))
            if low != at:
                near = (low, self._first_day(self._cell_of_day(at) + 1))
                days = " or ".join(format_day(one if end == "first" else one - 1) for one in near)
                return f"{name} must be the {end} day of a {self.granularity}; give {days}"
        return None

    def start(self, cell: int) -> int:
        """Return the day with which a cell begins or, with a zone, the instant."""
        if self.granularity == "hour":
            return start_of_day(self.first, self.zone or "UTC") + cell * HOUR_US
        day = self._first_day(cell)
        return day if self.zone is None else start_of_day(day, self.zone)

    def end(self) -> int:
        """Return the day or instant after the last cell."""
        return self.last + 1 if self.zone is None else start_of_day(self.last + 1, self.zone)

    def cell_at(self, at: int) -> int:
        """Return the cell of a day or instant within the range."""
        if self.granularity == "hour":
            return (at - self.start(0)) // HOUR_US
        if self.zone is not None:
            at = (local_time(at, self.zone).date() - _EPOCH).days
        return self._cell_of_day(at)

    def label(self, cell: int) -> str:
        """Write a cell as literals do: 2024-03-31, 2024-W13, 2024-03, 2024-Q1, 2024 or 2024-03-31T03Z."""
        if self.granularity == "hour":
            return self._hour_label(cell)
        day = _EPOCH + timedelta(days=self._first_day(cell))
        match self.granularity:
            case "week":
                year, week, _ = day.isocalendar()
                return f"{year:04}-W{week:02}"
            case "month":
                return day.isoformat()[:7]
            case "quarter":
                return f"{day.year:04}-Q{(day.month + 2) // 3}"
            case "year":
                return f"{day.year:04}"
            case _:
                return day.isoformat()

    def _hour_label(self, cell: int) -> str:
        local = local_time(self.start(cell), self.zone or "UTC")
        offset = "Z" if self.zone in {None, "UTC"} else local.isoformat()[-6:]
        minutes = f"{local:%M}" if local.minute else ""
        return f"{local:%Y-%m-%dT%H}{':' if minutes else ''}{minutes}{offset}"

    def _cell_of_day(self, day: int) -> int:
        """Return the number of the cell of a day, also of a day outside the range."""
        if self.granularity == "day":
            return day - self.first
        if self.granularity == "week":
            return _week_number(day) - _week_number(self.first)
        months = MONTHS[self.granularity]
        return _month_number(day) // months - _month_number(self.first) // months

    def _first_day(self, cell: int) -> int:
        """Return the first day of a cell, also of a cell outside the range."""
        if self.granularity == "day":
            return self.first + cell
        if self.granularity == "week":
            return 7 * (_week_number(self.first) + cell) - _MONDAY
        months = MONTHS[self.granularity]
        year, month = divmod(months * (_month_number(self.first) // months + cell), 12)
        return (date(year, month + 1, 1) - _EPOCH).days


_MONDAY: Final = 3
"""Days from a Monday to 1970-01-01, a Thursday."""


def _week_number(day: int) -> int:
    return (day + _MONDAY) // 7


def _month_number(day: int) -> int:
    """Return the number of months since the year 0."""
    at = _EPOCH + timedelta(days=day)
    return 12 * at.year + at.month - 1


def cell_label(granularity: str, day: str) -> str | None:
    """Return the label of the cell that begins at a day; None if no cell begins there."""
    try:
        at = parse_day(day)
    except ValueError:
        return None
    cell = Calendar(granularity, at, at, None)
    return None if granularity == "hour" or cell.start(0) != at else cell.label(0)


@dataclass(frozen=True, slots=True)
class LiteralPeriod:
    """The period for which a literal stands, from ``start`` up to ``end``; an instant if ``end`` is None."""

    start: int
    end: int | None


def parse_period(text: str, zone: str | None) -> LiteralPeriod:
    """Parse the literal of a year, quarter, month, week, day, hour or time.

    Without a zone the period is in days, and midnight without an offset means its day. With a zone it is in instants, and
    the zone applies to a text without an offset.
    ValueError if the text is not a literal, if it has a time and no zone is given, or if the clock skips or repeats its
    time.
    """
    found = _PERIOD_LITERAL.fullmatch(text)
    if found is None or (zone is None and found["time"] is not None and set(found["time"]) - set("T 0:.")):
        raise ValueError
    if found["hour"] is None or zone is None:
        first, last = _parse_days(found)
        if zone is None:
            return LiteralPeriod(first, last)
        return LiteralPeriod(start_of_day(first, zone), start_of_day(last, zone))
    instant = _parse_instant(found, zone)
    return LiteralPeriod(instant, None if found["minute"] is not None else instant + HOUR_US)


def _parse_days(found: re.Match[str]) -> tuple[int, int]:
    """Return the first day of a literal, and the day after its last day."""
    year, week, day = (int(found[name] or 0) for name in ("year", "week", "day"))
    if week:
        monday = (date.fromisocalendar(year, week, 1) - _EPOCH).days
        return monday, monday + 7
    if day:
        first = (date(year, int(found["month"]), day) - _EPOCH).days
        return first, first + 1
    if found["month"] is not None:
        months, before = 1, int(found["month"]) - 1
    elif found["quarter"] is not None:
        months, before = 3, 3 * int(found["quarter"]) - 3
    else:
        months, before = 12, 0
    after = 12 * year + before + months
    ends = date(year, before + 1, 1), date(after // 12, after % 12 + 1, 1)
    return (ends[0] - _EPOCH).days, (ends[1] - _EPOCH).days


def _parse_instant(found: re.Match[str], zone: str) -> int:
    """Return the instant of a literal with a time, which is local in the zone if it has no offset."""
    year, month, day, hour, minute, second = (
        int(found[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")
    )
    microseconds = int((found["fraction"] or "").ljust(6, "0"))
    local = datetime(year, month, day, hour, minute, second, microseconds, tzinfo=find_zone(zone))
    if (offset := found["offset"]) is not None:
        written = local.replace(tzinfo=None).isoformat()
        local = datetime.fromisoformat(written + ("+00:00" if offset == "Z" else offset))
        return (local - _EPOCH_START) // _MICROSECOND
    first, second = ((local.replace(fold=fold).astimezone(UTC) - _EPOCH_START) // _MICROSECOND for fold in (0, 1))
    if first != second:
        raise ValueError("the clock skips or repeats this time; write its offset, as +01:00")
    return first
