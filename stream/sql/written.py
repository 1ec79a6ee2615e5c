"""What a statement says in its asker's own words: the parser reads COUNT_IF, casts and dates as something else, which nobody wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

from sqlglot import Token, TokenType
from sqlglot.dialects.dialect import Dialect

from stream.data.errors import one_line

_DIALECT: Final = Dialect.get_or_raise("postgres")

_OPEN: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSE: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_BEHIND_CONDITIONS: Final = frozenset(
    {
        TokenType.THEN,
        TokenType.COMMA,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
        TokenType.FETCH,
        TokenType.OFFSET,
        TokenType.SEMICOLON,
    }
)
_COUNTS_IF: Final = frozenset({"COUNT_IF", "COUNTIF"})


def columns_of(text: str) -> list[str]:
    """What stands between SELECT and FROM, one line a column."""
    tokens = _DIALECT.tokenize(text)
    found, first = [], 1 + (len(tokens) > 1 and tokens[1].token_type is TokenType.ALL)
    for place, token in _outermost(tokens):
        if place >= first and token.token_type in {TokenType.COMMA, TokenType.FROM}:
            found.append(one_line(_between(text, tokens[first:place]), len(text)))
            first = place + 1
            if token.token_type is TokenType.FROM:
                break
    return found


def name_with_signs(text: str) -> str | None:
    """The name behind FROM where signs make several words of it, of which the parser may take the first: of ``a@b`` the table ``a``."""
    tokens = _DIALECT.tokenize(text)
    behind = (place + 1 for place, token in _outermost(tokens) if token.token_type is TokenType.FROM)
    first = last = next(behind, len(tokens))
    for token, after in pairwise(tokens[first:]):
        ends = after.start > token.end + 1 or after.token_type in _OPEN | _CLOSE | _BEHIND_CONDITIONS
        if ends or TokenType.IDENTIFIER in {token.token_type, after.token_type}:
            break
        last += 1
    return _between(text, tokens[first : last + 1]) if last > first else None


def conditions_of(text: str, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each condition as it is written, and with blanks in place of what names one of the ``tables`` before an attribute."""
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
    """Whether two texts are alike but for blanks and the case of letters."""
    return _words(written) == _words(normal)


def _words(text: str) -> list[str]:
    return [token.text.upper() for token in _DIALECT.tokenize(text)]


def _outermost(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """The tokens that stand in no parentheses, with their places; last the parenthesis that closes what none of them opened."""
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
