"""Waiting for answers: one reader of all answers, which hands each to whoever asked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from schemas import Query, Source
from stream.asking import Result
from stream.client.connection import Connection
from stream.client.failures import translation
from stream.errors import Timeout, Unreachable
from stream.kafka.unread import readable
from stream.processors.rejections import address_of


@dataclass(frozen=True)
class Pending:
    """A question that was published, and until when its answer is waited for."""

    query: Query
    source: Source | None
    value: asyncio.Future[bytes]
    timeout: float | None
    published: float


class Listener:
    """Starts with the first question."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[tuple[str, str], list[asyncio.Future[bytes]]] = {}
        self._starting = asyncio.Lock()
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is answered from now on."""
        async with self._starting:
            if self._consumer is None:
                self._consumer = await self._connection.answers_reader(from_beginning=False)
                self._task = asyncio.create_task(self._deliver(self._consumer))

    async def stop(self) -> None:
        """Read no more; whoever waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()
        self._consumer = self._task = None
        for futures in self._waiting.values():
            for future in futures:
                future.cancel()

    def expect(self, query: Query, source: Source | None, timeout: float | None) -> Pending:
        """Be ready for the answer to a question that is about to be published."""
        value: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((query.stream, query.id), []).append(value)
        value.add_done_callback(partial(self._forget, (query.stream, query.id)))
        return Pending(query, source, value, timeout, time.monotonic())

    @staticmethod
    def watch(pending: Pending, sent: asyncio.Future[Any]) -> None:
        """Should Kafka not take the question, say so to whoever waits for its answer."""

        def look(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not pending.value.done():
                pending.value.set_exception(translation(error) if isinstance(error, KafkaError) else error)

        sent.add_done_callback(look)

    @staticmethod
    async def answer(pending: Pending) -> Result:
        """The answer, once it is committed; Timeout if it does not come in time, Unreachable if Kafka is away."""
        left = None if pending.timeout is None else pending.published + pending.timeout - time.monotonic()
        try:
            value = await asyncio.wait_for(pending.value, left)
        except TimeoutError:
            raise Timeout(
                f"no answer to '{pending.query.id}' from stream '{pending.query.stream}' within {pending.timeout:g} s: one may still come, and be "
                "charged; look for it among the stream's answers before you ask again, and see whether 'sotto serve worker' runs",
                [pending.query],
            ) from None
        except Unreachable as lost:
            raise Unreachable(str(lost), [pending.query]) from lost
        return Result.read(value, pending.query, pending.source)

    def _forget(self, address: tuple[str, str], value: asyncio.Future[bytes]) -> None:
        waiting = self._waiting.get(address, [])
        if value in waiting:
            waiting.remove(value)
        if not waiting:
            self._waiting.pop(address, None)

    async def _deliver(self, consumer: AIOKafkaConsumer) -> None:
        try:
            while True:
                fetched = await consumer.getmany(
                    timeout_ms=500, max_records=self._connection.settings.batch_events
                )
                for record in (record for records in fetched.values() for record in readable(records)):
                    identifier, stream = address_of(record.value) or ("", "")
                    for future in tuple(self._waiting.get((stream, identifier), ())):
                        if not future.done():
                            future.set_result(record.value)
        except KafkaError as error:
            for future in [one for futures in self._waiting.values() for one in futures]:
                if not future.done():
                    future.set_exception(translation(error))
            self._consumer = None  # the next question starts another
            await consumer.stop()
