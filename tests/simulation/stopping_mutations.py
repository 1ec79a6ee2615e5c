"""Engines with one possible mistake each in stopping a task; the tests and the simulation must find them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from stream.engine import session
from stream.engine.batch_loop import BatchLoop
from stream.engine.group_engine import Engine
from stream.engine.partition_input import FETCH_WAIT_MS, Prefetch
from stream.kafka.client.broker_connections import Stopped
from tests.simulation.replacements import replacing


@contextmanager
def partitions_taken_while_leaving() -> Iterator[None]:
    """A rebalance between the order to stop and the end of membership starts tasks that nothing stops."""
    take = Engine.start_partitions

    class Deaf:
        """Passes the order to stop on, but does not show it."""

        def __init__(self, heard: asyncio.Event) -> None:
            self.set = heard.set

        def is_set(self) -> bool:
            return False

    async def deaf(self: Engine, *arguments: Any) -> None:
        heard = self._stopping
        self._stopping = Deaf(heard)  # type: ignore[assignment]
        try:
            await take(self, *arguments)
        finally:
            self._stopping = heard

    with patch.object(Engine, "start_partitions", deaf):
        yield


@replacing(Engine, "stop_partitions")
async def tasks_out_of_view_while_they_stop(park: Any, self: Engine, partitions: Iterable[int]) -> None:
    """A task that is told to stop is treated as stopped, so nothing waits for its end."""
    parked = asyncio.ensure_future(park(self, list(partitions)))
    await asyncio.sleep(0)
    self._tasks.clear()
    await parked


@replacing(session, "unless_stopped")
async def restores_that_an_order_to_stop_does_not_end(
    _: Any, _stopping: asyncio.Event, attempt: Awaitable[Any]
) -> Any:
    """A rebalance waits for a fence and a restore, which may wait for Kafka for ever."""
    return await attempt


@replacing(BatchLoop, "_follow_to_end")
async def refused_while_stopping(follow: Any, self: BatchLoop, life: Any) -> None:
    """A task that is told to stop while a control event is under way refuses the queries that wait for the event."""
    with suppress(Stopped):
        await follow(self, life)


@contextmanager
def waits_that_an_order_to_stop_does_not_end() -> Iterator[None]:
    """A rebalance waits for a task that waits for records, which the client holds until the rebalance is over."""

    async def fill(self: Prefetch) -> None:
        while not self._stopping.is_set():
            for source, records in (
                await self._consumer.getmany(*self._topic_partitions, timeout_ms=FETCH_WAIT_MS)
            ).items():
                self._buffers[source].add(records)
                self._records_arrived.set()

    async def leave(self: Prefetch, *_: object) -> None:
        if self._filling is not None:
            await self._filling

    with patch.object(Prefetch, "_fill_buffers", fill), patch.object(Prefetch, "__aexit__", leave):
        yield
