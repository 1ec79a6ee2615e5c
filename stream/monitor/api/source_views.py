"""Lists of sources, streams and refused events, with search and pages; progress of live topics' feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from pydantic import BeforeValidator, Field

from schemas import (
    STREAM_STATES,
    EventsSource,
    GrantRecord,
    StandingQuery,
    StreamState,
    moment_ms,
    split_period_name,
)
from schemas.windows import span_ms
from stream.monitor.api.models import MAX_PAGE, Name, Parameters, SourcePage, StalledSource, StreamPage
from stream.monitor.api.service_models import (
    FeedProcess,
    FeedView,
    MemberRow,
    RefusalsView,
    RefusedEvents,
    RejectedEvent,
    RejectedReason,
    RejectedView,
    WorkersView,
)
from stream.monitor.api.views import (
    NewerRecordError,
    decode_definition,
    decode_grant,
    left_share,
    population_left_share,
    seconds_until_exhausted,
    source_row_with_periods,
    stream_rates,
    stream_row_with_periods,
)
from stream.monitor.entries import STALL_SECONDS, SourceEntry, StreamEntry
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.stream_totals import PeriodsByName
from stream.privacy.accuracy.source_facts import questions_per_window

_Entry = TypeVar("_Entry", SourceEntry, StreamEntry)
_Item = TypeVar("_Item")
_Key = Any

StreamSort = Literal[
    "stream",
    "source",
    "mechanism",
    "state",
    "answered",
    "tops",
    "tops_left",
    "alpha",
    "above_rate",
    "below_rate",
    "dry_in",
    "updated",
]
SourceSort = Literal["source", "state", "left", "left_share", "streams", "updated"]


class _Page(Parameters):
    search: Annotated[Name, Field(description="Part of a name, in any case.")] = ""
    descending: bool = False
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50


class SourceQuery(_Page):
    """Filters sources. ``search`` matches names, or start times within the periods of one source."""

    of: Annotated[Name | None, Field(description="List only the accounts of this source's periods.")] = None
    state: Literal["open", "halted"] | None = None
    sort: SourceSort = "source"


class StreamQuery(_Page):
    """Filters streams; ``search`` matches the names of stream and source."""

    state: Annotated[
        tuple[StreamState, ...],
        BeforeValidator(lambda value: tuple(value.split(",")) if isinstance(value, str) else value),
    ] = ()
    """States, separated by commas."""
    source: Name | None = None
    of: Annotated[Name | None, Field(description="List only the streams of this stream's periods.")] = None
    mechanism: Name | None = None
    sort: StreamSort = "stream"


class RejectedQuery(Parameters):
    """Filters dead letters; ``search`` matches stream names and ids."""

    search: Annotated[Name, Field(description="Part of a stream's name or of an id, in any case.")] = ""
    code: Annotated[Name | None, Field(description="Only this reason.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


def list_rejected(tables: MonitorTables, query: RejectedQuery) -> RejectedView:
    """Return dead letters by reason, most frequent first, and the latest letters that match."""
    search = query.search.casefold()
    matching = [
        (time, letter)
        for code, letters in tables.recent_rejected.items()
        if query.code in {None, code}
        for time, letter in letters
        if search in (letter.stream or "").casefold() or search in (letter.id or "").casefold()
    ]
    latest = nlargest(query.limit, matching, key=lambda one: (one[0], one[1].offset))
    return RejectedView(
        total=tables.rejected.total(),
        matching=len(matching),
        reasons=[
            RejectedReason(code=code, count=count, last=tables.last_rejected[code])
            for code, count in tables.rejected.most_common()
        ],
        recent=[RejectedEvent(time=time, **msgspec.structs.asdict(letter)) for time, letter in latest],
    )


def list_refusals(tables: MonitorTables, now: float) -> RefusalsView:
    """Return the refused share of each live topic with recently refused events."""
    live = [tables.sources[name].record.source for name in tables.source_periods if name in tables.sources]
    found = []
    for topic, refusals in tables.refusals.items():
        if (share := refusals.share(now)) is not None and (
            names := [one.source for one in live if one.topic == topic]
        ):
            found.append(RefusedEvents.from_record(share, sources=names, topic=topic, last=refusals.last))
    return RefusalsView(items=found)


def list_sources(tables: MonitorTables, query: SourceQuery) -> SourcePage:
    """Return a page of the matching sources."""
    periods = tables.source_periods
    names = _matching_names(periods, query)
    if query.sort == "source" and query.state is None:
        names_on_page = _slice_names(names, query) if query.of is not None else _sort_and_slice(names, str, query)
        matching = len(names)
        page = [entry for name in names_on_page if (entry := _find_entry(tables.sources, periods, name))]
    else:
        key = partial(_sort_key_of, tables, query.sort)
        found = [
            entry
            for name in names
            if (entry := _find_entry(tables.sources, periods, name)) and query.state in {None, entry.record.state}
        ]
        matching = len(found)
        page = _sort_and_slice(
            found,
            lambda one: (key(_latest_entry(tables.sources, periods, one)), one.record.source.source),
            query,
        )
    return SourcePage(
        total=len(periods) if query.of is None else len(periods.starts_of(query.of)),
        matching=matching,
        offset=query.offset,
        items=[source_row_with_periods(tables, entry) for entry in page],
    )


def list_streams(tables: MonitorTables, query: StreamQuery, now: float) -> StreamPage:
    """Return a page of the matching streams; streams without a value to sort by come last."""
    periods = tables.stream_periods
    value_of = partial(seconds_until_exhausted, tables) if query.sort == "dry_in" else _STREAM_KEYS[query.sort]

    def sort_key(entry: StreamEntry) -> _Key:
        value = value_of(_latest_entry(tables.streams, periods, entry), now)
        return (value is None) != query.descending, 0 if value is None else value, entry.name

    if query.of is not None and query.sort == "stream" and not (query.state or query.source or query.mechanism):
        names = _matching_names(periods, query)
        matching, page = len(names), [tables.streams[name] for name in _slice_names(names, query)]
    else:
        found = list(_matching_streams(tables, query))
        matching, page = len(found), _sort_and_slice(found, sort_key, query)
    return StreamPage(
        total=tables.shown_streams if query.of is None else len(periods.starts_of(query.of)),
        matching=matching,
        offset=query.offset,
        items=[stream_row_with_periods(tables, entry, now) for entry in page],
    )


def _matching_streams(tables: MonitorTables, query: StreamQuery) -> Iterable[StreamEntry]:
    search = query.search.casefold()
    states = frozenset(query.state)
    named = None if query.source is None else split_period_name(query.source)
    periods = tables.stream_periods
    names: Iterable[str] = periods if query.of is None else periods.period_names(query.of)
    if named is not None and query.of is None:
        names = periods.names_at(named[1])
    for name in names:
        if (entry := _find_entry(tables.streams, periods, name)) is None or (grant := entry.grant) is None:
            continue
        if (
            (not states or _latest_entry(tables.streams, periods, entry).state in states)
            and query.source in {None, grant.source}
            and query.mechanism in {None, grant.mechanism.kind}
            and (search in entry.name.casefold() or search in grant.source.casefold())
        ):
            yield entry


def _matching_names(periods: PeriodsByName, query: SourceQuery | StreamQuery) -> Sequence[str]:
    """Return the names that match; with ``query.of``, return the matching periods of this name, oldest first."""
    search = query.search.casefold()
    names = list(periods) if query.of is None else periods.period_names(query.of)
    return [name for name in names if search in name.casefold()] if search else names


def _find_entry(entries: Mapping[str, _Entry], periods: PeriodsByName, name: str) -> _Entry | None:
    """Return the entry of a name; if only its periods have entries, return the entry of the latest period."""
    entry = entries.get(name)
    if entry is None or (isinstance(entry, StreamEntry) and entry.grant is None):
        return entries.get(periods.latest_name(name) or "")
    return entry


def _latest_entry(entries: Mapping[str, _Entry], periods: PeriodsByName, entry: _Entry) -> _Entry:
    """Return the entry whose figures lists show: the latest period's if there are periods, else ``entry``."""
    name = entry.name if isinstance(entry, StreamEntry) else entry.record.source.source
    return entries.get(periods.latest_name(name) or "", entry)


