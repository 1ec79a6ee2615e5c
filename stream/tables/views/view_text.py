"""Reads the text of a view as a syntax tree, and refuses words and parts that no view has, at their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError

from stream.tables.table_errors import DataError, quote_name

MAX_TOKENS: Final = 2048
MAX_NESTING: Final = 32
MAX_DEPTH: Final = 128
"""Most nested operations, also without parentheses, as in 1 + 1 + 1: parsing is recursive."""
MAX_SIZE: Final = 8192
"""Most operations on a row; an operand that is compared with several values counts for each of them."""

FUNCTIONS: Final = (
    *("ABS", "CAST", "CEIL", "COALESCE", "FLOOR", "LENGTH", "LOWER", "NULLIF"),
    *("SUBSTRING", "TRIM", "TRY_CAST", "UPPER"),
)
JOINS_HINT: Final = "use JOIN … ON or LEFT JOIN … ON, from the table of people on"
TERMS_HINT: Final = (
    "use columns, literals, + - * / ||, comparisons, IN, BETWEEN, IS NULL, AND, OR, NOT, CASE and the functions "
    f"{', '.join(FUNCTIONS)}"
)

_DIALECT: Final = Dialect.get_or_raise("postgres")

_WORDS: Final = frozenset(
    {
        *(
            "SELECT",
            "FROM",
            "JOIN",
            "LEFT",
            "INNER",
            "OUTER",
            "ON",
            "WHERE",
            "AS",
            "AND",
            "OR",
            "NOT",
            "IN",
            "BETWEEN",
        ),
        *("IS", "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN", "ELSE", "END", "FOR"),
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
    **dict.fromkeys(("RIGHT", "FULL", "CROSS", "NATURAL", "USING"), JOINS_HINT),
    **dict.fromkeys(("$", "?", ":", "@"), "write the value itself"),
    ";": "give one SELECT",
    "LIKE": "compare with =, or with SUBSTRING",
}
_DEFAULT_HINT: Final = "leave it out, or put a name in double quotes"

_SETTINGS: Final = frozenset({"typed", "safe", "_type", "is_string", "quoted", "nested"})
"""Arguments of nodes that only say how an engine writes them."""


class ViewError(DataError):
    """A view is not in the accepted part of SQL; the error depends on the definition alone."""


class ViewText:
    """The text of a view; ``names`` are declared ones, which need no quotes even if SQL reserves them."""

    def __init__(self, text: str, names: Iterable[str] = ()) -> None:
        self._text = text
        self._names = {name.casefold() for name in names} - {word.casefold() for word in _WORDS}

    def parse(self) -> exp.Expr:
        """Return the syntax tree of the only statement; ViewError, and no other error, if there is none."""
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
        """Return a node's parts; ViewError if it has another part, which no rule has checked."""
        if not isinstance(node, exp.Expression):
            self.refuse(node, "the SQL is incomplete", TERMS_HINT)
        for name, value in node.args.items():
            if value and name not in names and name not in _SETTINGS:
                what = name.strip("_").upper()
                self.refuse(node, f"{node.key.upper()} with {what}", _HINTS.get(what, _DEFAULT_HINT))
        return {name: node.args.get(name) or None for name in names}

    def operands(self, node: exp.Expr, *names: str) -> list[exp.Expr]:
        """Return a node's parts, of which none may be missing."""
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
        """Refuse a node, at the first of its words or, if it has none with a place, at ``near``."""
        starts: list[int] = []
        for one in (node, near):
            if isinstance(one, exp.Expression) and not starts:
                starts = [part.meta["start"] for part in one.walk() if "start" in part.meta]
        if not starts:
            raise ViewError(f"view: {problem}; {remedy}")
        self.refuse_at(min(starts), problem, remedy)

    def refuse_at(self, start: int, problem: str, remedy: str) -> NoReturn:
        """Refuse what begins at a character of the text."""
        before = self._text[:start]
        line, column = before.count("\n") + 1, start - before.rfind("\n")
        raise ViewError(f"view: line {line}, column {column}: {problem}; {remedy}")


def _uses_of_first_operand(node: exp.Expr) -> int:
    """Return in how many operations of the plan the first operand is."""
    if isinstance(node, exp.In | exp.Case):
        return max(1, len(node.args.get("expressions" if isinstance(node, exp.In) else "ifs") or ()))
    return 2 if isinstance(node, exp.Between | exp.Nullif) else 1


def _place_of_error(error: ParseError) -> str:
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    if not line or not column:
        return ""
    return f"line {line}, column {max(1, column - len(first.get('highlight') or ' ') + 1)}: "
