"""A nightly report: three statements, each number with its ±, and the budget that is left.

``python report.py STREAM FILE`` asks the installation that ``SOTTO_BOOTSTRAP`` names.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from sotto import Client, Driver, Halted, Table

STATEMENTS = {
    "People by sex": "SELECT sex, COUNT(*) AS people FROM {stream} GROUP BY sex",
    "High incomes by sex": 'SELECT sex, COUNT(*) AS people FROM {stream} WHERE "income>50K" = 1 GROUP BY sex',
    "65 and older": "SELECT COUNT(*) AS people FROM {stream} WHERE age >= 65",
}


def report(client: Client | Driver, stream: str, day: datetime) -> tuple[str, bool]:
    """The report as Markdown, and whether all of it could be asked."""
    lines, complete = [f"# {stream}, {day:%Y-%m-%d}", ""], True
    for title, statement in STATEMENTS.items():
        lines += [f"## {title}", ""]
        try:
            lines += [*section(client.sql(statement.format(stream=stream))), ""]
        except Halted as halted:  # no error: a budget that is used up is meant to end it
            lines += [f"Not asked: {halted}", ""]
            complete = False
    grant = next(one for one in client.list_streams() if one.spec.stream == stream)
    source = client.budget(grant.spec.source)
    lines += [
        "## Budget",
        "",
        f"{stream} holds ε {grant.cost.epsilon:.4g}.",
        f"Of {source.source.source}'s ε {source.source.epsilon:g}, {source.left.epsilon:.4g} is left to be granted.",
    ]
    return "\n".join(lines) + "\n", complete


def section(table: Table) -> list[str]:
    """A table as Markdown, and what it cost."""
    rows = list(table)
    names = list(rows[0])
    shown = [[f"{cell:,.0f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
    lines = [names, ["---"] * len(names), *shown]
    return [*("| " + " | ".join(line) + " |" for line in lines), "", f"Cost: ε {table.epsilon:.4g}"]


def main() -> None:
    """Write the report; exit status 1 if something could not be asked any more."""
    stream, target = sys.argv[1:]
    with Client() as client:
        text, complete = report(client, stream, datetime.now(UTC))
    Path(target).write_text(text)
    sys.exit(not complete)


if __name__ == "__main__":
    main()
