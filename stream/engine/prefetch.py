"""Fetches a task's next records while the task processes the current ones."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from aiokafka import ConsumerRecord, TopicPartition

from stream.kafka.client.adapter import Consumer, Fetched
from stream.kafka.client.availability import Stopped
from stream.processing.record_columns import are_alike, concatenate, size_of
from stream.settings import Settings

FETCH_WAIT_MS: Final = 200
"""Longest wait of one call to the client, in milliseconds."""

OVERDUE_SECONDS: Final = 5.0
"""A fetch that is late by this time is blocked in aiokafka, for example by a rebalance."""


@dataclass(slots=True)
class _HeldRecords:
    fetches: deque[tuple[Sequence[ConsumerRecord], int]] = field(default_factory=deque)
    records: int = 0
    size: int = 0

    def add(self, fetched: Sequence[ConsumerRecord]) -> None:
        size = size_of(fetched)
        self.fetches.append((fetched, size))
        self.records += len(fetched)
        self.size += size

    def next(self, most: int) -> Sequence[ConsumerRecord]:
        parts = [self._first()]
        count = len(parts[0])
        while self.fetches and (count := count + len(self.fetches[0][0])) <= most:
            if not are_alike(parts[0], self.fetches[0][0]):
                break
            parts.append(self._first())
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def _first(self) -> Sequence[ConsumerRecord]:
        fetched, size = self.fetches.popleft()
        self.records -= len(fetched)
        self.size -= size
        return fetched


class Prefetch:
    """Fetches records of some topics while its context is entered, and buffers them.

    aiokafka fetches from a broker again only after all its records are taken, or after 0.1 s.
    Without the buffer, a task that writes would delay the other tasks of its process, and all would
    write in sequence.
    """

    def __init__(
        self,
        consumer: Consumer,
        sources: Sequence[TopicPartition],
        settings: Settings,
        stopping: asyncio.Event,
        *,
        ahead: bool,
    ) -> None:
        """``stopping`` ends all waits; with ``ahead``, fetches do not wait for calls of ``take``.

        Timed processors wait for more input and do not fetch ahead: fewer, larger fetches cost
        less. The buffer of each topic is limited to one batch, or the bytes of one fetch, plus one
        fetch.
        """
        self._consumer = consumer
        self._sources = sources
        self._most = settings.batch_events
        self._most_bytes = settings.fetch_bytes
        self._stopping = stopping
        self._ahead = ahead
        self._held: defaultdict[TopicPartition, _HeldRecords] = defaultdict(_HeldRecords)
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._wanted = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._asked = math.inf
        """When the current call to the client began."""

    async def __aenter__(self) -> Self:
        self._held.clear()
        self._asked = math.inf
        self._filling = asyncio.create_task(self._fill())
        self._watching = asyncio.create_task(self._stopping.wait())
        for task in (self._filling, self._watching):
            task.add_done_callback(lambda _: self._arrived.set())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Discard buffered records: they are fetched again after the next seek."""
        tasks = [task for task in (self._filling, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, sources: Sequence[TopicPartition], wait_ms: int) -> Fetched:
        """Return records of some topics; wait for ``wait_ms`` if there are none.

        During a rebalance aiokafka blocks fetches, and the rebalance waits for the task to stop.
        Therefore an order to stop ends the wait, and a blocked fetch prolongs it.

        Raises:
            Stopped: the task was ordered to stop.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while not self._stopping.is_set():
            self._arrived.clear()
            held = [(source, kept) for source in sources if (kept := self._held[source]).fetches]
            if held:
                self._taken.set()
                return {source: kept.next(self._most) for source, kept in held}
            if self._filling is not None and self._filling.done():
                self._filling.result()
            now = loop.time()
            overdue = now - self._asked > FETCH_WAIT_MS / 1000 + OVERDUE_SECONDS
            if now >= until and not overdue:
                return {}
            self._wanted.set()
            await self._arrival(FETCH_WAIT_MS / 1000 if overdue else until - now)
        raise Stopped

    async def has_reached(self, source: TopicPartition, end: int) -> bool:
        """Return whether all records before an offset are taken."""
        at = await self._consumer.position(source)
        return at >= end and not self._held[source].fetches

    async def _fill(self) -> None:
        while True:
            self._taken.clear()
            if any(self._is_full(kept) for kept in self._held.values()):
                await self._taken.wait()
                continue
            if not self._ahead:
                await self._wanted.wait()
            self._asked = asyncio.get_running_loop().time()
            fetched = await self._consumer.getmany(
                *self._sources, timeout_ms=FETCH_WAIT_MS, max_records=self._most
            )
            self._asked = math.inf
            for source, records in fetched.items():
                self._held[source].add(records)
            if fetched:
                self._wanted.clear()
                self._arrived.set()

    def _is_full(self, kept: _HeldRecords) -> bool:
        return kept.records >= self._most or kept.size >= self._most_bytes

    async def _arrival(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
