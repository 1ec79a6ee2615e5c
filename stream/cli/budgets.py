"""Budgets as commands show them: sources', populations', and what analysts were allotted of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from schemas import AllotmentRecord, Period, PopulationRecord, SourceRecord
from stream.cli.output import amount, say, show_table


def show_budget(
    title: str, record: SourceRecord | PopulationRecord, allotments: Sequence[AllotmentRecord]
) -> None:
    """A budget's figures, what its period means if it renews, and its allotments."""
    columns = ["granted", "spent", "refunded", "left"]
    figures = [amount(value) for value in (record.granted, record.spent, record.refunded, record.left)]
    if record.period is not None:
        columns = ["granted ever", "spent ever", "refunded ever", "counted now", "left now"]
        figures.insert(3, amount(record.period.counted))
    show_table(title, columns, [figures])
    if record.period is not None:
        say(_told(record.period), soft_wrap=True)
    if allotments:
        show_table(
            f"{len(allotments)} allotments, under the budget as their ceiling",
            ["allotment", "analysts", "may have", "granted", "spent", "left", "streams"],
            [_row(one) for one in sorted(allotments, key=lambda one: one.allotment)],
        )


def _told(period: Period) -> str:
    ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(period.ends / 1000))
    over = "; it is over, and the next one begins with the next event" if period.ends <= 1000 * time.time() else ""
    return f"period {period.number} ends at {ends} UTC{over}: {period.meaning}"


def _row(one: AllotmentRecord) -> list[str]:
    price = f"ε {one.epsilon:.6g}" + (f", δ {one.delta:.2g}" if one.delta else "")
    figures = [amount(value) for value in (one.granted, one.spent, one.left)]
    return [one.allotment, ", ".join(one.analysts), price, *figures, str(one.streams)]
