"""The comparisons of a predicate with numbers outside the declared domain, and whether that domain alone decides the whole of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect

from schemas import Domain, Integers
from stream.questions.domain_limits import CHARGED
from stream.tables import PredicateError, PredicateParser
from stream.tables.expressions import Constant
from stream.tables.table_errors import one_line

_DIALECT: Final = Dialect.get_or_raise("postgres")  # as workers read predicates

_SHOWN: Final = 120

_WORDS: Final = frozenset({TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.IN, TokenType.BETWEEN})

_SIGNS: Final[dict[type[exp.Expr], tuple[str, str]]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
"""Each comparison, and the same comparison seen from its right side."""


def lines_of(text: str, attributes: Mapping[str, Domain]) -> list[str]:
    """One line for each comparison with a number that no row, or every row, passes, and one where the whole text is so; none for a
    text that cannot be read.

    A text is told to be decided where its normal form is (``stream.tables.expressions``): a conjunction whose comparisons of one attribute
    exclude each other, say. TRUE alone is what one writes to mean every row.
    """
    lines = list(_outside(text, attributes))
    rows = _decided(text, attributes)
    # A comparison that says as much says why.
    if rows is not None and not any(f" holds for {rows};" in line for line in lines):
        lines.append(
            f"where: {one_line(text, _SHOWN)} holds for {rows}: the declared domains alone decide it; {CHARGED}"
        )
    return lines


def _decided(text: str, attributes: Mapping[str, Domain]) -> str | None:
    """Which rows pass whatever the table holds; None where that depends on it."""
    try:
        predicate = PredicateParser(attributes).parse(text)
    except PredicateError:
        return None
    if not isinstance(predicate, Constant) or text.strip().upper() == "TRUE":
        return None
    return "every row" if predicate.holds else "no row"


def _outside(text: str, attributes: Mapping[str, Domain]) -> Iterator[str]:
    folded: dict[str, list[str]] = {}
    for name in attributes:
        folded.setdefault(name.casefold(), []).append(name)

    def find(name: str) -> str | None:
        alike = folded.get(name.casefold(), [])
        return name if name in attributes else alike[0] if len(alike) == 1 else None

    try:
        tokens = [_as_name(token, text, find(token.text) is not None) for token in _DIALECT.tokenize(text)]
        [tree] = _DIALECT.parser().parse_into(exp.Condition, tokens, text)
        comparisons = [(*one, Decimal(one[-1])) for one in _comparisons(tree)] if tree is not None else []
    except Exception:  # noqa: BLE001 - a text that cannot be read is the worker's to refuse
        return
    for attribute, sign, constant, number in comparisons:
        declared = find(attribute)
        domain = None if declared is None else attributes[declared]
        if isinstance(domain, Integers) and (rows := _rows(domain, sign, number)):
            yield (
                f"where: {declared} {sign} {constant} holds for {rows}; '{declared}' is declared as whole numbers "
                f"from {domain.minimum} to {domain.maximum}"
            )


def _as_name(token: Token, text: str, declared: bool) -> Token:
    """An attribute may be called 'date', which SQL keeps for itself."""
    if not declared or token.token_type in _WORDS or not text[token.start : token.end + 1].isidentifier():
        return token
    return Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)


def _comparisons(tree: exp.Expr) -> Iterator[tuple[str, str, str]]:
    """Each comparison of an attribute with a number, as (attribute, sign, number), in the order of the text."""
    for node in tree.dfs():
        pairs: list[tuple[exp.Expr, str, exp.Expr]] = []
        if type(node) in _SIGNS:
            sign, mirrored = _SIGNS[type(node)]
            pairs = [(node.this, sign, node.expression), (node.expression, mirrored, node.this)]
        elif isinstance(node, exp.Between):
            pairs = [(node.this, ">=", node.args["low"]), (node.this, "<=", node.args["high"])]
        elif isinstance(node, exp.In):
            pairs = [(node.this, "=", one) for one in node.expressions]
        for attribute, sign, other in pairs:
            column, number = attribute.unnest(), _number(other.unnest())
            if isinstance(column, exp.Column) and number is not None:
                yield column.name, sign, number


def _number(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Neg) and (inner := _number(node.this)) is not None:
        return f"-{inner}"
    return str(node.this) if isinstance(node, exp.Literal) and not node.is_string else None


def _rows(domain: Integers, sign: str, constant: Decimal) -> str | None:
    """Which rows pass; None where the constant is a value, or cuts the domain in two."""
    if sign in {"=", "<>"}:
        inside = domain.minimum <= constant <= domain.maximum and constant == constant.to_integral_value()
        passes = sign == "<>"
    else:
        inside = domain.minimum <= constant <= domain.maximum
        passes = (constant > domain.maximum) == (sign in {"<", "<="})
    return None if inside else "every row" if passes else "no row"
