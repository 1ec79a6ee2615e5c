"""Reads the files of a table in batches, so that no cell affects how others are read.

Memory grows only with a Parquet file's largest row group. CSV files have a line of column names and
must be well formed (``csv_files``); cells are text, and missing cells are empty. A blank line is a
row of missing cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from io import FileIO, RawIOBase
from typing import Any, Final, Protocol

import numpy as np

from schemas import Address
from stream.optional_packages import pl
from stream.tables.readers.csv_files import CsvFile
from stream.tables.readers.delta import newest_local_files
from stream.tables.readers.table_files import (
    CHANGED_WHILE_READ,
    TableFile,
    has_changed,
    local_delta,
    local_files,
    require_size,
)
from stream.tables.table_errors import DataError, UnreadableError

BATCH_ROWS: Final = 1 << 16


class Sheet(Protocol):
    """A file, object or database table that is read separately."""

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The columns in order."""

    @property
    def name(self) -> str:
        """The path below the table's folder; empty for a single file."""

    @property
    def repeated(self) -> Sequence[str]:
        """Names that several columns have; the first column is read."""

    @property
    def is_csv(self) -> bool:
        """Whether lines may have extra cells, the first of which is in ``csv_files.SURPLUS``."""

    def row_count_from_metadata(self) -> int | None:
        """Return the number of rows from metadata, or None."""

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches, first an empty one; UnreadableError if malformed."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file; ``options`` are settings of the object store."""

    location: str
    options: Mapping[str, Any]
    repeated: Sequence[str] = ()

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The columns in order."""
        return dict(self._scan().collect_schema())

    def row_count_from_metadata(self) -> int | None:
        """Return the number of rows from the footer."""
        return int(self._scan().select(pl.len()).collect().item())

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches."""
        yield from self._scan().select(names).collect_batches(chunk_size=rows, lazy=True)

    def _scan(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.location, glob=False, hive_partitioning=False, **self.options)


