"""Measures answers per second of Sotto's worker, as one process or several, and of other stream processors, with the same broker and queries.

The pass-through in C shows the limit: it writes as many answers of the same size, exactly once, without state or noise.

All take turns within a round, so that whatever else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import contenders
from benchmarks.contenders import Contender
from benchmarks.installation import (
    FOLDER,
    Installation,
    broker_seconds,
    create_topic,
    delete_topics,
    fill,
    install,
)
from benchmarks.installation import private_broker as start_broker
from benchmarks.measure import Watch
from benchmarks.programs import ProgramError
from benchmarks.report import show_throughput, write_json
from stream.settings import Settings

PEERS = ("passthrough", "kafka-streams", "kafka-streams-tuned", "quix", "faust")

TUNED = {"producer.batch.size": "1000000", "producer.linger.ms": "100", "max.poll.records": "5000"}
"""Kafka Streams with batches as large as Sotto's."""


@dataclass(frozen=True)
class Run:
    """The figures of one contender in one round."""

    contender: str
    streams: int
    round: int
    queries: int
    answers: int
    different_ids: int
    rate: float
    late_rate: float
    startup_seconds: float
    total_seconds: float
    cpu_microseconds: float
    """Processor time of the contender per answer, start-up included, without the broker's."""
    steady_microseconds: float
    """The same after the first commit."""
    broker_microseconds: float
    """The broker's per answer, from the contender's start to its last answer."""
    load: float
    """Load average of the machine just before the run."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--queries", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 20_000])
    parser.add_argument("--peers", nargs="*", choices=[*PEERS, "none"], default=list(PEERS))
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1],
        help="worker processes of Sotto; several numbers take turns",
    )
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    options = parser.parse_args(arguments)
    taking_part = _take_part(options.peers, options.processes)
    runs: list[Run] = []
    with start_broker() as settings:
        for streams in options.streams:
            runs += asyncio.run(_compare(settings, taking_part, options.queries, streams, options.rounds))
            show_throughput([run for run in runs if run.streams == streams])
    shutil.rmtree(FOLDER / "state", ignore_errors=True)
    if options.json:
        write_json(options.json, [asdict(run) for run in runs])


def _take_part(peers: Sequence[str], processes: Sequence[int]) -> list[Contender]:
    taking_part: list[Contender | None] = [*map(contenders.sotto, processes)]
    if "passthrough" in peers:
        taking_part.append(contenders.passthrough())
    if "kafka-streams" in peers:
        taking_part.append(contenders.kafka_streams(contenders.KAFKA_STREAMS))
    if "kafka-streams-tuned" in peers:
        name = f"{contenders.KAFKA_STREAMS}, tuned"
        taking_part.append(contenders.kafka_streams(name, state="cached", settings=TUNED))
    if "quix" in peers:
        taking_part.append(contenders.quix())
    if "faust" in peers:
        taking_part.append(contenders.faust())
    return [contender for contender in taking_part if contender is not None]


async def _compare(
    base: Settings, taking_part: list[Contender], queries: int, streams: int, rounds: int
) -> list[Run]:
    print(f"Opening {streams} streams")
    installation = await install(base, queries, streams)
    source = f"peers-{streams}"
    await create_topic(base, source)
    await fill(base, source, installation.queries)
    runs = []
    for number in range(rounds):
        # Every other round has the reverse order, so that no contender always follows the same one.
        for contender in taking_part if number % 2 == 0 else reversed(taking_part):
            try:
                run = await _run(installation, contender, source, number)
            except (ProgramError, TimeoutError) as error:
                print(f"round {number + 1}, {streams} streams: {contender.name} failed: {error}", flush=True)
                continue
            print(
                f"round {number + 1}, {run.streams} streams: {run.contender} {run.rate:,.0f}/s, "
                f"second half {run.late_rate:,.0f}/s, {run.answers} answers, {run.different_ids} ids",
                flush=True,
            )
            runs.append(run)
    return runs


async def _run(installation: Installation, contender: Contender, source: str, number: int) -> Run:
    settings = installation.settings
    wanted = math.ceil(sum(map(len, installation.queries)) * contender.share)
    label = f"{contender.name.lower().replace(' ', '-').replace(',', '')}-{installation.streams}-{number}"
    if contender.is_sotto:
        sink = installation.topics.answers
        await fill(settings, installation.topics.queries, installation.queries)
    else:
        sink = f"answers-{label}"
        await create_topic(settings, sink)
    load = os.getloadavg()[0]
    async with Watch(settings, sink, settings.partitions) as watch:
        with contender.start(installation, source, sink, FOLDER / "logs" / f"{label}.log") as program:
            broker = broker_seconds()
            timeline = await watch.follow(program, wanted, contender.seconds, is_all=contender.share == 1)
            broker = broker_seconds() - broker
        answers, different = await watch.count()
    if not contender.is_sotto:
        await delete_topics(settings, sink)
    return Run(
        contender=contender.name,
        streams=installation.streams,
        round=number,
        queries=wanted,
        answers=answers,
        different_ids=different,
        rate=timeline.rate,
        late_rate=timeline.late_rate,
        startup_seconds=timeline.startup,
        total_seconds=timeline.total,
        cpu_microseconds=1e6 * program.cpu_seconds / answers,
        steady_microseconds=timeline.steady_microseconds,
        broker_microseconds=1e6 * broker / answers,
        load=load,
    )


if __name__ == "__main__":
    main()
