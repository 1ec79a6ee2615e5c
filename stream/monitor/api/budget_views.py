"""Computes the API's answers about budgets over time, populations, allotments, spending and the trail, also as CSV."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import islice
from math import fsum
from typing import Any, Final, NamedTuple

from aiohttp import web

from schemas import AllotmentRecord, Amount, Period, PopulationRecord
from stream.formatting import format_loss
from stream.monitor.api.answer_views import csv_parts
from stream.monitor.api.budget_models import (
    MAX_HELD_ENTRIES,
    AllotmentPage,
    AllotmentQuery,
    AllotmentRow,
    AnalystSpending,
    BurnDown,
    BurnPoint,
    Forecast,
    PeriodView,
    PopulationDetail,
    PopulationPage,
    PopulationRow,
    Share,
    SourceShare,
    Spending,
    SpendingQuery,
    StreamSpending,
    TrailFilter,
    TrailPage,
    TrailQuery,
    TrailRow,
)
from stream.monitor.api.http_requests import streaming_response, too_many_error, unknown_name_error, write_text
from stream.monitor.api.tokens import Bearer
from stream.monitor.api.views import left_share, source_row, source_row_with_periods, to_points
from stream.monitor.budget_history import HeldEntry, PeriodEnd, TrailState, add_histories
from stream.monitor.entries import SourceEntry, describe_guarantee, total_amount
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.record_shapes import SharedGrant, TrailShape, decode_record, to_amount
from stream.questions.result_text import quote_formula


def build_burn_down(tables: MonitorTables, entry: SourceEntry, now: float) -> BurnDown:
    """Return a source's budget over time: the trail's totals, then the ledger's current record."""
    record = entry.record
    points = to_points(tables.trail.history(record))
    latest = BurnPoint.from_record(record, time=max(entry.updated, points[-1].time if points else 0.0))
    # The trail notes spending once a minute; the ledger's record is at least as recent.
    if not points or latest.model_copy(update={"time": points[-1].time}) != points[-1]:
        points.append(latest)
    return BurnDown(
        source=source_row_with_periods(tables, entry),
        unread=tables.trail.unread,
        points=points,
        forecasts=forecast_budget(tables, entry, now),
    )


def forecast_budget(tables: MonitorTables, entry: SourceEntry, now: float) -> list[Forecast]:
    """Return a source's forecasts, one for the pace of spending in each of ``PACE_WINDOWS``."""
    record = entry.record
    history = tables.trail.history(record)
    end = PeriodEnd(now, None if record.period is None else record.period.ends / 1000)
    return history.forecasts(record.granted, record.refunded, record.left, entry.total, end)


def period_view(period: Period | None) -> PeriodView | None:
    """Return the view of a budget's period."""
    if period is None:
        return None
    return PeriodView(
        number=period.number, starts=period.starts / 1000, ends=period.ends / 1000, counted=period.counted
    )


def list_populations(tables: MonitorTables) -> PopulationPage:
    """Return all populations, by name."""
    found = sorted(tables.populations.items())
    return PopulationPage(items=[_population_row(record, updated) for _, (record, updated) in found])


def build_population_detail(tables: MonitorTables, name: str, now: float) -> PopulationDetail:
    """Return a population with sources, allotments, history and forecasts; raise a 404 if it is unknown."""
    if name not in tables.populations:
        raise unknown_name_error("population", name, tables.populations)
    record, updated = tables.populations[name]
    row = _population_row(record, updated)
    members = [entry for entry in tables.sources.values() if entry.record.population == name]
    members.sort(key=lambda entry: entry.record.source.source)
    # Amounts of different accountants do not add up.
    have_one_accountant = all(entry.record.source.accountant == row.accountant for entry in members)
    history = add_histories([tables.trail.history(entry.record) for entry in members if have_one_accountant])
    end = PeriodEnd(now, None if row.period is None else row.period.ends)
    return PopulationDetail(
        unread=tables.trail.unread,
        row=row,
        sources=[source_row(tables, entry) for entry in members],
        allotments=[
            _allotment_row(tables, one) for one in _matching_allotments(tables, AllotmentQuery(population=name))
        ],
        points=[] if tables.trail.unread else to_points(history),
        forecasts=history.forecasts(row.granted, row.refunded, row.left, row.total, end)
        if have_one_accountant
        else [],
    )


