"""The files of a table in batches, without letting a cell decide how other cells are read.

Memory does not grow with the number of rows, but with a Parquet file's largest row group. Cells of CSV are text and a missing
one is the empty text. A CSV file has a line of column names and must be well formed, that is, its writer put cells that hold
quotes, commas or newlines in quotes. A blank line is a row whose cells are missing, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from stream.data.errors import UnreadableError
from stream.data.parts import Part
from stream.later import pl

BATCH_ROWS: Final = 1 << 16
SURPLUS: Final = "\0surplus"
"""The column that holds a CSV line's first cell beyond the file's columns. No header has the name."""


class Sheet(Protocol):
    """A part of a table that is read by itself."""

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """Its columns, in order."""

    @property
    def is_csv(self) -> bool:
        """Whether lines may have too many cells, which ``SURPLUS`` then tells."""

    def said_rows(self) -> int | None:
        """How many rows it says that it has, without reading them; None where it does not say."""

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, some rows at a time; first none, for the columns' types. UnreadableError if it is malformed."""


@dataclass(frozen=True)
class FileSheet:
    """A CSV or Parquet file, and what is said of it elsewhere, by its folders' names or by a log: columns, and rows that are none."""

    location: str
    cells: Mapping[str, str | None]
    own: Mapping[str, pl.DataType]
    """The columns that the file itself has, in order, those among them that ``cells`` go before."""

    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    kept: bytes | None = None

    @classmethod
    def open(cls, part: Part, options: Mapping[str, Any] | None = None) -> FileSheet:
        """A file, by what its store takes as ``options``; UnreadableError if it has no columns."""
        options, cells = options or {}, dict(part.cells)
        with readable():
            if _is_parquet(part.location):
                own = dict(pl.scan_parquet(part.location, glob=False, **options).collect_schema())
            else:
                own = _csv_columns(part.location, options)
        if not own:
            raise UnreadableError("no columns")
        cells.update((name, None) for name in part.columns if name not in own and name not in cells)
        return cls(part.location, cells, own, options, part.rows, part.kept)

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The file's columns and, as text, those that are said of it."""
        return dict(self.own) | dict.fromkeys(self.cells, pl.String())

    @property
    def is_csv(self) -> bool:
        """Whether lines may have too many cells."""
        return not _is_parquet(self.location)

    def said_rows(self) -> int | None:
        """What a Parquet file's end says."""
        if self.is_csv:
            return None
        with readable():
            return int(self._scanned().select(pl.len()).collect().item())

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, in the file's order."""
        said = [pl.lit(self.cells[name], dtype=pl.String).alias(name) for name in names if name in self.cells]
        own = [name for name in names if name not in self.cells]
        # Where folders say all that is asked for, any column tells the number of rows.
        read, types = own or list(self.own)[:1], self.types
        yield pl.DataFrame(schema={name: types.get(name, pl.String()) for name in names})
        with readable():
            for batch in self._kept(
                self._scanned().select(read).collect_batches(chunk_size=BATCH_ROWS, lazy=True)
            ):
                cells = batch.with_columns(pl.col(own).fill_null("")) if self.is_csv and own else batch
                yield cells.with_columns(said).select(names)

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

    def _scanned(self) -> pl.LazyFrame:
        if not self.is_csv:
            return pl.scan_parquet(self.location, glob=False, hive_partitioning=False, **self.options)
        return pl.scan_csv(
            self.location,
            schema={**self.own, SURPLUS: pl.String()},
            missing_columns="insert",
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            empty_string_is_null=False,
            glob=False,
            **self.options,
        )


@contextmanager
def readable() -> Iterator[None]:
    """UnreadableError for whatever goes wrong in reading a file; what the reader says may quote cells, so it is not passed on."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError):
        raise UnreadableError(
            "its format, or its rights; in CSV, cells with quotes or newlines must be quoted"
        ) from None


def _is_parquet(location: str) -> bool:
    return location.lower().endswith(".parquet")


def _csv_columns(location: str, options: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """The columns of a CSV file as they are read: of two of one name the second is given another."""
    try:
        header = pl.scan_csv(location, infer_schema=False, encoding="utf8-lossy", glob=False, **options)
        return dict(header.collect_schema())
    except pl.exceptions.NoDataError:
        raise UnreadableError("no line of column names") from None
