"""What a partition's task is doing, for how long, and how it gets on: what its engine watches it by."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from aiokafka import TopicPartition
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stream.processing.protocol import Processor

StepName = Literal["resting", "restoring", "waiting", "working", "writing", "pausing"]

ON_KAFKA: Final[frozenset[StepName]] = frozenset({"waiting", "writing"})
"""Steps that end in moments as long as Kafka answers. The others take as long as there is work."""


TRIES: Final = 5
"""A record at which the task has failed so many times in a row makes its service not ready."""


class TaskStep:
    """The step at hand and when it began, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin another step, or the same one once more."""
        self.name: StepName = name
        self.since = time.monotonic()


@dataclass(frozen=True)
class InputPlace:
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


ServiceName = Literal["worker", "budget", "feed"]
"""The services that engines run."""


@dataclass(frozen=True)
class EngineRole:
    """Which processor an engine runs, and under which names Kafka knows it."""

    name: ServiceName
    group: str
    status: str
    make: Callable[[int], Processor]
    reports: bool = True
    """Whether its restores are told on the status topic, partition by partition."""

    patience: float = 0.0
    """Seconds that what is written to the changelog alone may wait for its transaction: only if nobody else reads it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Fields of the partitions' log lines beside role and partition, such as the source."""

    process: str = ""
    """The process's name, where it is not to be made of host and number."""

    @property
    def member(self) -> str:
        """This process's name in the group, and in what it reports."""
        return self.process or f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """The static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"


_COMBINED: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "partitions": sum,
    "member": min,
    "ready": min,
    "failing": sum,
    "step_seconds": max,
}
"""What becomes of a gauge that several engines of one process set."""


class Metrics:
    """Counters and histograms of one engine, in base units."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            f"sotto_{role}_events", "Input events answered and committed.", registry=self.registry
        )
        self.busy = Counter(
            f"sotto_{role}_busy",
            "Questions refused because too much work was outstanding.",
            registry=self.registry,
        )
        self.failures = Counter(
            f"sotto_{role}_partition_failures",
            "Times a partition was dropped and restored.",
            registry=self.registry,
        )
        self.unread = Counter(
            f"sotto_{role}_unread",
            "Events and batches refused unread, and those of tables passed over.",
            registry=self.registry,
        )
        self.gone = Counter(
            f"sotto_{role}_input_gone",
            "Input records that were deleted before they were read, at most.",
            registry=self.registry,
        )
        self.recreated = Counter(
            f"sotto_{role}_input_recreated",
            "Times a partition found that an input topic had been deleted and created again.",
            registry=self.registry,
        )
        self.restored = Counter(
            f"sotto_{role}_restored_records", "Records read to restore state.", registry=self.registry
        )
        self.partitions = Gauge(f"sotto_{role}_partitions", "Partitions owned now.", registry=self.registry)
        self.member = Gauge(
            f"sotto_{role}_member",
            "Whether Kafka lists this process in its consumer group, as a spare or with partitions.",
            registry=self.registry,
        )
        self.ready = Gauge(f"sotto_{role}_ready", "Whether /readyz says so.", registry=self.registry)
        self.failing = Gauge(
            f"sotto_{role}_failing_partitions",
            "Partitions owned that are beyond those of other topics, have done nothing but start over for a minute, or whose restore has not gone on.",
            registry=self.registry,
        )
        self.step_seconds = Gauge(
            f"sotto_{role}_step_seconds",
            "How long the longest step at hand has taken: a restore, a batch, a wait for Kafka.",
            registry=self.registry,
        )
        self.restore_seconds = Histogram(
            f"sotto_{role}_restore_seconds", "From fence to ready.", registry=self.registry
        )
        self.batch_seconds = Histogram(
            f"sotto_{role}_batch_seconds", "From records in hand to transaction committed.", registry=self.registry
        )
        self._parts: dict[str, dict[str, float]] = {name: {} for name in _COMBINED}

    def part(self, name: str) -> PartMetrics:
        """The same for one of several engines of a process: they count together, and their gauges are combined."""
        return PartMetrics(self, name)

    def drop(self, name: str) -> None:
        """Forget the gauges of an engine that is no more."""
        for values in self._parts.values():
            values.pop(name, None)

    def set_part(self, gauge: str, part: str, value: float) -> None:
        """Set one engine's share of a gauge."""
        values = self._parts[gauge]
        values[part] = value
        shown: Gauge = getattr(self, gauge)
        shown.set(_COMBINED[gauge](values.values()))


class PartMetrics:
    """One engine's share of a process's figures."""

    def __init__(self, whole: Metrics, name: str) -> None:
        self.events, self.busy, self.failures = whole.events, whole.busy, whole.failures
        self.unread, self.gone, self.restored = whole.unread, whole.gone, whole.restored
        self.recreated = whole.recreated
        self.restore_seconds, self.batch_seconds = whole.restore_seconds, whole.batch_seconds
        self.partitions, self.member, self.ready, self.failing, self.step_seconds = (
            GaugeShare(whole, gauge, name) for gauge in _COMBINED
        )


class GaugeShare:
    """One engine's share of a gauge."""

    def __init__(self, whole: Metrics, gauge: str, part: str) -> None:
        self._whole, self._gauge, self._part = whole, gauge, part

    def set(self, value: float) -> None:
        """Say what it is now."""
        self._whole.set_part(self._gauge, self._part, value)
