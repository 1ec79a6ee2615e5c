"""Asks the questions of the page's users; limits their number, and publishes each question once.

Questions with private data, such as a person's value, are refused: their producers send them to Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from schemas import Amount, Answer, GrantRecord, Query, SourceRecord, TableSource
from schemas.base import EventId
from schemas.queries import MaxPrice
from stream.client.async_client import AsyncClient
from stream.errors import Forbidden, Invalid, SottoError, Timeout, Unknown
from stream.formatting import find_closest_name
from stream.monitor.api import views
from stream.monitor.api.answer_views import QuestionAnswered, StatementAnswered
from stream.monitor.api.http_requests import ProblemError, too_many_error
from stream.monitor.api.models import ApiModel
from stream.monitor.monitor_tables import MonitorTables
from stream.questions import Result, Results
from stream.questions.result_text import is_charged, next_costs, total_cost
from stream.settings import Settings
from stream.sql.result_tables import PreparedStatement
from stream.sql.select_statements import MAX_STATEMENT_LENGTH, parse_statement
from stream.sql.stream_choice import choose_stream

ANSWER_SECONDS: Final = 30.0
"""Seconds to wait for answers; afterwards a client may repeat the request with the same ids."""

MAX_WAITING: Final = 512
"""Maximum number of questions of all users that wait for their answers."""

_MAX_REMEMBERED: Final = 4096
_MAX_ANSWER_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 60.0
_PRIVATE_FIELDS: Final = ("value", "values", "category")


class StatementText(ApiModel):
    """One SELECT whose price is asked for."""

    statement: Annotated[str, StringConstraints(min_length=1, max_length=MAX_STATEMENT_LENGTH)]


class Statement(StatementText):
    """One SELECT to ask. A statement that is sent again with the same ``id`` is not asked again."""

    id: EventId
    max_price: MaxPrice | None = None
    """Maximum price of each of its questions, an ε or a percentage of the grant; 0 for a dry run."""


class StatementPrice(ApiModel):
    """The stream that would answer a statement, the number of its questions, and what they cost together."""

    stream: str
    mechanism: str
    questions: int
    free: Annotated[Amount, Field(description="Cost if no answer is charged.")]
    charged: Annotated[Amount, Field(description="Cost if each answer has the ordinary charge.")]
    why: Annotated[str | None, Field(description="Why this stream was chosen among the source's open streams.")]


class AskingView(ApiModel):
    """The cost of a stream's next answer, and a SELECT that the stream accepts."""

    free: Annotated[Amount, Field(description="Cost of the next answer if it is not charged.")]
    charged: Annotated[Amount, Field(description="Cost of the next answer if it is an ordinary charge.")]
    statement: Annotated[str | None, Field(description="Null if the stream takes no SELECT.")]


@dataclass(frozen=True)
class _AskedQuestion:
    query: Query
    answer: asyncio.Task[Result]


class Asker:
    """Asks each question once; for a repeated id it returns the first question's answer, or waits for it."""

    def __init__(self, send: Callable[[Query], Coroutine[Any, Any, Result]]) -> None:
        """``send`` sends a question and waits for its answer."""
        self._send = send
        self._asked: OrderedDict[tuple[str, str], _AskedQuestion] = OrderedDict()

    async def ask(self, queries: Sequence[Query], timeout: float = ANSWER_SECONDS) -> list[Result]:  # noqa: ASYNC109
        """Return the answers in the order of the questions, including rejected and halted answers.

        Raises:
            ProblemError: a question has private data or another question's id, or too many questions wait.
            Timeout: answers are missing; repeat the questions with the same ids.
            SottoError: Kafka refuses the monitor's access or does not respond.
        """
        for query in queries:
            refuse_private(query)
        new = [one for one in queries if self._find_asked(one) is None]
        if new and sum(not one.answer.done() for one in self._asked.values()) + len(new) > MAX_WAITING:
            raise too_many_error(
                f"at most {MAX_WAITING} questions wait for their answers at a time; ask again in a moment", 5
            )
        answers = [(self._find_asked(one) or self._start_asking(one)).answer for one in queries]
        _, late = await asyncio.wait(answers, timeout=timeout)
        if late:
            missing = [one for one, answer in zip(queries, answers, strict=True) if answer in late]
            raise Timeout(f"{len(missing)} questions have no answer yet", missing)
        return [answer.result() for answer in answers]

    def find_asked_stream(self, question: str) -> str | None:
        """Return the stream that was asked a question with this id; None if none is remembered."""
        return next((stream for stream, one in self._asked if one == question), None)

    def find_question(self, answer: Result) -> Query | None:
        """Return the question of this answer; None if this monitor did not ask it or has forgotten it."""
        asked = self._asked.get((answer.stream, answer.id))
        if asked is None or not asked.answer.done() or asked.answer.cancelled() or asked.answer.exception():
            return None
        return asked.query if asked.answer.result() == answer else None

    async def close(self) -> None:
        """Cancel all waiting questions."""
        tasks = [one.answer for one in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find_asked(self, query: Query) -> _AskedQuestion | None:
        asked = self._asked.get((query.stream, query.id))
        if asked is None:
            return None
        if asked.query != query:
            raise ProblemError(
                409, "refused", "id: another question was asked with this id; give each question its own id"
            )
        if asked.answer.done() and (asked.answer.cancelled() or asked.answer.exception() is not None):
            del self._asked[query.stream, query.id]
            return None
        return asked

    def _start_asking(self, query: Query) -> _AskedQuestion:
        answer = asyncio.create_task(self._send(query))
        # The client may have disconnected, so read the exception here; otherwise asyncio logs it.
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())
        asked = self._asked[query.stream, query.id] = _AskedQuestion(query, answer)
        for key, one in list(self._asked.items())[: max(len(self._asked) - _MAX_REMEMBERED, 0)]:
            if one.answer.done():
                del self._asked[key]
        return asked


