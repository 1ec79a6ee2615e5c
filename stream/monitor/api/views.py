"""Computes the API's answers about installation, sources and streams from the monitor's tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import Literal, TypeVar

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
from schemas.windows import span_ms
from schemas.wire import MalformedEventError
from stream.budget.standing_streams import promised_windows
from stream.formatting import describe_bound, describe_promise_bound
from stream.monitor.api.budget_models import BurnPoint
from stream.monitor.api.http_requests import ProblemError, unknown_name_error
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
from stream.monitor.budget_history import History, numbers_to_amount
from stream.monitor.entries import (
    RATE_WINDOWS,
    STALL_SECONDS,
    Series,
    SourceEntry,
    StreamEntry,
    describe_guarantee,
    total_amount,
)
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.record_shapes import SharedGrant
from stream.monitor.stream_totals import PeriodsByName
from stream.privacy.accuracy.source_facts import questions_per_window
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.privacy.planning.inverse_plans import extension_price
from stream.privacy.planning.promises import Promise, describe_promise_per_period, promises
from stream.questions.first_windows import describe_first_answer, describe_missed_events
from stream.questions.stream_watch import describe_standing_query, period_of

_TEN_MINUTES_INDEX = RATE_WINDOWS.index(600)
_LEAST_CHARGES = 5
"""Number of charged answers in ten minutes from which their rate is known."""
_LEAST_SPAN_SECONDS = 60.0
"""Least time between the first and the last of these answers."""
_Record = TypeVar("_Record", SourceRecord, GrantRecord)


class NewerRecordError(ProblemError):
    """A record in the ledger was written by a later version of Sotto; as an answer, it is a 503."""

    def __init__(self) -> None:
        super().__init__(503, "unavailable", "this monitor is older than the definition; upgrade it")


def find_source(tables: MonitorTables, name: str) -> SourceEntry:
    """Return a source's entry; raise a 404 if it is unknown."""
    if (entry := tables.sources.get(name)) is None:
        raise unknown_name_error("source", name, tables.sources)
    return entry


def find_stream(tables: MonitorTables, name: str) -> tuple[StreamEntry, SharedGrant]:
    """Return a stream's entry and grant; raise a 404 if it is unknown."""
    if (entry := tables.streams.get(name)) is None or entry.grant is None:
        raise unknown_name_error("stream", name, tables.streams)
    return entry, entry.grant


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
            one.record.state == "halted" for one in map(tables.sources.get, tables.source_periods) if one
        ),
        streams=StreamCounts.model_validate(totals.states),
        nearly_dry=totals.nearly_dry,
        answered=totals.answered,
        tops=totals.tops,
        rates=[_rate(history, seconds, now, totals.answered, totals.tops) for seconds in RATE_WINDOWS],
        history=[TrafficPoint(time=row[0], answered=int(row[1]), tops=int(row[2])) for row in history],
        rejected=tables.rejected.total(),
        workers=sum(member.role == "worker" for member in workers.members),
        budget_runs=workers.runs("budget"),
        not_ready=[member.member for member in workers.members if member.not_ready is not None],
        lag=sum(row.lag for row in worker_partitions) if worker_partitions else None,
        hidden_lag=sum(row.hidden_lag for row in worker_partitions),
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
        meaning=describe_guarantee(record.period)
        if source.period is None
        else f"privacy is by period: {describe_promise_per_period(source.epsilon, source.delta, source.period)}",
        streams=StreamCounts.model_validate(entry.streams),
        updated=entry.updated,
        period=source.period,
        period_of=source.period_of,
        starts=source.starts,
    )


def source_row_with_periods(tables: MonitorTables, entry: SourceEntry) -> SourceRow:
    """Return a source with its budget; a source with periods also has its latest period account.

    Its streams are models, which have the states of their latest periods, as in lists of streams.
    """
    row = source_row(tables, entry)
    if (periods := periods_of(tables.source_periods, row.source)) is None:
        return row
    latest = source_row(tables, tables.sources[periods.latest])
    states = StreamCounts.model_validate(tables.totals.listed_of[row.source])
    return row.model_copy(update={"periods": periods, "current": latest, "streams": states})


def stream_row_with_periods(tables: MonitorTables, entry: StreamEntry, now: float) -> StreamRow:
    """Return a stream's row; on a source with periods, also the row of its latest period."""
    row = stream_row(tables, entry, now)
    if (periods := periods_of(tables.stream_periods, row.stream)) is None:
        return row
    current = stream_row(tables, tables.streams[periods.latest], now)
    return row.model_copy(update={"periods": periods, "current": current})


