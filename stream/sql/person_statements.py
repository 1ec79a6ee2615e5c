"""Statements about people: a subquery that groups the rows by the person column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from stream.sql.aggregates import (
    AnswerColumn,
    StatementError,
    attribute_of,
    condition_of,
    is_number,
    strip_parentheses,
)

SUPPORTED_SUBQUERIES: Final = (
    "FROM a subquery: ask SELECT COUNT(*) FROM (SELECT person FROM t GROUP BY person HAVING COUNT(*) >= 2), or "
    "SELECT SUM(LEAST(s, 100)) FROM (SELECT person, SUM(a) AS s FROM t GROUP BY person)"
)


@dataclass(frozen=True, slots=True)
class PeopleQuery:
    """A subquery with one row for each person: it groups the rows of ``table`` that satisfy ``where``."""

    table: exp.Table
    person: str
    where: str | None
    min_rows: int | None
    sums: dict[str, str]
    """The attribute of each sum in the subquery, by the sum's alias."""


def parse_people_query(node: Any) -> PeopleQuery:
    """Parse a subquery with one row for each person; StatementError if unsupported."""
    select = node.this if isinstance(node, exp.Subquery) else None
    table = select.args["from_"].this if isinstance(select, exp.Select) and select.args.get("from_") else None
    if not isinstance(select, exp.Select) or not isinstance(table, exp.Table):
        raise StatementError(SUPPORTED_SUBQUERIES)
    known = {"kind", "expressions", "from_", "where", "group", "having"}
    if any(value and name not in known for name, value in select.args.items()):
        raise StatementError(SUPPORTED_SUBQUERIES)
    for column in select.find_all(exp.Column):
        if column.table in {table.name, table.alias} and not column.args.get("db"):
            column.set("table", None)
    group = select.args.get("group")
    if group is None or len(group.expressions) != 1:
        raise StatementError(SUPPORTED_SUBQUERIES)
    person = attribute_of(group.expressions[0], "GROUP BY")
    where = select.args.get("where")
    having = select.args.get("having")
    sums: dict[str, str] = {}
    for column in select.expressions:
        inner = strip_parentheses(column.this) if isinstance(column, exp.Alias) else strip_parentheses(column)
        if isinstance(inner, exp.Sum) and isinstance(column, exp.Alias):
            sums[column.alias.casefold()] = attribute_of(inner.this, "SUM")
        elif not _is_ignored(inner, person):
            raise StatementError(SUPPORTED_SUBQUERIES)
    return PeopleQuery(
        table,
        person,
        None if where is None else condition_of(where.this),
        None if having is None else _parse_min_rows(strip_parentheses(having.this)),
        sums,
    )


def parse_people_column(name: str, node: exp.Expr, people: PeopleQuery) -> AnswerColumn:
    """Parse an aggregate over people: their number, or the sum of their clamped sums."""
    if isinstance(node, exp.Count) and isinstance(strip_parentheses(node.this), exp.Star) and not people.sums:
        return AnswerColumn(name, "people", people.where, person=people.person, min_rows=people.min_rows)
    if isinstance(node, exp.Sum) and people.min_rows is None:
        clamped = strip_parentheses(node.this)
        if isinstance(clamped, exp.Least) and len(clamped.expressions) == 1:
            sides = [strip_parentheses(clamped.this), strip_parentheses(clamped.expressions[0])]
            columns = [side for side in sides if isinstance(side, exp.Column)]
            bounds = [bound for side in sides if (bound := _parse_whole_number(side)) is not None]
            attribute = people.sums.get(columns[0].name.casefold()) if columns else None
            if attribute is not None and bounds:
                return AnswerColumn(
                    name, "person_sum", people.where, attribute, person=people.person, bound=bounds[0]
                )
    raise StatementError(SUPPORTED_SUBQUERIES)


def _is_ignored(node: exp.Expr, person: str) -> bool:
    """Return whether a column of the subquery is the person, a literal or a count: the result ignores these."""
    if isinstance(node, exp.Column):
        return node.name.casefold() == person.casefold()
    return isinstance(node, exp.Literal | exp.Count) or is_number(node, 1)


def _parse_min_rows(having: exp.Expr) -> int:
    """Return k of ``HAVING COUNT(*) >= k``, or of ``> k - 1``."""
    if isinstance(having, exp.GTE | exp.GT) and isinstance(strip_parentheses(having.this), exp.Count):
        counted = strip_parentheses(strip_parentheses(having.this).this)
        number = _parse_whole_number(strip_parentheses(having.expression))
        if isinstance(counted, exp.Star) and number is not None:
            least = number + isinstance(having, exp.GT)
            if least >= 1:
                return least
    raise StatementError(
        "HAVING in a subquery: ask for people by COUNT(*) >= k, with a whole number k of 1 or more"
    )


def _parse_whole_number(node: exp.Expr) -> int | None:
    is_whole = isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal()
    return int(node.this) if is_whole and len(node.this) <= 10 else None
