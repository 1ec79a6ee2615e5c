"""How the partitions of one process share its time."""

from __future__ import annotations

from typing import Final

TURN_SECONDS: Final = 0.002
"""So long a partition waits for each of the others that are at work: twice what a small step takes."""
AT_WORK_SECONDS: Final = 0.05
"""A partition is at work if it has begun a step within so long."""


class Turns:
    """When each partition of a process has last begun a step.

    A step costs about as much for one record as for a hundred. Partitions that took each record as it came would keep the processor, and the
    broker's, busy with small steps, and all would wait for it. So each lets the others have a turn before it begins the
    next; what comes meanwhile is taken together. One that is alone, or asked less often than that, never waits.
    """

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    def begin(self, partition: int, now: float) -> None:
        """Note that a partition begins a step, at ``now`` of any clock that does not go back, in seconds."""
        self._begun[partition] = now

    def wait(self, partition: int, now: float) -> float:
        """Seconds until a partition should begin its next step."""
        if (begun := self._begun.get(partition)) is None:
            return 0.0
        others = sum(now - last < AT_WORK_SECONDS for last in self._begun.values()) - 1
        return max(0.0, begun + TURN_SECONDS * others - now)
