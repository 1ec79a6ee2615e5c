"""Reads the installation's topics into the tables: a Faust app, and a reader of the trail.

Every start reads all partitions from their beginning, without a consumer group. ``control``, ``ledger``
and ``status`` are compacted, so each key is read about once. The tables have no changelogs, because Faust
may hang while it recovers compacted topics (faust-streaming issues 176, 373, 596). Monitors are
independent of each other.

``TrailReader`` reads the trail with its own consumer, which begins near the topic's end. Answers are
read by ``monitor_alerts.AlertReader``.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self, cast

import faust
import faust.auth
from aiohttp.web import Application
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, EventT
from faust.web.drivers.aiohttp import Web

from stream.diagnostics import get_logger
from stream.engine.restore import READ_TIMEOUT_MS, create_reader, require_visible, select_readable
from stream.kafka.client.broker_connections import connection_options
from stream.kafka.client.client_patches import patch_process, read_committed_without_group
from stream.kafka.topic_layouts import layout
from stream.monitor.api.budget_models import MAX_HELD_ENTRIES
from stream.monitor.api.http_requests import MonitorRunner
from stream.monitor.api.server import APPLICATION_OPTIONS
from stream.monitor.budget_history import PACE_WINDOWS, TrailState
from stream.monitor.monitor_alerts import retry_reading
from stream.monitor.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics
from stream.settings import Settings

BUFFERED_RECORDS = 1000
"""Maximum number of records that Faust reads ahead per topic."""
PROGRESS_CHECK_SECONDS = 0.25
ASSIGNMENT_CHECK_SECONDS = 0.05

log = get_logger("monitor")


class _GrouplessThread(driver.AIOKafkaConsumerThread):
    """Reads the committed records of all partitions, without a consumer group.

    Faust has no option for this. It waits until a group assigns partitions, so this class makes the calls
    with which aiokafka reports an assignment.
    """

    _assigning: asyncio.Task[None] | None = None

    def _create_worker_consumer(self, transport: driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        read_committed_without_group(consumer)
        return consumer

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to topics, and notify Faust once all their partitions are assigned."""
        wanted = set(topics)
        await super().subscribe(wanted)
        # Faust cannot handle an assignment before this call returns, so a task waits for it.
        await self.call_thread(self._begin_assigning, wanted)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Return no offsets, so that the consumer begins at the first record of each partition."""
        return {}

    async def _begin_assigning(self, topics: set[str]) -> None:
        self._assigning = asyncio.create_task(self._assign(topics))

    async def _assign(self, topics: set[str]) -> None:
        try:
            consumer = self._ensure_consumer()
            while topics - {one.topic for one in consumer.assignment()}:  # noqa: ASYNC110  (aiokafka has no event for it)
                await asyncio.sleep(ASSIGNMENT_CHECK_SECONDS)
            self.app.on_rebalance_start()
            await self.on_partitions_revoked(set())
            await self.on_partitions_assigned({TP(one.topic, one.partition) for one in consumer.assignment()})
        except Exception as error:  # noqa: BLE001  (the monitor ends and is restarted)
            await self.crash(error)


class _GrouplessConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _GrouplessThread(self, loop=self.loop, beacon=self.beacon)


class _GrouplessTransport(driver.Transport):
    Consumer = _GrouplessConsumer


class _WebWithoutPages(Web):
    """Faust's web server without Faust's own pages, which would be served without a token."""

    default_blueprints = ()
    production_blueprints = ()
    debug_blueprints = ()
    optional_blueprints = ()

    def __init__(self, app: faust.App) -> None:
        super().__init__(app)
        self._runner = MonitorRunner(self.web_app)


class _App(faust.App):
    def _new_transport(self) -> driver.Transport:
        return _GrouplessTransport(self.conf.broker_consumer, self)

    def _new_web(self) -> Web:
        return _WebWithoutPages(self)


class TopicReader:
    """Fills the tables from Kafka and runs the web server; an asynchronous context manager."""

    def __init__(self, settings: Settings, topics: Topics, tables: MonitorTables) -> None:
        self._settings = settings
        self._partitions = [
            TopicPartition(topic.name, number)
            for topic in layout(topics)
            if topic.name in tables.inputs and topic.name != topics.trail
            for number in range(topic.partitions)
        ]
        self._tables = tables
        self._folder = tempfile.TemporaryDirectory(prefix="sotto-monitor-")
        self._catching_up: asyncio.Task[None] | None = None
        self.unread_offsets: int | None = None
        """Number of unread offsets that existed at the start; None while unknown."""
        patch_process()
        self.app = _App(
            "sotto-monitor",
            broker=";".join(f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")),
            broker_credentials=_credentials(settings),
            autodiscover=False,
            store="memory://",
            datadir=Path(self._folder.name),
            topic_allow_declare=False,
            topic_disable_leader=True,
            consumer_auto_offset_reset="earliest",
            consumer_max_fetch_size=settings.fetch_bytes,
            stream_buffer_maxsize=BUFFERED_RECORDS,
            web_bind=settings.monitor_host,
            web_port=settings.monitor_port,
            web_application_options=APPLICATION_OPTIONS,
        )
        for topic in {one.topic: None for one in self._partitions}:
            self._add_agent(topic)

    @property
    def web(self) -> Application:
        """The aiohttp application of Faust's web server."""
        web = self.app.web
        if not isinstance(web, Web):
            raise TypeError("Faust's web server is not aiohttp")
        return web.web_app

    async def __aenter__(self) -> Self:
        await self.app.start()
        self._catching_up = asyncio.create_task(self._catch_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await self.app.stop()
        self._folder.cleanup()

    def _add_agent(self, topic: str) -> None:
        raw = self.app.topic(
            topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=False
        )

        async def add_records(stream: faust.StreamT[bytes]) -> None:
            async for event in stream.events():
                self._tables.add_record(_to_record(event))

        self.app.agent(raw, name=f"read {topic}")(add_records)

    async def _catch_up(self) -> None:
        """Update ``unread_offsets`` until all records committed at the start are read."""
        ends = await self._read_ends()
        records = -1
        while True:
            # ``left`` may stay above 0, because the last offset may be a transaction marker, which is not read.
            left = sum(
                max(end - self._tables.position(topic_partition.topic, topic_partition.partition), 0)
                for topic_partition, end in ends.items()
            )
            # The consumer's positions include buffered records, so also wait until the agents read no more.
            if self._tables.records == records and await self._has_fetched(ends):
                self.unread_offsets = 0
                log.info("all topics are read", records=records)
                return
            self.unread_offsets = max(left, 1)
            records = self._tables.records
            await asyncio.sleep(PROGRESS_CHECK_SECONDS)

    async def _read_ends(self) -> dict[TopicPartition, int]:
        while True:
            try:
                async with create_reader(self._settings) as consumer:
                    return cast("dict[TopicPartition, int]", await consumer.end_offsets(self._partitions))
            except KafkaError:
                await asyncio.sleep(1.0)

    async def _has_fetched(self, ends: dict[TopicPartition, int]) -> bool:
        positions = await self.positions()
        return all(positions.get(one, -1) >= end for one, end in ends.items())

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of Faust's consumer, which include buffered records."""
        consumer, positions = self.app.consumer, {}
        for topic_partition in self._partitions:
            if (faust_partition := TP(*topic_partition)) in consumer.assignment():
                position = await consumer.position(faust_partition)
                if position is not None:
                    positions[topic_partition] = position
        return positions


def _credentials(settings: Settings) -> faust.auth.Credentials | None:
    """Convert the credentials of Sotto's aiokafka clients to Faust's classes."""
    options = connection_options(settings)
    context = options.get("ssl_context")
    if provider := options.get("sasl_oauth_token_provider"):
        return faust.auth.OAuthCredentials(oauth_cb=provider, ssl_context=context)
    if mechanism := options.get("sasl_mechanism"):
        return faust.auth.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=mechanism,
        )
    return None if context is None else faust.auth.SSLCredentials(context)


