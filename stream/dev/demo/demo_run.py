"""Runs the demo: broker, budget service and two workers; one worker is killed half-way.

It also measures how fast a worker answers a backlog that is published at once.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from aiokafka import TopicPartition

from schemas import AboveThreshold, CloseStream, GrantRecord, OpenStream, RegisterSource, SourceRecord, StreamSpec
from stream.client.async_client import AsyncClient
from stream.dev.demo.demo_report import (
    FEED,
    FEED_THRESHOLD,
    Check,
    DemoQuestion,
    DemoReport,
    check_answers,
    check_budget,
    questions,
    sources,
    streams,
)
from stream.dev.demo.mechanism_tour import tour
from stream.engine.restore import reader
from stream.kafka.broker.kafka_programs import fetch_jars
from stream.kafka.broker.local_broker import LocalBroker
from stream.kafka.client.broker_connections import connection_options
from stream.kafka.client.client_patches import KafkaProducer
from stream.kafka.topics.creation import create_topics, delete_topics
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.questions import Result
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from stream.tables.demo_tables import ADULT_PATH

QUERIES: Final = 200_000
STREAMS: Final = 20
MOST_SECONDS: Final = 60.0
"""Most seconds to wait for the answers."""
_BATCH_BYTES: Final = 128 * 1024


async def measure_backlog(client: AsyncClient, settings: Settings) -> tuple[list[StreamSpec], float]:
    """Open streams and publish ``QUERIES`` questions; return the streams and the answers per second.

    The rate is that from the first commit of answers to the last, by the offsets of the topic. These
    count the markers of transactions too, a few in a hundred thousand.
    """
    specs = [
        StreamSpec(
            stream=f"backlog-{number:02}",
            source=FEED,
            mechanism=AboveThreshold(kind="above_threshold", threshold=FEED_THRESHOLD, cutoff=1),
            epsilon=0.05,
            expected_queries=QUERIES // STREAMS,
        )
        for number in range(STREAMS)
    ]
    await client.requests([OpenStream(request=f"open {spec.stream}", stream=spec) for spec in specs])
    answers = [TopicPartition(client.topics.answers, number) for number in range(client.topics.partitions)]
    consumer = reader(settings)
    producer = KafkaProducer(**connection_options(settings), acks="all", max_batch_size=_BATCH_BYTES)
    try:
        await consumer.start()
        await producer.start()
        before = sum((await consumer.end_offsets(answers)).values())
        published = asyncio.create_task(
            _publish_backlog(producer, client.topics.queries, client.topics.partitions, specs)
        )
        rate = await _wait_for_answers(consumer, answers, before)
        await published
    finally:
        await producer.stop()
        await consumer.stop()
    return specs, rate


async def _publish_backlog(producer: Any, topic: str, partitions: int, specs: list[StreamSpec]) -> None:
    for spec in specs:
        key = spec.stream.encode()
        partition = partition_of(key, partitions)
        batch = producer.create_batch()
        for number in range(QUERIES // STREAMS):
            value = b'{"id":"%d","stream":"%s","value":%d}' % (number, key, number % 1000)
            if batch.append(timestamp=None, key=key, value=value) is None:
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        await producer.send_batch(batch, topic, partition=partition)
    await producer.flush()


async def _wait_for_answers(consumer: Any, answers: list[TopicPartition], before: int) -> float:
    """Return the answers per second; 0 if not all come in time."""
    began = time.monotonic()
    first_count, first_time = 0, began
    while (now := time.monotonic()) - began < MOST_SECONDS:
        count: int = sum((await consumer.end_offsets(answers)).values()) - before
        if count >= QUERIES:
            return (count - first_count) / (now - first_time)
        if count and not first_count:
            first_count, first_time = count, now
        await asyncio.sleep(0.01)
    return 0.0


LOCAL_SESSION = {"session_timeout_ms": 2000, "heartbeat_ms": 500}
"""Settings of a local broker's groups: Kafka notices a killed worker after two seconds."""
ANSWER_TIMEOUT = 60.0
"""Most seconds to wait for a next answer, or for the budget service to close the streams."""


