"""``sotto estimate`` and ``sotto watch``: evaluate and follow published answers.

``watch`` also warns about refused events of live topics, if the principal may read dead letters.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from textwrap import wrap
from typing import Annotated, Any, Final

import typer
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from pydantic import TypeAdapter
from rich.cells import cell_len
from rich.text import Text

from schemas import Answer, EventsSource, GrantRecord, answer_codec, registered_name
from schemas.wire import MalformedEventError
from stream.cli.manage.query_commands import answer_document
from stream.cli.output import (
    AsJson,
    CommandError,
    console,
    escape_text,
    numbered_lines,
    parse_document,
    say_progress,
    show_json,
    show_table,
)
from stream.client.answer_history import AnswerLog
from stream.client.async_client import AsyncClient
from stream.client.blocking_client import Client
from stream.engine.restore import create_reader, require_visible, select_readable
from stream.errors import SottoError, describe_end_remedy
from stream.formatting import did_you_mean
from stream.kafka.broker_addresses import local_settings
from stream.privacy.planning.response_plans import ShareEstimateError, estimate_stream_shares
from stream.processing.dead_letters import (
    RECENT_SECONDS,
    RefusedShare,
    TopicRefusals,
    describe_refused_share,
    read_dead_letter,
)
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics
from stream.questions import Result
from stream.questions.alert_states import (
    Notice,
    estimate_text,
    format_time,
    group_text,
    matches_patterns,
    window_text,
)
from stream.questions.answer_warnings import describe_reasons


def estimate(
    source: Annotated[str, typer.Argument(help="The stream's source.")],
    stream: Annotated[str, typer.Argument(help="The stream.")],
    answers: Annotated[
        str | None,
        typer.Option(help="Answers as JSON lines: a file, or - for standard input. Read from Kafka if omitted."),
    ] = None,
    grant: Annotated[
        str | None,
        typer.Option(
            help="The output of 'sotto stream show SOURCE STREAM --json'. Read from the ledger if omitted."
        ),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(
            help="Probability that an interval does not contain its true share; the stream's if omitted."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the share of each category on a stream of randomized response, with its interval."""
    if grant is None:
        with Client() as client:
            record = client.grant(source, stream)
    else:
        record = parse_document(TypeAdapter(GrantRecord), grant)
        if (record.spec.source, record.spec.stream) != (source, stream):
            raise CommandError(f"grant: belongs to stream '{record.spec.stream}'; give the grant of '{stream}'")
    try:
        if answers is None:
            found = estimate_stream_shares(record, asyncio.run(_read_answers(stream)), beta)
        else:
            with numbered_lines(answers) as lines:
                found = estimate_stream_shares(record, _decode_answers(answers, lines), beta)
    except ShareEstimateError as error:
        raise CommandError(str(error)) from None
    if as_json:
        show_json(asdict(found))
        return
    show_table(
        f"{stream}: {found.events} answers; every interval holds with probability {1 - found.beta:g}",
        ["category", "answers", "share", "interval", "deviation"],
        [
            [
                share.category,
                str(share.answers),
                f"{share.estimate:.4f}",
                f"{share.low:.4f} to {share.high:.4f}",
                f"{share.deviation:.4f}",
            ]
            for share in found.shares
        ],
    )


def _decode_answers(file: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Answer]:
    for number, (_, line) in enumerate(lines, 1):
        try:
            yield answer_codec.decode(line)
        except MalformedEventError as error:
            raise CommandError(
                f"--answers: {file}, answer {number}: {str(error).removeprefix('event: ')}"
            ) from None


async def _read_answers(stream: str) -> list[Result]:
    settings = local_settings()
    async with AsyncClient(settings) as client:
        return await AnswerLog(settings, client.topics).read_all(stream)


_OUTCOME_SIGNS: Final = {
    "above": ("▲ ALERT", "bold red"),
    "below": ("· quiet", "bright_black"),
    "answer": ("· answer", ""),
    "halted": ("■ halted", "yellow"),
    "rejected": ("× rejected", "yellow"),
}
_INDENT: Final = 19


