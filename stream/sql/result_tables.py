"""Makes the queries of a statement, and builds the result table from their answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas import (
    Amount,
    EstimateCalibration,
    GrantRecord,
    Interval,
    Query,
    SourceRecord,
    TableSource,
    TextInterval,
)
from stream.formatting import format_error_bound, values_of
from stream.questions import Result, Results, result_text
from stream.questions.answer_warnings import describe_reasons, largest_error
from stream.questions.clamped_values import describe_other_categories
from stream.questions.html_tables import format_html_table
from stream.questions.question_forms import limit_by_plan, validate_as_invalid
from stream.questions.result_text import (
    ERROR_SUFFIX,
    HIGH_SUFFIX,
    INFORMATIVE_SUFFIX,
    LOW_SUFFIX,
    NUMBER_SUFFIXES,
    ConvertibleRows,
    list_warnings,
    total_cost,
)
from stream.sql.aggregates import AnswerColumn
from stream.sql.select_statements import Column, GroupColumn, SelectStatement
from stream.sql.statement_clauses import satisfies_having
from stream.sql.statement_questions import StatementPlan, code_in_group
from stream.sql.stream_choice import Target, choose_stream


class Table(ConvertibleRows, Sequence[dict[str, Any]]):
    """The result of a statement: a sequence of rows, each a mapping by column name.

    - A number in column ``n`` has its error bound in column ``n ±``, which is null if the answer has none.
    - If a row has a confidence interval, its ends are in the columns ``n 95% low`` and ``n 95% high``.
    - If a row's number is not informative, the column ``n informative`` is false in such rows and true in all others.
    - ``results`` are the answers of ``stream``, and ``cost`` is their total cost in ε, δ and ρ.
    - If FROM names a source with several open streams, ``why`` says why this stream was chosen.

    Examples:
        >>> table = client.sql("SELECT sex, COUNT(*) AS n FROM people GROUP BY sex")
        >>> table.columns
        ('sex', 'n', 'n ±', 'n 95% low', 'n 95% high')
    """

    def __init__(
        self,
        stream: str,
        rows: Sequence[dict[str, Any]],
        results: Results,
        cost: Amount,
        *,
        columns: Sequence[str] = (),
        why: str | None = None,
        warnings: tuple[str, ...] = (),
        grant_left: float = math.inf,
    ) -> None:
        self.stream = stream
        self.why = why
        self.columns = tuple(columns)
        self.warnings = warnings
        """The distinct warnings of all answers about the rows; see ``Result.warnings``."""
        self.results = results
        self.cost = cost
        self.epsilon = cost.epsilon
        """The ε of ``cost``; with Gaussian noise under zCDP, what its ρ implies."""
        self._rows = tuple(rows)
        self._grant_left = grant_left

    def __getitem__(self, at: Any) -> Any:
        return self._rows[at]

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return copies of the rows."""
        return [dict(row) for row in self._rows]

    @property
    def price(self) -> float | None:
        """The total ε of the questions that were rejected for their price; None if it is not known as an ε.

        A dry run rejects all questions that may be charged.
        """
        prices = [one.price for one in self.results if one.is_priced]
        return None if None in prices else min(sum(one or 0.0 for one in prices), self._grant_left)

    def __repr__(self) -> str:
        return " ".join(
            [
                f"<{len(self)} rows from '{self.stream}', {format_cost(self)}>",
                *result_text.format_warnings(self.warnings),
            ]
        )

    def _repr_html_(self) -> str:
        return f"{format_html_table(self._rows, self.warnings)}<p>{format_cost(self)}</p>"


_ESTIMATED_WARNING: Final = (
    "numbers without a 95 % interval are estimates that follow from earlier measurements of the stream"
)

_CHOSEN_WARNING: Final = "HAVING or LIMIT chooses groups by their noisy numbers, and a 95 % interval holds for a group named in advance; ± holds for all of them"


def _intervals_of(result: Result) -> Sequence[Interval | TextInterval]:
    return result.choice_intervals or result.intervals or (() if result.interval is None else (result.interval,))


def format_cost(table: Table) -> str:
    """Format the number of questions, their cost, and why their stream was chosen."""
    answered, questions = table.results.answered, len(table.results)
    asked = f"{questions} question" + "s" * (questions != 1)
    if answered < questions:
        asked = f"{answered:,} of {asked} answered"
    free = ", because a stream pays ρ with its first answer" if answered and table.cost.rho == 0 else ""
    return f"{asked} for {_format_amount(table.cost)}{free}{_format_why(table)}"


def _format_amount(cost: Amount) -> str:
    if cost.rho is None:
        return f"ε = {cost.epsilon:.4g}" + (f", δ = {cost.delta:.4g}" if cost.delta else "")
    summed = f" (ε {cost.epsilon:.4g} added up)" if cost.epsilon and not cost.delta else ""
    return f"ρ = {cost.rho:.4g}{summed}"


