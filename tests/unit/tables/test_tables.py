from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Bins, Categories, Domain, Integers
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import cell_mask
from stream.tables.predicates import parse
from stream.tables.rows import Frame
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.small import ATTRIBUTES, Cell, PredicateCase, columns, predicates, rows, source, unhurried

CLAMP = Integers(minimum=0, maximum=9)
REJECT = Integers(minimum=0, maximum=9, outside="reject")
BINS = Bins(edges=(0.0, 1.0, 2.0))
CLOSED = Categories(values=("01", "1", "x"))
OPEN = Categories(values=("a", "?", "b"), other="?")


def codes(domain: Domain, cells: Sequence[object] | pl.Series) -> list[int]:
    frame: Frame = cells.alias("x").to_frame() if isinstance(cells, pl.Series) else {"x": cells}
    column: list[int] = PrivateTable.load(source({"x": domain}), frame).private_codes["x"].tolist()
    return column


@pytest.mark.parametrize(
    ("domain", "cells", "expected"),
    [
        (CLAMP, [3, -1, 12, 10**400, -(10**400)], [3, 0, 9, 9, 0]),
        (CLAMP, ["3", " +4 ", "5.0", "6e0", "1e400", "-inf"], [3, 4, 5, 6, 9, 0]),
        (CLAMP, [None, "", "x", "3.5", "nan", float("nan"), "1_0", "0x1", True, object(), "\ud800"], []),
        (REJECT, [3, -1, 12, 9, "inf", None, "x", 0], [3, 9, 0]),
        (BINS, [-5, 0, 0.999, 1, 2, 2.5, "inf"], [0, 0, 0, 1, 1, 1, 1]),
        (Bins(edges=(0.0, 1.0, 2.0), outside="reject"), [-5, 0, 1, 2, 2.5, "inf", "nan", None], [0, 1, 1]),
        (CLOSED, ["01", "1", 1, 1.0, " 1", "1.0", "X", None, "x"], [0, 1, 1, 1, 2]),
        (OPEN, ["a", None, "", "c", 3, object(), "b"], [0, 1, 1, 1, 1, 1, 2]),
    ],
)
def test_cell_is_read_by_declared_rule(domain: Domain, cells: list[object], expected: list[int]) -> None:
    assert codes(domain, cells) == expected


@pytest.mark.parametrize(
    ("domain", "series", "expected"),
    [
        (CLAMP, pl.Series([1, 300, None], dtype=pl.UInt64), [1, 9]),
        (CLAMP, pl.Series([1.0, 1.5, float("nan"), None, float("inf")]), [1, 9]),
        (CLAMP, pl.Series(["1", "x"], dtype=pl.Categorical), [1]),
        (CLAMP, pl.Series([True, False]), [1, 0]),
        (CLAMP, pl.Series([None, None]), []),
        (BINS, pl.Series(["0.5", "1.50"]).cast(pl.Decimal(10, 2)), [0, 1]),
        (CLOSED, pl.Series([1, 2, None]), [1]),
        (CLOSED, pl.Series([1.0, None, 1.5, float("nan"), 1e300]), [1]),
        (CLOSED, pl.Series(["x", "1"], dtype=pl.Enum(["1", "x"])), [2, 1]),
        (OPEN, pl.Series([None, None]), [1, 1]),
    ],
)
def test_typed_column_is_read_like_its_text(domain: Domain, series: pl.Series, expected: list[int]) -> None:
    assert codes(domain, series) == expected


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_float32_is_read_by_its_shortest_decimal(tmp_path: Path, suffix: str) -> None:
    """A Parquet column of 32-bit floats gives the codes that the same table gives as CSV, also at the edges of bins."""
    edges = Bins(edges=(0.0, 0.1, 0.3, 0.7, 1.0), outside="reject")
    numbers = pl.Series("x", [0.7, 0.1, 0.3, 0.69999, 1.0, None, float("nan"), 1.1], dtype=pl.Float32)
    path = tmp_path / f"table.{suffix}"
    frame = pl.DataFrame([numbers])
    frame.write_parquet(path) if suffix == "parquet" else frame.write_csv(path)
    table = PrivateTable.load(source({"x": edges}, path=str(path)))
    assert table.private_codes["x"].tolist() == [3, 1, 2, 2, 3]


@pytest.mark.parametrize("domain", [CLAMP, BINS, CLOSED])
@pytest.mark.parametrize(
    ("series", "type_name"),
    [
        (pl.Series([date(2000, 1, 1)]), "Date"),
        (pl.Series([["Ann"]], dtype=pl.List(pl.Enum(["Ann"]))), "List"),
        (pl.Series([{"Ann": 1}]), "Struct"),
        (pl.Series([b"1"]), "Binary"),
    ],
)
def test_column_of_unreadable_type_is_refused_by_type_name(
    domain: Domain, series: pl.Series, type_name: str
) -> None:
    with pytest.raises(
        TableDataError, match=rf"^column 'x' has type {type_name}, not [a-z ,]*or booleans; write it as [a-z]*$"
    ):
        codes(domain, series)


