"""Finds the stream that a statement names, makes its queries, and builds the result table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, Final

from schemas import EventsSource, GrantRecord, Query, SourceRecord, TableSource
from stream.errors import Unknown
from stream.formatting import did_you_mean
from stream.questions import Results, result_text
from stream.questions.question_forms import valid
from stream.questions.result_text import ERROR, HIGH, LOW, DataFrames, cost_of
from stream.sql.aggregates import StatementError
from stream.sql.statement_questions import StatementPlan, plan
from stream.sql.statements import Column, Grouped, SelectStatement

ANSWERING: Final = ("pmw", "laplace")
"""Mechanisms that answer every count with a number."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, as its grant, and the table that it answers about."""

    source: TableSource
    grant: GrantRecord


def target(name: str, sources: Iterable[SourceRecord], grants: Sequence[GrantRecord]) -> Target:
    """Return the stream of this name, or the only open stream on the source of this name.

    Raises:
        Unknown: neither exists.
        StatementError: several streams on the source are open, or the stream supports no statements.
    """
    tables = {one.source.source: one.source for one in sources}
    grant = next((one for one in grants if one.spec.stream == name), None)
    if isinstance(tables.get(name if grant is None else grant.spec.source), EventsSource):
        raise StatementError(
            f"FROM {name}: is about a live topic, whose windows ask its streams; statements are about tables"
        )
    if grant is None:
        streams = [one.spec.stream for one in grants if one.state == "open"]
        grant = _on_source(name, tables, streams, grants)
    if grant.spec.mechanism.kind not in ANSWERING:
        raise StatementError(
            f"FROM {name}: stream '{grant.spec.stream}' is one of {grant.spec.mechanism.kind}, which does not answer every count with a "
            f"number; name one of {' or '.join(ANSWERING)}"
        )
    table = tables.get(grant.spec.source)
    if not isinstance(table, TableSource):
        raise StatementError(
            f"FROM {name}: source '{grant.spec.source}' is not a table; statements are about tables"
        )
    return Target(table, grant)


def _on_source(
    name: str, sources: Collection[str], streams: Collection[str], grants: Sequence[GrantRecord]
) -> GrantRecord:
    if name not in sources:
        hint = did_you_mean(name, [*sources, *streams]) or "; 'sotto source list' shows the sources"
        raise Unknown(f"FROM {name}: there is no such source or stream{hint}")
    found = [
        one
        for one in grants
        if one.spec.source == name
        and one.spec.mechanism.kind in ANSWERING
        and (one.state, one.ending) == ("open", None)
    ]
    if not found:
        raise Unknown(
            f"FROM {name}: the source has no open stream of {' or '.join(ANSWERING)}; open one with 'sotto stream open'"
        )
    if len(found) > 1:
        names = ", ".join(sorted(one.spec.stream for one in found)[:8])
        raise StatementError(f"FROM {name}: several streams on it are open; say FROM one of them: {names}")
    return found[0]


class Table(DataFrames, Sequence[dict[str, Any]]):
    """The result of a statement: a sequence of rows, each a mapping by column name.

    A number in column ``n`` has its error bound in column ``n ±``, null if the answer has none, and
    the ends of its confidence interval in ``n 95% low`` and ``n 95% high`` if any row has one.
    ``results`` are the answers of ``stream``, and ``epsilon`` is their total cost.

    Examples:
        >>> table = client.sql("SELECT sex, COUNT(*) AS n FROM people GROUP BY sex")
        >>> table.columns
        ('sex', 'n', 'n ±', 'n 95% low', 'n 95% high')
    """

    def __init__(self, stream: str, rows: Sequence[dict[str, Any]], results: Results, epsilon: float) -> None:
        self.stream = stream
        self.columns = tuple(rows[0]) if rows else ()
        self.results = results
        self.epsilon = epsilon
        self._rows = tuple(rows)

    def __getitem__(self, at: Any) -> Any:
        return self._rows[at]

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return copies of the rows."""
        return [dict(row) for row in self._rows]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The distinct warnings of all answers; see ``Result.warnings``."""
        return self.results.warnings

    @property
    def price(self) -> float:
        """The most ε that the questions rejected for their price may cost; in a dry run, that is all questions."""
        return sum(one.price or 0.0 for one in self.results if one.is_priced)

    def __repr__(self) -> str:
        return " ".join(
            [
                f"<{len(self)} rows from '{self.stream}', {cost_line(self)}>",
                *result_text.format_warnings(self.warnings),
            ]
        )

    def _repr_html_(self) -> str:
        return f"{result_text.table(self._rows, self.warnings)}<p>{cost_line(self)}</p>"


