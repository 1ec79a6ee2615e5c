"""The steps and failures of partition tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal

from aiokafka import TopicPartition

StepName = Literal["resting", "restoring", "waiting", "working", "writing", "pausing"]

ON_KAFKA: Final[frozenset[StepName]] = frozenset({"waiting", "writing"})
"""Steps that end soon if Kafka answers. The other steps may take any time."""


SHOWN_AFTER_FAILURES: Final = 5
"""Failures in a row at one record that make the service not ready."""


class TaskStep:
    """The current step and its start on the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin a step; its time starts again even if the step is the same."""
        self.name: StepName = name
        self.since = time.monotonic()


@dataclass(frozen=True)
class InputPlace:
    """The position of an input record."""

    source: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.source.topic} partition {self.source.partition} offset {self.offset}"


class PartitionHealth:
    """Failures of a partition, kept across its sessions."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        """First of the failures in a row, on the monotonic clock; None without failures."""
        self.failures = 0
        """Failures in a row, until the failed record is committed or a calm time passes."""
        self.refusal = ""
        """Why the partition processes nothing, as shown at /readyz."""
        self._failed_at: InputPlace | None = None
        self._tries = 0
        self._is_kafka = False

    def failed(
        self,
        now: float,
        reason: str,
        *,
        at: InputPlace | None = None,
        is_input: bool = False,
        is_kafka: bool = False,
    ) -> None:
        """Count a failure, ``at`` a record if one was being processed.

        /readyz shows the reason at once if an input topic is invalid, and otherwise after
        ``SHOWN_AFTER_FAILURES`` failures at one record.
        """
        self.failing_since = self.failing_since or now
        self.failures += 1
        self._is_kafka = is_kafka
        if at is not None:
            self._tries = self._tries + 1 if at == self._failed_at else 1
            self._failed_at = at
        if is_input:
            self.refusal = reason
        elif at is not None and self._tries >= SHOWN_AFTER_FAILURES:
            self.refusal = (
                f"{at}: processing fails with {reason}; no later record is processed, and nothing is lost; "
                "see the log, and install a version that can process it"
            )

    def record_commit(self, source: TopicPartition, following: int) -> None:
        """End the failures if the commit goes beyond the failed record.

        A restored partition repeats commits of other inputs and of earlier records, so these do not
        end the failures. If no record failed, any commit ends failures of Kafka.
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
