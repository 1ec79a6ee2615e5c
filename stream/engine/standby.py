"""Warm copies of other processes' partitions, for a short restore.

A copy is a partly restored processor: it has applied all committed records, in order, up to a
position in each topic. After the fence, the restore continues from there. A copy that lags only
costs time when it is inherited; a copy that fails is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import count
from typing import Final, Self

from aiokafka import TopicPartition

from stream.engine.restore import read_to_end, reader
from stream.engine.session import EngineRole, StandbyCopy
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.log import get_logger
from stream.settings import Settings

COPY_START_SECONDS: Final = 3.0
"""Seconds before copies start: rebalances come in series, and owned partitions go first."""
COPY_PAUSE_SECONDS: Final = 0.5
"""Seconds between two fetches."""
COPIED_RECORDS_PER_SECOND: Final = 50_000
"""Most records per second of all copies together; they take about a quarter of a core."""
COPY_RETRY_SECONDS: Final = 15.0
"""Seconds before a failed copy is restarted."""

log = get_logger("standby")


class Standby:
    """Keeps copies of up to ``settings.standby_partitions`` of a role's ``partitions``.

    Each copy holds the partition's streams (for sizes see docs/scaling.md) and the records that a
    processor collects before it applies them.
    """

    def __init__(self, role: EngineRole, settings: Settings, partitions: int, clients: Clients = KAFKA) -> None:
        self._role = role
        self._settings = settings
        self._partitions = partitions
        self._clients = clients
        self._copies: dict[int, StandbyCopy] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def follow(self, owned: Collection[int]) -> None:
        """Copy the neighbors of the ``owned`` partitions; drop copies that are neither neighbors nor owned."""
        wanted = neighbor_partitions(owned, self._partitions, self._settings.standby_partitions)
        for partition in self._tasks.keys() - wanted - set(owned):
            self._drop(partition)
        for partition in wanted - self._tasks.keys():
            self._tasks[partition] = asyncio.create_task(
                self._maintain_copy(partition), name=f"standby-{partition}"
            )

    def take_standby_copy(self, partition: int) -> StandbyCopy | None:
        """Return a partition's copy and stop updating it; call it after the fence."""
        copy = self._copies.get(partition)
        self._drop(partition)
        return copy

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for partition in list(self._tasks):
            self._drop(partition)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop(self, partition: int) -> None:
        self._copies.pop(partition, None)
        if (task := self._tasks.pop(partition, None)) is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _maintain_copy(self, partition: int) -> None:
        pause = COPY_START_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                async with reader(self._settings, self._clients) as consumer:
                    await self._tail(partition, consumer)
            except Exception as error:  # noqa: BLE001  (any failure: a full restore needs no copy)
                self._copies.pop(partition, None)
                log.warning("standby starts over", partition=partition, error=type(error).__name__)
            pause = COPY_RETRY_SECONDS

    async def _tail(self, partition: int, consumer: Consumer) -> None:
        """Apply a partition's tables and changelog from the beginning, then all new records."""
        processor, taken = self._role.make_processor(partition), 0
        copy = self._copies[partition] = StandbyCopy(processor)
        topic_partitions = [TopicPartition(topic, partition) for topic in (*processor.tables, processor.changelog)]
        for rounds in count():
            for topic_partition in topic_partitions:
                limit, position = self._settings.batch_events, copy.positions.get(topic_partition)
                whole = topic_partition.topic == processor.changelog
                async for records in read_to_end(consumer, topic_partition, limit, position, whole=whole):
                    # No await between these two lines: the copy cannot be taken here.
                    processor.restore(records)
                    copy.positions[topic_partition] = records[-1].offset + 1
                    taken += len(records)
                    async with self._turn:
                        await asyncio.sleep(len(records) / COPIED_RECORDS_PER_SECOND)
                # The position includes the transaction markers after the last record.
                copy.positions[topic_partition] = await consumer.position(topic_partition)
                consumer.pause(topic_partition)
            if rounds == 0:
                log.info("standby ready", partition=partition, records=taken)
            await asyncio.sleep(COPY_PAUSE_SECONDS)


def neighbor_partitions(owned: Collection[int], partitions: int, limit: int) -> set[int]:
    """Return the ``limit`` partitions that are nearest to the owned ones.

    The group assigns ranges. When a member joins or leaves, the ranges shift, so that a member
    inherits partitions next to its own.
    """
    others = [number for number in range(partitions) if number not in owned]
    others.sort(key=lambda number: (min((abs(number - own) for own in owned), default=0), number))
    return set(others[:limit])
