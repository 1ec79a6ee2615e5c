"""What a partition's task is doing, for how long, and how it gets on: what its engine watches it by."""

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


class Standing:
    """How a partition gets on, over all its lives."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        """When the first of the failures in a row was, on the monotonic clock; None if all is well."""
        self.refusal = ""
        """Why nothing is taken of an input that is not as it must be."""

    def failed(self, now: float, refusal: str = "") -> None:
        """Say that it failed, and whether what it was given is to blame."""
        self.failing_since = self.failing_since or now
        self.refusal = refusal

    def went_on(self) -> None:
        """Say that something has been answered."""
        self.failing_since, self.refusal = None, ""
