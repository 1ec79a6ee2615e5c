"""Writes small Iceberg tables with pyiceberg, and changes their metadata in ways that pyiceberg does not offer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.typedef import Record


class IcebergCatalog:
    """A catalog in a SQLite file, with its tables below the same folder."""

    def __init__(self, folder: Path) -> None:
        self._catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        self._catalog.create_namespace("clinic")

    def create(self, cells: pl.DataFrame, **options: Any) -> Any:
        """Create the table ``visits`` with these rows."""
        table = self._catalog.create_table("clinic.visits", cells.to_arrow().schema, **options)
        table.append(cells.to_arrow())
        return table


def metadata_of(table: Any) -> Path:
    """Return the path of the metadata file of a table's newest version."""
    return Path(str(table.refresh().metadata_location).removeprefix("file://"))


def change_metadata(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change a metadata file."""
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    return path


class _DeletionsWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_positions(
    table: Any,
    positions: Mapping[str, Sequence[int]],
    content: DataFileContent = DataFileContent.POSITION_DELETES,
) -> None:
    """Add a delete file to the newest snapshot: the positions of deleted rows by data file."""
    io, metadata, snapshot = table.io, table.metadata, table.current_snapshot()
    deletions = Path(metadata.location.removeprefix("file://")) / "data" / "deletions.parquet"
    rows = [(path, position) for path, places in positions.items() for position in places]
    pl.DataFrame(rows, schema={"file_path": pl.String, "pos": pl.Int64}, orient="row").write_parquet(deletions)
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot.snapshot_id,
        data_file=DataFile.from_args(
            content=content,
            file_path=f"file://{deletions}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(rows),
            file_size_in_bytes=deletions.stat().st_size,
            equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
        ),
    )
    output = io.new_output(f"{metadata.location}/metadata/deletions.avro")
    writer = _DeletionsWriter(metadata.spec(), metadata.schema(), output, snapshot.snapshot_id, "null")
    with writer:
        writer.add_entry(entry)
    manifests = [*snapshot.manifests(io), writer.to_manifest_file()]
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with write_manifest_list(
        2,
        io.new_output(snapshot.manifest_list),
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        "null",
    ) as written:
        written.add_manifests(manifests)
