"""What a waiting client takes for the answers to others in its partition: ``python -m benchmarks.other_answers``.

Each client waits for an answer that does not come, while answers to others are written to its partition in
transactions of 1,000. The processor time is that of the clients' process alone, for each answer that passes a client.
Then the questions are cancelled, and as many answers to others are written again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition

from benchmarks.installation import FOLDER, private_broker
from benchmarks.programs import Program
from benchmarks.report import Figure, show_figures, write_json
from sotto import AsyncClient
from stream.kafka.topic_creation import create_topics
from stream.processing.topic_names import Topics
from stream.settings import Settings

PREFIX: Final = "bench-other-answers"
IN_TRANSACTION: Final = 1_000
RATE: Final = 20_000
"""Answers written a second, if the machine can."""
TOPIC: Final = Topics(PREFIX).answers


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_answers", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write-to", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write_to is not None:
        asyncio.run(_write(options.write_to, options.answers))
        return
    with private_broker(partitions=1) as base:
        figures = asyncio.run(
            measured(base.model_copy(update={"prefix": PREFIX}), options.clients, options.answers)
        )
    title = f"{options.clients:,} clients beside {options.answers:,} answers to others"
    show_figures(title, figures)
    if options.json:
        write_json(options.json, {title: figures})


async def measured(settings: Settings, clients: int, answers: int) -> list[Figure]:
    """Let the clients wait while the answers are written, and time their process."""
    await create_topics(settings)
    async with AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(AsyncClient(settings)) for _ in range(clients)]
        asked = [asyncio.create_task(one.ask("waited-for", value=1.0, timeout=None)) for one in waiting]
        while not all(one._listener._followed for one in waiting):  # noqa: ASYNC110, SLF001  (of other tasks)
            await asyncio.sleep(0.1)
        began = time.perf_counter()
        command = ["-m", "benchmarks.other_answers", "--write-to", settings.bootstrap, "--answers", str(answers)]
        with Program([sys.executable, *command], FOLDER / "logs" / "other-answers.log"):
            used = await _seconds_of(_wait_for_all(waiting, answers))
        passed = time.perf_counter() - began
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        with Program([sys.executable, *command], FOLDER / "logs" / "other-answers-again.log"):
            used_without = await _seconds_of(_wait_for_end(waiting[0], 2 * answers))
    each, each_without = used / clients / answers, used_without / clients / answers
    return [
        ("a client's processor time for each answer that passes it", 1e6 * each, "µs"),
        (f"that is beside {RATE:,} answers a second", 1e3 * each * RATE, "ms/s"),
        ("the same without a pending question", 1e3 * each_without * RATE, "ms/s"),
        ("answers written a second", answers / passed, "/s"),
    ]


async def _seconds_of(waited_for: Awaitable[None]) -> float:
    """Return the processor time of this process until something has happened."""
    before = time.process_time()
    await waited_for
    return time.process_time() - before


async def _wait_for_all(clients: Sequence[AsyncClient], answers: int) -> None:
    """Wait until every client has read past all answers."""
    place = TopicPartition(TOPIC, 0)
    for client in clients:
        consumer: Any = client._listener._consumer  # noqa: SLF001
        while await consumer.position(place) < answers:  # noqa: ASYNC110  (of a consumer)
            await asyncio.sleep(0.2)


async def _wait_for_end(client: AsyncClient, answers: int) -> None:
    """Wait until the topic has so many answers."""
    place = TopicPartition(TOPIC, 0)
    consumer: Any = client._listener._consumer  # noqa: SLF001
    while (await consumer.end_offsets([place]))[place] < answers:  # noqa: ASYNC110  (of a topic)
        await asyncio.sleep(0.2)


async def _write(bootstrap: str, answers: int) -> None:
    """Write answers to other questions in transactions, as a worker does."""
    began = time.monotonic()
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id="others", max_batch_size=1024 * 1024
    ) as producer:
        for start in range(0, answers, IN_TRANSACTION):
            async with producer.transaction():
                batch = producer.create_batch()
                for number in range(start, start + IN_TRANSACTION):
                    key = b"other-%d" % (number % 50)
                    value = b'{"id":"%032x","stream":"%b","outcome":"below","reason":null,"left":12}' % (
                        number,
                        key,
                    )
                    batch.append(timestamp=None, key=key, value=value)
                await producer.send_batch(batch, TOPIC, partition=0)
            await asyncio.sleep(max(0.0, began + (start + IN_TRANSACTION) / RATE - time.monotonic()))


if __name__ == "__main__":
    main()
