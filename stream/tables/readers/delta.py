"""Finds the files of a Delta table's newest version.

The package deltalake reads the log (github.com/delta-io/delta/blob/master/PROTOCOL.md). The files
are read like others, with four differences: only files found in the table's folder are read;
partition columns have the log's values; if a file lacks a column, its cells are missing; and rows
that are deleted in place are skipped.
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
from stream.tables.readers.table_files import DELTA_LOG, DOTS, Names, TableFile, require_number, require_table_name
from stream.tables.table_errors import UnreadableError

_UNDERSTOOD: Final = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features that are handled here or do not affect the reading of files."""

_MAPPING: Final = "delta.columnMapping.mode"


def newest_local_parts(folder: Path, listed: Sequence[TableFile]) -> tuple[TableFile, ...]:
    """Select the files of a local folder's newest version.

    Links out of the folder are not followed, even in its log. UnreadableError as for ``newest_parts``.
    """
    own = folder.resolve()
    below = {
        path.relative_to(own).parts: part for part in listed if (path := Path(part.location)).is_relative_to(own)
    }
    if not any(names[0] == DELTA_LOG for names in below):
        raise UnreadableError("its log is not in its folder")
    return newest_parts(str(own), below, {})


def newest_parts(
    table: str, listed: Mapping[Names, TableFile], options: Mapping[str, str]
) -> tuple[TableFile, ...]:
    """Select the files of a table's newest version, in the order of their names.

    ``options`` are settings of the object store. UnreadableError if the log cannot be read, names an
    unknown file, or uses unsupported features; Missing if the extra ``delta`` is not installed.
    """
    deltalake = import_or_missing("deltalake", "delta")
    with _readable():
        log = deltalake.DeltaTable(table, storage_options=dict(options))
        _require_understood(log)
        kept = _kept_rows(log)
        actions = pl.DataFrame(log.get_add_actions())
        columns = tuple(one.name for one in log.schema().fields)
        said = log.metadata().partition_columns
    require_number(actions)
    cells = {name: _cells(name, actions["partition"].struct.field(name)) for name in said}
    found = []
    for number, (path, rows) in enumerate(actions.select("path", "num_records").iter_rows()):
        names = tuple(unquote(path).split("/"))
        if names not in listed or names[0] == DELTA_LOG or not DOTS.isdisjoint(names):
            raise UnreadableError("its log names a file that is not in its folder")
        require_table_name(names[-1])
        own = tuple((name, column[number]) for name, column in cells.items())
        mask = kept.pop(f"{log.table_uri.removesuffix('/')}/{path}", None)
        found.append((names, replace(listed[names], cells=own, columns=columns, rows=rows, kept=mask)))
    if kept:
        raise UnreadableError("its log says of files that are not its own which rows are deleted")
    return tuple(part for _, part in sorted(found, key=lambda one: one[0]))


def _require_understood(log: Any) -> None:
    """Raise UnreadableError if the log uses unsupported features or column mapping."""
    if strange := set(log.protocol().reader_features or ()) - _UNDERSTOOD:
        raise UnreadableError(f"a Delta table with {', '.join(sorted(strange))}")
    if log.metadata().configuration.get(_MAPPING, "none") != "none":
        raise UnreadableError(
            "a Delta table whose files have other names for its columns (column mapping); write it anew"
        )


def _cells(name: str, column: pl.Series) -> pl.Series:
    """Convert a partition column back to text; deltalake has given its values a type."""
    if column.dtype.is_float():
        return as_text(name, column)
    if isinstance(column.dtype, pl.Datetime):
        # The zone is UTC, so cells need not name it.
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
def _readable() -> Iterator[None]:
    """Convert errors to UnreadableError without their messages, which may quote the log."""
    failures = import_module("deltalake.exceptions")
    try:
        yield
    except (failures.DeltaError, OSError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its Delta log cannot be read: {type(error).__name__}") from None
