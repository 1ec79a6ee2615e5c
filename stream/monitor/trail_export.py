"""The audit trail as CSV, for a spreadsheet: the entries that are held and match, oldest first."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from schemas import Amount
from stream.asking.spreadsheets import cell
from stream.monitor.budget_models import TrailFilter, TrailRow
from stream.monitor.connections import WRITE_SECONDS
from stream.monitor.trail_listing import matches, trail_row
from stream.monitor.trails import Held, Trail

_ROWS_AT_ONCE: Final = 500
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


async def send_trail(request: web.Request, trail: Trail, wanted: TrailFilter) -> web.StreamResponse:
    """Send the entries that match, a few hundred at a time."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/csv; charset=utf-8",
            "Content-Disposition": 'attachment; filename="trail.csv"',
        }
    )
    await response.prepare(request)
    for text in trail_csv(list(trail)[::-1], wanted):
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(text.encode())
    return response


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
