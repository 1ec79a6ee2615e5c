"""Typed expressions of views: a value depends on one row's cells alone, and no cell makes an expression fail.

A value that cannot be computed is NULL: a cell that is not of its column's kind, a division by 0, or a whole number
beyond 64 bits. Comparisons with NULL are NULL, and AND, OR and NOT have three values, as in SQL.
"""

from __future__ import annotations

import operator as op
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Final, Literal

from schemas import ColumnKind, Dates
from stream.optional_packages import np, pl
from stream.tables.date_codes import date_codes
from stream.tables.encoding import as_numbers, as_text
from stream.tables.table_errors import ColumnError

Kind = ColumnKind | Literal["raw", "null"]
"""A term's kind: a column's declared kind, ``raw`` for a column without one, or ``null`` for the literal NULL."""

_LARGEST_EXACT: Final = 2.0**53
_MAX_DIGITS: Final = 64
_DAYS: Final = Dates(kind="date", minimum="1000-01-01", maximum="3800-12-31", outside="reject")
"""The days of the kind ``date``; days outside this range are NULL."""

_COMPARISONS: Final = {"=": op.eq, "<>": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge}
_OPERATIONS: Final = {"+": op.add, "-": op.sub, "*": op.mul}


class TermError(ValueError):
    """An expression has operands of the wrong kinds; the message is a problem and a remedy."""


@dataclass(frozen=True)
class ViewTerm:
    """An expression of a view; ``literal`` is the text of a literal in quotes."""

    kind: Kind
    value: pl.Expr
    literal: str | None = None


def null() -> ViewTerm:
    """Return the literal NULL."""
    return ViewTerm("null", pl.lit(None))


def text_literal(text: str) -> ViewTerm:
    """Return a literal in quotes."""
    return ViewTerm("text", pl.lit(text, dtype=pl.String), text)


def truth_literal(truth: object) -> ViewTerm:
    """Return TRUE or FALSE."""
    return ViewTerm("boolean", pl.lit(bool(truth)))


def number_literal(text: str) -> ViewTerm:
    """Return a number: an integer if it is whole and has at most 64 bits."""
    if text.isdecimal() and len(text) < _MAX_DIGITS and int(text) < 1 << 63:
        return ViewTerm("integer", pl.lit(int(text), dtype=pl.Int64))
    try:
        number = float(text)
    except ValueError:
        raise TermError("a malformed number; write it as 1.5 or 1e5") from None
    if not isfinite(number):
        raise TermError("a number beyond 1.8e308; write a smaller one")
    return ViewTerm("number", pl.lit(number, dtype=pl.Float64))


def convert_cells(kind: ColumnKind, name: str, column: pl.Series) -> pl.Series:
    """Convert each cell of a column to a kind; ColumnError if the column's type cannot be converted."""
    match kind:
        case "text":
            texts = as_text(name, column)
            return texts.replace("", None)
        case "number":
            return pl.Series(name, as_numbers(name, column)).fill_nan(None)
        case "integer":
            return _convert_to_integers(name, column)
        case "boolean":
            if column.dtype == pl.Boolean:
                return column
            words = as_text(name, column).str.strip_chars().str.to_lowercase()
            return words.replace_strict({"true": True, "false": False}, default=None, return_dtype=pl.Boolean)
        case "date":
            codes, known = date_codes(name, _DAYS, column)
            days = (codes + _DAYS.calendar.first).astype("datetime64[D]").astype(str)
            return pl.Series(name, np.where(known, days, ""), dtype=pl.String).replace("", None)


def _convert_to_integers(name: str, column: pl.Series) -> pl.Series:
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    numbers = pl.Series(name, as_numbers(name, column)).fill_nan(None)
    whole = (numbers == numbers.floor()) & (numbers.abs() <= _LARGEST_EXACT)
    found = numbers.zip_with(whole.fill_null(value=False), pl.Series([None], dtype=pl.Float64))
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        # Texts of digits are exact, also beyond 2^53.
        exact = column.cast(pl.String).str.strip_chars().cast(pl.Int64, strict=False)
        return exact.zip_with(exact.is_not_null(), found.cast(pl.Int64, strict=False))
    return found.cast(pl.Int64, strict=False)


def require_condition(term: ViewTerm) -> pl.Expr:
    """Return the expression of a condition; TermError if the term is not a boolean."""
    return _operand(term, "boolean")


