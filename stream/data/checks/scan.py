"""A table file in batches, for whoever looks at every row once and keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from stream.data.files import csv_columns, is_parquet, readable, require_table_file

BATCH_ROWS: Final = 1 << 16
SURPLUS: Final = "\0surplus"
"""The column that holds a CSV line's first cell beyond the file's columns. No header has the name."""


@dataclass(frozen=True)
class TableFile:
    """A CSV or Parquet file that is there and has columns. Cells are read as services read them."""

    path: Path
    types: dict[str, pl.DataType]
    """The file's columns, in order; those of CSV are text."""

    @classmethod
    def open(cls, path: Path) -> TableFile:
        """UnreadableError if there is no table to be read at the path."""
        require_table_file(path)
        with readable():
            if is_parquet(path):
                return cls(path, dict(pl.read_parquet_schema(path)))
            return cls(path, {name: pl.String() for name in csv_columns(path)})

    @property
    def is_csv(self) -> bool:
        """Whether lines may have too many cells."""
        return not is_parquet(self.path)

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, some rows at a time and in order, with ``SURPLUS`` beside them if the file is CSV.

        Memory does not grow with the number of rows. UnreadableError if the file turns out to be malformed.
        """
        asked = [*names, SURPLUS] if self.is_csv else list(names)
        with readable():
            yield from self.frame().select(asked).collect_batches(chunk_size=BATCH_ROWS, lazy=True)

    def frame(self) -> pl.LazyFrame:
        """All of the file, unread; the caller sees to it that errors of reading it are told in public words."""
        if not self.is_csv:
            return pl.scan_parquet(self.path, glob=False)
        return pl.scan_csv(
            self.path,
            schema={**self.types, SURPLUS: pl.String()},
            missing_columns="insert",
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            empty_string_is_null=False,
            glob=False,
        )
