"""Finds the files of a Delta table's newest version.

The package deltalake reads the log (github.com/delta-io/delta/blob/master/PROTOCOL.md). The files
are read like those of other tables, with four exceptions:

- Only files in the table's folder are read.
- Partition columns have the log's values.
- If a file lacks a column, its cells are missing.
- Rows that the log marks as deleted are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from stream.optional_packages import import_or_missing, pl
from stream.tables.encoding import as_text
from stream.tables.readers.table_files import (
    DELTA_LOG,
    SPECIAL_NAMES,
    PathParts,
    TableFile,
    require_file_count,
    require_table_name,
)
from stream.tables.table_errors import UnreadableError

_SUPPORTED_FEATURES: Final = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features that are handled here or do not affect the reading of files."""

_COLUMN_MAPPING: Final = "delta.columnMapping.mode"


def newest_local_files(folder: Path, listed: Sequence[TableFile]) -> tuple[TableFile, ...]:
    """Select the files of a local folder's newest version.

    Symbolic links that lead out of the folder are not followed, not even those below its log.
    UnreadableError as for ``newest_files``.
    """
    table_folder = folder.resolve()
    file_by_path = {
        path.relative_to(table_folder).parts: part
        for part in listed
        if (path := Path(part.location)).is_relative_to(table_folder)
    }
    if not any(names[0] == DELTA_LOG for names in file_by_path):
        raise UnreadableError("its _delta_log is not in the table's folder; copy the whole table")
    return newest_files(str(table_folder), file_by_path, {})


def newest_files(
    table: str, listed: Mapping[PathParts, TableFile], options: Mapping[str, str]
) -> tuple[TableFile, ...]:
    """Select the files of a table's newest version, in the order of their names.

    ``options`` are settings of the object store. UnreadableError if the log cannot be read, names an
    unknown file, or uses unsupported features; Missing if the extra ``delta`` is not installed.
    """
    deltalake = import_or_missing("deltalake", "delta")
    with _as_unreadable_errors():
        log = deltalake.DeltaTable(table, storage_options=dict(options))
        _require_supported_features(log)
        kept = _kept_rows(log)
        actions = pl.DataFrame(log.get_add_actions())
        columns = tuple(one.name for one in log.schema().fields)
        partition_columns = log.metadata().partition_columns
    require_file_count(actions)
    cells = {
        name: _partition_values_as_text(name, actions["partition"].struct.field(name))
        for name in partition_columns
    }
    found = []
    for number, (path, rows) in enumerate(actions.select("path", "num_records").iter_rows()):
        names = tuple(unquote(path).split("/"))
        if names not in listed or names[0] == DELTA_LOG or not SPECIAL_NAMES.isdisjoint(names):
            raise UnreadableError("its log names a file that is not in its folder")
        require_table_name(names[-1])
        own_cells = tuple((name, column[number]) for name, column in cells.items())
        mask = kept.pop(f"{log.table_uri.removesuffix('/')}/{path}", None)
        found.append(
            (names, replace(listed[names], constant_columns=own_cells, columns=columns, rows=rows, kept_rows=mask))
        )
    if kept:
        raise UnreadableError("its log marks rows as deleted in files that do not belong to the table")
    return tuple(part for _, part in sorted(found, key=lambda one: one[0]))


def _require_supported_features(log: Any) -> None:
    """Raise UnreadableError if the log uses unsupported features or column mapping."""
    if unsupported := set(log.protocol().reader_features or ()) - _SUPPORTED_FEATURES:
        raise UnreadableError(
            f"a Delta table with unsupported features: {', '.join(sorted(unsupported))}; write it without them"
        )
    if log.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
        raise UnreadableError(
            "a Delta table with column mapping, which is not supported; write it with delta.columnMapping.mode=none"
        )


def _partition_values_as_text(name: str, column: pl.Series) -> pl.Series:
    """Convert a partition column back to the log's text, which deltalake has converted to a type."""
    if column.dtype.is_float():
        return as_text(name, column)
    if isinstance(column.dtype, pl.Datetime):
        # The zone is always UTC, so cells do not contain it.
        column = column.dt.replace_time_zone(None)
    return column.cast(pl.String)


def _kept_rows(log: Any) -> dict[str, bytes]:
    """Return deletion vectors by file address: a byte per row, 0 if it is deleted."""
    return {
        address: column.cast(pl.UInt8).to_numpy().tobytes()
        for batch in map(pl.DataFrame, log.deletion_vectors())
        for address, column in zip(batch["filepath"], batch["selection_vector"], strict=True)
    }


@contextmanager
def _as_unreadable_errors() -> Iterator[None]:
    """Convert errors to UnreadableError without their messages, which may quote the log."""
    failures = import_module("deltalake.exceptions")
    try:
        yield
    except (failures.DeltaError, OSError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its Delta log cannot be read: {type(error).__name__}") from None
