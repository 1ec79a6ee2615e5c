"""What is wrong with an event, in words of a closed list and declared names alone."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_BYTES: Final = 64 * 1024
"""Largest event; anything larger is refused unread."""
MAX_DEPTH: Final = 64
"""Deepest nesting of objects and lists, so that no event's fate hangs on how much of the stack is in use."""
MAX_PERSON_BYTES: Final = 256
"""Longest name of a person."""


class Flaw(NamedTuple):
    """Why an event is set aside: a code, and a message with the remedy."""

    code: str
    message: str


EMPTY: Final = Flaw("malformed", "event: has no value; send a JSON object")
OVERSIZE: Final = Flaw("oversize", f"event: more than {MAX_BYTES} bytes; send the fields that are counted")
NESTED: Final = Flaw("malformed", f"event: nested deeper than {MAX_DEPTH}; send the fields that are counted")
MALFORMED: Final = Flaw("malformed", "event: is not JSON; send a JSON object in UTF-8")
NO_OBJECT: Final = Flaw("malformed", "event: is JSON and no object; send a JSON object")
REPEATED: Final = Flaw("malformed", "event: a declared field is given twice; give each field once")
NOBODY: Final = Flaw(
    "person",
    f"person: missing, blank, longer than {MAX_PERSON_BYTES} bytes, or neither text nor a whole number; say whose event it is",
)
NO_TIME: Final = Flaw(
    "time",
    "time: missing, or no moment from 1970 to 9999; give ISO 8601 with a zone, or whole milliseconds since 1970",
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
AHEAD: Final = Flaw("ahead", "time: further ahead of the clock than the source allows; see to the writer's clock")
BEFORE: Final = Flaw(
    "before",
    "time: lies before the first window of every stream; open a stream that begins earlier, or see to the writer's clock",
)

SECONDS_FROM: Final = 10**8
SECONDS_TO: Final = 10**10
"""Seconds since 1970 in the years 1973 to 2286; taken for milliseconds they lie in the first 116 days of 1970."""
_UNITS: Final = (
    (SECONDS_FROM, SECONDS_TO, SECONDS),
    (10**14, 10**16, MICROSECONDS),
    (10**17, 10**19, NANOSECONDS),
)
"""The unit of numbers from one size to another, in the years 1973 to 2286; the later two would be after the year 5000 in milliseconds."""


def unit_of(number: float) -> Flaw | None:
    """Name the unit other than milliseconds that a time is given in, by its size; None if there is none."""
    return next((flaw for low, high, flaw in _UNITS if low <= number < high), None)


def time_flaw(time: int, *, is_ahead: bool) -> Flaw:
    """Say why a time in milliseconds since 1970 is refused, ahead of the clock or before every window: by its unit, if it is another one."""
    unit = unit_of(time)
    if is_ahead:
        return MICROSECONDS if unit is MICROSECONDS else AHEAD
    return SECONDS if unit is SECONDS else BEFORE


def unknown_category(attribute: str) -> Flaw:
    """Of an attribute without ``other``."""
    return Flaw("unknown category", f"{attribute}: unknown category; declare it, or give the attribute an other")


def no_number(attribute: str) -> Flaw:
    """Of a number that is missing, none, not whole, or outside where that is refused."""
    return Flaw(
        "number", f"{attribute}: missing, no number of the declared kind, or outside; declare what the events have"
    )
