"""The feed service: one engine for each live topic, and one for merging."""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Counts
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas import EventsSource
from stream.diagnostics import get_logger
from stream.engine.group_engine import Engine
from stream.engine.health import ServiceHealth
from stream.engine.restore import create_reader, select_readable
from stream.engine.session import EngineRole
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.kafka.topic_creation import find_live_topic
from stream.kafka.topic_layouts import TopicsError, changed_topic_remedy, feed_group, merging_group
from stream.processing.dead_letters import refused_share, share_range
from stream.processing.topic_names import Topics
from stream.settings import Settings

CONTROL_WAIT_MS: Final = 200
CONTROL_RETRY_SECONDS: Final = 1.0
"""Seconds before the topic ``control`` is read again after an error."""

log = get_logger("feed")


class ControlFollower:
    """Applies the topic ``control`` to definitions; ``caught_up`` is set when it first reaches the end."""

    def __init__(
        self, settings: Settings, topics: Topics, definitions: FeedDefinitions, clients: Clients = KAFKA
    ) -> None:
        self.caught_up = asyncio.Event()
        self.on_update: Callable[[], None] = lambda: None
        """Called after each update of the definitions."""
        self._settings = settings
        self._places = [TopicPartition(topics.control, number) for number in range(topics.partitions)]
        self._definitions = definitions
        self._clients = clients

    async def run(self) -> None:
        """Follow ``control`` until cancelled; after an error, read it again from the beginning."""
        while True:
            try:
                async with create_reader(
                    self._settings, self._clients, fetch_max_wait_ms=CONTROL_WAIT_MS
                ) as consumer:
                    await self._follow_control(consumer)
            except (KafkaError, OSError) as error:
                log.warning("cannot follow control", error=type(error).__name__)
            await asyncio.sleep(CONTROL_RETRY_SECONDS)

    async def _follow_control(self, consumer: Consumer) -> None:
        consumer.assign(self._places)
        await consumer.seek_to_beginning(*self._places)
        ends = await consumer.end_offsets(self._places)
        is_at_end = False
        while True:
            fetched = await consumer.getmany(
                *self._places, timeout_ms=CONTROL_WAIT_MS, max_records=self._settings.batch_events
            )
            for records in fetched.values():
                await asyncio.to_thread(self._definitions.apply_control, select_readable(records))
            if not is_at_end and all([await consumer.position(place) >= ends[place] for place in self._places]):
                is_at_end = True
                # After an error, topics are read from their start, and compaction may have removed deletions.
                self._definitions.drop_retired()
                self.caught_up.set()
            if fetched and self.caught_up.is_set():
                self.on_update()


DEAD_LETTER_CODES: Final = (
    *("ahead", "before", "malformed", "mark", "number", "oversize", "partition", "person", "time"),
    *("date", "unknown category", "unreadable"),
)
"""Reasons for which events of live topics become dead letters."""

WARNING_SECONDS: Final = 60.0
"""Seconds between two warnings about refused or late events of one source, and the period of the late share."""


