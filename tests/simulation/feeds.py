"""The feed processes of a world, which are restarted like a supervisor's, and their faults."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from schemas import EventsSource
from stream.engine.health import ServiceHealth
from stream.engine.supervision import MembershipLostError
from stream.kafka.topic_layouts import feed_group, merging_group
from stream.processing.topic_names import Topics
from stream.services.feed_service import FeedService
from stream.settings import Settings
from tests.simulation.broker import Broker
from tests.simulation.cast import SETTINGS
from tests.simulation.clients import clients_of
from tests.simulation.clock import EPOCH, VirtualLoop
from tests.simulation.faults import Faults, Process

LIVE_PARTITIONS = 3
"""A live topic's partitions; deliberately not the installation's number, because the topic belongs to somebody else."""
MOST = 3
"""Most feeds that run at a time, apart from feeds that use another feed's name."""


@dataclass(eq=False)
class RunningFeed:
    """A running feed, as its supervisor sees it."""

    process: Process
    service: FeedService
    task: asyncio.Task[None]
    instance: str
    leaving: bool = False

    def end(self) -> None:
        """End it at once, in the middle of its work."""
        for engine in self.service._engines.values():
            for task in engine._tasks.values():
                task.cancel()
        for task in (self.task, *self.service._engine_tasks.values()):
            task.cancel()


class Feeds:
    """All feeds of a broker; an upset returns whether it was possible."""

    def __init__(
        self,
        loop: VirtualLoop,
        broker: Broker,
        topics: Topics,
        faults: Faults,
        chance: random.Random,
    ) -> None:
        self.running: list[RunningFeed] = []
        self.injected: Counter[str] = faults.injected
        self._loop = loop
        self._broker = broker
        self._topics = topics
        self._faults = faults
        self._chance = chance
        self._names = 0

    @property
    def upsets(self) -> tuple[Callable[[random.Random], bool], ...]:
        """The upsets that concern only feeds."""
        return (self.join, self.twin, self.leave)

    def start(self, instance: str = "") -> None:
        """Start a feed in a separate process, with the name of an earlier process or with a new one."""
        self._names += 1
        instance = instance or f"name-{self._names}"
        process = Process(f"feed-{self._names}", self._loop, self._branch(), self._faults)

        async def find(settings: Settings, topics: Topics, source: EventsSource) -> int:
            del settings, topics, source
            return await process.call(lambda: LIVE_PARTITIONS)

        service = FeedService(
            SETTINGS.model_copy(update={"instance": instance}),
            self._topics,
            ServiceHealth("feed"),
            clients_of(process, self._broker, self._branch()),
            find=find,
            clock=lambda: EPOCH + self._loop.time(),
            process=process.name,
        )
        running = RunningFeed(process, service, self._loop.create_task(service.run()), instance)
        process.on_death = running.end
        running.task.add_done_callback(lambda _: self._ended(running))
        self.running.append(running)

    def _branch(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))

    def _ended(self, running: RunningFeed) -> None:
        """Restart a feed that was not told to stop, after a while and with its name, unless another process has the name."""
        self.running.remove(running)
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            self.injected["service ended by itself"] += 1
            if isinstance(error, MembershipLostError) and "under the name" in str(error):
                self.injected["name lost"] += 1
                # Each of two processes may lose the name in one of its two groups, and then both end.
                if any(one.instance == running.instance for one in self.running):
                    return
        if not running.leaving:
            self._loop.call_later(self._chance.uniform(0.1, 3.0), self.start, running.instance)

    def join(self, chance: random.Random) -> bool:
        """Start one more feed, if there are fewer than ``MOST``."""
        del chance
        if len(self.running) < MOST:
            self.start()
            return True
        return False

    def twin(self, chance: random.Random) -> bool:
        """Start a feed with the name of a running one."""
        staying = [one for one in self.running if not one.leaving]
        if staying:
            self.start(chance.choice(staying).instance)
        return bool(staying)

    def leave(self, chance: random.Random) -> bool:
        """Tell a feed to stop, unless all feeds have one name; of two feeds with one name, the earlier ends by itself."""
        staying = [one for one in self.running if not one.leaving]
        if len({one.instance for one in staying}) < 2:
            return False
        leaving = chance.choice(staying)
        leaving.leaving = True
        leaving.service.stop()
        return True

    def expire(self, source: str) -> None:
        """Make the broker forget the feeds' committed offsets, of a source and of merging."""
        for name in (merging_group(SETTINGS), feed_group(SETTINGS, self._topics, source)):
            self._broker.group(name).offsets.clear()
