"""``sotto events``: people's events for live topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final

import typer

from schemas import EventsSource, written_moment
from stream.asking.live import live_source, milliseconds_of
from stream.asking.replays import Replay
from stream.cli.documents import lines_of
from stream.cli.output import CommandError, say
from stream.client import AsyncClient
from stream.kafka.live_topics import create_live_topic
from stream.kafka.nearby import settings_here

AT_ONCE: Final = 1000

app = typer.Typer(help="People's events, for live topics.", no_args_is_help=True)


@app.callback()
def _events() -> None:
    """People's events, for live topics."""


@app.command("publish")
def publish(
    source: Annotated[str, typer.Argument(help="The source of kind events, whose own topic is written.")],
    file: Annotated[str, typer.Argument(help="A file with an event a line, as JSON; - for standard input.")],
    marks: Annotated[
        str | None, typer.Option(help="Have a mark so often, as 1h, with each event where its own time belongs.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="The last mark, as 2026-01-31T00:00:00Z; else the one after the last event.")
    ] = None,
) -> None:
    """Write events to the topic of a source, each to the partition of its person.

    With --marks, for a source whose clock is marks, all events are read first and put in the order of the marks. Nothing is known of
    earlier calls: what is published twice is there twice.
    """
    if until is not None and marks is None:
        raise CommandError("--until: is the last mark of a replay; give --marks as well")
    last = None if until is None else milliseconds_of(until)
    with lines_of(file) as events:
        asyncio.run(_publish(source, events, marks, last))


@app.command("topic")
def topic(
    source: Annotated[str, typer.Argument(help="The source of kind events, whose own topic is made.")],
    partitions: Annotated[
        int, typer.Option(help="Its partitions; fixed once a stream asks of it.", min=1, max=10_000)
    ] = 4,
) -> None:
    """Make the topic of a source, with the broker's stamps where the source's windows close by them, if it is not there.

    Exit status 1 if it is there with its writers' stamps, and these would not do.
    """
    declared, count, made = asyncio.run(_made(source, partitions))
    if made:
        say(f"created {declared.topic} with {count} partitions")
    else:
        say(f"{declared.topic} is there, with {count} partitions")


async def _made(source: str, partitions: int) -> tuple[EventsSource, int, bool]:
    async with AsyncClient() as client:
        declared = live_source((await client.budget(source)).source)
    return declared, *await create_live_topic(settings_here(), declared, partitions)


async def _publish(source: str, events: Iterable[bytes], marks: str | None, until: int | None) -> None:
    count = 0
    async with AsyncClient() as client:
        declared = live_source((await client.budget(source)).source)
        if marks is None:
            lines = iter(events)
            while some := list(islice(lines, AT_ONCE)):
                await client.publish(source, some)
                count += len(some)
            await client.flush()
            say(f"{count:,} events are in {declared.topic}")
            return
        first = moment = None
        for moment, some in Replay(declared, marks, until).steps(events):
            first = moment if first is None else first
            await client.advance(source, moment / 1000)
            await client.publish(source, some)
            count += len(some)
        await client.flush()
        told = f"marks from {written_moment(first or 0)} to {written_moment(moment or 0)}"
        say(f"{count:,} events are in {declared.topic}, with {told}")
