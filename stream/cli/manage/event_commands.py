"""``sotto events``: publishes people's events to live topics and creates these topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from queue import Empty, Queue
from threading import Thread
from time import monotonic, time
from typing import Annotated, Final

import msgspec
import typer

from schemas import format_moment
from schemas.wire import DECODE_ERRORS
from stream.cli.output import CommandError, document_name, numbered_lines, print_warnings, say
from stream.client.blocking_client import Client
from stream.errors import Invalid
from stream.feeds.event_fields import Flaw
from stream.feeds.event_reader import EventCheck
from stream.formatting import format_count
from stream.kafka.broker_addresses import local_settings
from stream.kafka.topic_creation import create_live_topic, inspect_live_topic
from stream.questions.live_events import Replay, parse_time, require_live_source

EVENTS_PER_BATCH: Final = 1000
WAIT_SECONDS: Final = 0.1
"""Longest time for which a line waits for the rest of its batch."""
DEFAULT_PARTITIONS: Final = 4
_ARRAY_PROBLEM: Final = "begins a JSON array; give one object a line, as jq -c '.[]' writes them"

_decode = msgspec.json.Decoder().decode

app = typer.Typer(help="People's events, for live topics.", no_args_is_help=True)


@app.command("publish")
def publish(
    source: Annotated[str, typer.Argument(help="The source of kind events; its topic is written.")],
    file: Annotated[str, typer.Argument(help="A file of JSON lines, one event a line; - for standard input.")],
    marks: Annotated[
        str | None,
        typer.Option(
            help="Emit a watermark every INTERVAL (for example 1h) and order events by their timestamps.",
            metavar="INTERVAL",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Time of the last watermark (2026-01-31T00:00:00Z). If omitted, the first INTERVAL's end after all events."
        ),
    ] = None,
) -> None:
    """Write events to the topic of a source, each to the partition of its person.

    With --marks, for a source with clock: marks, all events are read first and sorted by time. Earlier calls are not
    considered: an event that is published twice counts twice.

    Prints how many events the source and its present streams accept and refuse. Refused events are written too and
    become dead letters. Events before the first window of every stream count in none. They are dead letters too if the
    clock has reached this window or not begun. Exit status 1 if any event is refused or before every window.
    """
    if until is not None and marks is None:
        raise CommandError("--until: needs --marks; give both")
    last = None if until is None else parse_time(until)
    with numbered_lines(file) as lines:
        events = _require_objects(file, lines)
        _publish(source, events, marks, last)


@app.command("topic")
def create_topic(
    source: Annotated[str, typer.Argument(help="The source of kind events; its topic is created.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            help=f"Its partitions, {DEFAULT_PARTITIONS} if omitted; fixed once the source has a stream.",
            min=1,
            max=10_000,
        ),
    ] = None,
) -> None:
    """Create the topic of a source unless it exists, with the timestamps that its clock needs.

    Exit status 1 if the topic exists and is compacted, has another number of partitions than --partitions, or has
    producers' timestamps and the source's windows need the broker's.
    """
    with Client() as client:
        declared = require_live_source(client.budget(source).source)
    settings = local_settings()
    count, is_new = asyncio.run(create_live_topic(settings, declared, partitions or DEFAULT_PARTITIONS))
    print_warnings(filter(None, [asyncio.run(inspect_live_topic(settings, declared)).warning]))
    if partitions is not None and partitions != count:
        more = "; to add partitions while it has no event and no stream, use kafka-topics.sh --alter"
        raise CommandError(
            f"--partitions: topic {declared.topic} exists with {format_count(count, 'partition')}, not with {partitions:,}; "
            f"leave the option out to use it as it is{more if partitions > count else ''}"
        )
    created = f"created {declared.topic}" if is_new else f"{declared.topic} exists already,"
    say(f"{created} with {format_count(count, 'partition')}")


def _require_objects(file: str, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Return the numbered lines unchanged; raise CommandError if the first line is not a JSON object."""
    first = next(lines, None)
    if first is None:
        return iter(())
    number, line = first
    if (problem := _object_problem(line)) is not None:
        raise CommandError(f"{document_name(file)}: line {number}: {problem}")
    return chain([first], lines)