def cost_line(table: Table) -> str:
    """Format the number of questions and their cost."""
    asked = f"{len(table.results)} question" + "s" * (len(table.results) != 1)
    return f"{asked} for ε = {table.epsilon:.4g}"


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement with its ``queries``; ``table`` needs their results in the same order."""

    statement: SelectStatement
    plan: StatementPlan
    target: Target
    queries: tuple[Query, ...]

    @classmethod
    def prepare(
        cls,
        statement: SelectStatement,
        sources: Iterable[SourceRecord],
        grants: Sequence[GrantRecord],
        new_id: str,
        max_price: float | str | None = None,
    ) -> PreparedStatement:
        """Convert a statement into queries with the ids ``new_id-0``, ``new_id-1`` and so on.

        Raises:
            Unknown: the stream does not exist.
            StatementError: several streams match, or the stream does not support the statement.
        """
        aim = target(statement.table, sources, grants)
        made = plan(statement, aim.source, aim.grant)
        stream = aim.grant.spec.stream
        limit = {} if max_price is None else {"max_price": max_price}
        queries = valid(
            lambda: tuple(
                Query.model_validate({"stream": stream, "id": f"{new_id}-{number}", **limit, **question.query})
                for number, question in enumerate(made.questions)
            )
        )
        return cls(statement, made, aim, queries)

    def table(self, results: Results) -> Table:
        """Build the result of the statement."""
        return _table(self.statement, self.plan, self.target, results)


def _table(statement: SelectStatement, plan: StatementPlan, target: Target, results: Results) -> Table:
    rows = [dict(_grouped(plan, group)) for group in plan.rows]
    for question, result in zip(plan.questions, results, strict=True):
        name = plan.columns[question.column].name
        numbers = result.estimates if result.estimates is not None else (result.estimate,)
        places = range(len(rows)) if question.row is None else (question.row,)
        for place in places:
            rows[place][name] = numbers[place] if result.estimates is not None else numbers[0]
            rows[place][name + ERROR] = result.alpha
            intervals = result.intervals if result.intervals is not None else (result.interval,)
            if (ends := intervals[place if len(intervals) > 1 else 0]) is not None:
                rows[place][name + LOW], rows[place][name + HIGH] = ends
    known = {name for row in rows for name in row}
    names = [
        name for column in plan.columns for name in _names(column.name, known, grouped=isinstance(column, Grouped))
    ]
    order = list(range(len(rows)))
    for place, falling in reversed(statement.order):
        order.sort(key=partial(_rank, rows, plan, target.source, plan.columns[place]), reverse=falling)
    ordered = [{name: rows[at].get(name) for name in names} for at in order]
    epsilon = float(sum((cost_of(target.grant, target.source, result) for result in results), Fraction(0)))
    return Table(target.grant.spec.stream, ordered[: statement.limit], results, epsilon)


def _grouped(plan: StatementPlan, group: Any) -> Iterator[tuple[str, Any]]:
    for column in plan.columns:
        if isinstance(column, Grouped):
            yield column.name, group[column.attribute]


def _rank(
    rows: Sequence[Mapping[str, Any]], plan: StatementPlan, source: TableSource, column: Column, at: int
) -> tuple[bool, float]:
    """Return a row's sort key for a column; groups sort in the order of their declared domain."""
    if isinstance(column, Grouped):
        axis = plan.groups.index(column.attribute)
        domains = [source.attributes[name] for name in plan.groups[axis:]]
        return True, at // prod(domain.size for domain in domains[1:]) % domains[0].size
    number = rows[at].get(column.name)
    return number is not None, number or 0.0


def _names(name: str, known: Collection[str], *, grouped: bool) -> tuple[str, ...]:
    if grouped:
        return (name,)
    ends = (name + LOW, name + HIGH)
    return (name, name + ERROR, *(end for end in ends if end in known))