def test_row_omitted_by_one_attribute_is_omitted_entirely() -> None:
    table = PrivateTable.load(source({"x": CLAMP, "y": REJECT}), {"x": [1, 2, 3], "y": [1, 99, 3]})
    assert table.private_row_count == 2
    assert table.private_codes["x"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("size", "width"),
    [(1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 20, 4)],
)
def test_domain_of_any_size_keeps_its_last_value(size: int, width: int) -> None:
    domain = Integers(minimum=5, maximum=size + 4)
    table = PrivateTable.load(source({"x": domain}), {"x": [size + 4, size + 4, 5]})
    assert table.private_codes["x"].itemsize == width
    assert table.count(parse(f"x = {size + 4}", {"x": domain})) == (3 if size == 1 else 2)
    assert table.count(parse("x >= 5", {"x": domain})) == 3


def test_table_without_rows_has_zero_counts() -> None:
    table = PrivateTable.load(source({"x": CLAMP}), {"x": []})
    predicates = [parse(text, table.attributes) for text in ("TRUE", "x = 1", "NOT x IN (1, 3, 5, 7, 9)")]
    assert table.counts(predicates).tolist() == [0, 0, 0]


@pytest.mark.parametrize("height", [1, 63, 64, 65, 128, 1000])
def test_complement_counts_no_bits_after_last_row(height: int) -> None:
    table = PrivateTable.load(source({"x": CLAMP}), {"x": [number % 10 for number in range(height)]})
    for text in ("TRUE", "x >= 0", "NOT x = 3 OR x = 3", "NOT FALSE"):
        assert table.count(parse(text, table.attributes)) == height
    threes = sum(number % 10 == 3 for number in range(height))
    assert table.count(parse("x <> 3", table.attributes)) == height - threes


def test_long_list_counts_sum_of_its_parts() -> None:
    domain = Integers(minimum=0, maximum=999)
    values = list(range(0, 1000, 3))
    table = PrivateTable.load(source({"x": domain}), {"x": values})
    listed = parse(f"x IN ({', '.join(map(str, range(0, 400, 2)))})", {"x": domain})
    assert table.count(listed) == sum(value < 400 and value % 2 == 0 for value in values)


def test_counts_are_independent_of_cache_size() -> None:
    frame = {"x": [number * 7 % 10 for number in range(500)]}
    small = PrivateTable(**_parts(frame), bitmap_cache_bytes=100)
    usual = PrivateTable(**_parts(frame))
    for text in ("x < 3", "x IN (1, 4, 8)", "x < 3", "x IN (0, 2, 4, 6, 8) AND x <> 4", "x = 9"):
        predicate = parse(text, {"x": CLAMP})
        assert small.count(predicate) == usual.count(predicate) == usual.count(predicate)


def _parts(frame: Frame) -> dict[str, Any]:
    table = PrivateTable.load(source({"x": CLAMP}), frame)
    return {"attributes": table.attributes, "private_codes": table.private_codes}


def test_predicate_over_other_schema_is_refused() -> None:
    table = PrivateTable.load(source({"x": CLAMP}), {"x": [1]})
    with pytest.raises(TableDataError, match="declares 'y' with other values"):
        table.count(parse("y = 1", {"y": CLAMP}))
    with pytest.raises(TableDataError, match="declares 'x' with other values"):
        table.count(parse("x = 1", {"x": Integers(minimum=0, maximum=99)}))
    with pytest.raises(TableDataError, match="attribute 'x' is not one of the stream's"):
        cell_mask(parse("x = 1", {"x": CLAMP}), {"y": 10})


def test_codes_are_read_only_and_hidden_in_repr() -> None:
    table = PrivateTable.load(source({"x": CLAMP}), {"x": [7, 7, 7]})
    with pytest.raises(ValueError, match="read-only"):
        table.private_codes["x"][0] = 1
    assert repr(table) == "Table(attributes=['x'])"