def periods_of(periods_by_name: PeriodsByName, name: str) -> Periods | None:
    """Return the number of a name's periods and the latest period's name; None without periods."""
    latest = periods_by_name.latest_name(name)
    return None if latest is None else Periods(count=len(periods_by_name.starts_of(name)), latest=latest)


def left_share(left: Amount, total: Amount) -> float:
    """Return the remaining share of a budget, between 0 and 1.

    It is the smaller share of ε and δ or, under zCDP, the larger share of ε and ρ.
    """
    shares = [left.epsilon / total.epsilon if total.epsilon else 0.0]
    if total.rho is not None and left.rho is not None:
        # An amount with δ has an ε that is derived from ρ and does not add up over streams, so only ρ counts.
        shares = [max(0.0 if left.delta else shares[0], left.rho / total.rho if total.rho else 0.0)]
    elif total.delta:
        shares.append(left.delta / total.delta)
    return min(max(min(shares), 0.0), 1.0)


def population_left_share(tables: MonitorTables, population: str | None) -> float | None:
    """Return the remaining share of a population's budget; None without a known population."""
    record, _ = tables.populations.get(population or "", (None, 0.0))
    if record is None:
        return None
    declared = record.population
    return left_share(record.left, total_amount(declared.epsilon, declared.delta, declared.accountant))


def to_points(history: History) -> list[BurnPoint]:
    """Return a history as points, oldest first."""
    return [
        BurnPoint(
            time=row[0],
            granted=numbers_to_amount(row[1:4]),
            spent=numbers_to_amount(row[4:7]),
            refunded=numbers_to_amount(row[7:10]),
            left=numbers_to_amount(row[10:13]),
        )
        for row in history.all_time
    ]


def decode_definition(tables: MonitorTables, entry: SourceEntry) -> Source:
    """Return the definition of a source; raise NewerRecordError if this version cannot read it."""
    return decode_source(tables, entry).source


def decode_source(tables: MonitorTables, entry: SourceEntry) -> SourceRecord:
    """Return a source's ledger record; for the account of a period, derive it from the source's record."""
    shape = entry.record
    registered = entry if shape.source.period_of is None else tables.sources.get(shape.source.period_of, entry)
    record = _decode_record(SourceRecord, registered.raw)
    source = record.source
    if registered is entry or not isinstance(source, EventsSource) or shape.source.starts is None:
        return record
    amounts = {part: getattr(shape, part) for part in ("granted", "spent", "refunded", "left")}
    account = source.account_of_period(moment_ms(shape.source.starts))
    return record.model_copy(update={**amounts, "source": account, "state": shape.state, "reason": shape.reason})


def sources_on_same_data(tables: MonitorTables, source: Source) -> Iterator[SourceRecord]:
    """Yield the records of registered sources that may read a path or the topic of ``source``."""
    places = source.private_paths if isinstance(source, TableSource) else ()
    names = [PurePath(place).name.encode() for place in (*places, *filter(None, [getattr(source, "topic", None)]))]
    for entry in tables.sources.values():
        if any(name in entry.raw for name in names) and entry.record.source.period_of is None:
            yield decode_source(tables, entry)


def stream_rates(entry: StreamEntry, now: float) -> list[Rate]:
    """Return a stream's rates over each window."""
    if entry.is_idle or (activity := entry.activity) is None:
        return [Rate(window_seconds=seconds, above=0.0, below=0.0) for seconds in RATE_WINDOWS]
    return [
        _rate(series, seconds, now, entry.answered, entry.tops)
        for seconds, series in zip(RATE_WINDOWS, activity.windows, strict=True)
    ]


def seconds_until_exhausted(tables: MonitorTables, entry: StreamEntry, now: float) -> float | None:
    """Return the seconds until an open stream is exhausted, at its rate of charges in the last ten minutes.

    A younger stream's rate is measured since its opening. A burst is no rate: in the ten minutes there must be at least
    five charged answers, the first and the last at least a minute apart. If each window is charged and the clock is the
    broker's, the pace of the windows is known, unless one is overdue: its feed may refuse the topic.
    """
    left = entry.tops_left
    if entry.state != "open" or left is None or not entry.answered:
        return None
    if (pace := _standing_pace(tables, entry)) is not None:
        seconds_per_question, longest_gap = pace
        is_overdue = now - (entry.last_answered or now) > longest_gap
        answers_left = left * entry.answered / entry.tops if entry.tops else None
        return None if is_overdue or answers_left is None else answers_left * seconds_per_question
    if entry.is_idle or (activity := entry.activity) is None:
        return None
    series = activity.windows[_TEN_MINUTES_INDEX]
    if (before := series.row_at(now - 600.0)) is None:
        return None
    rows = [before, *(row for row in series if row[0] > now - 600.0)]
    charged = [row[0] for earlier, row in pairwise(rows) if row[2] > earlier[2]]
    charges = entry.tops - before[2]
    if charges < _LEAST_CHARGES or charged[-1] - charged[0] < _LEAST_SPAN_SECONDS:
        return None
    age = 600.0 if entry.opened is None else min(max(now - entry.opened, _LEAST_SPAN_SECONDS), 600.0)
    price = 1 + entry.surplus / PARTS_PER_CHARGE / entry.tops  # the mean of a charged answer, in the unit of left
    return left * age / (charges * price) if price > 0 else None


