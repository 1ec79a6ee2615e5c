"""The common measure of all contenders: the committed answers that the broker shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.programs import Program, session_seconds
from stream.engine.restore import create_reader, read_to_end
from stream.settings import Settings

POLL_SECONDS = 0.02
QUIET_SECONDS = 2.0
"""Seconds without new records, after all answers have come, until a run counts as over."""

Ends = Mapping[TopicPartition, int]


class _Address(msgspec.Struct):
    id: str


_decode_address = msgspec.json.Decoder(_Address).decode


@dataclass(frozen=True)
class Timeline:
    """The committed end of a topic over time: (seconds since the program's start, records behind it) pairs.

    The first sample is that before the first commit. Transaction markers count as records here; they are one
    in some thousands.
    """

    samples: list[tuple[float, int]]
    cpu_seconds: float
    """Processor time of the program from the first commit seen to the last."""

    @property
    def steady_microseconds(self) -> float:
        """Processor time per answer between the first commit seen and the last."""
        return 1e6 * self.cpu_seconds / (self.samples[-1][1] - self.samples[1][1])

    @property
    def startup(self) -> float:
        """Seconds until the first answers were committed."""
        return self.samples[1][0]

    @property
    def total(self) -> float:
        """Seconds from the program's start until the last answers were committed."""
        return self.samples[-1][0]

    @property
    def rate(self) -> float:
        """Answers per second between the first commit seen and the last; what the first commit held does not count."""
        return _rate(self.samples[1], self.samples[-1])

    @property
    def late_rate(self) -> float:
        """The same over the second half of the answers, when just-in-time compilers have warmed up."""
        half = self.samples[-1][1] / 2
        return _rate(next(sample for sample in self.samples if sample[1] >= half), self.samples[-1])


def _rate(start: tuple[float, int], end: tuple[float, int]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0]) if end[0] > start[0] else float("nan")


class Watch:
    """Polls the last stable offsets of a topic, up to which a read_committed consumer may read."""

    def __init__(self, settings: Settings, topic: str, partitions: int) -> None:
        self._settings = settings
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._consumer: AIOKafkaConsumer = create_reader(settings)
        self.start: Ends = {}

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self.start = await self._consumer.end_offsets(self._places)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def follow(self, program: Program, wanted: int, limit: float, *, is_all: bool) -> Timeline:
        """Record how the topic grows until the wanted answers are there, or the limit in seconds is reached.

        ``is_all`` says that no more than these can come, so that the end must be a standstill.
        """
        samples = [(0.0, 0)]
        cpu: list[float] = []
        while True:
            ends = await self._consumer.end_offsets(self._places)
            now = time.monotonic() - program.started
            grown = sum(ends.values()) - sum(self.start.values())
            if grown > samples[-1][1]:
                samples.append((now, grown))
                if (
                    len(samples) == 2 or grown >= wanted
                ):  # seldom, because this looks at all processes of the machine
                    cpu.append(session_seconds(program.pid))
            quiet = now - samples[-1][0]
            if (grown >= wanted and (quiet > QUIET_SECONDS or not is_all)) or now > limit:
                break
            program.check()
            await asyncio.sleep(POLL_SECONDS)
        if len(samples) < 3:
            raise TimeoutError(f"fewer than two commits within {limit:.0f} s; see {program.log}")
        return Timeline(samples, cpu[-1] - cpu[0])

    async def count(self) -> tuple[int, int]:
        """Read what was committed since the start: how many answers, and how many different ids."""
        consumer = create_reader(self._settings)
        await consumer.start()
        answers = 0
        ids: set[str] = set()
        try:
            for place in self._places:
                async for records in read_to_end(consumer, place, 5000):
                    fresh = [record.value for record in records if record.offset >= self.start[place]]
                    answers += len(fresh)
                    ids.update(_decode_address(value).id for value in fresh)
        finally:
            await consumer.stop()
        return answers, len(ids)
