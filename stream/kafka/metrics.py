"""What an engine counts. No label ever names a stream: that would tell who asks what, and would not scale."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


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
            "Partitions owned that have done nothing but start over for a minute.",
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
