"""Reading tables without letting a cell decide how other cells are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from stream.data.errors import DataError, UnreadableError, shown

Frame = pl.DataFrame | Mapping[str, Sequence[object]]
"""A table in memory: a data frame, or columns of cells of any kind."""

_FARTHEST_INTEGER: Final = 10**30


def read_columns(path: Path, names: Sequence[str]) -> pl.DataFrame:
    """The named columns of a .csv, .csv.gz or .parquet file; other columns are ignored.

    CSV cells are text and a missing one is the empty text. A CSV file has a line of column names and must be well
    formed, that is, its writer put cells that hold quotes, commas or newlines in quotes. A blank line is a row whose
    cells are missing, wherever it stands. UnreadableError if there is no such file, DataError if it lacks a column.
    """
    require_table_file(path)
    with readable():
        if is_parquet(path):
            require(names, pl.read_parquet_schema(path))
            return pl.read_parquet(path, columns=list(names), glob=False)
        return _read_csv(path, names)


def require_table_file(path: Path) -> None:
    """UnreadableError unless there is a file whose name says that it holds a table."""
    kind = "".join(path.suffixes[-2:]).lower()
    if not (kind.endswith((".csv", ".parquet")) or kind == ".csv.gz"):
        raise UnreadableError("no .csv, .csv.gz or .parquet file")
    if not path.is_file():
        raise UnreadableError("missing")


@contextmanager
def readable() -> Iterator[None]:
    """UnreadableError for whatever goes wrong in reading a file; what the reader says may quote cells, so it is not passed on."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeError):
        raise UnreadableError(
            "its format, or its rights; in CSV, cells with quotes or newlines must be quoted"
        ) from None


def rows_before_reading(path: Path) -> int | None:
    """How many rows a file says that it has, without reading them; None where its format does not say."""
    if not is_parquet(path):
        return None
    with readable():
        return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())


def in_memory(frame: Frame, names: Sequence[str]) -> pl.DataFrame:
    """The named columns of a table in memory; DataError if one is missing or their lengths differ."""
    if isinstance(frame, pl.DataFrame):
        require(names, frame.columns)
        return frame.select(names)
    require(names, frame)
    try:
        return pl.DataFrame([_column(name, frame[name]) for name in names])
    except pl.exceptions.PolarsError:
        raise DataError(
            "the table's columns have different lengths; give each row a cell in every column"
        ) from None


def require(names: Sequence[str], available: Sequence[str] | Mapping[str, object]) -> None:
    """DataError naming the first column that is not available."""
    for name in names:
        if name not in available:
            raise DataError(f"the table has no column {shown(name)}; add it or leave the attribute out")


def is_parquet(path: Path) -> bool:
    """Whether a file's name says that it is a Parquet file."""
    return path.suffix.lower() == ".parquet"


def csv_columns(path: Path) -> list[str]:
    """The column names of a CSV file, as they are read: of two that are the same the second is given another name."""
    try:
        return pl.read_csv(path, n_rows=0, infer_schema=False, encoding="utf8-lossy", glob=False).columns
    except pl.exceptions.NoDataError:
        raise UnreadableError("no line of column names") from None


def _read_csv(path: Path, names: Sequence[str]) -> pl.DataFrame:
    require(names, csv_columns(path))
    cells = pl.read_csv(
        path,
        columns=list(names),
        infer_schema=False,
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        glob=False,
    )
    return cells.select(pl.col(name).fill_null("") for name in names)


def _column(name: str, values: Sequence[object]) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(name)
    return pl.Series(name, [_text(value) for value in values], dtype=pl.String)


def _text(cell: object) -> str | None:
    match cell:
        case str():
            return cell.encode(errors="replace").decode()
        case bool():
            return str(cell).lower()
        case int():
            return str(min(max(cell, -_FARTHEST_INTEGER), _FARTHEST_INTEGER))
        case float():
            return str(int(cell)) if cell.is_integer() and abs(cell) < _FARTHEST_INTEGER else repr(cell)
        case _:
            return None
