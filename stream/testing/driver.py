"""The calls of a client, on an installation in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    CloseStream,
    GrantRecord,
    HaltSource,
    HaltStream,
    LedgerRecord,
    Query,
    Receipt,
    RefreshSource,
    RegisterSource,
    Request,
    Source,
    SourceRecord,
    StreamSpec,
    StreamStatus,
    TrailRecord,
    subject_of,
)
from schemas.wire import Codec
from stream.asking import Question, Result, Results
from stream.asking.budgets import extension, opening
from stream.asking.outside import needs_domain
from stream.asking.questions import ANSWER_TIMEOUT, REQUEST_TIMEOUT, as_query, as_source
from stream.errors import Refused, Unknown
from stream.noise import NoiseKey
from stream.processors.base import Headers
from stream.processors.queries.shares import Limits
from stream.processors.receipts import RECEIPT_PREFIX, request_digest
from stream.processors.rejections import address_of
from stream.processors.topics import Topics, partition_of
from stream.processors.trails import trail_codec
from stream.testing.budgets import BudgetCalls
from stream.testing.installation import Installation, Place, as_key

if TYPE_CHECKING:
    from stream.sql import Table

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)


class NotReproducibleError(AssertionError):
    """A batch that was delivered again gave other bytes."""


@dataclass(frozen=True)
class _Asked:
    """Where the logs ended before some events were published, how many these are, and where their answers will stand."""

    marks: dict[Place, int]
    events: int
    expected: list[tuple[Place, Query | None, Source | None]]


class Driver(Installation, BudgetCalls):
    """A whole installation in one object, with the calls of a client: see Client for those.

    Everything is deterministic: two drivers with the same key that are told the same things write the same bytes. Nothing is
    waited for, so no ``timeout`` ever passes.
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
        limits = Limits.of(work_outstanding, work_rate)
        super().__init__(as_key(noise_key), Topics(partitions=partitions), limits)
        self._made = 0
        self._last: _Asked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def connect(self) -> None:
        """Nothing: a driver is connected to itself."""

    def disconnect(self) -> None:
        """Nothing: what was told to a driver stays."""

    def register(self, source: Source | Mapping[str, Any], table: Any = None) -> Receipt:
        """Register a source; ``table`` (a polars frame or a mapping of columns) stands in for its path."""
        source = as_source(source)
        self._put(source.source, table)
        return self.request(RegisterSource(request=self._new_id(), source=source))

    def refresh(self, source: str, table: Any = None, *, close: bool = False) -> Receipt:
        """Take the data that a source has now for its next version; ``table`` stands in for its path, as in ``register``.

        Streams that keep what they computed of the old version are closed, with ``close`` all are.
        """
        self._put(source, table)
        return self.request(RefreshSource(request=self._new_id(), source=source, close=close))

    def _put(self, source: str, table: Any) -> None:
        if table is not None:
            frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(table)
            self._frames[source] = frame
            self._tables.put(source, frame)

    def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream; Refused says what was asked and what is left."""
        return self.request(opening(self._new_id, stream, analyst))

    def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Grant a stream as many further charged answers as ``epsilon`` pays for."""
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return self.request(extension(self._new_id, **fields))

    def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream and refund what it did not spend."""
        return self.request(CloseStream(request=self._new_id(), source=source, stream=stream, reason=reason))

    def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        if stream is None:
            return self.request(HaltSource(request=self._new_id(), source=source, reason=reason))
        return self.request(HaltStream(request=self._new_id(), source=source, stream=stream, reason=reason))

    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request, which may be of one's own making, and give its receipt."""
        [receipt] = self.requests([request], timeout)
        if receipt.outcome == "refused":
            raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
        return receipt

    def requests(self, requests: Iterable[Request], timeout: float = REQUEST_TIMEOUT) -> list[Receipt]:  # noqa: ARG002
        """Send many requests and give their receipts in the same order, refusals among them."""
        marks, asked = self._marks(), []
        for request in requests:
            self._append((self.topics.requests, 0), subject_of(request)[0].encode(), _requests.encode(request))
            asked.append((request.request, request_digest(request)))
        self._last = None
        self._settle()
        receipts: dict[tuple[str, str], Receipt] = {}
        for record in self._logs[self.topics.ledger, 0][marks.get((self.topics.ledger, 0), 0) :]:
            if record.value is not None and (record.key or b"").startswith(RECEIPT_PREFIX):
                receipt = _ledger.decode(record.value)
                if isinstance(receipt, Receipt):
                    receipts[receipt.request, receipt.digest] = receipt
        return [receipts[one] for one in asked]

    def ask(
        self,
        question: Question,
        /,
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ARG002
        outcomes: bool = False,
        headers: Headers = (),
        **fields: Any,
    ) -> Result:
        """Ask one question: ``ask("ward-7", value=250)``, or a whole query.

        Raises Rejected, Halted or Exhausted; with ``outcomes`` what is rejected or halted is a result like others.
        """
        [result] = self._ask([as_query(question, fields, self._new_id)], headers)
        return result if outcomes else result.checked()

    def ask_many(
        self,
        questions: Iterable[Question | bytes],
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ARG002
    ) -> Results:
        """Ask many questions and give their results in the same order, rejected and halted ones among them.

        Raw bytes go out as they are, to the partition of the stream they name; those without a readable id and stream
        have no answer.
        """
        return self._ask(
            [one if isinstance(one, bytes) else as_query(one, {}, self._new_id) for one in questions], ()
        )

    def sql(
        self,
        statement: str,
        *,
        timeout: float | None = ANSWER_TIMEOUT,
        outcomes: bool = False,
    ) -> Table:
        """Ask what a SELECT asks: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``."""
        from stream import sql  # noqa: PLC0415  (a parser that who asks otherwise does not wait for)

        asking = sql.Asking.of(sql.read(statement), self.list_sources(), self.list_streams(), self._new_id())
        results = self.ask_many(asking.queries, timeout=timeout)
        return asking.table(results if outcomes else results.checked())

    def publish(self, question: Question, /, *, headers: Headers = (), **fields: Any) -> None:
        """Ask one question without looking at its answer."""
        self._ask([as_query(question, fields, self._new_id)], headers)

    def flush(self) -> None:
        """Nothing: what is published is answered at once."""

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """The answers of all streams, from the first or the next on; it ends with the last there is."""
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        for record in self.records(self.topics.answers)[seen:]:
            yield Result.read(record.value)

    def send(self, partition: int, value: bytes, headers: Headers = ()) -> Result | None:
        """Publish one raw event to a partition of one's own choice, right or wrong."""
        marks = self._marks()
        place = (self.topics.queries, partition)
        self._append(place, b"", value, headers)
        self._last = None
        self._settle()
        results = self._collect(_Asked(marks, 1, [(place, None, None)] if address_of(value) else []))
        return results[0] if results else None

    def redeliver(self, *, compare: bool = True) -> Results:
        """Process what was last asked once more, as after an aborted transaction.

        All that it wrote is taken back, the state is rebuilt from what was there before, and the same events come
        again. With ``compare``, NotReproducibleError if any byte written differs.
        """
        if self._last is None:
            raise ValueError("nothing was asked yet")
        marks = self._last.marks
        before = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, log in self._logs.items():
            if place[0] != self.topics.queries:
                del log[marks.get(place, 0) :]
        self._positions = {place: min(at, marks.get(place, 0)) for place, at in self._positions.items()}
        self.crash()
        after = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, records in before.items():
            again = after.get(place, [])
            if compare and [one[4:] for one in records] != [one[4:] for one in again]:
                raise NotReproducibleError(
                    f"{place[0]} partition {place[1]}: other bytes for the same {self._last.events} events"
                )
        return self._collect(self._last)

    def list_sources(self) -> list[SourceRecord]:
        """All sources that are registered, with their budgets."""
        return [one for one in self._entries("source|") if isinstance(one, SourceRecord)]

    def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """The grants of all streams ever opened, or of a source's; Unknown if there is no such source."""
        if source is not None:
            self.budget(source)
        beginning = "grant|" if source is None else f"grant|{source}|"
        return [one for one in self._entries(beginning) if isinstance(one, GrantRecord)]

    def budget(self, source: str) -> SourceRecord:
        """A source's budget as the ledger topic shows it; Unknown if it is not registered."""
        record = self._entry(f"source|{source}")
        if not isinstance(record, SourceRecord):
            raise Unknown(f"source '{source}' is not registered")
        return record

    def grant(self, source: str, stream: str) -> GrantRecord:
        """A stream's grant as the ledger topic shows it: its plan, its cost, and what is spent of it."""
        record = self._entry(f"grant|{source}|{stream}")
        if not isinstance(record, GrantRecord):
            raise Unknown(f"stream '{stream}' of source '{source}' was never opened")
        return record

    def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """What workers last showed of these streams, with the driver's time; not all have a digest."""
        wanted = {stream.encode(): stream for stream in streams}
        return {
            stream: (_statuses.decode(record.value), record.timestamp / 1000)
            for record in self.records(self.topics.status)
            if record.value is not None and (stream := wanted.get(record.key or b"")) is not None
        }

    def trail(self) -> Generator[TrailRecord, None, None]:
        """The audit trail, oldest first: requests, decisions, what followed, and what was spent meanwhile."""
        for record in self.records(self.topics.trail):
            yield trail_codec.decode(record.value)

    def _ask(self, questions: Sequence[Query | bytes], headers: Headers) -> Results:
        marks = self._marks()
        expected: list[tuple[Place, Query | None, Source | None]] = []
        for question in questions:
            value = question if isinstance(question, bytes) else _queries.encode(question)
            address = address_of(value)
            key = address[1].encode() if address else b""
            place = (self.topics.queries, partition_of(key, self.topics.partitions))
            self._append(place, key, value, headers)
            if address:
                query = None if isinstance(question, bytes) else question
                expected.append((place, query, None if query is None else self._source_of(query)))
        self._last = _Asked(marks, len(questions), expected)
        self._settle()
        return self._collect(self._last)

    def _collect(self, asked: _Asked) -> Results:
        answers = {
            number: iter(self._logs.get((self.topics.answers, number), [])[self._mark(asked, number) :])
            for number in range(self.topics.partitions)
        }
        return Results(
            Result.read(next(answers[partition]).value, query, source)
            for (_, partition), query, source in asked.expected
        )

    def _mark(self, asked: _Asked, partition: int) -> int:
        return asked.marks.get((self.topics.answers, partition), 0)

    def _source_of(self, query: Query) -> Source | None:
        """What the question is about, where that says more of the answer."""
        if not needs_domain(query):
            return None
        accounts = self._budget.ledger.accounts.values()
        return next((account.source for account in accounts if query.stream in account.grants), None)

    def _entry(self, key: str) -> LedgerRecord | None:
        """What the ledger holds under a key."""
        written = reversed(self._logs.get((self.topics.ledger, 0), []))
        latest = next((record for record in written if record.key == key.encode()), None)
        return None if latest is None or latest.value is None else _ledger.decode(latest.value)

    def _entries(self, beginning: str) -> Iterator[LedgerRecord]:
        """What the ledger holds under all keys that begin so."""
        for record in self._compacted((self.topics.ledger, 0)):
            if (record.key or b"").startswith(beginning.encode()) and record.value is not None:
                yield _ledger.decode(record.value)

    def _new_id(self) -> str:
        self._made += 1
        return f"made-{self._made}"
