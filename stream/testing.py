"""Sotto in memory, for tests: the very processors, codecs and restore path of the services, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from blake3 import blake3
from pydantic import TypeAdapter

from schemas import (
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
    subject_of,
)
from schemas.wire import Codec
from stream.accounting.ledger import RefusedError
from stream.data import TableStore
from stream.noise import NoiseKey
from stream.processors.base import Headers, Outputs, Record, TableMissedError
from stream.processors.budget import BudgetProcessor
from stream.processors.budget.receipts import RECEIPT_PREFIX, request_digest
from stream.processors.queries import QueryProcessor
from stream.processors.queries.shares import Limits
from stream.processors.rejections import address_of
from stream.processors.topics import Topics, partition_of

BATCH_EVENTS = 5000

_answers: TypeAdapter[Answer] = TypeAdapter(Answer)
_sources: TypeAdapter[Source] = TypeAdapter(Source)
_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)

Place = tuple[str, int]


class NotReproducibleError(AssertionError):
    """A batch that was delivered again gave other bytes."""


class Driver:
    """A whole installation in one object: topics as lists, workers for every partition, the budget service.

    Everything is deterministic: two drivers with the same key that are told the same things write the same bytes.
    """

    def __init__(
        self,
        noise_key: NoiseKey | bytes | str,
        *,
        partitions: int = 4,
        work_outstanding: float = 0.0,
        work_rate: float = 0.5,
    ) -> None:
        """Take the key as such, as 32 bytes, or as 64 hexadecimal digits.

        ``work_outstanding`` and ``work_rate`` are the settings of that name; unlike there, nobody is busy by default.
        """
        self.topics = Topics(partitions=partitions)
        self._key = _as_key(noise_key)
        self._limits = Limits.of(work_outstanding, work_rate)
        self._now = 0
        self._tables = TableStore.keyed_by(self._key)
        self._frames: dict[str, pl.DataFrame] = {}
        self._logs: dict[Place, list[Record]] = {}
        self._positions: dict[Place, int] = {}
        self._requests = 0
        self._last: tuple[dict[Place, int], list[Record], list[Place]] | None = None
        self._start()

    def register(self, source: Source | Mapping[str, Any], table: Any = None) -> Receipt:
        """Register a source; ``table`` (a polars frame or a mapping of columns) stands in for its path."""
        source = _sources.validate_python(source)
        if table is not None:
            frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(table)
            self._frames[source.source] = frame
            self._tables.put(source.source, frame)
        return self._request(RegisterSource(request=self._next_request(), source=source))

    def open(self, stream: StreamSpec | Mapping[str, Any]) -> Receipt:
        """Open a stream; RefusedError says what was asked and what is left."""
        spec = StreamSpec.model_validate(stream)
        return self._request(OpenStream(request=self._next_request(), stream=spec))

    def close(self, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream and refund what it did not spend."""
        source = self._source_of(stream)
        return self._request(
            CloseStream(request=self._next_request(), source=source, stream=stream, reason=reason),
        )

    def halt(self, stream: str, reason: str = "halted on request") -> Receipt:
        """Halt a stream."""
        source = self._source_of(stream)
        return self._request(HaltStream(request=self._next_request(), source=source, stream=stream, reason=reason))

    def halt_source(self, source: str, reason: str = "source halted on request") -> Receipt:
        """Halt all streams of a source."""
        return self._request(HaltSource(request=self._next_request(), source=source, reason=reason))

    def request(self, request: Request) -> Receipt:
        """Send a request of one's own making, such as one with an id used before."""
        return self._request(request)

    def ask(self, queries: Iterable[Query | Mapping[str, Any] | bytes]) -> list[Answer]:
        """Publish queries and give their answers in the same order.

        Raw bytes go out as they are, to the partition of the stream they name; those without a readable id and stream
        have no answer.
        """
        marks = self._marks()
        published: list[Record] = []
        places: list[Place] = []
        for query in queries:
            value = _encode(query)
            address = address_of(value)
            key = address[1].encode() if address else b""
            place = (self.topics.queries, partition_of(key, self.topics.partitions))
            published.append(self._append(place, key, value))
            if address:
                places.append(place)
        self._last = (marks, published, places)
        self._settle()
        return self._collect(marks, places)

    def publish(self, partition: int, value: bytes, headers: Headers = ()) -> Answer | None:
        """Publish one raw event to a partition of one's own choice, right or wrong."""
        marks = self._marks()
        place = (self.topics.queries, partition)
        self._append(place, b"", value, headers)
        self._last = None
        self._settle()
        answers = self._collect(marks, [place] if address_of(value) else [])
        return answers[0] if answers else None

    def wait(self, seconds: float) -> None:
        """Let time pass: queries are stamped with it, and a stream's share of its partition grows with it."""
        self._now += round(1000 * seconds)

    def crash(self) -> None:
        """Forget all state and rebuild it from the changelogs, as compaction may have left them."""
        self._start()
        self._settle()

    def restart(self, noise_key: NoiseKey | bytes | str) -> None:
        """Come back with another noise key, as after a rotation; tables in memory stay as they are."""
        self._key = _as_key(noise_key)
        self._tables = TableStore.keyed_by(self._key)
        for name, frame in self._frames.items():
            self._tables.put(name, frame)
        self.crash()

    def redeliver(self, *, compare: bool = True) -> list[Answer]:
        """Process what the last ``ask`` published once more, as after an aborted transaction.

        All that it wrote is taken back, the state is rebuilt from what was there before, and the same events come
        again. With ``compare``, NotReproducibleError if any byte written differs.
        """
        if self._last is None:
            raise ValueError("nothing was asked yet")
        marks, published, places = self._last
        before = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, log in self._logs.items():
            if place[0] != self.topics.queries:
                del log[marks.get(place, 0) :]
        self._positions = {place: min(at, marks.get(place, 0)) for place, at in self._positions.items()}
        self._start()
        self._settle()
        after = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, records in before.items():
            if compare and records != after.get(place, []):
                raise NotReproducibleError(
                    f"{place[0]} partition {place[1]}: other bytes for the same {len(published)} events"
                )
        return self._collect(marks, places)

    def ledger(self, source: str) -> SourceRecord:
        """A source's budget as the ledger topic shows it."""
        record = None
        for entry in self.records(self.topics.ledger):
            if entry.key == f"source|{source}".encode() and entry.value is not None:
                record = _ledger.decode(entry.value)
        if not isinstance(record, SourceRecord):
            raise KeyError(f"source '{source}' is not registered")
        return record

    def grant(self, source: str, stream: str) -> GrantRecord:
        """A stream's grant as the ledger topic shows it: its plan, its cost, and what is spent of it."""
        record = None
        for entry in self.records(self.topics.ledger):
            if entry.key == f"grant|{source}|{stream}".encode() and entry.value is not None:
                record = _ledger.decode(entry.value)
        if not isinstance(record, GrantRecord):
            raise KeyError(f"stream '{stream}' of source '{source}' was never opened")
        return record

    def records(self, topic: str) -> list[Record]:
        """Everything ever written to a topic, partition by partition."""
        return [record for place in sorted(self._logs) if place[0] == topic for record in self._logs[place]]

    def figures(self) -> dict[str, tuple[str, int, int, int, int | None, str]]:
        """Every stream's state, to compare before and after a crash."""
        return {name: kept for worker in self._workers for name, kept in worker.streams.figures().items()}

    def _start(self) -> None:
        topics = self.topics
        self._workers = [self._restored(partition) for partition in range(topics.partitions)]
        self._budget = BudgetProcessor(
            topics,
            0,
            key_id=self._key.key_id,
            tables=self._tables,
            mint=lambda record: blake3(f"{record.topic} {record.offset}".encode(), key=self._key.secret).digest(
                16
            ),
        )
        self._budget.restore(self._compacted((topics.ledger, 0)))
        self._budget.restored()

    def _restored(self, partition: int) -> QueryProcessor:
        topics = self.topics
        worker = QueryProcessor(topics, partition, self._key, self._tables, self._limits)
        worker.restore(self._compacted((topics.control, partition)))
        worker.restore(self._compacted((topics.state, partition)))
        worker.restored()
        self._positions[topics.control, partition] = len(self._logs.get((topics.control, partition), ()))
        return worker

    def _compacted(self, place: Place) -> list[Record]:
        latest = {record.key: record for record in self._logs.get(place, ())}
        return sorted(latest.values(), key=lambda record: record.offset)

    def _settle(self) -> None:
        """Let everybody work until nothing is left to do."""
        topics = self.topics
        for worker in self._workers:
            self._write(worker.follow(()))
        while True:
            moved = self._feed(topics.requests, 0, self._budget.process, self._budget.portion)
            moved |= self._feed(topics.charges, 0, self._budget.process, self._budget.portion)
            for partition in range(topics.partitions):
                moved |= self._follow(partition)
                worker = self._workers[partition]
                moved |= self._feed(topics.queries, partition, worker.process, worker.portion)
            if not moved:
                return

    def _follow(self, partition: int) -> bool:
        try:
            return self._feed(self.topics.control, partition, self._workers[partition].follow)
        except TableMissedError:
            worker = self._workers[partition] = self._restored(partition)
            self._write(worker.follow(()))
            return True

    def _feed(self, topic: str, partition: int, process: Any, portion: Callable[..., int] = len) -> bool:
        place = (topic, partition)
        log = self._logs.get(place, [])
        at = self._positions.get(place, 0)
        if at >= len(log):
            return False
        batch = log[at : at + BATCH_EVENTS]
        batch = batch[: portion(batch)]
        self._write(process(batch))
        self._positions[place] = at + len(batch)
        return True

    def _write(self, outputs: Outputs) -> None:
        for topic, partition, messages in outputs:
            log = self._logs.setdefault((topic, partition), [])
            start = len(log)
            log.extend(
                Record(topic, partition, start + number, 0, key, value, tuple(headers))
                for number, (key, value, headers) in enumerate(messages)
            )

    def _append(self, place: Place, key: bytes, value: bytes, headers: Headers = ()) -> Record:
        log = self._logs.setdefault(place, [])
        record = Record(place[0], place[1], len(log), self._now, key, value, headers)
        log.append(record)
        return record

    def _marks(self) -> dict[Place, int]:
        return {place: len(log) for place, log in self._logs.items()}

    def _collect(self, marks: Mapping[Place, int], places: Sequence[Place]) -> list[Answer]:
        streams = {
            partition: iter(
                self._logs.get((self.topics.answers, partition), [])[
                    marks.get((self.topics.answers, partition), 0) :
                ]
            )
            for partition in range(self.topics.partitions)
        }
        return [_answers.validate_json(next(streams[partition]).value or b"") for _, partition in places]

    def _request(self, request: Request) -> Receipt:
        marks = self._marks()
        source, _ = subject_of(request)
        self._append((self.topics.requests, 0), source.encode(), _requests.encode(request))
        self._last = None
        self._settle()
        written = self._logs[self.topics.ledger, 0][marks.get((self.topics.ledger, 0), 0) :]
        for record in written:
            if record.value is None or not (record.key or b"").startswith(RECEIPT_PREFIX):
                continue
            receipt = _ledger.decode(record.value)
            asked = (request.request, request_digest(request))
            if isinstance(receipt, Receipt) and (receipt.request, receipt.digest) == asked:
                if receipt.outcome == "refused":
                    raise RefusedError(receipt.reason or "refused", receipt.asked, receipt.left)
                return receipt
        raise AssertionError(f"no receipt for request {request.request}")

    def _next_request(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    def _source_of(self, stream: str) -> str:
        for name, account in self._budget.ledger.accounts.items():
            if stream in account.grants:
                return name
        raise RefusedError(f"stream '{stream}' is not open")


def _as_key(noise_key: NoiseKey | bytes | str) -> NoiseKey:
    if isinstance(noise_key, bytes):
        return NoiseKey(noise_key)
    return NoiseKey.from_text(noise_key) if isinstance(noise_key, str) else noise_key


def _encode(query: Query | Mapping[str, Any] | bytes) -> bytes:
    if isinstance(query, bytes):
        return query
    if not isinstance(query, Query):
        query = Query.model_validate(query)
    return _queries.encode(query)
