"""The course of a program that processes a topic: its committed events, its processor time and its memory, over time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from benchmarks.programs import Program
from stream.settings import Settings

POLL_SECONDS: Final = 0.1
LEAST_SECONDS: Final = 1.0
"""A shorter time cannot be measured by commits, because these are rare."""


@dataclass(frozen=True)
class Sample:
    """The committed events and the used resources of a program, ``seconds`` after its start."""

    seconds: float
    events: int
    cpu_seconds: float
    rss_bytes: int


@dataclass(frozen=True)
class Course:
    """All samples of one program, the first before its first commit."""

    samples: Sequence[Sample]

    @property
    def startup(self) -> float:
        """Seconds until the first events were committed."""
        return next(one.seconds for one in self.samples if one.events)

    @property
    def _warm(self) -> tuple[Sample, Sample]:
        last = next(one for one in self.samples if one.events == self.samples[-1].events)
        return next(one for one in self.samples if one.events >= last.events / 2), last

    @property
    def late_rate(self) -> float:
        """Events per second over the second half of the events; no number if that took too short a time to tell."""
        half, last = self._warm
        if last.seconds - half.seconds < LEAST_SECONDS:
            return float("nan")
        return (last.events - half.events) / (last.seconds - half.seconds)

    @property
    def late_cpu(self) -> float:
        """Processor seconds per event over the second half of the events; no number if that took too short a time to tell."""
        half, last = self._warm
        if last.seconds - half.seconds < LEAST_SECONDS:
            return float("nan")
        return (last.cpu_seconds - half.cpu_seconds) / (last.events - half.events)

    @property
    def half_rss(self) -> int:
        """Memory when half of the events were committed."""
        return self._warm[0].rss_bytes

    @property
    def most_rss(self) -> int:
        """The most memory seen."""
        return max(one.rss_bytes for one in self.samples)


def used(pid: int) -> tuple[float, int]:
    """Processor seconds and resident bytes of a process; zeros where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


class Positions:
    """Polls the offsets that a consumer group has committed; with exactly-once processing, these events are completely processed."""

    def __init__(self, settings: Settings, group: str, topic: str) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
        self._group = group
        self._topic = topic

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()

    async def committed(self) -> int:
        """Events of the topic that are done; of a group that also has topics of its own, as many as have gone through these."""
        try:
            found = await self._admin.list_consumer_group_offsets(self._group)
        except KafkaError:
            return 0
        return done({place: one.offset for place, one in found.items()}, self._topic)

    async def follow(self, program: Program, wanted: int, limit: float) -> Course:
        """Sample until so many events are committed, or the limit in seconds is reached."""
        samples = [Sample(0.0, 0, 0.0, 0)]
        while samples[-1].events < wanted and samples[-1].seconds < limit:
            program.check()
            events = await self.committed()
            samples.append(Sample(time.monotonic() - program.started, events, *used(program.pid)))
            await asyncio.sleep(POLL_SECONDS)
        if not samples[-1].events:
            raise TimeoutError(f"nothing was committed within {limit:.0f} s; see {program.log}")
        return Course(samples)


def done(offsets: dict[TopicPartition, int], topic: str) -> int:
    """The least number of events that were committed of the topic, and of any other that the group reads."""
    by_topic: dict[str, int] = {topic: 0}
    for place, offset in offsets.items():
        by_topic[place.topic] = by_topic.get(place.topic, 0) + max(0, offset)
    return min(by_topic.values())
