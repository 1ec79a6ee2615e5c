"""``sotto ask`` and ``sotto answers``."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated

import typer

from schemas import Answer, Query
from stream.cli.output import console, show_json
from stream.client import Client

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one answer a line.")]


def ask(
    stream: Annotated[str, typer.Argument(help="The stream to ask.")],
    value: Annotated[float | None, typer.Option(help="The private value, for streams over values.")] = None,
    where: Annotated[str | None, typer.Option(help="A predicate whose rows are counted, for tables.")] = None,
    threshold: Annotated[float | None, typer.Option(help="A public threshold for this query alone.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Ask one query and wait for its answer."""
    query = Query(id=uuid.uuid4().hex, stream=stream, value=value, where=where, threshold=threshold)
    answer = asyncio.run(_ask(query, timeout))
    if as_json:
        show_json(answer)
    else:
        console.print(_line(answer))


def answers(
    from_beginning: Annotated[bool, typer.Option(help="Start with the oldest answer kept.")] = False,
    limit: Annotated[int, typer.Option(help="Stop after so many answers; 0 goes on for ever.")] = 0,
    stream: Annotated[str | None, typer.Option(help="Only this stream's answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print committed answers as they come."""
    asyncio.run(_follow(from_beginning=from_beginning, limit=limit, stream=stream, as_json=as_json))


async def _ask(query: Query, timeout: float) -> Answer:  # noqa: ASYNC109
    async with Client() as client:
        try:
            return await asyncio.wait_for(client.ask(query), timeout)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s; is 'sotto serve worker' running?") from None


async def _follow(*, from_beginning: bool, limit: int, stream: str | None, as_json: bool) -> None:
    seen = 0
    async with Client() as client:
        async for answer in client.answers(from_beginning=from_beginning):
            if stream is not None and answer.stream != stream:
                continue
            if as_json:
                show_json(answer)
            else:
                console.print(_line(answer))
            seen += 1
            if seen == limit:
                return


def _line(answer: Answer) -> str:
    marks = {"above": "⊤", "below": "⊥"}
    left = "" if answer.tops_left is None else f", {answer.tops_left} ⊤s left"
    reason = f": {answer.reason}" if answer.reason else ""
    return f"{answer.stream} {answer.id} {marks.get(answer.outcome, answer.outcome)}{reason}{left}"