@dataclass(frozen=True)
class FileSheet:
    """A CSV or Parquet file, with the cells and deletions that folder names or a Delta log add."""

    name: str
    cells: Mapping[str, str | None]
    file: CsvFile | ParquetFile
    file_types: Mapping[str, pl.DataType]
    """The file's own columns in order, including columns that ``cells`` replace."""

    rows: int | None = None
    kept_rows: bytes | None = None

    @classmethod
    def open(
        cls,
        part: TableFile,
        options: Mapping[str, Any] | None = None,
        opened: Callable[[], RawIOBase] | None = None,
    ) -> FileSheet:
        """Open a Parquet file or a stream of CSV; UnreadableError if it has no columns."""
        cells = dict(part.cells)
        file: CsvFile | ParquetFile
        if _is_parquet(part.location):
            file = ParquetFile(part.location, options or {})
        else:
            file = CsvFile(opened or partial(FileIO, part.location))
        with as_unreadable_errors(part.name):
            file_types = file.types
            if not file_types:
                raise UnreadableError("no columns")
        cells.update((name, None) for name in part.columns if name not in file_types and name not in cells)
        return cls(part.name, cells, file, file_types, part.rows, part.kept_rows)

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The file's columns and, as text, the columns from folder names or a Delta log."""
        return dict(self.file_types) | dict.fromkeys(self.cells, pl.String())

    @property
    def repeated(self) -> Sequence[str]:
        """Names that several columns of the file have."""
        return [name for name in self.file.repeated if name not in self.cells]

    @property
    def is_csv(self) -> bool:
        """Whether lines may have extra cells."""
        return isinstance(self.file, CsvFile)

    def row_count_from_metadata(self) -> int | None:
        """Return the number of rows from a Parquet file's footer."""
        with as_unreadable_errors(self.name):
            return self.file.row_count_from_metadata()

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in the file's order of rows."""
        constant_cells = [
            pl.lit(self.cells[name], dtype=pl.String).alias(name) for name in names if name in self.cells
        ]
        read_names = [name for name in names if name not in self.cells]
        # If folder names give all requested columns, any column of the file gives the number of rows.
        read, types = read_names or list(self.file_types)[:1], self.types
        yield pl.DataFrame(schema={name: types.get(name, pl.String()) for name in names})
        with as_unreadable_errors(self.name):
            for batch in self._drop_deleted(self.file.batches(read, BATCH_ROWS)):
                yield batch.with_columns(constant_cells).select(names)

    def _drop_deleted(self, batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Drop deleted rows; UnreadableError if the log has another number of rows."""
        kept = None if self.kept_rows is None else pl.Series(np.frombuffer(self.kept_rows, dtype=np.bool_))
        rows, done = self.rows if kept is None else len(kept), 0
        for batch in batches:
            begin, done = done, done + batch.height
            if rows is not None and done > rows:
                break
            yield batch if kept is None else batch.filter(kept[begin:done])
        if rows is not None and done != rows:
            raise UnreadableError("its Delta log gives another number of rows for a file")


@contextmanager
def as_unreadable_errors(file: str = "") -> Iterator[None]:
    """Convert errors to UnreadableError without their messages, which may quote cells."""
    try:
        yield
    except UnreadableError as error:
        raise error.in_file(file) from None
    except PermissionError:
        raise UnreadableError("its permissions do not let this process read it", file=file) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError):
        raise UnreadableError("its format is damaged, or not the one that its name says", file=file) from None


def _is_parquet(location: str) -> bool:
    return location.lower().endswith(".parquet")


Stamp = tuple[object, ...]
"""A value that changes if a path's data may have changed; the path alone if no file is known."""


def address_of(path: str) -> Address | None:
    """Parse a path that is an address, or return None; DataError if it is invalid."""
    try:
        return Address.parse_table(path)
    except ValueError as error:
        raise DataError(f"path: {error}") from None


def sheets_of(
    path: str, parts: Sequence[TableFile] | None = None, most_bytes: int | None = None
) -> Iterator[Sheet]:
    """Yield the sheets of a path; ``parts`` are its local files, if already listed.

    UnreadableError if objects or the files of a Delta table exceed ``most_bytes`` in total, or if a file
    has changed since it was listed. A database is read in one snapshot.
    """
    if (address := address_of(path)) is None:
        listed = local_files(path) if parts is None else parts
        if (folder := local_delta(path)) is not None:
            listed = newest_local_files(folder, listed)
            require_size(listed, most_bytes)
        for part in listed:
            yield FileSheet.open(part)
        if any(map(has_changed, listed)):
            raise UnreadableError(CHANGED_WHILE_READ)
    elif address.scheme == "s3":
        from stream.tables.readers.objects import object_sheets  # noqa: PLC0415  (an extra)

        yield from object_sheets(address, most_bytes)
    else:
        from stream.tables.readers.postgresql import postgresql_sheets  # noqa: PLC0415  (an extra)

        yield from postgresql_sheets(address)


def stamp_of(path: str) -> Stamp:
    """Return the current stamp of a path; UnreadableError if a store or server fails."""
    if (address := address_of(path)) is None:
        try:
            return stamp_of_files(path, local_files(path))
        except UnreadableError:
            # The error of the path is raised when the table is read.
            return (path,)
    if address.scheme == "s3":
        from stream.tables.readers.objects import object_files  # noqa: PLC0415  (an extra)

        return stamp_of_files(path, object_files(address))
    from stream.tables.readers.postgresql import snapshot  # noqa: PLC0415  (an extra)

    return (path, *snapshot(address))


def stamp_of_files(path: str, parts: Sequence[TableFile]) -> Stamp:
    """Return the stamp of these files; its size does not depend on their number."""
    if not parts:
        return (path,)
    digest = blake2b(digest_size=16)
    for part in parts:
        kept = part.kept_rows or b""
        digest.update(repr((part.location, part.stamp, part.cells, part.columns, part.rows, len(kept))).encode())
        digest.update(kept)
    return (path, digest.hexdigest())
