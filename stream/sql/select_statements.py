"""Parses one SELECT of aggregates from one table.

Supported aggregates are ``COUNT(*)``, ``SUM(a)`` and ``AVG(a)``, each with ``FILTER (WHERE …)`` or ``CASE WHEN … END``,
and quantiles, variances and shares of rows. Supported clauses are ``WHERE`` and ``GROUP BY``; ``HAVING``, ``ORDER BY``
and ``LIMIT`` apply to the result. A statement that groups by a text needs no aggregate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from stream.questions.result_text import NUMBER_SUFFIXES
from stream.sql.aggregates import (
    SUPPORTED_AGGREGATES,
    AnswerColumn,
    StatementError,
    attribute_of,
    condition_of,
    parse_aggregate,
    remove_table_names,
    strip_parentheses,
    whole_number_of,
)
from stream.sql.statement_clauses import (
    SUPPORTED_SUBQUERIES,
    Having,
    PeopleQuery,
    parse_having,
    parse_people_column,
    parse_people_query,
)
from stream.sql.statement_text import (
    columns_of,
    conditions_of,
    is_calendar_name,
    name_calendar_functions,
    require_known_placeholders,
    tokenize,
    unquoted_special_name,
)
from stream.tables.predicates import DIALECT, DOUBLE_QUOTES, describe_position, describe_unclosed_quote, remedy_of
from stream.tables.table_errors import quote_name, to_one_line

MAX_STATEMENT_LENGTH: Final = 8192
"""Maximum number of characters of a statement."""

_LIST_REMEDY: Final = "'sotto source list', list_sources() and the shell's \\sources show what can be asked"

_is_parsing: Final[ContextVar[bool]] = ContextVar("is_parsing", default=False)
# Suppress the parser's log to standard error while it parses: it may quote the statement.
logging.getLogger("sqlglot").addFilter(lambda _: not _is_parsing.get())

_SUPPORTED_CLAUSES: Final = frozenset(
    {"kind", "expressions", "from_", "where", "group", "having", "order", "limit", "distinct"}
)
_CLAUSE_REMEDIES: Final[dict[str, str]] = {
    "joins": "statements are about one table; declare joined columns as attributes of the source, with a view",
    "windows": "ask counts, sums or means by GROUP BY",
    "offset": "leave it out, and drop rows from the result yourself",
    "with_": "write one SELECT from one table",
    "laterals": "write one SELECT from one table",
    "into": "leave it out: the answer is returned to the caller",
}
"""Remedies for some unsupported clauses."""

_STATEMENT_REMEDIES: Final[dict[str, str]] = {
    "EXPLAIN": "leave it out: each result shows its cost",
    "SHOW": _LIST_REMEDY,
    "DESCRIBE": _LIST_REMEDY,
    "DESC": _LIST_REMEDY,
}
"""Remedies for statements other than SELECT, by their first word."""

_FIRST_TOKENS: Final = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.SEMICOLON})
"""Statements with other first tokens are refused before parsing, because the parser logs warnings about them."""

_MAX_DIGITS: Final = 18
"""Maximum number of digits of an integer in LIMIT, GROUP BY and ORDER BY."""

_ONE_NAME_RULE: Final = (
    "FROM: name one source or one stream, by its name alone (in double quotes if it has special characters)"
)


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """A result column with the values of an attribute of GROUP BY."""

    name: str
    attribute: str


Column = GroupColumn | AnswerColumn


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A parsed SELECT.

    - ``order`` has pairs: the position of a column, and whether the order is descending.
    - ``aliases`` has the names in GROUP BY that are aliases of columns.
    - ``conditions`` has pairs: a condition as it is written, and the same text without table names.
    - ``where`` is the condition of WHERE. The columns of aggregates contain it too, joined with their FILTER.
    """

    table: str
    columns: tuple[Column, ...]
    groups: tuple[str, ...] = ()
    order: tuple[tuple[int, bool], ...] = ()
    limit: int | None = None
    aliases: tuple[str, ...] = ()
    having: Having | None = None
    conditions: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    where: str | None = None


