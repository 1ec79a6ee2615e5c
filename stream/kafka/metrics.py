"""What an engine counts. No label ever names a stream: that would tell who asks what, and would not scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
            Share(whole, gauge, name) for gauge in _COMBINED
        )


class Share:
    """One engine's share of a gauge."""

    def __init__(self, whole: Metrics, gauge: str, part: str) -> None:
        self._whole, self._gauge, self._part = whole, gauge, part

    def set(self, value: float) -> None:
        """Say what it is now."""
        self._whole.set_part(self._gauge, self._part, value)