class FeedMetrics:
    """Metrics of all live topics that a process counts; ``update_metrics`` updates them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            "counted": Counter("sotto_feed_counted", "Counted events, once for each window.", registry=registry),
            "late": Counter("sotto_feed_late", "Late events, once for each window.", registry=registry),
            "left_out": Counter(
                "sotto_feed_left_out",
                "Events beyond the contribution bound, once for each window.",
                registry=registry,
            ),
        }
        self._rejected = Counter(
            "sotto_feed_dead_letters", "Dead letters by the reason's code.", ["code"], registry=registry
        )
        for code in DEAD_LETTER_CODES:  # Prometheus detects no increase in a time series that begins at 1
            self._rejected.labels(code)
        self._windows = Gauge("sotto_feed_open_windows", "Open windows with counts.", registry=registry)
        self._people = Gauge(
            "sotto_feed_people", "People counted in open windows, once for each window.", registry=registry
        )
        gauge_by_source = partial(Gauge, labelnames=["source"], registry=registry)
        self._lag_events = gauge_by_source(
            "sotto_feed_lag_events",
            "Unread events of a live topic, in the partitions of this process.",
        )
        self._lag_seconds = gauge_by_source(
            "sotto_feed_lag_seconds",
            "Delay of the slowest partition's clock: behind the time, or with marks behind the fastest clock.",
        )
        self._refused = gauge_by_source(
            "sotto_feed_refused_ratio",
            "Lower end of the refused share of a live topic's latest events: 0, 0.001, 0.01, 0.1, 0.5 or 0.9.",
        )
        self._warnings: dict[str, tuple[float, int]] = {}  # time and total of the latest warning of refused events
        self._late: dict[str, tuple[float, int, int]] = {}  # a minute's start, late and all events until then
        self._previous_counts: WeakKeyDictionary[FeedProcessor, Counts[str]] = WeakKeyDictionary()

    def update_metrics(
        self, engines: Mapping[str, Engine], sources: Mapping[str, EventsSource], now: float
    ) -> None:
        """Update the metrics from the engines by source name; ``now`` is in seconds since 1970."""
        windows = people = 0
        for name, engine in engines.items():
            processors = [one for one in engine.processors() if isinstance(one, FeedProcessor)]
            for processor in processors:
                self._add_counts(processor)
                windows += processor.open_windows
                people += processor.people
            if (source := sources.get(name)) is not None:
                self._lag_events.labels(name).set(engine.count_unread())
                self._lag_seconds.labels(name).set(seconds_behind(source, processors, now))
                self._report_losses(name, processors, now)
        self._windows.set(windows)
        self._people.set(people)

    def drop(self, source: str) -> None:
        """Remove the gauges of a source that this process does not count any more."""
        self._warnings.pop(source, None)
        self._late.pop(source, None)
        for gauge in (self._lag_events, self._lag_seconds, self._refused):
            with suppress(KeyError):  # it was never shown
                gauge.remove(source)

    def _report_losses(self, source: str, processors: Sequence[FeedProcessor], now: float) -> None:
        """Update the refused share, and log it and the late share of each minute."""
        refused = refused_share([one.latest_refused for one in processors])
        self._refused.labels(source).set(0.0 if refused is None else refused.at_least)
        total = sum(one.rejected.total() for one in processors)
        warned_at, known = self._warnings.get(source, (-WARNING_SECONDS, 0))
        if refused is not None and total != known and now - warned_at >= WARNING_SECONDS:
            self._warnings[source] = now, total
            facts = {"share": refused.share, "latest_events": refused.events, "reason": refused.reason}
            log.warning("events refused", source=source, **facts)
        late = sum(one.event_totals.late for one in processors)
        events = late + sum(one.event_totals.counted for one in processors)
        since, late_before, events_before = self._late.setdefault(source, (now, 0, 0))
        if now - since >= WARNING_SECONDS:
            self._late[source] = now, late, events
            if events - events_before >= late - late_before > 0:  # totals leave with their partitions
                share = share_range(late - late_before, events - events_before)[1]
                reason = "they arrived after their windows had closed; open a stream with more lateness"
                log.warning("events late", source=source, share=share, seconds=round(now - since), reason=reason)

    def _add_counts(self, processor: FeedProcessor) -> None:
        now = Counts({name: getattr(processor.event_totals, name) for name in self._counters})
        now.update({f"code {code}": count for code, count in processor.rejected.items()})
        before = self._previous_counts.get(processor, Counts())
        self._previous_counts[processor] = now
        for name, count in (now - before).items():
            if name in self._counters:
                self._counters[name].inc(count)
            else:
                self._rejected.labels(name.removeprefix("code ")).inc(count)


def seconds_behind(source: EventsSource, processors: Sequence[FeedProcessor], now: float) -> float:
    """Return the seconds by which the slowest partition's clock is behind; without events, about the source's ``idle``.

    A partition without events has no clock yet. It counts as behind after the fastest clock has passed the
    end of that partition's first window.
    """
    moments = [one.moment for one in processors if one.moment >= 0]
    fastest = now * 1000 if source.clock == "broker" else max(moments, default=0)
    unstarted_closes = [close for one in processors if one.moment < 0 and (close := one.next_close) is not None]
    return max(0.0, fastest - min([*moments, *unstarted_closes], default=fastest)) / 1000


LIVE_TOPIC_RETRY_SECONDS: Final = 5.0
"""Seconds before a missing live topic is looked up again."""

CHANGELOG_WAIT_SECONDS: Final = 0.25
"""Seconds that counts may wait to be committed while no window closes."""

MERGING_ENGINE: Final = ""
"""The name of the merging engine; each other engine has the name of its source, which is not empty."""


class FeedService:
    """Runs an engine for merging and one for each live topic with open standing streams."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        health: ServiceHealth,
        clients: Clients = KAFKA,
        *,
        find: Callable[[Settings, Topics, EventsSource], Awaitable[int]] = find_live_topic,
        clock: Callable[[], float] = time.time,
        process: str = "",
    ) -> None:
        """``find`` finds a live topic and creates its changelog; ``process`` is the name of this process as a member of its groups."""
        self.definitions = FeedDefinitions()
        self.role = EngineRole(
            "feed",
            merging_group(settings),
            topics.status,
            lambda number: MergeProcessor(topics, number, self.definitions),
            max_write_delay=CHANGELOG_WAIT_SECONDS,
            process=process,
        )
        self._find_topic = find
        self._clock = clock
        self.on_failure: Callable[[], None] = lambda: None
        """Called before ``run`` raises."""
        self._settings = settings
        self._topics = topics
        self._health = health
        self._clients = clients
        self._follower = ControlFollower(settings, topics, self.definitions, clients)
        self._feed_metrics = FeedMetrics(health.metrics.registry)
        self._engines: dict[str, Engine] = {}
        self._served_sources: dict[str, EventsSource] = {}
        self._engine_tasks: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[str] = set()
        """Sources whose engines stop because all their standing streams are closed."""
        self._definitions_changed = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the current batches, leave all groups and return from ``run``."""
        self._stopping.set()
        for engine in self._engines.values():
            engine.stop()

    async def run(self) -> None:
        """Merge partials, and count every live topic with standing streams, until stopped.

        Raises:
            MembershipLostError, StalledError: an engine raised it.
            Exception: the control follower failed, so that no further stream would begin or end.
        """
        self._follower.on_update = self._definitions_changed.set
        following = asyncio.create_task(self._follower.run())
        background = [following, asyncio.create_task(self._update_metrics())]
        try:
            self._health.engine_health("control").set_not_ready_reason("has not been read yet")
            await self._wait_for_first(self._follower.caught_up.wait(), following)
            self._health.remove_engine("control")
            if not self._stopping.is_set():
                self._engine_tasks[MERGING_ENGINE] = asyncio.create_task(self._run_merging_engine())
                await self._manage_engines(following)
            await asyncio.gather(*self._engine_tasks.values())
        finally:
            for task in (*background, *self._engine_tasks.values()):
                task.cancel()
            await asyncio.gather(*background, *self._engine_tasks.values(), return_exceptions=True)

    async def _manage_engines(self, following: asyncio.Task[None]) -> None:
        """Start and retire engines until stopped; raise errors of engines and of the follower."""
        while not self._stopping.is_set():
            self._definitions_changed.clear()
            sources = self.definitions.sources()
            for name, source in sources.items():
                if name not in self._engine_tasks:
                    self._engine_tasks[name] = asyncio.create_task(
                        self._run_counting_engine(source), name=f"feed-{name}"
                    )
            for name in self._engine_tasks.keys() - sources.keys() - {MERGING_ENGINE}:
                if all(one.kind == "closed" for one in self.definitions.streams_of(name)):
                    self._retire(name)
            await self._wait_for_first(self._definitions_changed.wait(), following, *self._engine_tasks.values())
            for name in list(self._retiring):
                task = self._engine_tasks[name]
                if task.done() and not task.cancelled() and task.exception() is None:
                    self._forget_source(name)
            for task in (following, *self._engine_tasks.values()):
                if task.done() and not self._stopping.is_set():
                    self.on_failure()
                    task.result()
                    raise RuntimeError("an engine ended although it was not stopped")

    def _retire(self, name: str) -> None:
        """Stop reading a live topic without open standing streams; a later stream resumes it."""
        self._retiring.add(name)
        if (engine := self._engines.get(name)) is not None:
            engine.stop()

    def _forget_source(self, name: str) -> None:
        self._retiring.discard(name)
        del self._engine_tasks[name]
        self._engines.pop(name, None)
        self._health.remove_engine(f"source {name}")
        log.info("source left: its standing streams are closed", source=name)

    async def _run_merging_engine(self) -> None:
        topics, health = self._topics, self._health.engine_health("merging")
        inputs, count = [topics.partials, topics.control], topics.partitions
        engine = Engine(self.role, self._settings, inputs, self._clients, partitions=count, health=health)
        await self._run_engine(MERGING_ENGINE, engine)

    async def _run_counting_engine(self, source: EventsSource) -> None:
        """Count one live topic as soon as it exists, and until it has more partitions."""
        health = self._health.engine_health(f"source {source.source}")
        while not self._stopping.is_set() and source.source not in self._retiring:
            try:
                partitions = await self._find_topic(self._settings, self._topics, source)
            except (TopicsError, KafkaError, OSError) as error:
                reason = str(error) if isinstance(error, TopicsError) else type(error).__name__
                log.warning("live topic not served", source=source.source, reason=reason)
                health.set_not_ready_reason(reason)
                await self._wait_for_first(asyncio.sleep(LIVE_TOPIC_RETRY_SECONDS))
                continue
            engine = Engine(
                self._role_of(source, partitions),
                self._settings,
                [source.topic],
                self._clients,
                partitions=partitions,
                remedy=changed_topic_remedy(source.source),
                stops_if_topics_grow=True,
                health=health,
                clock=self._clock,
            )
            log.info("serving", source=source.source, topic=source.topic, partitions=partitions)
            self._served_sources[source.source] = source
            await self._run_engine(source.source, engine)
            del self._served_sources[source.source]
            self._feed_metrics.drop(source.source)

    def _role_of(self, source: EventsSource, partitions: int) -> EngineRole:
        topics, definitions = self._topics, self.definitions
        return EngineRole(
            "feed",
            feed_group(self._settings, topics, source.source),
            topics.status,
            lambda number: FeedProcessor(topics, source, number, partitions, definitions),
            reports_restores=False,
            max_write_delay=CHANGELOG_WAIT_SECONDS,
            labels={"source": source.source},
            process=self.role.process,
        )

    async def _run_engine(self, name: str, engine: Engine) -> None:
        self._engines[name] = engine
        engine.on_failure = self.on_failure
        if self._stopping.is_set() or name in self._retiring:
            engine.stop()
        await engine.run()

    async def _wait_for_first(self, *awaited: object) -> None:
        """Wait until one of the tasks is done, or until ``stop`` is called."""
        tasks = [asyncio.ensure_future(one) for one in awaited]  # type: ignore[call-overload]
        created = [task for task, one in zip(tasks, awaited, strict=True) if task is not one]
        created.append(asyncio.ensure_future(self._stopping.wait()))
        try:
            await asyncio.wait({*tasks, *created}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in created:
                task.cancel()
            await asyncio.gather(*created, return_exceptions=True)

    async def _update_metrics(self) -> None:
        while True:
            self._feed_metrics.update_metrics(self._engines, self._served_sources, self._clock())
            await asyncio.sleep(1.0)
