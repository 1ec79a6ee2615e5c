"""Moments as people's events and marks tell them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

MARK_HEADER: Final = "sotto-mark"
"""The header of a record that tells the time of all that follows it: no event, and nothing private."""

END_MS: Final = 253_402_300_800_000
"""The year 10000, which no moment can be written in."""
NO_MOMENT: Final = -1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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
