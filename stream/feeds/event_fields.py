"""Converts the fields of events, and describes their flaws; messages never quote undeclared text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import Categories, Dates, Decimals, Domain, Integers
from stream.tables.date_codes import date_codes, text_series
from stream.tables.encoding import Mask, bin_codes, decimal_codes, integer_codes

MAX_BYTES: Final = 64 * 1024
"""Largest event, in bytes; a larger event is refused without being read."""
MAX_DEPTH: Final = 64
"""Deepest nesting of objects and lists; the limit is fixed so that it does not depend on the stack."""
MAX_PERSON_BYTES: Final = 256


class Flaw(NamedTuple):
    """The reason for rejecting an event: a code, and a message with the remedy."""

    code: str
    message: str


EMPTY: Final = Flaw("malformed", "event: has no value; send a JSON object")
OVERSIZE: Final = Flaw("oversize", f"event: more than {MAX_BYTES} bytes; send the fields that are counted")
NESTED: Final = Flaw("malformed", f"event: nested deeper than {MAX_DEPTH}; send the fields that are counted")
MALFORMED: Final = Flaw("malformed", "event: is not JSON; send a JSON object in UTF-8")
NO_OBJECT: Final = Flaw("malformed", "event: is JSON but not an object; send a JSON object")
REPEATED_FIELD: Final = Flaw("malformed", "event: a declared field is given twice; give each field once")
NOBODY: Final = Flaw(
    "person",
    f"person: missing, blank, longer than {MAX_PERSON_BYTES} bytes, or neither text nor a whole number; say whose event it is",
)
NO_TIME: Final = Flaw(
    "time",
    "time: missing, or not a time from 1970 to 9999; give ISO 8601 with a zone, or whole milliseconds since 1970",
)
SECONDS: Final = Flaw(
    "time",
    "time: is in seconds since 1970, by its size; give whole milliseconds (1,000 times as much), or ISO 8601 with a zone",
)
MICROSECONDS: Final = Flaw(
    "time",
    "time: is in microseconds since 1970, by its size; give whole milliseconds (divide by 1,000), or ISO 8601 with a zone",
)
NANOSECONDS: Final = Flaw(
    "time",
    "time: is in nanoseconds since 1970, by its size; give whole milliseconds (divide by 1,000,000), or ISO 8601 with a zone",
)
AHEAD: Final = Flaw("ahead", "time: further ahead of the clock than the source allows; check the writer's clock")
BEFORE: Final = Flaw(
    "before",
    "time: lies before the first window of every stream; open a stream that begins earlier, or check the writer's clock",
)

SECONDS_FROM: Final = 10**8
SECONDS_TO: Final = 10**10
"""The numbers of seconds of the years 1973 to 2286; as milliseconds they would be the days 2 to 116 of 1970."""
_UNITS: Final = (
    (SECONDS_FROM, SECONDS_TO, SECONDS),
    (10**14, 10**16, MICROSECONDS),
    (10**17, 10**19, NANOSECONDS),
)
"""The years 1973 to 2286 in other units; as milliseconds, the last two ranges would be after the year 5000."""


def unit_flaw(number: float) -> Flaw | None:
    """Return the flaw of a time that is probably in another unit than milliseconds, or None."""
    return next((flaw for low, high, flaw in _UNITS if low <= number < high), None)


def time_flaw(time: int, *, is_ahead: bool) -> Flaw:
    """Return the flaw of a time ahead of the clock or before every window; the unit may be the reason."""
    unit = unit_flaw(time)
    if is_ahead:
        return MICROSECONDS if unit is MICROSECONDS else AHEAD
    return SECONDS if unit is SECONDS else BEFORE


def flaw_of(attribute: str, domain: Domain) -> Flaw:
    """Return the flaw of a value that has no code in an attribute's domain."""
    if isinstance(domain, Categories):
        return Flaw(
            "unknown category",
            f"{attribute}: missing or unknown category; declare it, or name in 'other' a declared category for missing and unknown values",
        )
    if isinstance(domain, Dates):
        return Flaw(
            "date",
            f"{attribute}: missing, not a date or time in ISO 8601, skipped by the clock, or out of range; declare a domain that fits the events",
        )
    return Flaw(
        "number",
        f"{attribute}: missing, not a number of the declared kind, or out of range; declare a domain that fits the events",
    )