def _format_why(table: Table) -> str:
    return f" ({table.why})" if table.why else ""


def format_price(table: Table) -> str:
    """Format the highest price of the questions that were rejected for their price, and why the stream was chosen."""
    if (price := table.price) is not None:
        return f"{table.stream}: the answers cost at most ε {format_error_bound(round(price, 12))} together{_format_why(table)}"
    return f"{table.stream}: each answer: {next(one.reason for one in table.results if one.is_priced)}"


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement and its ``queries``; ``table`` takes their results in the same order.

    If a query may cost more than its limit by the stream's plan, none is to be asked: ``rejected`` has a result with a
    price for each.
    """

    statement: SelectStatement
    plan: StatementPlan
    target: Target
    queries: tuple[Query, ...]
    why: str | None = None
    rejected: Results | None = None

    @classmethod
    def prepare(
        cls,
        statement: SelectStatement,
        sources: Iterable[SourceRecord],
        grants: Sequence[GrantRecord],
        new_id: str,
        max_price: float | str | None = None,
        refused: Collection[str] = (),
    ) -> PreparedStatement:
        """Convert a statement into queries with the ids ``new_id-0``, ``new_id-1`` and so on.

        Raises:
            Unknown: the stream does not exist, or the source has no open stream.
            StatementError: no stream supports the statement.
        """
        chosen = choose_stream(statement, sources, grants, refused)
        plan, stream = chosen.plan, chosen.target.grant.spec.stream
        limit = {} if max_price is None else {"max_price": max_price}
        queries = validate_as_invalid(
            lambda: tuple(
                Query.model_validate({"stream": stream, "id": f"{new_id}-{number}", **limit, **question.query})
                for number, question in enumerate(plan.questions)
            )
        )
        limited = (
            queries if max_price is None else limit_by_plan(queries, chosen.target.grant, chosen.target.source)
        )
        if isinstance(limited, Results):
            return cls(statement, plan, chosen.target, queries, chosen.why, limited)
        return cls(statement, plan, chosen.target, limited, chosen.why)

    def table(self, results: Results) -> Table:
        """Build the result of the statement."""
        plan, target = self.plan, self.target
        released = [group for result in results for group in result.groups or ()] if not plan.rows else []
        groups = [column for column in plan.columns if isinstance(column, GroupColumn)]
        rows: list[dict[str, Any]] = [
            {column.name: group[column.attribute] for column in groups} for group in plan.rows or released
        ]
        for question, result in zip(plan.questions, results, strict=True):
            if question.column is None:
                continue
            name = plan.columns[question.column].name
            several = result.estimates if result.choices is None else result.choices
            numbers = (
                several if several is not None else (result.estimate if result.choice is None else result.choice,)
            )
            indexes = range(len(rows)) if question.row is None else (question.row,)
            for index in indexes:
                rows[index][name] = numbers[index] if several is not None else numbers[0]
                rows[index][name + ERROR_SUFFIX] = _error_bound(question.query, result, index)
                if intervals := _intervals_of(result):
                    low, high = intervals[index if len(intervals) > 1 else 0]
                    rows[index] |= {name + LOW_SUFFIX: low, name + HIGH_SUFFIX: high}

        order, is_chosen = self._choose_rows(rows)
        why_not = self._list_reasons(results, len(rows), is_chosen=is_chosen)
        for at in order:
            rows[at] |= {name + INFORMATIVE_SUFFIX: False for name, why in why_not[at].items() if why is not None}
        known = {name for at in order for name in rows[at]}
        names = [name for column in plan.columns for name in _column_names(column, known)]
        defaults = {name: True for name in names if name.endswith(INFORMATIVE_SUFFIX)}
        ordered = [{name: rows[at].get(name, defaults.get(name)) for name in names} for at in order]
        marked = describe_reasons(tuple(why for at in order for why in why_not[at].values()))
        warnings = [line for result in results for line in result.question_warnings]
        warnings += _warn_of_missing(plan, target.source, results)
        warnings += [
            f"answers are of version {one} of the data"
            for one in sorted({one.version or 1 for one in results} - {1})
        ]
        if any(one.basis == "hypothesis" and not _intervals_of(one) for one in results):
            warnings.append(_ESTIMATED_WARNING)
        if is_chosen and (not ordered or any(name.endswith(HIGH_SUFFIX) for name in names)):
            warnings.append(_CHOSEN_WARNING)
        if marked is not None:
            warnings.append(marked)
        grant = target.grant
        # An estimate answers for free when its grant is used up, so a statement never costs more than the rest.
        ends_free = isinstance(grant.calibration, EstimateCalibration)
        return Table(
            grant.spec.stream,
            ordered,
            results,
            total_cost(grant, target.source, results),
            columns=names,
            why=self.why,
            warnings=list_warnings(warnings),
            grant_left=grant.cost.epsilon - grant.spent.epsilon if ends_free else math.inf,
        )

    def _list_reasons(self, results: Results, rows: int, *, is_chosen: bool) -> list[dict[str, str | None]]:
        """Return for each row why its numbers are not informative, by column; chosen numbers are judged by their ±."""
        why_not: list[dict[str, str | None]] = [{} for _ in range(rows)]
        for question, result in zip(self.plan.questions, results, strict=True):
            reasons = _judge_by_bound(result) if is_chosen else result.reasons
            if question.column is not None and reasons:
                name = self.plan.columns[question.column].name
                for index in range(rows) if question.row is None else (question.row,):
                    why_not[index][name] = reasons[index if len(reasons) > 1 else 0]
        return why_not

    def _choose_rows(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], bool]:
        """Return the positions of the shown rows in their order, and whether published numbers chose these rows."""
        statement, plan = self.statement, self.plan
        labels = tuple(column.name for column in plan.columns)
        candidates = [at for at in range(len(rows)) if at not in plan.excluded]
        having = statement.having
        order = [at for at in candidates if having is None or satisfies_having(having, rows[at], labels)]
        ranked = not plan.rows and not statement.order  # released texts come largest first
        by_number = len(order) < len(candidates) or (ranked and len(order[: statement.limit]) < len(order))
        for index, descending in reversed(statement.order):
            column = plan.columns[index]
            keys = _sort_keys(rows, plan, self.target.source, column)
            order.sort(key=keys.__getitem__, reverse=descending)
            by_number |= not isinstance(column, GroupColumn) and len(order[: statement.limit]) < len(order)
        return order[: statement.limit], by_number


def _judge_by_bound(result: Result) -> tuple[str | None, ...]:
    """Return the ``reasons`` by ± instead of the intervals, which hold only for a group that is named in advance."""
    if result.alpha is None or result.alpha_unit:
        return result.reasons
    return result.model_copy(update={"interval": None, "intervals": None}).reasons


def _error_bound(query: Mapping[str, Any], result: Result, index: int) -> float | None:
    """Return a number's error bound in its unit; for a quantile, the distance to the farther end of its interval."""
    if "quantile" not in query:
        return result.alpha
    if result.choice is not None or result.choices is not None:
        return None
    numbers, intervals = result.estimates or (result.estimate,), result.intervals or (result.interval,)
    at = index if result.estimates is not None else 0
    number, interval = numbers[at], intervals[at] if at < len(intervals) else None
    return None if number is None else largest_error(number, interval, None)


