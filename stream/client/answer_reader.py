"""Reads answers, and gives each pending question its answer.

One consumer reads the partitions of all pending questions of a client.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
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
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError

from schemas import Calibration, Query, Source
from stream.client.client_calls import new_id
from stream.client.kafka_connection import KafkaConnection, translate_kafka_error
from stream.engine.restore import select_readable
from stream.errors import Invalid, Timeout, Unreachable
from stream.processing.dead_letters import address_of
from stream.processing.topic_names import partition_of
from stream.questions import Question, Result, Results
from stream.questions.question_forms import as_query


@dataclass(frozen=True)
class PendingQuestion:
    """A published question; ``future`` gets the encoded answer. ``asked_at`` is a monotonic time."""

    query: Query
    source: Source | None
    calibration: Calibration | None
    future: asyncio.Future[bytes]
    timeout: float | None
    asked_at: float

    def fail_if_rejected(self, delivery: asyncio.Future[Any]) -> None:
        """Fail this question if Kafka rejects its record."""

        def set_error(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not self.future.done():
                self.future.set_exception(translate_kafka_error(error) if isinstance(error, KafkaError) else error)

        delivery.add_done_callback(set_error)

    async def wait_for_answer(self) -> Result:
        """Wait for the committed answer; raise Timeout or Unreachable if it does not arrive."""
        left = None if self.timeout is None else self.asked_at + self.timeout - time.monotonic()
        try:
            value = await asyncio.wait_for(self.future, left)
        except TimeoutError:
            raise Timeout(
                f"no answer to '{self.query.id}' from stream '{self.query.stream}' within {self.timeout:g} s: it may still come, and be "
                "charged; look for it in the stream's answers before you ask again, and check that 'sotto serve worker' runs and is ready (/readyz)",
                [self.query],
            ) from None
        except Unreachable as lost:
            raise Unreachable(str(lost), [self.query]) from lost
        return Result.read(value).with_question(self.query, self.source, self.calibration)


IDLE_PARTITION_SECONDS: Final = 10.0
"""Seconds for which a partition is still read after its last pending question."""

IDLE_PARTITION_RECORDS: Final = 1000
"""Number of other clients' answers after which a partition without a pending question is no longer read."""


@dataclass(frozen=True)
class LastUse:
    """The last time at which a partition had a pending question (monotonic), and its end offset at that time."""

    time: float
    end_offset: int


MAX_SEARCHED_STRINGS: Final = 8
"""Maximum number of byte strings for which a batch is searched, because each search reads all of its bytes."""

_UNESCAPED_ID: Final = re.compile(r"[A-Za-z0-9_.:-]+")


