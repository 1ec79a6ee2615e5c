"""Finds parts of a statement's text by its tokens, and rewrites parameters and calendar functions.

Parameters become literals. Calendar functions are EXTRACT(MONTH FROM visited) and DATE_TRUNC('month', visited). Each
stands for an attribute that reads the same column with the granularity of the function. In a statement it becomes the
name of a column, such as ``DATE_TRUNC(MONTH FROM visited)``, until the source is known. Then ``DeclaredNames``
resolves the names of a statement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Final

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from schemas import Dates, TableSource
from schemas.calendars import DATE_PARTS, cell_label
from stream.formatting import did_you_mean, find_name_in_other_case
from stream.sql.aggregates import StatementError, distinct_message
from stream.tables.predicates import DIALECT
from stream.tables.table_errors import private_text_message, quote_name, quote_names, to_one_line

_GRANULARITIES: Final = {
    "EXTRACT": {"MONTH": "month-of-year", "ISODOW": "weekday", "HOUR": "hour-of-day", "YEAR": "year"},
    "DATE_TRUNC": {unit.upper(): unit for unit in ("hour", "day", "week", "month", "quarter", "year")},
}
"""The granularity of each unit of a calendar function."""
_CALENDAR_NAME: Final = re.compile(r"(EXTRACT|DATE_TRUNC)\((\w+) FROM (.+)\)", re.DOTALL)
_DAY: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]00:00(?::00)?)?")
_DATE_TYPES: Final = frozenset(
    {
        exp.DataType.Type.DATE,
        exp.DataType.Type.TIMESTAMP,
        exp.DataType.Type.TIMESTAMPTZ,
        exp.DataType.Type.TIMESTAMPNTZ,
        exp.DataType.Type.DATETIME,
    }
)


_OTHER_VERBS: Final = frozenset(
    TokenType[name] for name in ("ALTER", "CREATE", "DROP", "GRANT", "INSERT", "ROLLBACK")
)


def tokenize(text: str) -> list[Token]:
    """Split a statement into tokens; a verb of another statement, such as ALTER, is a name within a statement."""
    tokens = DIALECT.tokenize(text)
    for before, token in pairwise(tokens):
        if token.token_type in _OTHER_VERBS and before.token_type is not TokenType.SEMICOLON:
            token.token_type = TokenType.VAR
    return tokens


_OPEN: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSE: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_CONDITION_ENDS: Final = frozenset(
    TokenType[name]
    for name in ("THEN", "COMMA", "GROUP_BY", "HAVING", "ORDER_BY", "LIMIT", "FETCH", "OFFSET", "SEMICOLON")
)
_COUNT_IF_NAMES: Final = frozenset({"COUNT_IF", "COUNTIF"})


def columns_of(text: str) -> list[str]:
    """Return the text of each column between SELECT and FROM."""
    tokens = tokenize(text)
    found, first = [], 1 + (len(tokens) > 1 and tokens[1].token_type in {TokenType.ALL, TokenType.DISTINCT})
    for index, token in _outermost_tokens(tokens):
        if index >= first and token.token_type in {TokenType.COMMA, TokenType.FROM}:
            found.append(to_one_line(_source_text(text, tokens[first:index]), len(text)))
            first = index + 1
            if token.token_type is TokenType.FROM:
                break
    return found


def unquoted_special_name(text: str) -> str | None:
    """Return the unquoted name after FROM if it has special characters, else None.

    The parser would read only the part before these characters: ``a@b`` as ``a``.
    """
    tokens = tokenize(text)
    after_from = (index + 1 for index, token in _outermost_tokens(tokens) if token.token_type is TokenType.FROM)
    first = last = next(after_from, len(tokens))
    if first < len(tokens) and tokens[first].token_type is TokenType.L_PAREN:
        return None
    for token, after in pairwise(tokens[first:]):
        ends = after.start > token.end + 1 or after.token_type in _OPEN | _CLOSE | _CONDITION_ENDS
        if ends or TokenType.IDENTIFIER in {token.token_type, after.token_type}:
            break
        last += 1
    return _source_text(text, tokens[first : last + 1]) if last > first else None


def conditions_of(text: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each condition in two forms: as it is written, and with blanks in place of table names."""
    tokens = tokenize(text)
    blanked = _blank_table_names(text, tokens, tables)
    for index, token in enumerate(tokens):
        counts_if = (
            token.token_type is TokenType.L_PAREN and index and tokens[index - 1].text.upper() in _COUNT_IF_NAMES
        )
        if not counts_if and token.token_type not in {TokenType.WHERE, TokenType.WHEN}:
            continue
        rest = tokens[index + 1 :]
        ends = (at for at, one in _outermost_tokens(rest) if one.token_type in _CONDITION_ENDS | _CLOSE)
        if condition := rest[: next(ends, len(rest))]:
            yield _source_text(text, condition), _source_text(blanked, condition)


