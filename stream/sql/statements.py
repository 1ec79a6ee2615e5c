"""Parses one SELECT of aggregates from one table.

Supported are ``COUNT(*)``, ``SUM(a)``, ``AVG(a)``, each with ``FILTER (WHERE …)`` or ``CASE WHEN … END``,
quantiles, variances, shares of rows, ``WHERE`` and ``GROUP BY``; of a text attribute also the groups alone. ``HAVING``, ``ORDER BY`` and ``LIMIT`` apply to the result and cost
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from stream.questions.result_text import ERROR, HIGH, LOW
from stream.sql.aggregates import USUAL, AnswerColumn, StatementError, attribute_of, bare, condition_of, measured
from stream.sql.calendar_functions import is_calendar_name, name_calendar_functions
from stream.sql.having import Having, parse_having
from stream.sql.person_statements import PeopleQuery, people_column, people_query
from stream.tables.predicates import DOUBLE_QUOTES, remedy_of
from stream.tables.table_errors import quote_name, to_one_line

_DIALECT: Final = Dialect.get_or_raise("postgres")

_OPEN: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSE: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_BEHIND_CONDITIONS: Final = frozenset(
    TokenType[name]
    for name in ("THEN", "COMMA", "GROUP_BY", "HAVING", "ORDER_BY", "LIMIT", "FETCH", "OFFSET", "SEMICOLON")
)
_COUNTS_IF: Final = frozenset({"COUNT_IF", "COUNTIF"})


def columns_of(text: str) -> list[str]:
    """Return the text of each column between SELECT and FROM."""
    tokens = _DIALECT.tokenize(text)
    found, first = [], 1 + (len(tokens) > 1 and tokens[1].token_type in {TokenType.ALL, TokenType.DISTINCT})
    for place, token in _outermost(tokens):
        if place >= first and token.token_type in {TokenType.COMMA, TokenType.FROM}:
            found.append(to_one_line(_between(text, tokens[first:place]), len(text)))
            first = place + 1
            if token.token_type is TokenType.FROM:
                break
    return found


def name_with_signs(text: str) -> str | None:
    """Return the unquoted name after FROM if it has signs: the parser would read ``a@b`` as ``a``."""
    tokens = _DIALECT.tokenize(text)
    behind = (place + 1 for place, token in _outermost(tokens) if token.token_type is TokenType.FROM)
    first = last = next(behind, len(tokens))
    if first < len(tokens) and tokens[first].token_type is TokenType.L_PAREN:
        return None
    for token, after in pairwise(tokens[first:]):
        ends = after.start > token.end + 1 or after.token_type in _OPEN | _CLOSE | _BEHIND_CONDITIONS
        if ends or TokenType.IDENTIFIER in {token.token_type, after.token_type}:
            break
        last += 1
    return _between(text, tokens[first : last + 1]) if last > first else None


def conditions_of(text: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each condition twice: as written, and with blanks in place of table names."""
    tokens = _DIALECT.tokenize(text)
    blanked = _without(text, tokens, tables)
    for place, token in enumerate(tokens):
        counts_if = (
            token.token_type is TokenType.L_PAREN and place and tokens[place - 1].text.upper() in _COUNTS_IF
        )
        if not counts_if and token.token_type not in {TokenType.WHERE, TokenType.WHEN}:
            continue
        rest = tokens[place + 1 :]
        ends = (at for at, one in _outermost(rest) if one.token_type in _BEHIND_CONDITIONS | _CLOSE)
        if condition := rest[: next(ends, len(rest))]:
            yield _between(text, condition), _between(blanked, condition)


def is_as_written(written: str, normal: str) -> bool:
    """Whether two texts differ only in blanks and case."""
    return _words(written) == _words(normal)


def _words(text: str) -> list[str]:
    return [token.text.upper() for token in _DIALECT.tokenize(text)]


