"""The in-memory driver: a client and its installation in one object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self, overload

from pydantic import BaseModel, ConfigDict, Field

from schemas import MAX_EVENT_BYTES, Query, Source
from schemas.wire import Codec
from stream.errors import Invalid, SottoError
from stream.privacy.noise import NoiseKey
from stream.processing.dead_letters import address_of
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics, partition_of
from stream.questions import Question, Result, Results
from stream.questions.alert_states import Notice
from stream.questions.domain_limits import is_about_table
from stream.questions.live_events import (
    LiveEvent,
    LiveRecord,
    LiveTopic,
    live_name,
    live_source,
    milliseconds_of,
    require_events,
)
from stream.questions.question_forms import (
    ANSWER_TIMEOUT,
    as_query,
    require_headers,
    require_many,
    valid,
    with_limit,
)
from stream.questions.stream_watch import StreamOpening, Watch, counted_of, is_news, opening_of, source_of
from stream.testing.driver_requests import RequestCalls
from stream.testing.memory_installation import Delivery, Place, as_key
from stream.worker.fair_shares import Limits

if TYPE_CHECKING:
    from stream.processing.protocol import Record
    from stream.processing.topic_names import Topics
    from stream.sql import Table


class WatchCalls(ABC):
    """The client's calls for alerts."""

    topics: Topics

    @abstractmethod
    def records(self, topic: str) -> list[Record]:
        """Return all records ever written to a topic."""

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """Yield the present alerts of streams; with ``from_beginning``, all of them and the ends."""
        watch = Watch(streams, source, quiet=quiet)
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        ledger = self.records(self.topics.ledger)
        openings: dict[str, StreamOpening] = {}
        for record in ledger:
            one = opening_of(record.key, record.value, record.timestamp, watch.wants)
            if one is not None:
                is_news(openings, one)
        sources = {source_of(record.key) or "": counted_of(record.value) for record in ledger}
        yield from watch.begin(openings.values(), sources.keys(), from_beginning=from_beginning)
        for record in filter(watch.may_matter, self.records(self.topics.answers)[seen:]):
            opening = openings.get((record.key or b"").decode())
            yield from (
                watch.notices_of(record, opening, sources.get(opening.source, "")) if opening is not None else ()
            )
        if from_beginning:
            yield from watch.ended(openings.values())


_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)


class _Options(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)

    partitions: Annotated[int, Field(ge=1, le=10_000)]
    work_outstanding: Annotated[float, Field(ge=0.0, le=86_400.0)]
    work_rate: Annotated[float, Field(gt=0.0, le=1024.0)]


class NotReproducibleError(AssertionError):
    """A redelivered batch wrote different bytes."""