def _slice_names(names: Sequence[str], query: _Page) -> Sequence[str]:
    if not query.descending:
        return names[query.offset : query.offset + query.limit]
    end = len(names) - query.offset
    return names[max(end - query.limit, 0) : max(end, 0)][::-1]


def _sort_and_slice(entries: Sequence[_Item], key: Callable[[_Item], _Key], query: _Page) -> list[_Item]:
    choose = nlargest if query.descending else nsmallest
    wanted = query.offset + query.limit
    if wanted * 4 < len(entries):
        return choose(wanted, entries, key=key)[query.offset :]
    return sorted(entries, key=key, reverse=query.descending)[query.offset : wanted]


def _rate(entry: StreamEntry, now: float, name: Literal["above", "below"]) -> float:
    return float(getattr(stream_rates(entry, now)[0], name))


def _sort_key_of(tables: MonitorTables, sort: SourceSort, entry: SourceEntry) -> _Key:
    """Return the value to sort a source by; what is left of its budget is limited by its population's budget."""
    record = entry.record
    population, _ = tables.populations.get(record.population or "", (None, 0.0))
    match sort:
        case "source":
            return record.source.source
        case "state":
            return record.state
        case "left":
            left = [record.left] if population is None else [record.left, population.left]
            return min(one.epsilon if one.rho is None else one.rho for one in left)
        case "left_share":
            shares = left_share(record.left, entry.total), population_left_share(tables, record.population)
            return min(share for share in shares if share is not None)
        case "streams":
            return entry.streams.total()
        case "updated":
            return entry.updated


