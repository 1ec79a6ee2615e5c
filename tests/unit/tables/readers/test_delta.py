"""Only the rows of a Delta table's newest version are read, regardless of its files' places and of its log's form."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from schemas import Categories, Domain, Integers
from stream.tables.checks import check_table
from stream.tables.readers import reading_process
from stream.tables.readers.lake_files import newest_files
from stream.tables.readers.source_parts import open_table_parts
from stream.tables.readers.table_files import TableFile, local_files
from stream.tables.readers.table_parts import BATCH_ROWS, FilePart
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.store import TableStore
from stream.tables.table_errors import UnreadableError
from tests.unit.tables.readers.delta_logs import (
    INLINE,
    deleting,
    rewrite,
    vector_in,
    with_features,
    write_vector,
    z85,
)
from tests.unit.tables.readers.guarded import cause, rows_of
from tests.unit.tables.small import KEY, source

pytestmark = pytest.mark.usefixtures("forked_readers")

ATTRIBUTES: dict[str, Domain] = {
    "x": Integers(minimum=0, maximum=9),
    "year": Integers(minimum=2020, maximum=2029),
    "ward": Categories(values=("A/B", "C d", "none"), other="none"),
}
FIRST = {"x": [5, 1, 2, 3], "year": [2024, 2023, 2023, 2023], "ward": ["C d", "A/B", "A/B", None]}
ROWS = [(1, 3, 0), (2, 3, 0), (3, 3, 2), (5, 4, 1)]
declared = partial(source, ATTRIBUTES)


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Return a table with a file per partition, and a file of an earlier version."""
    folder = tmp_path / "visits"
    stale = pl.DataFrame({"x": [9], "year": [2029], "ward": ["A/B"]})
    write_deltalake(folder, stale, partition_by=["year", "ward"])
    write_deltalake(folder, pl.DataFrame(FIRST), mode="overwrite")
    return folder


def reader(*roots: Path, reading: int = 1 << 30) -> GuardedReader:
    return GuardedReader(ReadingLimits(roots, 8 << 20, reading, 120.0))


def test_delta_table_reads_newest_version_with_cells_of_log(visits: Path) -> None:
    assert len(list(visits.rglob("*.parquet"))) == 4
    rows = reader(visits.parent)(declared(f"{visits}/"))
    assert sorted(rows_of(rows)) == ROWS
    assert rows.file_row_count == 4
    DeltaTable(visits).delete("x = 1")
    assert sorted(rows_of(reader(visits.parent)(declared(f"{visits}/")))) == ROWS[1:]


def test_delta_cells_come_from_log_instead_of_folder_names(visits: Path) -> None:
    renamed = "renamed.parquet"

    def change(entry: dict[str, Any]) -> None:
        if (added := entry.get("add")) and added["partitionValues"]["year"] == "2024":
            (visits / added["path"].replace("%25", "%")).rename(visits / renamed)
            added["path"] = renamed

    rewrite(visits, change)
    assert (visits / renamed).exists()
    assert sorted(rows_of(reader(visits.parent)(declared(f"{visits}/")))) == ROWS


@pytest.mark.parametrize(
    ("kind", "logged", "cell"),
    [
        (pl.Float64(), "1", "1"),
        (pl.Float64(), "1.0", "1"),
        (pl.Float64(), "2.5", "2.5"),
        (pl.Int64(), "1", "1"),
        (pl.Date(), "2024-01-31", "2024-01-31"),
        (pl.Datetime("us", "UTC"), "2024-01-31 12:00:00.000000", "2024-01-31 12:00:00.000000"),
        (pl.Datetime("us", "UTC"), "2024-01-31T12:00:00Z", "2024-01-31 12:00:00.000000"),
    ],
)
def test_delta_partition_cell_has_one_text_form(tmp_path: Path, kind: pl.DataType, logged: str, cell: str) -> None:
    folder = tmp_path / "visits"
    cells = pl.Series("ward", [0]).cast(kind)
    write_deltalake(folder, pl.DataFrame([cells, pl.Series("x", [1])]), partition_by=["ward"])
    rewrite(folder, lambda entry: entry.get("add", {}).update(partitionValues={"ward": logged}))
    attributes = {"x": ATTRIBUTES["x"], "ward": Categories(values=("none", cell), other="none")}
    assert rows_of(reader(tmp_path)(source(attributes, f"{folder}/"))) == [(1, 1)]


