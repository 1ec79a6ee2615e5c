"""The API's views of populations, allotments and spending."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import fsum

from schemas import AllotmentRecord, Amount, Period, PopulationRecord
from stream.monitor.api.budget_models import (
    AllotmentPage,
    AllotmentQuery,
    AllotmentRow,
    AnalystSpending,
    PeriodView,
    PopulationDetail,
    PopulationPage,
    PopulationRow,
    Share,
    SourceShare,
    Spending,
    SpendingQuery,
    StreamSpending,
)
from stream.monitor.api.problems import unknown
from stream.monitor.api.views import left_share, points_of, source_row
from stream.monitor.state.budget_history import PeriodEnd, merged
from stream.monitor.state.entries import SourceEntry, meaning_of, total_amount
from stream.monitor.state.monitor_tables import Tables


def period_view(period: Period | None) -> PeriodView | None:
    """Return the view of a budget's period."""
    if period is None:
        return None
    return PeriodView(
        number=period.number, starts=period.starts / 1000, ends=period.ends / 1000, counted=period.counted
    )


def list_populations(tables: Tables) -> PopulationPage:
    """Return all populations, by name."""
    found = sorted(tables.shared.populations.items())
    return PopulationPage(items=[_population_row(record, updated) for _, (record, updated) in found])


def population_detail(tables: Tables, name: str, now: float) -> PopulationDetail:
    """Return a population with sources, allotments, history and forecasts; or a 404."""
    if name not in tables.shared.populations:
        raise unknown("population", name)
    record, updated = tables.shared.populations[name]
    row = _population_row(record, updated)
    members = members_of(tables, name)
    # Amounts of different accountants do not add up.
    alike = all(entry.record.source.accountant == row.accountant for entry in members)
    history = merged([tables.trail.history("source", entry.record.source.source) for entry in members if alike])
    end = PeriodEnd(now, None if row.period is None else row.period.ends)
    return PopulationDetail(
        row=row,
        sources=[source_row(entry) for entry in members],
        allotments=[_allotment_row(tables, one) for one in _allotments(tables, AllotmentQuery(population=name))],
        points=points_of(history),
        forecasts=history.forecasts(row.granted, row.refunded, row.left, row.total, end) if alike else [],
    )


def list_allotments(tables: Tables, query: AllotmentQuery) -> AllotmentPage:
    """Return the matching allotments, sorted by owner and name."""
    return AllotmentPage(items=[_allotment_row(tables, record) for record in _allotments(tables, query)])


def members_of(tables: Tables, population: str) -> list[SourceEntry]:
    """Return the sources of a population, by name."""
    found = [entry for entry in tables.sources.values() if entry.record.population == population]
    return sorted(found, key=lambda entry: entry.record.source.source)


def _allotments(tables: Tables, query: AllotmentQuery) -> Iterable[AllotmentRecord]:
    for (owner, _), record in sorted(
        tables.shared.allotments.items(),
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
        meaning=meaning_of(record.period),
        updated=updated,
    )


def _allotment_row(tables: Tables, record: AllotmentRecord) -> AllotmentRow:
    total = total_amount(record.epsilon, record.delta, _accountant_of(tables, record))
    return AllotmentRow.from_record(
        record,
        total=total,
        left_share=left_share(record.left, total),
        period=period_view(record.period),
        meaning=meaning_of(record.period),
    )


def _accountant_of(tables: Tables, record: AllotmentRecord) -> str:
    if record.source is not None:
        entry = tables.sources.get(record.source)
        return "pure" if entry is None else entry.record.source.accountant
    known = tables.shared.populations.get(record.population or "")
    return "pure" if known is None else known[0].population.accountant


def spending(tables: Tables, query: SpendingQuery) -> Spending:
    """Return analysts, most streams first, and the costliest streams; of periods only the latest."""
    found = [(entry, grant) for entry in tables.streams_of(query.source) if (grant := entry.grant) is not None]
    shares = {
        entry.name: Share(granted=grant.cost, spent=entry.spent or grant.spent, refunded=grant.refunded)
        for entry, grant in found
    }
    by_analyst: defaultdict[str | None, defaultdict[str, list[Share]]] = defaultdict(lambda: defaultdict(list))
    for entry, grant in found:
        by_analyst[grant.analyst][grant.spec.source].append(shares[entry.name])
    analysts = [
        AnalystSpending(
            analyst=analyst,
            streams=sum(map(len, by_source.values())),
            sources=[
                SourceShare(source=source, streams=len(own), share=_sum_shares(own))
                for source, own in sorted(by_source.items())
            ],
        )
        for analyst, by_source in by_analyst.items()
    ]
    analysts.sort(key=lambda one: (-one.streams, one.analyst or ""))
    costliest = heapq.nlargest(
        query.limit, found, key=lambda one: (one[1].cost.rho or one[1].cost.epsilon, one[0].name)
    )
    return Spending(
        source=query.source,
        streams=len(found),
        analysts=analysts,
        costliest=[
            StreamSpending(
                stream=entry.name,
                source=grant.spec.source,
                analyst=grant.analyst,
                state=entry.state,
                share=shares[entry.name],
            )
            for entry, grant in costliest
        ],
    )


def _sum_shares(shares: Sequence[Share]) -> Share:
    """Add up shares of one source, all under its accountant."""
    return Share(
        granted=_total([one.granted for one in shares]),
        spent=_total([one.spent for one in shares]),
        refunded=_total([one.refunded for one in shares]),
    )


def _total(parts: Sequence[Amount]) -> Amount:
    """Add up amounts. Under zCDP an ε with a δ is implied by ρ, so that only ρ is given."""
    epsilon, delta = fsum(one.epsilon for one in parts), fsum(one.delta for one in parts)
    if all(one.rho is None for one in parts):
        return Amount(epsilon=epsilon, delta=delta)
    rho = fsum(one.rho or 0.0 for one in parts)
    return Amount(epsilon=0.0 if delta else epsilon, delta=0.0, rho=rho)
