"""The consumer groups of an installation's services."""

from __future__ import annotations

from stream.settings import Settings


def worker_group(settings: Settings) -> str:
    """The workers' consumer group."""
    return f"{settings.prefix}-workers"


def budget_group(settings: Settings) -> str:
    """The budget service's consumer group."""
    return f"{settings.prefix}-budget"


def monitor_group(settings: Settings) -> str:
    """The beginning of the monitors' consumer groups: each monitor has one of its own."""
    return f"{settings.prefix}-monitor"
