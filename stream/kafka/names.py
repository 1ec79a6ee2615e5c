"""The consumer groups of an installation's services."""

from __future__ import annotations

from stream.settings import Settings


def worker_group(settings: Settings) -> str:
    """The workers' consumer group."""
    return f"{settings.prefix}-workers"


def budget_group(settings: Settings) -> str:
    """The budget service's consumer group."""
    return f"{settings.prefix}-budget"


def feed_groups(settings: Settings) -> str:
    """How the names of the feeds' consumer groups begin: each live topic's source has one of its own."""
    return f"{settings.prefix}-feed-"


def merging_group(settings: Settings) -> str:
    """The feeds' consumer group for what their tasks leave to be merged."""
    return f"{settings.prefix}-merging"


def monitor_group(settings: Settings) -> str:
    """The beginning of the monitors' consumer groups: each monitor has one of its own."""
    return f"{settings.prefix}-monitor"


def alerts_group(settings: Settings, target: str = "") -> str:
    """The consumer group of a target of alerts: each has one of its own."""
    return f"{settings.prefix}-alerts-{target}"