class DemoProgress(Protocol):
    """Receives the demo's progress."""

    def step(self, message: str) -> None:
        """Start a step."""

    def advance(self, published: int, answered: int, total: int) -> None:
        """Report the numbers of published and answered queries."""


@dataclass(frozen=True)
class DemoInstallation:
    """The services of a run on Kafka, with a separate prefix."""

    settings: Settings
    workers: tuple[Service, ...]


@contextmanager
def installation(
    folder: Path, progress: DemoProgress, bootstrap: str | None, *, feed: bool = False
) -> Iterator[DemoInstallation]:
    """Start a budget service and two workers, and stop them at the end.

    Args:
        folder: Folder for broker data, logs and the key of this run.
        progress: Receives the progress.
        bootstrap: Address of a Kafka; None starts a local one.
        feed: Start a feed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_id = uuid.uuid4().hex[:8]
    key_file = folder / f"{run_id}.key"
    NoiseKey.generate().save(key_file)
    with ExitStack() as stack:
        stack.callback(key_file.unlink)
        if bootstrap is None:
            fetch_jars(progress.step)
            progress.step("starting Kafka")
            broker = stack.enter_context(LocalBroker(folder / "broker"))
            kafka = Settings.of_local_broker(broker.start().bootstrap).model_copy(update=LOCAL_SESSION)
        else:
            kafka = Settings(bootstrap=bootstrap)
        changed = {"prefix": f"sotto-demo-{run_id}", "table_roots": str(ADULT_PATH.parent)}
        settings = kafka.model_copy(update=changed)
        asyncio.run(create_topics(settings))
        stack.callback(lambda: asyncio.run(delete_topics(settings)))
        progress.step(f"starting the budget service{', a feed' if feed else ''} and two workers")
        roles: list[tuple[RoleName, int]] = [("budget", 0), ("worker", 0), ("worker", 1)]
        roles += [("feed", 0)] if feed else []
        services = [
            stack.enter_context(
                Service(role, settings, key_file, folder / "logs" / f"{run_id}-{role}-{number}.log")
            )
            for role, number in roles
        ]
        yield DemoInstallation(settings, tuple(service for service in services if service.role == "worker"))


class DemoAnswers:
    """Reads a client's answers in the background, within an ``async with`` block."""

    def __init__(self, client: AsyncClient, progress: DemoProgress, total: int) -> None:
        self.answers: list[Result] = []
        self.published = 0
        self._client = client
        self._progress = progress
        self._total = total

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def advance(self, published: int = 0) -> None:
        """Report the progress after further published events."""
        self.published += published
        self._progress.advance(self.published, len(self.answers), self._total)

    async def wait(self, count: int, *, or_exhausted: bool = False) -> None:
        """Wait for ``count`` answers, or until none arrives for ``ANSWER_TIMEOUT`` seconds."""
        seen, since = len(self.answers), time.monotonic()
        while len(self.answers) < count and not (
            or_exhausted and any(answer.tops_left == 0 for answer in self.answers)
        ):
            await asyncio.sleep(0.1)
            self.advance()
            if len(self.answers) > seen:
                seen, since = len(self.answers), time.monotonic()
            elif time.monotonic() - since > ANSWER_TIMEOUT:
                return

    async def _read(self) -> None:
        async for answer in self._client.answers(from_beginning=True):
            self.answers.append(answer)


