"""The audit trail as CSV, for a spreadsheet: the entries that are held and match, oldest first."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from schemas import Amount
from stream.asking.spreadsheets import cell
from stream.monitor.budget_models import TrailFilter, TrailRow
from stream.monitor.connections import sending, write
from stream.monitor.problems import too_many
from stream.monitor.tokens import Bearer
from stream.monitor.trail_listing import matches, trail_row
from stream.monitor.trails import Held, Trail

MAX_EXPORTS: Final = 8
"""Most exports that are sent at a time."""
MAX_EXPORTS_EACH: Final = 2
"""Most of them to one name: a reader may take its time over one."""
_ROWS_AT_ONCE: Final = 50
"""Rows are made in the event loop, some 40 µs each: others wait for no more of them."""
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
"""Every figure has a column of its own; the last one is the entry byte for byte."""


class TrailExports:
    """All exports that are being sent; there is a limit to them, and to those of each name."""

    def __init__(self) -> None:
        self._sending: Counter[str] = Counter()

    async def serve(
        self, request: web.Request, bearer: Bearer, trail: Trail, wanted: TrailFilter
    ) -> web.StreamResponse:
        """Send the entries that match, a few at a time; ``HEAD`` asks for the headers alone."""
        if request.method == "HEAD":
            return web.Response(headers=_HEADERS)
        if self._sending.total() >= MAX_EXPORTS or self._sending[bearer.name] >= MAX_EXPORTS_EACH:
            raise too_many(
                f"at most {MAX_EXPORTS_EACH} exports of a name are sent at a time, and {MAX_EXPORTS} of all; "
                "ask again when one is done",
                10,
            )
        self._sending[bearer.name] += 1
        try:
            response = web.StreamResponse(headers=_HEADERS)
            with sending(request):
                await response.prepare(request)
                await _send(response, list(trail)[::-1], wanted)
        finally:
            self._sending[bearer.name] -= 1
        return response


async def _send(response: web.StreamResponse, entries: list[Held], wanted: TrailFilter) -> None:
    for text in trail_csv(entries, wanted):
        await write(response, text)
        # A reader that keeps up never makes a write wait: others have their turn here alone.
        await asyncio.sleep(0)


def trail_csv(entries: list[Held], wanted: TrailFilter) -> Iterator[str]:
    """The table in parts, its head first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for start in range(0, max(len(entries), 1), _ROWS_AT_ONCE):
        writer.writerows(_cells(one) for one in entries[start : start + _ROWS_AT_ONCE] if matches(one, wanted))
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _cells(entry: Held) -> list[Any]:
    row = trail_row(entry)
    told: dict[str, Any] = {
        **{name: getattr(row, name) for name in _WORDS},
        "time": datetime.fromtimestamp(row.time, UTC).isoformat(),
        "analysts": " ".join(row.analysts) or None,
    }
    amounts = [part for name in _AMOUNTS for part in _parts(row, name)]
    return [*(cell(told[name]) for name in _WORDS), *amounts, entry.raw.decode(errors="replace")]


def _parts(row: TrailRow, name: str) -> tuple[float | None, ...]:
    amount: Amount | None = getattr(row, name)
    return tuple(None if amount is None else getattr(amount, part) for part in _PARTS)
