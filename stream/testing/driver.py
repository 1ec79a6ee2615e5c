"""The calls of a client, on an installation in memory."""

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
from stream.testing.driver_requests import Requesting
from stream.testing.memory_installation import Given, Place, as_key
from stream.worker.fair_shares import Limits

if TYPE_CHECKING:
    from stream.processing.protocol import Record
    from stream.processing.topic_names import Topics
    from stream.sql import Table


class WatchCalls(ABC):
    """What of a client is about alerts."""

    topics: Topics

    @abstractmethod
    def records(self, topic: str) -> list[Record]:
        """Everything ever written to a topic."""

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """The alerts of these streams, from the first or the next on; from the first, then which have ended. It ends with the last there is."""
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
            yield from watch.told(record, opening, sources.get(opening.source, "")) if opening is not None else ()
        if from_beginning:
            yield from watch.ended(openings.values())


_queries: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)


class _Options(BaseModel):
    """The settings of a driver, within the bounds of the services' settings."""

    model_config = ConfigDict(allow_inf_nan=False)

    partitions: Annotated[int, Field(ge=1, le=10_000)]
    work_outstanding: Annotated[float, Field(ge=0.0, le=86_400.0)]
    work_rate: Annotated[float, Field(gt=0.0, le=1024.0)]


class NotReproducibleError(AssertionError):
    """A batch that was delivered again gave other bytes."""


class Driver(Requesting, WatchCalls):
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
        given = {"partitions": partitions, "work_outstanding": work_outstanding, "work_rate": work_rate}
        options = valid(lambda: _Options.model_validate(given))
        limits = Limits.of(options.work_outstanding, options.work_rate)
        super().__init__(as_key(noise_key), Topics(partitions=options.partitions), limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def connect(self) -> None:
        """Nothing: a driver is connected to itself."""

    def disconnect(self) -> None:
        """Nothing: what was told to a driver stays."""

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
        """Ask one question: ``ask("ward-7", value=250)``, or a whole query.

        Raises Rejected, Halted or Exhausted; with ``outcomes`` what is rejected or halted is a result like others.
        With ``dry_run`` the result has the most ε that the answer may cost as ``price``; no other question has a ``max_price``
        unless it is given.
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
        """Ask many questions and give their results in the same order, rejected and halted ones among them.

        Invalid if a question is none; nothing was asked then.
        Raw bytes go out as they are, to the partition of the stream they name; those without a readable id and stream
        have no answer.
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
        """Ask what a SELECT asks: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``."""
        from stream import sql  # noqa: PLC0415  (a parser that who asks otherwise does not wait for)

        asking = sql.Asking.of(
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
        """Ask one question without looking at its answer; or send people's events to the topic of a source.

        Events are mappings, or raw bytes that may be wrong. They go to the partitions of the people whom they name, and are
        stamped with the driver's time. Gives the answers that standing streams had by it.
        """
        if events is None:
            require_headers(headers)
            self._ask([as_query(question, fields, self._new_id)], headers)
            return None
        name = live_name(question, headers, fields)
        require_events(events)
        topic = LiveTopic(live_source(self.budget(name).source), self.topics.partitions)
        return self._tell([topic.record(event) for event in events])

    def advance(self, source: str, time: str | float | datetime) -> Results:
        """Let the clock of a source reach a moment: in ISO 8601, a datetime with a zone, or seconds since 1970.

        Where marks are its clock they are written to each partition; else the driver's own time moves on. Gives the answers of the
        windows that this closes. Invalid if ``time`` is no moment from 1970 to 9999, such as milliseconds.
        """
        declared = live_source(self.budget(source).source)
        moment = milliseconds_of(time)
        if declared.clock == "marks":
            return self._tell(LiveTopic(declared, self.topics.partitions).marks(moment))
        self._now = max(self._now, moment)
        return self._tell([])

    def flush(self) -> None:
        """Nothing: what is published is answered at once."""

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """The answers of all streams, from the first or the next on; it ends with the last there is."""
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        for record in self.records(self.topics.answers)[seen:]:
            yield Result.read(record.value)

    def send(self, partition: int, value: bytes, headers: Headers = ()) -> Result | None:
        """Publish one raw event to a partition of one's own choice, right or wrong."""
        if not isinstance(value, bytes) or partition not in range(self.topics.partitions):
            raise Invalid(f"send: give bytes, and a partition from 0 to {self.topics.partitions - 1}")
        require_headers(headers)
        marks = self._marks()
        place = (self.topics.queries, partition)
        self._append(place, b"", value, headers)
        self._last = None
        self._settle()
        results = self._collect(Given(marks, {}, [(place, None, None)] if address_of(value) else []))
        return results[0] if results else None

    def redeliver(self, *, compare: bool = True) -> Results:
        """Process what was last asked, or published or advanced of events, once more, as after an aborted transaction.

        All that it wrote is taken back, the state is rebuilt from what was there before, and the same events come
        again. With ``compare``, NotReproducibleError if any byte written differs.
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
                continue  # how counts are cut into pieces depends on restarts; what comes of them does not
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
        self._last = Given(marks, self._marks(), expected)
        self._settle()
        return self._collect(self._last)

    def _tell(self, records: Iterable[LiveRecord]) -> Results:
        """Write to a live topic, and let everybody work."""
        marks = self._marks()
        for topic, partition, key, value, headers in records:
            self._append((topic, partition), key, value, headers)
        self._last = Given(marks, self._marks(), None)
        self._settle()
        return self._collect(self._last)

    def _collect(self, given: Given) -> Results:
        answers = {
            number: self.log((self.topics.answers, number))[given.marks.get((self.topics.answers, number), 0) :]
            for number in range(self.topics.partitions)
        }
        if given.expected is None:
            return Results(Result.read(record.value) for records in answers.values() for record in records)
        left = {number: iter(records) for number, records in answers.items()}
        return Results(
            Result.read(next(left[partition]).value, query, source)
            for (_, partition), query, source in given.expected
        )

    def _source_of(self, query: Query) -> Source | None:
        """What the question is about, where that says more of the answer."""
        ledger = self._budget.ledger
        owner = ledger.owner_of.get(query.stream) if is_about_table(query) else None
        return None if owner is None else ledger.accounts[owner].source
