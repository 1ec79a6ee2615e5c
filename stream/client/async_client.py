"""The asynchronous client."""

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
    """One connection to an installation. Use it with ``async with``, or ``connect`` and ``disconnect``.

    Settings are those of the environment (``SOTTO_BOOTSTRAP`` …) unless given, whole or by name: ``AsyncClient(bootstrap=…)``. A text
    alone is Kafka's address: ``AsyncClient("127.0.0.1:9092")``.
    What goes wrong is raised as a SottoError.
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
        """Find the installation. Unreachable if there is none."""
        with translated():
            await self._connection.open()

    async def disconnect(self) -> None:
        """Send what was published, and leave; questions that wait are cancelled.

        What Kafka does not take within ten seconds is given up; ``flush`` waits, and tells what was not taken.
        """
        self._connection.is_open = False
        await self._listener.stop()
        await self._definitions.stop()
        await self._connection.close()

    @property
    def topics(self) -> Topics:
        """The installation's topics."""
        return self._connection.topics

    async def register(self, source: Source | Mapping[str, Any]) -> Receipt:
        """Register a source. Refused if the name stands for something else already."""
        return await self.request(RegisterSource(request=new_id(), source=as_source(source)))

    async def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream; once this returns it answers. Refused says what was asked and what is left.

        With ``analyst``, who asks, it is also taken from what that analyst was allotted.
        """
        return await self.request(opening(new_id, stream, analyst))

    async def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Grant a stream as many further charged answers as ``epsilon`` pays for; all that it has measured stays.

        The receipt says how many they are and what they cost. Refused if they are none, if the source cannot pay, or if the
        stream was asked to end. An ``analyst`` who asks must have opened it.
        """
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return await self.request(extension(new_id, **fields))

    async def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream; the refund follows once its worker has reported its last totals."""
        return await self.request(closing(new_id, source, stream, reason))

    async def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        return await self.request(halting(new_id, source, stream, reason))

    async def refresh(self, source: str, *, close: bool = False) -> Receipt:
        """Take the data that a table source has now for its next version; the receipt has the version's number.

        Streams that keep what they computed of the old one are closed, with ``close`` all are. The others go on.
        """
        return await self.request(refreshing(new_id, source, close=close))

    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and wait for its receipt. Sending the same id again is safe and gives the same receipt."""
        [receipt] = await self.requests([request], timeout)
        if receipt.outcome == "refused":
            raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
        return receipt

    async def requests(
        self,
        requests: Iterable[Request],
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Send many requests at once and give their receipts in the same order, refusals among them.

        Timeout if not all have come within ``timeout`` seconds, sending included: are Kafka and a budget service running? What
        was sent may still be done.
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
        """Ask one question and wait for its answer: ``ask("ward-7", value=250)``, or a whole query.

        With ``outcomes`` a question that is rejected or halted is a result like others. An ``id`` is made up where none is
        given. No ``timeout`` waits for ever.

        One with an ``alpha`` has a ``max_price``, of a tenth of its stream's grant (``"10%"``) unless it says another: if its answer
        may cost more it is rejected, for nothing.

        With ``dry_run`` the question is only priced: the result has the most ε that its answer may cost as ``price``. An answer that
        costs nothing is given.

        Raises:
            Rejected: the question is wrong, or its stream is not open.
            Halted: the stream is halted, closed, or (Exhausted) its grant is used up.
            Timeout: no answer came in time.
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
        """Ask many questions at once: ``await`` gives all results in the same order, ``async for`` each as it comes.

        What is rejected or halted is a result like others. Each has ``timeout`` seconds.

        Raises:
            Invalid: a question is none. Nothing was asked, or of questions that are read as they are asked those before it: its
                ``results`` are their answers, which ``async for`` has given by then.
            Timeout, Unreachable: answers did not come; ``results`` has those that did.
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
        """Ask what a SELECT asks: ``sql("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")``.

        FROM names a stream, or a source with one open stream of pmw or laplace. With ``outcomes`` numbers that were rejected
        or halted are null in the table. With ``max_price`` each question that may cost more is rejected, for nothing; with 0 the
        table has the price of all together, as ``price``.

        Raises:
            Invalid: the statement asks what cannot be asked; the message says what can.
            Unknown: there is no such source, stream or attribute.
            Rejected, Halted, Timeout: as ``ask``.
        """
        from stream import sql  # noqa: PLC0415  (a parser that who asks otherwise does not wait for)

        read = sql.read(statement)
        self._connection.require_open()
        with translated():
            ledger = await read_ledger(self._connection)
        asking = sql.Asking.of(read, ledger.sources.values(), list(ledger.grants.values()), new_id(), max_price)
        results = await self.ask_many(asking.queries, timeout=timeout)
        return asking.table(results if outcomes or max_price == 0 else results.checked())

    async def answers(self, *, from_beginning: bool = False) -> AsyncGenerator[Result, None]:
        """Committed answers of all streams, as they come; without end."""
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
        """The alerts of these streams as they are committed, and that one has ended; without end.

        A stream's name may hold ``*`` for anything; with ``source`` it must be of that source, and without names all are watched.
        With ``quiet`` every other answer is told as well.

        Raises:
            Unknown: there is no such source, or no stream that is named in full.
        """
        self._connection.require_open()
        with translated():
            watch = Watch(streams, source, quiet=quiet)
            async with aclosing(notices(self._connection, watch, from_beginning=from_beginning)) as each:
                async for notice in each:
                    yield notice

    async def list_sources(self) -> list[SourceRecord]:
        """All sources that are registered as of now, with their budgets."""
        return list((await self._ledger()).sources.values())

    async def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """The grants of all streams ever opened, or of a source's; Unknown if there is no such source."""
        self._connection.require_open()
        with translated():
            found = await read_ledger(self._connection, source)
        if source is not None:
            found.source(source)
        return list(found.grants.values())

    async def budget(self, source: str) -> SourceRecord:
        """A source's budget as of now: what is granted, spent, refunded and left. Unknown if it is not registered."""
        self._connection.require_open()
        with translated():
            return (await read_ledger(self._connection, source)).source(source)

    async def grant(self, source: str, stream: str) -> GrantRecord:
        """A stream's grant as of now: its plan, its cost, and what is spent of it. Unknown if it was never opened."""
        grants = {one.spec.stream: one for one in await self.list_streams(source)}
        if stream not in grants:
            hint = did_you_mean(stream, grants) or f"; see 'sotto source show {source}'"
            raise Unknown(f"stream '{stream}' of source '{source}' is not known{hint}")
        return grants[stream]

    async def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """What workers last showed of these streams, with the time in seconds since the epoch; not all have a digest."""
        named = as_names("streams", streams)
        self._connection.require_open()
        with translated():
            return await read_digests(self._connection, named)

    async def trail(self) -> AsyncGenerator[TrailRecord, None]:
        """The audit trail as of now, oldest first: requests, decisions, what followed, and what was spent meanwhile."""
        self._connection.require_open()
        with translated():
            async for values in read_trail(self._connection):
                for value in values:
                    yield trail_codec.decode(value)

    async def dead_letters(self, source: str | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Refused events as of now, as they came, each with the reason; of all topics, or of the topic of a live source.

        They come partition by partition, and are as private as the events: it takes an operator's rights. Feeds refuse an event when they
        read it, which may be after ``flush``.
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
        """What the question is about, where that says more of the answer."""
        return await self._definitions.of(query.stream) if is_about_table(query) else None

    async def _ledger(self) -> LedgerView:
        self._connection.require_open()
        with translated():
            return await read_ledger(self._connection)