def _standing_pace(tables: MonitorTables, entry: StreamEntry) -> tuple[float, float] | None:
    """Return the seconds for each question of a stream with the broker's clock, and the most between two windows.

    Return None if only some windows are charged, because their share so far says little about the next hour.
    """
    source_entry = None if entry.grant is None else tables.sources.get(entry.grant.source)
    if source_entry is None or source_entry.record.source.kind != "events":
        return None
    try:
        grant, source = decode_grant(entry), decode_definition(tables, source_entry)
    except NewerRecordError:
        return None
    spec = grant.spec
    if (
        grant.calibration.kind == "sparse_vector"
        or spec.standing is None
        or not isinstance(source, EventsSource)
        or source.clock != "broker"
    ):
        return None
    every, idle = spec.standing.window.every_ms / 1000, span_ms(source.idle) / 1000
    return every / questions_per_window(source, spec.mechanism, spec.standing), every + idle + STALL_SECONDS


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
        promises=_promises(tables, entry),
        cost=grant.cost,
        refunded=grant.refunded,
        rates=stream_rates(entry, now),
        dry_in=seconds_until_exhausted(tables, entry, now),
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


def _promises(tables: MonitorTables, entry: StreamEntry) -> tuple[Promise, ...]:
    try:
        record = decode_grant(entry)
    except NewerRecordError:
        return ()
    total = source.record.source.total if (source := tables.sources.get(record.spec.source)) is not None else None
    bound_text = describe_promise_bound(record.spec, contribution_text(tables, entry), total)
    return promises(record.spec, record.calibration, record.extensions, bound_text)


def decode_grant(entry: StreamEntry) -> GrantRecord:
    """Return the ledger's record of a stream; raise NewerRecordError if this version cannot read it."""
    return _decode_record(GrantRecord, entry.raw)


def _decode_record(kind: type[_Record], raw: bytes) -> _Record:
    try:
        record = ledger_codec.decode(raw)
    except MalformedEventError:
        raise NewerRecordError from None
    if not isinstance(record, kind):
        raise TypeError(f"the entry of a {kind.__name__} has another record")
    return record


def build_stream_detail(tables: MonitorTables, entry: StreamEntry, now: float) -> StreamDetail:
    """Return a stream with its definition and timeline."""
    record = decode_grant(entry)
    source_entry = tables.sources.get(record.spec.source)
    standing, position = record.spec.standing, entry.position
    timeline = activity.timeline if (activity := entry.activity) is not None else ()
    owner = None if standing is None or source_entry is None else decode_source(tables, source_entry)
    declared = None if owner is None else owner.source
    missed = None if owner is None else describe_missed_events(record.spec, owner, entry.opened_by)
    return StreamDetail(
        row=stream_row_with_periods(tables, entry, now),
        source_kind=None if source_entry is None else source_entry.record.source.kind,
        spec=record.spec,
        calibration=record.calibration,
        incarnation=entry.incarnation,
        position=None if position is None or position.offset < 0 else Position(**msgspec.structs.asdict(position)),
        timeline=[TimelinePoint(time=row[0], answered=int(row[1]), tops=int(row[2])) for row in timeline],
        standing=None if declared is None else describe_standing_query(record.spec, declared),
        first_answer=f"{describe_first_answer(standing, declared, now)}; the monitor does not check the topic: if no answer comes, /readyz of the feeds has the reason"
        if standing is not None and isinstance(declared, EventsSource) and not entry.answered
        else None,
        missed_events=missed and missed.text,
        windows=None if declared is None else promised_windows(record.spec, declared),
        period=None if declared is None else period_of(declared),
        extension_price=extension_price(record.spec, record.calibration, record.extensions),
    )


def _rate(series: Series, seconds: int, now: float, answered: int, tops: int) -> Rate:
    if (before := series.row_at(now - seconds)) is None:
        return Rate(window_seconds=seconds, above=0.0, below=0.0)
    above = max(tops - before[2], 0.0)
    below = max(answered - before[1] - above, 0.0)
    return Rate(window_seconds=seconds, above=above / seconds, below=below / seconds)