def list_allotments(tables: MonitorTables, query: AllotmentQuery) -> AllotmentPage:
    """Return the matching allotments, sorted by owner and name."""
    return AllotmentPage(items=[_allotment_row(tables, record) for record in _matching_allotments(tables, query)])


def _matching_allotments(tables: MonitorTables, query: AllotmentQuery) -> Iterable[AllotmentRecord]:
    for (owner, _), record in sorted(
        tables.allotments.items(),
        key=lambda one: (one[0][0].source or "", one[0][0].population or "", one[0][1]),
    ):
        if (
            query.source in {None, owner.source}
            and query.population in {None, owner.population}
            and (query.analyst is None or query.analyst in record.analysts)
        ):
            yield record


def _population_row(record: PopulationRecord, updated: float) -> PopulationRow:
    declared = record.population
    total = total_amount(declared.epsilon, declared.delta, declared.accountant)
    return PopulationRow.from_record(
        record,
        population=declared.population,
        accountant=declared.accountant,
        total=total,
        left_share=left_share(record.left, total),
        renews=declared.renews,
        period=period_view(record.period),
        meaning=describe_guarantee(record.period),
        updated=updated,
    )


def _allotment_row(tables: MonitorTables, record: AllotmentRecord) -> AllotmentRow:
    accountant, budgets = _budgets_of(tables, record)
    total, own = total_amount(record.epsilon, record.delta, accountant), record.left
    if any(
        not budget.has_delta for budget in budgets
    ):  # no grant has a δ, so its share of the allotment says nothing
        total, own = (one.model_copy(update={"delta": 0.0}) for one in (total, own))
    left = reduce(Amount.minimum_with, (budget.left for budget in budgets), own)
    # Under zCDP, a grant needs enough of ε or of ρ, so less of one may limit nothing.
    is_limited = own.rho is None or left_share(left, total) < left_share(own, total)
    return AllotmentRow.from_record(
        record,
        total=total,
        left=left,
        left_share=left_share(left, total),
        limited_by=[
            f"{budget.owner} ({', '.join(symbols)})"
            for budget in budgets
            if is_limited and (symbols := _limited_symbols(budget.left, left, own))
        ],
        period=period_view(record.period),
        meaning=describe_guarantee(record.period),
    )


def _limited_symbols(budget: Amount, least: Amount, own: Amount) -> list[str]:
    """Return the symbols of the amounts of which an allotment has less left than its ``own`` rest because of a budget.

    Under zCDP, ε is a sum only without Gaussian noise, which gives an amount a δ.
    """
    parts = {"epsilon": "ε", "delta": "δ"} if own.rho is None else {"epsilon": "ε", "rho": "ρ"}
    if own.rho is not None and (budget.delta or own.delta):
        del parts["epsilon"]
    return [
        symbol
        for part, symbol in parts.items()
        if getattr(budget, part) == getattr(least, part) < getattr(own, part)
    ]


class _LimitingBudget(NamedTuple):
    owner: str
    left: Amount
    has_delta: bool


def _budgets_of(tables: MonitorTables, record: AllotmentRecord) -> tuple[str, list[_LimitingBudget]]:
    """Return an allotment's accountant, and the budgets that limit it."""
    found = []
    population = record.population
    if (entry := tables.sources.get(record.source or "")) is not None:
        source = entry.record.source
        budget = _LimitingBudget(f"source {record.source}", entry.record.left, source.delta > 0)
        found.append((source.accountant, budget))
        population = entry.record.population
    if (known := tables.populations.get(population or "")) is not None:
        shared = known[0].population
        budget = _LimitingBudget(f"population {population}", known[0].left, shared.delta > 0)
        found.append((shared.accountant, budget))
    accountant = found[0][0] if found else "pure"
    return accountant, [budget for its_accountant, budget in found if its_accountant == accountant]


