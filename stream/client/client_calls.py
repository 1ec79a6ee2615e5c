"""The calls of all clients, each defined once as an asynchronous method.

``AsyncClient`` and ``MemoryCalls`` (used by ``Driver``) derive from ``AsyncCalls``; ``SyncCalls`` has
the synchronous forms.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from schemas import (
    Allot,
    AllotmentRecord,
    CloseStream,
    EventsSource,
    ExtendStream,
    GrantRecord,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpeningSpec,
    OpenStream,
    Population,
    PopulationRecord,
    Query,
    Receipt,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    Request,
    Source,
    SourceRecord,
    StreamStatus,
    TrailRecord,
    status_codec,
    trail_codec,
)
from schemas.base import Event
from stream.client.ledger_view import LedgerView, decode_record
from stream.errors import Forbidden, Invalid, Refused, SottoError, Unknown
from stream.formatting import did_you_mean
from stream.processing.dead_letters import DeadLetter, read_dead_letter
from stream.processing.protocol import Headers
from stream.processing.topic_names import Topics, partition_of
from stream.questions import Question, Result, Results
from stream.questions.first_windows import warn_about_opening
from stream.questions.live_events import require_live_source
from stream.questions.question_forms import (
    ANSWER_TIMEOUT,
    REQUEST_TIMEOUT,
    as_opening,
    as_query,
    as_requests,
    as_source,
    as_stream_names,
    limit_by_plan,
    require_headers,
    require_timeout,
    validate_as_invalid,
)

if TYPE_CHECKING:
    from stream.sql.result_tables import Table
    from stream.sql.select_statements import SelectStatement

Decoded = TypeVar("Decoded", bound=BaseModel)


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex


class AsyncCalls(ABC):
    """The clients' calls that need only ``topics`` and the abstract methods below."""

    _refusals_seconds = 60.0
    """Seconds for which a read of the statuses of a source's streams is kept."""

    @property
    @abstractmethod
    def topics(self) -> Topics:
        """The topic names of the installation."""

    @abstractmethod
    async def _send_requests(self, requests: Sequence[Request], timeout: float) -> list[Receipt]:  # noqa: ASYNC109
        """Send requests and return their receipts in the same order."""

    @abstractmethod
    async def _ask_query(self, query: Query, timeout: float | None, headers: Headers) -> Result:  # noqa: ASYNC109
        """Publish one query and return its answer."""

    @abstractmethod
    async def _ask_queries(self, queries: Sequence[Query], timeout: float | None) -> Results:  # noqa: ASYNC109
        """Publish queries and return their answers."""

    @abstractmethod
    def _read_topic(self, topic: str, partitions: Iterable[int] = (0,)) -> AsyncGenerator[Sequence[Any], None]:
        """Yield the partitions' committed records that exist at the time of the call, in batches."""

    @abstractmethod
    def _read_latest_first(self, topic: str, partition: int) -> AsyncGenerator[Sequence[Any], None]:
        """Yield the committed records of a partition in batches, the latest record first."""

    @abstractmethod
    async def _read_ledger(self) -> LedgerView:
        """Return the view of the ledger with all records that exist at the time of the call."""

    def _new_id(self) -> str:
        return new_id()

    async def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source; raise ``Refused`` if a source with another definition has its name.

        Unlike ``sotto source add``, this does not warn if another source has the same table or topic:
        the losses of both add up, so give both one population.

        Examples:
            >>> vitals = {"source": "vitals", "kind": "values", "neighbors": "add-remove"}
            >>> client.register({**vitals, "epsilon": 4.0, "sensitivity": 1.0}).outcome
            'registered'
        """
        return await self._make_request(RegisterSource, source=as_source(source))

    async def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population; raise ``Refused`` if a population with another definition has its name.

        Examples:
            >>> client.register_population({"population": "patients", "epsilon": 8.0}).outcome
            'registered'
        """
        model = validate_as_invalid(lambda: Population.model_validate(population), given=population)
        return await self._make_request(RegisterPopulation, population=model)

    async def join(self, source: str, population: str) -> Receipt:
        """Add a source to a population for ever.

        ``Refused`` is raised if the population's budget cannot pay the source's grants.

        Examples:
            >>> receipt = client.register_population({"population": "residents", "epsilon": 8.0})
            >>> client.join("people", "residents").population
            'residents'
        """
        return await self._make_request(JoinPopulation, source=source, population=population)

    async def allot(
        self,
        allotment: str,
        epsilon: float,
        delta: float | None = None,
        *,
        source: str | None = None,
        population: str | None = None,
        analysts: Sequence[str] = (),
    ) -> Receipt:
        """Create or change an allotment: the analysts' part of a source's or population's budget.

        Without ``analysts``, a changed allotment keeps its analysts, and a new one is for the analyst with the
        allotment's name. ``Refused`` is raised if the amount is smaller than the analysts' present grants.

        Examples:
            >>> receipt = client.allot("team", 1.0, source="people", analysts=["ana", "ben"])
            >>> [one.allotment for one in client.list_allotments(source="people")]
            ['team']
        """
        budget = {"source": source, "population": population, "epsilon": epsilon, "delta": delta}
        return await self._make_request(Allot, allotment=allotment, **budget, analysts=tuple(analysts))

    async def open(
        self, stream: OpeningSpec | Mapping[str, Any], *, analyst: str | None = None, acknowledge: bool = False
    ) -> Receipt:
        """Open a stream and reserve its grant; the stream answers as soon as this call returns.

        With ``analyst``, the grant also counts against that analyst's allotments. The error
        ``Refused`` has the requested amount as ``asked`` and the rest of the budget as ``left``. A
        stream whose promise is not informative is refused too, unless ``acknowledge`` is true. With the
        mechanism ``"auto"``, the receipt's ``compared`` lists the mechanisms; the first is the chosen one.
        A standing stream whose first windows may lack events opens with a ``UserWarning``.

        Examples:
            >>> mechanism = {"kind": "laplace", "answers": 10}
            >>> stream = {"stream": "ages", "source": "people", "epsilon": 1.0, "mechanism": mechanism}
            >>> client.open(stream).outcome
            'opened'
        """
        opening, started = as_opening(stream), time.monotonic()
        receipt = await self._make_request(
            OpenStream, stream=opening, analyst=analyst, informative=not acknowledge
        )
        if opening.standing is not None:
            await self._warn_about_opening(opening, receipt, time.monotonic() - started)
        return receipt

    async def _warn_about_opening(self, opening: OpeningSpec, receipt: Receipt, seconds: float) -> None:
        """Warn if windows of a new stream, whose receipt came after ``seconds``, may lack events."""
        try:
            owner = (await self._read_ledger()).source(opening.source)
        except SottoError:
            return  # the stream is open all the same
        if owner.streams < 2 or not isinstance(owner.source, EventsSource) or owner.source.clock == "marks":
            return  # feeds have read no events for earlier streams, or it is unknown whether marks were written
        warning = warn_about_opening(opening, owner.source, receipt.begins, time.time(), seconds)
        if warning is not None:
            warnings.warn(warning, UserWarning, stacklevel=2)

    async def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Extend a stream's grant by as many charged answers as ``epsilon`` pays for.

        The stream keeps its estimates. The receipt has the number of answers and their cost. ``Refused``
        is raised if ``epsilon`` pays for no answer, if the budget cannot pay it, or if the stream is
        halted or closed or is being closed. ``analyst`` must be the analyst for whom the stream was opened.

        Examples:
            >>> client.extend("people", "counts", epsilon=0.8).answers
            2
        """
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return await self._make_request(ExtendStream, **fields)

    async def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; the refund follows when the worker has reported the final charge.

        Examples:
            >>> client.close("people", "counts").outcome
            'closing'
        """
        return await self._make_request(CloseStream, source=source, stream=stream, reason=reason)

    async def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams; the grant stays reserved.

        Examples:
            >>> client.halt("people", "counts", reason="wrong table").outcome
            'halted'
        """
        if stream is None:
            return await self._make_request(HaltSource, source=source, reason=reason)
        return await self._make_request(HaltStream, source=source, stream=stream, reason=reason)

    async def refresh(self, source: str, *, close: bool = False) -> Receipt:
        """Make the current data of a table its next version; the receipt has the version's number.

        Streams with an estimate of the old data are closed; other streams continue with the new version.
        With ``close``, all streams are closed.

        Examples:
            >>> client.refresh("people").version  # doctest: +SKIP
            1
        """
        return await self._make_request(RefreshSource, source=source, close=close)

    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and return its receipt within ``timeout`` seconds.

        The same request with the same id has no further effect, and gets the same receipt.

        Raises:
            Refused: the budget service refuses the request.
            Timeout: no receipt arrived in time.

        Examples:
            >>> from schemas import CloseStream
            >>> closing = CloseStream(request="r-1", source="people", stream="counts", reason="done")
            >>> client.request(closing) == client.request(closing)
            True
        """
        [receipt] = await self.requests([request], timeout)
        require_accepted(receipt)
        return receipt

    async def requests(
        self,
        requests: Iterable[Request],
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Send many requests and return their receipts in the same order; a refusal does not raise.

        ``Timeout`` is raised if a receipt is missing after ``timeout`` seconds; its request may take effect later.

        Examples:
            >>> from schemas import HaltSource, HaltStream
            >>> halts = [HaltStream(request="r-1", source="people", stream="counts", reason="audit")]
            >>> halts.append(HaltSource(request="r-2", source="nobody", reason="audit"))
            >>> [receipt.outcome for receipt in client.requests(halts)]
            ['halted', 'refused']
        """
        asked = as_requests(requests)
        require_timeout(timeout)
        return await self._send_requests(asked, timeout)

    async def ask(
        self,
        question: Question,
        /,
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ASYNC109
        outcomes: bool = False,
        dry_run: bool = False,
        headers: Headers = (),
        **fields: Any,
    ) -> Result:
        """Ask one question and wait up to ``timeout`` seconds (None: no limit) for its answer.

        ``question`` is a stream's name with the query's fields as keywords, a mapping, or a ``Query``.
        A missing ``id`` is generated. A question with an ``alpha`` and without ``max_price`` gets the
        ``max_price`` ``"10%"`` (of the grant). If its answer may cost more, the question is rejected
        without a charge. ``Driver`` sets no ``max_price``.

        With ``dry_run``, the question is answered only if that is free; otherwise the result has a
        ``price``, the most ε that the answer may cost. With ``outcomes``, a rejected or halted question
        returns a result and raises no error.

        Raises:
            Rejected: the question is invalid, or its stream is not open.
            Halted: the stream is halted or closed, or its grant is used up (``Exhausted``).
            Timeout: no answer arrived in time; an answer may still arrive and be charged.
            Invalid: a field does not fit the contract; nothing was published.

        Examples:
            >>> result = client.ask("counts", where="age >= 65")
            >>> abs(result.estimate - 350) <= result.alpha
            True
            >>> client.ask("counts", where="height > 2", outcomes=True).outcome
            'rejected'
        """
        query = as_query(question, fields, self._new_id)
        if dry_run:
            query = query.model_copy(update={"max_price": 0.0})
        require_headers(headers)
        require_timeout(timeout)
        limited = (query,) if query.max_price is None else await self._limit_by_plan(query)
        result = (
            limited[0] if isinstance(limited, Results) else await self._ask_query(limited[0], timeout, headers)
        )
        return result if outcomes or (dry_run and result.is_priced) else result.checked()

    async def _limit_by_plan(self, query: Query) -> tuple[Query, ...] | Results:
        """Check a query's ``max_price`` here, if the stream's plan fixes the price of each answer.

        A worker checks it if the plan does not, or if this principal cannot read the stream in the ledger.
        """
        try:
            ledger = await self._read_ledger()
            source = ledger.source(ledger.source_name_of(query.stream) or "").source
            return limit_by_plan([query], ledger.grant(source.source, query.stream), source)
        except (Forbidden, Unknown):
            return (query,)

    async def sql(
        self,
        statement: str | SelectStatement,
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ASYNC109
        outcomes: bool = False,
        max_price: float | str | None = None,
    ) -> Table:
        """Answer a SELECT statement.

        FROM names a stream or a source. For a source, the cheapest of its open streams (pmw, laplace,
        histogram) that support the statement answers; the table's ``stream`` and ``why`` name it and
        give the reason. With ``outcomes``, the number of a rejected or halted question is null. A
        question that may cost more than ``max_price`` is rejected without a charge. With ``max_price``
        0 nothing is charged, and the table's ``price`` is the price of all questions.

        Raises:
            Invalid: the statement is not supported; the message names the supported form.
            Unknown: the source, stream or attribute does not exist.
            Rejected, Halted, Timeout: as for ``ask``.

        Examples:
            >>> table = client.sql("SELECT sex, COUNT(*) FROM people GROUP BY sex")
            >>> [row["sex"] for row in table.rows()]
            ['F', 'M']
        """
        from stream.sql import select_statements  # noqa: PLC0415  (the SQL parser is slow to import)
        from stream.sql.result_tables import PreparedStatement  # noqa: PLC0415  (the SQL parser is slow to import)

        if isinstance(statement, select_statements.SelectStatement):
            read = statement
        else:
            read = select_statements.parse_statement(statement)
        ledger = await self._read_ledger()
        sources, grants = ledger.records_of(read.table)
        refused: set[str] = set()
        if names := [one.spec.stream for one in grants if one.spec.source == read.table != one.spec.stream]:
            equals = ledger.first_open(read.table, names)
            if len(names) + len(equals) > 1:
                refused = await self._refused_streams(read.table, grants + equals)
            grants += equals if refused else []
        asking = PreparedStatement.prepare(read, sources, grants, self._new_id(), max_price, refused)
        results = asking.rejected or await self._ask_queries(asking.queries, timeout)
        return asking.table(results if outcomes or max_price == 0 else results.checked())

    @cached_property
    def _refusals(self) -> tuple[asyncio.Lock, dict[str, tuple[float, set[str]]]]:
        return asyncio.Lock(), {}

    async def _refused_streams(self, source: str, grants: Sequence[GrantRecord]) -> set[str]:
        """Return the streams of a source that do not answer by their workers' last status, read once in a minute.

        Kafka does not find a status by its stream, so a read may be long. It finds none if the topic cannot be read soon.
        """
        lock, known = self._refusals
        async with lock:  # statements at the same time share a read
            read_at, refused = known.get(source, (-math.inf, set[str]()))
            if time.monotonic() - read_at < self._refusals_seconds:
                return refused
            with suppress(SottoError, TimeoutError):  # as without its ACL, or if a later version wrote a status
                statuses = await self._read_choices(one.spec.stream for one in grants)
                last = {(name, status.incarnation) for name, (status, _) in statuses.items() if status.refused}
                refused = {
                    one.spec.stream for one in grants if (one.spec.stream, one.identity.incarnation) in last
                }
            known[source] = time.monotonic(), refused
            return refused

    async def _read_choices(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """Read the status of streams of which a statement chooses one; ``TimeoutError`` if that takes too long."""
        return await self.statuses(streams)

    async def list_sources(self) -> list[SourceRecord]:
        """Return all registered sources with their budgets, sorted by name.

        Examples:
            >>> [record.source.source for record in client.list_sources()]
            ['people', 'visits']
        """
        return (await self._read_ledger()).sources()

    async def list_populations(self) -> list[PopulationRecord]:
        """Return all registered populations with their budgets, sorted by name.

        Examples:
            >>> client.list_populations()
            []
        """
        return (await self._read_ledger()).populations()

    async def population(self, population: str) -> PopulationRecord:
        """Return a population's budget; raise ``Unknown`` if it is not registered.

        Examples:
            >>> receipt = client.register_population({"population": "residents", "epsilon": 8.0})
            >>> client.population("residents").left.epsilon
            8.0
        """
        found = {one.population.population: one for one in await self.list_populations()}
        if population not in found:
            hint = did_you_mean(population, found) or "; register it with 'sotto population register'"
            raise Unknown(f"population '{population}' is not registered{hint}")
        return found[population]

    async def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """Return the allotments of a source or population, or all allotments.

        Examples:
            >>> client.list_allotments(source="people")
            []
        """
        found = (await self._read_ledger()).allotments()
        wanted = (source, population)
        return [one for one in found if wanted in {(None, None), (one.source, one.population)}]

    async def list_streams(
        self,
        source: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        periods: bool = False,
    ) -> list[GrantRecord]:
        """Return the grants of the streams of one source, or of all sources, sorted by stream.

        With ``periods``, the streams of the source's periods are included. A page has at most ``limit``
        grants and begins after the stream ``after``; for the next page, give the name of the last stream.

        Raises:
            Unknown: the source is not registered.
            Invalid: ``limit`` is not a positive number.

        Examples:
            >>> [(grant.spec.stream, grant.state) for grant in client.list_streams("people")]
            [('counts', 'open')]
            >>> client.list_streams(limit=100, after="counts")
            []
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise Invalid(f"limit: is {limit!r}; give a number of streams from 1 on, or None for all of them")
        return (await self._read_ledger()).grants(source, limit, after, periods=periods)

    async def budget(self, source: str) -> SourceRecord:
        """Return a source's budget: granted, spent, refunded and left.

        ``Unknown`` is raised if the source is not registered.

        Examples:
            >>> client.budget("people").left.epsilon
            2.0
        """
        return (await self._read_ledger()).source(source)

    async def grant(self, source: str, stream: str) -> GrantRecord:
        """Return a stream's grant: calibration, cost and charge; raise ``Unknown`` if the ledger has none.

        Examples:
            >>> client.grant("people", "counts").state
            'open'
        """
        return (await self._read_ledger()).grant(source, stream)

    async def missed_events(self, source: str, stream: str) -> str | None:
        """Describe which windows of a standing stream may lack events that came before its opening; None if none do.

        Examples:
            >>> client.missed_events("people", "counts") is None
            True
        """
        view = await self._read_ledger()
        missed = view.missed_events(view.grant(source, stream).spec)
        return missed and missed.text

    async def source_of(self, stream: str) -> str:
        """Return the name of a stream's source; raise ``Unknown`` if the ledger has no such stream.

        Examples:
            >>> client.source_of("counts")
            'people'
        """
        if (source := (await self._read_ledger()).source_name_of(stream)) is None:
            raise Unknown(f"stream '{stream}': is not known, or has ended and is retired; see 'sotto stream list'")
        return source

    async def statuses(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """Return the last status of each stream, with the status's Unix time in seconds.

        A stream without a status is missing from the mapping. A status's ``refused`` is the reason why
        the worker cannot answer. It is None if another worker has restored the partition since the status
        was written, because that worker may have the table or key that was missing.

        Examples:
            >>> for stream, (status, time) in client.statuses(["counts"]).items():
            ...     print(stream, status.state, time)
        """
        wanted = {stream.encode(): stream for stream in as_stream_names(streams)}
        found: dict[str, tuple[StreamStatus, float]] = {}
        for partition in sorted({partition_of(key, self.topics.partitions) for key in wanted}):
            left = {key for key in wanted if partition_of(key, self.topics.partitions) == partition}
            is_restored = False  # True while reading records from before the partition's last restore
            async with aclosing(self._read_latest_first(self.topics.status, partition)) as batches:
                async for records in batches:
                    for record in records:
                        if record.key == f"@worker|{partition}".encode():
                            is_restored = True
                        elif record.key in left:
                            left.remove(record.key)
                            if record.value is not None:  # else the stream is retired
                                status = decode_record(status_codec, record.value)
                                if is_restored:
                                    status = status.model_copy(update={"refused": None})
                                found[wanted[record.key]] = status, record.timestamp / 1000
                    if not left:
                        break
        return found

    async def trail(self) -> AsyncGenerator[TrailRecord, None]:
        """Yield the current entries of the audit trail, oldest first.

        Examples:
            >>> len(list(client.trail()))
            4
        """
        async for records in self._read_topic(self.topics.trail):
            for record in records:
                yield decode_record(trail_codec, record.value)

    async def dead_letters(self, source: str | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Yield the current dead letters of all topics, or of the topic of a live ``source``.

        Dead letters are ordered by partition, one for each source that refuses an event. They are as private as the events, so reading them
        needs an operator's rights. A feed may refuse an event some time after ``flush`` has returned.

        Examples:
            >>> rejected = client.ask("counts", where="height > 2", outcomes=True)
            >>> [letter.topic for letter in client.dead_letters()]
            ['sotto.queries']
        """
        topic = None if source is None else require_live_source((await self.budget(source)).source).topic
        async for records in self._read_topic(self.topics.rejected, range(self.topics.partitions)):
            for record in records:
                letter = read_dead_letter(record)
                if topic in {None, letter.topic}:
                    yield letter

    async def _make_request(self, kind: type[Event], **fields: Any) -> Receipt:
        """Send a request of class ``kind`` and return its receipt; raise ``Invalid`` if a field is wrong."""
        request: Any = validate_as_invalid(lambda: kind.model_validate({"request": self._new_id(), **fields}))
        return await self.request(request)


def require_accepted(receipt: Receipt) -> None:
    """Raise ``Refused`` if a receipt says that the budget service refused the request."""
    if receipt.outcome == "refused":
        raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
