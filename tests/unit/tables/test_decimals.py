"""Decimals: exact cells from the text of a file, exact comparisons, and reports about cells that do not fit."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import Bins, Decimals
from stream.tables.checks import check_table
from stream.tables.columns_table import PrivateTable
from stream.tables.comparisons import Attribute
from stream.tables.encoding import encode
from stream.tables.predicates import parse
from stream.tables.rows import read_cells
from stream.tables.table_errors import PredicateError, TableDataError
from tests.unit.tables.small import source, unhurried

CENTS = Decimals(minimum=-5.0, maximum=100.0, step=0.01, outside="reject")
CLAMPED = Decimals(minimum=-5.0, maximum=100.0, step=0.01)


def steps(domain: Decimals, cells: Any, dtype: Any = pl.String) -> list[int | None]:
    """Return the number of steps in each cell's value; None for a row that is left out."""
    codes, known = encode("x", domain, pl.Series(cells, dtype=dtype))
    least = domain.in_steps.minimum
    return [code + least if is_known else None for code, is_known in zip(codes.tolist(), known, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.30", 1230),
        ("  12.3 ", 1230),
        ("1e1", 1000),
        ("-0.00", 0),
        (".5", 50),
        ("12.", 1200),
        ("0.005", 1),
        ("0.00499999999999999999999999999999", 0),
        ("-0.005", -1),
        ("1.005", 101),  # the nearest double is below
        ("0.015", 2),
        ("100.0049", 10_000),
        ("100.005", None),
        ("-5.0049", -500),
        ("1e400", None),
        ("9" * 400, None),
        ("١٢", None),
        ("12,30", None),
        ("1_0", None),
        ("0x10", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_decimal_cell_is_the_nearest_step_of_its_text(text: str | None, expected: int | None) -> None:
    assert steps(CENTS, [text]) == [expected]


def test_decimal_outside_is_clamped_after_rounding() -> None:
    assert steps(CLAMPED, ["-7", "100.004", "1e400", "-inf"]) == [-500, 10_000, 10_000, -500]


def test_decimal_columns_of_all_types_have_equal_codes() -> None:
    """A double stands for its shortest decimal, and so does a float of 32 bits."""
    for dtype in (pl.Float64, pl.Float32, pl.Decimal(10, 3)):
        assert steps(CENTS, [Decimal("12.3"), Decimal("0.005"), None], dtype) == [1230, 1, None]
    assert steps(CENTS, [7, None], pl.Int64) == [700, None]
    with pytest.raises(TableDataError, match="not numbers"):
        steps(CENTS, [None], pl.Date)


@unhurried
@given(
    st.lists(st.decimals(min_value=-50, max_value=150, places=None, allow_nan=False), max_size=20),
    st.sampled_from([0.01, 0.05, 0.25, 0.5, 2.5]),
)
def test_decimals_are_rounded_as_exact_fractions(values: list[Decimal], step: float) -> None:
    domain = Decimals(minimum=-20.0, maximum=100.0, step=step)
    unit = Fraction(str(step))
    expected = []
    for value in values:
        size = abs(Fraction(value)) / unit
        nearest = (2 * size.numerator + size.denominator) // (2 * size.denominator)
        signed = -nearest if value < 0 else nearest
        expected.append(min(max(signed, -20 / unit), 100 / unit))
    assert steps(domain, [str(value) for value in values]) == expected


def test_decimal_predicates_compare_exactly() -> None:
    values = CENTS.values()
    for text, keeps in (
        ("x >= 12.345", lambda value: value >= 12.35),
        ("x < 99.99", lambda value: value < 99.99),
        ("x = 12.3", lambda value: value == 12.3),
        ("x = 12.345", lambda value: value == 12.345),
        ("x BETWEEN -1 AND 0.5", lambda value: -1 <= value <= 0.5),
    ):
        table = PrivateTable.load(source({"x": CENTS}), {"x": list(values)})
        assert table.count(parse(text, {"x": CENTS})) == sum(map(keeps, values)), text


def test_decimal_sum_is_exact_in_steps() -> None:
    table = PrivateTable.load(source({"x": CENTS}), {"x": ["0.10"] * 3 + ["-0.35"]})
    assert table.total("x", parse("TRUE", {"x": CENTS})) == -5


def test_range_of_a_refused_value_has_no_superfluous_digits() -> None:
    wide = Decimals(minimum=-100.0, maximum=400.0, step=0.5)
    with pytest.raises(PredicateError, match=r"holds numbers from -100 to 400 in steps of 0\.5; give one of them"):
        Attribute("x", wide).code(0.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"maximum": 100_000.0},
            "the range has 10,000,001 steps, and at most 1,048,576 are possible; declare a step",
        ),
        ({"minimum": 0.005}, "minimum must be a multiple of step; give one, as 0.0 or 0.01"),
        ({"minimum": 10_001.0}, "maximum must not be below minimum"),
        ({"step": 1e-9}, "more than 1099511627776 steps from 0"),
        ({"step": 0.0}, "greater than or equal to"),
    ],
)
def test_decimal_declaration_refuses_impossible_fields(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Decimals.model_validate({"minimum": 0.0, "maximum": 10_000.0, "step": 0.01, **changes})


def test_decimal_check_distinguishes_rounded_and_clamped_cells(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("cost\n12.30\n12.345\n100.004\n250\nabout 3\n")
    report = check_table(source({"cost": CLAMPED}), path)
    assert {one.what: (one.rows, one.fate) for one in report.misfits} == {
        "not a number": (1, "left out"),
        "between steps": (2, "rounded"),
        "above": (1, "clamped"),
    }


def test_decimal_check_reports_each_cell_halfway_between_steps(tmp_path: Path) -> None:
    """In floating point half of these cells are farther than half a step from the value that they become."""
    path = tmp_path / "table.csv"
    path.write_text("cost\n" + "".join(f"{tens / 10 + 0.05:.2f}\n" for tens in range(50)))
    declared = source({"cost": Decimals(minimum=0.0, maximum=5.0, step=0.1)}, path=str(path))
    report = check_table(declared)
    [rounded] = report.misfits
    assert (report.as_declared, rounded.what, rounded.rows) == (0, "between steps", 50)
    assert rounded.sum_moved == pytest.approx(2.5)
    assert PrivateTable.load(declared).private_codes["cost"].tolist() == list(range(1, 51))


def test_two_attributes_may_read_one_column(tmp_path: Path) -> None:
    """One attribute has amounts in cents for sums, and the other has the same amounts in bins for groups."""
    path = tmp_path / "table.csv"
    path.write_text("cost\n12.30\n0.005\n99.99\n")
    declared = source({"cost": CLAMPED, "band": Bins(edges=(0.0, 10.0, 50.0, 100.0))}, path=str(path))
    declared = declared.model_copy(update={"columns": {"band": "cost"}})
    table = PrivateTable.load(declared)
    assert table.private_codes["band"].tolist() == [1, 0, 2]
    again = PrivateTable.load(declared, read_cells(declared, str(path)))
    assert {name: codes.tolist() for name, codes in again.private_codes.items()} == {
        name: codes.tolist() for name, codes in table.private_codes.items()
    }