Moments = npt.NDArray[np.int64]


def precedes_all_windows(times: Moments, first: Moments, clocks: Moments) -> npt.NDArray[np.bool_]:
    """Return a mask of the events to refuse, because they are before the ``first`` window of every stream.

    While the clock is also before that window, such events are history: they count in no window, but are
    not refused. A clock below 0 has not started. Times that are probably in seconds are always refused.
    """
    is_history = (clocks >= 0) & (clocks < first)
    has_seconds = (times >= SECONDS_FROM) & (times < SECONDS_TO)
    return (times < first) & (has_seconds | ~is_history)


Codes = npt.NDArray[np.int64]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf")
_LARGEST_EXACT: Final = 2.0**53
_NUMERIC: Final = frozenset({int, float, bool})
_TEXT: Final = frozenset({str})


class FieldCodes:
    """Converts the values of one attribute to codes."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._codes: dict[Any, int] = {}
        self._other = -1
        if isinstance(domain, Categories):
            self._codes = {value: code for code, value in enumerate(domain.values)}
            self._other = -1 if domain.other is None else self._codes[domain.other]

    def codes(self, values: Sequence[Any]) -> tuple[Codes, Mask]:
        """Return each value's code, and a mask of the values that have a code."""
        kinds = set(map(type, values))
        if isinstance(self._domain, Categories):
            texts = values if kinds <= _TEXT else [text_of(value) for value in values]
            find, other = self._codes.get, self._other
            codes = np.array([find(text, other) for text in texts], dtype=np.int64)
            return codes, codes >= 0
        if isinstance(self._domain, Dates):
            texts = [value if isinstance(value, str) and value.isascii() else None for value in values]
            return date_codes("", self._domain, text_series(texts))
        numbers = _numbers(values, kinds)
        if isinstance(self._domain, Integers):
            return integer_codes(self._domain, numbers)
        if isinstance(self._domain, Decimals):
            return decimal_codes(
                self._domain, numbers, lambda rows: [_exact_decimal_text(values[row]) for row in rows]
            )
        return bin_codes(self._domain, numbers)


def _numbers(values: Sequence[Any], kinds: set[type]) -> npt.NDArray[np.float64]:
    if kinds <= _NUMERIC:
        try:
            return np.array(values, dtype=np.float64)
        except OverflowError:
            pass
    return np.array([number_of(value) for value in values], dtype=np.float64)


def _exact_decimal_text(value: Any) -> str:
    """Return the exact decimal of a number; for a double, its shortest decimal."""
    return value.strip() if isinstance(value, str) else repr(int(value) if isinstance(value, bool) else value)


def text_of(value: Any) -> str | None:
    """Convert a value to the text of a category; None if it has no such text."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if abs(value) <= _LARGEST_EXACT and value == math.floor(value) else repr(value)
        case _:
            return None


NO_TEXT: Final = -1
"""Code of an event whose text is missing, empty or longer than declared."""


def text_codes(texts: Iterable[bytes], max_length: int) -> tuple[Codes, list[bytes]]:
    """Return each text's index in a list of the different texts, or ``NO_TEXT``; and this list."""
    known: dict[bytes, int] = {}
    codes = [known.setdefault(text, len(known)) if 0 < len(text) <= max_length else NO_TEXT for text in texts]
    return np.array(codes, dtype=np.int64), list(known)


def private_text_of(value: Any) -> bytes:
    """Convert a value to private text: numbers in their usual spelling; other values become empty."""
    return (text_of(value) or "").encode(errors="replace")


def number_of(value: Any) -> float:
    """Convert a value to the nearest double: infinite if it is too large, NaN if it is no number."""
    match value:
        case float():
            return value
        case int():
            try:
                return float(value)
            except OverflowError:
                return math.inf if value > 0 else -math.inf
        case str() if _NUMBER.fullmatch(stripped := value.strip()):
            return float(stripped)
        case _:
            return math.nan
