"""``sotto answers`` prints answers as they arrive, and ``sotto watch`` alerts.

``watch`` also warns about overdue answers and refused events, if the principal may read statuses and dead letters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from textwrap import wrap
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.text import Text

from schemas import registered_name
from stream.cli.manage.query_commands import answer_document, show_answer, warn_of_unknown_stream
from stream.cli.manage.watch_warnings import follow_refusals, follow_topics, report_idle_patterns, watched_sources
from stream.cli.output import CommandError, console, escape_text, print_warnings, say, say_progress, show_json
from stream.client.async_client import AsyncClient
from stream.client.kafka_connection import report_silence
from stream.errors import describe_end_remedy, describe_reason
from stream.formatting import NOT_INFORMATIVE
from stream.kafka.broker_addresses import local_settings
from stream.processing.dead_letters import RefusedShare, describe_refused_share
from stream.questions.alert_states import Notice, estimate_text, format_time, group_text, window_text
from stream.questions.answer_warnings import describe_reasons

JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def answers(
    from_beginning: Annotated[bool, typer.Option(help="Start with the oldest answer kept.")] = False,
    limit: Annotated[int, typer.Option(help="Stop after N answers (0: never).", min=0)] = 0,
    stream: Annotated[str | None, typer.Option(help="Only this stream's answers, in all periods.")] = None,
    as_json: JsonLines = False,
) -> None:
    """Print committed answers as they arrive."""
    asyncio.run(_follow_answers(from_beginning=from_beginning, limit=limit, stream=stream, as_json=as_json))


async def _follow_answers(*, from_beginning: bool, limit: int, stream: str | None, as_json: bool) -> None:
    shown, printed = 0, set[tuple[str, str]]()
    async with AsyncClient() as client, _run_beside(report_silence(local_settings(), say_progress)):
        if stream is not None:
            print_warnings(await warn_of_unknown_stream(client, stream))
        async for answer in client.answers(from_beginning=from_beginning):
            if stream is not None and stream not in {answer.stream, registered_name(answer.stream)}:
                continue
            if answer.window is not None and not as_json:
                so_far = ["each number is the number so far"] * (answer.charge_name == "count")
                _print_new(answer.stream, (*so_far, *answer.question_warnings), printed)
            show_answer(answer, as_json=as_json)
            shown += 1
            if shown == limit:
                return


def _print_new(name: str, texts: Iterable[str], printed: set[tuple[str, str]]) -> None:
    """Print the texts about a stream that are not in ``printed``, and add them; marks are in each answer's line."""
    if new := [text for text in texts if (name, text) not in printed and not text.startswith(NOT_INFORMATIVE)]:
        printed.update((name, text) for text in new)
        say(f"{name}: {'; '.join(new)}", soft_wrap=True)


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
    as_json: JsonLines = False,
) -> None:
    """Show the alerts of streams as they arrive.

    A line has the time, stream, window (in UTC), group, the estimate with ± or its 95 % interval, and the number of
    alerts left. A stream with periods is followed across all of them. The end of a stream is shown too, and so are a live
    topic that feeds refuse, answers overdue by the clock (without marks and periods), and refused events. The last two
    need rights to read statuses and dead letters, which analysts lack. Stop with Ctrl-C.
    """
    if any(not name for name in streams or ()):
        raise CommandError("give a stream's name, or * for all")
    try:
        asyncio.run(
            _print_notices(
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


async def _print_notices(
    streams: tuple[str, ...],
    source: str | None,
    limit: int,
    *,
    show_all: bool,
    from_beginning: bool,
    as_json: bool,
) -> None:
    def warn(sources: list[str], refused: RefusedShare) -> None:
        if as_json:
            found = {**asdict(refused), "last": format_time(refused.last)}
            show_json({"time": format_time(time.time()), "sources": sources, "refused": found})
        else:
            _print_lines(format_refusal(sources, refused, time.time(), console.width))

    def warn_of_topic(source: str, problem: str) -> None:
        if as_json:
            show_json({"time": format_time(time.time()), "source": source, "problem": problem})
        else:
            _print_lines(_format_line(time.time(), "! stuck", "red", [source, problem], console.width))

    shown, printed = 0, set[tuple[str, str]]()
    async with AsyncClient() as client:
        find_sources = partial(watched_sources, client, streams, source)
        beside = _run_beside(
            follow_refusals(client.topics, partial(find_sources, whole_topics=True), warn),
            follow_topics(client, find_sources, warn_of_topic, streams),
            report_idle_patterns(client, streams, source, show_all=show_all),
            report_silence(local_settings(), say_progress),
        )
        notices = client.watch(*streams, source=source, quiet=show_all, from_beginning=from_beginning)
        async with beside:
            async for notice in notices:
                if as_json:
                    show_json(notice_document(notice))
                else:
                    _print_new(registered_name(notice.stream), notice.warnings, printed)
                    _print_lines(format_notice(notice, console.width))
                shown += 1
                if shown == limit:
                    return


@asynccontextmanager
async def _run_beside(*calls: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run calls beside the block, and cancel them at its end; raise the error of a call that has failed."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def _print_lines(lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def notice_document(notice: Notice) -> dict[str, Any]:
    """Return a notice as JSON: the time, source and stream, and the answer's fields or ``ended``."""
    common = {"time": format_time(notice.time), "source": notice.source, "stream": notice.stream}
    if notice.answer is None:
        return {**common, "ended": notice.ended}
    counted: dict[str, Any] = {"counted": notice.bound_text} if notice.bound_text else {}
    warnings = {"warnings": list(notice.warnings)} if notice.warnings else {}
    marks = {"uninformative": list(notice.answer.uninformative)} if notice.answer.uninformative else {}
    answer = answer_document(notice.answer, exclude_none=True)
    return {**common, **answer, **notice.terms.document(), **counted, **marks, **warnings}


def format_notice(notice: Notice, width: int) -> list[Text]:
    """Format a notice for ``width`` columns; lines break between its parts if possible."""
    answer, terms = notice.answer, notice.terms
    if answer is None:
        ending = [notice.stream, notice.ended or "", describe_end_remedy(notice.stream, notice.ended)]
        return _format_line(notice.time, "■ ended", "yellow", ending, width)
    sign, style = _OUTCOME_SIGNS[answer.outcome]
    threshold = f"threshold {terms.threshold_text}" if terms.threshold_text else ""
    parts = [
        registered_name(notice.stream),  # without the period, because the line shows the window
        window_text(answer) and f"{window_text(answer)} UTC",  # the line's time is local
        group_text(answer.group),
        estimate_text(answer),
        describe_reasons(answer.reasons) or "",
        ", ".join(filter(None, (threshold, terms.condition))) if notice.is_alert else "",
        describe_reason(answer),
        f"{answer.tops_left:,} left" if answer.tops_left is not None and answer.outcome == "above" else "",
        notice.bound_text,
    ]
    return _format_line(notice.time, sign, style, parts, width)


def format_refusal(sources: list[str], refused: RefusedShare, now: float, width: int) -> list[Text]:
    """Format a warning about refused events of a topic's sources for ``width`` columns."""
    when = time.strftime(" at %H:%M:%S", time.localtime(refused.last))
    parts = describe_refused_share(sources, refused.share, refused.events, refused.reason, when)
    return _format_line(now, "! refused", "red", parts, width)


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
