"""Searching the audit trail."""

from __future__ import annotations

from itertools import islice

from schemas import Amount
from stream.monitor.budget_models import TrailFilter, TrailPage, TrailQuery, TrailRow
from stream.monitor.digests import AmountShape, read
from stream.monitor.trails import HELD_ENTRIES, Held, Trail, TrailShape


def list_trail(trail: Trail, query: TrailQuery) -> TrailPage:
    """A page of the held entries that match, the latest first."""
    matching = [entry for entry in trail if matches(entry, query)]
    page = islice(matching, query.offset, query.offset + query.limit)
    return TrailPage(
        entries=trail.entries,
        held=HELD_ENTRIES,
        broken=trail.broken,
        matching=len(matching),
        offset=query.offset,
        items=[trail_row(entry) for entry in page],
    )


def matches(entry: Held, query: TrailFilter) -> bool:
    """Whether an entry is asked for."""
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
        and (not search or any(search in text.casefold() for text in _searched(entry)))
    )


def trail_row(entry: Held) -> TrailRow:
    """An entry as it is told."""
    told = read(TrailShape, entry.raw)
    left = told.left if told.totals is None else told.totals.left
    return TrailRow(
        number=entry.number,
        time=entry.time,
        kind=entry.kind,
        action=entry.action,
        outcome=told.outcome,
        source=told.source,
        stream=told.stream,
        population=told.population,
        analyst=told.analyst,
        allotment=told.allotment,
        analysts=told.analysts,
        by=told.by,
        mechanism=told.mechanism,
        request=told.request,
        reason=told.reason,
        epsilon=told.epsilon,
        asked=_model(told.asked),
        granted=_model(told.granted),
        spent=_model(told.spent),
        refunded=_model(told.refunded),
        answers=told.answers,
        left=_model(left),
    )


def _model(amount: AmountShape | None) -> Amount | None:
    return None if amount is None else amount.model()


def _searched(entry: Held) -> tuple[str, ...]:
    return entry.source, entry.stream, entry.population, entry.analyst, entry.by, entry.request