def parse_statement(text: str) -> SelectStatement:
    """Parse a statement.

    Raises:
        StatementError: the text is not a supported SELECT.
    """
    if not isinstance(text, str):
        raise StatementError(f"the statement is of type {type(text).__name__}; give a text")
    if len(text) > MAX_STATEMENT_LENGTH:
        raise StatementError(
            f"the statement has more than {MAX_STATEMENT_LENGTH} characters; split it into several statements"
        )
    outer = _is_parsing.set(True)
    try:
        return _parse_text(text)
    except RecursionError:
        raise StatementError("the statement is nested too deeply; flatten it") from None
    finally:
        _is_parsing.reset(outer)


def _parse_text(text: str) -> SelectStatement:
    try:
        _require_select(text)
        if (name := unquoted_special_name(text)) is not None:
            shown = to_one_line(name)
            schema = f', or without the schema: FROM "{shown.rpartition(".")[2]}"' * ("." in shown)
            raise StatementError(f'{_ONE_NAME_RULE}: FROM "{shown}"{schema}')
        parsed = DIALECT.parser().parse(tokenize(text), text)
        trees = [tree for tree in parsed if not isinstance(tree, exp.Semicolon | None)]
    except SqlglotError as error:
        if unclosed := describe_unclosed_quote(text):
            raise StatementError(unclosed) from None
        remedy = remedy_of(text, f"{SUPPORTED_AGGREGATES} FROM a source")
        place = f"{describe_position(error)}{_describe_reserved_name(error)}"
        raise StatementError(f"the statement cannot be read{place}; {remedy}") from None
    if len(trees) != 1:
        raise StatementError(f"{len(trees)} statements are given; give one SELECT")
    select = trees[0]
    if isinstance(select, exp.Subquery):
        raise StatementError("the statement is in parentheses; leave them out")
    if not isinstance(select, exp.Select):
        raise StatementError(f"{select.key.upper()} cannot be asked; write one SELECT over a source")
    named = name_calendar_functions(select)
    return _parse_select(select if not isinstance(named, exp.Select) else named, text)


def _describe_reserved_name(error: SqlglotError) -> str:
    """Describe how to quote the reserved word at the error, if there is one."""
    first = (getattr(error, "errors", None) or [{}])[0]
    word = first.get("highlight") or ""
    if word == ",":
        word = "".join((first.get("start_context") or "").split()[-1:])
    is_reserved = word.isidentifier() and tokenize(word)[0].token_type is not TokenType.VAR
    return f'; if {word} is a name, write "{word}"' if is_reserved else ""


def _require_select(text: str) -> None:
    """Refuse a statement that does not begin as a SELECT, and quotes of other dialects."""
    tokens = tokenize(text)
    if tokens and tokens[0].token_type not in _FIRST_TOKENS:
        word = tokens[0].text
        remedy = _STATEMENT_REMEDIES.get(word.upper(), f"{SUPPORTED_AGGREGATES} FROM a source")
        raise StatementError(f"a statement begins with SELECT, not with {quote_name(word)}; {remedy}")
    require_known_placeholders(text, tokens)
    for token in tokens:
        if token.token_type in {TokenType.UNKNOWN, TokenType.L_BRACKET} and token.text in {"`", "["}:
            raise StatementError(f"character {token.start + 1}: {token.text} quotes no name; {DOUBLE_QUOTES}")