def build_spending_view(tables: MonitorTables, query: SpendingQuery) -> Spending:
    """Return the analysts (most streams first) and the costliest streams; retired periods are not included."""
    found = [
        (entry, grant, spent)
        for entry in tables.streams_of(query.source)
        if (grant := entry.grant) is not None and (spent := entry.spent) is not None
    ]
    shares = {
        entry.name: Share(granted=grant.cost, spent=spent, refunded=grant.refunded)
        for entry, grant, spent in found
    }
    by_analyst: defaultdict[str | None, defaultdict[str, list[Share]]] = defaultdict(lambda: defaultdict(list))
    for entry, grant, _ in found:
        by_analyst[grant.analyst][grant.source].append(shares[entry.name])
    analysts = [
        AnalystSpending(
            analyst=analyst,
            streams=sum(map(len, by_source.values())),
            sources=[
                SourceShare(source=source, streams=len(analyst_shares), share=_sum_shares(analyst_shares))
                for source, analyst_shares in sorted(by_source.items())
            ],
        )
        for analyst, by_source in by_analyst.items()
    ]
    analysts.sort(key=lambda one: (-one.streams, one.analyst or ""))
    costliest = heapq.nlargest(query.limit, found, key=lambda one: (_kept_cost(one[1]), one[0].name))
    return Spending(
        source=query.source,
        streams=len(found),
        analysts=analysts,
        costliest=[
            StreamSpending(
                stream=entry.name,
                source=grant.source,
                analyst=grant.analyst,
                state=entry.state,
                share=shares[entry.name],
            )
            for entry, grant, _ in costliest
        ],
    )


def _kept_cost(grant: SharedGrant) -> float:
    """Return the part of a grant that was not refunded, in ρ under zCDP, otherwise in ε."""
    granted, refunded = grant.cost, grant.refunded
    return granted.epsilon - refunded.epsilon if granted.rho is None else granted.rho - (refunded.rho or 0.0)


def _sum_shares(shares: Sequence[Share]) -> Share:
    """Add up shares of one source, which have the same accountant."""
    return Share(**{part: _add_amounts([getattr(one, part) for one in shares]) for part in Share.model_fields})


def _add_amounts(parts: Sequence[Amount]) -> Amount:
    """Add up amounts. An ε that was computed from ρ and δ cannot be added: ε of such a sum is 0, and ρ is its cost."""
    epsilon, delta = fsum(one.epsilon for one in parts), fsum(one.delta for one in parts)
    if all(one.rho is None for one in parts):
        return Amount(epsilon=epsilon, delta=delta)
    rho = fsum(one.rho or 0.0 for one in parts)
    return Amount(epsilon=0.0 if delta else epsilon, delta=0.0, rho=rho)


def list_trail(trail: TrailState, query: TrailQuery) -> TrailPage:
    """Return a page of the matching entries, latest first."""
    matching = [entry for entry in trail if matches(entry, query)]
    page = islice(matching, query.offset, query.offset + query.limit)
    return TrailPage(
        entries=trail.entries,
        held=MAX_HELD_ENTRIES,
        unread=trail.unread,
        broken=trail.broken,
        matching=len(matching),
        offset=query.offset,
        items=[trail_row(entry) for entry in page],
    )


def matches(entry: HeldEntry, query: TrailFilter) -> bool:
    """Return True if an entry matches the filter."""
    search = query.search.casefold()
    return (
        query.source in {None, entry.source}
        and query.stream in {None, entry.stream}
        and query.population in {None, entry.population}
        and query.analyst in {None, entry.analyst}
        and query.by in {None, entry.by}
        and query.action in {None, entry.action}
        and query.outcome in {None, entry.outcome}
        and (query.since is None or entry.time >= query.since)
        and (query.until is None or entry.time < query.until)
        and (
            not search
            or any(
                search in text.casefold()
                for text in (entry.source, entry.stream, entry.population, entry.analyst, entry.by, entry.request)
            )
        )
    )


