"""Translates expressions of a view's syntax tree to terms; a node that no rule names is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from sqlglot import exp

from schemas import ColumnKind
from stream.tables.views import view_terms as terms
from stream.tables.views.view_terms import TermError, ViewTerm
from stream.tables.views.view_text import TERMS_HINT, ViewText

Result = TypeVar("Result")

_MAX_SUBSTRING: Final = 2048
_MAX_DIGITS: Final = 4

_KIND_BY_TYPE: Final[dict[str, ColumnKind]] = {
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR"), "text"),
    **dict.fromkeys(("SMALLINT", "INT", "BIGINT"), "integer"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "number"),
    "BOOLEAN": "boolean",
    "DATE": "date",
}

Pair = Callable[[ViewTerm, ViewTerm], ViewTerm]
_PAIRS: Final[dict[type[exp.Expr], Pair]] = {
    exp.EQ: lambda left, right: terms.compare("=", left, right),
    exp.NEQ: lambda left, right: terms.compare("<>", left, right),
    exp.LT: lambda left, right: terms.compare("<", left, right),
    exp.LTE: lambda left, right: terms.compare("<=", left, right),
    exp.GT: lambda left, right: terms.compare(">", left, right),
    exp.GTE: lambda left, right: terms.compare(">=", left, right),
    exp.Add: lambda left, right: terms.calculate("+", left, right),
    exp.Sub: lambda left, right: terms.calculate("-", left, right),
    exp.Mul: lambda left, right: terms.calculate("*", left, right),
    exp.Div: lambda left, right: terms.calculate("/", left, right),
    exp.And: terms.conjoin,
    exp.Or: terms.disjoin,
    exp.DPipe: terms.concatenate,
    exp.Nullif: terms.nullif,
}
"""Operations on ``this`` and ``expression``."""

_SINGLES: Final[dict[type[exp.Expr], Callable[[ViewTerm], ViewTerm]]] = {
    exp.Paren: lambda term: term,
    exp.Not: terms.negate,
    exp.Neg: lambda term: terms.apply_number_function("-", term),
    exp.Abs: lambda term: terms.apply_number_function("ABS", term),
    exp.Floor: lambda term: terms.apply_number_function("FLOOR", term),
    exp.Ceil: lambda term: terms.apply_number_function("CEIL", term),
    exp.Lower: lambda term: terms.apply_text_function("LOWER", term),
    exp.Upper: lambda term: terms.apply_text_function("UPPER", term),
    exp.Trim: lambda term: terms.apply_text_function("TRIM", term),
    exp.Length: lambda term: terms.apply_text_function("LENGTH", term),
}
"""Operations on ``this``."""


class ExpressionParser:
    """Translates expressions; ``column`` translates a column."""

    def __init__(self, text: ViewText, column: Callable[[exp.Column], ViewTerm]) -> None:
        self._text = text
        self._rules: dict[type[exp.Expr], Callable[..., ViewTerm]] = {
            exp.Column: column,
            exp.Literal: _parse_literal,
            exp.Boolean: lambda node: terms.truth_literal(node.this),
            exp.Null: lambda _: terms.null(),
            exp.Is: self._parse_is,
            exp.Between: self._parse_between,
            exp.In: self._parse_in,
            exp.Coalesce: self._parse_coalesce,
            exp.Case: self._parse_case,
            exp.Cast: self._parse_cast,
            exp.TryCast: self._parse_cast,
            exp.Substring: self._parse_substring,
        }

    def parse(self, node: exp.Expr) -> ViewTerm:
        """Return the term of an expression; ViewError at its place if it is not accepted."""
        kind = type(node)
        if kind in _PAIRS:
            left, right = map(self.parse, self._text.operands(node, "this", "expression"))
            return self.checked(node, lambda: _PAIRS[kind](left, right))
        if kind in _SINGLES:
            [inside] = map(self.parse, self._text.operands(node, "this"))
            return self.checked(node, lambda: _SINGLES[kind](inside))
        if kind not in self._rules:
            self._text.refuse(node, f"{node.key.upper()} in a view", TERMS_HINT)
        return self.checked(node, lambda: self._rules[kind](node))

    def checked(self, node: exp.Expr, make: Callable[[], Result]) -> Result:
        """Return what ``make`` returns; its TermError becomes a ViewError at the node."""
        try:
            return make()
        except TermError as error:
            problem, _, remedy = str(error).partition("; ")
            self._text.refuse(node, problem, remedy)

    def _parse_is(self, node: exp.Expr) -> ViewTerm:
        parts = self._text.parts(node, "this", "expression", "negate")
        if not isinstance(parts["expression"], exp.Null):
            self._text.refuse(node, "IS without NULL", "compare with =")
        found = terms.is_null(self.parse(parts["this"]))
        return terms.negate(found) if parts["negate"] else found

    def _parse_between(self, node: exp.Expr) -> ViewTerm:
        term, low, high = map(self.parse, self._text.operands(node, "this", "low", "high"))
        return terms.conjoin(terms.compare(">=", term, low), terms.compare("<=", term, high))

    def _parse_in(self, node: exp.Expr) -> ViewTerm:
        parts = self._text.parts(node, "this", "expressions")
        listed = [self.parse(one) for one in parts["expressions"] or ()]
        if not listed:
            self._text.refuse(node, "IN without a list", "list values in parentheses")
        return terms.contains(self.parse(parts["this"]), listed)

    def _parse_coalesce(self, node: exp.Expr) -> ViewTerm:
        parts = self._text.parts(node, "this", "expressions")
        return terms.coalesce([self.parse(one) for one in (parts["this"], *(parts["expressions"] or ()))])

    def _parse_case(self, node: exp.Expr) -> ViewTerm:
        parts = self._text.parts(node, "this", "ifs", "default")
        subject = None if parts["this"] is None else self.parse(parts["this"])
        cases = []
        for branch in parts["ifs"] or ():
            condition, value = map(self.parse, self._text.operands(branch, "this", "true"))
            cases.append((condition if subject is None else terms.compare("=", subject, condition), value))
        return terms.choose(cases, terms.null() if parts["default"] is None else self.parse(parts["default"]))

    def _parse_cast(self, node: exp.Expr) -> ViewTerm:
        inside, to = self._text.operands(node, "this", "to")
        [name] = self._text.parts(to, "this").values()
        kind = _KIND_BY_TYPE.get(str(getattr(name, "value", name)))
        if kind is None:
            self._text.refuse(
                node, "a cast to this type", "cast to TEXT, INTEGER, DOUBLE PRECISION, BOOLEAN or DATE"
            )
        return terms.cast(self.parse(inside), kind)

    def _parse_substring(self, node: exp.Expr) -> ViewTerm:
        parts = self._text.parts(node, "this", "start", "length")
        start, length = self._whole_number(node, parts["start"], 1), None
        if parts["length"] is not None:
            length = self._whole_number(node, parts["length"], 0)
        return terms.substring(self.parse(parts["this"]), start, length)

    def _whole_number(self, node: exp.Expr, given: object, least: int) -> int:
        text = str(given.this) if isinstance(given, exp.Literal) and not given.is_string else ""
        if not text.isdecimal() or len(text) > _MAX_DIGITS or not least <= int(text) <= _MAX_SUBSTRING:
            self._text.refuse(
                node, "SUBSTRING at no fixed place", f"write whole numbers from 1 to {_MAX_SUBSTRING}"
            )
        return int(text)


def _parse_literal(node: exp.Literal) -> ViewTerm:
    return terms.text_literal(str(node.this)) if node.is_string else terms.number_literal(str(node.this))
