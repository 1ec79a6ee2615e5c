"""The asynchronous client of an installation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from schemas import (
    GrantRecord,
    Query,
    Receipt,
    RegisterSource,
    Request,
    Source,
    SourceRecord,
    StreamSpec,
    StreamStatus,
    TrailRecord,
)
from stream.client.answer_reader import Listener, Pending, PendingResults
from stream.client.kafka_connection import Connection, translated
from stream.client.ledger_reader import (
    BudgetCalls,
    KnownSources,
    LedgerView,
    new_id,
    read_dead_letters,
    read_digests,
    read_ledger,
    read_trail,
)
from stream.client.publishing import PublishCalls, send_requests
from stream.client.stream_watcher import notices
from stream.engine.restore import readable
from stream.errors import Refused, Unknown
from stream.formatting import did_you_mean
from stream.processing.protocol import Headers
from stream.processing.receipts import trail_codec
from stream.processing.topic_names import Topics
from stream.questions import Question, Result
from stream.questions.alert_states import Notice
from stream.questions.dead_letter_records import DeadLetter
from stream.questions.domain_limits import is_about_table
from stream.questions.live_events import live_source
from stream.questions.question_forms import (
    ANSWER_TIMEOUT,
    REQUEST_TIMEOUT,
    as_names,
    as_query,
    as_requests,
    as_source,
    closing,
    extension,
    halting,
    made_settings,
    opening,
    refreshing,
    require_headers,
    require_many,
    require_seconds,
    with_limit,
)
from stream.questions.stream_watch import Watch
from stream.settings import Settings

if TYPE_CHECKING:
    from stream.sql import Table


class AsyncClient(PublishCalls, BudgetCalls):
    """Connects to an installation; every error it raises is a ``SottoError``.

    Settings come from the environment (``SOTTO_BOOTSTRAP`` …). Arguments override them, by name
    (``AsyncClient(bootstrap="127.0.0.1:9092")``) or as a whole ``Settings`` object.

    Example::

        async with AsyncClient("127.0.0.1:9092") as client:
            result = await client.ask("ward-7", value=250)
            print(result.outcome, result.estimate)
    """

    def __init__(self, settings: Settings | str | None = None, /, **fields: Any) -> None:
        super().__init__(Connection(made_settings(settings, fields)))
        self._listener = Listener(self._connection)
        self._definitions = KnownSources(self._connection)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Find the installation's topics; ``Unreachable`` if Kafka or the topics are missing."""
        with translated():
            await self._connection.open()

    async def disconnect(self) -> None:
        """Send published records for up to 10 seconds, cancel pending questions, and disconnect.

        Later records are lost without an error; call ``flush`` first to wait for all of them.
        """
        self._connection.is_open = False
        await self._listener.stop()
        await self._definitions.stop()
        await self._connection.close()

    @property
    def topics(self) -> Topics:
        """The topic names of the installation."""
        return self._connection.topics

    async def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source; ``Refused`` if its name has another definition."""
        return await self.request(RegisterSource(request=new_id(), source=as_source(source)))

    async def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream and reserve its grant; it answers once this call returns.

        With ``analyst``, the grant also counts against that analyst's allotments. ``Refused`` carries
        the requested amount (``asked``) and the rest of the budget (``left``).
        """
        return await self.request(opening(new_id, stream, analyst))

    async def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Extend a stream's grant by as many charged answers as ``epsilon`` pays for.

        The stream keeps its estimates. The receipt has the number of answers and their cost.
        ``Refused`` if ``epsilon`` pays for none, the budget does not suffice, or the stream is ending.
        An ``analyst`` can only extend a stream that was opened under the same name.
        """
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return await self.request(extension(new_id, **fields))

    async def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; its refund follows when the worker has reported its final charge."""
        return await self.request(closing(new_id, source, stream, reason))

    async def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams; the grant stays reserved."""
        return await self.request(halting(new_id, source, stream, reason))

    async def refresh(self, source: str, *, close: bool = False) -> Receipt:
        """Make the current data of a table its next version; the receipt has the number.

        Streams that hold estimates of the old version are closed; with ``close``, all streams are.
        Other streams continue on the new version.
        """
        return await self.request(refreshing(new_id, source, close=close))

    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and return its receipt within ``timeout`` seconds.

        Sending the same request id again is safe and returns the same receipt.

        Raises:
            Refused: the budget service refuses the request.
            Timeout: no receipt arrived in time.
        """
        [receipt] = await self.requests([request], timeout)
        if receipt.outcome == "refused":
            raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
        return receipt

    async def requests(
        self,
        requests: Iterable[Request],
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Send many requests and return their receipts, refusals included, in the same order.

        ``Timeout`` if a receipt is missing after ``timeout`` seconds; the requests may still be decided.
        """
        asked = as_requests(requests)
        require_seconds("timeout", timeout)
        self._connection.require_open()
        with translated():
            return await send_requests(self._connection, asked, timeout)

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

        ``question`` is a stream's name with the query's fields as keywords, a mapping, or a ``Query``:
        ``await client.ask("ward-7", value=250)``. An ``id`` is generated if missing. A question with an
        ``alpha`` has a ``max_price`` of ``"10%"`` of the grant by default; if its answer may cost more,
        it is rejected without a charge.

        With ``dry_run``, the question is only priced: ``price`` of the result is the most ε that the
        answer may cost, and only a free answer is published. With ``outcomes``, a rejected or halted
        question returns a result instead of raising.

        Raises:
            Rejected: the question is invalid, or its stream is not open.
            Halted: the stream is halted or closed, or its grant is used up (``Exhausted``).
            Timeout: no answer arrived in time; it may still arrive and be charged.
            Invalid: a field does not fit the contract; nothing was published.
        """
        pending = await self._publish(question, fields, timeout, headers, dry_run=dry_run)
        try:
            result = await Listener.answer(pending)
        finally:
            pending.value.cancel()
        return result if outcomes or (dry_run and result.is_priced) else result.checked()

    def ask_many(
        self, questions: Iterable[Question] | AsyncIterable[Question], *, timeout: float | None = ANSWER_TIMEOUT
    ) -> PendingResults:
        """Ask many questions; ``await`` returns ``Results``, ``async for`` yields each ``Result``.

        Results keep the order of the questions, and rejected or halted questions do not raise. Each
        question waits up to ``timeout`` seconds for its answer.

        Raises:
            Invalid: a question does not fit the contract. Questions of a collection are validated
                before the first is published; otherwise ``results`` has the earlier answers.
            Timeout, Unreachable: answers are missing; ``results`` has the others.
        """
        require_many(questions)
        return PendingResults(partial(self._publish, fields={}, timeout=timeout, headers=()), questions)

    async def sql(
        self,
        statement: str,
        *,
        timeout: float | None = ANSWER_TIMEOUT,  # noqa: ASYNC109
        outcomes: bool = False,
        max_price: float | str | None = None,
    ) -> Table:
        """Answer a SELECT: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``.

        FROM names a stream, or a source with one open stream of pmw or laplace. With ``outcomes``,
        rejected or halted numbers are null. A question that may cost more than ``max_price`` is
        rejected without a charge; with 0, ``price`` of the table is the price of all questions.

        Raises:
            Invalid: the statement is not supported; the message names the supported form.
            Unknown: the source, stream or attribute does not exist.
            Rejected, Halted, Timeout: as for ``ask``.
        """
        from stream import sql  # noqa: PLC0415  (the SQL parser is slow to import)

        read = sql.read(statement)
        self._connection.require_open()
        with translated():
            ledger = await read_ledger(self._connection)
        asking = sql.PreparedStatement.prepare(
            read, ledger.sources.values(), list(ledger.grants.values()), new_id(), max_price
        )
        results = await self.ask_many(asking.queries, timeout=timeout)
        return asking.table(results if outcomes or max_price == 0 else results.checked())

    async def answers(self, *, from_beginning: bool = False) -> AsyncGenerator[Result, None]:
        """Yield the committed answers of all streams, without end."""
        self._connection.require_open()
        with translated():
            consumer = await self._connection.answers_reader(from_beginning=from_beginning)
            try:
                while True:
                    batch = self._connection.settings.batch_events
                    fetched = await consumer.getmany(timeout_ms=500, max_records=batch)
                    for records in fetched.values():
                        for record in readable(records):
                            yield Result.read(record.value)
            finally:
                await consumer.stop()

    async def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> AsyncGenerator[Notice, None]:
        """Yield alerts and ends of streams as they are committed, without end.

        A stream's name may contain ``*`` as a wildcard; without names, all streams of ``source``, or
        of all sources, are watched. With ``quiet``, all other answers are yielded too.

        Raises:
            Unknown: the source, or a stream named without wildcard, does not exist.
        """
        self._connection.require_open()
        with translated():
            watch = Watch(streams, source, quiet=quiet)
            async with aclosing(notices(self._connection, watch, from_beginning=from_beginning)) as each:
                async for notice in each:
                    yield notice

    async def list_sources(self) -> list[SourceRecord]:
        """Return all registered sources with their budgets."""
        return list((await self._ledger()).sources.values())

    async def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """Return the grants of all streams ever opened, of one source or of all.

        Raises:
            Unknown: the source is not registered.
        """
        self._connection.require_open()
        with translated():
            found = await read_ledger(self._connection, source)
        if source is not None:
            found.source(source)
        return list(found.grants.values())

    async def budget(self, source: str) -> SourceRecord:
        """Return a source's budget: granted, spent, refunded and left; ``Unknown`` if not registered."""
        self._connection.require_open()
        with translated():
            return (await read_ledger(self._connection, source)).source(source)

    async def grant(self, source: str, stream: str) -> GrantRecord:
        """Return a stream's grant: calibration, cost and charge; ``Unknown`` if never opened."""
        grants = {one.spec.stream: one for one in await self.list_streams(source)}
        if stream not in grants:
            hint = did_you_mean(stream, grants) or f"; see 'sotto source show {source}'"
            raise Unknown(f"stream '{stream}' of source '{source}' is not known{hint}")
        return grants[stream]

    async def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """Return the last status of each stream, with its Unix time in seconds.

        A stream without a status is missing from the mapping.
        """
        named = as_names("streams", streams)
        self._connection.require_open()
        with translated():
            return await read_digests(self._connection, named)

    async def trail(self) -> AsyncGenerator[TrailRecord, None]:
        """Yield the current entries of the audit trail, oldest first."""
        self._connection.require_open()
        with translated():
            async for values in read_trail(self._connection):
                for value in values:
                    yield trail_codec.decode(value)

    async def dead_letters(self, source: str | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Yield the current dead letters, of all topics or of a live source's topic.

        They come partition by partition. Dead letters are as private as the events and need an
        operator's rights. A feed refuses an event when it reads it, possibly after ``flush`` returns.
        """
        topic = None if source is None else live_source((await self.budget(source)).source).topic
        self._connection.require_open()
        with translated():
            async for letter in read_dead_letters(self._connection):
                if topic in {None, letter.topic}:
                    yield letter

    async def _publish(
        self,
        question: Question,
        fields: Mapping[str, Any],
        timeout: float | None,  # noqa: ASYNC109
        headers: Headers,
        *,
        dry_run: bool = False,
    ) -> Pending:
        query = with_limit(as_query(question, fields, new_id), dry_run=dry_run)
        require_headers(headers)
        require_seconds("timeout", timeout)
        self._connection.require_open()
        with translated():
            await self._listener.start()
            pending = self._listener.expect(query, await self._source_of(query), timeout)
            try:
                self._listener.watch(pending, await self._send(query, headers))
            except BaseException:
                pending.value.cancel()
                raise
        return pending

    async def _source_of(self, query: Query) -> Source | None:
        return await self._definitions.of(query.stream) if is_about_table(query) else None

    async def _ledger(self) -> LedgerView:
        self._connection.require_open()
        with translated():
            return await read_ledger(self._connection)
