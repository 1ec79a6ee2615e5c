"""The asynchronous SDK: register sources, open streams, ask, read answers, watch budgets."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from pydantic import TypeAdapter

from schemas import (
    MAX_ANSWER_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    Answer,
    CloseStream,
    GrantRecord,
    HaltSource,
    HaltStream,
    LedgerRecord,
    OpenStream,
    Query,
    Receipt,
    RegisterSource,
    Request,
    Source,
    SourceRecord,
    StreamSpec,
    StreamStatus,
    subject_of,
)
from schemas.wire import Codec, MalformedEventError, struct
from stream.accounting.ledger import RefusedError
from stream.kafka.restore import read_to_end, reader, require_visible
from stream.kafka.security import connection
from stream.kafka.topics import find_topics
from stream.kafka.unread import readable
from stream.processors.base import Headers
from stream.processors.budget.receipts import RECEIPT_PREFIX, request_digest
from stream.processors.topics import LEDGER_PARTITIONS, Topics, partition_of
from stream.settings import Settings
from stream.tracing import context_headers

REQUEST_TIMEOUT = 30.0
"""Seconds that a request waits for its receipt: some budget service must be running."""

_sources: TypeAdapter[Source] = TypeAdapter(Source)
_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)
_answers: Codec[Answer] = Codec(Answer, limit=MAX_ANSWER_BYTES)
_decode_address: Any = msgspec.json.Decoder(struct(Answer)).decode


class Client:
    """One connection to an installation. Use it as an asynchronous context manager.

    The producer is idempotent and partitions by murmur2 of the stream; all readers see committed records only.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._open = False
        self._producer: AIOKafkaProducer | None = None
        self._producing = asyncio.Lock()
        self._topics = Topics(self._settings.prefix)
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Answer]]] = {}
        self._listening = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._answers_consumer: AIOKafkaConsumer | None = None

    async def __aenter__(self) -> Self:
        self._topics = await find_topics(self._settings, attempts=25)
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._answers_consumer is not None:
            await self._answers_consumer.stop()
        for futures in self._waiting.values():
            for future in futures:
                future.cancel()
        if self._producer is not None:
            await self._producer.stop()

    @property
    def topics(self) -> Topics:
        """The installation's topics."""
        return self._topics

    async def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source. RefusedError if the name stands for something else already."""
        return await self.request(RegisterSource(request=_new_id(), source=_sources.validate_python(source)))

    async def open(self, stream: StreamSpec | Mapping[str, Any]) -> Receipt:
        """Open a stream; once this returns it answers. RefusedError says what was asked and what is left."""
        return await self.request(OpenStream(request=_new_id(), stream=StreamSpec.model_validate(stream)))

    async def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; the refund follows once its worker has reported its last totals."""
        return await self.request(CloseStream(request=_new_id(), source=source, stream=stream, reason=reason))

    async def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        if stream is None:
            return await self.request(HaltSource(request=_new_id(), source=source, reason=reason))
        return await self.request(HaltStream(request=_new_id(), source=source, stream=stream, reason=reason))

    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and wait for its receipt. Sending the same id again is safe and gives the same receipt."""
        receipts = await self.requests([request], timeout)
        receipt = receipts[0]
        if receipt.outcome == "refused":
            raise RefusedError(receipt.reason or "refused", receipt.asked, receipt.left)
        return receipt

    async def requests(
        self,
        requests: Iterable[Request],
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Send many requests at once and give their receipts in the same order, refusals among them.

        A receipt is taken for a request if it has its id and its digest: whoever else uses the id gets another.

        TimeoutError if not all have come within ``timeout`` seconds: is a budget service running?
        """
        requests = list(requests)
        wanted = [(request.request, request_digest(request)) for request in requests]
        receipts: dict[tuple[str, str], Receipt] = {}
        consumer = reader(self._settings)
        await consumer.start()
        try:
            await require_visible(consumer, self._topics.ledger)
            partitions = [TopicPartition(self._topics.ledger, number) for number in range(LEDGER_PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_end(*partitions)
            for partition in partitions:
                await consumer.position(partition)
            for request in requests:
                value = _requests.encode(request)
                if len(value) > MAX_DEFINITION_BYTES:
                    raise MalformedEventError(
                        f"request: {len(value)} bytes; send at most {MAX_DEFINITION_BYTES}: declare fewer categories"
                    )
                await self._send(self._topics.requests, subject_of(request)[0], value)
            await self.flush()
            missing = set(wanted)
            deadline = time.monotonic() + timeout
            while missing:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{len(missing)} requests without receipt; is 'sotto serve budget' running?"
                    )
                fetched = await consumer.getmany(timeout_ms=200, max_records=self._settings.batch_events)
                for record in (record for records in fetched.values() for record in readable(records)):
                    if record.key is None or not record.key.startswith(RECEIPT_PREFIX) or record.value is None:
                        continue
                    entry = _ledger.decode(record.value)
                    if isinstance(entry, Receipt) and (key := (entry.request, entry.digest)) in missing:
                        receipts[key] = entry
                        missing.discard(key)
        finally:
            await consumer.stop()
        return [receipts[one] for one in wanted]

    async def ask(self, query: Query | Mapping[str, Any], headers: Headers = ()) -> Answer:
        """Ask one query and wait for its answer; an ``id`` is made up where none is given."""
        if not isinstance(query, Query):
            query = Query.model_validate({"id": _new_id(), **query})
        await self._listen()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((query.stream, query.id), [])
        waiting.append(future)
        try:
            await self.publish(query, headers)
            return await future
        finally:
            waiting.remove(future)
            if not waiting:
                self._waiting.pop((query.stream, query.id), None)

    async def ask_all(self, queries: Iterable[Query]) -> list[Answer]:
        """Ask many queries at once and give their answers in the same order."""
        return list(await asyncio.gather(*map(self.ask, queries)))

    async def publish(self, query: Query, headers: Headers = ()) -> asyncio.Future[Any]:
        """Hand one query to the producer and return at once; the future resolves when Kafka has it.

        ``headers`` may hold CloudEvents attributes and W3C trace context, which the answer then carries too.
        """
        return await self._send(self._topics.queries, query.stream, _queries.encode(query), headers)

    async def flush(self) -> None:
        """Wait until Kafka has everything published."""
        if self._producer is not None:
            await self._producer.flush()

    async def answers(self, *, from_beginning: bool = False) -> AsyncIterator[Answer]:
        """Committed answers of all streams, as they come; without end."""
        consumer = await self._answer_reader(from_beginning=from_beginning)
        try:
            while True:
                fetched = await consumer.getmany(timeout_ms=500, max_records=self._settings.batch_events)
                for records in fetched.values():
                    for record in readable(records):
                        yield _answers.decode(record.value)
        finally:
            await consumer.stop()

    async def budget(self, source: str) -> tuple[SourceRecord, list[GrantRecord]]:
        """A source's totals and its grants as of now; KeyError if it is not registered."""
        found: SourceRecord | None = None
        grants: dict[str, GrantRecord] = {}
        partition = TopicPartition(self._topics.ledger, partition_of(source.encode(), LEDGER_PARTITIONS))
        wanted, of_source = f"source|{source}".encode(), f"grant|{source}|".encode()
        consumer = reader(self._settings)
        await consumer.start()
        try:
            await require_visible(consumer, self._topics.ledger)
            async for records in read_to_end(consumer, partition, self._settings.batch_events):
                for record in records:
                    if record.value is None or not (record.key == wanted or record.key.startswith(of_source)):
                        continue
                    entry = _ledger.decode(record.value)
                    if isinstance(entry, SourceRecord):
                        found = entry
                    elif isinstance(entry, GrantRecord):
                        grants[entry.spec.stream] = entry
        finally:
            await consumer.stop()
        if found is None:
            raise KeyError(f"source '{source}' is not registered; register it with 'sotto source add'")
        return found, list(grants.values())

    async def sources(self) -> list[Source]:
        """The definitions of all sources that are registered as of now."""
        found: dict[str, Source] = {}
        consumer = reader(self._settings)
        await consumer.start()
        try:
            await require_visible(consumer, self._topics.ledger)
            for number in range(LEDGER_PARTITIONS):
                partition = TopicPartition(self._topics.ledger, number)
                async for records in read_to_end(consumer, partition, self._settings.batch_events):
                    for record in records:
                        if record.value is None or not record.key.startswith(b"source|"):
                            continue
                        if isinstance(entry := _ledger.decode(record.value), SourceRecord):
                            found[entry.source.source] = entry.source
        finally:
            await consumer.stop()
        return list(found.values())

    async def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """What workers last showed of these streams, with the time in seconds since the epoch; not all have a digest."""
        wanted = {stream.encode(): stream for stream in streams}
        found: dict[str, tuple[StreamStatus, float]] = {}
        consumer = reader(self._settings)
        await consumer.start()
        try:
            await require_visible(consumer, self._topics.status)
            for number in sorted({partition_of(key, self._topics.partitions) for key in wanted}):
                partition = TopicPartition(self._topics.status, number)
                async for records in read_to_end(consumer, partition, self._settings.batch_events):
                    for record in records:
                        if record.value is not None and (stream := wanted.get(record.key)) is not None:
                            found[stream] = (_statuses.decode(record.value), record.timestamp / 1000)
        finally:
            await consumer.stop()
        return found

    async def _listen(self) -> None:
        async with self._listening:
            if self._answers_consumer is None:
                self._answers_consumer = await self._answer_reader(from_beginning=False)
                self._listener = asyncio.create_task(self._deliver(self._answers_consumer))

    async def _deliver(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            fetched = await consumer.getmany(timeout_ms=500, max_records=self._settings.batch_events)
            for record in (record for records in fetched.values() for record in readable(records)):
                brief = _decode_address(record.value)
                for future in self._waiting.get((brief.stream, brief.id), ()):
                    if not future.done():
                        future.set_result(_answers.decode(record.value))

    async def _answer_reader(self, *, from_beginning: bool) -> AIOKafkaConsumer:
        consumer = reader(self._settings, fetch_max_wait_ms=50)
        await consumer.start()
        partitions = [TopicPartition(self._topics.answers, number) for number in range(self._topics.partitions)]
        try:
            await require_visible(consumer, self._topics.answers)
            consumer.assign(partitions)
            seek = consumer.seek_to_beginning if from_beginning else consumer.seek_to_end
            await seek(*partitions)
            for partition in partitions:
                await consumer.position(partition)
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    async def _send(self, topic: str, key: str, value: bytes, headers: Headers = ()) -> asyncio.Future[Any]:
        producer = self._producer or await self._start_producer()
        future: asyncio.Future[Any] = await producer.send(
            topic, key=key.encode(), value=value, headers=[*headers, *context_headers()]
        )
        return future

    async def _start_producer(self) -> AIOKafkaProducer:
        """Start it at the first event: whoever only reads need not be allowed to write."""
        if not self._open:
            raise RuntimeError("the client is not open; use 'async with Client() as client'")
        async with self._producing:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **connection(self._settings),
                    enable_idempotence=True,
                    linger_ms=2,
                    max_batch_size=256 * 1024,
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer


def _new_id() -> str:
    return uuid.uuid4().hex
