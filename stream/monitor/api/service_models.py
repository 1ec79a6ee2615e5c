"""The API's models of services, partitions, alerts, dead letters and feeds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas import StreamState, Window
from stream.engine.health import ServiceName
from stream.monitor.api.models import MAX_PAGE, ApiModel, HiddenLag, Name, Parameters, Time


class Restore(ApiModel):
    """A partition's last restore: records read so far, and offsets to read."""

    phase: Literal["restoring", "ready"]
    records: int
    total: int
    seconds: float
    updated: Time


class PartitionRow(ApiModel):
    """One input partition of a service."""

    role: ServiceName
    partition: int
    member: Annotated[str | None, Field(description="The process that has the partition; null without one.")]
    position: Annotated[int | None, Field(description="The next offset to process, as committed.")]
    end: int
    lag: Annotated[
        int, Field(description="Number of unprocessed offsets: events, and the ends of transactions between them.")
    ]
    hidden_lag: HiddenLag = 0
    events_per_second: Annotated[float, Field(description="Over the last minute.")]
    restore: Restore | None


class MemberRow(ApiModel):
    """One running service process; the heartbeat's fields are null before the first heartbeat."""

    member: str
    role: ServiceName
    host: str
    partitions: list[int]
    lag: int
    hidden_lag: HiddenLag = 0
    events_per_second: float
    version: str | None = None
    started: Time | None = None
    memory: Annotated[int | None, Field(description="Bytes of memory.")] = None
    heard: Annotated[Time | None, Field(description="Time of its last heartbeat.")] = None
    not_ready: Annotated[
        str | None, Field(description="Why the process's /readyz was 503 then; null if it was ready.")
    ] = None


class WorkersView(ApiModel):
    """The services' processes and partitions, with their lag."""

    time: Time
    members: list[MemberRow]
    partitions: list[PartitionRow]

    def runs(self, role: ServiceName) -> bool:
        """Return True if a service has a process, or its processes are not known yet."""
        return not self.time or any(member.role == role for member in self.members)


Group = Annotated[
    dict[str, str | int | float], Field(description="The value of each attribute; empty without groups.")
]


class AlertQuery(Parameters):
    """Filters alerts; ``search`` matches stream names and values of groups."""

    search: Annotated[Name, Field(description="Part of a name or a value, in any case.")] = ""
    source: Name | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class AlertRow(ApiModel):
    """One alert: a window of a stream and group above the threshold, with its commit time."""

    time: Time
    stream: str
    source: str | None
    group: Group
    window: Window | None
    estimate: float | None
    alpha: float | None
    tops_left: Annotated[int | None, Field(description="Number of alerts that the stream had left.")]
    threshold: float | None
    """The stream's threshold; a question may have another one."""
    condition: Annotated[str | None, Field(description="Condition of the events that count; null without one.")]
    counted: str = ""
    """The source's contribution bound as a sentence; empty without one."""
    warnings: list[str]
    """Warnings about the window's estimate, for example of clamped values or missing events."""


class FiringRow(ApiModel):
    """A stream and group whose latest answered window was above the threshold.

    ``state`` is the state of the stream. Exhausted streams are listed, because they may be extended; halted,
    closed and retired streams are not.
    """

    since: float
    """End of the first window of this series of alerts, in seconds since the epoch."""
    alerts: Annotated[int, Field(description="Number of alerts of this series so far.")]
    latest: AlertRow
    state: StreamState | None


class AlertingSource(ApiModel):
    """A source's numbers of ``firing`` alerts, without exhausted streams, and of the latest ``alerts`` in memory."""

    source: str
    firing: int
    alerts: int


class AlertsView(ApiModel):
    """Firing alerts, longest first, and the latest alerts."""

    shown: Annotated[bool, Field(description="True if this monitor reads answers (SOTTO_MONITOR_ALERTS).")]
    complete: bool
    """True once the answers of the look-back time, the streams and the sources are read."""
    firing_total: int
    """Number of firing alerts whose stream still answers, so that a later answer can resolve them."""
    exhausted_total: int
    """Number of firing alerts of exhausted streams. The list ``firing`` contains them too."""
    firing_matching: int
    firing: list[FiringRow]
    total: int
    """Number of the latest alerts that the monitor keeps in memory; ``recent`` lists those that match."""
    matching: int
    recent: list[AlertRow]
    sources: list[AlertingSource]


class RejectedReason(ApiModel):
    """The number of dead letters for one reason."""

    code: str
    count: int
    last: Time


class RejectedEvent(ApiModel):
    """One dead letter: its position and its question's stream and id; nothing else is shown."""

    time: Time
    topic: str
    partition: int
    offset: int
    code: str
    message: str
    stream: Annotated[str | None, Field(description="The question's stream, if readable.")]
    id: Annotated[str | None, Field(description="The question's id, if readable.")]


class RejectedView(ApiModel):
    """Dead letters in the topic, by reason, and the latest letters that match, newest first.

    The latest hundred letters of each reason are kept; ``matching`` is the number of letters that match.
    """

    total: int
    reasons: list[RejectedReason]
    matching: int
    recent: list[RejectedEvent]


class RefusedEvents(ApiModel):
    """The share of a live topic's latest events that one of its ``sources`` or more refused."""

    sources: list[str]
    topic: str
    events: int
    """Number of events to which the share refers: the latest 1,000 or fewer of each partition that has refused events."""
    share: Annotated[str, Field(description="The share as a range, such as '50 to 90 %'.")]
    at_least: Annotated[float, Field(description="Lower end of that range, between 0 and 1.")]
    reason: Annotated[str, Field(description="The most frequent reason: code, problem and remedy.")]
    last: Time


class RefusalsView(ApiModel):
    """Live topics with events that were refused in the last 24 hours."""

    items: list[RefusedEvents]


class FeedProcess(ApiModel):
    """One running feed process; the heartbeat's fields are null before the first heartbeat."""

    member: str
    started: Time | None
    memory: Annotated[int | None, Field(description="Bytes of memory.")]


class FeedView(ApiModel):
    """The public progress of a live topic's feed, and all feed processes."""

    topic: str
    clock: Literal["broker", "marks"]
    idle: str | None
    """How far the clock of a partition without events stays behind the feed's clock; null with watermarks."""
    asked_to: Time | None
    """End of the last answered window in event time; null before any, and if it is unknown, as after an extension."""
    asked_at: Annotated[Time | None, Field(description="Time of the last answer of its streams, if known.")]
    is_asked: Annotated[bool, Field(description="True if its streams have answered.")]
    processes: list[FeedProcess]
