"""Finds the files of the version of an Iceberg table that a metadata file describes.

The package pyiceberg reads the metadata and the manifests (iceberg.apache.org/spec). The files are read like the files of
other tables, with these exceptions:

- Only files in the table's folder are read; the whole folder may have been moved or copied.
- If a file lacks a column, its cells are missing.
- Rows in position delete files are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from stream.optional_packages import import_or_missing, pl
from stream.tables.readers.table_files import (
    ICEBERG_METADATA,
    SPECIAL_NAMES,
    PathParts,
    TableFile,
    files_by_path,
    require_file_count,
    require_table_name,
)
from stream.tables.table_errors import UnreadableError

_LATEST_FORMAT: Final = 2
_NOT_IN_FOLDER: Final = "its metadata names a file that is not in its folder"

ReadBytes = Callable[[TableFile], bytes]


def local_version_files(metadata: Path, listed: Sequence[TableFile]) -> tuple[TableFile, ...]:
    """Select the files of a version of a local table; links that lead out of its folder are not followed."""
    folder = metadata.parent.parent.resolve()
    listed_by_path = files_by_path(folder, listed)

    def read_bytes(file: TableFile) -> bytes:
        return Path(file.location).read_bytes()

    return version_files((ICEBERG_METADATA, metadata.name), listed_by_path, read_bytes, {})


def version_files(
    metadata: PathParts, listed: Mapping[PathParts, TableFile], read_bytes: ReadBytes, options: Mapping[str, Any]
) -> tuple[TableFile, ...]:
    """Select the files of the current snapshot of a metadata file, in the order of their names.

    ``listed`` has the files of the table's folder by their paths in it, and ``options`` are polars' settings of the
    object store. UnreadableError if the metadata cannot be read, names an unknown file, or uses unsupported features;
    Missing if the extra ``iceberg`` is not installed.
    """
    import_or_missing("pyiceberg", "iceberg")
    from pyiceberg.serializers import FromInputFile  # noqa: PLC0415  (an extra)
    from pyiceberg.table import DataScan  # noqa: PLC0415  (an extra)

    with _as_unreadable_errors():
        if metadata not in listed:
            raise UnreadableError(_NOT_IN_FOLDER)
        metadata_file = _folder_io("", listed, read_bytes).new_input("/".join(metadata))
        table = FromInputFile.table_metadata(metadata_file)
        _require_supported_features(table)
        location = table.location.rstrip("/") + "/"
        files = [
            (task.file, tuple(task.delete_files))
            for task in DataScan(table, _folder_io(location, listed, read_bytes)).plan_files()
        ]
        require_file_count(files)
        found: dict[PathParts, TableFile] = {}
        for file, deletions in files:
            names = _path_in_folder(file.file_path, location, listed)
            require_table_name(names[-1])
            if file.file_format.name != "PARQUET":
                raise UnreadableError(
                    f"an Iceberg table with files in the format {file.file_format.name}; write it as Parquet"
                )
            if names in found:
                raise UnreadableError("its manifests list a file twice")
            kept = _kept_rows(
                file, [listed[_path_in_folder(one.file_path, location, listed)] for one in deletions], options
            )
            found[names] = replace(
                listed[names],
                constant_columns=(),
                columns=_columns_that_may_be_missing(table, file),
                rows=file.record_count,
                kept_rows=kept,
            )
    return tuple(part for _, part in sorted(found.items()))


def _path_in_folder(path: str, location: str, listed: Collection[PathParts]) -> PathParts:
    """Return a file's path in the table's folder; UnreadableError if no such file is listed."""
    names = tuple(path.removeprefix(location).split("/"))
    if not path.startswith(location) or names not in listed or not SPECIAL_NAMES.isdisjoint(names):
        raise UnreadableError(_NOT_IN_FOLDER)
    return names


def _folder_io(location: str, listed: Mapping[PathParts, TableFile], read_bytes: ReadBytes) -> Any:
    """Return the object by which pyiceberg reads files: it reads listed files only, and writes nothing."""
    from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile  # noqa: PLC0415  (an extra)

    class ListedInput(InputFile):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            self._file = listed[_path_in_folder(path, location, listed)]

        def __len__(self) -> int:
            return self._file.size

        def exists(self) -> bool:
            return True

        def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002
            return BytesIO(read_bytes(self._file))

    class FolderIO(FileIO):
        def new_input(self, location: str) -> InputFile:
            return ListedInput(location)

        def new_output(self, location: str) -> OutputFile:
            raise NotImplementedError(location)

        def delete(self, location: str | InputFile | OutputFile) -> None:
            raise NotImplementedError(location)

    return FolderIO()


def _require_supported_features(table: Any) -> None:
    """Raise UnreadableError if the format is newer, or if columns were renamed or replaced.

    Files are read by the names of columns, so a name must have the same field number in all schemas, and a number the
    same name.
    """
    if table.format_version > _LATEST_FORMAT:
        raise UnreadableError(
            f"an Iceberg table of format {table.format_version}, which is not supported; write it with format-version 2"
        )
    pairs = {(field.field_id, field.name) for schema in table.schemas for field in schema.fields}
    if len({number for number, _ in pairs}) != len(pairs) or len({name for _, name in pairs}) != len(pairs):
        raise UnreadableError(
            "an Iceberg table with renamed or replaced columns, which is not supported; write its rows to a new table"
        )


def _columns_that_may_be_missing(table: Any, file: Any) -> tuple[str, ...]:
    """Return the columns whose cells are missing if a file lacks them.

    The result has no partition columns, because their cells are in the manifest, and no columns whose values the manifest
    counts for this file: if the file lacks such a name, a rename is not in the metadata, and reading fails.
    """
    required_ids = {field.source_id for spec in table.partition_specs for field in spec.fields} | set(
        file.value_counts or ()
    )
    return tuple(field.name for field in table.schema().fields if field.field_id not in required_ids)


def _kept_rows(file: Any, deletions: Sequence[TableFile], options: Mapping[str, Any]) -> bytes | None:
    """Return a byte for each row of a file, 0 if a position delete file names the row; None without such files."""
    if not deletions:
        return None
    kept = np.ones(file.record_count, dtype=np.uint8)
    for one in deletions:
        scan = pl.scan_parquet(one.location, glob=False, hive_partitioning=False, **options)
        named = scan.filter(pl.col("file_path") == file.file_path).select(pl.col("pos").cast(pl.Int64))
        positions = named.collect()["pos"].fill_null(-1).to_numpy()
        if ((positions < 0) | (positions >= len(kept))).any():
            raise UnreadableError("a position delete file names a row that its data file does not have")
        kept[positions] = 0
    return kept.tobytes()


@contextmanager
def _as_unreadable_errors() -> Iterator[None]:
    """Convert errors of pyiceberg to UnreadableError, without their messages, which may quote the table."""
    try:
        yield
    except UnreadableError:
        raise
    except Exception as error:  # noqa: BLE001  (a damaged manifest can raise almost any error)
        if "equality deletes" in str(error):
            raise UnreadableError(
                "an Iceberg table with equality deletes, which are not supported; rewrite its data files"
            ) from None
        raise UnreadableError(f"its Iceberg metadata cannot be read: {type(error).__name__}") from None