_STREAM_KEYS: dict[StreamSort, Callable[[StreamEntry, float], _Key]] = {
    "stream": lambda entry, _: entry.name,
    "source": lambda entry, _: entry.grant.source if entry.grant else "",
    "mechanism": lambda entry, _: entry.grant.mechanism.kind if entry.grant else "",
    "state": lambda entry, _: STREAM_STATES.index(entry.state),
    "answered": lambda entry, _: entry.answered,
    "tops": lambda entry, _: entry.tops,
    "tops_left": lambda entry, _: entry.tops_left,
    "alpha": lambda entry, _: entry.grant.calibration.alpha if entry.grant else None,
    "above_rate": lambda entry, now: _rate(entry, now, "above"),
    "below_rate": lambda entry, now: _rate(entry, now, "below"),
    "updated": lambda entry, _: entry.updated,
}

FEED_STREAMS: Final = 8
"""Number of streams from which a feed's progress is computed: those with the latest answers."""
SAME_WINDOW_SECONDS: Final = 5.0
"""Seconds within which the streams of a source answer windows that end at the same time."""


def build_feed_view(tables: MonitorTables, entry: SourceEntry, members: Iterable[MemberRow]) -> FeedView | None:
    """Return the feed of a live topic; None for other sources and for accounts of periods.

    The number of answers tells the last window. Numbers of unread events and of events in windows are private.
    """
    record = entry.record.source
    if record.kind != "events" or record.period_of is not None:
        return None
    if (source := _decode_live_source(tables, entry)) is None:
        return None
    answered = (one for one in _streams_of(tables, source.source) if one.answered)
    latest = nlargest(FEED_STREAMS, answered, key=lambda one: one.updated or 0.0)
    known = [(end, one) for one in latest if (end := _last_window_end(one, source)) is not None]
    asked_at = max((one.last_answered for one in latest if one.last_answered is not None), default=None)
    # A later window of another stream may be answered, whose end is unknown, for example after an extension.
    known_at = max((one.last_answered or 0.0 for _, one in known), default=0.0)
    is_known = asked_at is None or known_at >= asked_at - SAME_WINDOW_SECONDS
    return FeedView.from_record(
        source,
        idle=source.idle if source.clock == "broker" else None,
        asked_to=max((end for end, _ in known), default=None) if is_known else None,
        asked_at=asked_at,
        is_asked=bool(latest),
        processes=[FeedProcess.from_record(one) for one in members if one.role == "feed"],
    )