def _outermost_tokens(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield the tokens outside parentheses with their positions, up to an unmatched closing parenthesis."""
    depth = 0
    for index, token in enumerate(tokens):
        closes = token.token_type in _CLOSE
        if depth == 0:
            yield index, token
            if closes:
                return
        depth += (token.token_type in _OPEN) - closes


def _source_text(text: str, tokens: Sequence[Token]) -> str:
    return text[tokens[0].start : tokens[-1].end + 1] if tokens else ""


def _blank_table_names(text: str, tokens: Sequence[Token], tables: Collection[str]) -> str:
    for name, dot in pairwise(tokens):
        if dot.token_type is TokenType.DOT and name.text in tables:
            text = text[: name.start] + " " * (dot.end + 1 - name.start) + text[dot.end + 1 :]
    return text


def name_calendar_functions(statement: exp.Expr) -> exp.Expr:
    """Replace calendar functions of columns by column names, and casts of texts to dates by the texts."""
    return statement.transform(_name_function)


def _name_function(node: exp.Expr) -> exp.Expr:
    inner = node.this
    if isinstance(node, exp.Cast) and isinstance(inner, exp.Literal) and inner.is_string:
        return inner if node.to.this in _DATE_TYPES else node
    column = node.expression if isinstance(node, exp.Extract) else inner
    if isinstance(column, exp.Cast) and column.to.this in _DATE_TYPES:
        column = column.this
    if not isinstance(node, exp.Extract | exp.TimestampTrunc | exp.DateTrunc) or not isinstance(
        column, exp.Column
    ):
        return node
    word = "EXTRACT" if isinstance(node, exp.Extract) else "DATE_TRUNC"
    unit = str(inner.name if isinstance(node, exp.Extract) else node.args["unit"].name).upper()
    if unit not in (known := _GRANULARITIES[word]):
        instead = "; ISODOW counts from Monday" if unit == "DOW" else ""
        raise StatementError(f"{word}: {quote_name(unit)} cannot be asked; name {', '.join(known)}{instead}")
    return exp.column(exp.to_identifier(f"{word}({unit} FROM {column.name})", quoted=True))


def is_calendar_name(name: str) -> bool:
    """Return whether a column name stands for a calendar function."""
    return _CALENDAR_NAME.fullmatch(name) is not None


def calendar_attribute(name: str, source: TableSource, find_attribute: Callable[[str], str]) -> str:
    """Return the attribute for which a calendar function's name stands; StatementError if it is not declared."""
    found = _CALENDAR_NAME.fullmatch(name)
    if found is None:
        return find_attribute(name)
    word, unit, base = found.groups()
    wanted = _GRANULARITIES[word][unit]
    declared = find_attribute(base)
    domain, column = source.attributes[declared], source.column_of(declared)
    if not isinstance(domain, Dates):
        raise StatementError(f"{word}: {quote_name(declared)} is not an attribute of dates; name one")
    for attribute, other in source.attributes.items():
        if (
            isinstance(other, Dates)
            and source.column_of(attribute) == column
            and (other.granularity, other.kind, other.timezone) == (wanted, domain.kind, domain.timezone)
        ):
            return attribute
    if domain.kind == "date" and wanted.startswith("hour"):
        raise StatementError(f"{word}: {quote_name(declared)} holds dates, which have no hours; name a timestamp")
    zone = "" if domain.timezone is None else f', "zone": "{domain.timezone}"'
    zoned = "" if domain.timezone is None else f" in the zone {quote_name(domain.timezone)}"
    limits = "" if wanted in DATE_PARTS else ', "minimum": …, "maximum": …'
    raise StatementError(
        f"{word}: no attribute has granularity '{wanted}'{zoned} and reads the column of {quote_name(declared)}; declare one in a new "
        f'source: "{wanted}": {{"kind": "{domain.kind}", "granularity": "{wanted}"{zone}{limits}}} in attributes, and '
        f'"{wanted}": "{column}" in columns'
    )


def replace_calendar_names(condition: str, source: TableSource, find_attribute: Callable[[str], str]) -> str:
    """Replace the names of calendar functions in a condition by attributes, and the compared dates by periods."""
    if "DATE_TRUNC(" not in condition and "EXTRACT(" not in condition:
        return condition
    [tree] = DIALECT.parser().parse_into(exp.Condition, list(DIALECT.tokenize(condition)), condition)
    if tree is None:
        return condition
    for column in list(tree.find_all(exp.Column)):
        name = column.name
        if not is_calendar_name(name):
            continue
        attribute = calendar_attribute(name, source, find_attribute)
        domain = source.attributes[attribute]
        if isinstance(domain, Dates) and domain.granularity not in DATE_PARTS and column.parent is not None:
            for literal in list(column.parent.find_all(exp.Literal)):
                literal.replace(exp.Literal.string(_as_period(literal, domain.granularity)))
        column.replace(exp.column(exp.to_identifier(attribute, quoted=True)))
    return str(tree.sql(dialect="postgres", identify=True, comments=False))


def _as_period(literal: Any, granularity: str) -> str:
    """Return the period that begins at the literal's day, as DATE_TRUNC('month', …) gives a month's first day."""
    text = str(literal.this)
    if granularity == "year" and not literal.is_string:
        return text
    found = _DAY.fullmatch(text)
    return text if found is None else cell_label(granularity, found[1]) or text


Parameters = Sequence[Any] | Mapping[str, Any]

_OTHER_PLACEHOLDER: Final = re.compile(r"%s\b|%\(\w*\)s|\$[0-9]+")
_SEPARATORS: Final = frozenset(["", *" \t\r\n(),=<>"])
"""Neighboring characters that need no blank between them and a literal."""


def bind_parameters(statement: str, parameters: Parameters) -> str:
    """Replace each ``?`` by the next value of a sequence, or each ``:name`` by a value of a mapping.

    Placeholders are tokens of the parser, so a ``?`` or ``:name`` in quotes or comments stays. Each value becomes exactly
    one literal, whatever its characters are.

    Raises:
        StatementError: a placeholder has no value, a value has no placeholder, or its type has no literal.
    """
    try:
        tokens = tokenize(statement)
    except SqlglotError:
        return statement  # the parser will report the place of the error
    require_known_placeholders(statement, tokens)
    pieces, end = [], 0
    for start, stop, value in _placeholders(tokens, parameters):
        before = "" if statement[max(start - 1, 0) : start] in _SEPARATORS else " "
        after = "" if statement[stop : stop + 1] in _SEPARATORS else " "
        pieces += [statement[end:start], before, value, after]
        end = stop
    return "".join([*pieces, statement[end:]])


def require_known_placeholders(text: str, tokens: Sequence[Token]) -> None:
    """Refuse placeholders of other interfaces, such as ``%s``, ``%(name)s`` and ``$1``."""
    for token in tokens:
        if token.token_type in {TokenType.MOD, TokenType.PARAMETER, TokenType.UNKNOWN} and (
            found := _OTHER_PLACEHOLDER.match(text, token.start)
        ):
            raise StatementError(
                f"character {token.start + 1}: {quote_name(found[0])} is no placeholder; write ? and give a sequence of values "
                "(paramstyle qmark), or :name and give a mapping"
            )


def _placeholders(tokens: Sequence[Token], parameters: Parameters) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the literal of each placeholder."""
    if isinstance(parameters, Mapping):
        for token, name in pairwise(tokens):
            if token.token_type is TokenType.COLON and name.start == token.end + 1:
                if (given := name.text) not in parameters:
                    hint = did_you_mean(given, parameters) or "; give a value for each placeholder"
                    raise StatementError(f"parameters: ':{given}' has no value{hint}")
                yield token.start, name.end + 1, _format_literal(f":{given}", parameters[given])
        if any(token.token_type is TokenType.PLACEHOLDER for token in tokens):
            raise StatementError(
                "parameters: a mapping has values for ':name', not for '?'; give a list of values"
            )
        return
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise StatementError(
            f"parameters: are of type {type(parameters).__name__}; give a list of values for '?', or a mapping for ':name'"
        )
    places = [token for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    if len(places) != len(parameters):
        raise StatementError(
            f"parameters: the statement has {len(places)} '?', and {len(parameters)} values are given; give one for each"
        )
    for number, (token, value) in enumerate(zip(places, parameters, strict=True), 1):
        yield token.start, token.end + 1, _format_literal(f"value {number}", value)


def _format_literal(place: str, value: Any) -> str:
    match value:
        case None | bool():
            return str(exp.convert(value).sql(dialect="postgres"))
        case str():
            return str(exp.Literal.string(value).sql(dialect="postgres"))
        case date():  # also a datetime
            return f"'{value.isoformat()}'"
        case Integral():
            return str(int(value))
        case Decimal() | Real() if math.isfinite(value):
            return format(value if isinstance(value, Decimal) else Decimal(repr(float(value))), "f")
    raise StatementError(
        f"parameters: {place} is of type {type(value).__name__}, or not finite; give a text, a number or a date"
    )


class DeclaredNames:
    """The names of a source's attributes, by which a statement's names are resolved."""

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._names = (*source.attributes, *source.texts)

    def __contains__(self, name: str) -> bool:
        return name.casefold() in map(str.casefold, self._names)

    def find_attribute(self, name: str, clause: str) -> str:
        """Return the declared name; a name in another case is accepted if it is unambiguous."""
        if name in self._names:
            return name
        if is_calendar_name(name):
            return calendar_attribute(name, self._source, lambda base: self.find_attribute(base, clause))
        if (alike := find_name_in_other_case(name, self._names)) is not None:
            return alike
        read = [one for one in self._source.attributes if self._source.column_of(one) == name]
        hint = (
            f"; name an attribute of this column: {quote_names(read)}" if read else did_you_mean(name, self._names)
        )
        hint = hint or f"; there are {quote_names(self._names)}"
        raise StatementError(f"{clause}: no attribute is called {quote_name(name)}{hint}")

    def resolve_condition(self, text: str | None) -> str | None:
        """Return a condition in which attributes replace calendar functions."""
        if text is None:
            return None
        return replace_calendar_names(text, self._source, lambda base: self.find_attribute(base, "WHERE"))


def require_person(column: str, source: TableSource) -> None:
    """Refuse COUNT(DISTINCT column) unless the column names the source's people."""
    if source.person is None:
        raise StatementError(distinct_message(" (this source declares none: each row is one person)"))
    if column.casefold() != source.person.casefold():
        raise StatementError(distinct_message(f", '{source.person}'"))


def require_declared(name: str, source: TableSource) -> None:
    """Refuse a text attribute, whose values are private."""
    if name in source.texts:
        raise StatementError(private_text_message(name))