async def run_demo(
    running: DemoInstallation, progress: DemoProgress, *, queries: int, seed: int = 1
) -> DemoReport:
    """Run the demo, kill one worker half-way, and return the report.

    Args:
        running: The installation, for one run only.
        progress: Receives the progress.
        queries: Minimum number of queries.
        seed: Seed of the questions, not of the noise.
    """
    async with AsyncClient(running.settings) as client:
        progress.step("registering two sources and opening 40 streams")
        per_stream = -(-queries // len(streams(1)))
        specs = streams(per_stream)
        await client.requests([RegisterSource(request=source.source, source=source) for source in sources()])
        for receipt in await client.requests([OpenStream(request=spec.stream, stream=spec) for spec in specs]):
            if receipt.outcome != "opened":
                raise RuntimeError(f"stream {receipt.stream} was not opened: {receipt.reason}")
        names = [source.source for source in sources()]
        calibrations = {
            grant.spec.stream: grant.calibration for name in names for grant in await client.list_streams(name)
        }
        asked = {question.query.id: question for question in questions(specs, calibrations, per_stream, seed)}
        order = list(asked.values())
        half = len(order) // 2
        async with DemoAnswers(client, progress, len(order)) as reader:
            began = time.monotonic()
            progress.step("asking")
            await _publish(client, order[:half], reader)
            await reader.wait(half // 2)
            progress.step("killing one of the two workers (SIGKILL)")
            running.workers[0].kill()
            killed, answered_at_kill = time.monotonic(), len(reader.answers)
            await _publish(client, order[half:], reader)
            await reader.wait(len(order))
            ended = time.monotonic()
            await asyncio.sleep(1.0)  # lets duplicate answers arrive
        answers = reader.answers
        progress.step("asking a stream of every mechanism")
        tour_checks = await tour(client, seed)
        progress.step(f"asking {QUERIES:,} questions at once")
        backlog_specs, backlog_rate = await measure_backlog(client, running.settings)
        progress.step("closing the streams")
        await client.requests(
            [
                CloseStream(request=f"close {s.stream}", source=s.source, stream=s.stream)
                for s in [*specs, *backlog_specs]
            ]
        )
        budgets = [await _wait_until_closed(client, name) for name in names]
    checks, outcomes = check_answers(asked, answers, calibrations)
    exhausted = {answer.stream for answer in answers if answer.outcome == "above" and answer.tops_left == 0}
    checks += [check_budget(*budget, exhausted) for budget in budgets]
    after = len(answers) - answered_at_kill
    backlog_names = {spec.stream for spec in backlog_specs}
    answered = sum(
        grant.answered for _, grants in budgets for grant in grants if grant.spec.stream in backlog_names
    )
    checks.append(
        Check(
            "the worker that is left answers a backlog",
            f"{QUERIES:,} more questions, {answered:,} answered at {backlog_rate:,.0f}/s",
            answered == QUERIES,
        )
    )
    checks.append(
        Check(
            "the other worker takes over after kill -9",
            f"{after:,} answers after the kill, the last after {ended - killed:.1f} s; "
            f"Kafka waits {running.settings.session_timeout_ms / 1000:g} s for the killed worker",
            after > 0,
        )
    )
    figures = {
        "queries_asked": len(asked),
        "queries_answered": len(answers),
        "above": outcomes["above"],
        "below": outcomes["below"],
        "halted_answers": outcomes["halted"],
        "streams": len(calibrations),
        "streams_halted": len(exhausted),
        "seconds": round(ended - began, 2),
        "backlog_queries": QUERIES,
        "backlog_answers_per_second": round(backlog_rate),
        "queries_per_second": round(len(asked) / (ended - began)),
        "budgets": [record.model_dump(mode="json", exclude={"source"}) for record, _ in budgets],
    }
    return DemoReport(checks + tour_checks, figures)


async def _publish(client: AsyncClient, order: list[DemoQuestion], reader: DemoAnswers) -> None:
    for batch in (order[start : start + 500] for start in range(0, len(order), 500)):
        for question in batch:
            await client.publish(question.query)
        await client.flush()
        reader.advance(len(batch))


async def _wait_until_closed(client: AsyncClient, source: str) -> tuple[SourceRecord, list[GrantRecord]]:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while True:
        grants = await client.list_streams(source)
        if all(grant.state == "closed" for grant in grants) or time.monotonic() > deadline:
            return await client.budget(source), grants
        await asyncio.sleep(0.2)