class OnDemandClient:
    """A client that connects at the first question and disconnects a minute after the last answer.

    While connected, a client reads all answers of the installation, which takes CPU time.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection_lock = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._waiting = 0
        self._last_answer_at = time.monotonic()

    async def ask(self, question: Query) -> Result:
        """Send a question and wait for its answer, at most ten minutes; a rejection is an answer too."""
        self._waiting += 1
        try:
            async with self._connection_lock:
                client = self._client
                if client is None:
                    client = AsyncClient(self._settings)
                    await client.connect()
                    self._client = client
            return await client.ask(question, timeout=_MAX_ANSWER_SECONDS, outcomes=True)
        finally:
            self._waiting -= 1
            self._last_answer_at = time.monotonic()

    async def disconnect_when_idle(self) -> None:
        """Run until cancelled; disconnect each time the client has been idle, and at the end."""
        try:
            while True:
                await asyncio.sleep(_IDLE_SECONDS / 4)
                if not self._waiting and time.monotonic() - self._last_answer_at > _IDLE_SECONDS:
                    await self._disconnect()
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        async with self._connection_lock:
            client, self._client = self._client, None
            if client is not None:
                with suppress(SottoError):
                    await client.disconnect()


def refuse_private(query: Query) -> None:
    """Refuse a question that contains private data."""
    private_field = next((name for name in _PRIVATE_FIELDS if getattr(query, name) is not None), None)
    if private_field is None and any(one.value is not None for one in query.candidates or ()):
        private_field = "candidates"
    if private_field is not None:
        raise ProblemError(
            400,
            "malformed",
            f"{private_field}: the monitor takes no private data; send it to Kafka with 'sotto ask' or a client",
        )


_ASKING_IS_OFF = "this monitor does not ask; start it with SOTTO_MONITOR_ASKS=true, and let its principal write queries and read answers"


def describe_asking(tables: MonitorTables, stream: str) -> AskingView:
    """Return the next answer's cost and an example of a SELECT; raise a 404 if the stream is unknown."""
    entry, _ = views.find_stream(tables, stream)
    grant = views.decode_grant(entry)
    source = views.decode_source(tables, tables.sources[grant.spec.source])
    free, charged = next_costs(grant, source.source, entry.answered, entry.tops, entry.surplus)
    return AskingView(free=free, charged=charged, statement=_example_statement(source, grant))


def _example_statement(source: SourceRecord, grant: GrantRecord) -> str | None:
    """Return the first of some simple statements that the stream accepts; None if it accepts none."""
    if not isinstance(source.source, TableSource):
        return None
    stream, *texts = ('"' + name.replace('"', '""') + '"' for name in (grant.spec.stream, *source.source.texts))
    columns = [
        ("COUNT(*)", None),
        *((f"{text}, COUNT(*)", text) for text in texts),
        *((text, text) for text in texts),
    ]
    for listed, group in columns:
        statement = " ".join(["SELECT", listed, "FROM", stream, *([] if group is None else ["GROUP BY", group])])
        try:
            choose_stream(parse_statement(statement), [source], [grant])
        except (Invalid, Unknown):
            continue
        return statement
    return None


async def ask_question(tables: MonitorTables, asker: Asker | None, query: Query) -> QuestionAnswered:
    """Ask one question and return its answer and cost."""
    grant = views.decode_grant(views.find_stream(tables, query.stream)[0])
    source = views.decode_definition(tables, tables.sources[grant.spec.source])
    [result] = await _ask_or_problem(asker, [query])
    result = result.with_question(query, source, grant.calibration)
    return QuestionAnswered(
        answer=to_answer(result),
        rows=[
            {name: cell for name, cell in row.items() if name not in _FIELDS_SHOWN_ELSEWHERE}
            for row in result.rows()
        ],
        cost=total_cost(grant, source, [result]),
        charged=is_charged(result),
        warnings=list(result.warnings),
    )


