"""What the API answers about the services: who runs, which partitions each has, and how far behind they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from schemas import StreamState, Window
from stream.engine.task_status import ServiceName
from stream.monitor.api.models import Time, View


class Restore(View):
    """A partition's last restore: records read so far, and the offsets there are to read."""

    phase: Literal["restoring", "ready"]
    records: int
    total: int
    seconds: float
    updated: Time


class PartitionRow(View):
    """One input partition of a service."""

    role: ServiceName
    partition: int
    member: Annotated[str | None, Field(description="Who has it; null while nobody does.")]
    position: Annotated[int | None, Field(description="The next offset to be answered, as committed.")]
    end: int
    lag: int
    events_per_second: Annotated[float, Field(description="Over the last minute.")]
    restore: Restore | None


class MemberRow(View):
    """One running service process; what it says of itself is null until it has said it."""

    member: str
    role: ServiceName
    host: str
    partitions: list[int]
    lag: int
    events_per_second: float
    version: str | None = None
    started: Time | None = None
    memory: Annotated[int | None, Field(description="Bytes that it takes up.")] = None
    heard: Annotated[Time | None, Field(description="When it last said that it runs.")] = None


class WorkersView(View):
    """Who answers what, and how far behind."""

    time: Time
    members: list[MemberRow]
    partitions: list[PartitionRow]


Group = Annotated[dict[str, str | int], Field(description="The value of each attribute; empty without groups.")]
MAX_PAGE = 500


class AlertQuery(View):
    """Which alerts to list; ``search`` looks at the names of streams and at the values of groups."""

    model_config = ConfigDict(strict=False)

    search: Annotated[
        str, StringConstraints(max_length=128), Field(description="Part of a name or a value, in any case.")
    ] = ""
    source: Annotated[str, StringConstraints(max_length=128)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class AlertRow(View):
    """One alert: a window of a stream and group that was above its threshold, in its time of commit."""

    time: Time
    stream: str
    source: str | None
    group: Group
    window: Window | None
    estimate: float | None
    alpha: float | None
    tops_left: Annotated[int | None, Field(description="How many alerts the stream had left.")]
    counted: Annotated[
        str, Field(description="How many rows or events of one person count; empty where the source bounds none.")
    ] = ""


class FiringRow(View):
    """A stream and group whose latest answered window was above.

    ``state`` is the stream's: one that is not open any more fires for want of an answer that says otherwise.
    """

    since: Annotated[float, Field(description="End of the first window of the run, in seconds since the epoch.")]
    alerts: Annotated[int, Field(description="Alerts of the run so far.")]
    latest: AlertRow
    state: StreamState | None


class AlertingSource(View):
    """How much fires of a source, and how many of its alerts are kept."""

    source: str
    firing: int
    alerts: int


class AlertsView(View):
    """What is firing, the longest first, and the latest alerts."""

    shown: Annotated[bool, Field(description="Whether this monitor reads answers: SOTTO_MONITOR_ALERTS.")]
    complete: Annotated[
        bool, Field(description="Whether all that is looked back on has been read, and whose it is is known.")
    ]
    firing_total: int
    firing_matching: int
    firing: list[FiringRow]
    total: Annotated[int, Field(description="Alerts kept, of which the latest that match are listed.")]
    matching: int
    recent: list[AlertRow]
    sources: list[AlertingSource]


class RejectedReason(View):
    """How many events were refused for one reason."""

    code: str
    count: int
    last: Time


class RejectedEvent(View):
    """One refused event, named by its position and, of a question, its address; the rest of it is never shown."""

    time: Time
    topic: str
    partition: int
    offset: int
    code: str
    message: str
    stream: Annotated[str | None, Field(description="The stream that was asked, where that can be read.")]
    id: Annotated[str | None, Field(description="The question's id, where that can be read.")]


class RejectedView(View):
    """Refused events that the log still holds, by reason, with the latest ones of those asked for, newest first.

    The latest hundred of each reason are remembered; ``matching`` counts those that match.
    """

    total: int
    reasons: list[RejectedReason]
    matching: int
    recent: list[RejectedEvent]


class FeedProcess(View):
    """One running feed process; what it says of itself is null until it has said it."""

    member: str
    started: Time | None
    memory: Annotated[int | None, Field(description="Bytes that it takes up.")]


class FeedView(View):
    """How far the feed of a live topic is, from what is public, and which processes feed: any may have partitions of it."""

    topic: str
    clock: Literal["broker", "marks"]
    idle: Annotated[
        str | None, Field(description="How far a silent partition's clock is behind; null for a clock of marks.")
    ]
    asked_to: Annotated[
        Time | None,
        Field(
            description="The end of the last window that was asked and answered, by the events' time; null before any."
        ),
    ]
    asked_at: Annotated[Time | None, Field(description="When a stream of it was last answered for.")]
    processes: list[FeedProcess]
