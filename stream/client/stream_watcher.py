"""Yields the notices of ``watch`` from Kafka: reads the answers, and the ledger for ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from aiokafka import TopicPartition

from stream.client.kafka_connection import Connection
from stream.engine.restore import TopicWentBackError, read_to_end, readable, reader, require_visible
from stream.questions.alert_states import Notice
from stream.questions.stream_watch import StreamOpening, Watch, counted_of, is_news, opening_of, source_of


class Openings:
    """Reads the openings of ``wanted`` streams from the ledger; call ``stop`` at the end."""

    def __init__(self, connection: Connection, wanted: Callable[[str, str], bool]) -> None:
        self.sources: dict[str, str] = {}
        """The contribution bound of each source in words, as of the last ``read``."""
        self._connection = connection
        self._wanted = wanted
        self._found: dict[str, StreamOpening] = {}
        self._others: set[str] = set()
        self._read_to: int | None = None
        self._reading = asyncio.Lock()
        self._consumer: Any = None

    async def of(self, stream: str) -> StreamOpening | None:
        """Return the opening of a stream that has answered; None if the stream is not wanted."""
        if stream not in self._found and stream not in self._others:
            await self.read()
            if stream not in self._found:
                # Each stream that has answered is in the ledger; if it is not found, it is not wanted.
                self._others.add(stream)
        return self._found.get(stream)

    async def read(self) -> list[StreamOpening]:
        """Read the ledger's new records; return the openings that are new or changed."""
        async with self._reading:
            consumer = await self._start()
            try:
                return await self._read_new(consumer)
            except TopicWentBackError:
                self._read_to = None
                return await self._read_new(consumer)

    def known(self) -> list[StreamOpening]:
        """Return all openings, as of the last ``read``."""
        return list(self._found.values())

    async def stop(self) -> None:
        """Stop the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _start(self) -> Any:
        if self._consumer is None:
            consumer = reader(self._connection.settings)
            try:
                await consumer.start()
                await require_visible(consumer, self._connection.topics.ledger)
            except BaseException:
                await consumer.stop()
                raise
            self._consumer = consumer
        return self._consumer

    async def _read_new(self, consumer: Any) -> list[StreamOpening]:
        changed: dict[str, StreamOpening] = {}
        ledger = TopicPartition(self._connection.topics.ledger, 0)
        async for records in read_to_end(consumer, ledger, self._connection.settings.batch_events, self._read_to):
            for record in records:
                if (source := source_of(record.key)) is not None:
                    self.sources[source] = counted_of(record.value)
                opening = opening_of(record.key, record.value, record.timestamp, self._wanted)
                if opening is not None and is_news(self._found, opening):
                    changed[opening.stream] = opening
        self._read_to = await consumer.position(ledger)
        return list(changed.values())


LEDGER_SECONDS: Final = 2.0
"""Seconds between two reads of the ledger for new and ended streams."""


async def notices(connection: Connection, watch: Watch, *, from_beginning: bool) -> AsyncGenerator[Notice, None]:
    """Yield the notices of watched streams without end, for each stream in order of its answers.

    With ``from_beginning``, ends of streams come after all answers that are present at the start.
    """
    consumer = await connection.answers_reader(from_beginning=from_beginning)
    openings = Openings(connection, watch.wants)
    try:
        behind = await consumer.end_offsets(consumer.assignment()) if from_beginning else {}
        caught_up = not from_beginning
        for notice in watch.begin(await openings.read(), openings.sources.keys(), from_beginning=from_beginning):
            yield notice
        looked = time.monotonic()
        while True:
            fetched = await consumer.getmany(timeout_ms=500, max_records=connection.settings.batch_events)
            for records in fetched.values():
                for record in filter(watch.may_matter, readable(records)):
                    opening = await openings.of(record.key.decode(errors="replace"))
                    for notice in (
                        watch.notices_of(record, opening, openings.sources.get(opening.source, ""))
                        if opening is not None
                        else ()
                    ):
                        yield notice
            behind = {one: end for one, end in behind.items() if await consumer.position(one) < end}
            if behind:
                continue
            if not caught_up or time.monotonic() - looked >= LEDGER_SECONDS:
                news = await openings.read()
                for notice in watch.ended(news if caught_up else openings.known()):
                    yield notice
                caught_up, looked = True, time.monotonic()
    finally:
        await asyncio.gather(consumer.stop(), openings.stop())
