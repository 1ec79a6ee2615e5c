"""Computes the API's answers about installation, sources and streams.

They are computed from the monitor's state (`MonitorTables`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Literal

import msgspec

from schemas import (
    Amount,
    EventsSource,
    GrantRecord,
    Position,
    Source,
    SourceRecord,
    TableSource,
    ledger_codec,
    moment_ms,
    split_period_name,
)
from schemas.wire import MalformedEventError
from stream.budget.standing_streams import promised_windows
from stream.formatting import describe_bound, describe_counted_events
from stream.monitor.api.budget_models import BurnDown, BurnPoint, Forecast
from stream.monitor.api.models import (
    Overview,
    Periods,
    Rate,
    SourceRow,
    StalledSource,
    StreamCounts,
    StreamDetail,
    StreamRow,
    TimelinePoint,
    TrafficPoint,
)
from stream.monitor.api.service_models import WorkersView
from stream.monitor.budget_history import History, PeriodEnd, amount_of
from stream.monitor.entries import (
    RATE_WINDOWS,
    PeriodsByName,
    Series,
    SourceEntry,
    StreamEntry,
    meaning_of,
    total_amount,
)
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.record_shapes import SourceRecordShape
from stream.privacy.accuracy.source_facts import questions_per_window
from stream.privacy.ledger.grants import describe_promise_per_period
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.privacy.planning.promises import Promise, promises
from stream.questions.stream_watch import describe_first_answer, describe_standing_query, period_of

_TEN_MINUTES_INDEX = RATE_WINDOWS.index(600)


def overview(
    tables: MonitorTables,
    history: Series,
    workers: WorkersView,
    stalled: list[StalledSource],
    *,
    ready: bool,
    now: float,
) -> Overview:
    """Return a summary of the installation."""
    totals = tables.totals
    worker_partitions = [row for row in workers.partitions if row.role == "worker"]
    return Overview(
        time=now,
        ready=ready,
        sources=len(tables.source_periods),
        sources_halted=sum(
            (entry := tables.sources.get(name)) is not None and entry.record.state == "halted"
            for name in tables.source_periods
        ),
        streams=StreamCounts(**{state: count for state, count in totals.states.items() if count}),
        nearly_dry=totals.nearly_dry,
        answered=totals.answered,
        tops=totals.tops,
        rates=[_rate(history, seconds, now, totals.answered, totals.tops) for seconds in RATE_WINDOWS],
        history=[TrafficPoint(time=row[0], answered=int(row[1]), tops=int(row[2])) for row in history],
        rejected=tables.rejected.total(),
        workers=sum(member.role == "worker" for member in workers.members),
        lag=sum(row.lag for row in worker_partitions) if worker_partitions else None,
        stalled=stalled,
    )


def source_row(tables: MonitorTables, entry: SourceEntry) -> SourceRow:
    """Return a source with its budget, without its periods."""
    record = entry.record
    source = record.source
    return SourceRow.from_record(
        record,
        source=source.source,
        kind=source.kind,
        version=record.version if source.kind == "table" else None,
        neighbors=source.neighbors,
        accountant=source.accountant,
        total=entry.total,
        left_share=left_share(record.left, entry.total),
        population_left_share=population_left_share(tables, record.population),
        renews=source.renews,
        renews_at=None if record.period is None else record.period.ends / 1000,
        meaning=_describe_guarantee(record),
        streams=StreamCounts(**{state: count for state, count in entry.streams.items() if count}),
        updated=entry.updated,
        period=source.period,
        period_of=source.period_of,
        starts=source.starts,
    )


def _describe_guarantee(record: SourceRecordShape) -> str:
    source = record.source
    if source.period is None:
        return meaning_of(record.period)
    return f"privacy is by period: {describe_promise_per_period(source.epsilon, source.delta, source.period)}"


def source_row_with_periods(tables: MonitorTables, entry: SourceEntry) -> SourceRow:
    """Return a source with its budget; a source with periods also has its latest period account."""
    row = source_row(tables, entry)
    if (periods := periods_of(tables.source_periods, row.source)) is None:
        return row
    latest = source_row(tables, tables.sources[periods.latest])
    return row.model_copy(update={"periods": periods, "current": latest})


def stream_row_with_periods(tables: MonitorTables, entry: StreamEntry, now: float) -> StreamRow:
    """Return a stream's row; on a source with periods, also the row of its latest period."""
    row = stream_row(tables, entry, now)
    if (periods := periods_of(tables.stream_periods, row.stream)) is None:
        return row
    latest = tables.streams[periods.latest]
    current = stream_row(tables, latest, now)
    return row.model_copy(update={"periods": periods, "current": current})


def periods_of(periods_by_name: PeriodsByName, name: str) -> Periods | None:
    """Return the number of a name's periods and the latest period's name; None without periods."""
    latest = periods_by_name.latest_name(name)
    return None if latest is None else Periods(count=len(periods_by_name.starts_of(name)), latest=latest)


