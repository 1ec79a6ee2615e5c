"""HAVING: conditions on the published numbers of a group, checked after the answers, without a charge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Literal

from sqlglot import exp

from stream.sql.aggregates import StatementError, strip_parentheses


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares the number in a column of the result with a literal."""

    column: int
    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    number: float


@dataclass(frozen=True, slots=True)
class Combination:
    """Holds if all ``parts`` hold (``and``), if one holds (``or``), or if the only one does not (``not``)."""

    connective: Literal["and", "or", "not"]
    parts: tuple[Having, ...]


Having = Comparison | Combination
"""A condition on the numbers of a row of the result."""

_OPERATORS: Final[dict[type[exp.Expr], Literal["=", "<>", "<", "<=", ">", ">="]]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED: Final[dict[str, Literal["=", "<>", "<", "<=", ">", ">="]]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_OPERATOR_FUNCTIONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_SUPPORTED_FORM: Final = "HAVING: compare a number of the result with a literal, as COUNT(*) >= 100"


def parse_having(node: exp.Expr, column_of: Callable[[exp.Expr], int]) -> Having:
    """Parse a HAVING clause; ``column_of`` returns the index of a column of numbers, or raises."""
    node = strip_parentheses(node)
    match node:
        case exp.And() | exp.Or():
            connective: Literal["and", "or"] = "and" if isinstance(node, exp.And) else "or"
            return Combination(
                connective, (parse_having(node.this, column_of), parse_having(node.expression, column_of))
            )
        case exp.Not():
            return Combination("not", (parse_having(node.this, column_of),))
        case exp.Between():
            index = column_of(strip_parentheses(node.this))
            low, high = _number(node.args["low"]), _number(node.args["high"])
            if low is None or high is None or node.args.get("symmetric"):
                raise StatementError(_SUPPORTED_FORM)
            return Combination("and", (Comparison(index, ">=", low), Comparison(index, "<=", high)))
    operator = _OPERATORS.get(type(node))
    if operator is None:
        raise StatementError(_SUPPORTED_FORM)
    left, right = strip_parentheses(node.this), strip_parentheses(node.expression)
    if (number := _number(right)) is not None:
        return Comparison(column_of(left), operator, number)
    if (number := _number(left)) is not None:
        return Comparison(column_of(right), _MIRRORED[operator], number)
    raise StatementError(_SUPPORTED_FORM)


def compared_columns(having: Having | None) -> Iterator[int]:
    """Yield the indexes of the columns that a condition compares."""
    if isinstance(having, Comparison):
        yield having.column
    elif having is not None:
        for part in having.parts:
            yield from compared_columns(part)


def satisfies_having(having: Having, row: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Whether a row of the result satisfies the condition; as in SQL, not if it depends on a missing number."""
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


def _number(node: exp.Expr) -> float | None:
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
