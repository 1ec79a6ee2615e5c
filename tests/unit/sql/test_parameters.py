"""Parameters of statements: each is one literal, whatever its characters are."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotto import StatementError
from stream.sql.statement_text import bind_parameters, tokenize

values = st.one_of(
    st.text(),
    st.text(alphabet="'\\?:;-/*$E \n"),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.booleans(),
    st.none(),
    st.dates(),
)


def texts(statement: str) -> list[str]:
    return [token.text for token in tokenize(statement)]


def as_tokens(value: Any) -> list[str]:
    """Return the tokens of the only literal that stands for a value."""
    if isinstance(value, str | date):
        return [value if isinstance(value, str) else value.isoformat()]
    if value is None or isinstance(value, bool):
        return ["NULL" if value is None else str(value).upper()]
    number = format(value if isinstance(value, Decimal) else Decimal(repr(value)), "f")
    return ["-", number[1:]] if number.startswith("-") else [number]


@given(st.lists(values, min_size=3, max_size=3))
def test_parameter_becomes_one_literal(three: list[Any]) -> None:
    """The tokens are those of the statement, with one literal in place of each placeholder."""
    first, second, third = map(as_tokens, three)
    marks = "SELECT COUNT(*) AS \"?\" FROM t WHERE a=? AND b IN (?, E?) OR c = '?' -- ?"
    names = marks.replace("=?", "=:x").replace("(?,", "(:y,").replace("E?", "E:z")
    before, between = texts('SELECT COUNT(*) AS "?" FROM t WHERE a='), [")", "OR", "c", "=", "?"]
    expected = [*before, *first, "AND", "b", "IN", "(", *second, ",", "E", *third, *between]
    assert texts(bind_parameters(marks, three)) == expected
    assert texts(bind_parameters(names, dict(zip("xyz", three, strict=True)))) == expected


@pytest.mark.parametrize(
    ("statement", "parameters", "message"),
    [
        ("a = ? AND b = ?", [1], r"2 '\?', and 1 values are given"),
        ("a = 1", [1], r"0 '\?', and 1 values are given"),
        ("a = :low", {"lou": 1}, "':low' has no value; did you mean 'lou'"),
        ("a = ?", [b"x"], "value 1 is of type bytes"),
        ("a = :x", {"x": float("nan")}, "':?x is of type float, or not finite|:x is of type float"),
        ("a = ?", "x", "are of type str; give a list"),
        ("a = ?", {"a": 1}, r"a mapping has values for ':name', not for '\?'; give a list"),
        ("a = %(a)s", {"a": 1}, r"character 34: '%\(a\)s' is no placeholder; write \? and .*paramstyle qmark"),
        ("a = %s", [1], "'%s' is no placeholder"),
        ("a = $1", [1], r"'\$1' is no placeholder"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(statement: str, parameters: Any, message: str) -> None:
    """The error names the placeholder or the number of values."""
    with pytest.raises(StatementError, match=message):
        bind_parameters(f"SELECT COUNT(*) FROM t WHERE {statement}", parameters)  # noqa: S608
