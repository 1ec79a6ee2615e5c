"""Tables in memory, whose cells are read like those of files: none decides how others are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from stream.data.errors import ColumnError, DataError
from stream.later import pl

Frame: TypeAlias = "pl.DataFrame | Mapping[str, Sequence[object]]"
"""A table in memory: a data frame, or columns of cells of any kind."""

_FARTHEST_INTEGER: Final = 10**30


def in_memory(frame: Frame, names: Sequence[str], person: str | None = None) -> pl.DataFrame:
    """The named columns of a table in memory; DataError if one is missing or their lengths differ."""
    if isinstance(frame, pl.DataFrame):
        require(names, frame.columns, person)
        return frame.select(names)
    require(names, frame, person)
    try:
        return pl.DataFrame([_column(name, frame[name]) for name in names])
    except pl.exceptions.PolarsError:
        raise DataError(
            "the table's columns have different lengths; give each row a cell in every column"
        ) from None


def require(
    names: Sequence[str], available: Sequence[str] | Mapping[str, object], person: str | None = None
) -> None:
    """ColumnError naming the first column that is not available; ``person`` is the one that names each row's."""
    for name in names:
        if name not in available:
            raise ColumnError("no person" if name == person else "missing", name)


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
