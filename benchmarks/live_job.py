"""The job of the live topics' benchmark: people's events, and standing streams that count them by group."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.installation import FOLDER
from benchmarks.programs import service
from schemas import OpenStream, RegisterSource, StreamSpec, format_moment
from sotto import AsyncClient
from stream.kafka.topic_creation import create_topics
from stream.kafka.topic_layouts import feed_group
from stream.processing.topic_names import Topics, partition_of
from stream.settings import Settings

GROUPS: Final = 100
STREAMS: Final = 20
SOURCE: Final = "live"
DELAYS: Final = 1000
STEP: Final = 10
"""Stream s counts events of a delay of at least so much times s, or of the condition that it shares."""
BATCH_BYTES: Final = 128 * 1024
THRESHOLD: Final = 1e9
"""Far above every count: no stream may reach its cutoff during a run."""

_LATENESS_ROOM: Final = 0.25


@dataclass(frozen=True)
class Job:
    """What is counted: the same for Sotto and for its peers."""

    streams: int = STREAMS
    conditions: int = STREAMS
    groups: int = GROUPS
    window_ms: int = 1000
    lateness_ms: int = 2000
    contribution: int = 2

    @property
    def words(self) -> list[int]:
        """Return the job as arguments of the peers' programs."""
        return [
            self.streams,
            self.conditions,
            self.groups,
            self.window_ms,
            self.lateness_ms,
            self.contribution,
        ]


class People:
    """So many people and their events; equal arguments give equal events except for the times."""

    def __init__(self, count: int, partitions: int, groups: int = GROUPS, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._people = [
            (partition_of(key, partitions), key) for key in (b"user-%d" % number for number in range(count))
        ]
        self._groups = groups

    def event(self, at: int) -> tuple[int, bytes, bytes]:
        """Return partition, key and value of a random person's event at a time."""
        return self._of(int(self._chance.random() * len(self._people)), at)

    def once(self, at: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Return one event of each person, all at one time."""
        return (self._of(number, at) for number in range(len(self._people)))

    def _of(self, number: int, at: int) -> tuple[int, bytes, bytes]:
        partition, key = self._people[number]
        group, delay = int(self._chance.random() * self._groups), int(self._chance.random() * DELAYS)
        value = b'{"user":"%s","at":%d,"group":"group %d","delay":%d,"more":{"note":"nobody counts"}}'
        return partition, key, value % (key, at, group, delay)


def source(topic: str, job: Job) -> dict[str, Any]:
    """Return the live topic's definition, as an operator registers it."""
    return {
        "source": SOURCE,
        "kind": "events",
        "topic": topic,
        "neighbors": "add-remove",
        "epsilon": 1000.0,
        "person": "user",
        "time": "at",
        "attributes": {
            "group": [f"group {number}" for number in range(job.groups)],
            "delay": {"kind": "integers", "minimum": 0, "maximum": DELAYS - 1},
        },
        "contribution": job.contribution,
    }


def specs(job: Job, begins: int) -> list[StreamSpec]:
    """The standing streams."""
    return [
        StreamSpec.model_validate(
            {
                "stream": f"stream-{number}",
                "source": SOURCE,
                "epsilon": 1.0,
                "expected_queries": 1_000_000,
                "mechanism": {"kind": "above_threshold", "threshold": THRESHOLD, "cutoff": 10, "monotone": True},
                "standing": {
                    "where": f"delay >= {STEP * (number % job.conditions)}",
                    "by": ["group"],
                    "window": {"size": f"{job.window_ms}ms"},
                    "lateness": f"{job.lateness_ms}ms" if job.lateness_ms else "0s",
                    "begins": format_moment(begins),
                },
            },
            strict=False,
        )
        for number in range(job.streams)
    ]


@dataclass(frozen=True)
class Opened:
    """An installation whose standing streams are open; the feed is not running yet."""

    settings: Settings
    topics: Topics
    noise_key: str
    topic: str

    @property
    def group(self) -> str:
        """The consumer group of the topic's feed tasks."""
        return feed_group(self.settings, self.topics, SOURCE)


async def live_topic(settings: Settings, name: str) -> None:
    """A topic that the broker stamps."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        stamps = {"message.timestamp.type": "LogAppendTime"}
        made = await admin.create_topics([NewTopic(name, settings.partitions, 1, topic_configs=stamps)])
    finally:
        await admin.close()
    if failed := [error for _, error, *_ in made.topic_errors if error]:
        raise RuntimeError(f"cannot create topic {name}: error {failed[0]}")


async def open_streams(base: Settings, prefix: str, topic: str, job: Job, begins: int) -> Opened:
    """A new installation with all streams of the job open on a topic; the budget service runs for that long only."""
    settings = base.model_copy(update={"prefix": prefix})
    noise_key = secrets.token_hex(32)
    await create_topics(settings)
    with service("budget", settings, noise_key, FOLDER / "logs" / f"budget-{prefix}.log"):
        async with AsyncClient(settings) as client:
            request = {"request": "register", "source": source(topic, job)}
            await client.request(RegisterSource.model_validate(request, strict=False), timeout=120)
            openings = [OpenStream(request=f"open-{spec.stream}", stream=spec) for spec in specs(job, begins)]
            receipts = await client.requests(openings, timeout=240)
    if refused := [one for one in receipts if one.outcome != "opened"]:
        raise RuntimeError(f"{len(refused)} streams were refused: {refused[0].reason}")
    return Opened(settings, Topics(prefix, settings.partitions), noise_key, topic)


async def fill(settings: Settings, topic: str, people: People, count: int) -> None:
    """Send events of random people with the present time, as fast as the client can, so that the broker's timestamps follow their times."""
    await _send(settings, topic, (people.event(int(1000 * time.time())) for _ in range(count)))


async def fill_once(settings: Settings, topic: str, people: People, at: int) -> None:
    """Send one event of each person, all of one time."""
    await _send(settings, topic, people.once(at))


async def _send(settings: Settings, topic: str, events: Iterator[tuple[int, bytes, bytes]]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all", max_batch_size=BATCH_BYTES)
    await producer.start()
    try:
        batches: list[Any] = [producer.create_batch() for _ in range(settings.partitions)]
        since = [time.monotonic()] * settings.partitions
        sent: Sequence[Any] = []
        for partition, key, value in events:
            batch = batches[partition]
            full = batch.append(timestamp=None, key=key, value=value) is None
            if full or time.monotonic() - since[partition] > _LATENESS_ROOM:
                sent = [*sent, await producer.send_batch(batch, topic, partition=partition)]
                batch = batches[partition] = producer.create_batch()
                since[partition] = time.monotonic()
                if full:
                    batch.append(timestamp=None, key=key, value=value)
                if len(sent) > 2 * settings.partitions:
                    await asyncio.gather(*sent)
                    sent = []
        sent = [*sent, *[await producer.send_batch(one, topic, partition=p) for p, one in enumerate(batches)]]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()
