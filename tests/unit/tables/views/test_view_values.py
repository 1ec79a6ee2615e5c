"""Expressions of views have the values of DuckDB, and NULL instead of errors."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from stream.tables.readers.view_parser import parse_view
from stream.tables.readers.view_terms import convert_cells
from stream.tables.table_errors import ColumnError
from tests.views import view_frame, view_source

KINDS = {"i": "integer", "j": "integer", "x": "number", "t": "text", "u": "text"}
CELLS: dict[str, list[Any]] = {
    "i": [None, -1, 0, 2],
    "j": [None, 0, 3],
    "x": [None, -0.5, 0.0, 2.5],
    "t": [None, "a", "B", " äÖ "],
    "u": [None, "a"],
}
FRAME = pl.DataFrame(list(product(*CELLS.values())), schema=list(CELLS), orient="row")


def values(expression: str, frame: pl.DataFrame = FRAME, kinds: dict[str, str] = KINDS) -> list[Any]:
    column = frame.columns[0]
    select = f"SELECT {expression} AS r, {column} AS used FROM rows"  # noqa: S608
    source = view_source(select, {"rows": {"columns": kinds}}, ["r"])
    return view_frame(parse_view(source), {"rows": frame})["r"].to_list()


def duckdb_values(expression: str) -> list[Any]:
    rows = FRAME.with_row_index("place").to_arrow()
    query = f"SELECT place, {expression} AS r FROM rows"  # noqa: S608
    found: Any = duckdb.connect().from_arrow(rows).query("rows", query)
    return [value for _, value in sorted(found.fetchall(), key=lambda row: row[0])]


@st.composite
def formats(draw: st.DrawFn, /, *patterns: str, **parts: st.SearchStrategy[str]) -> str:
    """Draw one of these patterns, with an expression for each name in braces."""
    return draw(st.sampled_from(patterns)).format(**{name: draw(part) for name, part in parts.items()})


def expressions(depth: int) -> dict[str, st.SearchStrategy[str]]:
    """Return strategies for expressions of each kind."""
    n = st.sampled_from(["i", "j", "0", "1", "3", "i + j"])
    x, t = st.sampled_from(["x", "1.5", "0.25"]), st.sampled_from(["t", "u", "'a'", "' x'"])
    b = st.sampled_from(["TRUE", "NULL", "i = j", "t <> u", "x IS NULL"])
    for _ in range(depth):
        parts = {"n": n, "m": n, "x": x, "y": x, "t": t, "u": t, "b": b, "c": b}
        n, x, t, b = (
            formats(
                *("({n} + {m})", "({n} - {m})", "{n} * {m}", "ABS({n})", "COALESCE({n}, {m})", "NULLIF({n}, {m})"),
                *("LENGTH({t})", "CASE WHEN {b} THEN {n} ELSE {m} END", "CASE {n} WHEN {m} THEN 1 END", "-({n})"),
                **parts,
            ),
            formats(
                *("({x} + {n})", "({x} * {y})", "{n} / NULLIF({m}, 0)", "FLOOR({x})", "CEIL({x})", "ABS({x})"),
                *(
                    "CASE WHEN {b} THEN {x} WHEN {c} THEN {n} END",
                    "COALESCE({x}, {n})",
                    "CAST({n} AS DOUBLE PRECISION)",
                ),
                **parts,
            ),
            formats(
                *(
                    "LOWER({t})",
                    "UPPER({t})",
                    "TRIM({t})",
                    "SUBSTRING({t}, 2, 2)",
                    "({t} || {u})",
                    "NULLIF({t}, {u})",
                ),
                *("CASE WHEN {b} THEN {t} ELSE {u} END", "COALESCE({t}, {u})"),
                **parts,
            ),
            formats(
                *(
                    "({b} AND {c})",
                    "({b} OR {c})",
                    "NOT ({b})",
                    "{n} < {m}",
                    "{n} >= {x}",
                    "{x} <> {y}",
                    "{t} <= {u}",
                ),
                *(
                    "{n} IN ({m}, 1)",
                    "{t} NOT IN ('a', {u})",
                    "{x} BETWEEN {n} AND {y}",
                    "{t} IS NOT NULL",
                    "({b}) IS NULL",
                    "({b}) = ({c})",
                ),
                **parts,
            ),
        )
    return {"n": n, "x": x, "t": t, "b": b}


@given(st.one_of(*expressions(3).values()), st.integers(0, FRAME.height - 1))
@example("1 IN (CASE WHEN x IS NULL OR TRUE THEN 3 ELSE 0 END, 1)", 0)
@example("5 / NULLIF(j, 0)", 352)
@example("(i + j) / 3", 352)
@settings(deadline=None, max_examples=100, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_values_are_those_of_duckdb(expression: str, place: int) -> None:
    """Every expression has the values of DuckDB, also with NULL among its operands, and the same in a row alone."""
    found = values(expression)
    assert found == duckdb_values(expression)
    assert values(expression, FRAME[place : place + 1]) == found[place : place + 1]


LARGE = 2**63 - 1


@pytest.mark.parametrize(
    ("expression", "cells", "expected"),
    [
        ("a / b", [(1, 0), (7, 2)], [None, 3.5]),
        ("a + b", [(LARGE, 1), (LARGE, 0)], [None, LARGE]),
        ("a * b", [(LARGE, LARGE), (2**32, 2**30)], [None, 2**62]),
        ("ABS(a)", [(-(2**63), 0), (-3, 0)], [None, 3]),
        ("-a", [(-(2**63), 0), (-3, 0)], [None, 3]),
        (
            "CAST(a AS DOUBLE PRECISION) * 1e308 - CAST(a AS DOUBLE PRECISION) * 1e308",
            [(100, 0), (1, 0)],
            [None, 0.0],
        ),
        ("a / 0.0", [(1, 0)], [None]),
    ],
)
def test_values_that_cannot_be_computed_are_null(expression: str, cells: list[Any], expected: list[Any]) -> None:
    """A division by 0, an overflow and infinity minus infinity are NULL in their row, and change no other."""
    frame = pl.DataFrame(cells, schema={"a": pl.Int64, "b": pl.Int64}, orient="row")
    assert values(expression, frame, {"a": "integer", "b": "integer"}) == expected


@pytest.mark.parametrize(
    ("kind", "cells", "expected"),
    [
        ("text", ["a", "", " ", None], ["a", None, " ", None]),
        ("text", [1.0, 0.5, None], ["1", "0.5", None]),
        ("integer", ["7", " 7.0 ", "7.5", "x", "", str(LARGE), "9" * 30], [7, 7, None, None, None, LARGE, None]),
        ("integer", [1.0, 1.5, math.inf, math.nan], [1, None, None, None]),
        ("number", ["0.5", "nan", "x", " 1e3 ", ""], [0.5, None, None, 1000.0, None]),
        ("boolean", ["true", " FALSE", "1", "", None], [True, False, None, None, None]),
        ("boolean", [True, None], [True, None]),
        (
            "date",
            ["2024-02-29", "2023-02-29", "2024-02-29T10:00", "29.2.2024", "0999-01-01", ""],
            ["2024-02-29", None, "2024-02-29", None, None, None],
        ),
    ],
)
def test_cells_of_another_kind_are_null(kind: Any, cells: list[Any], expected: list[Any]) -> None:
    """Each cell becomes a value of its column's kind, or NULL, whatever the other cells are."""
    column = pl.Series("c", cells)
    assert convert_cells(kind, "c", column).to_list() == expected
    assert [convert_cells(kind, "c", column[place : place + 1]).item() for place in range(len(cells))] == expected