def _outermost(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield the tokens outside parentheses with their positions, up to an unmatched closing one."""
    depth = 0
    for place, token in enumerate(tokens):
        closes = token.token_type in _CLOSE
        if depth == 0:
            yield place, token
            if closes:
                return
        depth += (token.token_type in _OPEN) - closes


def _between(text: str, tokens: Sequence[Token]) -> str:
    return text[tokens[0].start : tokens[-1].end + 1] if tokens else ""


def _without(text: str, tokens: Sequence[Token], tables: Collection[str]) -> str:
    for name, dot in pairwise(tokens):
        if dot.token_type is TokenType.DOT and name.text in tables:
            text = text[: name.start] + " " * (dot.end + 1 - name.start) + text[dot.end + 1 :]
    return text


MAX_STATEMENT_LENGTH: Final = 8192
"""Most characters of a statement."""

_LISTS: Final = "'sotto source list' and list_sources() show what can be asked"

_reading: Final[ContextVar[bool]] = ContextVar("reading", default=False)
# The parser logs unknown text to standard error, which may quote the statement.
logging.getLogger("sqlglot").addFilter(lambda _: not _reading.get())

_CLAUSES: Final = frozenset(
    {"kind", "expressions", "from_", "where", "group", "having", "order", "limit", "distinct"}
)
_REFUSED: Final[dict[str, str]] = {
    "joins": "one row is one person of one table; declare what you join as attributes of the source",
    "windows": "ask counts, sums or means by GROUP BY",
    "offset": "leave it out, and drop rows from the result yourself",
    "with_": "write one SELECT from one table",
    "laterals": "write one SELECT from one table",
    "into": "answers come back to you",
}
"""Remedies for some unsupported clauses."""

_NO_SELECT: Final[dict[str, str]] = {
    "EXPLAIN": "leave it out: each result shows its cost",
    "SHOW": _LISTS,
    "DESCRIBE": _LISTS,
    "DESC": _LISTS,
}
"""Remedies for statements other than SELECT, by their first word."""

_FIRST: Final = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.SEMICOLON})
"""First tokens that the parser may read; it logs a warning for most others."""

_MAX_DIGITS: Final = 18
"""Most digits of an integer in LIMIT, GROUP BY and ORDER BY."""

_ONE_NAME: Final = "FROM: name one source or one stream, by its name alone (in double quotes if it has signs)"


@dataclass(frozen=True, slots=True)
class Grouped:
    """A column of a grouping attribute."""

    name: str
    attribute: str


Column = Grouped | AnswerColumn


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A parsed SELECT; ``order`` has the positions of columns and whether they are descending.

    ``renamed`` has the names in GROUP BY that are aliases of columns. ``conditions`` are pairs: the text as
    written, and the same text without table names. Without aggregates, ``where`` selects the rows of the groups.
    """

    table: str
    columns: tuple[Column, ...]
    groups: tuple[str, ...] = ()
    order: tuple[tuple[int, bool], ...] = ()
    limit: int | None = None
    renamed: tuple[str, ...] = ()
    having: Having | None = None
    conditions: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    where: str | None = None


def read(text: str) -> SelectStatement:
    """Parse a statement.

    Raises:
        StatementError: the text is not a supported SELECT.
    """
    if not isinstance(text, str):
        raise StatementError(f"the statement is of type {type(text).__name__}; give a text")
    if len(text) > MAX_STATEMENT_LENGTH:
        raise StatementError(f"the statement has more than {MAX_STATEMENT_LENGTH} characters; ask less at once")
    outer = _reading.set(True)
    try:
        return _read(text)
    except RecursionError:
        raise StatementError("the statement nests too deep; flatten it") from None
    finally:
        _reading.reset(outer)


def _read(text: str) -> SelectStatement:
    try:
        _require_select(text)
        if (name := name_with_signs(text)) is not None:
            raise StatementError(f'{_ONE_NAME}: FROM "{to_one_line(name)}"')
        trees = [tree for tree in _DIALECT.parse(text) if tree is not None]
    except SqlglotError as error:
        remedy = remedy_of(text, f"{USUAL} FROM a source")
        raise StatementError(f"the statement cannot be read{_place(error)}; {remedy}") from None
    if len(trees) != 1:
        raise StatementError("give one statement")
    select = trees[0]
    if isinstance(select, exp.Subquery):
        raise StatementError("the statement stands in parentheses; leave them out")
    if not isinstance(select, exp.Select):
        raise StatementError(f"{select.key.upper()} cannot be asked; write one SELECT over a source")
    named = name_calendar_functions(select)
    return _statement(select if not isinstance(named, exp.Select) else named, text)


def _require_select(text: str) -> None:
    """Refuse other statements by their first word, and quotes of other dialects."""
    tokens = _DIALECT.tokenize(text)
    if tokens and tokens[0].token_type not in _FIRST:
        word = tokens[0].text
        remedy = _NO_SELECT.get(word.upper(), f"{USUAL} FROM a source")
        raise StatementError(f"a statement begins with SELECT, not with {quote_name(word)}; {remedy}")
    for token in tokens:
        if token.token_type in {TokenType.UNKNOWN, TokenType.L_BRACKET} and token.text in {"`", "["}:
            raise StatementError(f"character {token.start + 1}: {token.text} quotes no name; {DOUBLE_QUOTES}")


def _statement(select: exp.Select, text: str) -> SelectStatement:
    for clause, found in select.args.items():
        if found and clause not in _CLAUSES:
            instead = _REFUSED.get(clause, "leave it out")
            raise StatementError(f"{clause.strip('_').removesuffix('s').upper()} cannot be asked; {instead}")
    if select.args.get("distinct"):
        _group_by_columns(select)
    people = None
    if select.args.get("from_") is not None and isinstance(select.args["from_"].this, exp.Subquery):
        people = people_query(select.args["from_"].this)
        _require_people_alone(select)
        select.args["from_"].set("this", people.table)
    table, called = _table(select)
    where = condition_of(select.args["where"].this) if select.args.get("where") else None
    groups, renamed = _groups(select)
    written = columns_of(text)
    if len(written) != len(select.expressions):
        written = [_normal(one) for one in select.expressions]
    columns = tuple(
        _column(one, said, where, groups, people) for one, said in zip(select.expressions, written, strict=True)
    )
    aggregates = any(isinstance(column, AnswerColumn) for column in columns)
    if not aggregates and not groups:
        raise no_aggregates()
    names = [column.name for column in columns]
    if reserved := next((name for name in names if name.endswith((ERROR, LOW, HIGH))), None):
        raise StatementError(f"'{reserved}' is reserved for an error bound; give the column another name with AS")
    if repeated := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise StatementError(f"two columns are called '{repeated}'; give one another name with AS")
    conditions = tuple(conditions_of(text, called))
    return SelectStatement(
        table,
        columns,
        groups,
        _order(select, columns),
        _limit(select),
        renamed,
        _having(select, columns),
        conditions,
        None if aggregates else where,
    )


def no_aggregates() -> StatementError:
    """Return the error of a statement that would return rows."""
    return StatementError(f"rows are never returned, only aggregates; {USUAL}")


def _group_by_columns(select: exp.Select) -> None:
    """Turn SELECT DISTINCT of columns into their GROUP BY."""
    columns = [bare(one.this if isinstance(one, exp.Alias) else one) for one in select.expressions]
    plain = all(isinstance(one, exp.Column) and not isinstance(one.this, exp.Star) for one in columns)
    if select.args.get("group") or select.args["distinct"].args.get("on") or not plain:
        raise StatementError(
            "DISTINCT cannot be asked; name what you group by: SELECT a, COUNT(*) FROM t GROUP BY a"
        )
    select.set("distinct", None)
    select.set("group", exp.Group(expressions=[one.copy() for one in columns]))


def _require_people_alone(select: exp.Select) -> None:
    """Refuse further clauses beside a subquery of people."""
    extra = next((name for name in ("where", "group", "having") if select.args.get(name)), None)
    if extra is not None:
        raise StatementError(f"{extra.upper()}: goes inside the subquery; move it there")


def _table(select: exp.Select) -> tuple[str, set[str]]:
    """Return the table's name and all names for it; remove these names before attributes."""
    clause = select.args.get("from_")
    table = clause.this if clause is not None else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise StatementError("FROM: name one source or one stream")
    if any(value for name, value in table.args.items() if name not in {"this", "alias"}):
        raise StatementError(_ONE_NAME)
    for column in select.find_all(exp.Column):
        if column.table in {table.name, table.alias} and not column.args.get("db"):
            column.set("table", None)
    return table.name, {table.name, table.alias}


def _groups(select: exp.Select) -> tuple[tuple[str, ...], tuple[str, ...]]:
    group = select.args.get("group")
    if group is None:
        return (), ()
    if extra := [name for name, value in group.args.items() if value and name != "expressions"]:
        raise StatementError(
            f"GROUP BY {extra[0].upper()} cannot be asked; name the attributes, one statement for each grouping"
        )
    renamed = {
        one.alias.casefold(): attribute_of(one.this, "SELECT")
        for one in select.expressions
        if isinstance(one, exp.Alias) and isinstance(bare(one.this), exp.Column)
    }
    found, aliases = [], []
    for one in group.expressions:
        if (number := _whole_number(one)) is not None:
            place = number - 1
            chosen = select.expressions[place] if 0 <= place < len(select.expressions) else None
            one = chosen.this if isinstance(chosen, exp.Alias) else chosen  # noqa: PLW2901
        name = attribute_of(one, "GROUP BY")
        attribute = renamed.get(name.casefold(), name)
        if attribute.casefold() != name.casefold():
            aliases.append(name)
        found.append(attribute)
    if len(set(found)) < len(found):
        raise StatementError("GROUP BY: an attribute stands there twice; name it once")
    return tuple(found), tuple(aliases)


def _column(
    node: exp.Expr, written: str, where: str | None, groups: Sequence[str], people: PeopleQuery | None
) -> Column:
    name = node.alias if isinstance(node, exp.Alias) else _normal(node)
    if not isinstance(node, exp.Alias) and not is_as_written(written, name):
        name = written
    node = bare(node.this if isinstance(node, exp.Alias) else node)
    if isinstance(node, exp.Star):
        raise StatementError(f"* would be the rows themselves; {USUAL}")
    if isinstance(node, exp.Column):
        attribute = attribute_of(node, "SELECT")
        if attribute.casefold() not in {name.casefold() for name in groups}:
            raise StatementError(
                f"'{attribute}' is neither grouped by nor added up; GROUP BY it, or ask AVG of it"
            )
        return Grouped(node.name if name == node.sql(dialect="postgres") else name, attribute)
    try:
        if people is not None:
            return people_column(name, node, people)
        return measured(name, node, where, grouped=bool(groups))
    except StatementError as error:
        raise StatementError(f"column '{to_one_line(written)}': {error}") from None


def _normal(node: exp.Expr) -> str:
    return node.sql(dialect="postgres", normalize_functions="lower", comments=False)


def _having(select: exp.Select, columns: Sequence[Column]) -> Having | None:
    clause = select.args.get("having")
    if clause is None:
        return None
    known = [{column.name, _normal(node)} for column, node in zip(columns, select.expressions, strict=True)]
    known = [
        {*names, _normal(node.this)} if isinstance(node, exp.Alias) else names
        for names, node in zip(known, select.expressions, strict=True)
    ]

    def column_of(node: exp.Expr) -> int:
        place = _place_of(node.name if isinstance(node, exp.Column) else _normal(node), known)
        if place < 0:
            raise StatementError("HAVING: name a number of the result; write it in SELECT as well")
        if isinstance(columns[place], Grouped):
            raise StatementError("HAVING: compares numbers; put a condition on an attribute into WHERE")
        return place

    return parse_having(clause.this, column_of)


def _order(select: exp.Select, columns: Sequence[Column]) -> tuple[tuple[int, bool], ...]:
    order = select.args.get("order")
    known = [{column.name, _normal(node)} for column, node in zip(columns, select.expressions, strict=True)]
    for names, node in zip(known, select.expressions, strict=True):
        inner = bare(node.this if isinstance(node, exp.Alias) else node)
        if isinstance(inner, exp.Column) and is_calendar_name(inner.name):
            names.add(inner.name)
    places = []
    for one in order.expressions if order is not None else ():
        key = bare(one.this)
        if (number := _whole_number(key)) is not None:
            place = number - 1
        else:
            name = key.name if isinstance(key, exp.Column) else _normal(key)
            place = _place_of(name, known)
        if not 0 <= place < len(columns):
            raise StatementError("ORDER BY: name a column of the result, or its place")
        places.append((place, bool(one.args.get("desc"))))
    return tuple(places)


def _place_of(name: str, known: Sequence[set[str]]) -> int:
    if (exact := next((place for place, names in enumerate(known) if name in names), -1)) >= 0:
        return exact
    alike = [place for place, names in enumerate(known) if name.casefold() in {one.casefold() for one in names}]
    return alike[0] if len(alike) == 1 else -1


def _limit(select: exp.Select) -> int | None:
    limit = select.args.get("limit")
    if limit is None:
        return None
    options = limit.args.get("limit_options")
    if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
        raise StatementError("FETCH: give a whole number of rows, without PERCENT and WITH TIES, as LIMIT does")
    number = _whole_number(limit.expression if isinstance(limit, exp.Limit) else limit.args.get("count"))
    if number is None:
        raise StatementError(f"LIMIT: give a whole number of at most {_MAX_DIGITS} digits")
    if not number:
        raise StatementError("LIMIT: 0 would return no row but charge for all; give 1 or more")
    return number


def _whole_number(node: exp.Expr | None) -> int | None:
    is_whole = isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal()
    return int(node.this) if is_whole and node is not None and len(node.this) <= _MAX_DIGITS else None


def _place(error: SqlglotError) -> str:
    first = getattr(error, "errors", None) or [{}]
    line, column = first[0].get("line"), first[0].get("col")
    return f" near line {line}, column {column}" if line and column else ""
