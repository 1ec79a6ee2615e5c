"""``sotto source check`` and ``propose``: compare a table with its declaration, or propose one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from schemas import EventsSource, TableSource, ValuesSource
from stream.cli.output import AsJson, CommandError, escape_text, parse_document, say, show_json, show_table
from stream.formatting import ROW_IS_PERSON, did_you_mean, format_count
from stream.questions.clamped_values import describe_values
from stream.questions.question_forms import source_adapter
from stream.settings import Settings
from stream.tables.checks import (
    NOTICE,
    CheckReport,
    ColumnMatch,
    FoundValue,
    Misfit,
    PersonRows,
    ViewRows,
    check_table,
)
from stream.tables.checks.table_check import BATCH_COUNTS
from stream.tables.engine_limits import EngineLimits
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.schema_proposals import (
    KINDS,
    READ_PARTS,
    ProposedAttribute,
    propose_attributes,
    read_description,
    remark_on_types,
)
from stream.tables.table_errors import UnreadableError

_MAX_SHOWN_NAMES = 20


def check(
    source: Annotated[
        str,
        typer.Argument(help="The source as for 'sotto source add': JSON inline, a file, or - for standard input."),
    ],
    table: Annotated[
        str | None, typer.Option(help="The table, if it is not at the source's path.", metavar="PATH")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="Count the rows per person by this column instead of the declared person column.",
            metavar="COLUMN",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with its declaration before you register it.

    Only the table's owner should see the output: it has exact numbers without noise. Kafka is not contacted, and nothing is logged or stored.
    The exit status is 1 if several columns have a declared name, if a row does not fit (decimals may be rounded to their step), if a person has more rows than the declared contribution (1 by default), or if a cell that a view converts is not of the declared kind.
    """
    wanted = parse_document(source_adapter(), source)
    if not isinstance(wanted, TableSource):
        is_live = isinstance(wanted, EventsSource)
        problem = "is a live topic" if is_live else "has no table, its questions carry the values"
        problem += f"; {describe_values(wanted)}" if isinstance(wanted, ValuesSource) else ""
        raise CommandError(f"source: {wanted.source} {problem}; give a table source")
    path = table or wanted.path or "the view"
    try:
        settings = Settings()
        limits = EngineLimits.from_settings(settings)
        report = check_table(wanted, table, person, limits, settings.table_bytes)
    except UnreadableError as error:
        place = f"{path}, {error.where}," if error.where else path
        raise CommandError(f"table: {place} cannot be read: {error.problem}") from None
    if as_json:
        show_json(report.to_json())
    else:
        _print_report(report)
        if wanted.person is None and person is None:
            say(ROW_IS_PERSON, soft_wrap=True)
    if not report.fits:
        raise typer.Exit(1)


def _print_report(report: CheckReport) -> None:
    say(NOTICE, soft_wrap=True)
    say(f"{report.source}: {format_count(report.rows, 'row')} in {report.path}", soft_wrap=True)
    if report.as_declared is not None and report.changed is not None and report.left_out is not None:
        say(
            f"unchanged: {_format_part(report.as_declared, report.rows)}; with a changed cell: "
            f"{_format_part(report.changed, report.rows)}; left out for a cell: {_format_part(report.left_out, report.rows)}"
            + ("" if report.counted is None else f"; in counts: {_format_part(report.counted, report.rows)}"),
            soft_wrap=True,
        )
    _print_view(report.view)
    _print_columns(report.columns)
    if report.misfits:
        show_table(
            "cells that do not fit",
            ["attribute", "what", "rows", "share", "becomes", "found"],
            [
                [
                    one.attribute,
                    one.what,
                    f"{one.rows:,}",
                    _format_share(one.rows, report.rows),
                    one.fate if one.becomes is None else f"{one.becomes} ({one.fate})",
                    _describe_found(one),
                ]
                for one in report.misfits
            ],
        )
    for one in report.misfits:
        if one.sum_moved:
            say(
                f"{'rounding' if one.fate == 'rounded' else f'clamping values {one.what} the range'} changes the sum of {one.attribute} by {one.sum_moved:+,.6g}"
                + " over all rows, also those left out"
                * bool(report.left_out or report.counted not in {None, report.rows})
            )
    if report.surplus_lines:
        say(f"lines with more cells than columns: {report.surplus_lines:,}; extra cells are ignored")
    if report.people is not None:
        _print_people(report.people)
    if (times := report.times) is not None:
        say(
            f"{times.engine} on this machine: loaded in {times.loading:.3g} s; a count takes {times.count:.3g} s, {BATCH_COUNTS} counts in one "
            f"batch {times.batch:.3g} s, a group-by {times.grouping:.3g} s"
        )
    for suggestion in report.suggestions:
        say(f"· {suggestion}")
    if not report.fits:
        say("the table does not fit its declaration")
    else:
        say("the table fits its declaration" + ("; warning: cells are rounded" if report.misfits else ""))


def _print_view(view: ViewRows | None) -> None:
    if view is None:
        return
    for table in view.tables:
        unmatched = (
            f"; JOIN leaves out {format_count(table.unmatched, 'row')} without a match" if table.unmatched else ""
        )
        say(f"{table.table}: {format_count(table.rows, 'row')} read{unmatched}")
    if view.filtered:
        say(f"WHERE leaves out {format_count(view.filtered, 'row')}")
    if view.unreadable:
        show_table(
            "cells that are NULL in the view, because they are not of their column's kind",
            ["column", "kind", "rows", "found"],
            [
                [f"{one.table}.{one.column}", one.kind, f"{one.rows:,}", _list_values(one.found)]
                for one in view.unreadable
            ],
        )


