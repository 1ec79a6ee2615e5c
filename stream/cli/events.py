"""``sotto events``: people's events for live topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Annotated, Final

import msgspec
import typer

from schemas import EventsSource, written_moment
from schemas.wire import UNREADABLE
from stream.asking.live import live_source, milliseconds_of
from stream.asking.replays import Replay
from stream.cli.documents import name_of, numbered_lines
from stream.cli.output import CommandError, say
from stream.client import AsyncClient
from stream.kafka.live_topics import create_live_topic
from stream.kafka.nearby import settings_here

AT_ONCE: Final = 1000
_ARRAY: Final = "begins a JSON array; give one object a line, as jq -c '.[]' writes them"

_decode = msgspec.json.Decoder().decode

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
    with numbered_lines(file) as lines:
        asyncio.run(_publish(source, _objects_of(file, lines), marks, last))


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


def _objects_of(file: str, lines: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """The events of a file; CommandError if its first line is no object, as of a file in another format."""
    first = next(lines, None)
    if first is None:
        return iter(())
    number, line = first
    if (problem := _no_object(line)) is not None:
        raise CommandError(f"{name_of(file)}: line {number}: {problem}")
    return chain([line], (line for _, line in lines))


def _no_object(line: bytes) -> str | None:
    """Say why a file that begins with this line is none of events, and how to make one of it; None if the line is an object."""
    try:
        found = _decode(line)
    except UNREADABLE:
        if line.startswith(b"["):
            return _ARRAY
        if line.startswith(b"{"):
            return "begins a JSON object of several lines, or is cut off; give one object a line, as jq -c . writes them"
        return "is not JSON; give one JSON object a line (JSON Lines), not CSV or another format"
    if isinstance(found, list):
        return _ARRAY
    return None if isinstance(found, dict) else "is JSON and no object; give one JSON object a line"


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
