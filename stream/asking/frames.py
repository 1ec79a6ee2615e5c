"""Rows as the frames that people work with; each library is imported when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from stream.extras import needed


class Framed(ABC):
    """What has rows can be had as a frame: their columns in the order of first appearance, those left out that are all null."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The rows, each by the names of its columns."""

    def to_polars(self) -> Any:
        """The rows as a polars frame; needs the extra ``polars``."""
        return needed("polars", "polars").DataFrame(self._columns(), strict=False)

    def to_pandas(self) -> Any:
        """The rows as a pandas frame; needs the extra ``pandas``."""
        return needed("pandas", "pandas").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """The rows as an Arrow table; needs the extra ``arrow``."""
        return needed("pyarrow", "arrow").table(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        made = {name: [row.get(name) for row in rows] for name in names}
        return {name: cells for name, cells in made.items() if any(cell is not None for cell in cells)}