def test_delta_column_is_missing_in_earlier_files(tmp_path: Path) -> None:
    folder = tmp_path / "visits"
    write_deltalake(folder, pl.DataFrame({"x": [1, 2]}))
    write_deltalake(folder, pl.DataFrame({"x": [3], "ward": ["A/B"]}), mode="append", schema_mode="merge")
    only = {name: ATTRIBUTES[name] for name in ("x", "ward")}
    assert sorted(rows_of(reader(tmp_path)(source(only, f"{folder}/")))) == [(1, 2), (2, 2), (3, 0)]


def test_delta_versions_with_equal_rows_have_equal_fingerprint(visits: Path) -> None:
    store = TableStore(KEY)
    registered = store.fingerprint(declared(f"{visits}/"))
    DeltaTable(visits).create_checkpoint()
    assert TableStore(KEY).fingerprint(declared(f"{visits}/")) == registered
    write_deltalake(visits, pl.DataFrame({"x": [9], "year": [2020], "ward": ["C d"]}), mode="append")
    assert TableStore(KEY).fingerprint(declared(f"{visits}/")) != registered
    assert store.fingerprint(declared(f"{visits}/")) != registered


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/secret.parquet", "file:///secret.parquet", "_delta_log/a.parquet"]
)
def test_delta_log_with_path_outside_is_refused(visits: Path, path: str) -> None:
    for place in (visits.parent / "secret.parquet", visits / "_delta_log" / "a.parquet"):
        pl.DataFrame({"x": [9]}).write_parquet(place)
    rewrite(visits, lambda entry: entry.get("add", {}).update(path=path))
    found = cause(lambda: reader(visits)(declared(f"{visits}/")))
    assert found == "its log names a file that is not in its folder"


