"""CSV files are divided into rows at unquoted newlines, and no stray quote makes rows disappear."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Bins, Categories, Domain, Integers
from stream.tables.checks import check_table
from stream.tables.readers import csv_files
from stream.tables.readers.csv_files import EXTRA_CELL_COLUMN, CsvFile
from stream.tables.rows import Rows, read_cells
from stream.tables.table_errors import UnreadableError
from tests.unit.tables.readers.guarded import cause, reader
from tests.unit.tables.small import source, unhurried

pytestmark = pytest.mark.usefixtures("forked_readers")

ATTRIBUTES: dict[str, Domain] = {
    "age": Integers(minimum=0, maximum=120),
    "sex": Categories(values=("F", "M", "?"), other="?"),
}
QUOTES = "put cells with quotes, commas or newlines in quotes"

cells = st.text(alphabet='ab,"\n é', max_size=4)
tables = st.lists(st.lists(cells, min_size=2, max_size=4), max_size=8)


def csv_file(content: bytes) -> CsvFile:
    return CsvFile(lambda: io.BytesIO(content))


def cells_of(content: bytes, names: list[str]) -> list[tuple[str, ...]]:
    return [row for batch in csv_file(content).batches(names, 3) for row in batch.rows()]


def write_csv(table: list[list[str]], end: str = "\n") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows([["one", "two", "three"], *table])
    return text.getvalue().encode()


@unhurried
@given(table=tables, block=st.integers(1, 40), end=st.sampled_from(["\n", "\r\n"]), zipped=st.booleans())
def test_csv_file_reads_cells_of_csv_writer(table: list[list[str]], block: int, end: str, zipped: bool) -> None:
    """All cells of a CSV writer are read, regardless of block boundaries, also from gzip and from each column alone."""
    content = write_csv(table, end)
    expected = [(*row, "", "")[:4] for row in table]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_BYTES", block)
        patch.setattr(csv_files, "_HEADER_BYTES", max(4, block))
        content = gzip.compress(content) if zipped else content
        assert cells_of(content, ["one", "two", "three", EXTRA_CELL_COLUMN]) == expected
        assert cells_of(content, ["two"]) == [(row[1],) for row in table]


@unhurried
@given(text=st.text(alphabet='a,"\n', max_size=16), block=st.integers(1, 20))
def test_csv_file_never_loses_a_row(text: str, block: int) -> None:
    """A file is refused or has a row per unquoted newline; the choice of columns does not decide which."""
    content = f"one,two\n{text}".encode()
    rows = [row or [""] for row in csv.reader(io.StringIO(f"{text}", newline=""))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_BYTES", block)
        found: list[list[str] | None] = []
        for names in (["one"], ["two"], ["one", "two", EXTRA_CELL_COLUMN]):
            try:
                found.append([row[0] for row in cells_of(content, names)])
            except UnreadableError:
                found.append(None)
    if found[0] is None:
        assert found == [None, None, None]
        assert '"' in text
    else:
        assert [len(one or []) for one in found] == [len(rows)] * 3
        assert found[0] == found[2] == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('age,sex,note\n7,F,27"\n8,M,24"\n9,F,x\n', 2),
        ('age,sex,size"\n1,F,2\n2,M,3\n', 1),
        ('age,sex,note\n1,F,"a"b\n2,M,c"\n', 2),
        ('age,sex,note\n1,F,x\n2,M,"open\n3,F,y\n', 3),
        ('age,sex,note\n1,F, "x"\n', 2),
        ('age,sex,"note\n1,F,x\n', 1),
    ],
)
def test_stray_quote_is_refused_by_every_reader(tmp_path: Path, content: str, line: int) -> None:
    """Services, simulate and check all refuse a stray quote in an undeclared column or in a name."""
    path = tmp_path / "people.csv"
    path.write_text(content)
    declared = source(ATTRIBUTES, path=str(path))
    readers: list[Callable[[], object]] = [
        lambda: Rows.load(declared),
        lambda: read_cells(declared, str(path)),
        lambda: check_table(declared),
    ]
    for read in readers:
        with pytest.raises(UnreadableError) as refused:
            read()
        assert QUOTES in refused.value.cause
        assert refused.value.where == f"line {line}"
    assert QUOTES in cause(lambda: reader(tmp_path)(declared))


@pytest.mark.parametrize("kind", [pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Boolean, pl.String], ids=str)
def test_files_of_different_types_are_read_alike(tmp_path: Path, kind: type[pl.DataType]) -> None:
    """From a folder of CSV or of Parquet files with any readable types, simulate gets the codes and people that services read."""
    (tmp_path / "a.csv").write_text("age,sex,share,who\n1,1,0.7,1\n2.0,F,1,NaN\n,true,,\n")
    (tmp_path / "b.csv").write_text("age,sex,share,who\n0.7,M,0.69,1.0\n")
    cells = pl.Series([1.0, 0.0, None, 1.0]).cast(kind)
    pl.DataFrame({"age": cells, "sex": cells, "share": cells, "who": cells}).write_parquet(tmp_path / "c.parquet")
    if cells.dtype.is_float():
        cells = pl.Series([0.7, float("nan"), float("inf"), -1e30]).cast(kind)
        pl.DataFrame({"age": cells, "sex": cells, "share": cells, "who": cells}).write_parquet(
            tmp_path / "d.parquet"
        )
    attributes: dict[str, Domain] = {
        "age": Integers(minimum=0, maximum=2),
        "sex": Categories(values=("F", "M", "1", "0", "true", "0.7", "?"), other="?"),
        "share": Bins(edges=(0.0, 0.7, 0.9, 2.0)),
    }
    for person in (None, "who"):
        declared = source(attributes, path=f"{tmp_path}/").model_copy(
            update={"person": person, "contribution": person and 1}
        )
        loaded = Rows.load(declared)
        read = Rows.load(declared, read_cells(declared, f"{tmp_path}/"))
        assert read.file_row_count == loaded.file_row_count
        for name, codes in loaded.private_codes.items():
            assert read.private_codes[name].tolist() == codes.tolist()
        if person:
            assert read.people is not None
            assert loaded.people is not None
            assert read.people.private_numbers.tolist() == loaded.people.private_numbers.tolist()
            assert read.people.private_names.tolist() == loaded.people.private_names.tolist()


def test_csv_file_with_few_stray_quotes_is_refused_entirely(tmp_path: Path) -> None:
    """If one row in a hundred has an inch mark, no row is read until the marks are quoted, and then all rows are read."""
    path = tmp_path / "people.csv"
    rows = [f"{number % 90},F,{number}" for number in range(2000)]
    marked = [row + '"' if number % 100 == 0 else row for number, row in enumerate(rows)]
    path.write_text("\n".join(["age,sex,size", *marked, ""]))
    with pytest.raises(UnreadableError):
        Rows.load(source(ATTRIBUTES, path=str(path)))
    quoted = [f'{row[: row.rindex(",")]},"{number}"""' for number, row in enumerate(rows)]
    path.write_text("\n".join(["age,sex,size", *quoted, ""]))
    assert Rows.load(source(ATTRIBUTES, path=str(path))).file_row_count == 2000


