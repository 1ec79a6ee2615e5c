"""Measures the seconds from a question to its committed answer, at a steady rate of queries.

Every query has a time at which it is due, and its latency counts from then: a sender that falls behind makes the
figures worse, not better. Who asks and who listens use librdkafka: they share the machine with what they measure, and take
little of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import contenders
from benchmarks.contenders import Contender
from benchmarks.installation import FOLDER, PARTITIONS, Installation, create_topic, install, private_broker
from benchmarks.programs import Program
from benchmarks.report import show_latency, write_json
from stream.settings import Settings

LINGER_MS = 2
"""How long the sender gathers a batch; Sotto's own client does the same."""
WARM_UP_SECONDS = 60.0
"""Seconds that are left out, because a newly started broker uses a third of a core for compiling in this time."""
START_SECONDS = 60.0
LAST_ANSWERS_SECONDS = 10.0
AT_ONCE = 1000
"""Most answers that are taken from the client in one call."""


class _Address(msgspec.Struct):
    id: str


_number_of = msgspec.json.Decoder(_Address).decode


@dataclass(frozen=True)
class Latency:
    """Milliseconds from a query's due time to its received answer, without the warm-up."""

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
    """Measure Sotto, and Kafka Streams if there is a compiler."""
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
            queries = int(options.rate * (options.seconds + WARM_UP_SECONDS))
            installation = asyncio.run(install(settings, queries, options.streams))
            latencies += [_measure(installation, contender, options.rate) for contender in taking_part]
        shutil.rmtree(FOLDER / "state", ignore_errors=True)
    show_latency(latencies)
    if options.json:
        write_json(options.json, [asdict(latency) for latency in latencies])


def _measure(installation: Installation, contender: Contender, rate: int) -> Latency:
    settings = installation.settings
    source, sink = installation.topics.queries, installation.topics.answers
    label = contender.name.lower().replace(" ", "-")
    if not contender.is_sotto:
        source, sink = f"latency-queries-{label}", f"latency-answers-{label}"
        asyncio.run(create_topic(settings, source))
        asyncio.run(create_topic(settings, sink))
    pairs = sorted(
        (_number(value), partition, key, value)
        for partition, queries in enumerate(installation.queries)
        for key, value in queries
    )
    due = np.zeros(len(pairs))
    received = np.full(len(pairs), np.nan)
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap, "enable.idempotence": True, "linger.ms": LINGER_MS}
    )
    log = FOLDER / "logs" / f"latency-{label}.log"
    with (
        _listening(settings, sink) as consumer,
        contender.start(installation, source, sink, log) as program,
        ThreadPoolExecutor(1) as pool,
        _no_garbage(),
    ):
        _await_first_answer(producer, consumer, source, pairs[0], program)
        seconds = len(pairs) / rate + LAST_ANSWERS_SECONDS
        heard = pool.submit(_listen, consumer, received, time.monotonic() + seconds)
        _send(producer, source, pairs, due, rate)
        heard.result()
        program.check()
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


@contextmanager
def _listening(settings: Settings, topic: str) -> Iterator[Consumer]:
    """Return a consumer of all later committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        places = [TopicPartition(topic, number) for number in range(settings.partitions)]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place)[1]
        consumer.assign(places)
        yield consumer
    finally:
        consumer.close()


@contextmanager
def _no_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _await_first_answer(
    producer: Producer, consumer: Consumer, source: str, pair: tuple[int, int, bytes, bytes], program: Program
) -> None:
    """Ask until an answer comes, then skip the answers to all these questions."""
    deadline = time.monotonic() + START_SECONDS
    _, partition, key, value = pair
    asked = answered = 0
    while asked == 0 or answered < asked:
        if answered == 0:
            producer.produce(source, value, key, partition=partition)
            producer.flush()
            asked += 1
        answered += len(consumer.consume(asked, timeout=0.5))
        program.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {START_SECONDS:.0f} s; see {program.log}")


def _send(
    producer: Producer,
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
            producer.produce(source, value, key, partition=partition)
        position = until
        producer.poll(0)
        time.sleep(0.001)
    producer.flush()


def _listen(consumer: Consumer, received: npt.NDArray[np.float64], until: float) -> None:
    """Note when each answer is received, until all are received or the time limit is reached."""
    missing = len(received)
    while missing and time.monotonic() < until:
        if (first := consumer.poll(0.5)) is None:
            continue
        messages = [first, *consumer.consume(AT_ONCE, timeout=0)]
        now = time.perf_counter()
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            if (answer := message.value()) is not None:
                received[_number(answer)] = now
                missing -= 1


def _number(value: bytes) -> int:
    """Return the number of a query from its answer; queries are called query-0, query-1, …."""
    return int(_number_of(value).id.removeprefix("query-"))


if __name__ == "__main__":
    main()
