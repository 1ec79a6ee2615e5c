"""Rows as the frames that people work with; each library is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream.extras import needed

Row = Mapping[str, Any]


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """All columns of the rows, in the order of their first appearance; null where a row has none, left out if all are null."""
    names = dict.fromkeys(name for row in rows for name in row)
    made = {name: [row.get(name) for row in rows] for name in names}
    return {name: cells for name, cells in made.items() if any(cell is not None for cell in cells)}


def to_polars(rows: Sequence[Row]) -> Any:
    """A polars frame."""
    return needed("polars", "polars").DataFrame(columns(rows), strict=False)


def to_pandas(rows: Sequence[Row]) -> Any:
    """A pandas frame."""
    return needed("pandas", "pandas").DataFrame(columns(rows))


def to_arrow(rows: Sequence[Row]) -> Any:
    """An Arrow table."""
    return needed("pyarrow", "arrow").table(columns(rows))