def test_names_in_quotes_are_unquoted(tmp_path: Path) -> None:
    """Each doubled quote in a quoted name is one quote, as in cells, and the name may have commas and newlines."""
    path = tmp_path / "people.csv"
    path.write_text('"size ("")","a,b","c\nd"\n1,2,3\n')
    domain = Integers(minimum=0, maximum=9)
    rows = Rows.load(source(dict.fromkeys(('size (")', "a,b", "c\nd"), domain), path=str(path)))
    assert [column.tolist() for column in rows.private_codes.values()] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("age,sex\n1,F\n".encode("utf-16"), "it is UTF-16; write it as UTF-8"),
        ("age,sex\n1,F\n".encode("utf-16-be"), "NUL bytes; write the file as UTF-8"),
        (b"age,sex\r1,F\r2,M\r", "its lines end in CR alone; end them with LF or CR LF"),
        (b"PAR1....PAR1", "it is a Parquet file; give it a name that ends in .parquet"),
        (b"PK\x03\x04....", "it is a workbook or another zip file; write it as CSV"),
        (gzip.compress("age,sex\n1,F\n".encode("utf-16"), mtime=0), "it is UTF-16; write it as UTF-8"),
    ],
)
def test_csv_error_names_kind_of_other_file(tmp_path: Path, content: bytes, said: str) -> None:
    """The errors for UTF-16, lines that end in CR alone, Parquet and workbooks called .csv name these kinds."""
    path = tmp_path / "people.csv"
    path.write_bytes(content)
    declared = source(ATTRIBUTES, path=str(path))
    for read in (Rows.load, check_table):
        with pytest.raises(UnreadableError) as refused:
            read(declared)
        assert said in str(refused.value)


def test_column_may_have_suffix_of_repeated_column(tmp_path: Path) -> None:
    """A real column ``age_duplicated_0`` is a separate column, even if two columns are called ``age``."""
    path = tmp_path / "people.csv"
    domain = Integers(minimum=0, maximum=9)
    declared = source({"age": domain, "age_duplicated_0": domain}, path=str(path))
    for text, expected, repeated in (
        ("age,age_duplicated_0\n1,2\n", [[1], [2]], ()),
        ("age,age,age_duplicated_0\n1,2,3\n", [[1], [3]], ("age",)),
    ):
        path.write_text(text)
        assert [column.tolist() for column in Rows.load(declared).private_codes.values()] == expected
        report = check_table(declared)
        assert report.columns.repeated == repeated
        assert any("several columns are called 'age'" in line for line in report.suggestions) == bool(repeated)


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_gzip_that_ends_early_is_refused(cut: int) -> None:
    """A gzipped file without its end is refused; several members followed by zeros are one file."""
    content = write_csv([["a", "b", "c"]] * 9)
    with pytest.raises(UnreadableError, match="path: no table can be read there: its gzip format"):
        cells_of(gzip.compress(content)[:-cut], ["one"])
    several = gzip.compress(content) + gzip.compress(b"x,y,z\n") + bytes(64)
    assert cells_of(several, ["one"]) == [("a",)] * 9 + [("x",)]
