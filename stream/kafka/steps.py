"""What a partition's task is doing, and for how long: what its engine watches it by."""

from __future__ import annotations

import time
from typing import Final, Literal

StepName = Literal["resting", "restoring", "waiting", "working", "writing", "pausing"]

ON_KAFKA: Final[frozenset[StepName]] = frozenset({"waiting", "writing"})
"""Steps that end in moments as long as Kafka answers. The others take as long as there is work."""


class Step:
    """The step at hand and when it began, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin another step, or the same one once more."""
        self.name: StepName = name
        self.since = time.monotonic()
