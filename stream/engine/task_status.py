"""Roles of engines, and the steps, failures and metrics of their partition tasks."""

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
"""Steps that end soon if Kafka answers. Others may take any time."""


SHOWN_AFTER_FAILURES: Final = 5
"""Failures in a row at one record that make the service not ready."""


class TaskStep:
    """The current step and its start on the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin a step, or the same one again."""
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

        An invalid input topic is shown at once, any other reason after ``SHOWN_AFTER_FAILURES`` failures at one
        record.
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

        Commits of other inputs, or of earlier records, do not end them: a restored partition
        repeats those. If no record failed, any commit ends failures of Kafka.
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
"""The services that run engines."""


@dataclass(frozen=True)
class EngineRole:
    """The processor of an engine and its names in Kafka."""

    name: ServiceName
    group: str
    status: str
    make: Callable[[int], Processor]
    reports: bool = True
    """Whether restores are reported on the status topic."""

    patience: float = 0.0
    """Seconds that changelog-only writes may wait, if no other service reads them."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Fields of log lines in addition to role and partition, such as the source."""

    process: str = ""
    """The process's name, if it is not host and number."""

    @property
    def member(self) -> str:
        """This process's name in the group and in its reports."""
        return self.process or f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """Return the static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"


_COMBINED: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "partitions": sum,
    "member": min,
    "ready": min,
    "failing": sum,
    "step_seconds": max,
}
"""How a gauge combines the values of several engines in one process."""


class Metrics:
    """Counters, gauges and histograms of a service, in base units."""

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
            "Events and batches refused as unreadable, and skipped records of tables.",
            registry=self.registry,
        )
        self.gone = Counter(
            f"sotto_{role}_input_gone",
            "Upper bound for input records that were deleted before they were read.",
            registry=self.registry,
        )
        self.recreated = Counter(
            f"sotto_{role}_input_recreated",
            "Times an input topic was found to have been deleted and created again.",
            registry=self.registry,
        )
        self.restored = Counter(
            f"sotto_{role}_restored_records", "Records read to restore state.", registry=self.registry
        )
        self.partitions = Gauge(f"sotto_{role}_partitions", "Partitions owned now.", registry=self.registry)
        self.member = Gauge(
            f"sotto_{role}_member",
            "Whether Kafka lists this process in its consumer group, with or without partitions.",
            registry=self.registry,
        )
        self.ready = Gauge(f"sotto_{role}_ready", "Whether /readyz reports ready.", registry=self.registry)
        self.failing = Gauge(
            f"sotto_{role}_failing_partitions",
            "Owned partitions that were refused, or have been failing or restoring without progress for a minute.",
            registry=self.registry,
        )
        self.step_seconds = Gauge(
            f"sotto_{role}_step_seconds",
            "Age of the longest current step: a restore, a batch or a wait for Kafka.",
            registry=self.registry,
        )
        self.restore_seconds = Histogram(
            f"sotto_{role}_restore_seconds", "Time from fence to ready.", registry=self.registry
        )
        self.batch_seconds = Histogram(
            f"sotto_{role}_batch_seconds",
            "Time from a fetched batch to its committed transaction.",
            registry=self.registry,
        )
        self._parts: dict[str, dict[str, float]] = {name: {} for name in _COMBINED}

    def part(self, name: str) -> PartMetrics:
        """Return the metrics of one engine; counters are shared, and gauges are combined."""
        return PartMetrics(self, name)

    def drop(self, name: str) -> None:
        """Remove the gauges of an engine."""
        for values in self._parts.values():
            values.pop(name, None)

    def set_part(self, gauge: str, part: str, value: float) -> None:
        """Set one engine's share of a gauge."""
        values = self._parts[gauge]
        values[part] = value
        shown: Gauge = getattr(self, gauge)
        shown.set(_COMBINED[gauge](values.values()))


class PartMetrics:
    """One engine's share of a process's metrics."""

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
        """Set the share."""
        self._whole.set_part(self._gauge, self._part, value)
