"""Asks the questions of the page's users: limited in number, each published once.

The monitor refuses questions with private data (a trusted value, a person's category): producers
send these to Kafka themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from schemas import Answer, GrantRecord, Query, SourceRecord
from stream import sql
from stream.client.async_client import AsyncClient
from stream.errors import Forbidden, Invalid, SottoError, Timeout, Unknown
from stream.formatting import closest
from stream.monitor.api import views
from stream.monitor.api.forms import QuestionAnswered, Statement, StatementAnswered
from stream.monitor.api.problems import ProblemError, too_many, unknown
from stream.monitor.state.monitor_tables import Tables
from stream.questions import Result, Results
from stream.questions.result_text import is_charged, total_cost
from stream.settings import Settings

ANSWER_SECONDS: Final = 30.0
"""Seconds to wait for answers; afterwards a client may repeat the request with the same ids."""

MAX_WAITING: Final = 512
"""Most questions of all users that wait for their answers."""

_REMEMBERED: Final = 4096
_PATIENCE_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 60.0
_PRIVATE: Final = ("value", "values", "category")


class QuestionSender(Protocol):
    """Sends questions: an AsyncClient, ``OnDemandClient``, or a fake in tests."""

    def ask(self, question: Query, /, *, timeout: float | None, outcomes: bool) -> Awaitable[Result]:
        """Send a question and wait for its answer."""


@dataclass(frozen=True)
class _Asked:
    query: Query
    answer: asyncio.Task[Result]


class Asker:
    """Asks each question once; for a repeated id it returns, or waits for, the first one's answer."""

    def __init__(self, answering: QuestionSender) -> None:
        self._answering = answering
        self._asked: OrderedDict[tuple[str, str], _Asked] = OrderedDict()

    async def ask(self, queries: Sequence[Query], timeout: float = ANSWER_SECONDS) -> list[Result]:  # noqa: ASYNC109
        """Return the answers in the order of the questions, including rejected and halted ones.

        Raises:
            ProblemError: a question has private data or another question's id, or too many questions wait.
            Timeout: answers are missing; repeat the questions with the same ids.
            SottoError: Kafka refuses the monitor's access or does not respond.
        """
        for query in queries:
            refuse_private(query)
        new = [one for one in queries if self._known(one) is None]
        if new and sum(not one.answer.done() for one in self._asked.values()) + len(new) > MAX_WAITING:
            raise too_many(
                f"at most {MAX_WAITING} questions wait for their answers at a time; ask again in a moment", 5
            )
        answers = [(self._known(one) or self._begin(one)).answer for one in queries]
        _, late = await asyncio.wait(answers, timeout=timeout)
        if late:
            missing = [one for one, answer in zip(queries, answers, strict=True) if answer in late]
            raise Timeout(f"{len(missing)} questions have no answer yet", missing)
        return [answer.result() for answer in answers]

    def stream_asked(self, question: str) -> str | None:
        """Return the stream that was asked a question of this id; None if it is not remembered."""
        return next((stream for stream, one in self._asked if one == question), None)

    async def close(self) -> None:
        """Cancel all waiting questions."""
        tasks = [one.answer for one in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, query: Query) -> _Asked | None:
        asked = self._asked.get((query.stream, query.id))
        if asked is None:
            return None
        if asked.query != query:
            raise ProblemError(409, "refused", "id: another question was asked under this id; give each its own")
        if asked.answer.done() and (asked.answer.cancelled() or asked.answer.exception() is not None):
            del self._asked[query.stream, query.id]
            return None
        return asked

    def _begin(self, query: Query) -> _Asked:
        answer = asyncio.ensure_future(self._answering.ask(query, timeout=_PATIENCE_SECONDS, outcomes=True))
        answer.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # the client may have disconnected
        asked = self._asked[query.stream, query.id] = _Asked(query, answer)
        for key, one in list(self._asked.items())[: max(len(self._asked) - _REMEMBERED, 0)]:
            if one.answer.done():
                del self._asked[key]
        return asked


class OnDemandClient:
    """A client that connects at the first question and disconnects a minute after the last answer.

    While connected, a client reads all answers of the installation, which takes CPU time.
    """

    def __init__(self, settings: Settings, make: Callable[[Settings], AsyncClient] = AsyncClient) -> None:
        self._settings = settings
        self._make = make
        self._changing = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._waiting = 0
        self._last = time.monotonic()

    async def ask(self, question: Query, /, *, timeout: float | None, outcomes: bool) -> Result:  # noqa: ASYNC109
        """Send a question and wait for its answer."""
        self._waiting += 1
        try:
            async with self._changing:
                client = self._client
                if client is None:
                    client = self._make(self._settings)
                    await client.connect()
                    self._client = client
            return await client.ask(question, timeout=timeout, outcomes=outcomes)
        finally:
            self._waiting -= 1
            self._last = time.monotonic()

    async def disconnect_when_idle(self) -> None:
        """Run until cancelled: disconnect whenever the client was idle, and at the end."""
        try:
            while True:
                await asyncio.sleep(_IDLE_SECONDS / 4)
                if not self._waiting and time.monotonic() - self._last > _IDLE_SECONDS:
                    await self._disconnect()
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        async with self._changing:
            client, self._client = self._client, None
            if client is not None:
                with suppress(SottoError):
                    await client.disconnect()


