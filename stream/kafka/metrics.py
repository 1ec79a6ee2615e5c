"""What an engine counts. No label ever names a stream: that would tell who asks what, and would not scale."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server


class Metrics:
    """Counters and histograms of one engine, in base units."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            f"sotto_{role}_events", "Input events answered and committed.", registry=self.registry
        )
        self.failures = Counter(
            f"sotto_{role}_partition_failures",
            "Times a partition was dropped and restored.",
            registry=self.registry,
        )
        self.restored = Counter(
            f"sotto_{role}_restored_records", "Records read to restore state.", registry=self.registry
        )
        self.partitions = Gauge(f"sotto_{role}_partitions", "Partitions owned now.", registry=self.registry)
        self.restore_seconds = Histogram(
            f"sotto_{role}_restore_seconds", "From fence to ready.", registry=self.registry
        )
        self.batch_seconds = Histogram(
            f"sotto_{role}_batch_seconds", "From records in hand to transaction committed.", registry=self.registry
        )

    def serve(self, host: str, port: int) -> None:
        """Offer the figures at an address; port 0 offers nothing."""
        if port:
            start_http_server(port, addr=host, registry=self.registry)
