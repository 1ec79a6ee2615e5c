"""Tells the statements of a table engine that their partition has been given up."""

from __future__ import annotations

from contextvars import ContextVar
from threading import Event
from typing import Final


class CancelledStepError(Exception):
    """The partition of this step has been given up, and so the step has been cancelled."""


current_cancellation: Final[ContextVar[Event | None]] = ContextVar("current_cancellation", default=None)
"""Set when the partition whose step runs in this context is given up."""


def is_step_cancelled() -> bool:
    """Return whether the partition of the current step has been given up."""
    return (event := current_cancellation.get()) is not None and event.is_set()
