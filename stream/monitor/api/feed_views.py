"""Computes the progress of live topics' feeds, and which live topics are not asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Final

from schemas import EventsSource, GrantRecord, StandingQuery, moment_ms
from schemas.windows import span_ms
from schemas.wire import MalformedEventError
from stream.monitor.api.models import StalledSource
from stream.monitor.api.service_models import FeedProcess, FeedView, MemberRow, WorkersView
from stream.monitor.api.views import definition, grant_record
from stream.monitor.state.entries import SourceEntry, StreamEntry
from stream.monitor.state.monitor_tables import MonitorTables
from stream.processing.control_order import questions_per_window

FEED_STREAMS: Final = 8
"""Number of streams from which a feed's progress is computed: those with the latest answers."""
STALL_SECONDS: Final = 15.0
"""Seconds for which a closed window may be without an answer: workers report their totals every few seconds."""


def feed_of(tables: MonitorTables, entry: SourceEntry, members: Iterable[MemberRow]) -> FeedView | None:
    """Return the feed of a live topic; None for other sources and for accounts of periods.

    Windows are asked in order, each for all groups: the number of answers determines the last window.
    The numbers of unread events and of events in open windows are private and not shown.
    """
    record = entry.record.source
    if record.kind != "events" or record.period_of is not None:
        return None
    try:
        source = definition(tables, entry)
    except MalformedEventError:
        return None
    if not isinstance(source, EventsSource):
        return None
    latest = _latest_answered(tables, source.source)
    ends = [end for one in latest if (end := _last_window_end(one, source)) is not None]
    return FeedView.from_record(
        source,
        idle=source.idle if source.clock == "broker" else None,
        asked_to=max(ends, default=None),
        asked_at=max((one.updated for one in latest if one.updated is not None), default=None),
        processes=[FeedProcess.from_record(one) for one in members if one.role == "feed"],
    )


def _latest_answered(tables: MonitorTables, source: str) -> list[StreamEntry]:
    """Return the streams with the latest answers, from two periods: the last may have no answers yet."""
    answered = (one for one in _streams_of(tables, source) if one.answered)
    return nlargest(FEED_STREAMS, answered, key=lambda one: one.updated or 0.0)


def _streams_of(tables: MonitorTables, source: str) -> Iterator[StreamEntry]:
    """Yield a source's streams, those of its last two periods if it has periods."""
    starts = tables.source_periods.starts_of(source)[-2:]
    for account in [f"{source}@{start}" for start in starts] or [source]:
        yield from tables.streams_of(account)


def stalled_sources(tables: MonitorTables, workers: WorkersView, now: float) -> list[StalledSource]:
    """Return the live topics with open streams whose next window should have been answered by now.

    The monitor knows that no feed runs, and when the last window was answered. By watermarks, and between
    two periods, no window is due at a known time: such a source stalls only if no feed runs.
    """
    if not workers.time:
        return []  # the consumer groups are not known yet
    runs = any(one.role == "feed" for one in workers.members)
    found = []
    for name in tables.source_periods:
        entry = tables.sources.get(name)
        if entry is None or entry.record.state != "open" or entry.record.source.kind != "events":
            continue
        try:
            source = definition(tables, entry)
        except MalformedEventError:
            continue
        if not isinstance(source, EventsSource):
            continue
        is_timed = source.clock == "broker"
        if runs and (not is_timed or source.period is not None):
            continue
        streams = [one for one in _streams_of(tables, name) if one.state == "open" and one.ending is None]
        latest = nlargest(FEED_STREAMS, streams, key=lambda one: one.updated or 0.0)
        stalled = [one for one in latest if not is_timed or _is_overdue(one, source, now)]
        if stalled:
            ends = [end for one in stalled if (end := _last_window_end(one, source)) is not None]
            updates = [one.updated for one in stalled if one.answered and one.updated is not None]
            found.append(StalledSource(source=name, since=max(ends or updates, default=None), feed_runs=runs))
    return found


def _is_overdue(entry: StreamEntry, source: EventsSource, now: float) -> bool:
    """Return True if the window after the last answered one closed more than ``STALL_SECONDS`` ago."""
    try:
        standing = grant_record(entry).spec.standing
    except MalformedEventError:
        return False
    if standing is None:
        return False
    if (end := _last_window_end(entry, source)) is not None:
        following = end * 1000 + standing.window.every_ms
    elif entry.answered:  # an extended stream, of which only the time of its last answer is known
        following = (entry.updated or now) * 1000 + standing.window.every_ms
    elif standing.begins is not None:
        following = standing.window.first_from(moment_ms(standing.begins)) + standing.window.size_ms
    else:
        return False
    closes = following + span_ms(standing.lateness) + span_ms(source.idle)
    return now > closes / 1000 + STALL_SECONDS


def window_end(record: GrantRecord, standing: StandingQuery, source: EventsSource, answered: int) -> int | None:
    """Return the end of the last completely answered window in milliseconds; None if unknown.

    It is unknown for an extended stream, which may have skipped windows while it was exhausted.
    """
    if standing.begins is None or record.extensions:
        return None
    windows = answered // questions_per_window(source, record.spec.mechanism, standing)
    if not windows:
        return None
    window = standing.window
    return window.first_from(moment_ms(standing.begins)) + (windows - 1) * window.every_ms + window.size_ms


def _last_window_end(entry: StreamEntry, source: EventsSource) -> float | None:
    try:
        record = grant_record(entry)
    except MalformedEventError:
        return None  # written by a later version
    standing = record.spec.standing
    end = None if standing is None else window_end(record, standing, source, entry.answered)
    return None if end is None else end / 1000
