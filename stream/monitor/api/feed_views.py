"""The progress of a live topic's feed, from its public clock and its streams' answers.

Each window is asked in order, for all groups, so that the number of answers gives the last window.
The numbers of unread events and of events in open windows are private and not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from typing import Final

from schemas import EventsSource, GrantRecord, Histogram, StandingQuery, moment_ms
from schemas.wire import MalformedEventError
from stream.monitor.api.service_models import FeedProcess, FeedView, MemberRow
from stream.monitor.api.views import definition, grant_record
from stream.monitor.state.entries import SourceEntry, StreamEntry
from stream.monitor.state.monitor_tables import Tables

LOOKED_AT: Final = 8
"""Number of a source's streams, latest answers first, from which the progress is computed."""


def feed_of(tables: Tables, entry: SourceEntry, members: Iterable[MemberRow]) -> FeedView | None:
    """Return the feed of a live topic; None for other sources and for accounts of periods."""
    record = entry.record.source
    if record.kind != "events" or record.period_of is not None:
        return None
    try:
        source = definition(tables, entry)
    except MalformedEventError:
        return None
    if not isinstance(source, EventsSource):
        return None
    latest = _answered_last(tables, source.source)
    ends = [end for one in latest if (end := _asked_to(one, source)) is not None]
    return FeedView(
        topic=source.topic,
        clock=source.clock,
        idle=source.idle if source.clock == "broker" else None,
        asked_to=max(ends, default=None),
        asked_at=max((one.updated for one in latest if one.updated is not None), default=None),
        processes=[
            FeedProcess(member=one.member, started=one.started, memory=one.memory)
            for one in members
            if one.role == "feed"
        ],
    )


def _answered_last(tables: Tables, source: str) -> list[StreamEntry]:
    """Return the streams with the latest answers; of the latest two periods, as one may be new."""
    starts = tables.source_lines.periods(source)[-2:]
    accounts = [f"{source}@{start}" for start in starts] or [source]
    answered = (one for account in accounts for one in tables.streams_of(account) if one.answered)
    return nlargest(LOOKED_AT, answered, key=lambda one: one.updated or 0.0)


def window_end(record: GrantRecord, standing: StandingQuery, source: EventsSource, answered: int) -> int | None:
    """Return the end of the last completely answered window in milliseconds; None if unknown.

    It is unknown for an extended stream, which may have skipped windows while it was exhausted.
    """
    if standing.begins is None or record.extensions:
        return None
    whole = isinstance(record.spec.mechanism, Histogram)
    groups = 1 if whole else math.prod(source.attributes[name].size for name in standing.by)
    windows = answered // groups
    if not windows:
        return None
    window = standing.window
    return window.first_from(moment_ms(standing.begins)) + (windows - 1) * window.every_ms + window.size_ms


def _asked_to(entry: StreamEntry, source: EventsSource) -> float | None:
    try:
        record = grant_record(entry)
    except MalformedEventError:
        return None  # written by a later version
    standing = record.spec.standing
    end = None if standing is None else window_end(record, standing, source, entry.answered)
    return None if end is None else end / 1000
