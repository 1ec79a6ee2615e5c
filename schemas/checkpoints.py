"""Checkpoints: a stream's mechanism state in the workers' compacted changelog. Nothing private, nothing secret."""

from __future__ import annotations

from schemas.base import Count, Event, Incarnation, Reason
from schemas.charges import StreamState


class Checkpoint(Event):
    """All that a successor needs beside the stream's definition: noise is derived anew, never stored.

    ``offset`` is the last query event that the stream answered, −1 before the first.
    """

    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    offset: int
    reason: Reason | None = None


class Progress(Event):
    """How far a partition's input has been answered: the next offset to read."""

    offset: Count
