"""A live topic to which people send events during faults; its windows are compared with a plain count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError

from schemas import EventsSource, StreamSpec, format_moment
from sotto import AsyncClient
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_layouts import durability_settings
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import LEDGER_PARTITIONS
from stream.services.processes import Service
from stream.settings import Settings
from tests.chaos.checker import committed
from tests.chaos.periods import Periods
from tests.chaos.windows import YESTERDAY, Visits, live_source, standing_specs, violations_of_windows

PARTITIONS = 3
"""A live topic's partitions; deliberately not the installation's number, because the topic belongs to somebody else."""
SECONDS = 180.0
PAUSE = 0.2
"""Seconds between two bursts."""
BURST = 8
"""Events that people send at once."""


class Pace(NamedTuple):
    """The windows of a live topic, the number of windows of a running count, and the speed of the topic's time.

    Each burst advances the marks by ``step`` milliseconds. Events are late by ``back`` milliseconds at most.
    """

    size: str = "4s"
    every: str = "2s"
    horizon: int = 10
    step: int = 400
    back: int = 6_000


SHORT: Final = Pace()
"""The pace of a topic whose running count ends within a round."""
LONG: Final = Pace(horizon=60)
"""The pace of a topic whose running count has windows left after most rounds, and ends only in long rounds."""
HOURS: Final = Pace("20m", "10m", horizon=4, step=180_000, back=1_500_000)
"""The pace of a topic whose periods are hours: a period lasts about four seconds and has six windows, four of them in a running count."""


@dataclass
class Live:
    """A live topic, its writer, and its standing streams."""

    settings: Settings
    client: AsyncClient
    source: EventsSource
    specs: list[StreamSpec]
    producer: AIOKafkaProducer
    visits: Visits
    services: list[Service] = field(default_factory=list)
    pace: Pace = SHORT
    now: int = YESTERDAY
    sent: int = 0
    repeated: int = 0
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _going: asyncio.Task[None] | None = None

    async def send(self, now: int, back: int, count: int) -> None:
        """Send people's events of about a time; one in thirty is sent twice."""
        for _ in range(count):
            partition, key, value = self.visits.next(now, back)
            again = random.Random(value).random() < 1 / 30
            for _ in range(1 + again):
                await self.producer.send(self.source.topic, value, key=key, partition=partition)
            self.repeated += again
        self.sent += count
        await self.producer.flush()

    async def mark(self, moment: int) -> None:
        """Write a mark to each partition."""
        headers = [("sotto-mark", format_moment(moment).encode())]
        for number in range(PARTITIONS):
            await self.producer.send(self.source.topic, b"", partition=number, headers=headers)
        await self.producer.flush()

    async def step(self) -> None:
        """Send a burst of events; with clock ``marks``, write a mark and advance the time too."""
        if self.source.clock == "broker":
            await self.send(int(time.time() * 1000), self.pace.back, BURST)
        else:
            await self.send(self.now, self.pace.back, BURST)
            await self.mark(self.now)
            self.now += self.pace.step

    def begin(self) -> None:
        """Start to send events; they are sent during all faults until ``cease``, and events that get lost do not count."""
        self._going = asyncio.create_task(self._go_on())

    async def cease(self) -> None:
        """Stop sending events."""
        self._over.set()
        if self._going is not None:
            await self._going

    async def close(self) -> None:
        """Stop sending events, and close the producer."""
        await self.cease()
        await self.producer.stop()

    async def _go_on(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(KafkaError):
                await self.step()
            await asyncio.sleep(PAUSE)

    async def reached(self, moment: int, seconds: float = SECONDS) -> None:
        """Wait until the marks have reached a moment."""
        async with asyncio.timeout(seconds):
            while self.now < moment:
                await asyncio.sleep(PAUSE)

    async def finished(self, seconds: float) -> None:
        """Stop sending events, and wait until all closed windows are asked and answered correctly."""
        await self.cease()
        if self.source.clock == "broker":
            await self.settled(int(time.time() * 1000), seconds)
        else:
            await self.mark(self.now)
            await self.settled(self.now, seconds)

    async def logs(self) -> dict[tuple[str, int], list[RecordLike]]:
        """Return all committed records of the topics that the checks need.

        Answers are read before the queries that they answer, and the ledger before the control events that follow from it.
        """
        topics = self.client.topics
        wide = [
            (topic, number) for topic in (topics.answers, topics.queries) for number in range(topics.partitions)
        ]
        granted = [(topics.control, number) for number in range(topics.partitions)]
        serial = [
            (topic, number) for topic in (topics.ledger, topics.trail) for number in range(LEDGER_PARTITIONS)
        ]
        live = [
            (topic, number)
            for topic in (topics.feed_state(self.source.source), self.source.topic)
            for number in range(PARTITIONS)
        ]
        return {place: await committed(self.settings, *place) for place in (*wide, *serial, *granted, *live)}

    async def asked(self) -> list[str]:
        """Return the ids of all questions that windows asked, each as often as it was asked."""
        logs, topics = await self.logs(), self.client.topics
        return [identifier for _, identifier in self._ids(logs, topics.queries)]

    async def violations(self, until: int) -> list[str]:
        """Return the violations in the windows that are closed when the clock is at ``until``."""
        topics, logs = self.client.topics, await self.logs()
        if self.source.has_periods:
            found = Periods(logs, topics, self.source).violations(PARTITIONS, until)
        else:
            found = violations_of_windows(logs, topics, self.source, self.specs, PARTITIONS, until)
        asked, answered = (Counter(self._ids(logs, topic)) for topic in (topics.queries, topics.answers))
        if asked != answered:
            found.append(f"{asked.total()} questions of windows and {answered.total()} answers")
        found += [f"{stream}: asked {one} {times} times" for (stream, one), times in asked.items() if times > 1]
        return found

    async def refunds(self) -> list[str]:
        """Return the violations in the refunds of its periods, if it has any; all charges must have reached the ledger."""
        return Periods(await self.logs(), self.client.topics, self.source).refunds()

    async def settled(self, until: int, seconds: float = SECONDS) -> None:
        """Wait until all windows that are closed at ``until`` are asked and answered correctly."""
        found: list[str] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = await self.violations(until)
            if not found:
                return
            await asyncio.sleep(0.5)
        logs = [service.log.read_text()[-1500:] for service in self.services if service.role == "feed"]
        raise AssertionError("\n".join([*found, *logs]))

    def _ids(self, logs: dict[tuple[str, int], list[RecordLike]], topic: str) -> list[tuple[str, str]]:
        """Return the stream and id of the questions or answers of windows in a topic, including those of periods' streams."""
        mine = {spec.stream.encode() for spec in self.specs}
        return [
            ((one.key or b"").decode(), json.loads(one.value or b"")["id"])
            for (name, _), log in logs.items()
            if name == topic
            for one in log
            if (one.key or b"").partition(b"@")[0] in mine
        ]


async def live_topic(
    settings: Settings,
    client: AsyncClient,
    clock: str,
    *,
    begins: int,
    stamped: bool = True,
    pace: Pace = SHORT,
    period: str | None = None,
    replicas: int = 1,
    seed: int = 1,
) -> Live:
    """Create a topic with its source and streams, while a budget service runs; the caller must close it.

    With a ``period``, its streams are models, and the first mark is written before any event.
    """
    topic = f"{settings.prefix}-visits"
    async with admin_client(settings) as admin:
        stamp = {"message.timestamp.type": "LogAppendTime" if stamped else "CreateTime"}
        configuration = {**stamp, **durability_settings(replicas)}
        await admin.create_topics([NewTopic(topic, PARTITIONS, replicas, topic_configs=configuration)])
    # After the loss of a node, a cluster shows no new records until it has removed the node; a single broker never waits.
    declared = {} if period is None else {"unit": "person-period", "period": period, "ahead": "7d"}
    source = live_source(topic, clock, "1s" if replicas == 1 else "15s", **declared)
    specs = standing_specs(pace.size, pace.every, begins, pace.horizon)
    await client.register(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the windows begin in the past, and no event is written yet
        for spec in specs:
            await client.open(spec, acknowledge=True)
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all")
    await producer.start()
    live = Live(settings, client, source, specs, producer, Visits(PARTITIONS, seed), pace=pace)
    if period is not None:
        await live.mark(live.now)
    return live
