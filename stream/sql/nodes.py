"""The parts of a statement's tree that its columns, conditions and clauses have in common."""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from stream.sql.errors import StatementError

USUAL: Final = "ask COUNT(*), SUM(a), AVG(a) or AVG(CASE WHEN … THEN 1 ELSE 0 END)"


def condition_of(node: Any) -> str:
    """A condition as the text of a predicate; whether it is one of those that can be asked, its stream says."""
    if node.find(exp.Subquery, exp.Select):
        raise StatementError("a condition compares attributes with literals; write one SELECT from one table")
    return str(node.sql(dialect="postgres", identify=True, comments=False))


def both(first: str | None, second: str) -> str:
    """The condition that both hold."""
    return second if first is None else f"({first}) AND ({second})"


def attribute_of(node: Any, where: str) -> str:
    """The attribute that a node names; StatementError, which says ``where``, if it is anything else."""
    column = bare(node) if isinstance(node, exp.Expr) else None
    if (
        not isinstance(column, exp.Column)
        or column.args.get("table")
        or not isinstance(column.this, exp.Identifier)
    ):
        of_conditions = "; of a condition, write CASE WHEN … THEN 1 ELSE 0 END" if where in {"SUM", "AVG"} else ""
        raise StatementError(
            f"{where}: name an attribute by itself (in double quotes if it has signs){of_conditions}"
        )
    return str(column.this.this)


def bare(node: exp.Expr) -> exp.Expr:
    """A node without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def is_number(node: exp.Expr, number: int) -> bool:
    """Whether a node is this number, however it is written."""
    if not isinstance(node, exp.Literal) or node.is_string:
        return False
    try:
        return float(node.this) == number
    except ValueError:
        return False


def called(node: exp.Expr) -> str:
    """What a node is called to people."""
    return (
        f"{node.sql_name()}"
        if isinstance(node, exp.Func) and not isinstance(node, exp.Anonymous)
        else "this expression"
    )