FILE = b'extra,x,y\n9,01,5\n9,1,"6"\n9," x",\xff\n9,x\n9,x,8,9\n\n9,x,7'


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".CSV"])
def test_csv_cells_are_text_and_ragged_rows_have_empty_cells(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table.v2{suffix}"
    path.write_bytes(gzip.compress(FILE) if suffix.endswith(".gz") else FILE)
    table = PrivateTable.load(source({"y": CLAMP, "x": CLOSED}, path=str(path)))
    assert table.private_codes["x"].tolist() == [0, 1, 2, 2]
    assert table.private_codes["y"].tolist() == [5, 6, 8, 7]


def test_empty_csv_cell_is_declared_empty_category(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('x,y\n,1\n"",2\na,3\n')
    table = PrivateTable.load(source({"x": Categories(values=("a", ""))}, path=str(path)))
    assert table.private_codes["x"].tolist() == [1, 1, 0]


def test_parquet_gives_same_table_as_csv(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": ["01", "x", None, "1"], "y": [3, 12, 4, None], "extra": [[1], [2], [3], [4]]})
    frame.write_parquet(tmp_path / "table.parquet")
    frame.drop("extra").write_csv(tmp_path / "table.csv")
    parquet, text = (
        PrivateTable.load(source({"x": CLOSED, "y": CLAMP}, path=str(tmp_path / name)))
        for name in ("table.parquet", "table.csv")
    )
    for name in ("x", "y"):
        assert np.array_equal(parquet.private_codes[name], text.private_codes[name])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("table.csv", b"", "no line of column names"),
        ("table.csv.gz", gzip.compress(b"x\n1\n" * 99, mtime=0)[:-20], "format"),
        ("table.parquet", b"not parquet", "format"),
        ("table.txt", b"x\n1\n", "not a .csv"),
        ("table", b"x\n1\n", "not a .csv"),
        ("table.csv", None, "missing"),
    ],
)
def test_unreadable_file_is_refused_by_cause(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError) as refused:
        PrivateTable.load(source({"x": CLAMP}, path=str(path)))
    assert message in refused.value.cause
    assert str(refused.value).startswith(f"path: no table can be read there: {refused.value.cause}; ")


def test_file_without_declared_column_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"y\n1\n")
    with pytest.raises(TableDataError, match="no column 'x'"):
        PrivateTable.load(source({"x": CLAMP}, path=str(path)))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_blank_line_is_a_row_at_any_place(tmp_path: Path, name: str, end: str, place: int) -> None:
    lines = ["a", "b"]
    lines.insert(place, "")
    content = end.join(["x", *lines, ""]).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    declared = source({"x": Categories(values=("a", "b", "?"), other="?")}, path=str(path))
    table = PrivateTable.load(declared)
    assert table.public_size == 3
    assert table.private_codes["x"].tolist() == [{"a": 0, "b": 1, "": 2}[line] for line in lines]


def test_unusable_table_in_memory_is_refused() -> None:
    with pytest.raises(TableDataError, match="no column 'x'"):
        PrivateTable.load(source({"x": CLAMP}), {"y": [1]})
    with pytest.raises(TableDataError, match="no column 'x'"):
        PrivateTable.load(source({"x": CLAMP}), pl.DataFrame({"y": [1]}))
    with pytest.raises(TableDataError, match="different lengths"):
        PrivateTable.load(source({"x": CLAMP, "y": CLAMP}), {"x": [1], "y": [1, 2]})


Rows = list[Mapping[str, Cell]]


@unhurried
@given(
    table=st.lists(rows, max_size=12), person=rows, place=st.integers(0, 12), said=st.lists(predicates, max_size=5)
)
def test_additional_row_moves_each_count_by_at_most_one(
    table: Rows,
    person: Mapping[str, Cell],
    place: int,
    said: list[PredicateCase],
) -> None:
    texts = [part.text for part in said if part.text.count("(") < 14]
    parsed = [parse(text, ATTRIBUTES) for text in ["TRUE", *texts]]
    without = PrivateTable.load(source(), columns(table)).counts(parsed)
    having = PrivateTable.load(source(), columns([*table[:place], person, *table[place:]])).counts(parsed)
    assert set((having - without).tolist()) <= {0, 1}


text_cells = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(
        [
            "a",
            "b",
            "?",
            "1",
            "2",
            "",
            "1.0",
            "-1",
            "99",
            "NULL",
            "nan",
            '"',
            "'",
            '"a',
            'a"b',
            "a\nb",
            "a,b",
            "\r",
            "1\r\n2",
        ]
    ),
)
WIDE: dict[str, Domain] = {"number": CLAMP, "category": OPEN, "bin": BINS}


@unhurried
@given(table=st.lists(st.tuples(text_cells, text_cells, text_cells), max_size=8), place=st.integers(0, 7))
def test_csv_row_is_read_independently_of_other_rows(
    table: list[tuple[str, str, str]],
    place: int,
) -> None:
    def load(some: list[tuple[str, str, str]]) -> list[tuple[int, ...]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([tuple(WIDE), *some])
            private = PrivateTable.load(source(WIDE, path=str(path))).private_codes
            return list(zip(*(private[name].tolist() for name in WIDE), strict=True))

    everyone = load(table)
    one_by_one = [row for person in table for row in load([person])]
    assert everyone == one_by_one
    assert load(table[:place]) + load(table[place:]) == everyone
