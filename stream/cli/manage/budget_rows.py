"""Prints budgets, allotments and the declared attributes of sources."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce

from schemas import (
    AllotmentRecord,
    Amount,
    Bins,
    Categories,
    Dates,
    Decimals,
    Domain,
    EventsSource,
    Integers,
    Period,
    PopulationRecord,
    Source,
    SourceRecord,
    TableSource,
)
from stream.cli.output import format_amount, format_left, say, show_table
from stream.formatting import describe_rows, describe_table_bound, format_count
from stream.questions.clamped_values import range_text
from stream.tables.table_errors import MONDAY_IS_1, quote_names


def show_budget(
    title: str,
    record: SourceRecord | PopulationRecord,
    allotments: Sequence[AllotmentRecord],
    people: PopulationRecord | None = None,
) -> None:
    """Print a budget's figures, the meaning of its period, and its allotments; ``people`` is a source's population."""
    columns = ["granted", "spent", "refunded", "left"]
    figures = [*map(format_amount, (record.granted, record.spent, record.refunded)), format_left(record.left)]
    if record.period is not None:
        columns = ["granted ever", "spent ever", "refunded ever", "counted now", "left now"]
        figures.insert(3, format_amount(record.period.counted))
    show_table(title, columns, [figures])
    halted = f"halted: {record.reason}" if record.reason else ""
    for line in filter(None, (halted, _period_line(record.period) if record.period else "")):
        say(line, soft_wrap=True)
    if allotments:
        budgets, also = [record.left], ""
        own = record.source.accountant if isinstance(record, SourceRecord) else None
        if people is not None and people.population.accountant == own:  # amounts of one accountant are comparable
            budgets.append(people.left)
            also = f" and that of population {people.population.population}"
        show_table(
            f"{format_count(len(allotments), 'allotment')}, limited by the budget{also}",
            ["allotment", "analysts", "may have", "granted", "spent", "refunded", "left", "streams"],
            [_allotment_row(one, budgets) for one in sorted(allotments, key=lambda one: one.allotment)],
        )


def show_attributes(source: Source) -> None:
    """Print the declared attributes of a source and which rows count; nothing for a source without attributes."""
    if not isinstance(source, TableSource | EventsSource):
        return
    columns = source.columns if isinstance(source, TableSource) else {}
    rows: list[list[str]] = [[name, one.kind, _describe_values(one)] for name, one in source.attributes.items()]
    rows += [[name, "text", f"private, at most {one.max_length:,} bytes"] for name, one in source.texts.items()]
    if rows:
        show_table(
            format_count(len(rows), "attribute"),
            ["attribute", "kind", "values", "column"],
            [[*row, columns.get(row[0], row[0]) if columns else ""] for row in rows],
            optional=["column"],
        )
    if isinstance(source, TableSource):
        for line in filter(None, (describe_table_bound(source), *describe_rows(source))):
            say(line, soft_wrap=True)


def _describe_values(domain: Domain) -> str:
    """Describe the values of an attribute in few words."""
    match domain:
        case Categories(values=values, other=other, ordered=ordered):
            text = quote_names(values) + ", in this order" * ordered
            return text if other is None else f"{text}; others count as '{other}'"
        case Dates(granularity=unit, part=part):
            text = f"{range_text(domain)} by {unit}" if part is None else f"{unit}, {range_text(part)}"
            text += f" in {domain.zone or 'UTC'}" if domain.kind == "timestamp" else ""
            text += f"; {MONDAY_IS_1}" if unit == "weekday" else ""
        case Decimals():
            text = f"{range_text(domain)} in steps of {domain.step:.15g}"
        case Bins():
            text = f"{range_text(domain)} in {format_count(domain.size, 'bin')}"
        case Integers():
            text = range_text(domain)
    return f"{text}; others do not count" if domain.outside == "reject" else text


def _period_line(period: Period) -> str:
    ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(period.ends / 1000))
    over = "; it is over, and the next period begins with the next event" * (period.ends <= 1000 * time.time())
    return f"period {period.number} ends at {ends} UTC{over}: {period.meaning}"


def _allotment_row(record: AllotmentRecord, budgets: Sequence[Amount]) -> list[str]:
    price = f"ε {record.epsilon:.6g}" + (f", δ {record.delta:.2g}" if record.delta else "")
    left = reduce(Amount.minimum_with, budgets, record.left)
    figures = [*map(format_amount, (record.granted, record.spent, record.refunded)), format_left(left)]
    return [record.allotment, ", ".join(record.analysts), price, *figures, str(record.streams)]
