"""Parses HAVING, and subqueries that group the rows by the person column.

HAVING compares the published numbers of a group after the answers; this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

from sqlglot import exp

from stream.sql.aggregates import (
    AnswerColumn,
    StatementError,
    attribute_of,
    condition_of,
    is_number,
    remove_table_names,
    strip_parentheses,
    whole_number_of,
)
from stream.tables.predicates import OPERATORS

SUPPORTED_SUBQUERIES: Final = (
    "FROM a subquery: ask SELECT COUNT(*) FROM (SELECT person FROM t GROUP BY person HAVING COUNT(*) >= 2), or "
    "SELECT SUM(LEAST(s, 100)) FROM (SELECT person, SUM(a) AS s FROM t GROUP BY person); for one row for each group leave "
    "the outer SELECT out: SELECT a, COUNT(*) FROM t GROUP BY a"
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
    remove_table_names(select, table)
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
            bounds = [bound for side in sides if (bound := whole_number_of(side, _MAX_DIGITS)) is not None]
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
        number = whole_number_of(strip_parentheses(having.expression), _MAX_DIGITS)
        if isinstance(counted, exp.Star) and number is not None:
            least = number + isinstance(having, exp.GT)
            if least >= 1:
                return least
    raise StatementError(
        "HAVING in a subquery: ask for people by COUNT(*) >= k, with a whole number k of 1 or more"
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares the number in a column of the result with a literal."""

    column: int
    operator: str
    number: float


@dataclass(frozen=True, slots=True)
class Combination:
    """Combines conditions: ``not`` has one part."""

    connective: Literal["and", "or", "not"]
    parts: tuple[Having, ...]


Having = Comparison | Combination
"""A condition on the numbers of a row of the result."""

_OPERATOR_FUNCTIONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_MAX_DIGITS: Final = 10
"""Maximum number of digits of a bound and of a number of rows."""
_SUPPORTED_FORM: Final = "HAVING: compare a number of the result with a literal, as COUNT(*) >= 100"


def parse_having(node: exp.Expr, column_of: Callable[[exp.Expr], int]) -> Having:
    """Parse a HAVING clause; ``column_of`` returns the index of a column of numbers, or raises StatementError."""
    node = strip_parentheses(node)
    match node:
        case exp.And() | exp.Or():
            connective: Literal["and", "or"] = "and" if isinstance(node, exp.And) else "or"
            sides = parse_having(node.this, column_of), parse_having(node.expression, column_of)
            return Combination(connective, sides)
        case exp.Not():
            return Combination("not", (parse_having(node.this, column_of),))
        case exp.Between():
            index = column_of(strip_parentheses(node.this))
            low, high = _number_of(node.args["low"]), _number_of(node.args["high"])
            if low is None or high is None or node.args.get("symmetric"):
                raise StatementError(_SUPPORTED_FORM)
            return Combination("and", (Comparison(index, ">=", low), Comparison(index, "<=", high)))
    if type(node) not in OPERATORS:
        raise StatementError(_SUPPORTED_FORM)
    sign, mirrored = OPERATORS[type(node)]
    left, right = strip_parentheses(node.this), strip_parentheses(node.expression)
    if (number := _number_of(right)) is not None:
        return Comparison(column_of(left), sign, number)
    if (number := _number_of(left)) is not None:
        return Comparison(column_of(right), mirrored, number)
    raise StatementError(_SUPPORTED_FORM)


def compared_columns(having: Having | None) -> Iterator[int]:
    """Yield the indexes of the columns that a condition compares."""
    if isinstance(having, Comparison):
        yield having.column
    elif having is not None:
        for part in having.parts:
            yield from compared_columns(part)


def satisfies_having(having: Having, row: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Return whether a row of the result satisfies the condition; as in SQL, a missing number satisfies nothing."""
    return _evaluate(having, row, names) is True


def _evaluate(having: Having, row: Mapping[str, Any], names: tuple[str, ...]) -> bool | None:
    if isinstance(having, Comparison):
        number = row.get(names[having.column])
        return None if number is None else _OPERATOR_FUNCTIONS[having.operator](number, having.number)
    parts = [_evaluate(part, row, names) for part in having.parts]
    if having.connective == "not":
        return None if parts[0] is None else not parts[0]
    decisive = having.connective == "or"
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def _number_of(node: exp.Expr) -> float | None:
    node = strip_parentheses(node)
    sign = 1.0
    if isinstance(node, exp.Neg):
        sign, node = -1.0, strip_parentheses(node.this)
    if not isinstance(node, exp.Literal) or node.is_string:
        return None
    try:
        return sign * float(node.this)
    except ValueError:
        return None
