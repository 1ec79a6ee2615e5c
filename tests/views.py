"""Views over tables in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas import TableSource
from stream.tables.readers.table_parts import KEPT_COLUMN, TablePart
from stream.tables.readers.view_rows import ViewPlan, open_view

Row = tuple[Any, ...]


@dataclass(frozen=True)
class FramePart:
    """A table in memory as a part, in batches of ``rows``."""

    frame: pl.DataFrame
    rows: int = 1 << 16
    name: str = ""
    duplicate_names: Sequence[str] = ()
    is_csv: bool = False

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        return dict(self.frame.schema)

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        yield self.frame.select(names).clear()
        yield from self.frame.select(names).iter_slices(self.rows)


def view_source(select: str, tables: Mapping[str, Any], columns: Sequence[str], **fields: Any) -> TableSource:
    """Return a source whose attributes are the view's columns, as categories."""
    return TableSource.model_validate(
        {
            "source": "view",
            "kind": "table",
            "neighbors": "add-remove",
            "epsilon": 1.0,
            "view": {
                "select": select,
                "tables": {name: {"path": name, **table} for name, table in tables.items()},
            },
            "attributes": {name: ["any"] for name in columns},
            **fields,
        }
    )


def view_frame(plan: ViewPlan, frames: Mapping[str, pl.DataFrame], rows: int = 1 << 16) -> pl.DataFrame:
    """Return all rows of a view, also those that it leaves out, with the column ``KEPT_COLUMN``."""

    def open_parts(name: str) -> Iterator[TablePart]:
        yield FramePart(frames[name], rows)

    names = list(plan.outputs)
    return pl.concat([batch for part in open_view(plan, open_parts) for batch in part.batches(names)])


def view_rows(plan: ViewPlan, frames: Mapping[str, pl.DataFrame], rows: int = 1 << 16) -> Counter[Row]:
    """Return the rows of a view in any order, each with a flag whether the view keeps it."""
    return Counter(view_frame(plan, frames, rows).select(*plan.outputs, KEPT_COLUMN).iter_rows())