def refuse_private(query: Query) -> None:
    """Refuse a question that contains private data."""
    carried = next((name for name in _PRIVATE if getattr(query, name) is not None), None)
    if carried is None and any(one.value is not None for one in query.candidates or ()):
        carried = "candidates"
    if carried is not None:
        raise ProblemError(
            400,
            "malformed",
            f"{carried}: the monitor takes no private data; send it to Kafka with 'sotto ask' or a client",
        )


_OFF = "this monitor does not ask; start it with SOTTO_MONITOR_ASKS=true, and let its principal write queries and read answers"


async def ask_question(tables: Tables, asker: Asker | None, query: Query) -> QuestionAnswered:
    """Ask one question and return its answer and cost."""
    entry = tables.streams.get(query.stream)
    if entry is None or entry.grant is None:
        raise unknown("stream", query.stream)
    grant = views.grant_record(entry)
    source = views.definition(tables, tables.sources[grant.spec.source])
    [result] = await _answers(asker, [query])
    result = result.of(query, source)
    return QuestionAnswered(
        answer=plain(result),
        rows=[{name: cell for name, cell in row.items() if name not in _TOLD} for row in result.rows()],
        cost=total_cost(grant, source, [result]),
        charged=is_charged(grant, result),
        warnings=list(result.warnings),
    )


async def ask_statement(tables: Tables, asker: Asker | None, statement: Statement) -> StatementAnswered:
    """Ask all questions of a SELECT and return its rows and cost."""
    try:
        read = sql.read(statement.statement)
        if asker is not None and (asked := asker.stream_asked(f"{statement.id}-0")) is not None:
            # A repeated statement goes to the same stream, although another may be cheaper by now.
            read = replace(read, table=asked)
        asking = sql.PreparedStatement.prepare(
            read, *_candidates(tables, read.table), statement.id, statement.max_price
        )
    except Unknown as error:
        raise ProblemError(404, "not-found", str(error)[:1024]) from None
    except Invalid as error:
        raise ProblemError(400, "malformed", f"statement: {error}"[:1024]) from None
    found = await _answers(asker, asking.queries)
    grant, source = asking.target.grant, asking.target.source
    results = Results(one.of(query, source) for one, query in zip(found, asking.queries, strict=True))
    table = asking.table(results)
    return StatementAnswered(
        stream=table.stream,
        columns=list(table.columns),
        rows=table.rows(),
        cost=total_cost(grant, source, results),
        charged=sum(is_charged(grant, one) for one in results),
        questions=len(results),
        answers=[plain(one) for one in results],
        warnings=list(table.warnings),
        why=table.why,
    )


_TOLD = frozenset({"stream", "id", "outcome", "reason", "rows_per_person"})


def plain(result: Result) -> Answer:
    """Return a client's Result as the Answer that it extends."""
    return Answer.model_validate(result.model_dump())


async def _answers(asker: Asker | None, queries: Sequence[Query]) -> list[Result]:
    if asker is None:
        raise ProblemError(403, "forbidden", _OFF)
    try:
        return await asker.ask(queries)
    except Timeout as error:
        raise ProblemError(
            504,
            "unavailable",
            f"{error}; is a worker running? Send the same again under the same id: it is not asked twice",
        ) from None
    except Forbidden as error:
        raise ProblemError(503, "unavailable", f"the monitor's principal may not ask: {error}"[:1024]) from None
    except SottoError as error:
        raise ProblemError(503, "unavailable", f"{error}; send the same again"[:1024]) from None


def _candidates(tables: Tables, name: str) -> tuple[list[SourceRecord], list[GrantRecord]]:
    """Return the sources and streams that a name after FROM may refer to, or the closest name."""
    if name not in tables.sources and name not in tables.streams:
        name = closest(name, [*tables.sources, *tables.streams]) or name
    streams = [one for one in tables.streams.values() if one.grant and name in {one.name, one.grant.spec.source}]
    named = {name, *(one.grant.spec.source for one in streams if one.grant)}
    sources = [views.source_record(tables, tables.sources[one]) for one in named if one in tables.sources]
    # The worker may report a stream as exhausted before the ledger's record does.
    return sources, [views.grant_record(one).model_copy(update={"state": one.state}) for one in streams]
