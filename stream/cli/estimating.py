"""``sotto estimate``: the shares behind a stream of randomized responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from aiokafka import TopicPartition
from pydantic import TypeAdapter

from schemas import MAX_ANSWER_BYTES, Answer, GrantRecord
from schemas.wire import Codec, MalformedEventError
from stream.cli.documents import lines_of, read_as
from stream.cli.output import AsJson, CommandError, show_json, show_table
from stream.client import AsyncClient
from stream.estimates import Estimate, EstimateError, shares_of
from stream.kafka.nearby import settings_here
from stream.kafka.restore import read_to_end, reader, require_visible
from stream.processors.topics import partition_of

_answers: Codec[Answer] = Codec(Answer, limit=MAX_ANSWER_BYTES)


def estimate(
    source: Annotated[str, typer.Argument(help="The stream's source.")],
    stream: Annotated[str, typer.Argument(help="The stream.")],
    answers: Annotated[
        str | None,
        typer.Option(
            help="Answers as JSON lines: a file, or - for standard input. Else the topic of answers is read."
        ),
    ] = None,
    grant: Annotated[
        str | None,
        typer.Option(
            help="The stream as 'sotto stream show SOURCE STREAM --json' prints it. Else the ledger is read."
        ),
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Probability that any interval misses; else the stream's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the share of every category from the answers so far, with its confidence interval."""
    if grant is None:
        record = asyncio.run(_grant(source, stream))
    else:
        record = read_as(TypeAdapter(GrantRecord), grant)
        if (record.spec.source, record.spec.stream) != (source, stream):
            raise CommandError(f"grant: is that of stream '{record.spec.stream}'; give that of '{stream}'")
    try:
        if answers is None:
            found = shares_of(record, asyncio.run(_collected(stream)), beta)
        else:
            found = _from_lines(record, answers, beta)
    except EstimateError as error:
        raise CommandError(str(error)) from None
    if as_json:
        show_json(asdict(found))
        return
    show_table(
        f"{stream}: {found.events} answers; every interval holds with probability {1 - found.beta:g}",
        ["category", "answers", "share", "interval", "deviation"],
        [
            [
                one.category,
                str(one.answers),
                f"{one.estimate:.4f}",
                f"{one.low:.4f} to {one.high:.4f}",
                f"{one.deviation:.4f}",
            ]
            for one in found.shares
        ],
    )


def _from_lines(grant: GrantRecord, answers: str, beta: float | None) -> Estimate:
    with lines_of(answers) as lines:
        return shares_of(grant, _decoded(answers, lines), beta)


def _decoded(file: str, lines: Iterable[bytes]) -> Iterator[Answer]:
    for number, line in enumerate(lines, 1):
        try:
            yield _answers.decode(line)
        except MalformedEventError as error:
            raise CommandError(
                f"--answers: {file}, answer {number}: {str(error).removeprefix('event: ')}"
            ) from None


async def _grant(source: str, stream: str) -> GrantRecord:
    async with AsyncClient() as client:
        return await client.grant(source, stream)


async def _collected(stream: str) -> list[Answer]:
    """The committed answers of a stream's partition as of now that may be the stream's own."""
    settings = settings_here()
    async with AsyncClient(settings) as client:
        topics = client.topics
    partition = TopicPartition(topics.answers, partition_of(stream.encode(), topics.partitions))
    found: list[Answer] = []
    consumer = reader(settings)
    await consumer.start()
    try:
        await require_visible(consumer, topics.answers)
        async for records in read_to_end(consumer, partition, settings.batch_events):
            found.extend(_answers.decode(record.value) for record in records if record.key == stream.encode())
    finally:
        await consumer.stop()
    return found