def _object_problem(line: bytes) -> str | None:
    """Return the problem of a line that is not a JSON object, with a remedy; None for an object."""
    try:
        found = _decode(line)
    except DECODE_ERRORS:
        if line.startswith(b"["):
            return _ARRAY_PROBLEM
        if line.startswith(b"{"):
            return "begins a JSON object of several lines, or is cut off; give one object a line, as jq -c . writes them"
        return "is not JSON; give one JSON object a line (JSON Lines), not CSV or another format"
    if isinstance(found, list):
        return _ARRAY_PROBLEM
    return None if isinstance(found, dict) else "is JSON, but not an object; give one JSON object a line"


class _EventCounts:
    """Counts accepted and refused events, and prints why events were refused."""

    def __init__(self, check: EventCheck) -> None:
        self.accepted = self.early = 0
        self._check = check
        self._refused: Counter[Flaw] = Counter()
        self._lines: dict[Flaw, int] = {}
        """The number of the first line with each reason."""

    @property
    def refused(self) -> int:
        """Return the number of refused events."""
        return self._refused.total()

    def check_lines(
        self, lines: Sequence[tuple[int, bytes]], now: int | None, *, in_order: bool = False
    ) -> list[int]:
        """Check numbered lines, count them, and return the time of each event."""
        moments, flaws, early = self._check.check([line for _, line in lines], now, in_order=in_order)
        self.accepted += len(lines) - len(flaws) - early
        self.early += early
        for index, flaw in sorted(flaws.items()):
            self._refused[flaw] += 1
            self._lines.setdefault(flaw, lines[index][0])
        return moments

    def print_reasons(self) -> None:
        """Print why events were refused, and how many are before every window."""
        for flaw, line in self._lines.items():
            say(f"{self._refused[flaw]:,} refused, the first at line {line:,}: {flaw.message}")
        if self.early:
            say(
                f"{self.early:,} before the first window of every stream, which begins {format_moment(self._check.first)}: "
                "they count in no window, and are dead letters if the clock has reached this window or not begun"
            )


def _batch_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield batches of lines; no line waits longer than `WAIT_SECONDS` for the next one, which a pipe may never have."""
    arrived: Queue[tuple[int, bytes] | OSError | None] = Queue(EVENTS_PER_BATCH)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except OSError as error:
            arrived.put(error)

    Thread(target=read, daemon=True).start()
    last = arrived.get()
    while isinstance(last, tuple):
        batch, due = [last], monotonic() + WAIT_SECONDS
        while len(batch) < EVENTS_PER_BATCH:
            try:
                last = arrived.get(timeout=max(due - monotonic(), 0.0))
            except Empty:
                break
            if not isinstance(last, tuple):
                break
            batch.append(last)
        yield batch
        if isinstance(last, tuple):
            last = arrived.get()
    if last is not None:
        raise last


def _publish(source: str, lines: Iterator[tuple[int, bytes]], marks: str | None, until: int | None) -> None:
    with Client() as client:
        declared = require_live_source(client.budget(source).source)
        report = _EventCounts(EventCheck(declared, client.list_streams(source)))
        if marks is None:
            added = "; accepted events count only in windows that have not closed"
            if declared.clock == "marks":
                added += f", and feeds refuse events more than {declared.ahead} after the topic's marks, which are not read here"
            for batch in _batch_lines(lines):
                report.check_lines(batch, round(1000 * time()) if declared.clock == "broker" else None)
                client.publish(source, [line for _, line in batch])
        else:
            first = moment = None
            for moment, events in _replay(Replay(declared, marks, until), lines, report, until):
                first = moment if first is None else first
                client.advance(source, moment / 1000)
                client.publish(source, events)
            added = f", with marks from {format_moment(first or 0)} to {format_moment(moment or 0)}"
        client.flush()
    report.print_reasons()
    say(
        f"{format_count(report.accepted, 'event')} accepted, {report.refused:,} refused in {declared.topic}{added}"
    )
    if report.refused or report.early:
        raise typer.Exit(1)


def _replay(
    replay: Replay, lines: Iterator[tuple[int, bytes]], report: _EventCounts, until: int | None
) -> Iterator[tuple[int, list[bytes]]]:
    """Return each watermark with the events that follow it; print the reasons if all are refused."""

    def checked_events() -> Iterator[tuple[bytes, int]]:
        while batch := list(islice(lines, EVENTS_PER_BATCH)):
            yield from zip(
                (line for _, line in batch), report.check_lines(batch, until, in_order=True), strict=True
            )

    try:
        return replay.group_by_mark(checked_events())
    except Invalid:
        report.print_reasons()
        raise
