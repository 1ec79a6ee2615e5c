"""The feed service: an engine for each live topic that a standing stream asks of, and one that merges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiokafka.errors import KafkaError

from schemas import EventsSource
from stream.kafka.clients import KAFKA, Clients
from stream.kafka.differences import TopicsError
from stream.kafka.engine import Engine
from stream.kafka.feed_figures import FeedFigures
from stream.kafka.health import Health
from stream.kafka.hearing import Hearing
from stream.kafka.live_topics import another_source, find_live_topic
from stream.kafka.names import feed_groups, merging_group
from stream.kafka.roles import Role
from stream.log import get_logger
from stream.processors.feeds.definitions import Definitions
from stream.processors.feeds.merging import MergeProcessor
from stream.processors.feeds.processor import FeedProcessor
from stream.processors.topics import Topics
from stream.settings import Settings

RETRY: Final = 5.0
"""Seconds before a live topic that was not there is looked for again."""

PATIENCE: Final = 0.25
"""Seconds that counts may wait for their transaction while no window closes."""

MERGING: Final = ""
"""Where merging stands among the sources: none of them has an empty name."""

log = get_logger("feed")


FindTopic = Callable[[Settings, Topics, str, str], Awaitable[int]]


def feed_group(settings: Settings, topics: Topics, source: str) -> str:
    """The consumer group of the tasks of one live topic."""
    return f"{feed_groups(settings)}{topics.feed_state(source).removeprefix(topics.feed_states())}"


class FeedService:
    """Runs until stopped or until one of its engines ends by itself; live topics are taken up as streams on them are opened."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        health: Health,
        clients: Clients = KAFKA,
        *,
        find: FindTopic = find_live_topic,
        clock: Callable[[], float] = time.time,
        process: str = "",
    ) -> None:
        """Take what finds a live topic and makes its changelog, the clock, and the process's name if it has one."""
        self.definitions = Definitions()
        self.role = Role(
            "feed",
            merging_group(settings),
            topics.status,
            lambda number: MergeProcessor(topics, number, self.definitions),
            patience=PATIENCE,
            process=process,
        )
        self._find = find
        self._clock = clock
        self.on_failure: Callable[[], None] = lambda: None
        """Called when ``run`` is about to raise."""
        self._settings = settings
        self._topics = topics
        self._health = health
        self._clients = clients
        self._hearing = Hearing(settings, topics, self.definitions, clients)
        self._figures = FeedFigures(health.metrics.registry)
        self._engines: dict[str, Engine] = {}
        self._served: dict[str, EventsSource] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._retired: set[str] = set()
        """Sources whose engines end because their standing streams are all closed."""
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the batches in hand, leave all groups, and return from ``run``."""
        self._stopping.set()
        for engine in self._engines.values():
            engine.stop()

    async def run(self) -> None:
        """Merge, and count every live topic that is asked of.

        Raises:
            MembershipLostError, StalledError: as engines do.
            Exception: whatever ends the following of control, without which no stream would be begun or closed.
        """
        self._hearing.on_news = self._news.set
        hearing = asyncio.create_task(self._hearing.run())
        beside = [hearing, asyncio.create_task(self._show())]
        try:
            self._health.part("control").tell("has not been read yet")
            await self._first(self._hearing.heard.wait(), hearing)
            self._health.drop("control")
            if not self._stopping.is_set():
                self._serving[MERGING] = asyncio.create_task(self._merge())
                await self._follow(hearing)
            await asyncio.gather(*self._serving.values())
        finally:
            for task in (*beside, *self._serving.values()):
                task.cancel()
            await asyncio.gather(*beside, *self._serving.values(), return_exceptions=True)

    async def _follow(self, hearing: asyncio.Task[None]) -> None:
        """Begin with each source once a stream asks of it, until told to stop; raise what ends an engine, or the hearing."""
        while not self._stopping.is_set():
            self._news.clear()
            sources = self.definitions.sources()
            for name, source in sources.items():
                if name not in self._serving:
                    self._serving[name] = asyncio.create_task(self._serve(source), name=f"feed-{name}")
            for name in self._serving.keys() - sources.keys() - {MERGING}:
                if all(one.kind == "closed" for one in self.definitions.of(name)):
                    self._retire(name)
            await self._first(self._news.wait(), hearing, *self._serving.values())
            for name in [one for one in self._retired if self._has_left(one)]:
                self._forget(name)
            for task in (hearing, *self._serving.values()):
                if task.done() and not self._stopping.is_set():
                    self.on_failure()
                    task.result()
                    raise RuntimeError("an engine ended without an order to stop")

    def _retire(self, name: str) -> None:
        """Stop reading a live topic whose standing streams are all closed; a later stream starts again where it was left."""
        self._retired.add(name)
        if (engine := self._engines.get(name)) is not None:
            engine.stop()

    def _has_left(self, name: str) -> bool:
        task = self._serving[name]
        return task.done() and not task.cancelled() and task.exception() is None

    def _forget(self, name: str) -> None:
        self._retired.discard(name)
        del self._serving[name]
        self._engines.pop(name, None)
        if self._served.pop(name, None) is not None:
            self._figures.drop(name)
        self._health.drop(f"source {name}")
        log.info("source left: its standing streams are closed", source=name)

    async def _merge(self) -> None:
        topics = self._topics
        await self._run(
            MERGING,
            Engine(
                self.role,
                self._settings,
                [topics.partials, topics.control],
                self._clients,
                partitions=topics.partitions,
                health=self._health.part("merging"),
            ),
        )

    async def _serve(self, source: EventsSource) -> None:
        """Count one live topic, as soon as it is there."""
        health = self._health.part(f"source {source.source}")
        while not self._stopping.is_set() and source.source not in self._retired:
            try:
                partitions = await self._find(self._settings, self._topics, source.source, source.topic)
            except (TopicsError, KafkaError, OSError) as error:
                reason = str(error) if isinstance(error, TopicsError) else type(error).__name__
                log.warning("live topic not served", source=source.source, reason=reason)
                health.tell(reason)
                await self._first(asyncio.sleep(RETRY))
                continue
            engine = Engine(
                self._role_of(source, partitions),
                self._settings,
                [source.topic],
                self._clients,
                partitions=partitions,
                remedy=another_source(source.source),
                health=health,
                clock=self._clock,
            )
            log.info("serving", source=source.source, topic=source.topic, partitions=partitions)
            self._served[source.source] = source
            await self._run(source.source, engine)
            return

    def _role_of(self, source: EventsSource, partitions: int) -> Role:
        topics, definitions = self._topics, self.definitions

        def make(number: int) -> FeedProcessor:
            return FeedProcessor(topics, source, number, partitions, definitions)

        group = feed_group(self._settings, topics, source.source)
        return Role(
            "feed",
            group,
            topics.status,
            make,
            reports=False,
            patience=PATIENCE,
            labels={"source": source.source},
            process=self.role.process,
        )

    async def _run(self, name: str, engine: Engine) -> None:
        self._engines[name] = engine
        engine.on_failure = self.on_failure
        if self._stopping.is_set() or name in self._retired:
            engine.stop()
        await engine.run()

    async def _first(self, *awaited: object) -> None:
        """Wait for the first of these, or the order to stop."""
        given = [asyncio.ensure_future(one) for one in awaited]  # type: ignore[call-overload]
        mine = [task for task, one in zip(given, awaited, strict=True) if task is not one]
        mine.append(asyncio.ensure_future(self._stopping.wait()))
        try:
            await asyncio.wait({*given, *mine}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)

    async def _show(self) -> None:
        """Take figures once a second."""
        while True:
            self._figures.look(self._engines, self._served, self._clock())
            await asyncio.sleep(1.0)
