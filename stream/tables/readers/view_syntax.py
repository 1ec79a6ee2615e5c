"""Parses the text of a view, and translates its expressions to terms.

Words, parts of the syntax tree and expressions that no rule names are refused, with their place in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError

from schemas import ColumnKind
from stream.tables.readers import view_terms as terms
from stream.tables.readers.view_terms import TermError, ViewTerm
from stream.tables.table_errors import TableDataError, quote_name

MAX_TOKENS: Final = 2048
MAX_NESTING: Final = 32
MAX_DEPTH: Final = 128
"""Maximum number of nested operations, because parsing is recursive; 1 + 1 + 1 nests two operations."""
MAX_SIZE: Final = 8192
"""Maximum number of operations on a row; an operand counts once for each value that it is compared with."""

FUNCTIONS: Final = (
    *("ABS", "CAST", "CEIL", "COALESCE", "FLOOR", "LENGTH", "LOWER", "NULLIF"),
    *("SUBSTRING", "TRIM", "TRY_CAST", "UPPER"),
)
SUPPORTED_JOINS_HINT: Final = "use JOIN … ON or LEFT JOIN … ON, with the table of people first"
TERMS_HINT: Final = (
    "use columns, literals, + - * / ||, comparisons, IN, BETWEEN, IS NULL, AND, OR, NOT, CASE and the functions "
    f"{', '.join(FUNCTIONS)}"
)

_DIALECT: Final = Dialect.get_or_raise("postgres")

_WORDS: Final = frozenset(
    {
        *("SELECT", "FROM", "JOIN", "LEFT", "INNER", "OUTER", "ON", "WHERE", "AS", "AND", "OR", "NOT", "IN"),
        *("BETWEEN", "IS", "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN", "ELSE", "END", "FOR"),
    }
)
_SIGNS: Final = frozenset(
    {"(", ")", ",", ".", "=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "||", "::"}
)
_TYPE_TOKENS: Final = frozenset(
    TokenType[name]
    for name in ("TEXT", "VARCHAR", "CHAR", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE")
)
_FREE_TOKENS: Final = frozenset(
    {TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER, *_TYPE_TOKENS}
)
_BEFORE_PARENTHESES: Final = (_WORDS | _SIGNS) - {"LEFT", "END", "NULL", "TRUE", "FALSE", ")"}

_ROWS_HINT: Final = "a view has rows as they are; ask for groups and sums in questions"
_ONE_SELECT_HINT: Final = "a view is one SELECT, without subqueries"
_HINTS: Final = {
    **dict.fromkeys(
        (
            *("GROUP BY", "HAVING", "DISTINCT", "OVER", "QUALIFY", "ORDER BY", "LIMIT", "OFFSET", "TABLESAMPLE"),
            *("COUNT", "SUM", "AVG", "MIN", "MAX", "ROW_NUMBER"),
        ),
        _ROWS_HINT,
    ),
    **dict.fromkeys(("UNION", "EXCEPT", "INTERSECT", "WITH", "EXISTS"), _ONE_SELECT_HINT),
    **dict.fromkeys(("RIGHT", "FULL", "CROSS", "NATURAL", "USING"), SUPPORTED_JOINS_HINT),
    **dict.fromkeys(("$", "?", ":", "@"), "write the value itself"),
    ";": "give one SELECT",
    "LIKE": "compare with =, or with SUBSTRING",
}
_DEFAULT_HINT: Final = "leave it out, or put a name in double quotes"

_SETTINGS: Final = frozenset({"typed", "safe", "_type", "is_string", "quoted", "nested"})
"""Arguments of syntax nodes that do not change the meaning of a view."""


class ViewError(TableDataError):
    """The SQL of a view is not accepted; the error depends on the definition alone, not on rows."""


class ViewText:
    """The text of a view; the declared ``names`` need no quotes, even if SQL reserves them."""

    def __init__(self, text: str, names: Iterable[str] = ()) -> None:
        self._text = text
        self._names = {name.casefold() for name in names} - {word.casefold() for word in _WORDS}

    def parse(self) -> exp.Expr:
        """Return the syntax tree of the only statement; only ViewError is raised, for any text."""
        if "\0" in self._text:
            self.refuse_at(self._text.index("\0"), "a NUL character", "leave it out")
        try:
            self._text.encode()
            tokens = list(map(self._as_name, _DIALECT.tokenize(self._text)))
        except Exception:  # noqa: BLE001  (no text may crash a service)
            raise ViewError("view: the SQL cannot be read; check that every quote is closed") from None
        self._check_tokens(tokens)
        try:
            trees = _DIALECT.parser().parse(tokens, self._text)
        except ParseError as error:
            place = _place_of_error(error)
            raise ViewError(f"view: {place}the SQL is not valid; check commas and parentheses") from None
        except Exception:  # noqa: BLE001
            raise ViewError("view: the SQL cannot be read; check commas and parentheses") from None
        if len(trees) != 1 or trees[0] is None:
            raise ViewError("view: the text is not one statement; give one SELECT")
        self._check_size(trees[0])
        return trees[0]

    def _check_size(self, tree: exp.Expr) -> None:
        depths: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for node in reversed(list(tree.walk())):
            parts = [id(part) for part in node.iter_expressions()]
            depths[id(node)] = 1 + max((depths[part] for part in parts), default=0)
            repeated = (_uses_of_first_operand(node) - 1) * sizes.get(id(node.args.get("this")), 0)
            sizes[id(node)] = 1 + repeated + sum(sizes[part] for part in parts)
            if depths[id(node)] > MAX_DEPTH:
                self.refuse(
                    node, f"it nests deeper than {MAX_DEPTH} operations", "shorten its chain, or write it as IN"
                )
            if sizes[id(node)] > MAX_SIZE:
                self.refuse(node, f"more than {MAX_SIZE} operations on a row", "nest fewer IN, CASE or NULLIF")

    def _as_name(self, token: Token) -> Token:
        written = self._text[token.start : token.end + 1]
        if not written.isidentifier() or written.casefold() not in self._names:
            return token
        return Token(TokenType.VAR, written, token.line, token.col, token.start, token.end, token.comments)

    def _check_tokens(self, tokens: Sequence[Token]) -> None:
        if len(tokens) > MAX_TOKENS:
            raise ViewError(f"view: it has more than {MAX_TOKENS} words and signs; shorten it")
        depth, has_select, before = 0, False, ""
        for token, after in zip(tokens, [*tokens[1:], None], strict=True):
            word = self._text[token.start : token.end + 1].upper()
            depth += (word in {"(", "CASE", "NOT"}) - (word in {")", "END"})
            if depth > MAX_NESTING:
                self.refuse_at(token.start, f"it nests deeper than {MAX_NESTING} parentheses", "flatten it")
            if after is not None and after.token_type is TokenType.L_PAREN and word not in _BEFORE_PARENTHESES:
                if word not in FUNCTIONS:
                    hint = _HINTS.get(word, f"its functions are {', '.join(FUNCTIONS)}")
                    self.refuse_at(token.start, f"{quote_name(word)} in a view", hint)
            elif (
                before not in {".", "AS"} and token.token_type not in _FREE_TOKENS and word not in _WORDS | _SIGNS
            ):
                sign = " ".join(word.split())
                self.refuse_at(token.start, f"{quote_name(sign)} in a view", _HINTS.get(sign, _DEFAULT_HINT))
            if token.token_type is TokenType.SELECT and has_select:
                self.refuse_at(token.start, "a second SELECT", _ONE_SELECT_HINT)
            has_select |= token.token_type is TokenType.SELECT
            if token.token_type is TokenType.STAR and before in {"SELECT", ",", "."}:
                self.refuse_at(token.start, "* for all columns", "name the columns")
            before = "" if token.token_type is TokenType.STRING else word

    def parts(self, node: object, *names: str) -> Mapping[str, Any]:
        """Return a node's named parts; ViewError if it has another part, because no rule checks that."""
        if not isinstance(node, exp.Expression):
            self.refuse(node, "the SQL is incomplete", TERMS_HINT)
        for name, value in node.args.items():
            if value and name not in names and name not in _SETTINGS:
                what = name.strip("_").upper()
                self.refuse(node, f"{node.key.upper()} with {what}", _HINTS.get(what, _DEFAULT_HINT))
        return {name: node.args.get(name) or None for name in names}

    def operands(self, node: exp.Expr, *names: str) -> list[exp.Expr]:
        """Return a node's named parts; ViewError if one is missing."""
        found = list(self.parts(node, *names).values())
        if not all(isinstance(part, exp.Expression) for part in found):
            self.refuse(node, f"{node.key.upper()} is incomplete", TERMS_HINT)
        return found

    def name(self, node: object) -> str:
        """Return the text of an identifier."""
        if not isinstance(node, exp.Identifier):
            self.refuse(node, "no plain name", "name a declared table or a column")
        self.parts(node, "this")
        if not (found := str(node.this)).isprintable():
            self.refuse(node, "a name with a control character", "rename the column")
        return found

    def refuse(self, node: object, problem: str, remedy: str, near: exp.Expr | None = None) -> NoReturn:
        """Refuse a node at the place of its first word or, if no word has a place, at the place of ``near``."""
        starts: list[int] = []
        for one in (node, near):
            if isinstance(one, exp.Expression) and not starts:
                starts = [part.meta["start"] for part in one.walk() if "start" in part.meta]
        if not starts:
            raise ViewError(f"view: {problem}; {remedy}")
        self.refuse_at(min(starts), problem, remedy)

    def refuse_at(self, start: int, problem: str, remedy: str) -> NoReturn:
        """Refuse the text that begins at the character ``start``."""
        before = self._text[:start]
        line, column = before.count("\n") + 1, start - before.rfind("\n")
        raise ViewError(f"view: line {line}, column {column}: {problem}; {remedy}")


