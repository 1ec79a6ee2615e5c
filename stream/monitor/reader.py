"""The Faust app: agents that read the installation's topics into the tables.

Every start reads the topics from their beginning, under a consumer group of its own that never commits an offset:
control, ledger and status are compacted, so that takes in each key about once, and the tables need no changelogs, whose
recovery Faust is known to hang in when they are compacted (faust-streaming issues 176, 373, 596). Two monitors are two
readers that know nothing of each other.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from pathlib import Path
from typing import Any, Self

import faust
import faust.auth
from aiohttp.web import Application
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, EventT
from faust.web.drivers.aiohttp import Web

from stream.kafka.layouts import layout
from stream.kafka.names import monitor_group
from stream.kafka.restore import reader
from stream.kafka.security import connection
from stream.log import get_logger
from stream.monitor.connections import Runner
from stream.monitor.server import APPLICATION_OPTIONS
from stream.monitor.tables import Tables
from stream.processors.base import Record
from stream.processors.topics import Topics
from stream.settings import Settings

BUFFERED_RECORDS = 1000
"""Records read ahead per topic."""
POLL_SECONDS = 0.25

log = get_logger("monitor")


class _CommittedThread(driver.AIOKafkaConsumerThread):
    """Faust reads committed records only where it writes transactions itself; the monitor writes nothing."""

    def _create_worker_consumer(self, transport: driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"  # noqa: SLF001  (not started yet; Faust has no setting for it)
        return consumer


class _CommittedConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)


class _CommittedTransport(driver.Transport):
    Consumer = _CommittedConsumer


class _BareWeb(Web):
    """Faust's web server without Faust's own pages: there is no service without a token."""

    default_blueprints = ()
    production_blueprints = ()
    debug_blueprints = ()
    optional_blueprints = ()

    def __init__(self, app: faust.App) -> None:
        super().__init__(app)
        self._runner = Runner(self.web_app)


class _App(faust.App):
    def _new_transport(self) -> driver.Transport:
        return _CommittedTransport(self.conf.broker_consumer, self)

    def _new_web(self) -> Web:
        return _BareWeb(self)


class Reader:
    """Fills the tables from Kafka, and hosts the web server. Use it as an asynchronous context manager."""

    def __init__(self, settings: Settings, topics: Topics, tables: Tables) -> None:
        self._settings = settings
        self._partitions = [
            TopicPartition(topic, number)
            for topic in tables.inputs
            for number in range(_partitions_of(topic, topics))
        ]
        self._tables = tables
        self._folder = tempfile.TemporaryDirectory(prefix="sotto-monitor-")
        self._catching_up: asyncio.Task[None] | None = None
        self.behind: int | None = None
        """Offsets that were committed at the start and are not in the tables yet; None before that is known."""
        self.app = _App(
            f"{monitor_group(settings)}-{uuid.uuid4().hex}",
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
        for topic in tables.inputs:
            self._add_agent(topic)

    @property
    def web(self) -> Application:
        """The aiohttp application that Faust serves."""
        web = self.app.web
        if not isinstance(web, Web):
            raise TypeError("Faust serves something else")
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

    async def ended(self) -> None:
        """Return when the app has stopped of itself, as it does when it cannot go on."""
        await self.app.wait_until_stopped()

    def _add_agent(self, topic: str) -> None:
        raw = self.app.topic(
            topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=False
        )

        async def take(stream: faust.StreamT[bytes]) -> None:
            async for event in stream.events():
                self._tables.take(_record(event))

        self.app.agent(raw, name=f"read {topic}")(take)

    async def _catch_up(self) -> None:
        """Tell when everything is read that was committed at the start."""
        ends = await self._ends()
        records = -1
        while True:
            # What comes last may be a transaction's marker, which is nothing to read; hence the second look below.
            left = sum(
                max(end - self._tables.position(source.topic, source.partition), 0) for source, end in ends.items()
            )
            # Positions run ahead of the agents by what is buffered: they tell only in a pause in which nothing is read.
            if self._tables.records == records and await self._fetched(ends):
                self.behind = 0
                log.info("tables are up to date", records=records)
                return
            self.behind = max(left, 1)
            records = self._tables.records
            await asyncio.sleep(POLL_SECONDS)

    async def _ends(self) -> dict[TopicPartition, int]:
        while True:
            consumer = reader(self._settings)
            try:
                await consumer.start()
                ends: dict[TopicPartition, int] = await consumer.end_offsets(self._partitions)
            except KafkaError:
                await asyncio.sleep(1.0)
            else:
                return ends
            finally:
                await consumer.stop()

    async def _fetched(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether Faust's consumer has passed all these ends."""
        consumer = self.app.consumer
        for source, end in ends.items():
            own = TP(source.topic, source.partition)
            position = await consumer.position(own) if own in consumer.assignment() else None
            if position is None or position < end:
                return False
        return True


def _credentials(settings: Settings) -> faust.auth.Credentials | None:
    """What any client of aiokafka would get, in Faust's terms."""
    options = connection(settings)
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


def _partitions_of(topic: str, topics: Topics) -> int:
    return next(wanted.partitions for wanted in layout(topics) if wanted.name == topic)


def _record(event: EventT[bytes]) -> Record:
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
