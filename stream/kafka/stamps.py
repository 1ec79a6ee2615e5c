"""The times that records are written with: the broker's, wherever it gives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from stream.log import get_logger

UNSTAMPED: Final = -1
"""What Kafka takes for a record that carries no time; its own clock then decides how long the record is kept."""
SET_BACK: Final = 60.0
"""Seconds by which a clock that was refused must have gone back before it is tried again."""

log = get_logger("stamps")


class Stamps:
    """Record timestamps of one process, in milliseconds since the epoch.

    Topics that ``sotto topics create`` makes are stamped by the broker, whatever is sent. A topic that is not takes the
    writer's time and refuses one that is more than an hour ahead. Records are then written without a time until this
    machine's clock has been set back: no partition is held up by it.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """Take the wall clock, in seconds since the epoch."""
        self._clock = clock or (time.time)
        self._refused: float | None = None

    def now(self) -> int:
        """The time for a record that is written now."""
        wall = self._clock()
        if self._refused is not None:
            if wall - time.monotonic() > self._refused - SET_BACK:
                return UNSTAMPED
            self._refused = None
            log.info("clock set back: records carry its time again")
        return int(wall * 1000)

    def refuse(self) -> None:
        """Kafka has refused the time."""
        ahead = self._clock() - time.monotonic()
        if self._refused is None:
            log.error(
                "clock refused",
                reason="Kafka says that this machine's clock is far ahead; set it right",
                remedy="until then records carry no time; 'sotto topics check' names topics that the broker does not stamp",
            )
        self._refused = ahead
