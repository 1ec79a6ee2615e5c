"""Only the rows of the Iceberg table's version at the path are read, regardless of what its metadata says."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import LongType

from schemas import Categories, Domain, Integers
from stream.tables.readers.source_parts import open_table_parts
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.store import TableStore
from tests.unit.tables.readers.guarded import cause, rows_of
from tests.unit.tables.readers.iceberg_tables import IcebergCatalog, change_metadata, delete_positions, metadata_of
from tests.unit.tables.small import KEY, source

pytestmark = pytest.mark.usefixtures("forked_readers")

ATTRIBUTES: dict[str, Domain] = {
    "x": Integers(minimum=0, maximum=9),
    "ward": Categories(values=("A", "B", "none"), other="none"),
}
FIRST = pl.DataFrame({"x": [1, 2, 3], "ward": ["A", "B", None]})
SECOND = pl.DataFrame({"x": [4], "ward": ["A"]})
ROWS = [(1, 0), (2, 1), (3, 2)]
declared = partial(source, ATTRIBUTES)


@pytest.fixture
def catalog(tmp_path: Path) -> IcebergCatalog:
    return IcebergCatalog(tmp_path)


@pytest.fixture
def visits(catalog: IcebergCatalog) -> Any:
    return catalog.create(FIRST)


def read(path: Path, *roots: Path) -> list[tuple[int, ...]]:
    """Read the rows of a metadata file like services."""
    reader = GuardedReader(ReadingLimits(roots or (path.parents[1],), 8 << 20, 1 << 30, 120.0))
    return sorted(rows_of(reader(declared(path))))


def refusal(path: Path, *roots: Path) -> str:
    return cause(lambda: read(path, *roots))


def data_paths(table: Any) -> list[str]:
    return [task.file.file_path for task in table.refresh().scan().plan_files()]


def test_iceberg_metadata_file_names_one_version(visits: Any) -> None:
    """Later appends and deletions change neither the rows nor the fingerprint of an earlier version."""
    first = metadata_of(visits)
    assert read(first) == ROWS
    registered = TableStore(KEY).fingerprint(declared(first))
    visits.append(SECOND.to_arrow())
    second = metadata_of(visits)
    visits.delete("x = 1")
    assert read(second) == [*ROWS, (4, 0)]
    assert read(metadata_of(visits)) == [*ROWS[1:], (4, 0)]
    assert read(first) == ROWS
    assert TableStore(KEY).fingerprint(declared(first)) == registered


def test_iceberg_table_may_be_copied(visits: Any, tmp_path: Path) -> None:
    """Paths in the metadata are those of the folder where the table was written."""
    copied = tmp_path / "copied"
    first = metadata_of(visits)
    shutil.copytree(first.parents[1], copied)
    shutil.rmtree(first.parents[1])
    assert read(copied / "metadata" / first.name) == ROWS


def test_iceberg_column_is_missing_in_earlier_files(catalog: IcebergCatalog) -> None:
    table = catalog.create(FIRST.select("x"))
    with table.update_schema() as update:
        update.union_by_name(FIRST.to_arrow().schema)
    table.append(SECOND.to_arrow())
    assert read(metadata_of(table)) == [(1, 2), (2, 2), (3, 2), (4, 0)]


def test_iceberg_table_with_renamed_columns_is_refused(visits: Any) -> None:
    """Columns are read by name, and an earlier file has the earlier name."""
    with visits.update_schema() as update:
        update.rename_column("ward", "unit")
    with visits.update_schema() as update:
        update.add_column("ward", LongType())
    message = (
        "an Iceberg table with renamed or replaced columns, which is not supported; write its rows to a new table"
    )
    assert refusal(metadata_of(visits)) == message


def test_iceberg_rename_absent_from_metadata_is_detected(visits: Any) -> None:
    """The manifest counts values of a column that the file has under another name."""
    with visits.update_schema() as update:
        update.rename_column("ward", "unit")

    def forget(metadata: dict[str, Any]) -> None:
        metadata["schemas"] = [
            one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]
        ]

    path = change_metadata(metadata_of(visits), forget)
    [part] = open_table_parts(str(path))
    assert set(part.types) == {"x", "ward"}


def test_iceberg_partition_columns_are_read_from_files(catalog: IcebergCatalog) -> None:
    """A file without its partition column is refused, because its cells are not missing values."""
    table = catalog.create(FIRST.clear())
    with table.update_spec() as update:
        update.add_identity("ward")
    table.append(FIRST.to_arrow())
    assert read(metadata_of(table)) == ROWS
    [path] = [Path(one.removeprefix("file://")) for one in data_paths(table) if "ward=A" in one]
    pl.DataFrame({"x": [1]}).write_parquet(path)
    types = [set(part.types) for part in open_table_parts(str(metadata_of(table)))]
    assert min(types, key=len) == {"x"}


def test_iceberg_deleted_positions_are_skipped(visits: Any) -> None:
    visits.append(SECOND.to_arrow())
    [later, earlier] = data_paths(visits)
    delete_positions(visits, {earlier: [0, 2], later: []})
    assert read(metadata_of(visits)) == [(2, 1), (4, 0)]


def test_iceberg_deletion_beyond_last_row_is_refused(visits: Any) -> None:
    delete_positions(visits, {data_paths(visits)[0]: [3]})
    assert refusal(metadata_of(visits)) == "a position delete file names a row that its data file does not have"


def test_iceberg_equality_deletes_are_refused(visits: Any) -> None:
    delete_positions(visits, {data_paths(visits)[0]: [0]}, DataFileContent.EQUALITY_DELETES)
    assert refusal(metadata_of(visits)).startswith(
        "an Iceberg table with equality deletes, which are not supported"
    )


def test_iceberg_file_listed_twice_is_refused(visits: Any) -> None:
    """Otherwise one row of a person would count as two."""
    visits.append(SECOND.to_arrow())
    visits.add_files(data_paths(visits)[:1], check_duplicate_files=False)
    assert refusal(metadata_of(visits)) == "its manifests list a file twice"


def test_iceberg_files_outside_folder_are_not_read(visits: Any, tmp_path: Path) -> None:
    """Neither a path elsewhere, nor one with '..', nor a link leads out of the table's folder."""
    outside = tmp_path / "secret.parquet"
    pl.DataFrame({"x": [9], "ward": ["A"]}).write_parquet(outside)
    not_in_folder = "its metadata names a file that is not in its folder"
    first = metadata_of(visits)
    visits.add_files([f"file://{outside}"])
    assert refusal(metadata_of(visits), tmp_path) == not_in_folder
    moved = f"{visits.metadata.location}/../secret"
    path = change_metadata(metadata_of(visits), lambda metadata: metadata.update(location=moved))
    assert refusal(path, tmp_path) == not_in_folder
    [data] = [Path(one.removeprefix("file://")) for one in data_paths(visits) if "secret" not in one]
    outside.unlink()
    data.rename(outside)
    data.symlink_to(outside)
    assert refusal(first, tmp_path) == not_in_folder
    assert refusal(first) == "outside SOTTO_TABLE_ROOTS"


