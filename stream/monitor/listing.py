"""Searching, filtering, sorting and paging, done here so that a page of 50 costs a browser no more at 10,000 streams."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints

from schemas import StreamState
from stream.monitor.entries import STATES, SourceEntry, StreamEntry
from stream.monitor.models import (
    RejectedEvent,
    RejectedReason,
    RejectedView,
    SourcePage,
    SourceSort,
    StreamPage,
    StreamSort,
    View,
)
from stream.monitor.tables import Tables
from stream.monitor.views import dry_in, left_share, rates, source_row, stream_row

MAX_PAGE = 500
_Entry = TypeVar("_Entry", SourceEntry, StreamEntry)
_Key = Any

Search = Annotated[str, StringConstraints(max_length=128)]


def _listed(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


class _Page(View):
    # Parameters come as text.
    model_config = ConfigDict(strict=False)

    search: Annotated[Search, Field(description="Part of a name, in any case.")] = ""
    descending: bool = False
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50


class SourceQuery(_Page):
    """Which sources to list."""

    state: Literal["open", "halted"] | None = None
    sort: SourceSort = "source"


class StreamQuery(_Page):
    """Which streams to list; ``search`` looks at the names of stream and source."""

    state: Annotated[
        tuple[StreamState, ...], BeforeValidator(_listed), Field(description="States, separated by commas.")
    ] = ()
    source: Annotated[str, StringConstraints(max_length=128)] | None = None
    mechanism: Annotated[str, StringConstraints(max_length=64)] | None = None
    sort: StreamSort = "stream"


class RejectedQuery(View):
    """Which refused events to list; ``search`` looks at the names of streams and at ids."""

    model_config = ConfigDict(strict=False)

    search: Annotated[Search, Field(description="Part of a stream's name or of an id, in any case.")] = ""
    code: Annotated[str, StringConstraints(max_length=128), Field(description="Only this reason.")] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


def list_rejected(tables: Tables, query: RejectedQuery) -> RejectedView:
    """Refused events by reason, the most frequent first, and the latest of those that match."""
    search = query.search.casefold()
    matching = [
        (time, letter)
        for code, letters in tables.recent_rejected.items()
        if query.code in {None, code}
        for time, letter in letters
        if search in (letter.stream or "").casefold() or search in (letter.id or "").casefold()
    ]
    latest = heapq.nlargest(query.limit, matching, key=lambda one: (one[0], one[1].offset))
    return RejectedView(
        total=tables.rejected.total(),
        matching=len(matching),
        reasons=[
            RejectedReason(code=code, count=count, last=tables.last_rejected[code])
            for code, count in tables.rejected.most_common()
        ],
        recent=[RejectedEvent(time=time, **msgspec.structs.asdict(letter)) for time, letter in latest],
    )


def list_sources(tables: Tables, query: SourceQuery) -> SourcePage:
    """A page of the sources that match."""
    search = query.search.casefold()
    matching = [
        entry
        for name, entry in tables.sources.items()
        if search in name.casefold() and query.state in {None, entry.record.state}
    ]
    key = _SOURCE_KEYS[query.sort]
    page = _page(matching, lambda entry: (key(entry), entry.record.source.source), query)
    return SourcePage(
        total=len(tables.sources),
        matching=len(matching),
        offset=query.offset,
        items=[source_row(entry) for entry in page],
    )


def list_streams(tables: Tables, query: StreamQuery, now: float) -> StreamPage:
    """A page of the streams that match; where there is nothing to sort by, a stream comes last."""
    matching = list(_matching(tables, query))
    value_of = _STREAM_KEYS[query.sort]

    def place(entry: StreamEntry) -> _Key:
        value = value_of(entry, now)
        return (value is None) != query.descending, 0 if value is None else value, entry.name

    page = _page(matching, place, query)
    return StreamPage(
        total=tables.shown,
        matching=len(matching),
        offset=query.offset,
        items=[stream_row(entry, now) for entry in page],
    )


def _matching(tables: Tables, query: StreamQuery) -> Iterable[StreamEntry]:
    search = query.search.casefold()
    states = frozenset(query.state)
    for entry in tables.streams.values():
        grant = entry.grant
        if (
            grant is not None
            and (not states or entry.state in states)
            and query.source in {None, grant.spec.source}
            and query.mechanism in {None, grant.spec.mechanism.kind}
            and (search in entry.name.casefold() or search in grant.spec.source.casefold())
        ):
            yield entry


def _page(entries: list[_Entry], key: Callable[[_Entry], _Key], query: _Page) -> list[_Entry]:
    choose = heapq.nlargest if query.descending else heapq.nsmallest
    wanted = query.offset + query.limit
    if wanted * 4 < len(entries):
        return choose(wanted, entries, key=key)[query.offset :]
    return sorted(entries, key=key, reverse=query.descending)[query.offset : wanted]


def _amount_left(entry: SourceEntry) -> float:
    left = entry.record.left
    return left.epsilon if left.rho is None else left.rho


def _rate(entry: StreamEntry, now: float, name: Literal["above", "below"]) -> float:
    return float(getattr(rates(entry, now)[0], name))


_SOURCE_KEYS: dict[SourceSort, Callable[[SourceEntry], _Key]] = {
    "source": lambda entry: entry.record.source.source,
    "state": lambda entry: entry.record.state,
    "left": _amount_left,
    "left_share": lambda entry: left_share(entry.record.left.model(), entry.total),
    "streams": lambda entry: entry.streams.total(),
    "updated": lambda entry: entry.updated,
}
_STREAM_KEYS: dict[StreamSort, Callable[[StreamEntry, float], _Key]] = {
    "stream": lambda entry, _: entry.name,
    "source": lambda entry, _: entry.grant.spec.source if entry.grant else "",
    "mechanism": lambda entry, _: entry.grant.spec.mechanism.kind if entry.grant else "",
    "state": lambda entry, _: STATES.index(entry.state),
    "answered": lambda entry, _: entry.answered,
    "tops": lambda entry, _: entry.tops,
    "tops_left": lambda entry, _: entry.tops_left,
    "alpha": lambda entry, _: entry.grant.calibration.alpha if entry.grant else None,
    "above_rate": lambda entry, now: _rate(entry, now, "above"),
    "below_rate": lambda entry, now: _rate(entry, now, "below"),
    "dry_in": dry_in,
    "updated": lambda entry, _: entry.updated,
}
