"""What the sender of alerts counts, by target. No label names a stream."""

from __future__ import annotations

from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stream.alerts.sending import Failure

Reason = Literal["old", "refused", "room"]
"""Why an alert is given up."""


class AlertMetrics:
    """Counters and gauges of one process, in base units."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ready = Gauge("sotto_alerts_ready", "Whether /readyz says so.", registry=self.registry)
        self.delivered = Counter(
            "sotto_alerts_delivered", "Alerts that a target has taken.", ["target"], registry=self.registry
        )
        self.dropped = Counter(
            "sotto_alerts_dropped",
            "Alerts given up, as too old or refused, or alarms forgotten for want of room.",
            ["target", "reason"],
            registry=self.registry,
        )
        self.failures = Counter(
            "sotto_alerts_failures", "Requests that failed.", ["target", "reason"], registry=self.registry
        )
        self.waiting = Gauge(
            "sotto_alerts_waiting_seconds",
            "Age of the alert that a target has not taken yet; 0 if there is none.",
            ["target"],
            registry=self.registry,
        )
        self.firing = Gauge(
            "sotto_alerts_firing", "Alarms that an Alertmanager is told of.", ["target"], registry=self.registry
        )
        self.unreadable = Counter(
            "sotto_alerts_unreadable", "Answers passed over as unreadable.", ["target"], registry=self.registry
        )
        self.delay_seconds = Histogram(
            "sotto_alerts_delay_seconds",
            "From the answer's commit to the target's taking it.",
            ["target"],
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400),
            registry=self.registry,
        )

    def of(self, target: str) -> TargetMetrics:
        """A target's own."""
        return TargetMetrics(self, target)


class TargetMetrics:
    """The figures of one target; all are there from the start."""

    def __init__(self, metrics: AlertMetrics, target: str) -> None:
        self.delivered = metrics.delivered.labels(target)
        self.waiting = metrics.waiting.labels(target)
        self.firing = metrics.firing.labels(target)
        self.unreadable = metrics.unreadable.labels(target)
        self.delay_seconds = metrics.delay_seconds.labels(target)
        # To Prometheus a series that begins at 1 has not grown: nobody would be told of the first one.
        self._dropped = {reason: metrics.dropped.labels(target, reason) for reason in get_args(Reason)}
        self._failures = {failure: metrics.failures.labels(target, failure) for failure in get_args(Failure)}

    def dropped(self, reason: Reason, count: int = 1) -> None:
        """Count alerts that were given up."""
        self._dropped[reason].inc(count)

    def failed(self, failure: Failure) -> None:
        """Count a request that failed."""
        self._failures[failure].inc()