def left_share(left: Amount, total: Amount) -> float:
    """Return the remaining share: the smaller share of ε and δ, or under zCDP the larger share of ε and ρ."""
    shares = [left.epsilon / total.epsilon if total.epsilon else 0.0]
    if total.rho is not None and left.rho is not None:
        # With δ (Gaussian noise, or a record of an earlier version) ε is derived from ρ and does
        # not add up over streams: use only ρ.
        shares = [max(0.0 if left.delta else shares[0], left.rho / total.rho if total.rho else 0.0)]
    elif total.delta:
        shares.append(left.delta / total.delta)
    return min(max(min(shares), 0.0), 1.0)


def population_left_share(tables: MonitorTables, population: str | None) -> float | None:
    """Return the remaining share of a population's budget; None without a known population."""
    record, _ = tables.shared.populations.get(population or "", (None, 0.0))
    if record is None:
        return None
    declared = record.population
    return left_share(record.left, total_amount(declared.epsilon, declared.delta, declared.accountant))


def budget_over_time(tables: MonitorTables, entry: SourceEntry, now: float) -> BurnDown:
    """Return a source's budget over time: the trail's totals, then the ledger's current record."""
    record = entry.record
    points = points_of(tables.trail.history(record))
    latest = BurnPoint.from_record(record, time=max(entry.updated, points[-1].time if points else 0.0))
    # The trail notes spending once a minute; the ledger's record is at least as recent.
    if not points or latest.model_copy(update={"time": points[-1].time}) != points[-1]:
        points.append(latest)
    return BurnDown(
        source=source_row_with_periods(tables, entry),
        unread=tables.trail.unread,
        points=points,
        forecasts=forecasts(tables, entry, now),
    )


def forecasts(tables: MonitorTables, entry: SourceEntry, now: float) -> list[Forecast]:
    """Return a source's forecasts, one for its spending pace over each of ``PACE_WINDOWS``."""
    record = entry.record
    history = tables.trail.history(record)
    end = PeriodEnd(now, None if record.period is None else record.period.ends / 1000)
    return history.forecasts(record.granted, record.refunded, record.left, entry.total, end)


def points_of(history: History) -> list[BurnPoint]:
    """Return a history as points, oldest first."""
    return [
        BurnPoint(
            time=row[0],
            granted=amount_of(row[1:4]),
            spent=amount_of(row[4:7]),
            refunded=amount_of(row[7:10]),
            left=amount_of(row[10:13]),
        )
        for row in history.all_time
    ]


def definition(tables: MonitorTables, entry: SourceEntry) -> Source:
    """Return the definition of a source."""
    return source_record(tables, entry).source


def source_record(tables: MonitorTables, entry: SourceEntry) -> SourceRecord:
    """Return a source's ledger record; the record of a period's account is derived from its source's."""
    shape = entry.record
    registered = entry if shape.source.period_of is None else tables.sources.get(shape.source.period_of, entry)
    record = ledger_codec.decode(registered.raw)
    if not isinstance(record, SourceRecord):
        raise TypeError("a source's entry holds another record")
    source = record.source
    if registered is entry or not isinstance(source, EventsSource) or shape.source.starts is None:
        return record
    figures = {part: getattr(shape, part) for part in ("granted", "spent", "refunded", "left")}
    account = source.account_of_period(moment_ms(shape.source.starts))
    return record.model_copy(update={**figures, "source": account, "state": shape.state, "reason": shape.reason})


def sources_on_same_data(tables: MonitorTables, source: Source) -> Iterator[SourceRecord]:
    """Yield the records of registered sources that may read the path or topic of ``source``."""
    places = source.private_paths if isinstance(source, TableSource) else ()
    names = [PurePath(place).name.encode() for place in (*places, *filter(None, [getattr(source, "topic", None)]))]
    for entry in tables.sources.values():
        if any(name in entry.raw for name in names) and entry.record.source.period_of is None:
            yield source_record(tables, entry)


def rates(entry: StreamEntry, now: float) -> list[Rate]:
    """Return a stream's rates over each window."""
    if entry.is_idle or (activity := entry.activity) is None:
        return [Rate(window_seconds=seconds, above=0.0, below=0.0) for seconds in RATE_WINDOWS]
    return [
        _rate(series, seconds, now, entry.answered, entry.tops)
        for seconds, series in zip(RATE_WINDOWS, activity.windows, strict=True)
    ]


def dry_in(tables: MonitorTables, entry: StreamEntry, now: float) -> float | None:
    """Return the seconds until an open stream is exhausted, at the rate of the last ten minutes.

    A younger stream's rate is that since its opening, but over at least a minute: a burst is no rate. The
    broker's clock moves as time passes, so a stream of its windows is charged as often as its windows
    have been so far, also while a feed catches up.
    """
    left = entry.tops_left
    if entry.state != "open" or left is None or not entry.answered:
        return None
    if (questions_per_second := _standing_questions_per_second(tables, entry)) is not None:
        return left * entry.answered / (entry.tops * questions_per_second) if entry.tops else None
    if entry.is_idle or (activity := entry.activity) is None:
        return None
    rate = _rate(activity.windows[_TEN_MINUTES_INDEX], 600, now, entry.answered, entry.tops)
    age = 600.0 if entry.opened is None else min(max(now - entry.opened, 60.0), 600.0)
    return left / rate.above * (age / 600.0) if rate.above > 0.0 else None


