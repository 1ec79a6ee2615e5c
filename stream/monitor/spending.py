"""Who has spent what, added up from the ledger's grants."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum

from schemas import Amount
from stream.monitor.budget_models import (
    AnalystSpending,
    Share,
    SourceShare,
    Spending,
    SpendingQuery,
    StreamSpending,
)
from stream.monitor.digests import AmountShape, GrantRecordShape
from stream.monitor.entries import StreamEntry
from stream.monitor.tables import Tables


@dataclass(slots=True)
class _Sum:
    """Amounts of one source, whose accountant is theirs all."""

    streams: int = 0
    parts: list[list[AmountShape]] = field(default_factory=lambda: [[], [], []])

    def add(self, entry: StreamEntry, grant: GrantRecordShape) -> None:
        self.streams += 1
        for part, amount in zip(self.parts, (grant.cost, entry.spent or grant.spent, grant.refunded), strict=True):
            part.append(amount)

    def share(self) -> Share:
        granted, spent, refunded = (_total(part) for part in self.parts)
        return Share(granted=granted, spent=spent, refunded=refunded)


def spending(tables: Tables, query: SpendingQuery) -> Spending:
    """Every analyst's part, those with most streams first, and the streams that cost most; of periods the latest counts."""
    sums: defaultdict[str | None, dict[str, _Sum]] = defaultdict(dict)
    found = [(entry, grant) for entry in tables.streams_of(query.source) if (grant := entry.grant) is not None]
    for entry, grant in found:
        sums[grant.analyst].setdefault(grant.spec.source, _Sum()).add(entry, grant)
    analysts = [
        AnalystSpending(
            analyst=analyst,
            streams=sum(one.streams for one in by_source.values()),
            sources=[
                SourceShare(source=source, streams=one.streams, share=one.share())
                for source, one in sorted(by_source.items())
            ],
        )
        for analyst, by_source in sums.items()
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
                share=Share(
                    granted=grant.cost.model(),
                    spent=(entry.spent or grant.spent).model(),
                    refunded=grant.refunded.model(),
                ),
            )
            for entry, grant in costliest
        ],
    )


def _total(amounts: Iterable[AmountShape]) -> Amount:
    """Amounts added up. Under zCDP an ε that has a δ is what ρ implies, and adds up to nothing: then ρ alone is told."""
    told = list(amounts)
    epsilon, delta = fsum(one.epsilon for one in told), fsum(one.delta for one in told)
    if all(one.rho is None for one in told):
        return Amount(epsilon=epsilon, delta=delta)
    rho = fsum(one.rho or 0.0 for one in told)
    return Amount(epsilon=0.0 if delta else epsilon, delta=0.0, rho=rho)
