"""Converts dates and timestamps to the codes of calendar cells; no value affects the code of another value.

- Texts are ISO 8601: a date, or a date and a time with or without an offset from UTC.
- A ``date`` attribute ignores a time of day without an offset. A time with an offset has no code, because its day
  depends on a zone.
- A time without an offset is local in the declared zone. If the clock repeats an hour, a time in it means the first of
  the two hours. A time that the clock skips has no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.calendars import FIRST_YEAR, HOUR_US, LAST_YEAR, MONTHS, local_time, parse_day
from schemas.domains import Dates
from stream.optional_packages import pl
from stream.tables.table_errors import ColumnError

Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_ISO_PATTERN: Final = (
    r"^([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(?:(Z)|([+-])([0-9]{2}):?([0-9]{2})?)?)?$"
)
_FIELDS: Final = ("year", "month", "day", "hour", "minute", "second", "fraction", "utc", "sign", "off", "minutes")
_DAY_US: Final = 24 * HOUR_US
_SECOND_US: Final = 1_000_000
_FIRST_DAY: Final = parse_day(f"{FIRST_YEAR}-01-01")
_LAST_DAY: Final = parse_day(f"{LAST_YEAR}-12-31")


class _LocalTimes(NamedTuple):
    """Local times in µs since 1970, and offsets from UTC in µs.

    ``has_offset`` and ``has_time`` are masks of the cells with an offset and with a time of day; ``known`` is the mask of
    the cells that are valid dates or times.
    """

    local: IntArray
    offset: IntArray
    has_offset: Mask
    has_time: Mask
    known: Mask


def date_codes(name: str, domain: Dates, column: pl.Series) -> tuple[IntArray, Mask]:
    """Return each cell's code, and a mask of the cells with a code; ColumnError if the column has other types."""
    times = _read_times(name, domain, column)
    known = times.known.copy()
    if domain.timezone is None:
        known &= ~times.has_offset
        return _calendar_codes(domain, times.local // _DAY_US, times.local, known)
    instants, exist = _convert_to_instants(domain.timezone, times)
    known &= exist
    local = instants + _offsets_at(domain.timezone, instants)
    if domain.part is not None:
        known &= (local >= _FIRST_DAY * _DAY_US) & (local < (_LAST_DAY + 1) * _DAY_US)
    return _calendar_codes(domain, local // _DAY_US, instants if domain.part is None else local, known)


def _calendar_codes(domain: Dates, days: IntArray, times: IntArray, known: Mask) -> tuple[IntArray, Mask]:
    if domain.part is not None:
        return np.where(known, _date_part_codes(domain.granularity, days, times), 0), known
    calendar = domain.calendar
    first, last = calendar.first, calendar.last
    if domain.outside == "reject":
        known = known & (days >= first) & (days <= last)
    inside = np.clip(days, first, last)
    match domain.granularity:
        case "hour":
            codes = (times - calendar.start(0)) // HOUR_US
        case "day":
            codes = inside - first
        case "week":
            codes = (inside + 3) // 7 - (first + 3) // 7
        case granularity:
            size = MONTHS[granularity]
            codes = _months_of_days(inside) // size - _months_of_days(np.array([first])) // size
    return np.where(known, np.clip(codes, 0, calendar.size - 1), 0), known


def _date_part_codes(granularity: str, days: IntArray, times: IntArray) -> IntArray:
    match granularity:
        case "weekday":
            return (days + 3) % 7
        case "month-of-year":
            return _months_of_days(days) % 12
        case _:
            return times % _DAY_US // HOUR_US


def _months_of_days(days: IntArray) -> IntArray:
    """Convert days since 1970 to months since the year 0."""
    months: IntArray = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return months + 12 * 1970


def _read_times(name: str, domain: Dates, column: pl.Series) -> _LocalTimes:
    kind = column.dtype
    if kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return _parse_texts(column.cast(pl.String).str.strip_chars())
    known = column.is_not_null().to_numpy()
    if kind == pl.Date:
        local, none = _scale_numbers(column, _DAY_US), np.zeros(len(column), dtype=np.bool_)
        return _LocalTimes(local, np.zeros_like(local), has_offset=none, has_time=none, known=known)
    if isinstance(kind, pl.Datetime) and (kind.time_zone is None or domain.kind == "timestamp"):
        local = _scale_numbers(column, 1000 if kind.time_unit == "ms" else 1)
        if kind.time_unit == "ns":
            local //= 1000
        return _LocalTimes(local, np.zeros_like(local), known & (kind.time_zone is not None), known, known)
    raise ColumnError("no dates" if domain.kind == "date" else "no times", name, str(kind.base_type()))


def text_series(texts: Sequence[str | None]) -> pl.Series:
    """Return texts as a column; None becomes a missing cell."""
    return pl.Series("", texts, dtype=pl.String)


def iso_text(name: str, domain: Dates, column: pl.Series) -> pl.Series:
    """Convert a column of dates or times to ISO 8601; ColumnError for other types."""
    kind = column.dtype
    if kind != pl.Date:
        _read_times(name, domain, column.clear())  # raises ColumnError for other types
    if isinstance(kind, pl.Datetime):
        return column.dt.strftime("%Y-%m-%dT%H:%M:%S%.6f" + ("" if kind.time_zone is None else "%:z"))
    return column.cast(pl.String)


def _scale_numbers(column: pl.Series, factor: int) -> IntArray:
    """Return dates or times as whole numbers times a factor; products that would overflow are clipped."""
    most = (1 << 62) // factor
    scaled: IntArray = np.clip(column.cast(pl.Int64).fill_null(0).to_numpy(), -most, most) * factor
    return scaled


def _parse_texts(texts: pl.Series) -> _LocalTimes:
    groups = texts.str.extract_groups(_ISO_PATTERN).struct
    field = {part: groups.field(str(place + 1)) for place, part in enumerate(_FIELDS)}
    number = {part: _as_integers(field[part]) for part in _FIELDS if part not in {"fraction", "utc", "sign"}}
    fraction = _as_integers(field["fraction"].fill_null("0").str.pad_end(9, "0")) // 1000
    year, month, day = number["year"], number["month"], number["day"]
    known = field["year"].is_not_null().to_numpy() & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(known, 12 * (year - 1970) + month - 1, 0)
    first, after = (
        (months + more).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for more in (0, 1)
    )
    known &= day <= after - first
    clock = (number["hour"] < 24) & (number["minute"] < 60) & (number["second"] < 60)
    known &= clock & (number["off"] < 24) & (number["minutes"] < 60)
    seconds = 3600 * number["hour"] + 60 * number["minute"] + number["second"]
    local = (first + day - 1) * _DAY_US + seconds * _SECOND_US + fraction
    ahead = np.where((field["sign"] == "-").fill_null(value=False).to_numpy(), -1, 1)
    offset = ahead * (number["off"] * 60 + number["minutes"]) * 60 * _SECOND_US
    has_offset = (field["utc"].is_not_null() | field["sign"].is_not_null()).to_numpy()
    return _LocalTimes(local, offset, has_offset, field["hour"].is_not_null().to_numpy(), known)


def _as_integers(texts: pl.Series) -> IntArray:
    return texts.cast(pl.Int64, strict=False).fill_null(0).to_numpy().astype(np.int64)


def _convert_to_instants(zone: str, times: _LocalTimes) -> tuple[IntArray, Mask]:
    """Convert local times to instants; the mask is false for times that the local clock skips."""
    if zone == "UTC":
        return times.local - times.offset, np.ones(len(times.local), dtype=np.bool_)
    changes, offsets = _offset_changes(zone)
    # Local times before the end of an offset have this offset, so a repeated time means its first instant.
    local_ends = changes + offsets[:-1]
    place = np.searchsorted(local_ends, times.local, side="right")
    instants = times.local - offsets[place]
    begun = np.concatenate([[np.iinfo(np.int64).min], changes])[place]
    # A date without a time of day is the first instant of its day, even if the clock skips midnight.
    skipped = instants < begun
    instants = np.where(skipped & ~times.has_time, begun, instants)
    exist = ~skipped | ~times.has_time | times.has_offset
    return np.where(times.has_offset, times.local - times.offset, instants), exist


def _offsets_at(zone: str, instants: IntArray) -> IntArray | int:
    if zone == "UTC":
        return 0
    changes, offsets = _offset_changes(zone)
    found: IntArray = offsets[np.searchsorted(changes, instants, side="right")]
    return found


@lru_cache(maxsize=16)
def _offset_changes(zone: str) -> tuple[IntArray, IntArray]:
    """Return the instants at which a zone's offset changes, and the offsets between these instants.

    The offset is looked up at the beginning of each day; if it differs, bisection finds the second of the change.
    """
    days = range(_FIRST_DAY - 1, _LAST_DAY + 2)
    changes: list[int] = []
    offsets = [_offset_at_second(days[0] * 86_400, zone)]
    for day in days:
        if _offset_at_second((day + 1) * 86_400, zone) == offsets[-1]:
            continue
        low, high = day * 86_400, (day + 1) * 86_400
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset_at_second(middle, zone) == offsets[-1] else (low, middle)
        changes.append(high)
        offsets.append(_offset_at_second(high, zone))
    return np.array(changes, dtype=np.int64) * _SECOND_US, np.array(offsets, dtype=np.int64) * _SECOND_US


def _offset_at_second(second: int, zone: str) -> int:
    found: Any = local_time(second * _SECOND_US, zone).utcoffset()
    return int(found.total_seconds())