def _standing_questions_per_second(tables: MonitorTables, entry: StreamEntry) -> float | None:
    """Return the questions that a standing stream of the broker's clock is asked; None for other streams."""
    source_entry = None if entry.grant is None else tables.sources.get(entry.grant.source)
    if source_entry is None or source_entry.record.source.kind != "events":
        return None
    try:
        spec, source = grant_record(entry).spec, definition(tables, source_entry)
    except MalformedEventError:
        return None  # written by a later version
    if spec.standing is None or not isinstance(source, EventsSource) or source.clock != "broker":
        return None
    questions = questions_per_window(source, spec.mechanism, spec.standing)
    return 1000.0 * questions / spec.standing.window.every_ms


def stream_row(tables: MonitorTables, entry: StreamEntry, now: float) -> StreamRow:
    """Return the row of a stream with a grant, without its periods."""
    grant = entry.grant
    if grant is None or entry.spent is None:
        raise TypeError("a stream without a grant has no row")
    named = split_period_name(entry.name) if entry.is_of_period else None
    return StreamRow.from_record(
        entry,
        stream=entry.name,
        source=grant.source,
        mechanism=grant.mechanism.kind,
        refused=entry.missing_input,
        at_refresh=_at_refresh(entry),
        alpha=grant.calibration.alpha,
        beta=grant.calibration.beta,
        expected_queries=grant.calibration.expected_queries,
        asked=Amount(epsilon=grant.epsilon, delta=grant.delta),
        promises=_promises(entry, contribution_text(tables, entry)),
        cost=grant.cost,
        refunded=grant.refunded,
        rates=rates(entry, now),
        dry_in=dry_in(tables, entry, now),
        period_of=named[0] if named else None,
        starts=named[1] if named else None,
    )


def _at_refresh(entry: StreamEntry) -> Literal["continues", "closes"] | None:
    """Return the effect of a refresh on a stream that answers or may be extended; None for other streams."""
    if entry.grant is None or entry.ending is not None or entry.state not in {"open", "exhausted"}:
        return None
    return "closes" if entry.grant.mechanism.kind in RESULTS_KEPT_BY_MECHANISM else "continues"


def contribution_text(tables: MonitorTables, entry: StreamEntry) -> str:
    """Return the contribution bound of a stream's source as a sentence; empty without one."""
    source_entry = None if entry.grant is None else tables.sources.get(entry.grant.source)
    source = None if source_entry is None else source_entry.record.source
    if source is None or source.person is None:
        return ""
    return describe_bound(source.kind, source.person, source.contribution)


def _promises(entry: StreamEntry, bound_text: str) -> tuple[Promise, ...]:
    try:
        record = grant_record(entry)
    except MalformedEventError:
        # A later version wrote the record, so this version does not know the error bound.
        return ()
    standing = record.spec.standing
    bound_text = describe_counted_events(standing and standing.count, bound_text)
    return promises(record.spec, record.calibration, record.extensions, bound_text)


def grant_record(entry: StreamEntry) -> GrantRecord:
    """Return the ledger's record of a stream."""
    record = ledger_codec.decode(entry.raw)
    if not isinstance(record, GrantRecord):
        raise TypeError("a stream's entry holds another record")
    return record


def stream_detail(tables: MonitorTables, entry: StreamEntry, now: float) -> StreamDetail:
    """Return a stream with its definition and timeline."""
    record = grant_record(entry)
    source_entry = tables.sources.get(record.spec.source)
    standing = record.spec.standing
    position = entry.position if entry.position is not None and entry.position.offset >= 0 else None
    activity = entry.activity
    timeline = activity.timeline if activity is not None else ()
    declared = None if standing is None or source_entry is None else definition(tables, source_entry)
    return StreamDetail(
        row=stream_row_with_periods(tables, entry, now),
        source_kind=None if source_entry is None else source_entry.record.source.kind,
        spec=record.spec,
        calibration=record.calibration,
        incarnation=entry.incarnation,
        position=None if position is None else Position(**msgspec.structs.asdict(position)),
        timeline=[TimelinePoint(time=row[0], answered=int(row[1]), tops=int(row[2])) for row in timeline],
        standing=None if declared is None else describe_standing_query(record.spec, declared),
        first_answer=describe_first_answer(standing, declared, now)
        if standing is not None and isinstance(declared, EventsSource) and not entry.answered
        else None,
        windows=None if declared is None else promised_windows(record.spec, declared),
        period=None if declared is None else period_of(declared),
    )


def _rate(series: Series, seconds: int, now: float, answered: int, tops: int) -> Rate:
    before = series.row_at(now - seconds)
    if before is None:
        return Rate(window_seconds=seconds, above=0.0, below=0.0)
    above = max(tops - before[2], 0.0)
    below = max(answered - before[1] - above, 0.0)
    return Rate(window_seconds=seconds, above=above / seconds, below=below / seconds)