def watch(
    streams: Annotated[
        list[str] | None, typer.Argument(help="Names of streams; * matches any characters. Default: all streams.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only streams of this source.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show quiet windows and other answers as well.")] = False,
    from_beginning: Annotated[bool, typer.Option(help="Start with the oldest alert kept.")] = False,
    limit: Annotated[int, typer.Option(help="Stop after N lines (0: never).", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Show the alerts of streams as they arrive.

    A line has the time, stream, window (in UTC), group, the estimate with ± or its 95 % interval, and the
    number of alerts left. A stream with periods is followed across them. The end of a stream is shown too, and refused events of live
    topics if the principal may read dead letters. Stop with Ctrl-C.
    """
    if any(not name for name in streams or ()):
        raise CommandError("give a stream's name, or * for all")
    try:
        asyncio.run(
            _follow(
                tuple(streams or ()),
                source,
                limit,
                show_all=show_all,
                from_beginning=from_beginning,
                as_json=as_json,
            )
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _follow(
    streams: tuple[str, ...],
    source: str | None,
    limit: int,
    *,
    show_all: bool,
    from_beginning: bool,
    as_json: bool,
) -> None:
    def warn(source: str, refused: RefusedShare) -> None:
        if as_json:
            show_json({"time": format_time(time.time()), "source": source, "refused": asdict(refused)})
        else:
            _print_lines(format_refusal(source, refused, time.time(), console.width))

    shown = 0
    async with AsyncClient() as client:
        refusals = asyncio.create_task(
            follow_refusals(client.topics, partial(watched_topics, client, streams, source), warn)
        )
        idle = asyncio.create_task(_report_idle_patterns(client, streams, source))
        try:
            async for notice in client.watch(
                *streams, source=source, quiet=show_all, from_beginning=from_beginning
            ):
                if as_json:
                    show_json(notice_document(notice))
                else:
                    _print_lines(format_notice(notice, console.width))
                shown += 1
                if shown == limit:
                    return
        finally:
            for task in (refusals, idle):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _report_idle_patterns(client: AsyncClient, patterns: tuple[str, ...], source: str | None) -> None:
    """Print each pattern that no open stream matches; nothing if the ledger cannot be read."""
    with suppress(SottoError, KafkaError, OSError):
        grants = await client.list_streams(source, periods=True)
        for line in describe_idle_patterns(patterns, source, grants):
            say_progress(line)


def describe_idle_patterns(
    patterns: tuple[str, ...], source: str | None, grants: Iterable[GrantRecord]
) -> Iterator[str]:
    """Describe each pattern that no open stream matches, with the most similar name if there is one."""
    names = {one.spec.stream for one in grants if one.state == "open" and one.ending is None}
    of_source = f" of source {source}" if source else ""
    if not names:
        yield f"no stream{of_source} is open yet; waiting for one"
        return
    for pattern in patterns:
        if any(matches_patterns(name, (pattern,)) for name in names) or not (set(pattern) & set("*?[")):
            continue  # the client itself refuses an unknown name without wildcards
        hint = did_you_mean(re.sub(r"[*?\[\]]", "", pattern), {registered_name(name) for name in names})
        yield f"no open stream{of_source} matches '{pattern}' yet; waiting for one{hint}"


def _print_lines(lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def notice_document(notice: Notice) -> dict[str, Any]:
    """Return a notice as JSON: the time, source and stream, and the answer's fields or ``ended``."""
    common = {"time": format_time(notice.time), "source": notice.source, "stream": notice.stream}
    if notice.answer is None:
        return {**common, "ended": notice.ended}
    counted = {"counted": notice.bound_text} if notice.bound_text else {}
    answer = answer_document(notice.answer, exclude_none=True)
    return {**common, **answer, **notice.terms.document(), **counted}


def format_notice(notice: Notice, width: int) -> list[Text]:
    """Format a notice for ``width`` columns; lines break between its parts if possible."""
    answer = notice.answer
    # The line shows the window, so the period is left out of the stream's name.
    name = notice.stream if answer is None else registered_name(notice.stream)
    if answer is None:
        sign, style, parts = (
            "■ ended",
            "yellow",
            [name, notice.ended or "", describe_end_remedy(notice.stream, notice.ended)],
        )
    else:
        sign, style = _OUTCOME_SIGNS[answer.outcome]
        left, threshold, condition = answer.tops_left, notice.terms.threshold_text, notice.terms.condition
        terms = ", ".join(one for one in (f"threshold {threshold}" if threshold else "", condition) if one)
        parts = [
            name,
            window_text(answer),
            group_text(answer.group),
            estimate_text(answer),
            describe_reasons(answer.reasons) or "",
            terms if notice.is_alert else "",
            answer.reason or "",
            "" if left is None or answer.outcome != "above" else f"{left:,} left",
            notice.bound_text,
        ]
    return _format_line(notice.time, sign, style, parts, width)


def format_refusal(source: str, refused: RefusedShare, now: float, width: int) -> list[Text]:
    """Format a warning about refused events of a source for ``width`` columns."""
    text = describe_refused_share(refused.share, refused.events, refused.reason)
    return _format_line(now, "! refused", "red", [source, text], width)


def _format_line(moment: float, sign: str, style: str, parts: Iterable[str], width: int) -> list[Text]:
    clock = time.strftime("%H:%M:%S", time.localtime(moment))
    found = [Text.assemble((clock, "bright_black"), " ", (f"{sign:<8}", style))]
    room = max(width - _INDENT, 20)
    pieces = [piece for part in parts if part for piece in wrap(escape_text(part), room, break_long_words=False)]
    for number, piece in enumerate(pieces):
        if number and found[-1].cell_len + cell_len(piece) + 2 > width:
            found.append(Text(" " * (_INDENT - 2)))
        found[-1].append(f"  {piece}")
    return found


WARNING_SECONDS: Final = 60.0
"""Seconds between two warnings about one source."""
RETRY_SECONDS: Final = 5.0
LOOKUP_SECONDS: Final = 30.0
"""Seconds between two reads of the ledger for the sources of unknown topics."""

SourcesOfTopics = Callable[[], Awaitable[Mapping[str, str]]]


class RefusalWarnings:
    """Collects dead letters of live topics, and selects the warnings that are due."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRefusals] = {}
        self._warned: dict[str, float] = {}
        self._unreported: set[str] = set()

    def add(self, records: Iterable[RecordLike]) -> None:
        """Add records of the topic ``rejected``; records of other programs are skipped."""
        for record in records:
            try:
                letter = read_dead_letter(record)
            except SottoError:
                continue
            topic = self._topics.setdefault(letter.topic, TopicRefusals())
            topic.add(letter.partition, letter.offset, letter.reason, letter.time)
            self._unreported.add(letter.topic)

    def is_due(self, now: float) -> bool:
        """Return True if a topic has dead letters that no recent warning reported."""
        return any(now - self._warned.get(one, 0.0) >= WARNING_SECONDS for one in self._unreported)

    def take_due(self, sources: Mapping[str, str], now: float) -> list[tuple[str, RefusedShare]]:
        """Return the due warnings: sources and their refused shares; topics that ``sources`` lacks are left out."""
        due = [one for one in sorted(self._unreported) if now - self._warned.get(one, 0.0) >= WARNING_SECONDS]
        found = []
        for topic in due:
            self._unreported.discard(topic)
            if (source := sources.get(topic)) is not None and (
                share := self._topics[topic].share(now)
            ) is not None:
                self._warned[topic] = now
                found.append((source, share))
        return found


async def watched_topics(client: AsyncClient, patterns: tuple[str, ...], source: str | None) -> dict[str, str]:
    """Return the sources of the live topics whose streams are watched, by topic."""
    names: set[str] | None = None
    if patterns:
        streams = [one.spec for one in await client.list_streams(source)]
        names = {
            registered_name(one.source)
            for one in streams
            if matches_patterns(registered_name(one.stream), patterns)
        }
    elif source is not None:
        names = {source}
    declared = [one.source for one in await client.list_sources()]
    return {
        one.topic: one.source
        for one in declared
        if isinstance(one, EventsSource) and one.period_of is None and (names is None or one.source in names)
    }


async def follow_refusals(
    topics: Topics, sources_of_topics: SourcesOfTopics, show: Callable[[str, RefusedShare], None]
) -> None:
    """Call ``show`` with the source and share of refused events; return if dead letters may not be read."""
    while True:
        try:
            await _read_refusals(topics, sources_of_topics, show)
        except TopicAuthorizationFailedError:
            return
        except (KafkaError, SottoError, OSError):
            await asyncio.sleep(RETRY_SECONDS)


async def _read_refusals(
    topics: Topics, sources_of_topics: SourcesOfTopics, show: Callable[[str, RefusedShare], None]
) -> None:
    warnings, sources, looked_up = RefusalWarnings(), {}, -LOOKUP_SECONDS
    async with create_reader(local_settings()) as consumer:
        await require_visible(consumer, topics.rejected)
        places = [TopicPartition(topics.rejected, one) for one in range(topics.partitions)]
        consumer.assign(places)
        since = int((time.time() - RECENT_SECONDS) * 1000)
        begins = await consumer.offsets_for_times(dict.fromkeys(places, since))
        for place, begin in begins.items():
            if begin is None:
                await consumer.seek_to_end(place)
            else:
                consumer.seek(place, begin.offset)
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                warnings.add(select_readable(records))
            if not warnings.is_due(time.time()):
                continue
            if time.monotonic() - looked_up >= LOOKUP_SECONDS:
                sources, looked_up = dict(await sources_of_topics()), time.monotonic()
            for source, share in warnings.take_due(sources, time.time()):
                show(source, share)
