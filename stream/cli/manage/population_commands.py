"""``sotto population`` and ``sotto allot``: budgets that several sources share, and analysts' parts."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter

from schemas import AllotmentRecord, Population, PopulationRecord, SourceRecord
from stream.cli.manage.record_rows import call_client, show_budget
from stream.cli.output import AsJson, CommandError, amount, read_as, say, show_json, show_table
from stream.client.async_client import AsyncClient

app = typer.Typer(help="Populations: people who are in several sources.", no_args_is_help=True)


@app.command("register")
def register(
    population: Annotated[
        str, typer.Argument(help="The population as JSON: inline, a file, or - for standard input.")
    ],
    as_json: AsJson = False,
) -> None:
    """Register a population with its budget; sources name it, or join it later."""
    wanted = read_as(TypeAdapter(Population), population)
    receipt = call_client(lambda client: client.register_population(wanted))
    if as_json:
        show_json(receipt)
        return
    say(f"population {wanted.population} is registered with ε {wanted.epsilon:g}, δ {wanted.delta:g}")
    if receipt.meaning is not None:
        say(receipt.meaning, soft_wrap=True)


@app.command("list")
def list_populations(as_json: AsJson = False) -> None:
    """List all populations with their budgets."""
    records = call_client(lambda client: client.list_populations())
    records = sorted(records, key=lambda record: record.population.population)
    if as_json:
        show_json(records)
        return
    show_table(
        f"{len(records)} populations"
        if records
        else "no populations; register one with 'sotto population register'",
        ["population", "state", "granted", "spent", "left", "sources", "streams", "renews"],
        [
            [
                record.population.population,
                record.state,
                *(amount(value) for value in (record.granted, record.spent, record.left)),
                str(record.sources),
                str(record.streams),
                record.population.renews or "never",
            ]
            for record in records
        ],
    )


@app.command("show")
def show(population: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """Show a population's budget, its sources and its allotments."""
    record, sources, allotments = call_client(lambda client: _shown(client, population))
    if as_json:
        show_json({"population": record, "sources": sources, "allotments": allotments})
        return
    show_budget(f"{population} ({record.state})", record, allotments)
    if record.reason is not None:
        say(f"halted: {record.reason}", soft_wrap=True)
    show_table(
        f"{len(sources)} sources",
        ["source", "state", "granted", "spent", "left", "streams"],
        [
            [
                one.source.source,
                one.state,
                *(amount(value) for value in (one.granted, one.spent, one.left)),
                str(one.streams),
            ]
            for one in sources
        ],
    )


def allot(
    allotment: Annotated[
        str, typer.Argument(help="The allotment: an analyst's name, or a team's with --analyst.")
    ],
    epsilon: Annotated[float, typer.Option(help="Total ε for the analysts.")],
    delta: Annotated[
        float | None, typer.Option(help="Total δ for the analysts; the budget's δ if omitted.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The source whose budget is allotted.")] = None,
    population: Annotated[str | None, typer.Option(help="The population whose budget is allotted.")] = None,
    analyst: Annotated[
        list[str] | None, typer.Option(help="A member of the team; repeat the option for each.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Allot a part of a budget to an analyst or a team, or change an allotment."""
    if (source is None) == (population is None):
        raise CommandError("give the budget with either --source or --population")
    receipt = call_client(
        lambda client: client.allot(
            allotment, epsilon, delta, source=source, population=population, analysts=analyst or []
        )
    )
    if as_json:
        show_json(receipt)
        return
    of = f"source {source}" if source is not None else f"population {population}"
    say(f"{', '.join(analyst or [allotment])} may have ε {epsilon:g} of {of}")


async def _shown(
    client: AsyncClient, population: str
) -> tuple[PopulationRecord, list[SourceRecord], list[AllotmentRecord]]:
    record = await client.population(population)
    sources = sorted(await client.list_sources(), key=lambda one: one.source.source)
    mine = [one for one in sources if one.population == population]
    return record, mine, await client.list_allotments(population=population)