def _warn_of_missing(plan: StatementPlan, source: TableSource, results: Results) -> Iterator[str]:
    """Warn of each COUNT(a) that, unlike in other SQL, counts rows whose category is missing; not of refusals."""
    for question in plan.questions if results.answered or any(one.is_priced for one in results) else ():
        column = None if question.column is None else plan.columns[question.column]
        for name in column.counted_columns if isinstance(column, AnswerColumn) else ():
            same = [one for one in source.attributes if one.casefold() == name.casefold()]
            for line in describe_other_categories(source.attributes, (), question.query.get("where"), same):
                yield f"COUNT({name}) counts as COUNT(*): {line}"


def _sort_keys(
    rows: Sequence[Mapping[str, Any]], plan: StatementPlan, source: TableSource, column: Column
) -> list[tuple[bool, Any]]:
    """Return the sort key of each row for a column; groups are sorted as in their domain, or as texts."""
    values: list[Any] = [row.get(column.name) for row in rows]
    if isinstance(column, GroupColumn):
        if column.attribute in source.texts:
            return [(True, text) for text in values]
        if not plan.rows:
            indexes = {value: index for index, value in enumerate(values_of(source.attributes[column.attribute]))}
            return [(True, indexes[value]) for value in values]
        return [(True, code_in_group(source, plan.groups, column.attribute, at)) for at in range(len(rows))]
    if any(isinstance(number, str) for number in values):
        domain = map(str, values_of(source.attributes[column.attribute or ""]))
        indexes = {value: index for index, value in enumerate(domain)}
        values = [indexes.get(number) for number in values]
    return [(number is not None, number or 0.0) for number in values]


def _column_names(column: Column, known: Collection[str]) -> Iterator[str]:
    """Yield a column's names in the result; interval and ``informative`` only if a row has them."""
    name = column.name
    yield name
    if not isinstance(column, GroupColumn):
        yield from (name + end for end in NUMBER_SUFFIXES if end == ERROR_SUFFIX or name + end in known)