def test_iceberg_file_with_wrong_number_of_rows_is_refused(visits: Any) -> None:
    FIRST.head(2).write_parquet(data_paths(visits)[0].removeprefix("file://"))
    assert refusal(metadata_of(visits)) == "its log or manifest gives another number of rows for a file"


def test_iceberg_later_formats_are_refused(catalog: IcebergCatalog) -> None:
    table = catalog.create(FIRST, properties={"format-version": "2"})
    path = change_metadata(
        metadata_of(table), lambda metadata: metadata.update({"format-version": 3, "next-row-id": 0})
    )
    assert refusal(path) == "an Iceberg table of format 3, which is not supported; write it with format-version 2"


@pytest.mark.parametrize("suffix", [".metadata.json", ".avro"])
def test_iceberg_damaged_metadata_is_refused_without_quoting_it(visits: Any, suffix: str) -> None:
    path = metadata_of(visits)
    for damaged in path.parent.glob(f"*{suffix}"):
        damaged.write_bytes(damaged.read_bytes()[:-40] + b"secret" * 3)
    assert refusal(path).startswith("its Iceberg metadata cannot be read: ")
    assert "secret" not in refusal(path)


def test_iceberg_folder_is_refused_with_remedy(visits: Any) -> None:
    """Its data files include those of other versions."""
    folder = metadata_of(visits).parents[1]
    message = (
        "an Iceberg table; give the path of a metadata file, which names one version: metadata/….metadata.json"
    )
    for path in (f"{folder}/", f"{folder}/**/*.parquet"):
        reader = GuardedReader(ReadingLimits((folder,), 8 << 20, 1 << 30, 120.0))
        assert cause(partial(reader, declared(path))) == message
