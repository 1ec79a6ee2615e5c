"""The asynchronous client's calls that wait for no answer: questions, people's events, and marks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from aiokafka import TopicPartition

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    LedgerRecord,
    Query,
    Receipt,
    Request,
    SourceRecord,
    subject_of,
)
from schemas.wire import Codec
from stream.client.kafka_connection import Connection, translated
from stream.client.ledger_reader import new_id
from stream.engine.restore import readable
from stream.errors import Invalid, Timeout
from stream.processing.protocol import Headers
from stream.processing.receipts import RECEIPT_PREFIX, request_digest
from stream.processing.topic_names import LEDGER_PARTITIONS
from stream.questions import Question
from stream.questions.live_events import (
    LiveEvent,
    LiveRecord,
    LiveTopic,
    live_name,
    live_source,
    marks_of,
    milliseconds_of,
    require_events,
)
from stream.questions.question_forms import as_query, require_headers

_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)


class PublishCalls(ABC):
    """What of a client hands events to Kafka and returns at once; ``flush`` tells whether Kafka took them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._live: dict[str, LiveTopic] = {}
        self._undelivered: list[BaseException] = []

    @abstractmethod
    async def budget(self, source: str) -> SourceRecord:
        """A source's budget as of now."""

    async def publish(
        self,
        question: Question,
        events: Iterable[LiveEvent] | None = None,
        /,
        *,
        headers: Headers = (),
        **fields: Any,
    ) -> None:
        """Hand one question, or people's events for the topic of a source, to the producer; ``flush`` waits until Kafka has them.

        ``publish("ward-7", value=250)`` asks. ``headers`` may hold CloudEvents attributes and W3C trace context, which the answer
        then carries too.

        ``publish("visits", events)`` writes to the source's own topic, which must be there. Events are mappings, or raw bytes that
        may be wrong. They go to the partitions of the people whom they name. Unlike the driver's call it gives no answers: those
        come in ``answers``.
        """
        if events is not None:
            topic = await self._topic_of(live_name(question, headers, fields))
            require_events(events)
            await self._write(topic.record(event) for event in events)
            return
        query = as_query(question, fields, new_id)
        require_headers(headers)
        self._connection.require_open()
        with translated():
            self._noted(await self._send(query, headers))

    async def advance(self, source: str, time: str | float | datetime) -> None:
        """Let the clock of a source reach a moment: in ISO 8601, a datetime with a zone, or seconds since 1970.

        A mark for each partition of the source's topic is handed to the producer, after what was published before. Unlike the
        driver's call it gives no answers.

        Raises:
            Invalid: ``time`` is no moment from 1970 to 9999, such as milliseconds; or marks are not the source's clock, and the
                broker's moves by itself.
        """
        moment = milliseconds_of(time)
        topic = await self._topic_of(source)
        marks_of(topic.source)
        await self._write(topic.marks(moment))

    async def flush(self) -> None:
        """Wait until Kafka has everything published; raises what it did not take."""
        with translated():
            await self._connection.flush()
            await asyncio.sleep(0)  # for the callbacks of the last
            undelivered, self._undelivered = self._undelivered, []
            if undelivered:
                raise undelivered[0]

    async def _send(self, query: Query, headers: Headers) -> asyncio.Future[Any]:
        value = _queries.encode(query)
        return await self._connection.send(self._connection.topics.queries, query.stream, value, headers)

    async def _topic_of(self, source: str) -> LiveTopic:
        """The topic of a source; its definition is read once, for a name stands for one definition for ever."""
        self._connection.require_open()
        if source not in self._live:
            declared = live_source((await self.budget(source)).source)
            with translated():
                self._live[source] = LiveTopic(declared, await self._connection.partitions_of(declared.topic))
        return self._live[source]

    async def _write(self, records: Iterable[LiveRecord]) -> None:
        with translated():
            for record in records:
                self._noted(await self._connection.write(record))

    def _noted(self, sent: asyncio.Future[Any]) -> None:
        sent.add_done_callback(self._note_undelivered)

    def _note_undelivered(self, sent: asyncio.Future[Any]) -> None:
        if not sent.cancelled() and (error := sent.exception()) is not None:
            self._undelivered.append(error)


_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def send_requests(connection: Connection, requests: Sequence[Request], timeout: float) -> list[Receipt]:  # noqa: ASYNC109
    """Send requests at once and give their receipts in the same order, refusals among them.

    A receipt is taken for a request if it has its id and its digest: whoever else uses the id gets another.

    Raises:
        Timeout: not all have come ``timeout`` seconds from now; what was sent may still be done.
    """
    wanted = [(request.request, request_digest(request)) for request in requests]
    missing = set(wanted)
    receipts: dict[tuple[str, str], Receipt] = {}
    try:
        async with asyncio.timeout(timeout):
            await _send_and_read(connection, requests, missing, receipts)
    except TimeoutError:
        raise Timeout(
            f"{len(missing)} requests without receipt; are Kafka and 'sotto serve budget' running?"
        ) from None
    return [receipts[one] for one in wanted]


async def _send_and_read(
    connection: Connection,
    requests: Sequence[Request],
    missing: set[tuple[str, str]],
    receipts: dict[tuple[str, str], Receipt],
) -> None:
    async with connection.reader(connection.topics.ledger) as consumer:
        partitions = [TopicPartition(connection.topics.ledger, number) for number in range(LEDGER_PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)
        sent = []
        for request in requests:
            value = _requests.encode(request)
            if len(value) > MAX_DEFINITION_BYTES:
                raise Invalid(
                    f"request: {len(value)} bytes; send at most {MAX_DEFINITION_BYTES}: declare fewer categories"
                )
            sent.append(await connection.send(connection.topics.requests, subject_of(request)[0], value))
        for future in sent:
            # The producer goes by whether it fails, whoever waits for it.
            await asyncio.shield(future)
        while missing:
            fetched = await consumer.getmany(timeout_ms=200, max_records=connection.settings.batch_events)
            for record in (record for records in fetched.values() for record in readable(records)):
                if record.key is None or not record.key.startswith(RECEIPT_PREFIX) or record.value is None:
                    continue
                entry = _ledger.decode(record.value)
                if isinstance(entry, Receipt) and (key := (entry.request, entry.digest)) in missing:
                    receipts[key] = entry
                    missing.discard(key)
