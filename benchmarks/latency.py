"""Seconds from asking to the committed answer, at a steady rate of queries.

Every query has a time at which it is due, and its latency counts from then: a sender that falls behind makes the
figures worse, not better.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks import contenders
from benchmarks.contenders import Contender
from benchmarks.installation import FOLDER, PARTITIONS, Installation, create_topic, install, private_broker
from benchmarks.programs import Program
from benchmarks.report import show_latency, write_json
from stream.kafka.restore import reader
from stream.settings import Settings

LINGER_MS = 2
"""How long the sender gathers a batch; Sotto's own client does the same."""
WARM_UP_SECONDS = 60.0
"""Left out: for about that long a broker that has just been started keeps a third of a core busy with compiling."""
START_SECONDS = 60.0
LAST_ANSWERS_SECONDS = 10.0


class _Address(msgspec.Struct):
    id: str


_number_of = msgspec.json.Decoder(_Address).decode


@dataclass(frozen=True)
class Latency:
    """Milliseconds from due time to answer in hand, warm-up left out."""

    contender: str
    partitions: int
    streams: int
    rate: float
    answers: int
    missing: int
    median: float
    p99: float
    worst: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure Sotto, and Kafka Streams where there is a compiler."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=10_000, help="queries per second")
    parser.add_argument("--seconds", type=int, default=30, help="measured after the warm-up")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument(
        "--partitions", type=int, nargs="+", default=[1, PARTITIONS], help="each on its own broker"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    present = (contenders.sotto(), contenders.kafka_streams(contenders.KAFKA_STREAMS))
    taking_part = [each for each in present if each]
    latencies = []
    for partitions in options.partitions:
        with private_broker(partitions) as settings:
            latencies += asyncio.run(
                _measure_all(settings, taking_part, options.rate, options.seconds, options.streams)
            )
        shutil.rmtree(FOLDER / "state", ignore_errors=True)
    show_latency(latencies)
    if options.json:
        write_json(options.json, [asdict(latency) for latency in latencies])


async def _measure_all(
    base: Settings, taking_part: Sequence[Contender], rate: int, seconds: int, streams: int
) -> list[Latency]:
    queries = int(rate * (seconds + WARM_UP_SECONDS))
    installation = await install(base, queries, streams)
    return [await _measure(installation, contender, rate) for contender in taking_part]


async def _measure(installation: Installation, contender: Contender, rate: int) -> Latency:
    settings = installation.settings
    source, sink = installation.topics.queries, installation.topics.answers
    label = contender.name.lower().replace(" ", "-")
    if not contender.is_sotto:
        source, sink = f"latency-queries-{label}", f"latency-answers-{label}"
        await create_topic(settings, source)
        await create_topic(settings, sink)
    pairs = sorted(
        (_number(value), partition, key, value)
        for partition, queries in enumerate(installation.queries)
        for key, value in queries
    )
    due = np.zeros(len(pairs))
    received = np.full(len(pairs), np.nan)
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, enable_idempotence=True, linger_ms=LINGER_MS)
    consumer = reader(settings, fetch_max_wait_ms=50)
    async with producer, consumer:
        places = [TopicPartition(sink, number) for number in range(settings.partitions)]
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)
        with contender.start(installation, source, sink, FOLDER / "logs" / f"latency-{label}.log") as program:
            await _await_first_answer(producer, consumer, source, pairs[0], program)
            gc.collect()
            gc.disable()
            listening = asyncio.create_task(_listen(consumer, received))
            await _send(producer, source, pairs, due, rate)
            try:
                await asyncio.wait_for(listening, LAST_ANSWERS_SECONDS)
            except TimeoutError:
                program.check()
            finally:
                gc.enable()
    counted = slice(int(WARM_UP_SECONDS * rate), None)
    times = 1000 * (received[counted] - due[counted])
    answered = times[~np.isnan(times)]
    return Latency(
        contender=contender.name,
        partitions=settings.partitions,
        streams=installation.streams,
        rate=rate,
        answers=len(answered),
        missing=len(times) - len(answered),
        median=float(np.quantile(answered, 0.5)),
        p99=float(np.quantile(answered, 0.99)),
        worst=float(answered.max()),
    )


async def _await_first_answer(
    producer: AIOKafkaProducer,
    consumer: AIOKafkaConsumer,
    source: str,
    pair: tuple[int, int, bytes, bytes],
    program: Program,
) -> None:
    """Ask until an answer comes, then let the answers to all that was asked pass."""
    deadline = time.monotonic() + START_SECONDS
    _, partition, key, value = pair
    asked = answered = 0
    while asked == 0 or answered < asked:
        if answered == 0:
            await producer.send_and_wait(source, value, key, partition=partition)
            asked += 1
        fetched = await consumer.getmany(timeout_ms=500)
        answered += sum(map(len, fetched.values()))
        program.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {START_SECONDS:.0f} s; see {program.log}")


async def _send(
    producer: AIOKafkaProducer,
    source: str,
    pairs: Sequence[tuple[int, int, bytes, bytes]],
    due: npt.NDArray[np.float64],
    rate: int,
) -> None:
    start = time.perf_counter()
    due[:] = start + np.arange(len(pairs)) / rate
    position = 0
    while position < len(pairs):
        until = min(len(pairs), int((time.perf_counter() - start) * rate) + 1)
        for _, partition, key, value in pairs[position:until]:
            await producer.send(source, value, key, partition=partition)
        position = until
        await asyncio.sleep(0.001)


async def _listen(consumer: AIOKafkaConsumer, received: npt.NDArray[np.float64]) -> None:
    missing = len(received)
    while missing:
        fetched = await consumer.getmany(timeout_ms=500)
        now = time.perf_counter()
        for records in fetched.values():
            for record in records:
                received[_number(record.value)] = now
            missing -= len(records)


def _number(value: bytes) -> int:
    """Queries are called query-0, query-1, …; an answer repeats the name."""
    return int(_number_of(value).id.removeprefix("query-"))


if __name__ == "__main__":
    main()
