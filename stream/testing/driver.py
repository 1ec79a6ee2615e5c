"""``Driver``: a client and its in-memory installation in one object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Self, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field

from schemas import (
    Calibration,
    Query,
    Receipt,
    RegisterSource,
    Request,
    Source,
    ledger_codec,
    query_codec,
    request_codec,
    subject_of,
)
from stream.budget.receipts import RECEIPT_KEY_PREFIX, request_digest
from stream.client.blocking_client import SyncCalls
from stream.client.client_calls import AsyncCalls, require_accepted
from stream.client.ledger_view import LedgerView
from stream.errors import Invalid, SottoError
from stream.privacy.noise.keys import NoiseKey
from stream.processing.dead_letters import address_of
from stream.processing.protocol import Headers, Record
from stream.processing.topic_names import Topics, partition_of
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
    require_source_name,
)
from stream.questions.question_forms import (
    ANSWER_TIMEOUT,
    as_query,
    as_source,
    require_headers,
    require_many,
    validate_as_invalid,
)
from stream.questions.stream_watch import (
    StreamOpening,
    Watch,
    add_if_changed,
    describe_record_bound,
    parse_opening,
    split_ledger_key,
)
from stream.settings import MS_PER_DAY
from stream.testing.memory_installation import Delivery, MemoryInstallation, PartitionName, as_frame, as_key
from stream.worker.fair_shares import Limits

Returned = TypeVar("Returned")


@dataclass(eq=False)
class MemoryCalls(AsyncCalls):
    """The asynchronous client of an in-memory installation; its calls never wait."""

    topic_names: Topics
    send: Callable[[Sequence[Request]], list[Receipt]]
    ask_all: Callable[[Sequence[Query], Headers], Results]
    log: Callable[[PartitionName], Sequence[Record]]
    make_id: Callable[[], str]
    view: LedgerView = field(default_factory=LedgerView)
    last_in_view: Record | None = None
    _refusals_seconds = 0.0  # a call must not depend on the time that has passed

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self.topic_names

    @property
    def client(self) -> MemoryCalls:
        """This object, which is both the client and the ``Portal`` that runs the client's calls."""
        return self

    def run(self, call: Coroutine[Any, Any, Returned]) -> Returned:
        """Run a call that never waits."""
        try:
            call.send(None)
        except StopIteration as ended:
            returned: Returned = ended.value
            return returned
        raise AssertionError("a call waits")

    def close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        """Close a generator."""
        self.run(generator.aclose())

    async def _send_requests(self, requests: Sequence[Request], timeout: float) -> list[Receipt]:  # noqa: ARG002, ASYNC109
        return self.send(requests)

    async def _ask_query(self, query: Query, timeout: float | None, headers: Headers) -> Result:  # noqa: ARG002, ASYNC109
        [result] = self.ask_all([query], headers)
        return result

    async def _ask_queries(self, queries: Sequence[Query], timeout: float | None) -> Results:  # noqa: ARG002, ASYNC109
        return self.ask_all(queries, ())

    async def _read_topic(
        self, topic: str, partitions: Iterable[int] = (0,)
    ) -> AsyncGenerator[Sequence[Any], None]:
        for number in partitions:
            yield self.log((topic, number))

    async def _read_latest_first(self, topic: str, partition: int) -> AsyncGenerator[Sequence[Any], None]:
        yield self.log((topic, partition))[::-1]

    async def _read_ledger(self) -> LedgerView:
        log, last = self.log((self.topics.ledger, 0)), self.last_in_view
        read_to = 0 if last is None else last.offset + 1
        if log[read_to - 1 : read_to] != ([] if last is None else [last]):
            self.view.clear()  # a test has removed records
            read_to = 0
        self.view.add(log[read_to:])
        self.last_in_view = log[-1] if log else None
        return self.view

    async def _warn_about_opening(self, *_: object) -> None:
        """Do not warn: events have the driver's time, not the present one."""

    def _new_id(self) -> str:
        return self.make_id()


class _Options(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)

    partitions: Annotated[int, Field(ge=1, le=10_000)]
    work_outstanding: Annotated[float, Field(ge=0.0, le=86_400.0)]
    work_rate: Annotated[float, Field(gt=0.0, le=1024.0)]
    retire_days: Annotated[float, Field(ge=0.0, le=36_500.0)]


class NotReproducibleError(AssertionError):
    """A redelivered batch wrote different bytes.

    Examples:
        >>> result = client.ask("counts", where="age >= 65")
        >>> try:
        ...     again = client.redeliver()
        ... except NotReproducibleError as error:
        ...     print(error)
    """