class AnswerListener:
    """Reads answers in the background, only from the partitions of the client's own streams.

    A batch is split into records only if it contains the id or the stream of a pending question, and
    an answer is decoded only if its key is a stream with a pending question.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._futures: defaultdict[bytes, dict[str, list[asyncio.Future[bytes]]]] = defaultdict(dict)
        """Pending questions by stream and question id; several questions may have the same id."""
        self._start_lock = asyncio.Lock()
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._followed: dict[TopicPartition, LastUse] = {}
        """The partitions that are read."""

    async def stop(self) -> None:
        """Stop reading and cancel all pending questions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()
        self._consumer = self._task = None
        for future in self._all_futures():
            future.cancel()

    async def add_question(
        self,
        query: Query,
        source: Source | None,
        calibration: Calibration | None,
        timeout: float | None,  # noqa: ASYNC109
    ) -> PendingQuestion:
        """Add a question and read its partition's new answers; call this before the question is published.

        Raises:
            KafkaError, Unreachable: the partition cannot be read, or its end is not known within ``timeout``, which includes the wait for the answer.
            SottoError: the client was disconnected meanwhile.
        """
        key, asked_at = query.stream.encode(), time.monotonic()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._futures[key].setdefault(query.id, []).append(future)
        future.add_done_callback(partial(self._forget, key, query.id))
        try:
            if self._consumer is None or self._partition_of(key) not in self._followed:
                await self._follow_unless_failed(key, future, timeout)
        except TimeoutError:
            future.cancel()
            partition, within = self._partition_of(key), "" if timeout is None else f", within {timeout:g} s"
            raise Unreachable(
                f"no broker gives the end of {partition.topic}, partition {partition.partition}{within}, so the "
                "question was not sent; check that the brokers run, and that this principal may read the topic",
                [query],
            ) from None
        except BaseException:
            future.cancel()
            raise
        if future.done():
            self._connection.require_open()  # a disconnected client cancels its futures
            future.result()  # raises the error of a consumer that failed meanwhile
        return PendingQuestion(query, source, calibration, future, timeout, asked_at)

    def _forget(self, stream: bytes, identifier: str, future: asyncio.Future[bytes]) -> None:
        pending = self._futures[stream]
        waiting = pending.get(identifier, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            pending.pop(identifier, None)
        if not pending:
            del self._futures[stream]

    def _all_futures(self) -> list[asyncio.Future[bytes]]:
        return [one for pending in self._futures.values() for futures in pending.values() for one in futures]

    def _partition_of(self, stream: bytes) -> TopicPartition:
        topics = self._connection.topics
        return TopicPartition(topics.answers, partition_of(stream, topics.partitions))

    async def _follow_unless_failed(
        self,
        stream: bytes,
        future: asyncio.Future[bytes],
        timeout: float | None,  # noqa: ASYNC109
    ) -> None:
        """Follow the stream's partition, or return when ``future`` has the error of a consumer that failed."""
        lookup = asyncio.create_task(self._follow(stream))
        try:
            either: list[asyncio.Future[Any]] = [lookup, future]
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if future.cancelled():  # by a disconnect: the lookup notices it, and stops its consumer
                await asyncio.wait([lookup], timeout=timeout)
            if lookup.done():
                lookup.result()
            elif not future.done():
                raise TimeoutError
        finally:
            lookup.cancel()

    async def _follow(self, stream: bytes) -> None:
        """Read the new answers of the stream's partition, unless they are read already."""
        partition = self._partition_of(stream)
        async with self._start_lock:
            if self._consumer is None:
                self._followed.clear()
                self._consumer = await self._connection.open_answers_consumer(
                    from_beginning=False, searched_bytes=self._strings_to_search
                )
                self._consumer.pause(*self._consumer.assignment())
                self._task = asyncio.create_task(self._deliver(self._consumer))
            consumer = self._consumer
            if partition in self._followed:
                return
            with suppress(ConsumerStoppedError):
                await consumer.seek_to_end(partition)
                end_offset = await consumer.position(partition)
                if consumer is self._consumer:
                    consumer.resume(partition)
                    self._followed[partition] = LastUse(time.monotonic(), end_offset)

    def _strings_to_search(self, partition: int) -> Collection[bytes] | None:
        """Return the byte strings of which every awaited answer contains one; None if they are too many."""
        if len(self._futures) > MAX_SEARCHED_STRINGS:
            return None
        streams = [one for one in self._futures if self._partition_of(one).partition == partition]
        ids = [identifier for one in streams for identifier in self._futures[one]]
        # An id of these characters is unescaped in its answer's JSON. For other ids, search for the
        # streams, which are the answers' keys.
        if len(ids) <= MAX_SEARCHED_STRINGS and all(map(_UNESCAPED_ID.fullmatch, ids)):
            return [identifier.encode() for identifier in ids]
        return streams

    def _pause_idle_partitions(self, consumer: AIOKafkaConsumer) -> None:
        now = time.monotonic()
        ends = {one: consumer.highwater(one) or last.end_offset for one, last in self._followed.items()}
        idle = {
            one
            for one, last in self._followed.items()
            if now - last.time > IDLE_PARTITION_SECONDS or ends[one] - last.end_offset > IDLE_PARTITION_RECORDS
        }
        if not idle:
            return
        # This method runs after every fetch, so pending questions are looked up only if a partition may be idle.
        needed = set(map(self._partition_of, self._futures))
        self._followed.update({one: LastUse(now, ends[one]) for one in idle & needed})
        for partition in idle - needed:
            del self._followed[partition]
            consumer.pause(partition)

    async def _deliver(self, consumer: AIOKafkaConsumer) -> None:
        try:
            while True:
                fetched = await consumer.getmany(
                    timeout_ms=500, max_records=self._connection.settings.batch_events
                )
                for record in (record for records in fetched.values() for record in select_readable(records)):
                    if (pending := self._futures.get(record.key)) is None:
                        continue
                    identifier, _ = address_of(record.value) or ("", "")
                    for future in tuple(pending.get(identifier, ())):
                        if not future.done():
                            future.set_result(record.value)
                self._pause_idle_partitions(consumer)
        except KafkaError as error:
            for future in self._all_futures():
                if not future.done():
                    future.set_exception(translate_kafka_error(error))
            self._consumer = None  # the next question starts another consumer
            await consumer.stop()


MAX_PENDING_QUESTIONS: Final = 1000
"""Maximum number of questions of one ``ask_many`` that wait for answers at the same time."""

PublishFunction = Callable[[Question], Awaitable[PendingQuestion]]


class PendingResults:
    """Results of ``ask_many``: ``await`` returns all of them, ``async for`` yields one at a time.

    Results come in the order of the questions. At most 1,000 questions are pending at a time, so ``async for`` needs
    little memory. A rejected or halted question raises no error; call ``Result.checked`` to raise it.

    A collection of questions is validated before its first question is published; with ``await``, so is a generator.
    The questions of an asynchronous generator, and with ``async for`` those of any generator, are validated one by one:
    the results of earlier questions come before ``Invalid`` is raised, or are the error's ``results`` (with ``await``).
    """

    def __init__(self, publish: PublishFunction, questions: Iterable[Question] | AsyncIterable[Question]) -> None:
        self._publish = publish
        self._questions = questions

    def __await__(self) -> Generator[Any, None, Results]:
        return self._collect_results().__await__()

    async def __aiter__(self) -> AsyncIterator[Result]:
        asked = self._questions
        async with aclosing(
            self._yield_results_or_errors(_parse_questions(asked) if isinstance(asked, Collection) else asked)
        ) as results_or_errors:
            async for one in results_or_errors:
                if isinstance(one, (Timeout, Unreachable)):
                    raise one
                yield one

    async def _collect_results(self) -> Results:
        asked = self._questions
        results: list[Result] = []
        errors: list[Timeout | Unreachable] = []
        try:
            async with aclosing(
                self._yield_results_or_errors(
                    asked if isinstance(asked, AsyncIterable) else _parse_questions(asked)
                )
            ) as results_or_errors:
                async for one in results_or_errors:
                    if isinstance(one, (Timeout, Unreachable)):
                        errors.append(one)
                    else:
                        results.append(one)
        except (Invalid, Unreachable) as ended:
            ended.unanswered, ended.results = _unanswered_queries(errors), Results(results)
            raise
        if errors:
            missing = _unanswered_queries(errors)
            message = f"{len(missing)} questions have no answer: {errors[0]}"
            raise type(errors[0])(message, missing, Results(results))
        return Results(results)

    async def _yield_results_or_errors(
        self, questions: Iterable[Question] | AsyncIterable[Question]
    ) -> AsyncGenerator[Result | Timeout | Unreachable, None]:
        waiting: deque[PendingQuestion] = deque()
        ended: Exception | None = None
        try:
            try:
                async for question in _iterate(questions):
                    waiting.append(await self._publish(question))
                    if len(waiting) == MAX_PENDING_QUESTIONS:
                        yield await _answer_or_error(waiting.popleft())
            except Exception as error:  # noqa: BLE001  (raised below, after the answers to earlier questions)
                ended = error
            while waiting:
                yield await _answer_or_error(waiting.popleft())
        finally:
            for pending in waiting:
                pending.future.cancel()
        if ended is not None:
            raise ended


def _parse_questions(questions: Iterable[Question]) -> list[Query]:
    return [as_query(one, {}, new_id) for one in questions]


def _unanswered_queries(errors: Iterable[Timeout | Unreachable]) -> tuple[Query, ...]:
    return tuple(query for one in errors for query in one.unanswered)


async def _answer_or_error(pending: PendingQuestion) -> Result | Timeout | Unreachable:
    try:
        return await pending.wait_for_answer()
    except (Timeout, Unreachable) as lost:
        return lost


async def _iterate(questions: Iterable[Question] | AsyncIterable[Question]) -> AsyncIterator[Question]:
    if isinstance(questions, AsyncIterable):
        async for question in questions:
            yield question
    else:
        for question in questions:
            yield question
