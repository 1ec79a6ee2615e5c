"""Status: a rate-limited digest per stream, so that dashboards cost nothing per query."""

from __future__ import annotations

from schemas.base import Amount, Count, Event, Identifier, Incarnation, Position
from schemas.charges import StreamState


class StreamStatus(Event):
    """A stream's totals at ``position``, the last query that it answered; the latest wins."""

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    tops_left: Count
    spent: Amount
    alpha: float
    position: Position
