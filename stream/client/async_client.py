"""The asynchronous client of an installation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from aiokafka import TopicPartition

from schemas import (
    MAX_DEFINITION_BYTES,
    Query,
    Receipt,
    Request,
    StreamStatus,
    ledger_codec,
    query_codec,
    request_codec,
    subject_of,
)
from stream.budget.receipts import RECEIPT_KEY_PREFIX, WAITING_KEY_PREFIX, request_digest, waiting_key
from stream.client.answer_history import watch_notices
from stream.client.answer_reader import AnswerListener, PendingQuestion, PendingResults
from stream.client.client_calls import AsyncCalls
from stream.client.kafka_connection import KafkaConnection, translate_errors
from stream.client.ledger_reader import MAX_LEDGER_WAIT_SECONDS, FollowedLedger, read_latest_first, read_topic
from stream.client.ledger_view import LedgerView
from stream.engine.restore import select_readable
from stream.errors import Invalid, Timeout
from stream.formatting import format_count
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics
from stream.questions import Question, Result, Results
from stream.questions.alert_states import Notice
from stream.questions.answer_warnings import is_about_table
from stream.questions.live_events import (
    LiveEvent,
    LiveRecord,
    LiveTopic,
    parse_time,
    require_events,
    require_live_source,
    require_marks,
    require_source_name,
)
from stream.questions.question_forms import (
    ANSWER_TIMEOUT,
    as_query,
    as_settings,
    require_headers,
    require_many,
    require_timeout,
    set_default_max_price,
)
from stream.questions.stream_watch import Watch
from stream.settings import Settings


class AsyncClient(AsyncCalls):
    """Connects to an installation; every error it raises is a ``SottoError``.

    Settings come from the environment (``SOTTO_BOOTSTRAP`` …). Arguments override them, by name
    (``AsyncClient(bootstrap="127.0.0.1:9092")``) or as a ``Settings`` object. The methods' examples
    use ``Client``; with ``AsyncClient``, await each call and iterate with ``async for``.

    Examples:
        >>> async with AsyncClient("127.0.0.1:9092") as client:  # doctest: +SKIP
        ...     result = await client.ask("ward-7", value=250)
        ...     print(result.outcome, result.estimate)
    """

    def __init__(self, settings: Settings | str | None = None, /, **fields: Any) -> None:
        self._connection = KafkaConnection(as_settings(settings, fields))
        self._listener = AnswerListener(self._connection)
        self._ledger = FollowedLedger(self._connection)
        self._live_topics: dict[str, LiveTopic] = {}
        self._delivery_errors: list[BaseException] = []

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Connect to Kafka and find the installation's topics; raise ``Unreachable`` if this fails.

        Examples:
            >>> client.connect()
        """
        with translate_errors():
            await self._connection.open()

    async def disconnect(self) -> None:
        """Send published records for up to 10 seconds, cancel pending questions, and disconnect.

        Records that are not delivered by then are lost without an error; call ``flush`` first.

        Examples:
            >>> client.flush()
            >>> client.disconnect()
        """
        self._connection.is_open = False
        await self._listener.stop()
        await self._ledger.stop()
        await self._connection.close()

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self._connection.topics

    def ask_many(
        self, questions: Iterable[Question] | AsyncIterable[Question], *, timeout: float | None = ANSWER_TIMEOUT
    ) -> PendingResults:
        """Ask many questions; ``await`` returns ``Results``, ``async for`` yields each ``Result``.

        Results keep the order of the questions, and rejected or halted questions do not raise. Each
        question waits up to ``timeout`` seconds for its answer.

        Raises:
            Invalid: a question does not fit the contract. If the questions are a collection, none was
                published; otherwise ``results`` has the answers to the earlier questions.
            Timeout, Unreachable: answers are missing; ``results`` has the answers that arrived.

        Examples:
            >>> questions = [{"stream": "ward-7", "value": float(n)} for n in range(100)]
            >>> results = await client.ask_many(questions)  # doctest: +SKIP
        """
        require_many(questions)
        return PendingResults(partial(self._publish, timeout=timeout), questions)

    async def publish(
        self,
        question: Question,
        events: Iterable[LiveEvent] | None = None,
        /,
        *,
        headers: Headers = (),
        **fields: Any,
    ) -> None:
        """Send one question, or events to a source's topic; ``flush`` waits until Kafka has them.

        ``publish("ward-7", value=250)`` sends a question; read its answer with ``answers``. ``headers``
        may have CloudEvents attributes and W3C trace context; the answer has the same headers.

        ``publish("visits", events)`` writes events to the topic of the source ``visits``. The topic must
        exist. Each event is a mapping or encoded bytes, and its person determines its partition.

        Examples:
            >>> client.publish("counts", where="age >= 65")
            >>> answers = client.publish("visits", [{"who": "ana", "ts": 1767600000000, "ward": "a"}])
        """
        if events is not None:
            topic = await self._live_topic_of(require_source_name(question, headers, fields))
            require_events(events)
            await self._write_records(topic.encode_record(event) for event in events)
            return
        query = as_query(question, fields, self._new_id)
        require_headers(headers)
        with self._connection.guard_call():
            (await self._send(query, headers)).add_done_callback(self._add_delivery_error)

    async def advance(self, source: str, time: str | float | datetime) -> None:
        """Advance a source's clock to ``time``: send a watermark to each partition of its topic.

        ``time`` is ISO 8601, a datetime with a zone, or Unix time in seconds. The watermarks come
        after all events that this client has published.

        Raises:
            Invalid: ``time`` is not from 1970 to 9999 (for example because it is in milliseconds), or
                the source's clock is not ``marks``.

        Examples:
            >>> answers = client.advance("visits", "2026-01-05T10:00:00Z")
        """
        moment = parse_time(time)
        topic = await self._live_topic_of(source)
        require_marks(topic.source)
        await self._write_records(topic.make_marks(moment))

    async def flush(self) -> None:
        """Wait until Kafka has stored all published records; raise the first error of a record.

        Examples:
            >>> client.flush()
        """
        with translate_errors():
            await self._connection.flush()
            await asyncio.sleep(0)  # runs the callbacks of the last records
            errors, self._delivery_errors = self._delivery_errors, []
            if errors:
                raise errors[0]

    async def answers(self, *, from_beginning: bool = False) -> AsyncGenerator[Result, None]:
        """Yield committed answers of all streams without end: new answers, or all with ``from_beginning``.

        Examples:
            >>> for result in client.answers(from_beginning=True):
            ...     print(result.stream, result.outcome)
        """
        with self._connection.guard_call():
            consumer = await self._connection.open_answers_consumer(from_beginning=from_beginning)
            try:
                while True:
                    batch = self._connection.settings.batch_events
                    fetched = await consumer.getmany(timeout_ms=500, max_records=batch)
                    for records in fetched.values():
                        for record in select_readable(records):
                            yield await self._ledger.add_stream(Result.read(record.value))
            finally:
                await consumer.stop()

    async def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> AsyncGenerator[Notice, None]:
        """Yield alerts and ends of streams as they are committed, without end.

        A stream's name may contain ``*`` as a wildcard. Without names, all streams of ``source`` are
        watched; without ``source``, the streams of all sources. With ``quiet``, all answers are yielded.

        Raises:
            Unknown: the source, or a stream named without wildcard, does not exist.

        Examples:
            >>> for notice in client.watch("ward-*"):
            ...     print(notice)
        """
        with self._connection.guard_call():
            watch = Watch(streams, source, all_answers=quiet)
            async with aclosing(watch_notices(self._connection, watch, from_beginning=from_beginning)) as notices:
                async for notice in notices:
                    known = notice.answer and await self._ledger.add_stream(notice.answer)
                    yield (
                        notice if known is None else replace(notice, bound_text=known.counted or notice.bound_text)
                    )

    async def _ask_query(self, query: Query, timeout: float | None, headers: Headers) -> Result:  # noqa: ASYNC109
        pending = await self._publish(query, timeout, headers)
        try:
            return await pending.wait_for_answer()
        finally:
            pending.future.cancel()

    async def _ask_queries(self, queries: Sequence[Query], timeout: float | None) -> Results:  # noqa: ASYNC109
        return await self.ask_many(queries, timeout=timeout)

    async def _publish(
        self,
        question: Question,
        timeout: float | None,  # noqa: ASYNC109
        headers: Headers = (),
    ) -> PendingQuestion:
        query = set_default_max_price(as_query(question, {}, self._new_id))
        require_timeout(timeout)
        with self._connection.guard_call():
            source = await self._ledger.find_source(query.stream) if is_about_table(query) else None
            calibration = None if source is None else self._ledger.calibration_of(query.stream, source)
            pending = await self._listener.add_question(query, source, calibration, timeout)
            try:
                pending.fail_if_rejected(await self._send(query, headers))
            except BaseException:
                pending.future.cancel()
                raise
        return pending

    async def _send(self, query: Query, headers: Headers) -> asyncio.Future[Any]:
        value = query_codec.encode(query)
        return await self._connection.send(self.topics.queries, query.stream, value, headers)

    async def _live_topic_of(self, source: str) -> LiveTopic:
        """Return the live topic of a source, from a cache: a source's definition never changes."""
        self._connection.require_open()
        if source not in self._live_topics:
            declared = require_live_source((await self.budget(source)).source)
            with translate_errors():
                self._live_topics[source] = LiveTopic(
                    declared, await self._connection.partitions_of(declared.topic)
                )
        return self._live_topics[source]

    async def _write_records(self, records: Iterable[LiveRecord]) -> None:
        with translate_errors():
            for record in records:
                (await self._connection.write(record)).add_done_callback(self._add_delivery_error)

    def _add_delivery_error(self, delivery: asyncio.Future[Any]) -> None:
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            self._delivery_errors.append(error)

    async def _read_topic(
        self, topic: str, partitions: Iterable[int] = (0,)
    ) -> AsyncGenerator[Sequence[Any], None]:
        with self._connection.guard_call():
            async for records in read_topic(self._connection, topic, partitions):
                yield records

    async def _read_latest_first(self, topic: str, partition: int) -> AsyncGenerator[Sequence[Any], None]:
        with self._connection.guard_call():
            async with aclosing(read_latest_first(self._connection, topic, partition)) as batches:
                async for records in batches:
                    yield records

    async def _read_choices(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        async with asyncio.timeout(MAX_LEDGER_WAIT_SECONDS):
            return await super()._read_choices(streams)

    async def _read_ledger(self) -> LedgerView:
        with self._connection.guard_call():
            return await self._ledger.read()

    async def _send_requests(self, requests: Sequence[Request], timeout: float) -> list[Receipt]:  # noqa: ASYNC109
        """Send requests and wait for their receipts.

        Another client may use the same id, so a receipt must also have the request's digest.
        """
        wanted = [(request.request, request_digest(request)) for request in requests]
        missing = set(wanted)
        receipts: dict[tuple[str, str], Receipt] = {}
        waiting: set[bytes] = set()
        try:
            with self._connection.guard_call():
                async with asyncio.timeout(timeout):
                    await self._send_and_read(requests, missing, receipts, waiting)
        except TimeoutError:
            cause = "they may still take effect, so send no others in their place; check that Kafka and 'sotto serve budget' run"
            if any(waiting_key(*one) in waiting for one in missing):
                cause = "a table is being read, and the requests are decided after that; send them again to get their receipts"
            unanswered = format_count(len(missing), "request has", "requests have")
            raise Timeout(f"{unanswered} no receipt after {timeout:g} s; {cause}") from None
        return [receipts[one] for one in wanted]

    async def _send_and_read(
        self,
        requests: Sequence[Request],
        missing: set[tuple[str, str]],
        receipts: dict[tuple[str, str], Receipt],
        waiting: set[bytes],
    ) -> None:
        topics, batch = self.topics, self._connection.settings.batch_events
        async with self._connection.reader(topics.ledger) as consumer:
            ledger = TopicPartition(topics.ledger, 0)
            consumer.assign([ledger])
            await consumer.seek_to_end(ledger)
            await consumer.position(ledger)
            deliveries = []
            for request in requests:
                value = request_codec.encode(request)
                if len(value) > MAX_DEFINITION_BYTES:
                    raise Invalid(
                        f"request: has {len(value)} bytes, at most {MAX_DEFINITION_BYTES} are allowed; declare fewer categories"
                    )
                deliveries.append(await self._connection.send(topics.requests, subject_of(request)[0], value))
            for delivery in deliveries:
                # KafkaSender needs the outcome of each delivery, even if the caller is cancelled.
                await asyncio.shield(delivery)
            while missing:
                fetched = await consumer.getmany(timeout_ms=200, max_records=batch)
                for record in (record for records in fetched.values() for record in select_readable(records)):
                    if record.key is None or record.value is None:
                        continue
                    if record.key.startswith(WAITING_KEY_PREFIX):
                        waiting.add(record.key)
                    if not record.key.startswith(RECEIPT_KEY_PREFIX):
                        continue
                    entry = ledger_codec.decode(record.value)
                    if isinstance(entry, Receipt) and (key := (entry.request, entry.digest)) in missing:
                        receipts[key] = entry
                        missing.discard(key)