def compare(sign: str, left: ViewTerm, right: ViewTerm) -> ViewTerm:
    """Return a comparison of two terms; ``sign`` is one of = <> < <= > >=."""
    kind = common_kind((left, right))
    if kind == "boolean" and sign not in {"=", "<>"}:
        raise TermError("booleans have no order; compare with = or <>")
    return ViewTerm("boolean", _COMPARISONS[sign](_operand(left, kind), _operand(right, kind)))


def contains(term: ViewTerm, listed: Sequence[ViewTerm]) -> ViewTerm:
    """Return the condition that a term equals one of several."""
    found = [require_condition(compare("=", term, one)) for one in listed]
    return ViewTerm("boolean", pl.any_horizontal(found) if len(found) > 1 else found[0])


def combine(sign: Literal["AND", "OR"], left: ViewTerm, right: ViewTerm) -> ViewTerm:
    """Return the conjunction or disjunction of two conditions."""
    one, two = require_condition(left), require_condition(right)
    return ViewTerm("boolean", one & two if sign == "AND" else one | two)


def negate(term: ViewTerm) -> ViewTerm:
    """Return the negation of a condition."""
    return ViewTerm("boolean", ~require_condition(term))


def is_null(term: ViewTerm) -> ViewTerm:
    """Return the condition that a term is NULL; it is true or false, and never NULL."""
    _require_kind(term)
    return ViewTerm("boolean", term.value.is_null())


def calculate(sign: str, left: ViewTerm, right: ViewTerm) -> ViewTerm:
    """Return the result of + - * or /; it is an integer if both operands are, except that a quotient is a number."""
    for term in (left, right):
        _require_kind(term)
        if term.kind not in {"integer", "number", "null"}:
            raise TermError(f"arithmetic on {_with_article(term.kind)}; cast it, as in CAST(x AS INTEGER)")
    if sign != "/" and common_kind((left, right)) == "integer":
        wide = [_operand(term, "integer").cast(pl.Int128) for term in (left, right)]
        return ViewTerm("integer", _OPERATIONS[sign](*wide).cast(pl.Int64, strict=False))
    one, two = _operand(left, "number"), _operand(right, "number")
    found = pl.map_batches([one, two], _divide, pl.Float64) if sign == "/" else _OPERATIONS[sign](one, two)
    return ViewTerm("number", found.fill_nan(None))


def _divide(columns: Sequence[pl.Series]) -> pl.Series:
    """Divide numbers; NaN if one is missing or the divisor is 0.

    Numpy divides: if there is only one divisor, polars multiplies by its reciprocal, so a quotient would depend on the
    number of rows.
    """
    one, two = (column.to_numpy() for column in columns)
    with np.errstate(all="ignore"):
        return pl.Series(np.where(two == 0, np.nan, one / two), dtype=pl.Float64)


def choose(cases: Sequence[tuple[ViewTerm, ViewTerm]], default: ViewTerm) -> ViewTerm:
    """Return the value of the first condition that is true, else the default."""
    kind = common_kind([*(value for _, value in cases), default])
    found = _operand(default, kind)
    for condition, value in reversed(cases):
        found = pl.when(require_condition(condition)).then(_operand(value, kind)).otherwise(found)
    return ViewTerm(kind, found)


def coalesce(terms: Sequence[ViewTerm]) -> ViewTerm:
    """Return the first term that is not NULL."""
    kind = common_kind(terms)
    return ViewTerm(kind, pl.coalesce([_operand(term, kind) for term in terms]))


def nullif(left: ViewTerm, right: ViewTerm) -> ViewTerm:
    """Return the left term, or NULL if both terms are equal."""
    same = require_condition(compare("=", left, right))
    return ViewTerm(left.kind, pl.when(same).then(None).otherwise(left.value))


def cast(term: ViewTerm, kind: ColumnKind) -> ViewTerm:
    """Return a term as another kind; NULL if its value cannot be converted."""
    _require_kind(term)
    if term.kind in {kind, "null"}:
        return ViewTerm(kind, term.value.cast(_polars_type(kind)))
    if term.kind == "integer" and kind == "number":
        return ViewTerm(kind, term.value.cast(pl.Float64))
    if term.kind != "text" and kind != "text":
        hint = (
            "; FLOOR and CEIL give whole numbers"
            if (term.kind, kind) == ("number", "integer")
            else "; compare it, or leave the cast out"
        )
        raise TermError(f"a cast of {_with_article(term.kind)} to {kind}{hint}")

    def convert(column: pl.Series) -> pl.Series:
        return convert_cells(kind, column.name, column)

    return ViewTerm(kind, term.value.map_batches(convert, return_dtype=_polars_type(kind), is_elementwise=True))


