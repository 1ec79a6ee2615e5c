"""How often clients ask again for what is not there: where topics are gone or their leaders unknown, brokers are not stormed.

aiokafka asks for a cluster's metadata anew as soon as the last answer names no leader, and for records as soon as the last answer is an error:
thousands of times a second, by every consumer and producer of every service, while topics are missing or a broker comes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.consumer import consumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.producer import producer

SECONDS: Final = 1.0
METADATA_REQUESTS: Final = 10
"""A client asks for metadata at most so many times in any second."""
FRUITLESS_FETCHES: Final = 20
"""A consumer has at most so many answers without a record in any second from one broker, leaving out those for which it waited."""


class Pace:
    """At most so many of something in any stretch of so many seconds."""

    def __init__(self, most: int, seconds: float = SECONDS) -> None:
        self._begun: deque[float] = deque(maxlen=most)
        self._seconds = seconds

    async def keep(self) -> None:
        """Wait until there may be one more, which begins then."""
        loop = asyncio.get_running_loop()
        begins = loop.time()
        if len(self._begun) == self._begun.maxlen:
            begins = max(begins, self._begun[0] + self._seconds)
        self._begun.append(begins)
        if (left := begins - loop.time()) > 0:
            await asyncio.sleep(left)


class PacedClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's connections, for a consumer or a producer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pace = Pace(METADATA_REQUESTS)

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> Any:
        await self._pace.keep()
        return await super()._metadata_update(cluster_metadata, topics)


class PacedFetcher(Fetcher):  # type: ignore[misc]
    """aiokafka's fetches."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._fruitless: dict[Any, Pace] = {}
        super().__init__(*arguments, **named)

    async def _proc_fetch_request(self, assignment: Any, node_id: Any, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        found = await super()._proc_fetch_request(assignment, node_id, request)
        # A broker that has no records waits for some before it says so; what comes sooner is an error, or is no longer asked for.
        is_fruitless = not found and loop.time() - asked < self._fetch_max_wait_ms / 2000
        task = asyncio.current_task()
        # aiokafka takes an order to end for an answer without records.
        if is_fruitless and task is not None and not task.cancelling():
            await self._fruitless.setdefault(node_id, Pace(FRUITLESS_FETCHES)).keep()
        return found

    async def close(self) -> None:
        """Stop fetching.

        aiokafka awaits each task that it cancels. A task that was cancelled during a pause raises CancelledError there,
        in a caller that was not cancelled, and the consumer's connections stay open.
        """
        tasks = {self._fetch_task, *self._pending_tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._pending_tasks.clear()
        await super().close()


def install() -> None:
    """Have every consumer and producer of this process keep to these paces.

    Raises:
        RuntimeError: the client library is of a version that has no such methods.
    """
    methods = (AIOKafkaClient, "_metadata_update"), (Fetcher, "_proc_fetch_request"), (Fetcher, "close")
    if not all(hasattr(kind, name) for kind, name in methods):
        raise RuntimeError("aiokafka asks brokers in another way; install the aiokafka that Sotto was tested with")
    consumer.AIOKafkaClient = producer.AIOKafkaClient = PacedClient
    consumer.Fetcher = PacedFetcher
