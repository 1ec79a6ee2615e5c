"""The files of a table in batches, without letting a cell decide how other cells are read.

Memory does not grow with the number of rows, but with a Parquet file's largest row group. Cells of CSV are text and a missing
one is the empty text. A CSV file has a line of column names and must be well formed (``csv_files``). A blank line is a row whose
cells are missing, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from io import FileIO
from typing import Any, Final, Protocol

import numpy as np

from schemas import Address
from stream.optional_packages import pl
from stream.tables.readers.csv_files import ByteStream, CsvFile
from stream.tables.readers.delta import newest_local_parts
from stream.tables.readers.table_files import (
    CHANGED,
    TableFile,
    has_changed,
    local_delta,
    local_parts,
    require_size,
)
from stream.tables.table_errors import DataError, UnreadableError

BATCH_ROWS: Final = 1 << 16


class Sheet(Protocol):
    """A part of a table that is read by itself."""

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """Its columns, in order."""

    @property
    def name(self) -> str:
        """Its path below the table's folder; empty if the table has no other part."""

    @property
    def repeated(self) -> Sequence[str]:
        """Names that several of its columns have, of which the first is read."""

    @property
    def is_csv(self) -> bool:
        """Whether lines may have too many cells, the first of which ``csv_files.SURPLUS`` holds."""

    def said_rows(self) -> int | None:
        """How many rows it says that it has, without reading them; None where it does not say."""

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, some rows at a time; first none, for the columns' types. UnreadableError if it is malformed."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file, by what its store takes as ``options``."""

    location: str
    options: Mapping[str, Any]
    repeated: Sequence[str] = ()

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """Its columns, in order."""
        return dict(self._scanned().collect_schema())

    def said_rows(self) -> int | None:
        """Count its rows by what its end says."""
        return int(self._scanned().select(pl.len()).collect().item())

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield the named columns, some rows at a time."""
        yield from self._scanned().select(names).collect_batches(chunk_size=rows, lazy=True)

    def _scanned(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.location, glob=False, hive_partitioning=False, **self.options)


@dataclass(frozen=True)
class FileSheet:
    """A CSV or Parquet file, and what is said of it elsewhere, by its folders' names or by a log: columns, and rows that are none."""

    name: str
    cells: Mapping[str, str | None]
    file: CsvFile | ParquetFile
    own: Mapping[str, pl.DataType]
    """The columns that the file itself has, in order, those among them that ``cells`` go before."""

    rows: int | None = None
    kept: bytes | None = None

    @classmethod
    def open(
        cls,
        part: TableFile,
        options: Mapping[str, Any] | None = None,
        opened: Callable[[], ByteStream] | None = None,
    ) -> FileSheet:
        """Open a file: Parquet by ``options`` of its store, CSV as a stream of bytes; UnreadableError if it has no columns."""
        cells = dict(part.cells)
        file: CsvFile | ParquetFile
        if _is_parquet(part.location):
            file = ParquetFile(part.location, options or {})
        else:
            file = CsvFile(opened or partial(FileIO, part.location))
        with readable(part.name):
            own = file.types
            if not own:
                raise UnreadableError("no columns")
        cells.update((name, None) for name in part.columns if name not in own and name not in cells)
        return cls(part.name, cells, file, own, part.rows, part.kept)

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The file's columns and, as text, those that are said of it."""
        return dict(self.own) | dict.fromkeys(self.cells, pl.String())

    @property
    def repeated(self) -> Sequence[str]:
        """Names that several of the file's columns have."""
        return [name for name in self.file.repeated if name not in self.cells]

    @property
    def is_csv(self) -> bool:
        """Whether lines may have too many cells."""
        return isinstance(self.file, CsvFile)

    def said_rows(self) -> int | None:
        """What a Parquet file's end says."""
        with readable(self.name):
            return self.file.said_rows()

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, in the file's order."""
        said = [pl.lit(self.cells[name], dtype=pl.String).alias(name) for name in names if name in self.cells]
        own = [name for name in names if name not in self.cells]
        # Where folders say all that is asked for, any column tells the number of rows.
        read, types = own or list(self.own)[:1], self.types
        yield pl.DataFrame(schema={name: types.get(name, pl.String()) for name in names})
        with readable(self.name):
            for batch in self._kept(self.file.batches(read, BATCH_ROWS)):
                yield batch.with_columns(said).select(names)

    def _kept(self, batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Batches of the whole file without its deleted rows; UnreadableError if its log says that it has another number of rows."""
        kept = None if self.kept is None else pl.Series(np.frombuffer(self.kept, dtype=np.bool_))
        rows, done = self.rows if kept is None else len(kept), 0
        for batch in batches:
            begin, done = done, done + batch.height
            if rows is not None and done > rows:
                break
            yield batch if kept is None else batch.filter(kept[begin:done])
        if rows is not None and done != rows:
            raise UnreadableError("its log says that a file has another number of rows")


@contextmanager
def readable(file: str = "") -> Iterator[None]:
    """UnreadableError for whatever goes wrong in reading a file; what the reader says may quote cells, so it is not passed on."""
    try:
        yield
    except UnreadableError as error:
        raise error.in_file(file) from None
    except PermissionError:
        raise UnreadableError("its rights: it may not be read", file=file) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError):
        raise UnreadableError(
            "its format: it is damaged, or of another kind than its name says", file=file
        ) from None


def _is_parquet(location: str) -> bool:
    return location.lower().endswith(".parquet")


Stamp = tuple[object, ...]
"""What changes when the data behind a path may have changed; of one item where nothing can be told."""


def address_of(path: str) -> Address | None:
    """The address that a path is, if any; DataError if it is one in no form that is taken."""
    try:
        return Address.of_table(path)
    except ValueError as error:
        raise DataError(f"path: {error}") from None


def sheets_of(
    path: str, parts: Sequence[TableFile] | None = None, most_bytes: int | None = None
) -> Iterator[Sheet]:
    """What a path stands for, one after the other; ``parts`` of this machine are as they were listed.

    Objects of a store, and the files that a log names, may have ``most_bytes`` together.

    After the last it is made sure that all of it is of one time: UnreadableError if a file has changed since it was listed.
    Of a database all is read in one snapshot.
    """
    if (address := address_of(path)) is None:
        listed = local_parts(path) if parts is None else parts
        if (folder := local_delta(path)) is not None:
            listed = newest_local_parts(folder, listed)
            require_size(listed, most_bytes)
        for part in listed:
            yield FileSheet.open(part)
        if any(map(has_changed, listed)):
            raise UnreadableError(CHANGED)
    elif address.scheme == "s3":
        from stream.tables.readers.objects import object_sheets  # noqa: PLC0415  (an extra)

        yield from object_sheets(address, most_bytes)
    else:
        from stream.tables.readers.postgresql import postgresql_sheets  # noqa: PLC0415  (an extra)

        yield from postgresql_sheets(address)


def stamp_of(path: str) -> Stamp:
    """The stamp of what a path stands for now. UnreadableError if a store or a server does not tell."""
    if (address := address_of(path)) is None:
        try:
            return stamp_of_parts(path, local_parts(path))
        except UnreadableError:
            # Reading says what is wrong with the path.
            return (path,)
    if address.scheme == "s3":
        from stream.tables.readers.objects import object_parts  # noqa: PLC0415  (an extra)

        return stamp_of_parts(path, object_parts(address))
    from stream.tables.readers.postgresql import snapshot  # noqa: PLC0415  (an extra)

    return (path, *snapshot(address))


def stamp_of_parts(path: str, parts: Sequence[TableFile]) -> Stamp:
    """The stamp of a path that stands for these files, as short for many as for one."""
    if not parts:
        return (path,)
    told = blake2b(digest_size=16)
    for part in parts:
        kept = part.kept or b""
        told.update(repr((part.location, part.stamp, part.cells, part.columns, part.rows, len(kept))).encode())
        told.update(kept)
    return (path, told.hexdigest())