def _decode_live_source(tables: MonitorTables, entry: SourceEntry) -> EventsSource | None:
    """Return a live topic's definition; None for other sources, or if this version cannot read it."""
    try:
        source = decode_definition(tables, entry)
    except NewerRecordError:
        return None
    return source if isinstance(source, EventsSource) else None


def _streams_of(tables: MonitorTables, source: str) -> Iterator[StreamEntry]:
    """Yield a source's streams; if it has periods, those of its last two, because the last may have no answers yet."""
    starts = tables.source_periods.starts_of(source)[-2:]
    for account in [f"{source}@{start}" for start in starts] or [source]:
        yield from tables.streams_of(account)


def stalled_sources(tables: MonitorTables, workers: WorkersView, now: float) -> list[StalledSource]:
    """Return the live topics with open streams whose next window should have been answered by now.

    With watermarks or periods the time of the next window is unknown: a source stalls only if no feed runs.
    """
    if not workers.time:
        return []  # the consumer groups are not known yet
    runs = workers.runs("feed")
    found = []
    for name in tables.source_periods:
        entry = tables.sources.get(name)
        if entry is None or entry.record.state != "open" or entry.record.source.kind != "events":
            continue
        if (source := _decode_live_source(tables, entry)) is None:
            continue
        is_timed = source.clock == "broker"
        if runs and (not is_timed or source.period is not None):
            continue
        streams = [one for one in _streams_of(tables, name) if one.state == "open" and one.ending is None]
        latest = nlargest(FEED_STREAMS, streams, key=lambda one: one.updated or 0.0)
        stalled = [one for one in latest if not is_timed or _is_overdue(one, source, now)]
        if stalled:
            ends = [end for one in stalled if (end := _last_window_end(one, source)) is not None]
            answers = [one.last_answered for one in stalled if one.last_answered is not None]
            found.append(StalledSource(source=name, since=max(ends or answers, default=None), feed_runs=runs))
    return found


def _is_overdue(entry: StreamEntry, source: EventsSource, now: float) -> bool:
    """Return True if the window after the last answered window closed more than ``STALL_SECONDS`` ago."""
    try:
        standing = decode_grant(entry).spec.standing
    except NewerRecordError:
        return False
    if standing is None:
        return False
    if (end := _last_window_end(entry, source)) is not None:
        following = end * 1000 + standing.window.every_ms
    elif entry.answered:  # windows were skipped, so only the time of the last answer is known
        following = (entry.last_answered or entry.updated or now) * 1000 + standing.window.every_ms
        if entry.extended is not None:  # if it was exhausted, it is asked from the extension plus idle on
            resumes = int(entry.extended * 1000) + span_ms(source.idle)
            following = max(following, standing.window.first_start_from(resumes) + standing.window.size_ms)
    elif standing.begins is not None:
        following = standing.window.first_start_from(moment_ms(standing.begins)) + standing.window.size_ms
    else:
        return False
    return _is_past(following, standing, source, now)


def window_end(record: GrantRecord, standing: StandingQuery, source: EventsSource, answered: int) -> int | None:
    """Return the end of the last window answered for all groups, in milliseconds; None if unknown, as if extended."""
    if standing.begins is None or record.extensions:
        return None
    windows = answered // questions_per_window(source, record.spec.mechanism, standing)
    if not windows:
        return None
    window = standing.window
    return window.first_start_from(moment_ms(standing.begins)) + (windows - 1) * window.every_ms + window.size_ms


def _last_window_end(entry: StreamEntry, source: EventsSource) -> float | None:
    """Return the end by the number of answers; None if the last answer is too late for it, as after halted windows."""
    try:
        record = decode_grant(entry)
    except NewerRecordError:
        return None
    standing = record.spec.standing
    if standing is None or (end := window_end(record, standing, source, entry.answered)) is None:
        return None
    is_old = _is_past(end + standing.window.every_ms, standing, source, entry.last_answered or 0.0)
    return None if is_old and source.clock == "broker" else end / 1000


def _is_past(end: float, standing: StandingQuery, source: EventsSource, now: float) -> bool:
    return now > (end + span_ms(standing.lateness) + span_ms(source.idle)) / 1000 + STALL_SECONDS
