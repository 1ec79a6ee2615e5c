"""Status: a rate-limited digest per stream, so that dashboards cost nothing per query."""

from __future__ import annotations

from typing import ClassVar, Literal

from schemas.base import Amount, Count, Event, Identifier, Incarnation, Position, Reason, SparingEvent, Surplus
from schemas.charges import StreamState


class StreamStatus(SparingEvent):
    """A stream's totals at ``position``, the last query that it answered; the latest wins.

    ``refused`` says why its worker does not answer for it now, though the stream has not ended: its table is another, or the
    noise key is not there.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"surplus"})

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    tops_left: Count | None
    spent: Amount
    alpha: float
    position: Position
    refused: Reason | None = None
    surplus: Surplus = 0


class PartitionStatus(Event):
    """How far a service has restored one input partition; the latest wins.

    Written while a partition is restored and once when it is ready, under a key that no stream's name can be
    (``@role|partition``). ``records`` are read so far, of at most ``total`` offsets.
    """

    role: Literal["worker", "budget", "feed"]
    partition: Count
    member: str
    phase: Literal["restoring", "ready"]
    records: Count
    total: Count
    seconds: float


class MemberStatus(Event):
    """A service process that runs; the latest wins.

    Written every ten seconds under a key that no stream's name can be (``@member|NAME``), and taken back when the process
    leaves; that of one that was killed stays. ``started`` is in seconds since the epoch, ``memory`` what it takes up, in bytes.
    """

    role: Literal["worker", "budget", "feed"]
    member: str
    version: str
    started: float
    memory: Count
