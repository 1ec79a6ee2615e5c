"""Binds the parameters of a statement: each placeholder becomes one literal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Final

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from stream.formatting import did_you_mean
from stream.sql.aggregates import StatementError
from stream.sql.select_statements import tokenize

Parameters = Sequence[Any] | Mapping[str, Any]

_SEPARATORS: Final = frozenset(["", *" \t\r\n(),=<>"])
"""Characters beside which a literal needs no blank."""


def bind_parameters(statement: str, parameters: Parameters) -> str:
    """Replace each ``?`` by the next value of a sequence, or each ``:name`` by a value of a mapping.

    Placeholders are tokens of the parser, so quoted ones and those in comments stay. Each value
    becomes exactly one literal, whatever its characters are.

    Raises:
        StatementError: a placeholder has no value, a value has no placeholder, or its type has no literal.
    """
    try:
        tokens = tokenize(statement)
    except SqlglotError:
        return statement  # the parser reports the place
    pieces, end = [], 0
    for start, stop, value in _placeholders(tokens, parameters):
        before = "" if statement[max(start - 1, 0) : start] in _SEPARATORS else " "
        after = "" if statement[stop : stop + 1] in _SEPARATORS else " "
        pieces += [statement[end:start], before, value, after]
        end = stop
    return "".join([*pieces, statement[end:]])


def _placeholders(tokens: Sequence[Token], parameters: Parameters) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the literal of each placeholder."""
    if isinstance(parameters, Mapping):
        for token, name in pairwise(tokens):
            if token.token_type is TokenType.COLON and name.start == token.end + 1:
                if (given := name.text) not in parameters:
                    hint = did_you_mean(given, parameters) or "; give a value for each placeholder"
                    raise StatementError(f"parameters: ':{given}' has no value{hint}")
                yield token.start, name.end + 1, _literal(f":{given}", parameters[given])
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
        yield token.start, token.end + 1, _literal(f"value {number}", value)


def _literal(place: str, value: Any) -> str:
    """Return a value as a literal in SQL."""
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
