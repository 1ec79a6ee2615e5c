"""Delivers answers: resolves the pending questions, and yields the notices of ``watch``.

One consumer reads the answers to all pending questions. A watch has a separate consumer, and reads
the ledger for ends of streams.
"""

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
from stream.client.client_calls import new_id
from stream.client.kafka_connection import Connection, translation
from stream.client.ledger_reader import Openings
from stream.engine.restore import readable
from stream.errors import Invalid, Timeout, Unreachable
from stream.processing.dead_letters import address_of
from stream.questions import Question, Result, Results
from stream.questions.alert_states import Notice
from stream.questions.question_forms import as_query
from stream.questions.stream_watch import Watch


@dataclass(frozen=True)
class Pending:
    """A published question and the future of its answer."""

    query: Query
    source: Source | None
    value: asyncio.Future[bytes]
    timeout: float | None
    published: float


class Listener:
    """Reads answers in the background; the first question starts it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[tuple[str, str], list[asyncio.Future[bytes]]] = {}
        self._starting = asyncio.Lock()
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to read answers at the end of the topic, unless reading has started before."""
        async with self._starting:
            if self._consumer is None:
                self._consumer = await self._connection.answers_reader(from_beginning=False)
                self._task = asyncio.create_task(self._deliver(self._consumer))

    async def stop(self) -> None:
        """Stop reading and cancel all pending questions."""
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
        """Create the pending entry of a question; call it before the question is published."""
        value: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((query.stream, query.id), []).append(value)
        value.add_done_callback(partial(self._forget, (query.stream, query.id)))
        return Pending(query, source, value, timeout, time.monotonic())

    @staticmethod
    def watch(pending: Pending, sent: asyncio.Future[Any]) -> None:
        """Fail the pending question if Kafka rejects its record."""

        def look(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not pending.value.done():
                pending.value.set_exception(translation(error) if isinstance(error, KafkaError) else error)

        sent.add_done_callback(look)

    @staticmethod
    async def answer(pending: Pending) -> Result:
        """Wait for the committed answer; raise Timeout or Unreachable if it does not arrive."""
        left = None if pending.timeout is None else pending.published + pending.timeout - time.monotonic()
        try:
            value = await asyncio.wait_for(pending.value, left)
        except TimeoutError:
            raise Timeout(
                f"no answer to '{pending.query.id}' from stream '{pending.query.stream}' within {pending.timeout:g} s: it may still come, and be "
                "charged; look for it in the stream's answers before you ask again, and check that 'sotto serve worker' runs",
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
            self._consumer = None  # the next question starts another consumer
            await consumer.stop()


IN_FLIGHT: Final = 1000
"""Most questions of one ``ask_many`` that wait for an answer at the same time."""

Publish = Callable[[Question], Awaitable[Pending]]


class PendingResults:
    """Results of ``ask_many``: ``await`` it for all of them, or iterate with ``async for``.

    Results come in the order of the questions. At most 1,000 questions are pending at a time, so
    ``async for`` needs little memory. A rejected or halted question raises no error; call
    ``Result.checked`` to raise it. A collection of questions is validated before the first one is
    published. If questions are not a collection, the answers to the questions before an invalid one
    come first, and then its error is raised.
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
            except Exception as error:  # noqa: BLE001  (raised below, after the answers to earlier questions)
                ended = error
            while waiting:
                yield await _outcome(waiting.popleft())
        finally:
            for pending in waiting:
                pending.value.cancel()
        if ended is not None:
            raise ended


def _checked(questions: Iterable[Question]) -> list[Query]:
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
