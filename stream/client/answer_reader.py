"""Waiting for answers: one reader of all answers, which hands each to whoever asked."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from schemas import Query, Source
from stream.client.kafka_connection import Connection, translation
from stream.client.ledger_reader import new_id
from stream.engine.restore import readable
from stream.errors import Invalid, Timeout, Unreachable
from stream.processing.dead_letters import address_of
from stream.questions import Question, Result, Results
from stream.questions.question_forms import as_query


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


IN_FLIGHT: Final = 1000
"""Questions that are published ahead of the answer that is waited for."""

Publish = Callable[[Question], Awaitable[Pending]]


class PendingResults:
    """Questions that are about to be asked: ``await`` it for all results, or iterate over it with ``async for``.

    Results come in the order of the questions, of which at most a thousand are under way; so with ``async for`` neither questions
    nor results need fit into memory. One that was rejected or halted does not raise: see ``Result.checked``.

    Questions that are at hand are all checked before the first is asked: those of a collection, and with ``await`` all but those of
    an asynchronous iterable. What ends the others early is raised after the answers to those before it.
    """

    def __init__(self, publish: Publish, questions: Iterable[Question] | AsyncIterable[Question]) -> None:
        self._publish = publish
        self._questions = questions

    def __await__(self) -> Generator[Any, None, Results]:
        return self._all().__await__()

    async def __aiter__(self) -> AsyncIterator[Result]:
        asked = self._questions
        async with aclosing(self._each(_checked(asked) if isinstance(asked, Collection) else asked)) as each:
            async for one in each:
                if isinstance(one, (Timeout, Unreachable)):
                    raise one
                yield one

    async def _all(self) -> Results:
        """All results; Timeout, Unreachable or Invalid, with those that came, if any did not come."""
        asked = self._questions
        results: list[Result] = []
        lost: list[Timeout | Unreachable] = []
        try:
            async with aclosing(
                self._each(asked if isinstance(asked, AsyncIterable) else _checked(asked))
            ) as each:
                async for one in each:
                    if isinstance(one, (Timeout, Unreachable)):
                        lost.append(one)
                    else:
                        results.append(one)
        except (Invalid, Unreachable) as ended:
            ended.unanswered, ended.results = _unanswered(lost), Results(results)
            raise
        if lost:
            missing = _unanswered(lost)
            message = f"{len(missing)} questions have no answer: {lost[0]}"
            raise type(lost[0])(message, missing, Results(results))
        return Results(results)

    async def _each(
        self, questions: Iterable[Question] | AsyncIterable[Question]
    ) -> AsyncGenerator[Result | Timeout | Unreachable, None]:
        waiting: deque[Pending] = deque()
        ended: Exception | None = None
        try:
            try:
                async for question in _asynchronously(questions):
                    waiting.append(await self._publish(question))
                    if len(waiting) == IN_FLIGHT:
                        yield await _outcome(waiting.popleft())
            except Exception as error:  # noqa: BLE001  (raised below, after the answers to what was asked before it)
                ended = error
            while waiting:
                yield await _outcome(waiting.popleft())
        finally:
            for pending in waiting:
                pending.value.cancel()
        if ended is not None:
            raise ended


def _checked(questions: Iterable[Question]) -> list[Query]:
    """The queries that are meant; Invalid if one of them is none, before any is asked."""
    return [as_query(one, {}, new_id) for one in questions]


def _unanswered(lost: Iterable[Timeout | Unreachable]) -> tuple[Query, ...]:
    return tuple(query for one in lost for query in one.unanswered)


async def _outcome(pending: Pending) -> Result | Timeout | Unreachable:
    try:
        return await Listener.answer(pending)
    except (Timeout, Unreachable) as lost:
        return lost


async def _asynchronously(questions: Iterable[Question] | AsyncIterable[Question]) -> AsyncIterator[Question]:
    if isinstance(questions, AsyncIterable):
        async for question in questions:
            yield question
    else:
        for question in questions:
            yield question