def _to_record(event: EventT[bytes]) -> Record:
    message = event.message
    headers: Any = message.headers or ()
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp=int(message.timestamp * 1000),
        key=message.key,
        value=message.value,
        headers=tuple(headers.items() if isinstance(headers, dict) else headers),
    )


LOOK_BACK_RECORDS: Final = 500_000
"""Maximum number of records of the trail that are read at the start."""
_EARLIER_BATCH: Final = 500
"""Maximum number of earlier entries of the trail that are added before other tasks run."""


def choose_start(first: int, recent: int, end: int) -> int:
    """Return the trail's offset at which to begin.

    Forecasts need the entries from the offset ``recent`` on. The list of entries needs the last
    ``MAX_HELD_ENTRIES`` entries, which take about twice as many offsets: every second one is a transaction marker.
    """
    return max(min(recent, end - 2 * MAX_HELD_ENTRIES), end - LOOK_BACK_RECORDS, first)


class TrailReader:
    """Reads the trail into the tables: first the trail's end and each new entry, later the earlier entries."""

    def __init__(
        self, settings: Settings, topics: Topics, tables: MonitorTables, has_caught_up: Callable[[], bool]
    ) -> None:
        """Create the reader; earlier entries are read after the monitor's other topics, when ``has_caught_up`` returns True."""
        self._settings = settings
        self._trail = TopicPartition(topics.trail, 0)
        self._tables = tables
        self._has_caught_up = has_caught_up
        self._start: int | None = None
        """The offset at which reading began; the earlier entries end before it."""
        self._position = 0
        self._earlier: TrailState | None = None
        self._earlier_position = 0
        self.unread_offsets: int | None = None
        """Number of unread offsets that existed at the start; None while unknown."""

    async def run(self) -> None:
        """Read until cancelled; after an error continue at the same offset.

        Each task of the group has its own consumer. If stopping a consumer swallows a task's cancellation, the
        group still ends.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(retry_reading(self._read_new, "the trail"))
            group.create_task(retry_reading(self._read_earlier, "the trail"))

    async def _read_new(self) -> None:
        async with create_reader(self._settings, fetch_max_wait_ms=100) as consumer:
            await require_visible(consumer, self._trail.topic)
            consumer.assign([self._trail])
            end = (await consumer.end_offsets([self._trail]))[self._trail]
            if self._start is None:
                self._start = self._position = await self._find_start(consumer, end)
            consumer.seek(self._trail, self._position)
            while True:
                fetched = await consumer.getmany(
                    self._trail, timeout_ms=500, max_records=self._settings.batch_events
                )
                for record in select_readable(fetched.get(self._trail, ())):
                    self._tables.add_record(record)
                self._position = await consumer.position(self._trail)
                if self.unread_offsets != 0:
                    self.unread_offsets = max(end - self._position, 0)
                await asyncio.sleep(0)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the position after the new entries."""
        return {} if self._start is None else {self._trail: self._position}

    async def _find_start(self, consumer: Any, end: int) -> int:
        """Return the offset at which to begin; unless it is the first, prepare the tables' trail for earlier entries."""
        first: int = (await consumer.beginning_offsets([self._trail]))[self._trail]
        since = round((time.time() - max(PACE_WINDOWS)) * 1000)
        recent = (await consumer.offsets_for_times({self._trail: since}))[self._trail]
        start = choose_start(first, end if recent is None else recent.offset, end)
        if start > first:
            self._tables.trail = TrailState(is_whole=False)
        self._earlier_position = first
        return start

    async def _read_earlier(self) -> None:
        """Read and check the entries before the start, in at most half of the event loop's time."""
        while self._start is None or not self._has_caught_up():  # noqa: ASYNC110  (once, at the start)
            await asyncio.sleep(PROGRESS_CHECK_SECONDS)
        if self._earlier_position == self._start:
            return
        tables = self._tables
        if (earlier := self._earlier) is None:
            earlier = self._earlier = TrailState(room=tables.trail.room)
        async with create_reader(self._settings, fetch_max_wait_ms=100) as consumer:
            consumer.assign([self._trail])
            consumer.seek(self._trail, self._earlier_position)
            while self._earlier_position < self._start:
                fetched = await consumer.getmany(
                    self._trail, timeout_ms=READ_TIMEOUT_MS, max_records=_EARLIER_BATCH
                )
                began = time.perf_counter()
                for record in select_readable(fetched.get(self._trail, ())):
                    if record.offset < self._start:
                        tables.add_earlier_entry(earlier, record.value or b"")
                self._earlier_position = await consumer.position(self._trail)
                await asyncio.sleep(time.perf_counter() - began)
        tables.join_trail(earlier)
        log.info("the whole trail is read", entries=tables.trail.entries)
