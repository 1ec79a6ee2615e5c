"""Reads one part of a table in batches: a file, an object, or a table of a database.

Types are never inferred from cells, so no cell affects how other cells are read. Memory grows only with the largest row
group of a Parquet file. CSV files have a line of column names and must be well formed (``csv_files``); cells are text,
and missing cells are empty. A blank line is a row of missing cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO, RawIOBase
from typing import Any, Final, Protocol

import numpy as np

from stream.optional_packages import pl
from stream.tables.readers import table_files
from stream.tables.readers.csv_files import CsvFile
from stream.tables.table_errors import UnreadableError

BATCH_ROWS: Final = 1 << 16

KEPT_COLUMN: Final = "\0kept"
"""The column of a view's batches that is false for rows that the view leaves out."""


class TablePart(Protocol):
    """A part of a table that is read separately: a file, an object or a database's table."""

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The columns' types, in the order of the columns."""

    @property
    def name(self) -> str:
        """The path below the table's folder; empty for a single file or a database's table."""

    @property
    def duplicate_names(self) -> Sequence[str]:
        """Names that several columns have; the first of these columns is read."""

    @property
    def is_csv(self) -> bool:
        """True if the part is a CSV file, whose lines may have more cells than columns.

        The column ``csv_files.EXTRA_CELL_COLUMN`` then has the first extra cell of each line.
        """

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches, first an empty batch; UnreadableError if the part is malformed."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file; ``options`` are settings of the object store."""

    location: str
    options: Mapping[str, Any]
    duplicate_names: Sequence[str] = ()

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The columns' types, in the order of the columns."""
        return dict(self._scan().collect_schema())

    def row_count_from_footer(self) -> int:
        """Return the number of rows, without reading them."""
        return int(self._scan().select(pl.len()).collect().item())

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches."""
        yield from self._scan().select(names).collect_batches(chunk_size=rows, lazy=True)

    def _scan(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.location, glob=False, hive_partitioning=False, **self.options)


@dataclass(frozen=True)
class FilePart:
    """A CSV or Parquet file; folder names or a Delta log may add columns with one value for all rows.

    Rows that a Delta log marks as deleted are dropped.
    """

    name: str
    constant_columns: Mapping[str, str | None]
    file: CsvFile | ParquetFile
    file_column_types: Mapping[str, pl.DataType]
    """The types of the columns in the file, in order, including columns that a constant column replaces."""
    rows: int | None = None
    kept_rows_mask: bytes | None = None

    @classmethod
    def open(
        cls,
        listed: table_files.TableFile,
        options: Mapping[str, Any] | None = None,
        open_csv: Callable[[], RawIOBase] | None = None,
    ) -> FilePart:
        """Open a Parquet or CSV file; UnreadableError if it has no columns."""
        constants = dict(listed.constant_columns)
        file: CsvFile | ParquetFile
        if listed.location.lower().endswith(".parquet"):
            file = ParquetFile(listed.location, options or {})
        else:
            file = CsvFile(open_csv or partial(FileIO, listed.location))
        with as_unreadable_errors(listed.name):
            types = file.types
            if not types:
                raise UnreadableError("no columns")
        constants.update((name, None) for name in listed.columns if name not in types and name not in constants)
        return cls(listed.name, constants, file, types, listed.rows, listed.kept_rows)

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The types of the file's columns and, as text, of the columns from folder names or a Delta log."""
        return dict(self.file_column_types) | dict.fromkeys(self.constant_columns, pl.String())

    @property
    def duplicate_names(self) -> Sequence[str]:
        """Names that several columns of the file have."""
        return [name for name in self.file.duplicate_names if name not in self.constant_columns]

    @property
    def is_csv(self) -> bool:
        """True if the file is CSV."""
        return isinstance(self.file, CsvFile)

    def row_count_from_metadata(self) -> int:
        """Return the number of rows from a Parquet file's footer; 0 for CSV, which has to be read."""
        with as_unreadable_errors(self.name):
            return 0 if isinstance(self.file, CsvFile) else self.file.row_count_from_footer()

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in the file's order of rows."""
        constants = self.constant_columns
        literals = [pl.lit(constants[name], dtype=pl.String).alias(name) for name in names if name in constants]
        read_names = [name for name in names if name not in constants]
        # If all requested columns are constant, any column of the file gives the number of rows.
        read, types = read_names or list(self.file_column_types)[:1], self.types
        yield pl.DataFrame(schema={name: types.get(name, pl.String()) for name in names})
        with as_unreadable_errors(self.name):
            for batch in self._drop_deleted(self.file.batches(read, BATCH_ROWS)):
                yield batch.with_columns(literals).select(names)

    def _drop_deleted(self, batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Drop deleted rows; UnreadableError if the file's number of rows differs from that in the log or manifest."""
        mask = self.kept_rows_mask
        kept = None if mask is None else pl.Series(np.frombuffer(mask, dtype=np.bool_))
        rows, done = self.rows if kept is None else len(kept), 0
        for batch in batches:
            begin, done = done, done + batch.height
            if rows is not None and done > rows:
                break
            yield batch if kept is None else batch.filter(kept[begin:done])
        if rows is not None and done != rows:
            raise UnreadableError("its log or manifest gives another number of rows for a file")


@dataclass(frozen=True)
class DatabaseTable:
    """A table or view of a database; its statement runs when its rows are read.

    ``read_batches`` runs the statement for the named columns, and yields Arrow batches. ``as_unreadable_errors``
    converts the errors of the database's driver.
    """

    types: Mapping[str, pl.DataType]
    read_batches: Callable[[Sequence[str]], Iterator[Any]]
    as_unreadable_errors: Callable[[], AbstractContextManager[None]]
    is_csv: bool = False
    name: str = ""
    duplicate_names: Sequence[str] = ()

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches, in the database's order of rows."""
        schema = pl.Schema({name: self.types[name] for name in names})
        yield pl.DataFrame(schema=schema)
        with self.as_unreadable_errors():
            for batch in self.read_batches(names):
                cells: pl.DataFrame = pl.DataFrame(batch)
                cells.columns = list(names)
                if any(_zone(kind) != _zone(schema[name]) for name, kind in cells.schema.items()):
                    raise UnreadableError("its times have another zone than its columns declare")
                # A time outside the range of the column's time unit becomes a missing cell, because no cell may make
                # a read fail.
                yield from cells.cast(schema, strict=False).iter_slices(BATCH_ROWS)


def _zone(kind: pl.DataType) -> str | None:
    return kind.time_zone if isinstance(kind, pl.Datetime) else None


@contextmanager
def as_unreadable_errors(file: str = "") -> Iterator[None]:
    """Convert errors of reading to UnreadableError, without their messages, which may quote cells."""
    try:
        yield
    except UnreadableError as error:
        raise error.in_file(file) from None
    except PermissionError:
        raise UnreadableError("its permissions do not let this process read it", file=file) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError):
        raise UnreadableError(
            "its format is damaged, or differs from the format that its name says", file=file
        ) from None