def price_statement(tables: MonitorTables, text: StatementText) -> StatementPrice:
    """Return the questions of a SELECT and their cost, without asking them."""
    try:
        parsed = parse_statement(text.statement)
        found = _sources_and_streams(tables, parsed.table)
        prepared = PreparedStatement.prepare(parsed, *found, "price", refused=_refused_streams(tables))
    except (Unknown, Invalid) as error:
        raise _statement_problem(error) from None
    grant, source = prepared.target.grant, prepared.target.source
    stream, questions = grant.spec.stream, len(prepared.queries)
    if grant.state != "open":
        raise ProblemError(409, "refused", f"stream '{stream}' is {grant.state}, and answers no statement")
    entry = tables.streams[stream]
    free, charged = next_costs(grant, source, entry.answered, entry.tops, entry.surplus, questions)
    return StatementPrice(
        stream=stream,
        mechanism=grant.spec.mechanism.kind,
        questions=questions,
        free=free,
        charged=charged,
        why=prepared.why,
    )


def _statement_problem(error: Unknown | Invalid) -> ProblemError:
    if isinstance(error, Unknown):
        return ProblemError(404, "not-found", str(error)[:1024])
    return ProblemError(400, "malformed", f"statement: {error}"[:1024])


async def ask_statement(tables: MonitorTables, asker: Asker | None, statement: Statement) -> StatementAnswered:
    """Ask all questions of a SELECT and return its rows and cost."""
    try:
        parsed = parse_statement(statement.statement)
        if asker is not None and (asked := asker.find_asked_stream(f"{statement.id}-0")) is not None:
            # A repeated statement goes to the same stream, although another stream may be cheaper now.
            parsed = replace(parsed, table=asked)
        named = _sources_and_streams(tables, parsed.table)
        refused = _refused_streams(tables)
        prepared = PreparedStatement.prepare(parsed, *named, statement.id, statement.max_price, refused)
    except (Unknown, Invalid) as error:
        raise _statement_problem(error) from None
    found = prepared.rejected or await _ask_or_problem(asker, prepared.queries)
    grant, source = prepared.target.grant, prepared.target.source
    results = Results(
        one.with_question(query, source, grant.calibration)
        for one, query in zip(found, prepared.queries, strict=True)
    )
    table = prepared.table(results)
    return StatementAnswered(
        stream=table.stream,
        columns=list(table.columns),
        rows=table.rows(),
        cost=total_cost(grant, source, results),
        charged=sum(is_charged(one) for one in results),
        questions=len(results),
        answers=[to_answer(one) for one in results],
        warnings=list(table.warnings),
        why=table.why,
    )


_FIELDS_SHOWN_ELSEWHERE = frozenset({"stream", "id", "outcome", "reason", "rows_per_person"})


def to_answer(result: Result) -> Answer:
    """Return the fields of ``Answer`` of a result."""
    return Answer.model_validate(result.model_dump())


async def _ask_or_problem(asker: Asker | None, queries: Sequence[Query]) -> list[Result]:
    if asker is None:
        raise ProblemError(403, "forbidden", _ASKING_IS_OFF)
    try:
        return await asker.ask(queries)
    except Timeout as error:
        raise ProblemError(
            504,
            "unavailable",
            f"{error}; is a worker running? Repeat the request with the same id; it is not asked twice",
        ) from None
    except Forbidden as error:
        remedy = "'sotto topics acl' needs SOTTO_MONITOR_ASKS=true to let it"
        raise ProblemError(
            503, "unavailable", f"the monitor's principal may not ask: {error}; {remedy}"[:1024]
        ) from None
    except SottoError as error:
        raise ProblemError(503, "unavailable", f"{error}; send the same request again"[:1024]) from None


def _refused_streams(tables: MonitorTables) -> set[str]:
    return {one.name for one in tables.streams.values() if one.missing_input is not None}


def _sources_and_streams(tables: MonitorTables, name: str) -> tuple[list[SourceRecord], list[GrantRecord]]:
    """Return the sources and streams that the name after FROM, or else the closest known name, may mean."""
    if name not in tables.sources and name not in tables.streams:
        name = find_closest_name(name, [*tables.sources, *tables.streams]) or name
    streams = [one for one in tables.streams.values() if one.grant and name in {one.name, one.grant.source}]
    named = {name, *(one.grant.source for one in streams if one.grant)}
    sources = [views.decode_source(tables, tables.sources[one]) for one in named if one in tables.sources]
    # The worker may report a stream as exhausted before the ledger's record does.
    return sources, [views.decode_grant(one).model_copy(update={"state": one.state}) for one in streams]