def _uses_of_first_operand(node: exp.Expr) -> int:
    """Return how many operations of the compiled view repeat the node's first operand."""
    if isinstance(node, exp.In | exp.Case):
        return max(1, len(node.args.get("expressions" if isinstance(node, exp.In) else "ifs") or ()))
    return 2 if isinstance(node, exp.Between | exp.Nullif) else 1


def _place_of_error(error: ParseError) -> str:
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    if not line or not column:
        return ""
    return f"line {line}, column {max(1, column - len(first.get('highlight') or ' ') + 1)}: "


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

_PAIRS: Final[dict[type[exp.Expr], Callable[[ViewTerm, ViewTerm], ViewTerm]]] = {
    exp.EQ: partial(terms.compare, "="),
    exp.NEQ: partial(terms.compare, "<>"),
    exp.LT: partial(terms.compare, "<"),
    exp.LTE: partial(terms.compare, "<="),
    exp.GT: partial(terms.compare, ">"),
    exp.GTE: partial(terms.compare, ">="),
    exp.Add: partial(terms.calculate, "+"),
    exp.Sub: partial(terms.calculate, "-"),
    exp.Mul: partial(terms.calculate, "*"),
    exp.Div: partial(terms.calculate, "/"),
    exp.And: partial(terms.combine, "AND"),
    exp.Or: partial(terms.combine, "OR"),
    exp.DPipe: terms.concatenate,
    exp.Nullif: terms.nullif,
}
"""Operations with two operands, the node's arguments ``this`` and ``expression``."""

