"""Finds comparisons and predicates that the declared domains decide or change.

They hold for every row or event, or for none, or compare a rounded value with a number between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Final

from sqlglot import Token, TokenType, exp

from schemas import Decimals, Domain, Integers, Numeric
from stream.formatting import CHARGED_AS_USUAL_TEXT, MAX_COARSE_STEPS, find_name_in_other_case
from stream.tables.expressions import Constant
from stream.tables.predicates import DIALECT, OPERATORS, PredicateParser
from stream.tables.table_errors import PredicateError, to_one_line

_MAX_SHOWN_CHARACTERS: Final = 120

_KEYWORDS: Final = frozenset({TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.IN, TokenType.BETWEEN})


def warn_about_predicate(text: str, attributes: Mapping[str, Domain], *, unit: str = "row") -> list[str]:
    """Return a warning for each comparison that a domain decides or rounds, and for a predicate that the domains decide.

    ``unit`` names what the predicate selects: a row of a table or an event of a live topic.

    A predicate is decided if its normal form (``stream.tables.expressions``) is constant, for example because two
    comparisons exclude each other. ``TRUE`` and invalid texts get no warning.
    """
    lines = list(_warn_about_comparisons(text, attributes, unit))
    rows = _rows_of_predicate(text, attributes)
    # If the warning of a comparison names the same rows, it already gives the reason.
    if rows is not None and not any(f" holds for {rows} {unit};" in line for line in lines):
        lines.append(
            f"where: {to_one_line(text, _MAX_SHOWN_CHARACTERS)} holds for {rows} {unit}: the declared domains alone decide it; {CHARGED_AS_USUAL_TEXT}"
        )
    return lines


def _rows_of_predicate(text: str, attributes: Mapping[str, Domain]) -> str | None:
    try:
        predicate = PredicateParser(attributes).parse(text)
    except PredicateError:
        return None
    if not isinstance(predicate, Constant) or text.strip().upper() == "TRUE":
        return None
    return "every" if predicate.holds else "no"


def _warn_about_comparisons(text: str, attributes: Mapping[str, Domain], unit: str) -> Iterator[str]:
    for declared, sign, constant, number in find_number_comparisons(text, attributes):
        domain = attributes[declared]
        if isinstance(domain, Decimals):
            yield from _warn_about_rounding(declared, domain, sign, constant, number)
        if isinstance(domain, Numeric) and (rows := _rows_of_comparison(domain, sign, number)):
            values = "whole numbers" if isinstance(domain, Integers) else f"multiples of {domain.step:g}"
            low, high = f"{domain.minimum:.15g}", f"{domain.maximum:.15g}"
            beyond = f", and values outside count as {low} or {high}" if domain.outside == "clamp" else ""
            yield (
                f"where: {declared} {sign} {constant} holds for {rows} {unit}; '{declared}' is declared as {values} "
                f"from {low} to {high}{beyond}"
            )


def find_number_comparisons(text: str, attributes: Mapping[str, Domain]) -> list[tuple[str, str, str, Decimal]]:
    """Return each comparison of an attribute with a number: attribute, sign, and the number as written and exact.

    Texts that cannot be parsed have none; the worker refuses them.
    """

    def find_attribute(name: str) -> str | None:
        return name if name in attributes else find_name_in_other_case(name, attributes)

    try:
        tokens = [
            _as_name(token, text, find_attribute(token.text) is not None) for token in DIALECT.tokenize(text)
        ]
        [tree] = DIALECT.parser().parse_into(exp.Condition, tokens, text)
        comparisons = [(*one, Decimal(one[-1])) for one in _number_comparisons(tree)] if tree is not None else []
    except Exception:  # noqa: BLE001 - the worker refuses a text that cannot be parsed
        return []
    found = ((find_attribute(name), sign, constant, number) for name, sign, constant, number in comparisons)
    return [(name, sign, constant, number) for name, sign, constant, number in found if name is not None]


def _as_name(token: Token, text: str, declared: bool) -> Token:
    """Turn an SQL keyword, such as ``date``, into a name if an attribute has that name."""
    if not declared or token.token_type in _KEYWORDS or not text[token.start : token.end + 1].isidentifier():
        return token
    return Token(TokenType.VAR, token.text, token.line, token.col, token.start, token.end)


def _number_comparisons(tree: exp.Expr) -> Iterator[tuple[str, str, str]]:
    """Yield each comparison with a number as (attribute, sign, number), in text order."""
    for node in tree.dfs():
        pairs: list[tuple[exp.Expr, str, exp.Expr]] = []
        if type(node) in OPERATORS:
            sign, mirrored = OPERATORS[type(node)]
            pairs = [(node.this, sign, node.expression), (node.expression, mirrored, node.this)]
        elif isinstance(node, exp.Between):
            pairs = [(node.this, ">=", node.args["low"]), (node.this, "<=", node.args["high"])]
        elif isinstance(node, exp.In):
            pairs = [(node.this, "=", one) for one in node.expressions]
        for attribute, written, other in pairs:
            column, number = attribute.unnest(), _number_text(other.unnest())
            if isinstance(column, exp.Column) and number is not None:
                yield column.name, written, number


def _number_text(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Neg) and (inner := _number_text(node.this)) is not None:
        return f"-{inner}"
    return str(node.this) if isinstance(node, exp.Literal) and not node.is_string else None


def _rows_of_comparison(domain: Numeric, sign: str, constant: Decimal) -> str | None:
    whole, steps = domain.in_steps, Fraction(constant) / domain.unit
    is_undecided = whole.minimum <= steps <= whole.maximum
    if sign in {"=", "<>"}:
        is_undecided &= steps.denominator == 1
        holds_outside = sign == "<>"
    else:
        holds_outside = (steps > whole.maximum) == (sign in {"<", "<="})
    return None if is_undecided else "every" if holds_outside else "no"


def _warn_about_rounding(name: str, domain: Decimals, sign: str, constant: str, number: Decimal) -> Iterator[str]:
    """Warn that a comparison holds for other values of the table than its number says.

    In a range of many steps, half a step is too small to matter.
    """
    steps = f"values of '{name}' are rounded to multiples of {domain.step:.15g}"
    if rounded := _round_constant(domain, sign, number):
        yield f"where: {name} {sign} {constant} counts as {name} {rounded}; {steps}"
    elif domain.minimum <= number <= domain.maximum and domain.size <= MAX_COARSE_STEPS:
        yield f"where: {steps} before they are compared, so a condition is exact only to ±{float(domain.unit / 2):.15g}"


def _round_constant(domain: Decimals, sign: str, constant: Decimal) -> str | None:
    """Return the comparison with a multiple of the step that holds for the same values; None if it is the same one."""
    whole, steps = domain.in_steps, Fraction(constant) / domain.unit
    if sign in {"=", "<>"} or steps.denominator == 1 or not whole.minimum < steps < whole.maximum:
        return None
    is_below = sign in {"<", "<="}
    nearest = (floor(steps) if is_below else ceil(steps)) * domain.unit
    return f"{'<=' if is_below else '>='} {float(nearest):.15g}"
