"""Measures the time from kill -9 of a worker to the first answer by another one, with very many open streams.

The streams' definitions are written to the control topic, and each stream is asked once, so that each has a checkpoint.
Then one of two workers is killed and a query is due in each of its partitions every few milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition

from benchmarks.installation import FOLDER, fill, private_broker
from benchmarks.programs import Program, service
from benchmarks.report import Figure, show_figures, write_json
from benchmarks.streams import definitions
from schemas.wire import encode
from stream.engine.restore import create_reader, neighbor_partitions
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import Topics, partition_of
from stream.settings import Settings

POLL_SECONDS: Final = 0.01
PATIENCE: Final = 300.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with warm copies and without."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found: dict[str, list[Figure]] = {}
    with private_broker() as base:
        for warm in (4, 0):
            title = f"{options.streams:,} streams, {'warm copies' if warm else 'full restore'}"
            settings = base.model_copy(update={"prefix": f"failover-{warm}", "standby_partitions": warm})
            found[title] = asyncio.run(_measure(settings, options.streams, options.rounds))
            show_figures(title, found[title])
    if options.json:
        write_json(options.json, found)


async def _measure(settings: Settings, streams: int, rounds: int) -> list[Figure]:
    key = NoiseKey.generate()
    topics = Topics(settings.prefix, settings.partitions)
    await create_topics(settings)
    await _install(settings, topics, key, streams)
    figures: list[Figure] = []
    heir = _worker(settings, key, 0)
    try:
        await _answered(settings, topics, streams)
        for number in range(rounds):
            victim, heir = heir, _worker(settings, key, number + 1)
            inherited = await _ready(settings, victim, heir, warm=settings.standby_partitions > 0)
            figures.append(
                (
                    f"round {number + 1}, after the session's end",
                    await _fail_over(settings, topics, victim, inherited),
                    "s",
                )
            )
            ready = [line for line in _logged(heir, "partition ready") if line["partition"] in inherited]
            figures.append(("records read after the fence", sum(line["records"] for line in ready), ""))
            figures.append(("slowest partition, from fence to ready", max(line["seconds"] for line in ready), "s"))
    finally:
        heir.stop()
    return figures


async def _install(settings: Settings, topics: Topics, key: NoiseKey, streams: int) -> None:
    """Write the definitions, and a query to each stream."""
    control: list[list[tuple[bytes, bytes]]] = [[] for _ in range(topics.partitions)]
    queries: list[list[tuple[bytes, bytes]]] = [[] for _ in range(topics.partitions)]
    for record in definitions(key, topics, streams):
        name = record.key or b""
        partition = partition_of(name, topics.partitions)
        control[partition].append((name, record.value or b""))
        queries[partition].append((name, encode({"id": "first", "stream": name.decode(), "value": 1.0})))
    await fill(settings, topics.control, control)
    await fill(settings, topics.queries, queries)


async def _fail_over(settings: Settings, topics: Topics, victim: Program, inherited: set[int]) -> float:
    """Kill a worker; seconds from the end of its session until each of its partitions has answered again."""
    places = [TopicPartition(topics.answers, number) for number in inherited]
    names: dict[int, str] = {}
    for number in range(1000):
        names.setdefault(partition_of(b"stream-%d" % number, topics.partitions), f"stream-{number}")
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap)
    async with create_reader(settings) as consumer, producer:
        before = await consumer.end_offsets(places)
        victim.kill()
        killed = time.monotonic()
        for number in inherited:
            value = encode({"id": "after", "stream": names[number], "value": 1.0})
            await producer.send_and_wait(topics.queries, value, key=names[number].encode(), partition=number)
        async with asyncio.timeout(PATIENCE):
            while True:
                ends = await consumer.end_offsets(places)
                if all(ends[place] > before[place] for place in places):
                    return time.monotonic() - killed - settings.session_timeout_ms / 1000
                await asyncio.sleep(POLL_SECONDS)


async def _ready(settings: Settings, victim: Program, heir: Program, *, warm: bool) -> set[int]:
    """Wait until two workers share the partitions and the copies are warm; gives the victim's partitions."""
    everything = set(range(settings.partitions))
    async with asyncio.timeout(PATIENCE):
        while True:
            await asyncio.sleep(0.2)
            victim.check()
            heir.check()
            mine, others = _owned(heir), _owned(victim)
            if not (mine and others and mine ^ others == everything):
                continue
            wanted = neighbor_partitions(mine, settings.partitions, settings.standby_partitions) if warm else set()
            ready = {line["partition"] for line in _logged(heir, "partition ready")}
            if wanted <= {line["partition"] for line in _logged(heir, "standby ready")} and mine <= ready:
                return others


async def _answered(settings: Settings, topics: Topics, count: int) -> None:
    places = [TopicPartition(topics.answers, number) for number in range(topics.partitions)]
    async with create_reader(settings) as consumer, asyncio.timeout(PATIENCE):
        while True:
            if sum((await consumer.end_offsets(places)).values()) >= count:
                return
            await asyncio.sleep(0.2)


def _worker(settings: Settings, key: NoiseKey, number: int) -> Program:
    return service("worker", settings, key.secret.hex(), FOLDER / "logs" / f"{settings.prefix}-{number}.log")


def _logged(program: Program, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in program.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


def _owned(program: Program) -> set[int]:
    assignments = _logged(program, "assigned")
    return set(assignments[-1]["partitions"]) if assignments else set()


if __name__ == "__main__":
    main()
