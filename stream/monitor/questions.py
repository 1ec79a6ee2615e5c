"""The routes that ask: one question, or a statement."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import Answer, GrantRecord, Query, Source, SourceRecord, StreamState
from stream import sql
from stream.asking import Result, Results
from stream.asking.costs import is_charged, total_cost
from stream.errors import Forbidden, Invalid, SottoError, Timeout, Unknown
from stream.monitor import views
from stream.monitor.asking import Asker
from stream.monitor.problems import ProblemError, unknown
from stream.monitor.tables import Tables
from stream.monitor.workbench import QuestionAnswered, Statement, StatementAnswered
from stream.suggestions import closest

_OFF = "this monitor does not ask; start it with SOTTO_MONITOR_ASKS=true, and let its principal write queries and read answers"


async def ask_question(tables: Tables, asker: Asker | None, query: Query) -> QuestionAnswered:
    """Ask one question, and say what it cost."""
    grant, source = _subject(tables, query.stream)
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
    """Ask what a SELECT asks: up to 256 questions at once."""
    try:
        read = sql.read(statement.statement)
        asking = sql.Asking.of(read, *_candidates(tables, read.table), statement.id, statement.max_price)
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
    )


_TOLD = frozenset({"stream", "id", "outcome", "reason", "rows_per_person"})


def plain(result: Result) -> Answer:
    """The answer that a result is."""
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


def _subject(tables: Tables, stream: str) -> tuple[GrantRecord, Source]:
    entry = tables.streams.get(stream)
    if entry is None or entry.grant is None:
        raise unknown("stream", stream)
    record = views.grant_record(entry)
    return record, views.definition(tables, tables.sources[record.spec.source])


def _candidates(tables: Tables, name: str) -> tuple[list[SourceRecord], list[GrantRecord]]:
    """The sources and streams that a name after FROM may mean; the others need not be read for it."""
    if name not in tables.sources and name not in tables.streams:
        name = closest(name, [*tables.sources, *tables.streams]) or name
    streams = [one for one in tables.streams.values() if one.grant and name in {one.name, one.grant.spec.source}]
    named = {name, *(one.grant.spec.source for one in streams if one.grant)}
    sources = [views.source_record(tables, tables.sources[one]) for one in named if one in tables.sources]
    return sources, [_current(views.grant_record(one), one.state) for one in streams]


def _current(record: GrantRecord, state: StreamState) -> GrantRecord:
    """A stream that has run dry says so before the ledger does."""
    return record.model_copy(update={"state": state})
