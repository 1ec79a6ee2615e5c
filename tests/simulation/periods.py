"""A source with periods on the broker in memory, with all services. The seed decides the marks; at the end, all periods are computed again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, wraps

from schemas import CloseStream, OpenStream, StreamSpec, format_moment, moment_ms, span_ms
from schemas.answers import HEADER_PREFIX
from schemas.windows import MARK_HEADER
from sotto import Driver
from stream.processing.dead_letters import UnreadableValue
from stream.processing.topic_names import Topics, partition_of
from stream.worker.fair_shares import NO_LIMITS
from tests.builders import KEY
from tests.chaos.periods import TO_COME, Periods
from tests.chaos.windows import Visits, live_source, standing_specs
from tests.simulation.cast import PARTITIONS, SETTINGS
from tests.simulation.clock import VirtualLoop
from tests.simulation.events import Upset, trouble
from tests.simulation.faults import Process
from tests.simulation.feeds import LIVE_PARTITIONS, Feeds
from tests.simulation.schedule import Report, played
from tests.simulation.world import PATIENCE, Beginning, World

SECONDS = 20
"""Seconds in which people send events."""
MINUTE = 60_000
HOUR = 60 * MINUTE
BEGINS = moment_ms("2026-01-01T00:00:00Z")
BACK = 25 * MINUTE
"""Most milliseconds by which an event is late: more than every stream's lateness, and enough to fall into an earlier period."""
HORIZON = 4
"""The windows of the running count; a period has six windows."""
STRIDES = (0, 1, 5, 12)
"""Minutes by which the topic's time may advance in one step."""
TOPIC = "hospital.visits"
SOURCE = live_source(TOPIC, "marks", unit="person-period", period="1h", ahead="7d")
LATER = "visits-sum"
"""The stream that is opened in the middle of the schedule."""


@cache
def models(begins: int = BEGINS) -> dict[str, StreamSpec]:
    """Return models with windows of twenty minutes and of ten, by name."""
    return {spec.stream: spec for spec in standing_specs("20m", "10m", begins, HORIZON)}


@cache
def begun() -> Beginning:
    """Return an installation with the source and all of its models except one."""
    driver = Driver(KEY, partitions=PARTITIONS)
    driver.register(SOURCE)
    streams = [spec for name, spec in models().items() if name != LATER]
    for spec in streams:
        driver.open(spec, acknowledge=True)
    topics = driver.topics
    written = (
        record._replace(topic=record.topic.replace(topics.prefix, SETTINGS.prefix))
        for topic in (topics.requests, topics.control, topics.ledger, topics.trail)
        for record in driver.records(topic)
    )
    return Beginning(streams, tuple(written), NO_LIMITS)


