"""``sotto watch``."""

from __future__ import annotations

import asyncio
import time
from textwrap import wrap
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.text import Text

from schemas import registered_as
from stream.asking.alerts import Notice, estimate_text, group_text, window_text, written_time
from stream.cli.output import CommandError, console, show_json, visible
from stream.client import AsyncClient

_SIGNS: Final = {
    "above": ("▲ ALERT", "bold red"),
    "below": ("· quiet", "bright_black"),
    "answer": ("· answer", ""),
    "halted": ("■ halted", "yellow"),
    "rejected": ("× rejected", "yellow"),
}
_INDENT: Final = 19


def watch(
    streams: Annotated[
        list[str] | None, typer.Argument(help="Streams, by name or with * for anything; none for all.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only streams of this source.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show quiet windows and other answers as well.")] = False,
    from_beginning: Annotated[bool, typer.Option(help="Start with the oldest alert kept.")] = False,
    limit: Annotated[int, typer.Option(help="Stop after so many lines; 0 goes on for ever.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Show the alerts of streams as they come.

    Each with its time, stream, window (in UTC) and group, its estimate with ± where there is one, and how many alerts the stream
    has left. A stream with periods is followed from one to the next. A stream that is halted or closed, or has no alerts left, is told of. Ctrl-C ends it.
    """
    if any(not name for name in streams or ()):
        raise CommandError("give a stream's name, or * for all")
    try:
        asyncio.run(_follow(tuple(streams or ()), source, limit, every=every, old=from_beginning, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _follow(
    streams: tuple[str, ...], source: str | None, limit: int, *, every: bool, old: bool, as_json: bool
) -> None:
    seen = 0
    async with AsyncClient() as client:
        async for notice in client.watch(*streams, source=source, quiet=every, from_beginning=old):
            if as_json:
                show_json(document(notice))
            else:
                for line in lines(notice, console.width):
                    console.print(line, soft_wrap=True)
            seen += 1
            if seen == limit:
                return


def document(notice: Notice) -> dict[str, Any]:
    """A notice as JSON: its answer's fields with time and source, or ``ended``."""
    told = {"time": written_time(notice.time), "source": notice.source, "stream": notice.stream}
    if notice.answer is None:
        return {**told, "ended": notice.ended}
    counted = {"counted": notice.counted} if notice.counted else {}
    return {**told, **notice.answer.model_dump(mode="json", exclude_none=True), **counted}


def lines(notice: Notice, width: int) -> list[Text]:
    """A notice on a terminal of so many columns: broken between its parts, and never within one that fits."""
    clock = time.strftime("%H:%M:%S", time.localtime(notice.time))
    answer = notice.answer
    # Its window tells the period.
    name = notice.stream if answer is None else registered_as(notice.stream)
    if answer is None:
        sign, style, parts = "■ ended", "yellow", [name, notice.ended or ""]
    else:
        sign, style = _SIGNS[answer.outcome]
        left = answer.tops_left
        parts = [
            name,
            window_text(answer),
            group_text(answer.group),
            estimate_text(answer),
            answer.reason or "",
            "" if left is None or answer.outcome != "above" else f"{left:,} left",
            notice.counted,
        ]
    found = [Text.assemble((clock, "bright_black"), " ", (f"{sign:<8}", style))]
    room = max(width - _INDENT, 20)
    pieces = [piece for part in parts if part for piece in wrap(visible(part), room, break_long_words=False)]
    for number, piece in enumerate(pieces):
        if number and found[-1].cell_len + cell_len(piece) + 2 > width:
            found.append(Text(" " * (_INDENT - 2)))
        found[-1].append(f"  {piece}")
    return found
