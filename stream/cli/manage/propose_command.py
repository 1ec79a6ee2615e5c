"""``sotto source propose``: propose a declaration from a table's columns and public description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stream.cli.output import CommandError, escape_text, show_json
from stream.settings import Settings
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.schema_proposals import READ_PARTS, ProposedAttribute, propose_attributes, read_description
from stream.tables.table_errors import UnreadableError


def propose(
    table: Annotated[str, typer.Argument(help="The table: a file, a folder with / at its end, or a pattern.")],
) -> None:
    """Propose a source for a table, with null where you must declare a range or values.

    Only the names and types of columns and the public description TABLE.schema.json are read. The first line of a CSV file
    is shown as names; in a file without a line of names, this line is a row.
    Fill in the nulls from public knowledge, and then use 'sotto source check' and 'sotto source add'.
    """
    path = Path(table)
    settings = Settings()
    limits = ReadingLimits(
        (path.resolve().parent if path.parent == Path() else path.parent.resolve(),),
        settings.table_bytes,
        settings.table_reading_bytes,
        settings.table_reading_seconds,
        reveals_causes=True,
    )
    try:
        found = propose_attributes(GuardedReader(limits).columns(table), read_description(table))
    except UnreadableError as error:
        raise CommandError(f"table: {table} cannot be read: {error.problem}") from None
    show_json(
        {
            "source": path.name.partition(".")[0] or "table",
            "kind": "table",
            "path": str(path.resolve()) + "/" * table.endswith("/"),
            "neighbors": "add-remove",
            "epsilon": None,
            "attributes": {one.name: _domain(one) for one in found if one.domain is not None},
        }
    )
    typer.echo(READ_PARTS, err=True)
    for one in found:
        if (line := _describe(one)) is not None:
            typer.echo(f"  {escape_text(one.name)}: {escape_text(line)}", err=True)


def _domain(proposed: ProposedAttribute) -> dict[str, Any]:
    return {**(proposed.domain or {}), **dict.fromkeys(proposed.missing)}


def _describe(proposed: ProposedAttribute) -> str | None:
    if proposed.domain is None:
        return f"left out: {proposed.reason}"
    unit = "" if proposed.unit is None else f" in {proposed.unit}"
    lines = [] if proposed.reason is None else [proposed.reason]
    lines += [f"fill in {', '.join(proposed.missing)}{unit}"] if proposed.missing else []
    return "; ".join(lines) or None