def _parse_select(select: exp.Select, text: str) -> SelectStatement:
    for clause, found in select.args.items():
        if found and clause not in _SUPPORTED_CLAUSES:
            instead = _CLAUSE_REMEDIES.get(clause, "leave it out")
            raise StatementError(f"{clause.strip('_').removesuffix('s').upper()} cannot be asked; {instead}")
    if select.args.get("distinct"):
        _replace_distinct_by_group_by(select)
    people = None
    if select.args.get("from_") is not None and isinstance(select.args["from_"].this, exp.Subquery):
        people = parse_people_query(select.args["from_"].this)
        if outside := next((name for name in ("where", "group", "having") if select.args.get(name)), None):
            raise StatementError(f"{outside.upper()}: goes inside the subquery; move it there")
        select.args["from_"].set("this", people.table)
    table, table_names = _parse_table(select)
    where = condition_of(select.args["where"].this) if select.args.get("where") else None
    groups, aliases = _parse_groups(select)
    written = columns_of(text)
    if len(written) != len(select.expressions):
        written = [_normal_form(one) for one in select.expressions]
    columns = tuple(
        _parse_column(one, written_column, where, groups, people)
        for one, written_column in zip(select.expressions, written, strict=True)
    )
    if not groups and not any(isinstance(column, AnswerColumn) for column in columns):
        raise no_aggregates_error()
    names = [column.name for column in columns]
    if reserved := next((name for name in names if name.endswith(NUMBER_SUFFIXES)), None):
        raise StatementError(
            f"'{reserved}' ends like the columns that are added for errors of numbers; give the column another name with AS"
        )
    if repeated := next((name for index, name in enumerate(names) if name in names[:index]), None):
        raise StatementError(f"two columns have the name '{repeated}'; give one of them another name with AS")
    known = [_names_of_column(column, node) for column, node in zip(columns, select.expressions, strict=True)]
    return SelectStatement(
        table,
        columns,
        groups,
        _parse_order(select, known),
        _parse_limit(select),
        aliases,
        _parse_having_clause(select, columns, known),
        tuple(conditions_of(text, table_names)),
        where,
    )


def no_aggregates_error() -> StatementError:
    """Return the error of a statement without aggregates, which would return rows."""
    return StatementError(f"rows are never returned, only aggregates; {SUPPORTED_AGGREGATES}")


def _replace_distinct_by_group_by(select: exp.Select) -> None:
    """Replace SELECT DISTINCT of columns by GROUP BY of these columns."""
    columns = [strip_parentheses(one.this if isinstance(one, exp.Alias) else one) for one in select.expressions]
    plain = all(isinstance(one, exp.Column) and not isinstance(one.this, exp.Star) for one in columns)
    if select.args.get("group") or select.args["distinct"].args.get("on") or not plain:
        raise StatementError(
            "DISTINCT cannot be asked; name the attributes to group by: SELECT a, COUNT(*) FROM t GROUP BY a"
        )
    select.set("distinct", None)
    select.set("group", exp.Group(expressions=[one.copy() for one in columns]))


def _parse_table(select: exp.Select) -> tuple[str, set[str]]:
    """Return the table's name, and the set of its name and alias; both are removed from attributes."""
    clause = select.args.get("from_")
    table = clause.this if clause is not None else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise StatementError("FROM: name one source or one stream")
    if any(value for name, value in table.args.items() if name not in {"this", "alias"}):
        raise StatementError(f"{_ONE_NAME_RULE}, and without a schema")
    remove_table_names(select, table)
    return table.name, {table.name, table.alias}


def _parse_groups(select: exp.Select) -> tuple[tuple[str, ...], tuple[str, ...]]:
    group = select.args.get("group")
    if group is None:
        return (), ()
    if extra := [name for name, value in group.args.items() if value and name != "expressions"]:
        raise StatementError(
            f"GROUP BY {extra[0].upper()} cannot be asked; name attributes, and write one statement for each grouping"
        )
    attributes_by_alias = {
        one.alias.casefold(): attribute_of(one.this, "SELECT")
        for one in select.expressions
        if isinstance(one, exp.Alias) and isinstance(strip_parentheses(one.this), exp.Column)
    }
    found, aliases = [], []
    for one in group.expressions:
        if (number := whole_number_of(one, _MAX_DIGITS)) is not None:
            index = number - 1
            chosen = select.expressions[index] if 0 <= index < len(select.expressions) else None
            one = chosen.this if isinstance(chosen, exp.Alias) else chosen  # noqa: PLW2901
        name = attribute_of(one, "GROUP BY")
        attribute = attributes_by_alias.get(name.casefold(), name)
        if attribute.casefold() != name.casefold():
            aliases.append(name)
        found.append(attribute)
    if len(set(found)) < len(found):
        raise StatementError("GROUP BY: an attribute is named twice; name it once")
    return tuple(found), tuple(aliases)