_SINGLES: Final[dict[type[exp.Expr], Callable[[ViewTerm], ViewTerm]]] = {
    exp.Paren: lambda term: term,
    exp.Not: terms.negate,
    exp.Neg: partial(terms.apply_number_function, "-"),
    exp.Abs: partial(terms.apply_number_function, "ABS"),
    exp.Floor: partial(terms.apply_number_function, "FLOOR"),
    exp.Ceil: partial(terms.apply_number_function, "CEIL"),
    exp.Lower: partial(terms.apply_text_function, "LOWER"),
    exp.Upper: partial(terms.apply_text_function, "UPPER"),
    exp.Trim: partial(terms.apply_text_function, "TRIM"),
    exp.Length: partial(terms.apply_text_function, "LENGTH"),
}
"""Operations with one operand, the node's argument ``this``."""


class ExpressionParser:
    """Translates expressions to terms; the function ``column`` translates a column."""

    def __init__(self, text: ViewText, column: Callable[[exp.Column], ViewTerm]) -> None:
        self._text = text
        self._rules: dict[type[exp.Expr], Callable[..., ViewTerm]] = {
            exp.Column: column,
            exp.Literal: lambda node: (terms.text_literal if node.is_string else terms.number_literal)(
                str(node.this)
            ),
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
        """Return the term of an expression; ViewError with its place if it is not accepted."""
        kind = type(node)
        if kind in _PAIRS:
            left, right = map(self.parse, self._text.operands(node, "this", "expression"))
            return self.call_checked(node, lambda: _PAIRS[kind](left, right))
        if kind in _SINGLES:
            [inside] = map(self.parse, self._text.operands(node, "this"))
            return self.call_checked(node, lambda: _SINGLES[kind](inside))
        if kind not in self._rules:
            self._text.refuse(node, f"{node.key.upper()} in a view", TERMS_HINT)
        return self.call_checked(node, lambda: self._rules[kind](node))

    def call_checked(self, node: exp.Expr, make: Callable[[], Result]) -> Result:
        """Return the result of ``make``; its TermError becomes a ViewError with the node's place."""
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
        return terms.combine("AND", terms.compare(">=", term, low), terms.compare("<=", term, high))

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
        if (kind := _KIND_BY_TYPE.get(str(getattr(name, "value", name)))) is None:
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
                node, "SUBSTRING at no fixed place", f"write a whole number from {least} to {_MAX_SUBSTRING}"
            )
        return int(text)