class PeriodWorld(World):
    """The world of one schedule. Its events lie in about six periods, and marks reach the partitions at different times."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        topics = Topics(SETTINGS.prefix, PARTITIONS)
        beside = dict.fromkeys((topics.partials, topics.merges), PARTITIONS)
        beside |= dict.fromkeys((TOPIC, topics.feed_state(SOURCE.source)), LIVE_PARTITIONS)
        super().__init__(loop, seed, begun(), beside)
        self.feeds = Feeds(loop, self.broker, topics, self.faults, self.branch())
        self.visits = Visits(LIVE_PARTITIONS, seed)
        self.ended: set[str] = set()
        self.now = BEGINS

    @property
    def processes(self) -> list[Process]:
        return [*super().processes, *(one.process for one in self.feeds.running)]

    @property
    def changelogs(self) -> set[str]:
        # The checker needs the records of retired periods, which compaction would remove.
        kept = {self.topics.ledger} if self.retire_after_ms else set()
        return super().changelogs - kept | {self.topics.merges, self.topics.feed_state(SOURCE.source)}

    def mark(self, *partitions: int) -> None:
        """Write a mark with the present time to these partitions of the topic, or to all."""
        headers = ((MARK_HEADER, format_moment(self.now).encode()),)
        for number in partitions or range(LIVE_PARTITIONS):
            self.broker.append(TOPIC, number, b"", b"", headers)

    async def people(self) -> None:
        """Write the first mark, then events and marks; sometimes a period has no event, or an unreadable batch comes."""
        chance = self.branch()
        self.mark()
        while self.loop.time() < SECONDS:
            await asyncio.sleep(chance.choice((0.1, 0.5, 2.0)) * chance.random())
            for _ in range(chance.choice((0, 1, 5, 20))):
                partition, key, value = self.visits.next(self.now, BACK)
                for _ in range(1 + (chance.random() < 0.03)):
                    self.broker.append(TOPIC, partition, key, value)
            if chance.random() < 0.01:
                self.append_unreadable(TOPIC, chance.randrange(LIVE_PARTITIONS))
                self.injected["unreadable batch of events"] += 1
            if chance.random() < 0.02:
                self.now += HOUR
                self.injected["silent period"] += 1
            self.now += chance.choice(STRIDES) * MINUTE
            for number in range(LIVE_PARTITIONS):
                if chance.random() < 0.6:
                    self.mark(number)
        self.mark()

    async def opening(self) -> None:
        """Open a model in the middle, which may begin within a period or in the past, and close another one."""
        chance = self.branch()
        await asyncio.sleep(chance.uniform(0.5, SECONDS / 2))
        begins = self.now - self.now % (10 * MINUTE) + chance.randrange(18) * 10 * MINUTE
        for _ in range(chance.randint(1, 2)):
            self.request(OpenStream(request="later", stream=models(begins)[LATER]))
        self.injected["model opened in the middle"] += 1
        await asyncio.sleep(chance.uniform(0.0, SECONDS / 3))
        if chance.random() < 0.5:
            name = chance.choice([one.stream for one in self.streams])
            self.ended.add(name)
            self.request(CloseStream(request="stop", source=SOURCE.source, stream=name))
            self.injected["model closed"] += 1

    async def settle(self) -> list[str]:
        """Wait until all due periods and windows are begun, asked, answered, charged and closed."""
        deadline = self.loop.time() + PATIENCE
        found = ["never looked"]
        while self.loop.time() < deadline:
            if not any(log.open for log in self.broker.logs.values()):
                self.asked = list(self._asked())
                found = self._periods().violations(LIVE_PARTITIONS, self.now)
                if not all(any(word in one for word in TO_COME) for one in found):
                    return found
                if not found and self._is_settled():
                    return []
            await asyncio.sleep(1.7)
        return found or ["not settled"]

    def examine(self, *, same_version: bool = True) -> list[str]:
        """Return all violations."""
        return [
            *super().examine(same_version=same_version),
            *self._periods().refunds(),
            *self._letters(),
            *self._out_of_order(),
        ]

    def _periods(self) -> Periods:
        return Periods(self.logs(), self.topics, SOURCE, self.ended)

    def _asked(self) -> Iterator[str]:
        """Yield the ids of all questions, in the form that answers have."""
        for number in range(PARTITIONS):
            for record in self.broker.committed(self.topics.queries, number):
                if not isinstance(record.value, UnreadableValue):
                    yield json.loads(record.value or b"")["id"]

    def _out_of_order(self) -> list[str]:
        """Return the partitions whose windows were not asked in order of closing time and name; the later model is left out."""
        found: list[str] = []
        for number in range(PARTITIONS):
            asked: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for record in self.broker.committed(self.topics.queries, number):
                model = (record.key or b"").decode().partition("@")[0]
                if isinstance(record.value, UnreadableValue) or model == LATER or model not in models():
                    continue
                question, standing = json.loads(record.value or b""), models()[model].standing
                assert standing is not None
                closes = moment_ms(question["window"]["end"]) + span_ms(standing.lateness)
                asked[partition_of(model.encode(), PARTITIONS)].append((closes, model))
            found += [
                f"{home}: windows out of their order" for home, order in asked.items() if order != sorted(order)
            ]
        return found

    def _letters(self) -> list[str]:
        """Return a violation unless there are as many dead letters as wrong events; events dated before every window are left out."""
        letters = [
            dict(record.headers)
            for number in range(PARTITIONS)
            for record in self.broker.committed(self.topics.rejected, number)
        ]
        found = sum(
            one.get(f"{HEADER_PREFIX}topic") == TOPIC.encode()
            and one[f"{HEADER_PREFIX}exception.class.name"] != b"before"
            for one in letters
        )
        wanted = sum(
            isinstance(record.value, UnreadableValue) or self.visits.is_wrong(record.value or b"", number)
            for number in range(LIVE_PARTITIONS)
            for record in self.broker.committed(TOPIC, number)
        )
        return [] if found == wanted else [f"{found} dead letters of {wanted} wrong events"]


def _of_feeds(upset: Callable[[random.Random], bool]) -> Upset:
    """Make an upset of the world from an upset of its feeds."""

    @wraps(upset)
    def upset_feeds(world: World, chance: random.Random) -> bool:
        del world
        return upset(chance)

    return upset_feeds


async def _play(world: PeriodWorld) -> list[str]:
    world.start("budget")
    for _ in range(world.chance.randint(1, 2)):
        world.start("worker")
        world.feeds.start()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(
            world.people(), world.opening(), trouble(world, *map(_of_feeds, world.feeds.upsets), seconds=5.0)
        )
    world.faults.cease()
    return await world.settle() or world.examine()


def play(seed: int) -> Report:
    """Run one schedule; equal seeds give equal runs."""
    return played("periods", seed, PeriodWorld, _play, lambda world: {"questions": len(world.asked)})
