"""Tables of several files: the choice of files, their order, and folders that give the value of a column."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from schemas import Categories, Domain, Integers
from stream.tables.checks import check_table
from stream.tables.readers import table_files as files_module
from stream.tables.readers import table_parts as parts_module
from stream.tables.readers.source_parts import open_table_parts, stamp_of_files
from stream.tables.readers.table_files import TableFile, local_files
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import EncodedBatch, GrowingColumn, RowEncoder, Rows
from stream.tables.store import TableStore
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.readers.guarded import cause, rows_of
from tests.unit.tables.small import KEY, source

pytestmark = pytest.mark.usefixtures("forked_readers")

ATTRIBUTES: dict[str, Domain] = {
    "x": Integers(minimum=0, maximum=9),
    "year": Integers(minimum=2020, maximum=2029),
    "ward": Categories(values=("A/B", "C", "none"), other="none"),
}
declared = partial(source, ATTRIBUTES)


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """A table of three files in folders that give year and ward, with other files that writers leave there."""
    folder = tmp_path / "visits"
    for name, cells in {
        "year=2024/ward=C/b.parquet": [5],
        "year=2023/ward=A%2FB/a.parquet": [1, 2],
        "year=2023/ward=__HIVE_DEFAULT_PARTITION__/a.parquet": [3, 4],
    }.items():
        (folder / name).parent.mkdir(parents=True)
        pl.DataFrame({"x": cells}).write_parquet(folder / name)
    (folder / "_SUCCESS").write_text("")
    (folder / "year=2023" / ".part.crc").write_text("")
    return folder


def reader(*roots: Path) -> GuardedReader:
    return GuardedReader(ReadingLimits(roots, 8 << 20, 1 << 30, 60.0))


@pytest.mark.parametrize("path", ["visits/", "visits/**/*.parquet", "visits/year=*/", "visits/*/ward=*/?.parquet"])
def test_folder_files_are_read_in_order_with_columns_of_folders(visits: Path, path: str) -> None:
    path = path.replace("?", "*")
    rows = reader(visits.parent)(declared(f"{visits.parent}/{path}"))
    assert rows_of(rows) == [(1, 3, 0), (2, 3, 0), (3, 3, 2), (4, 3, 2), (5, 4, 1)]
    assert rows.file_row_count == 5


def test_wildcard_matches_within_one_name(visits: Path) -> None:
    assert len(local_files(f"{visits}/*=2023/*/*.parquet")) == 2
    assert len(local_files(f"{visits}/**/b.*")) == 1
    assert len(local_files(f"{visits}/**/**/**/*")) == 3
    for nothing in ("*.parquet", "*/*.parquet", "year=202?/**/a.parquet", "year=202[34]/**/*"):
        with pytest.raises(UnreadableError):
            local_files(f"{visits}/{nothing}")


def test_exact_file_name_is_not_a_pattern(tmp_path: Path) -> None:
    for name in ("a*.csv", "ab.csv"):
        (tmp_path / name).write_text("x\n1\n")
    assert [part.location for part in local_files(f"{tmp_path}/a*.csv")] == [f"{tmp_path}/a*.csv"]


def test_folder_may_mix_csv_and_parquet_with_all_columns(visits: Path) -> None:
    (visits / "year=2025").mkdir()
    (visits / "year=2025" / "c.csv").write_text("y,x,ward\n0,6,C\n\n0,7,D\n")
    rows = reader(visits.parent)(declared(f"{visits}/"))
    assert rows_of(rows)[5:] == [(6, 5, 1), (7, 5, 2)]
    assert rows.file_row_count == 8
    (visits / "year=2025" / "d.csv").write_text("y\n0\n")
    with pytest.raises(TableDataError, match="no column 'x'"):
        reader(visits.parent)(declared(f"{visits}/"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("columns", [["ward"], ["ward", "x"], ["x", "ward"], ["x", "ward", "y"]])
def test_folder_cell_overrides_column_of_same_name(tmp_path: Path, kind: str, columns: list[str]) -> None:
    folder = tmp_path / "ward=C"
    folder.mkdir()
    frame = pl.DataFrame({"x": [1, 2, 3], "ward": ["A/B", None, "D"], "y": [0, 0, 0]}).select(columns)
    frame.write_csv(folder / "a.csv") if kind == "csv" else frame.write_parquet(folder / "a.parquet")
    only = {name: ATTRIBUTES[name] for name in columns if name != "y"}
    read = rows_of(reader(tmp_path)(source(only, f"{tmp_path}/")))
    assert read == [tuple({"x": x, "ward": 1}[name] for name in only) for x in (1, 2, 3)]
    report = check_table(source(only, f"{tmp_path}/"))
    assert (report.rows, report.changed, report.left_out) == (3, 0, 0)
    assert report.columns.found == tuple(columns)


def test_file_without_columns_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ward=C"
    folder.mkdir()
    pl.DataFrame(height=3).write_parquet(folder / "a.parquet")
    only = {"ward": ATTRIBUTES["ward"]}
    assert cause(lambda: reader(tmp_path)(source(only, f"{tmp_path}/"))) == "no columns"


def test_folder_with_other_files_or_delta_table_is_refused(visits: Path) -> None:
    read = reader(visits.parent)
    (visits / "notes.txt").write_text("")
    assert cause(lambda: read(declared(f"{visits}/"))) == "not a .csv, .csv.gz or .parquet file"
    (visits / "notes.txt").unlink()
    (visits / "year=2023" / "_delta_log").mkdir()
    (visits / "year=2023" / "_delta_log" / "0.json").write_text("")
    assert cause(lambda: read(declared(f"{visits}/"))).startswith("some of the files belong to a Delta table")
    assert cause(lambda: read(declared(f"{visits}/*/*/*.parquet"))).startswith(
        "some of the files belong to a Delta table"
    )
    assert len(read(source({"x": ATTRIBUTES["x"]}, f"{visits}/year=2024/")).private_codes["x"]) == 1


def test_pattern_and_link_cannot_leave_roots(visits: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    pl.DataFrame({"x": [9]}).write_parquet(secret / "a.parquet")
    only: dict[str, Domain] = {"x": ATTRIBUTES["x"]}
    read = reader(visits)
    outside = "outside SOTTO_TABLE_ROOTS"
    for path in (
        f"{secret}/",
        f"{visits}/../secret/",
        f"{visits}/../*/a.parquet",
        f"{tmp_path}/**/a.parquet",
        f"{tmp_path}/vis*/year=2024/ward=C/b.parquet",
        "/",
        "/**/*.csv",
    ):
        assert cause(partial(read, source(only, path))) == outside
    assert cause(lambda: read(source(only, f"{visits}/*/../../secret/a.parquet"))) == "missing"
    (visits / "in.parquet").symlink_to(secret / "a.parquet")
    assert cause(lambda: read(source(only, f"{visits}/"))) == outside
    assert cause(lambda: read(source(only, f"{visits}/*.parquet"))) == outside
    (visits / "in.parquet").unlink()
    (visits / "folder").symlink_to(secret)
    assert cause(lambda: read(source(only, f"{visits}/folder/"))) == outside
    assert read(source(only, f"{visits}/")).file_row_count == 5


def test_stamp_lists_no_files_outside_roots(visits: Path) -> None:
    assert reader(visits).stamp(declared("/**/*.csv")) == ("/**/*.csv",)
    assert len(reader(visits).stamp(declared(f"{visits}/"))) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"location": "s3://visits/b.parquet"},
        {"stamp": ("e", 2)},
        {"constant_columns": (("ward", "B"),)},
        {"constant_columns": (("ward", None),)},
        {"columns": ("x",)},
        {"rows": 3},
        {"kept_rows": b"\1\0"},
        {"kept_rows": b"\1\1"},
    ],
)
def test_stamp_changes_with_every_field_of_file(change: dict[str, Any]) -> None:
    part = TableFile("s3://visits/a.parquet", 9, ("e", 1), (("ward", "A"),), (), 2)
    more = TableFile("s3://visits/z.parquet", 9, ("e", 1))
    [*_, digest] = stamp_of_files("s3://visits/", [part, more])
    assert stamp_of_files("s3://visits/", [replace(part, **change), more]) != ("s3://visits/", digest)


def test_stamp_is_short_for_many_files() -> None:
    many = [
        TableFile(f"s3://visits/{'folder/' * 20}{number}.parquet", 9, ("e", 1))
        for number in range(files_module.MAX_LISTED_FILES)
    ]
    assert len(json.dumps(stamp_of_files("s3://visits/", many))) < 100


def test_empty_folders_count_toward_listing_limit(visits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Five folders and five files, of which three are the table's.
    monkeypatch.setattr(files_module, "MAX_LISTED_FILES", 10)
    assert len(local_files(f"{visits}/")) == 3
    (visits / "empty").mkdir()
    with pytest.raises(UnreadableError) as refused:
        local_files(f"{visits}/")
    assert refused.value.cause == "more than 10 files and folders below its folder"


def test_table_that_changes_while_read_is_refused(visits: Path) -> None:
    parts = open_table_parts(f"{visits}/")
    next(parts)
    pl.DataFrame({"x": [8]}).write_parquet(visits / "year=2024/ward=C/b.parquet")
    with pytest.raises(UnreadableError) as refused:
        list(parts)
    assert refused.value.cause == "changed while it was read"


def test_fingerprint_changes_with_files_but_not_with_folder_name(
    visits: Path,
) -> None:
    store = TableStore(KEY)
    registered = store.fingerprint(declared(f"{visits}/"))
    assert TableStore(KEY).get(declared(f"{visits}/"), registered).private_row_count == 5
    moved = visits.rename(visits.parent / "moved")
    assert store.fingerprint(declared(f"{moved}/")) == registered
    extra = moved / "year=2024/ward=C/c.parquet"
    pl.DataFrame({"x": [0]}).write_parquet(extra)
    assert store.fingerprint(declared(f"{moved}/")) != registered
    with pytest.raises(TableDataError, match="differs"):
        TableStore(KEY).get(declared(f"{moved}/"), registered)
    extra.unlink()
    assert store.fingerprint(declared(f"{moved}/")) == registered


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_reader_keeps_one_batch_of_cells_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / f"table.{kind}"
    frame = pl.DataFrame({"x": [number % 10 for number in range(1000)]})
    if kind == "parquet":
        frame.write_parquet(path)
    else:
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    heights: list[int] = []
    encode = RowEncoder.encode

    def record_height(encoder: RowEncoder, cells: pl.DataFrame) -> EncodedBatch:
        heights.append(cells.height)
        return encode(encoder, cells)

    def refuse_whole_read(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(parts_module, "BATCH_ROWS", 7)
    monkeypatch.setattr(RowEncoder, "encode", record_height)
    monkeypatch.setattr(pl.LazyFrame, "collect", refuse_whole_read)
    rows = Rows.load(source({"x": ATTRIBUTES["x"]}, path))
    assert rows.private_codes["x"].tolist() == frame["x"].to_list()
    assert max(heights) <= 7
    assert sum(heights) == 1000


def test_growing_column_concatenates_its_parts() -> None:
    column, parts = (
        GrowingColumn(np.dtype("<u2")),
        [np.arange(size, dtype="<u2") for size in (0, 3, 9000, 1, 4096)],
    )
    assert len(GrowingColumn(np.dtype("<u2")).items()) == 0
    for part in parts:
        column.extend(part)
    found = column.items()
    assert found.dtype == np.dtype("<u2")
    assert np.array_equal(found, np.concatenate(parts))


def test_malformed_address_is_refused_without_quoting_it() -> None:
    with pytest.raises(TableDataError, match=r"^path: no user and no password") as refused:
        check_table(declared("unused.csv"), "postgresql://reader:hunter2@db/clinic/public/visits")
    assert "hunter2" not in str(refused.value)


def test_check_reads_folder_like_services(visits: Path) -> None:
    report = check_table(declared(f"{visits}/"))
    assert (report.rows, report.changed, report.left_out) == (5, 2, 0)
    assert report.columns.found == ("x", "year", "ward")