class Driver(MemoryInstallation, SyncCalls):
    """An installation in memory with the methods of ``Client``, for tests.

    It is deterministic: the same key and calls give the same bytes. Calls never wait, so a ``timeout`` has no effect.

    Examples:
        >>> driver = Driver(bytes(32))
        >>> vitals = {"source": "vitals", "kind": "values", "neighbors": "add-remove"}
        >>> receipt = driver.register({**vitals, "epsilon": 4.0, "sensitivity": 1.0})
        >>> mechanism = {"kind": "above_threshold", "threshold": 1000.0, "cutoff": 2}
        >>> stream = {"stream": "ward-7", "source": "vitals", "epsilon": 1.0, "mechanism": mechanism}
        >>> receipt = driver.open(stream)
        >>> driver.ask("ward-7", value=5000.0).outcome
        'above'
    """

    def __init__(
        self,
        noise_key: NoiseKey | bytes | str,
        *,
        partitions: int = 4,
        work_outstanding: float = 0.0,
        work_rate: float = 0.5,
        retire_days: float = 7.0,
    ) -> None:
        """Create an installation; the key is a ``NoiseKey``, 32 bytes, or 64 hexadecimal digits.

        ``work_outstanding``, ``work_rate`` and ``retire_days`` are the settings of these names, in the
        driver's time; by default, work is not limited.
        """
        limits = {"work_outstanding": work_outstanding, "work_rate": work_rate, "retire_days": retire_days}
        options = validate_as_invalid(lambda: _Options.model_validate({"partitions": partitions, **limits}))
        super().__init__(
            as_key(noise_key),
            Topics(partitions=options.partitions),
            Limits.from_seconds(options.work_outstanding, options.work_rate),
            round(options.retire_days * MS_PER_DAY),
        )
        self._id_count = 0
        self._last: Delivery | None = None
        self._calls = MemoryCalls(self.topics, self._send_requests, self._ask, self.log, self._new_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def connect(self) -> None:
        """Do nothing: a driver is always connected.

        Examples:
            >>> client.connect()
        """

    def disconnect(self) -> None:
        """Do nothing: a driver keeps its state.

        Examples:
            >>> client.disconnect()
        """

    def register(self, source: Source | Mapping[str, Any], table: Any = None) -> Receipt:
        """Register a source; ``table`` (a polars frame or mapping of columns) replaces its file.

        Examples:
            >>> people = {"source": "staff", "kind": "table", "neighbors": "add-remove", "epsilon": 1.0}
            >>> people |= {"path": "staff.csv", "attributes": {"age": 100}}
            >>> client.register(people, table={"age": [34, 71]}).outcome
            'registered'
        """
        source = as_source(source)
        self._use_table(source.source, table)
        return super().register(source)

    def register_all(self, sources: Iterable[Source], table: Any = None) -> None:
        """Register many sources with the same table; raise ``Refused`` if a source is refused.

        Examples:
            >>> source = client.budget("people").source
            >>> others = [source.model_copy(update={"source": name}) for name in ("east", "west")]
            >>> client.register_all(others, table={"sex": ["F", "M"], "age": [34, 71]})
        """
        frame = None if table is None else as_frame(table)
        requests = []
        for source in sources:
            self._use_table(source.source, frame)
            requests.append(RegisterSource(request=self._new_id(), source=source))
        for receipt in self.requests(requests):
            require_accepted(receipt)

    def refresh(self, source: str, table: Any = None, *, close: bool = False) -> Receipt:
        """Make ``table`` the next version of a source's data; see ``Client.refresh``.

        Examples:
            >>> client.refresh("people", table={"sex": ["F", "M"], "age": [34, 71]}).version
            2
        """
        self._use_table(source, table)
        return super().refresh(source, close=close)

    def ask_many(
        self,
        questions: Iterable[Question | bytes],
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ARG002
    ) -> Results:
        """Ask many questions and return their results in the same order; see ``Client.ask_many``.

        Bytes are published unchanged; if they have no readable id and stream, they have no result.

        Examples:
            >>> question = {"stream": "counts", "where": "age < 10"}
            >>> len(client.ask_many([question, b"not JSON"]))
            1
        """
        require_many(questions)
        return self._ask(
            [one if isinstance(one, bytes) else as_query(one, {}, self._new_id) for one in questions], ()
        )

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
        """Publish one question, or events to a source's topic, with the driver's time as timestamp.

        For events, return the answers that standing streams gave. Each event is a mapping or encoded
        bytes, and goes to the partition of its person.

        Examples:
            >>> client.publish("counts", where="age >= 65")
            >>> client.publish("visits", [{"who": "ana", "ts": 1767600000000, "ward": "a"}])
            <0 results>
        """
        if events is None:
            require_headers(headers)
            self._ask([as_query(question, fields, self._new_id)], headers)
            return None
        name = require_source_name(question, headers, fields)
        require_events(events)
        topic = LiveTopic(require_live_source(self.budget(name).source), self.topics.partitions)
        return self._write([topic.encode_record(event) for event in events])

    def advance(self, source: str, time: str | float | datetime) -> Results:
        """Advance a source's clock to ``time`` and return the answers of the windows that close.

        ``time`` is ISO 8601, a datetime with a zone, or Unix time in seconds. ``Invalid`` is raised if it is
        not from 1970 to 9999. If the source's clock is not ``marks``, the driver's clock advances.

        Examples:
            >>> client.advance("visits", "2026-01-05T10:00:00Z")
            <0 results>
        """
        declared = require_live_source(self.budget(source).source)
        moment = parse_time(time)
        if declared.clock == "marks":
            return self._write(LiveTopic(declared, self.topics.partitions).make_marks(moment))
        self._now = max(self._now, moment)
        return self._write([])

    def flush(self) -> None:
        """Do nothing: published questions are answered at once.

        Examples:
            >>> client.flush()
        """

    def answers(self, *, from_beginning: bool = False) -> Generator[Result, None, None]:
        """Yield all present answers with ``from_beginning``; without it, yield nothing.

        Examples:
            >>> result = client.ask("counts", where="age >= 65")
            >>> [answer.outcome for answer in client.answers(from_beginning=True)]
            ['answer']
        """
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        for record in self.records(self.topics.answers)[seen:]:
            yield self._add_stream(Result.read(record.value))

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """With ``from_beginning``, yield all alerts and ends of streams so far; else ends of named streams only.

        Examples:
            >>> receipt = client.halt("people", "counts", reason="wrong table")
            >>> [notice.ended for notice in client.watch("counts", from_beginning=True)]
            ['halted: wrong table']
        """
        watch = Watch(streams, source, all_answers=quiet)
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        ledger = self.records(self.topics.ledger)
        openings: dict[str, StreamOpening] = {}
        sources: dict[str, str] = {}
        for record in ledger:
            kind, source_name, _ = split_ledger_key(record.key)
            if kind == "source":
                sources[source_name] = describe_record_bound(record.value)
            one = parse_opening(record.key, record.value, record.timestamp, watch.wants)
            if one is not None:
                add_if_changed(openings, one)
        yield from watch.first_notices(openings.values(), sources.keys(), from_beginning=from_beginning)
        for record in filter(watch.may_matter, self.records(self.topics.answers)[seen:]):
            opening = openings.get((record.key or b"").decode())
            if opening is not None:
                for notice in watch.notices_of(record, opening, sources.get(opening.source, "")):
                    counted = "" if notice.answer is None else self._add_stream(notice.answer).counted
                    yield replace(notice, bound_text=counted or notice.bound_text)
        if from_beginning:
            yield from watch.end_notices(openings.values())

    def send(self, partition: int, value: bytes, headers: Headers = ()) -> Result | None:
        """Publish bytes to a partition of ``queries``, valid or not; return the result, if any.

        Examples:
            >>> client.send(0, b"not JSON") is None
            True
        """
        if not isinstance(value, bytes) or partition not in range(self.topics.partitions):
            raise Invalid(f"send: give bytes, and a partition from 0 to {self.topics.partitions - 1}")
        require_headers(headers)
        ends_before = self._log_ends()
        place = (self.topics.queries, partition)
        self._append(place, b"", value, headers)
        self._last = None
        self._process_all()
        results = self._collect(Delivery(ends_before, {}, [(place, None, None)] if address_of(value) else []))
        return results[0] if results else None

    def redeliver(self, *, compare: bool = True) -> Results:
        """Deliver the last questions or events again, as after an aborted transaction.

        The outputs are removed, the state is restored, and the same input is processed again. With
        ``compare``, a different byte in the outputs raises ``NotReproducibleError``.

        Examples:
            >>> result = client.ask("counts", where="age >= 65")
            >>> client.redeliver() == [result]
            True
        """
        if self._last is None:
            raise SottoError(
                "there is nothing to deliver again; ask, publish or advance first, and nothing else after it"
            )
        ends_before = self._last.ends_before
        before = {place: log[ends_before.get(place, 0) :] for place, log in self._logs.items()}
        for place, log in self._logs.items():
            del log[self._last.ends_after.get(place, ends_before.get(place, 0)) :]
        self._positions = {place: min(at, ends_before.get(place, 0)) for place, at in self._positions.items()}
        self.crash()
        after = {place: log[ends_before.get(place, 0) :] for place, log in self._logs.items()}
        for place, records in before.items():
            if place[0].startswith(self.topics.feed_changelog_prefix()):
                continue  # a restart may split counts into other records; the answers stay the same
            again = after.get(place, [])
            if compare and [one[4:] for one in records] != [one[4:] for one in again]:
                raise NotReproducibleError(
                    f"{place[0]} partition {place[1]}: the {self._last.count} redelivered events gave other bytes"
                )
        return self._collect(self._last)

    def _get_portal(self) -> MemoryCalls:
        return self._calls

    def _new_id(self) -> str:
        self._id_count += 1
        return f"made-{self._id_count}"

    def _use_table(self, source: str, table: Any) -> None:
        if table is not None:
            frame = as_frame(table)
            self._frames[source] = frame
            self._tables.put(source, frame)

    def _send_requests(self, requests: Sequence[Request]) -> list[Receipt]:
        ledger: PartitionName = (self.topics.ledger, 0)
        begin = len(self.log(ledger))
        for request in requests:
            self._append((self.topics.requests, 0), subject_of(request)[0].encode(), request_codec.encode(request))
        self._last = None
        self._process_all()
        receipts: dict[tuple[str, str], Receipt] = {}
        for record in self.log(ledger)[begin:]:
            if record.value is not None and (record.key or b"").startswith(RECEIPT_KEY_PREFIX):
                receipt = ledger_codec.decode(record.value)
                if isinstance(receipt, Receipt):
                    receipts[receipt.request, receipt.digest] = receipt
        return [receipts[request.request, request_digest(request)] for request in requests]

    def _ask(self, questions: Sequence[Query | bytes], headers: Headers) -> Results:
        ends_before = self._log_ends()
        expected: list[tuple[PartitionName, Query | None, Source | None]] = []
        for question in questions:
            value = question if isinstance(question, bytes) else query_codec.encode(question)
            address = address_of(value)
            key = address[1].encode() if address else b""
            place = (self.topics.queries, partition_of(key, self.topics.partitions))
            self._append(place, key, value, headers)
            if address:
                query = None if isinstance(question, bytes) else question
                expected.append((place, query, None if query is None else self._source_of(query)))
        self._last = Delivery(ends_before, self._log_ends(), expected)
        self._process_all()
        return self._collect(self._last)

    def _write(self, records: Iterable[LiveRecord]) -> Results:
        ends_before = self._log_ends()
        for topic, partition, key, value, headers in records:
            self._append((topic, partition), key, value, headers)
        self._last = Delivery(ends_before, self._log_ends(), None)
        self._process_all()
        return self._collect(self._last)

    def _collect(self, delivery: Delivery) -> Results:
        answers = {
            number: self.log((self.topics.answers, number))[
                delivery.ends_before.get((self.topics.answers, number), 0) :
            ]
            for number in range(self.topics.partitions)
        }
        if delivery.expected is None:
            return Results(
                self._add_stream(Result.read(record.value)) for records in answers.values() for record in records
            )
        left = {number: iter(records) for number, records in answers.items()}
        return Results(
            Result.read(next(left[partition]).value).with_question(
                query, source, self._calibration_of(query, source)
            )
            for (_, partition), query, source in delivery.expected
        )

    def _add_stream(self, result: Result) -> Result:
        """Add the stream's definition to the answer of a window."""
        ledger = self._budget.ledger
        owner = ledger.source_of_stream.get(result.stream) if result.lacks_stream else None
        if owner is None:
            return result
        account = ledger.accounts[owner]
        grant = account.grants[result.stream]
        return result.with_stream(grant.spec, account.source, grant.calibration)

    def _calibration_of(self, query: Query | None, source: Source | None) -> Calibration | None:
        if query is None or source is None:
            return None
        grant = self._budget.ledger.accounts[source.source].grants.get(query.stream)
        return None if grant is None else grant.calibration

    def _source_of(self, query: Query) -> Source | None:
        ledger = self._budget.ledger
        owner = ledger.source_of_stream.get(query.stream) if is_about_table(query) else None
        return None if owner is None else ledger.accounts[owner].source
