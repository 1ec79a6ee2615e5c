"""``sotto source``: sources and their budgets."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from pydantic import TypeAdapter

from schemas import GrantRecord, Receipt, Source, SourceRecord
from stream.cli.output import AsJson, amount, charged, read_document, say, show_json, show_table
from stream.client import Client

app = typer.Typer(help="Sources and their budgets.", no_args_is_help=True)
_sources: TypeAdapter[Source] = TypeAdapter(Source)


@app.command("add")
def add(
    source: Annotated[str, typer.Argument(help="The source as JSON: inline, a file, or - for standard input.")],
    as_json: AsJson = False,
) -> None:
    """Register a source with its budget."""
    wanted = _sources.validate_json(read_document(source))
    receipt = asyncio.run(_register(wanted))
    if as_json:
        show_json(receipt)
    else:
        say(f"source {wanted.source} is registered with ε {wanted.epsilon:g}, δ {wanted.delta:g}")


@app.command("show")
def show(source: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """Show a source's budget and its streams."""
    record, grants = asyncio.run(_budget(source))
    if as_json:
        show_json({"source": record, "grants": grants})
        return
    show_table(
        f"{source} ({record.state})",
        ["granted", "spent", "refunded", "left"],
        [[amount(value) for value in (record.granted, record.spent, record.refunded, record.left)]],
    )
    show_table(
        f"{len(grants)} streams",
        ["stream", "state", "cost", "spent", "refunded", "answered", "charged"],
        [
            [
                grant.spec.stream,
                grant.state,
                amount(grant.cost),
                amount(grant.spent),
                amount(grant.refunded),
                str(grant.answered),
                charged(grant),
            ]
            for grant in grants
        ],
    )


async def _register(source: Source) -> Receipt:
    async with Client() as client:
        return await client.register(source)


async def _budget(source: str) -> tuple[SourceRecord, list[GrantRecord]]:
    async with Client() as client:
        return await client.budget(source)
