"""``sotto sql``: answers a SELECT statement and prints its rows and cost."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from stream.cli.manage.query_commands import (
    DryRun,
    ExitStatus,
    MaxPrice,
    check_timeout,
    exit_status,
    parse_max_price,
    warn,
)
from stream.cli.output import escape_text, say, show_json, show_table
from stream.client.async_client import AsyncClient
from stream.errors import Timeout, Unknown
from stream.formatting import format_error_bound, format_estimate, format_interval
from stream.questions.question_forms import ANSWER_TIMEOUT
from stream.sql import ERROR_SUFFIX, HIGH_SUFFIX, LOW_SUFFIX, StatementError, Table, format_cost


def sql(
    statement: Annotated[
        str, typer.Argument(help="One SELECT of COUNT, SUM, AVG … from a source or stream; in quotes.")
    ],
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for each answer.", callback=check_timeout)
    ] = ANSWER_TIMEOUT,
    max_price: MaxPrice = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer a SELECT, each number with its ± and its 95 % confidence interval, and print the cost.

    FROM names a stream, or a source: then its cheapest open stream of pmw, laplace or histogram answers, and the
    last line says which and why. Exit status as for 'sotto ask'; 3 also
    for a statement that is not supported or names an unknown source or stream.
    """
    try:
        table = asyncio.run(_ask(statement, timeout, 0.0 if dry_run else parse_max_price(max_price)))
    except (StatementError, Unknown, Timeout) as error:
        typer.echo(f"error: {escape_text(str(error))}", err=True)
        wrong = not isinstance(error, Timeout)
        raise typer.Exit(ExitStatus.REJECTED if wrong else ExitStatus.NO_ANSWER) from None
    warn(table.warnings)
    failed = next((one for one in table.results if exit_status(one) and not (dry_run and one.is_priced)), None)
    if dry_run and failed is None:
        if as_json:
            show_json({"stream": table.stream, "price": table.price, "questions": len(table.results)})
        else:
            say(f"{table.stream}: the answers cost at most ε {table.price:.4g} together; nothing was charged")
        return
    if as_json:
        why = {} if table.why is None else {"why": table.why}
        show_json({"stream": table.stream, **why, "epsilon": table.epsilon, "rows": table.rows()})
    else:
        show_statement(table)
    if failed is not None:
        say(f"{failed.outcome}: {failed.reason}")
        raise typer.Exit(exit_status(failed))


async def _ask(statement: str, timeout: float, max_price: float | str | None) -> Table:  # noqa: ASYNC109
    async with AsyncClient() as client:
        return await client.sql(statement, timeout=timeout, outcomes=True, max_price=max_price)


def show_statement(table: Table) -> None:
    """Print a statement's rows, each number with its ± and interval, and the cost."""
    names = [name for name in table.columns if not name.endswith((ERROR_SUFFIX, HIGH_SUFFIX))]
    heads = ["95 %" if name.endswith(LOW_SUFFIX) else name for name in names]
    show_table("", heads, ([_cell(row, name) for name in names] for row in table))
    say(f"{table.stream}: {format_cost(table)}")


def _cell(row: dict[str, Any], name: str) -> str:
    if name.endswith(LOW_SUFFIX):
        low, high = row[name], row[name.removesuffix(LOW_SUFFIX) + HIGH_SUFFIX]
        return "–" if low is None else format_interval((low, high), grouped=True)
    if name + ERROR_SUFFIX not in row:
        return str(row[name])
    number, error = row[name], row[name + ERROR_SUFFIX]
    if number is None:
        return "–"
    text = format_estimate(number, error, grouped=True)
    return text if error is None else f"{text} ± {format_error_bound(error, grouped=True)}"
