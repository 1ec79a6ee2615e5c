"""The ledger's openings: read once, and from then on only what has come to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import TopicPartition

from stream.asking.openings import Opening, counted_of, is_news, opening_of, source_of
from stream.client.connection import Connection
from stream.kafka.restore import TopicWentBackError, read_to_end, reader, require_visible
from stream.processors.topics import LEDGER_PARTITIONS


class Openings:
    """The openings of those streams that are ``wanted``, told by the names of source and stream. Call ``stop`` in the end."""

    def __init__(self, connection: Connection, wanted: Callable[[str, str], bool]) -> None:
        self.sources: dict[str, str] = {}
        """The sources there are as of the last reading, and how many rows or events of one person count in each."""
        self._connection = connection
        self._wanted = wanted
        self._found: dict[str, Opening] = {}
        self._others: set[str] = set()
        self._read_to: dict[int, int] = {}
        self._reading = asyncio.Lock()
        self._consumer: Any = None

    async def of(self, stream: str) -> Opening | None:
        """The opening of a stream that has answered; the ledger is read on where it is not known. None if it is not wanted."""
        if stream not in self._found and stream not in self._others:
            await self.read()
            if stream not in self._found:
                # Whatever has answered was opened before: it is there, and not wanted.
                self._others.add(stream)
        return self._found.get(stream)

    async def read(self) -> list[Opening]:
        """Read what has come to the ledger, to its end as of now; gives those that were opened or have changed."""
        async with self._reading:
            consumer = await self._start()
            changed: dict[str, Opening] = {}
            for number in range(LEDGER_PARTITIONS):
                partition = TopicPartition(self._connection.topics.ledger, number)
                try:
                    await self._read_partition(consumer, partition, changed)
                except TopicWentBackError:
                    self._read_to.pop(number)
                    await self._read_partition(consumer, partition, changed)
            return list(changed.values())

    def known(self) -> list[Opening]:
        """All openings, as of the last reading."""
        return list(self._found.values())

    async def stop(self) -> None:
        """Read no more."""
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

    async def _read_partition(self, consumer: Any, partition: TopicPartition, changed: dict[str, Opening]) -> None:
        start = self._read_to.get(partition.partition)
        async for records in read_to_end(consumer, partition, self._connection.settings.batch_events, start):
            for record in records:
                if (source := source_of(record.key)) is not None:
                    self.sources[source] = counted_of(record.value)
                opening = opening_of(record.key, record.value, record.timestamp, self._wanted)
                if opening is not None and is_news(self._found, opening):
                    changed[opening.stream] = opening
        self._read_to[partition.partition] = await consumer.position(partition)
