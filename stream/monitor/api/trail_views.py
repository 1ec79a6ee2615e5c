"""The audit trail as a list and as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from aiohttp import web

from stream.monitor.api.budget_models import HELD_ENTRIES, TrailFilter, TrailPage, TrailQuery, TrailRow
from stream.monitor.api.connections import sending, write
from stream.monitor.api.problems import too_many
from stream.monitor.api.tokens import Bearer
from stream.monitor.state.budget_history import HeldEntry, TrailState
from stream.monitor.state.digests import TrailShape, read
from stream.questions.result_text import cell


def list_trail(trail: TrailState, query: TrailQuery) -> TrailPage:
    """Return a page of the matching entries, latest first."""
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
        and (not search or any(search in text.casefold() for text in _searched(entry)))
    )


def trail_row(entry: HeldEntry) -> TrailRow:
    """Return the view of an entry."""
    shape = read(TrailShape, entry.raw)
    left = shape.left if shape.totals is None else shape.totals.left
    return TrailRow.from_record(shape, time=entry.time, action=entry.action, left=left)


def _searched(entry: HeldEntry) -> tuple[str, ...]:
    return entry.source, entry.stream, entry.population, entry.analyst, entry.by, entry.request


MAX_EXPORTS: Final = 8
"""Most concurrent exports."""
MAX_EXPORTS_EACH: Final = 2
"""Most concurrent exports per name: a client may read slowly."""
_ROWS_AT_ONCE: Final = 50
"""Rows per turn of the event loop, about 40 µs each."""
_HEADERS: Final = {
    "Content-Type": "text/csv; charset=utf-8",
    "Content-Disposition": 'attachment; filename="trail.csv"',
}
_WORDS: Final = (
    *(
        "number",
        "time",
        "kind",
        "action",
        "outcome",
        "source",
        "stream",
        "population",
        "analyst",
        "allotment",
        "analysts",
        "by",
        "mechanism",
    ),
    *("request", "reason", "answers", "epsilon"),
)
_AMOUNTS: Final = ("asked", "granted", "spent", "refunded", "left")
_PARTS: Final = ("epsilon", "delta", "rho")
COLUMNS: Final = (*_WORDS, *(f"{name}_{part}" for name in _AMOUNTS for part in _PARTS), "record")
"""One column per number; the last column is the entry, byte for byte."""


class TrailExports:
    """All running exports, limited in total and per name."""

    def __init__(self) -> None:
        self._sending: Counter[str] = Counter()

    async def serve(
        self, request: web.Request, bearer: Bearer, trail: TrailState, wanted: TrailFilter
    ) -> web.StreamResponse:
        """Send the matching entries, oldest first; on HEAD only the headers."""
        if request.method == "HEAD":
            return web.Response(headers=_HEADERS)
        if self._sending.total() >= MAX_EXPORTS or self._sending[bearer.name] >= MAX_EXPORTS_EACH:
            raise too_many(
                f"at most {MAX_EXPORTS_EACH} exports per name and {MAX_EXPORTS} of all; "
                "ask again when one is done",
                10,
            )
        self._sending[bearer.name] += 1
        try:
            response = web.StreamResponse(headers=_HEADERS)
            with sending(request):
                await response.prepare(request)
                for text in trail_csv(list(trail)[::-1], wanted):
                    await write(response, text)
                    # For a fast client writes never wait: other tasks run only here.
                    await asyncio.sleep(0)
        finally:
            self._sending[bearer.name] -= 1
        return response


def trail_csv(entries: list[HeldEntry], wanted: TrailFilter) -> Iterator[str]:
    """Yield the CSV in parts, header first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for start in range(0, max(len(entries), 1), _ROWS_AT_ONCE):
        writer.writerows(_cells(one) for one in entries[start : start + _ROWS_AT_ONCE] if matches(one, wanted))
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _cells(entry: HeldEntry) -> list[Any]:
    row = trail_row(entry)
    values: dict[str, Any] = {
        **{name: getattr(row, name) for name in _WORDS},
        "time": datetime.fromtimestamp(row.time, UTC).isoformat(),
        "analysts": " ".join(row.analysts) or None,
    }
    amounts = [getattr(getattr(row, name), part, None) for name in _AMOUNTS for part in _PARTS]
    return [*(cell(values[name]) for name in _WORDS), *amounts, entry.raw.decode(errors="replace")]