def _parse_column(
    node: exp.Expr, written: str, where: str | None, groups: Sequence[str], people: PeopleQuery | None
) -> Column:
    is_aliased = isinstance(node, exp.Alias)
    name = node.alias if is_aliased else _normal_form(node)
    if not is_aliased and _upper_tokens(written) != _upper_tokens(name):
        name = written
    node = strip_parentheses(node.this if isinstance(node, exp.Alias) else node)
    if people is not None and isinstance(node, exp.Star | exp.Column):
        raise StatementError(SUPPORTED_SUBQUERIES)
    if isinstance(node, exp.Star):
        raise StatementError(f"* would return rows of all columns; {SUPPORTED_AGGREGATES}")
    if isinstance(node, exp.Column):
        attribute = attribute_of(node, "SELECT")
        if attribute.casefold() not in {name.casefold() for name in groups}:
            raise StatementError(
                f"'{attribute}' is neither grouped by nor added up; if the table has it, GROUP BY it, or ask AVG of it"
            )
        return GroupColumn(name if is_aliased or is_calendar_name(node.name) else node.name, attribute)
    try:
        if people is not None:
            return parse_people_column(name, node, people)
        return parse_aggregate(name, node, where, grouped=bool(groups))
    except StatementError as error:
        raise StatementError(f"column '{to_one_line(written)}': {error}") from None


def _upper_tokens(text: str) -> list[str]:
    return [token.text.upper() for token in tokenize(text)]


def _normal_form(node: exp.Expr) -> str:
    return node.sql(dialect="postgres", normalize_functions="lower", comments=False)


def _names_of_column(column: Column, node: exp.Expr) -> set[str]:
    """Return the names and expressions by which HAVING and ORDER BY may refer to a column."""
    inner = strip_parentheses(node.this if isinstance(node, exp.Alias) else node)
    found = {column.name, _normal_form(node)}
    if not isinstance(inner, exp.Column):
        return found | {_normal_form(inner)}
    return found | {inner.name} if is_calendar_name(inner.name) else found


def _parse_having_clause(
    select: exp.Select, columns: Sequence[Column], known: Sequence[set[str]]
) -> Having | None:
    clause = select.args.get("having")
    if clause is None:
        return None

    def column_of(node: exp.Expr) -> int:
        index = _find_column(node.name if isinstance(node, exp.Column) else _normal_form(node), known)
        if index < 0:
            raise StatementError("HAVING: use a number that is a column of the result; write it in SELECT as well")
        if isinstance(columns[index], GroupColumn):
            raise StatementError("HAVING: compares numbers; put a condition on an attribute into WHERE")
        return index

    return parse_having(clause.this, column_of)


def _parse_order(select: exp.Select, known: Sequence[set[str]]) -> tuple[tuple[int, bool], ...]:
    order = select.args.get("order")
    keys = []
    for one in order.expressions if order is not None else ():
        key = strip_parentheses(one.this)
        if (number := whole_number_of(key, _MAX_DIGITS)) is not None:
            index = number - 1
        else:
            name = key.name if isinstance(key, exp.Column) else _normal_form(key)
            index = _find_column(name, known)
        if not 0 <= index < len(known):
            raise StatementError("ORDER BY: name a column of the result, or its position")
        keys.append((index, bool(one.args.get("desc"))))
    return tuple(keys)


def _find_column(name: str, known: Sequence[set[str]]) -> int:
    if (exact := next((index for index, names in enumerate(known) if name in names), -1)) >= 0:
        return exact
    alike = [index for index, names in enumerate(known) if name.casefold() in {one.casefold() for one in names}]
    return alike[0] if len(alike) == 1 else -1


def _parse_limit(select: exp.Select) -> int | None:
    limit = select.args.get("limit")
    if limit is None:
        return None
    options = limit.args.get("limit_options")
    if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
        raise StatementError("FETCH: give a whole number of rows, without PERCENT and WITH TIES")
    given = limit.expression if isinstance(limit, exp.Limit) else limit.args.get("count")
    number = whole_number_of(given, _MAX_DIGITS)
    if number is None:
        raise StatementError(f"LIMIT: give a whole number of at most {_MAX_DIGITS} digits")
    if not number:
        raise StatementError("LIMIT: 0 would return no row but charge for all; give 1 or more")
    return number
