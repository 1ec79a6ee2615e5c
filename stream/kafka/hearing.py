"""Following all of control, for what is told of standing streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from stream.kafka.clients import KAFKA, Clients, Consumer, Offsets
from stream.kafka.restore import reader
from stream.kafka.unread import readable
from stream.log import get_logger
from stream.processors.feeds.definitions import Definitions
from stream.processors.topics import Topics
from stream.settings import Settings

WAIT_MS: Final = 200
RETRY: Final = 1.0
"""Seconds before control is read anew after an error."""

log = get_logger("feed")


class Hearing:
    """Keeps definitions up to date. ``heard`` is set once all that control had told at the start is among them."""

    def __init__(
        self, settings: Settings, topics: Topics, definitions: Definitions, clients: Clients = KAFKA
    ) -> None:
        self.heard = asyncio.Event()
        self.on_news: Callable[[], None] = lambda: None
        """Called after anything was taken in."""
        self._settings = settings
        self._places = [TopicPartition(topics.control, number) for number in range(topics.partitions)]
        self._definitions = definitions
        self._clients = clients

    async def run(self) -> None:
        """Follow until cancelled; after an error all is read again, which takes nothing back."""
        while True:
            try:
                async with reader(self._settings, self._clients, fetch_max_wait_ms=WAIT_MS) as consumer:
                    await self._follow(consumer)
            except (KafkaError, OSError) as error:
                log.warning("cannot follow control", error=type(error).__name__)
            await asyncio.sleep(RETRY)

    async def _follow(self, consumer: Consumer) -> None:
        consumer.assign(self._places)
        await consumer.seek_to_beginning(*self._places)
        ends = await consumer.end_offsets(self._places)
        while True:
            fetched = await consumer.getmany(
                *self._places, timeout_ms=WAIT_MS, max_records=self._settings.batch_events
            )
            for records in fetched.values():
                await asyncio.to_thread(self._definitions.take, readable(records))
            if not self.heard.is_set() and await self._reached(consumer, ends):
                self.heard.set()
            if fetched and self.heard.is_set():
                self.on_news()

    async def _reached(self, consumer: Consumer, ends: Offsets) -> bool:

        return all([await consumer.position(place) >= ends[place] for place in self._places])
