"""What a partition's task is doing, for how long, and how it gets on: what its engine watches it by."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal

from aiokafka import TopicPartition

StepName = Literal["resting", "restoring", "waiting", "working", "writing", "pausing"]

ON_KAFKA: Final[frozenset[StepName]] = frozenset({"waiting", "writing"})
"""Steps that end in moments as long as Kafka answers. The others take as long as there is work."""


TRIES: Final = 5
"""A record at which the task has failed so many times in a row makes its service not ready."""


class Step:
    """The step at hand and when it began, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin another step, or the same one once more."""
        self.name: StepName = name
        self.since = time.monotonic()


@dataclass(frozen=True)
class Place:
    """A record of an input."""

    source: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.source.topic} partition {self.source.partition} offset {self.offset}"


class PartitionHealth:
    """The failures of a partition, over all lives of its state."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        """When the first of the failures in a row was, on the monotonic clock; None if all is well."""
        self.failures = 0
        """Failures in a row: until the record that failed is committed, or a calm time has passed."""
        self.refusal = ""
        """Why the partition takes in nothing, as /readyz shows it."""
        self._failed_at: Place | None = None
        self._tries = 0
        self._is_kafka = False

    def failed(
        self, now: float, reason: str, *, at: Place | None = None, is_input: bool = False, is_kafka: bool = False
    ) -> None:
        """Count a failure, ``at`` a record if one was being processed.

        An input that must be mended is shown at once, any other reason after ``TRIES`` failures at one record.
        """
        self.failing_since = self.failing_since or now
        self.failures += 1
        self._is_kafka = is_kafka
        if at is not None:
            self._tries = self._tries + 1 if at == self._failed_at else 1
            self._failed_at = at
        if is_input:
            self.refusal = reason
        elif at is not None and self._tries >= TRIES:
            self.refusal = (
                f"{at}: processing fails with {reason}; nothing behind this record is taken in, and nothing is lost; "
                "see the log, and install a version that can process it"
            )

    def went_on(self, source: TopicPartition, following: int) -> None:
        """Note a commit: the failures are over if it goes beyond the record that failed.

        Commits of other inputs, or of records before it, which a restored partition commits again, do not end them. Any commit
        ends failures of Kafka's.
        """
        failed = self._failed_at
        if failed is None:
            if self._is_kafka:
                self.recover()
        elif failed.source == source and following > failed.offset:
            self.recover()

    def recover(self) -> None:
        """Forget the failures."""
        self.failing_since, self.failures, self.refusal = None, 0, ""
        self._failed_at, self._tries, self._is_kafka = None, 0, False
