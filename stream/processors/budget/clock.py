"""The ledger's clock between two events: periods of budgets end while nobody asks for anything.

Decisions go by the times that Kafka has stamped events with. In between, the clock moves on from the latest of them as this
machine's monotonic clock does, and by no wall clock: one that is wrong renews nothing. After a restart it stands where
the ledger was until the next event comes.
"""

from __future__ import annotations


class Clock:
    """Milliseconds since 1970 by the latest event, and by how long ago that was."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def now(self, latest: int, monotonic: float) -> int:
        """The time, given that of the latest event and a monotonic clock's seconds."""
        if self._since is None or latest > self._since[0] + 1000 * (monotonic - self._since[1]):
            self._since = (latest, monotonic)
        return self._since[0] + int(1000 * (monotonic - self._since[1]))