def apply_text_function(name: str, term: ViewTerm) -> ViewTerm:
    """Return LOWER, UPPER, TRIM or LENGTH of a text."""
    text = _operand(term, "text").str
    match name:
        case "LOWER":
            return ViewTerm("text", text.to_lowercase())
        case "UPPER":
            return ViewTerm("text", text.to_uppercase())
        case "TRIM":
            return ViewTerm("text", text.strip_chars(" "))
        case _:
            return ViewTerm("integer", text.len_chars().cast(pl.Int64))


def substring(term: ViewTerm, start: int, length: int | None) -> ViewTerm:
    """Return ``length`` characters of a text, from the character ``start`` on; the first has number 1."""
    return ViewTerm("text", _operand(term, "text").str.slice(start - 1, length))


def concatenate(left: ViewTerm, right: ViewTerm) -> ViewTerm:
    """Return the text of two texts, one after the other."""
    return ViewTerm("text", _operand(left, "text") + _operand(right, "text"))


def apply_number_function(name: str, term: ViewTerm) -> ViewTerm:
    """Return ABS, FLOOR or CEIL of a number, or its negation."""
    _require_kind(term)
    if term.kind not in {"integer", "number"}:
        raise TermError(f"{name} of {_with_article(term.kind)}; give a number")
    if name in {"FLOOR", "CEIL"}:
        rounded = term.value.floor() if name == "FLOOR" else term.value.ceil()
        return term if term.kind == "integer" else ViewTerm("number", rounded)
    wide = term.value.cast(pl.Int128) if term.kind == "integer" else term.value
    found = 0 - wide if name == "-" else wide.abs()
    return ViewTerm(term.kind, found.cast(_polars_type(term.kind), strict=False))


def _polars_type(kind: Kind) -> pl.DataType:
    types = {"integer": pl.Int64(), "number": pl.Float64(), "boolean": pl.Boolean(), "null": pl.Null()}
    return types.get(kind, pl.String())


def common_kind(terms: Sequence[ViewTerm]) -> Kind:
    """Return the kind to which several terms can be converted; TermError if there is none."""
    for term in terms:
        _require_kind(term)
    kinds = {term.kind for term in terms} - {"null"}
    if kinds == {"text", "date"}:
        return "date"
    if kinds == {"integer", "number"}:
        return "number"
    if len(kinds) > 1:
        one, two = sorted(kinds)[:2]
        raise TermError(f"{_with_article(one)} with {_with_article(two)}; cast one of them, as in CAST(x AS TEXT)")
    return next(iter(kinds), "null")


def _operand(term: ViewTerm, kind: Kind) -> pl.Expr:
    """Return a term's expression, converted to ``kind``; TermError if it cannot be converted."""
    _require_kind(term)
    if term.kind == "null":
        return pl.lit(None, dtype=_polars_type(kind))
    if term.kind == "integer" and kind == "number":
        return term.value.cast(pl.Float64)
    if term.kind == "text" and kind == "date":
        return pl.lit(_require_day(term.literal), dtype=pl.String)
    if term.kind != kind:
        raise TermError(
            f"{_with_article(term.kind)} instead of {_with_article(kind)}; compare it with a value, or cast it"
        )
    return term.value


def _require_day(text: str | None) -> str:
    if text is None:
        raise TermError("a date with a text; cast the text, as in CAST(x AS DATE)")
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise TermError("a date with a text that is no day; write the day as '2024-03-31'") from None


def _require_kind(term: ViewTerm) -> None:
    if term.kind == "raw":
        raise TermError("a column without a kind in an expression; declare its kind in the columns of its table")


def _with_article(kind: Kind) -> str:
    return "NULL" if kind == "null" else f"an {kind}" if kind == "integer" else f"a {kind}"


def require_simple_type(name: str, column: pl.Series) -> pl.Series:
    """Return a column unchanged, but categories as texts; ColumnError if no domain can read its type."""
    kind = column.dtype
    if kind in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Null, pl.Date) or isinstance(kind, pl.Datetime):
        return column
    raise ColumnError("no text", name, str(kind.base_type()))
