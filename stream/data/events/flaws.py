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


def unknown_category(attribute: str) -> Flaw:
    """Of an attribute without ``other``."""
    return Flaw("unknown category", f"{attribute}: unknown category; declare it, or give the attribute an other")


def no_number(attribute: str) -> Flaw:
    """Of a number that is missing, none, not whole, or outside where that is refused."""
    return Flaw(
        "number", f"{attribute}: missing, no number of the declared kind, or outside; declare what the events have"
    )