def trail_row(entry: HeldEntry) -> TrailRow:
    """Return the view of an entry."""
    shape = decode_record(TrailShape, entry.raw)
    amounts = {name: getattr(shape, name) for name in _AMOUNT_COLUMNS}
    if shape.totals is not None:
        amounts["left"] = shape.totals.left
    models = {name: None if one is None else to_amount(one) for name, one in amounts.items()}
    loss = None if shape.since is None else format_loss(shape.since, shape.lost, is_rollback=bool(shape.reason))
    return TrailRow.from_record(shape, time=entry.time, action=entry.action, loss=loss, **models)


MAX_EXPORTS: Final = 8
"""Maximum number of concurrent exports."""
MAX_EXPORTS_PER_USER: Final = 2
"""Maximum number of concurrent exports per user, so that a slow reader does not block other users."""
_ROWS_PER_PART: Final = 50
"""Number of rows that are formatted before other tasks run; a row takes about 40 µs."""
_HEADERS: Final = {
    "Content-Type": "text/csv; charset=utf-8",
    "Content-Disposition": 'attachment; filename="trail.csv"',
}
_AMOUNT_COLUMNS: Final = ("asked", "granted", "spent", "refunded", "left")
_NUMBER_COLUMNS: Final = ("answers", "epsilon", "delta")
_SINGLE_COLUMNS: Final = (
    *(name for name in TrailRow.model_fields if name not in {*_AMOUNT_COLUMNS, *_NUMBER_COLUMNS}),
    *_NUMBER_COLUMNS,
)
COLUMNS: Final = (
    *_SINGLE_COLUMNS,
    *(f"{name}_{part}" for name in _AMOUNT_COLUMNS for part in Amount.model_fields),
    "record",
)
"""Columns of the CSV: one column for each number, and a last column with the entry's JSON."""


class TrailExports:
    """Sends the trail as CSV; limits concurrent exports in total and per user."""

    def __init__(self) -> None:
        self._sending: Counter[str] = Counter()

    async def serve(
        self, request: web.Request, bearer: Bearer, trail: TrailState, trail_filter: TrailFilter
    ) -> web.StreamResponse:
        """Send the matching entries, oldest first; on HEAD only the headers."""
        if request.method == "HEAD":
            return web.Response(headers=_HEADERS)
        if self._sending.total() >= MAX_EXPORTS or self._sending[bearer.name] >= MAX_EXPORTS_PER_USER:
            raise too_many_error(
                f"at most {MAX_EXPORTS_PER_USER} exports per name and {MAX_EXPORTS} in total; "
                "ask again when one is done",
                10,
            )
        self._sending[bearer.name] += 1
        try:
            response = web.StreamResponse(headers=_HEADERS)
            with streaming_response(request):
                await response.prepare(request)
                for text in format_trail_csv(list(trail)[::-1], trail_filter):
                    await write_text(response, text)
                    # If the client reads fast, no write waits, and other tasks run only here.
                    await asyncio.sleep(0)
        finally:
            self._sending[bearer.name] -= 1
        return response


def format_trail_csv(entries: list[HeldEntry], trail_filter: TrailFilter) -> Iterator[str]:
    """Return the CSV in parts, header first."""
    parts = (entries[start : start + _ROWS_PER_PART] for start in range(0, len(entries), _ROWS_PER_PART))
    return csv_parts(COLUMNS, ([_csv_cells(one) for one in part if matches(one, trail_filter)] for part in parts))


def _csv_cells(entry: HeldEntry) -> list[Any]:
    row = trail_row(entry)
    values: dict[str, Any] = {
        **{name: getattr(row, name) for name in _SINGLE_COLUMNS},
        "time": datetime.fromtimestamp(row.time, UTC).isoformat(),
        "analysts": " ".join(row.analysts) or None,
    }
    amounts = [getattr(getattr(row, name), part, None) for name in _AMOUNT_COLUMNS for part in Amount.model_fields]
    return [
        *(quote_formula(values[name]) for name in _SINGLE_COLUMNS),
        *amounts,
        entry.raw.decode(errors="replace"),
    ]
