"""``sotto events``: people's events for live topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from time import time
from typing import Annotated, Final

import msgspec
import typer

from schemas import EventsSource, written_moment
from schemas.wire import UNREADABLE
from stream.cli.output import CommandError, name_of, numbered_lines, say
from stream.client import AsyncClient
from stream.errors import Invalid
from stream.events import Flaw
from stream.kafka.client.local_address import settings_here
from stream.kafka.topics.live_topics import create_live_topic
from stream.questions.event_checks import EventCheck
from stream.questions.live_events import Replay, live_source, milliseconds_of

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

    Ends with how many events are accepted and refused, by the source and the streams that it has now. Refused ones are written, too, and
    become dead letters; exit status 1 if there are any.
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


def _objects_of(file: str, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The events of a file with their lines' numbers; CommandError if its first line is no object, as of a file in another format."""
    first = next(lines, None)
    if first is None:
        return iter(())
    number, line = first
    if (problem := _no_object(line)) is not None:
        raise CommandError(f"{name_of(file)}: line {number}: {problem}")
    return chain([first], lines)


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


class _Report:
    """Counts accepted events, and refused ones by their reason."""

    def __init__(self, check: EventCheck) -> None:
        self.accepted = 0
        self._check = check
        self._refused: Counter[Flaw] = Counter()
        self._lines: dict[Flaw, int] = {}
        """Of each reason the first line that has it."""

    @property
    def refused(self) -> int:
        """How many events were refused."""
        return self._refused.total()

    def judge(self, lines: Sequence[tuple[int, bytes]], now: int | None, *, in_order: bool = False) -> list[int]:
        """Take in some lines by their numbers, and give the moment of each event."""
        moments, flaws = self._check.check([line for _, line in lines], now, in_order=in_order)
        self.accepted += len(lines) - len(flaws)
        for place, flaw in sorted(flaws.items()):
            self._refused[flaw] += 1
            self._lines.setdefault(flaw, lines[place][0])
        return moments

    def say_reasons(self) -> None:
        """Print why events were refused."""
        for flaw, line in self._lines.items():
            say(f"{self._refused[flaw]:,} refused, the first at line {line:,}: {flaw.message}")


async def _publish(source: str, lines: Iterator[tuple[int, bytes]], marks: str | None, until: int | None) -> None:
    async with AsyncClient() as client:
        declared = live_source((await client.budget(source)).source)
        report = _Report(EventCheck(declared, await client.list_streams(source)))
        if marks is None:
            added = ""
            while some := list(islice(lines, AT_ONCE)):
                report.judge(some, round(1000 * time()) if declared.clock == "broker" else None)
                await client.publish(source, [line for _, line in some])
        else:
            first = moment = None
            for moment, events in _replay(Replay(declared, marks, until), lines, report):
                first = moment if first is None else first
                await client.advance(source, moment / 1000)
                await client.publish(source, events)
            added = f", with marks from {written_moment(first or 0)} to {written_moment(moment or 0)}"
        await client.flush()
    report.say_reasons()
    say(f"{report.accepted:,} events accepted, {report.refused:,} refused in {declared.topic}{added}")
    if report.refused:
        raise typer.Exit(1)


def _replay(
    replay: Replay, lines: Iterator[tuple[int, bytes]], report: _Report
) -> Iterator[tuple[int, list[bytes]]]:
    """Put events between marks; says why all are refused, if they are."""

    def judged() -> Iterator[tuple[bytes, int]]:
        while some := list(islice(lines, AT_ONCE)):
            yield from zip((line for _, line in some), report.judge(some, None, in_order=True), strict=True)

    try:
        return replay.steps(judged())
    except Invalid:
        report.say_reasons()
        raise
