"""What the API answers of alerts."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from schemas import StreamState, Window
from stream.monitor.models import Time, View

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
