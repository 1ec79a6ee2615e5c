"""``sotto estimate`` computes the shares of categories from the answers of a stream of randomized response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from pydantic import TypeAdapter

from schemas import Answer, GrantRecord, answer_codec
from schemas.wire import MalformedEventError
from stream.cli.output import AsJson, CommandError, numbered_lines, parse_document, show_json, show_table
from stream.client.answer_history import AnswerLog
from stream.client.async_client import AsyncClient
from stream.client.blocking_client import Client
from stream.kafka.broker_addresses import local_settings
from stream.privacy.planning.response_plans import ShareEstimateError, estimate_stream_shares
from stream.questions import Result


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
        record = parse_document(TypeAdapter(GrantRecord), grant, "--grant")
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
            problem = str(error).removeprefix("event: ")
            raise CommandError(f"--answers: {file}, answer {number}: {problem}") from None


async def _read_answers(stream: str) -> list[Result]:
    settings = local_settings()
    async with AsyncClient(settings) as client:
        return await AnswerLog(settings, client.topics).read_all(stream)