def test_casts_read_texts_as_cells_are_read() -> None:
    """A cast of a text has the values of a column of this kind; other casts keep the value."""
    cells = ["7", "7.5", "x", "true", "2024-03-31", None]
    frame = pl.DataFrame({"t": cells, "n": [1.5, 2.0, 3.0, 4.0, 5.0, None]})
    kinds = {"t": "text", "n": "number"}
    assert values("TRY_CAST(t AS INTEGER)", frame, kinds) == [7, None, None, None, None, None]
    assert values("t::float", frame, kinds) == [7.0, 7.5, None, None, None, None]
    assert values("CAST(t AS DATE) >= '2024-03-31'", frame, kinds) == [None, None, None, None, True, None]
    assert values("CAST(n AS TEXT)", frame, kinds) == ["1.5", "2", "3", "4", "5", None]


def test_column_of_an_unreadable_type_is_refused_by_name() -> None:
    """A column whose type no kind and no domain can read is refused with the table's name and the type."""
    frame = pl.DataFrame({"a": [[1]], "b": [1]})
    for kinds in ({"a": "integer"}, {}):
        with pytest.raises(ColumnError, match=r"^column 'rows\.a' has type List"):
            values("a", frame, kinds)
    with pytest.raises(ColumnError, match=r"^the table has no column 'rows\.c'"):
        values("c", frame, {})