class Driver(RequestCalls, WatchCalls):
    """An installation in memory with the methods of ``Client``, for tests.

    It is deterministic: the same key and calls give the same bytes. Calls never wait, so a
    ``timeout`` has no effect.

    Example::

        driver = Driver(bytes(32))
        driver.register(source, table={"age": [34, 71]})
        driver.open(stream)
        driver.ask("census", where="age >= 65").estimate
    """

    def __init__(
        self,
        noise_key: NoiseKey | bytes | str,
        *,
        partitions: int = 4,
        work_outstanding: float = 0.0,
        work_rate: float = 0.5,
    ) -> None:
        """Create an installation; the key is a ``NoiseKey``, 32 bytes, or 64 hexadecimal digits.

        ``work_outstanding`` and ``work_rate`` are the settings of that name, but without a limit by
        default.
        """
        given = {"partitions": partitions, "work_outstanding": work_outstanding, "work_rate": work_rate}
        options = valid(lambda: _Options.model_validate(given))
        limits = Limits.of(options.work_outstanding, options.work_rate)
        super().__init__(as_key(noise_key), Topics(partitions=options.partitions), limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def connect(self) -> None:
        """Do nothing: a driver is always connected."""

    def disconnect(self) -> None:
        """Do nothing: a driver keeps its state."""

    def ask(
        self,
        question: Question,
        /,
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ARG002
        outcomes: bool = False,
        dry_run: bool = False,
        headers: Headers = (),
        **fields: Any,
    ) -> Result:
        """Ask one question: ``driver.ask("ward-7", value=250)``; see ``Client.ask``.

        Unlike a client, the driver sets no default ``max_price``.
        """
        query = as_query(question, fields, self._new_id)
        require_headers(headers)
        [result] = self._ask([with_limit(query, dry_run=True) if dry_run else query], headers)
        return result if outcomes or (dry_run and result.is_priced) else result.checked()

    def ask_many(
        self,
        questions: Iterable[Question | bytes],
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ARG002
    ) -> Results:
        """Ask many questions and return their results in the same order; see ``Client.ask_many``.

        Bytes are published unchanged; without a readable id and stream they have no result.
        """
        require_many(questions)
        return self._ask(
            [one if isinstance(one, bytes) else as_query(one, {}, self._new_id) for one in questions], ()
        )

    def sql(
        self,
        statement: str,
        *,
        timeout: float | None = ANSWER_TIMEOUT,
        outcomes: bool = False,
        max_price: float | str | None = None,
    ) -> Table:
        """Answer a SELECT: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``."""
        from stream import sql  # noqa: PLC0415  (the SQL parser is slow to import)

        asking = sql.PreparedStatement.prepare(
            sql.read(statement), self.list_sources(), self.list_streams(), self._new_id(), max_price
        )
        results = self.ask_many(asking.queries, timeout=timeout)
        return asking.table(results if outcomes or max_price == 0 else results.checked())

    @overload
    def publish(self, question: Question, /, *, headers: Headers = (), **fields: Any) -> None: ...
    @overload
    def publish(self, source: str, events: Iterable[LiveEvent], /) -> Results: ...
    def publish(
        self,
        question: Question,
        events: Iterable[LiveEvent] | None = None,
        /,
        *,
        headers: Headers = (),
        **fields: Any,
    ) -> Results | None:
        """Publish one question, or events to a source's topic, stamped with the driver's time.

        For events, return the answers that standing streams gave. Each event is a mapping or encoded
        bytes, and goes to the partition of its person.
        """
        if events is None:
            require_headers(headers)
            self._ask([as_query(question, fields, self._new_id)], headers)
            return None
        name = live_name(question, headers, fields)
        require_events(events)
        topic = LiveTopic(live_source(self.budget(name).source), self.topics.partitions)
        return self._write([topic.record(event) for event in events])

    def advance(self, source: str, time: str | float | datetime) -> Results:
        """Advance a source's clock to ``time`` and return the answers of the windows that close.

        ``time`` is ISO 8601, a datetime with a zone, or Unix time in seconds; ``Invalid`` if it is not
        from 1970 to 9999. If the source's clock is not ``marks``, the driver's own clock advances.
        """
        declared = live_source(self.budget(source).source)
        moment = milliseconds_of(time)
        if declared.clock == "marks":
            return self._write(LiveTopic(declared, self.topics.partitions).marks(moment))
        self._now = max(self._now, moment)
        return self._write([])

    def flush(self) -> None:
        """Do nothing: published questions are answered at once."""

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """Yield the answers of all streams until the last present one."""
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        for record in self.records(self.topics.answers)[seen:]:
            yield Result.read(record.value)

    def send(self, partition: int, value: bytes, headers: Headers = ()) -> Result | None:
        """Publish bytes to a partition of ``queries``, valid or not; return the result, if any."""
        if not isinstance(value, bytes) or partition not in range(self.topics.partitions):
            raise Invalid(f"send: give bytes, and a partition from 0 to {self.topics.partitions - 1}")
        require_headers(headers)
        marks = self._marks()
        place = (self.topics.queries, partition)
        self._append(place, b"", value, headers)
        self._last = None
        self._settle()
        results = self._collect(Delivery(marks, {}, [(place, None, None)] if address_of(value) else []))
        return results[0] if results else None

    def redeliver(self, *, compare: bool = True) -> Results:
        """Deliver the last questions or events again, as after an aborted transaction.

        The outputs are removed, the state is restored, and the same input is processed again. With
        ``compare``, ``NotReproducibleError`` if a byte of the outputs differs.
        """
        if self._last is None:
            raise SottoError(
                "there is nothing to deliver again; ask, publish or advance first, and nothing else after it"
            )
        marks = self._last.marks
        before = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, log in self._logs.items():
            del log[self._last.written.get(place, marks.get(place, 0)) :]
        self._positions = {place: min(at, marks.get(place, 0)) for place, at in self._positions.items()}
        self.crash()
        after = {place: log[marks.get(place, 0) :] for place, log in self._logs.items()}
        for place, records in before.items():
            if place[0].startswith(self.topics.feed_states()):
                continue  # the split of counts into records depends on restarts; the answers do not
            again = after.get(place, [])
            if compare and [one[4:] for one in records] != [one[4:] for one in again]:
                raise NotReproducibleError(
                    f"{place[0]} partition {place[1]}: other bytes for the same {self._last.count} events"
                )
        return self._collect(self._last)

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
        self._last = Delivery(marks, self._marks(), expected)
        self._settle()
        return self._collect(self._last)

    def _write(self, records: Iterable[LiveRecord]) -> Results:
        marks = self._marks()
        for topic, partition, key, value, headers in records:
            self._append((topic, partition), key, value, headers)
        self._last = Delivery(marks, self._marks(), None)
        self._settle()
        return self._collect(self._last)

    def _collect(self, delivery: Delivery) -> Results:
        answers = {
            number: self.log((self.topics.answers, number))[delivery.marks.get((self.topics.answers, number), 0) :]
            for number in range(self.topics.partitions)
        }
        if delivery.expected is None:
            return Results(Result.read(record.value) for records in answers.values() for record in records)
        left = {number: iter(records) for number, records in answers.items()}
        return Results(
            Result.read(next(left[partition]).value, query, source)
            for (_, partition), query, source in delivery.expected
        )

    def _source_of(self, query: Query) -> Source | None:
        ledger = self._budget.ledger
        owner = ledger.owner_of.get(query.stream) if is_about_table(query) else None
        return None if owner is None else ledger.accounts[owner].source