def test_delta_link_out_of_folder_is_refused(visits: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    file = next(visits.glob("year=2024/*/*.parquet"))
    file.rename(secret / file.name)
    file.symlink_to(secret / file.name)
    assert cause(lambda: reader(visits)(declared(f"{visits}/"))) == "outside SOTTO_TABLE_ROOTS"
    found = cause(lambda: reader(visits, secret)(declared(f"{visits}/")))
    assert found == "its log names a file that is not in its folder"


@pytest.mark.parametrize("whole", [True, False])
def test_delta_log_that_is_link_is_refused(visits: Path, tmp_path: Path, whole: bool) -> None:
    log, secret = visits / "_delta_log", tmp_path / "secret"
    secret.mkdir()
    for path in [log] if whole else [*log.iterdir()]:
        path.rename(secret / path.name)
        path.symlink_to(secret / path.name)
    read = partial(reader(visits), declared(f"{visits}/"))
    assert cause(read) == (
        "its _delta_log is not in the table's folder; copy the whole table"
        if whole
        else "outside SOTTO_TABLE_ROOTS"
    )


def test_delta_table_with_unknown_feature_is_refused(visits: Path) -> None:
    read = partial(reader(visits.parent), declared(f"{visits}/"))
    rewrite(visits, with_features("timestampNtz"))
    assert sorted(rows_of(read())) == ROWS
    rewrite(visits, lambda entry: entry.get("protocol", {}).update(readerFeatures=["unheard-of"]))
    assert cause(read).startswith("its Delta log cannot be read")


def test_delta_table_with_mapped_columns_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "visits"
    write_deltalake(folder, pl.DataFrame({"x": [1]}))

    def change(entry: dict[str, Any]) -> None:
        with_features("columnMapping")(entry)
        if "metaData" in entry:
            entry["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
            fields = json.loads(entry["metaData"]["schemaString"])
            fields["fields"][0]["metadata"] = {
                "delta.columnMapping.id": 1,
                "delta.columnMapping.physicalName": "y",
            }
            entry["metaData"]["schemaString"] = json.dumps(fields)

    rewrite(folder, change)
    commit = folder / "_delta_log" / "00000000000000000000.json"
    commit.write_text(
        "\n".join(line for line in commit.read_text().splitlines() if '"minReaderVersion": 1' not in line)
    )
    found = cause(lambda: reader(tmp_path)(source({"x": ATTRIBUTES["x"]}, f"{folder}/")))
    assert "column mapping" in found


def test_delta_rows_deleted_in_place_are_not_read(visits: Path) -> None:
    before = TableStore(KEY).fingerprint(declared(f"{visits}/"))
    rewrite(visits, deleting(INLINE, where="2023"))
    rows = reader(visits.parent)(declared(f"{visits}/"))
    assert sorted(rows_of(rows)) == [row for row in ROWS if row not in {ROWS[0], ROWS[2]}]
    assert rows.file_row_count == 2
    assert TableStore(KEY).fingerprint(declared(f"{visits}/")) != before
    report = check_table(declared(f"{visits}/"))
    assert (report.rows, report.as_declared) == (2, 2)


def test_delta_deletion_vector_in_file_is_applied(visits: Path) -> None:
    name = UUID(bytes=bytes(range(16)))
    write_vector(visits / f"deletion_vector_{name}.bin")
    rewrite(visits, deleting(vector_in("u", z85(name.bytes)), where="2024"))
    assert sorted(rows_of(reader(visits.parent)(declared(f"{visits}/")))) == ROWS[:3]


@pytest.mark.skipif(not reading_process.landlock_version(), reason="takes Landlock")
def test_delta_deletion_vector_outside_is_not_opened(visits: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    write_vector(secret / "vector.bin")
    rewrite(visits, deleting(vector_in("p", (secret / "vector.bin").as_uri()), where="2024"))
    found = cause(lambda: reader(visits)(declared(f"{visits}/")))
    assert found.startswith("its Delta log cannot be read")
    assert sorted(rows_of(reader(visits, secret)(declared(f"{visits}/")))) == ROWS[:3]


@pytest.mark.parametrize("rows", [BATCH_ROWS - 1, BATCH_ROWS + 1, 3 * BATCH_ROWS])
def test_deleted_rows_are_independent_of_batches(tmp_path: Path, rows: int) -> None:
    file = tmp_path / "one.parquet"
    kept = np.random.default_rng(rows).integers(0, 2, rows, dtype=np.uint8)
    pl.DataFrame({"x": range(rows)}).write_parquet(file, row_group_size=10_000)
    (part,) = local_files(str(file))
    read = pl.concat(FilePart.open(replace(part, kept_rows=kept.tobytes())).batches(["x"]))
    assert read["x"].to_list() == np.flatnonzero(kept).tolist()


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("said", [1, 3])
def test_delta_log_with_wrong_number_of_rows_is_refused(visits: Path, said: int, deletes: bool) -> None:
    def change(entry: dict[str, Any]) -> None:
        if deletes:
            deleting(INLINE)(entry)
        if "add" in entry:
            entry["add"]["stats"] = json.dumps({"numRecords": said})

    rewrite(visits, change)
    found = cause(lambda: reader(visits.parent)(declared(f"{visits}/")))
    assert found == "its log or manifest gives another number of rows for a file"


def test_delta_log_without_number_of_rows_is_accepted(visits: Path) -> None:
    rewrite(visits, lambda entry: entry.get("add", {}).pop("stats", None))
    assert sorted(rows_of(reader(visits.parent)(declared(f"{visits}/")))) == ROWS


@pytest.mark.parametrize("path", ["../a.parquet", "./a.parquet", "year=2024//a.parquet"])
def test_delta_object_named_with_dots_is_refused(visits: Path, path: str) -> None:
    rewrite(visits, lambda entry: entry.get("add", {}).update(path=path))
    listed = {tuple(path.split("/")): TableFile("", 0, ())}
    with pytest.raises(UnreadableError) as refused:
        newest_files(str(visits), listed, {})
    assert refused.value.cause == "its log names a file that is not in its folder"


def test_delta_table_without_files_is_refused(visits: Path) -> None:
    DeltaTable(visits).delete()
    assert cause(lambda: reader(visits.parent)(declared(f"{visits}/"))) == "missing"


def test_delta_table_is_read_only_by_its_own_folder(visits: Path) -> None:
    read = reader(visits.parent)
    for path in (f"{visits.parent}/", f"{visits}/*/*/*.parquet", f"{visits}*/"):
        assert cause(partial(read, declared(path))).startswith("some of the files belong to a Delta table"), path


def test_delta_reading_limit_counts_current_files_only(visits: Path) -> None:
    with (visits / "stale.parquet").open("wb") as stale:
        stale.truncate(1 << 30)
    assert sorted(rows_of(reader(visits.parent, reading=1 << 29)(declared(f"{visits}/")))) == ROWS
    with pytest.raises(UnreadableError) as refused:
        list(open_table_parts(f"{visits}/", most_bytes=1000))
    assert refused.value.cause == "larger than SOTTO_TABLE_READING_BYTES"


def test_check_reads_delta_table(visits: Path) -> None:
    report = check_table(declared(f"{visits}/"))
    assert (report.rows, report.as_declared) == (4, 3)
