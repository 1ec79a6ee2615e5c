"""Sends questions, events, watermarks and requests."""

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
    """The client's calls that return before delivery; ``flush`` raises delivery errors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._live: dict[str, LiveTopic] = {}
        self._undelivered: list[BaseException] = []

    @abstractmethod
    async def budget(self, source: str) -> SourceRecord:
        """Return a source's budget."""

    async def publish(
        self,
        question: Question,
        events: Iterable[LiveEvent] | None = None,
        /,
        *,
        headers: Headers = (),
        **fields: Any,
    ) -> None:
        """Send one question, or events to a source's topic, without waiting; see ``flush``.

        ``publish("ward-7", value=250)`` sends a question; read its answer with ``answers``. ``headers``
        may have CloudEvents attributes and W3C trace context, which the answer repeats.

        ``publish("visits", events)`` writes to the source's topic, which must exist. Each event is a
        mapping or encoded bytes, and goes to the partition of its person.
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
        """Advance a source's clock to ``time``: send a watermark to each partition of its topic.

        ``time`` is ISO 8601, a datetime with a zone, or Unix time in seconds. The watermarks follow
        all events that were published before.

        Raises:
            Invalid: ``time`` is not from 1970 to 9999 (for example milliseconds), or the source's clock
                is not ``marks``.
        """
        moment = milliseconds_of(time)
        topic = await self._topic_of(source)
        marks_of(topic.source)
        await self._write(topic.marks(moment))

    async def flush(self) -> None:
        """Wait until Kafka has all published records; raise the first delivery error."""
        with translated():
            await self._connection.flush()
            await asyncio.sleep(0)  # runs the callbacks of the last records
            undelivered, self._undelivered = self._undelivered, []
            if undelivered:
                raise undelivered[0]

    async def _send(self, query: Query, headers: Headers) -> asyncio.Future[Any]:
        value = _queries.encode(query)
        return await self._connection.send(self._connection.topics.queries, query.stream, value, headers)

    async def _topic_of(self, source: str) -> LiveTopic:
        """Return a source's topic; read once, because a definition never changes."""
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
    """Send requests and return their receipts, refusals included, in the same order.

    A receipt must match the id and the digest, because another client may use the same id.

    Raises:
        Timeout: a receipt is missing after ``timeout`` seconds; the requests may still be decided.
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
            # Cancelling the caller must not cancel the future: KafkaSender needs its outcome.
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