def _print_columns(columns: ColumnMatch) -> None:
    if columns.missing:
        say(f"missing columns: {_list_names(columns.missing)}; the file has {_list_names(columns.found)}")
    for reason in columns.unusable.values():
        say(reason)
    if columns.undeclared and columns.usable:
        say(f"undeclared columns, not read: {_list_names(columns.undeclared)}")


def _print_people(people: PersonRows) -> None:
    say(
        f"people (by {people.column}) in the rows that fit: {people.people:,}, with several rows: {people.with_several:,}; most rows of "
        f"one: {people.most_rows:,}; rows beyond the contribution of {people.contribution:,}: {people.rows_beyond:,}; rows without a "
        f"person: {people.rows_without:,}"
    )


def _describe_found(misfit: Misfit) -> str:
    if misfit.farthest is not None:
        return f"farthest: {misfit.farthest}"
    listed = _list_values(misfit.found)
    if misfit.different is None:
        return f"{listed}, and very many others" if listed else ""
    return listed + (
        f", and {misfit.different - len(misfit.found):,} others" if misfit.different > len(misfit.found) else ""
    )


def _list_values(values: Sequence[FoundValue]) -> str:
    return ", ".join(f"'{one.value}' {one.rows:,}×" for one in values)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN_NAMES} more" if len(names) > _MAX_SHOWN_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:_MAX_SHOWN_NAMES]) + more


def _format_part(part: int, rows: int) -> str:
    return f"{part:,} ({_format_share(part, rows)})"


def _format_share(part: int, rows: int) -> str:
    """Format a percentage so that 0 % means exactly none and 100 % exactly all."""
    if not rows or not part:
        return "0 %"
    if part == rows:
        return "100 %"
    percent = 100 * part / rows
    digits = 3 if percent < 99 else 4
    return "< 0.01 %" if percent < 0.01 else f"{min(percent, 99.99):.{digits}g} %"


def propose(
    table: Annotated[str, typer.Argument(help="The table: a file, a folder with / at its end, or a pattern.")],
    person: Annotated[str | None, typer.Option(help="The column that names the person.", metavar="COLUMN")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The kind of a column's attribute, one of {', '.join(KINDS)}; repeatable.", metavar="COLUMN=KIND"
        ),
    ] = None,
) -> None:
    """Propose a source for a table, with null where you must declare a range or values.

    Only the names and types of columns and the public description TABLE.schema.json are read. The first line of a CSV file
    is shown, because it has the names: in a file without names this shows a row.
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
        logs_causes=False,
    )
    try:
        columns = GuardedReader(limits).columns(table)
        kinds = _parse_kinds(kind or (), person, [one.name for one in columns])
        attributes = [one for one in columns if one.name != person]
        found = propose_attributes(attributes, read_description(table), kinds)
    except UnreadableError as error:
        raise CommandError(f"table: {table} cannot be read: {error.problem}") from None
    show_json(
        {
            "source": path.name.partition(".")[0] or "table",
            "kind": "table",
            "path": str(path.resolve()) + "/" * table.endswith("/"),
            "neighbors": "add-remove",
            "epsilon": None,
            **({} if person is None else {"person": person, "contribution": None}),
            "attributes": {
                one.name: {**one.domain, **dict.fromkeys(one.missing)} for one in found if one.domain is not None
            },
        }
    )
    typer.echo(READ_PARTS, err=True)
    if person is None:
        typer.echo(f"person: {ROW_IS_PERSON} (--person COLUMN)", err=True)
    else:
        typer.echo("contribution: fill in the most rows of one person that count", err=True)
    if not kinds and (remark := remark_on_types(attributes, found)):
        typer.echo(f"{remark} Use --kind COLUMN=KIND.", err=True)
    for one in found:
        if (line := _describe_proposed(one)) is not None:
            typer.echo(f"  {escape_text(one.name)}: {escape_text(line)}", err=True)


def _parse_kinds(choices: Sequence[str], person: str | None, columns: Sequence[str]) -> dict[str, str]:
    """Return the chosen kind of each column in ``COLUMN=KIND`` choices."""
    if person is not None and person not in columns:
        raise CommandError(f"--person: the table has no column '{person}'{did_you_mean(person, columns)}")
    found = {}
    for choice in choices:
        column, separator, chosen = choice.rpartition("=")
        if not separator or chosen not in KINDS:
            raise CommandError(f"--kind: '{choice}' is not COLUMN=KIND; give a KIND of {', '.join(KINDS)}")
        if column not in columns or column == person:
            hint = did_you_mean(column, columns) or "; give a column that is no person"
            raise CommandError(f"--kind: the table has no attribute column '{column}'{hint}")
        found[column] = chosen
    return found


def _describe_proposed(proposed: ProposedAttribute) -> str | None:
    if proposed.domain is None:
        return f"left out: {proposed.reason}"
    unit = "" if proposed.unit is None else f" in {proposed.unit}"
    lines = [] if proposed.reason is None else [proposed.reason]
    lines += [f"fill in {', '.join(proposed.missing)}{unit}"] if proposed.missing else []
    return "; ".join(lines) or None
