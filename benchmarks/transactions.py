"""Measures transactions of two small batches, one after another in each of four partitions: aiokafka's producer and Sotto's by both protocols.

``python -m benchmarks.transactions`` prints a table of medians over the rounds, in which all take turns on a warm broker.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Any, Final
from unittest.mock import patch

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.producer import sender
from rich.table import Table

from benchmarks.installation import PARTITIONS, broker_seconds, private_broker
from benchmarks.report import console
from stream.kafka.client import transactional_producer
from stream.kafka.client.transactional_producer import TransactionalProducer
from stream.kafka.topic_creation import create_topics
from stream.settings import Settings

TOPICS: Final = ("answers", "state")
BATCH_BYTES: Final = 100_000
TIMEOUT_MS: Final = 30_000

sender.BACKOFF_OVERRIDE = 0.002
"""Seconds before aiokafka asks again to begin a transaction while the last one's markers are being written; its own 20 ms are longer than one takes."""

Transaction = Callable[[], Awaitable[None]]
Writers = list[tuple[Any, Transaction]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the three in turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transactions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="after one that warms the broker up")
    parser.add_argument("--transactions", type=int, default=400, help="in each partition and round")
    options = parser.parse_args(arguments)
    with private_broker() as settings:
        found = asyncio.run(
            _measure(settings.model_copy(update={"prefix": "bench"}), options.rounds, options.transactions)
        )
    table = Table(
        title=f"{PARTITIONS} partitions at once, two batches a transaction, medians of {options.rounds} rounds"
    )
    for heading in ("", "transactions/s", "client's processor", "broker's", "median", "99 %"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, rounds in found.items():
        rate, client, broker, middle, late = (median(column) for column in zip(*rounds, strict=True))
        table.add_row(
            name, f"{rate:,.0f}", f"{client:.2f} ms", f"{broker:.2f} ms", f"{middle:.1f} ms", f"{late:.1f} ms"
        )
    console.print(table)


async def _measure(settings: Settings, rounds: int, count: int) -> dict[str, list[tuple[float, ...]]]:
    await create_topics(settings)
    makers: dict[str, Callable[[Settings, int], Awaitable[tuple[Any, Transaction]]]] = {
        "aiokafka": _aiokafka,
        "Sotto, first protocol": _first,
        "Sotto, second protocol": _own,
    }
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in makers}
    for number in range(rounds + 1):
        for name, make in makers.items():
            writers = [await make(settings, partition) for partition in range(PARTITIONS)]
            figures = await _run(writers, count)
            for producer, _ in writers:
                await producer.stop()
            if number:
                found[name].append(figures)
    return found


async def _run(writers: Writers, count: int) -> tuple[float, ...]:
    """Return transactions per second, milliseconds of processor time per transaction of this process and of the broker, and the duration."""
    taken: list[float] = []

    async def one_after_another(transaction: Transaction) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await transaction()
            taken.append(1000 * (time.perf_counter() - began))

    began, client, broker = time.perf_counter(), time.process_time(), broker_seconds()
    await asyncio.gather(*(one_after_another(transaction) for _, transaction in writers))
    seconds, total = time.perf_counter() - began, len(taken)
    per_one = [1000 * spent / total for spent in (time.process_time() - client, broker_seconds() - broker)]
    return total / seconds, *per_one, median(taken), quantiles(taken, n=100)[-1]


async def _aiokafka(settings: Settings, partition: int) -> tuple[Any, Transaction]:
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap,
        transactional_id=f"{settings.prefix}-aiokafka-{partition}",
        transaction_timeout_ms=TIMEOUT_MS,
        acks="all",
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()

    async def send(topic: str) -> None:
        await (await producer.send_batch(_filled(producer), f"{settings.prefix}.{topic}", partition=partition))

    async def transaction() -> None:
        await producer.begin_transaction()
        await asyncio.gather(*map(send, TOPICS))
        await producer.commit_transaction()

    return producer, transaction


async def _own(settings: Settings, partition: int) -> tuple[Any, Transaction]:
    producer = TransactionalProducer(
        bootstrap_servers=settings.bootstrap,
        transactional_id=f"{settings.prefix}-own-{partition}",
        transaction_timeout_ms=TIMEOUT_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    places = [TopicPartition(f"{settings.prefix}.{topic}", partition) for topic in TOPICS]

    async def transaction() -> None:
        await producer.write({place: [_filled(producer)] for place in places})
        await producer.commit()

    return producer, transaction


async def _first(settings: Settings, partition: int) -> tuple[Any, Transaction]:
    with patch.object(transactional_producer, "supports_second_protocol", lambda _: False):
        return await _own(settings, partition)


def _filled(producer: Any) -> Any:
    batch = producer.create_batch()
    batch.append(timestamp=1, key=b"key", value=b"value", headers=[])
    return batch


if __name__ == "__main__":
    main()
