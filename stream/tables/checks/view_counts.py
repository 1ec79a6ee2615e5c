"""Counts the rows that a view leaves out, and the cells that are not of the kind that ``columns`` declares."""

from __future__ import annotations

from collections import Counter

import polars as pl

from schemas import TableSource
from stream.tables.checks.cell_checks import ValueCounts, missing_cells
from stream.tables.checks.check_report import UnreadableCells, ViewRows, ViewTableRows
from stream.tables.views.view_parser import parse_view
from stream.tables.views.view_plan import PERSON_KIND, TableUse, column_label


class ViewCounts:
    """Private counts of the rows of a view; a ``RowObserver`` of one pass over them."""

    def __init__(self, source: TableSource) -> None:
        self._uses = parse_view(source).uses
        self._rows: Counter[str] = Counter()
        self._unmatched: Counter[str] = Counter()
        self._filtered = 0
        self._unreadable: dict[tuple[str, str], ValueCounts] = {}
        self._unreadable_rows: Counter[tuple[str, str]] = Counter()

    def add_cells(self, use: TableUse, cells: pl.DataFrame, converted: pl.DataFrame) -> None:
        """Count a table's rows, and its cells that become NULL although they are not missing."""
        self._rows[use.alias] += cells.height
        for name, kind in use.columns.items():
            values = converted[column_label(use.alias, name)]
            if kind in {"raw", PERSON_KIND} or not values.null_count():
                continue
            unread = cells[name].filter(values.is_null() & ~pl.Series(missing_cells(cells[name])))
            if len(unread):
                self._unreadable.setdefault((use.alias, name), ValueCounts()).add(unread.cast(pl.String))
                self._unreadable_rows[use.alias, name] += len(unread)

    def add_unmatched(self, use: TableUse, rows: int) -> None:
        """Count rows that a join leaves out."""
        self._unmatched[use.alias] += rows

    def add_filtered(self, rows: int) -> None:
        """Count rows that WHERE leaves out."""
        self._filtered += rows

    def report(self) -> ViewRows:
        """Return the counts, in the order of FROM and JOIN."""
        names = Counter(use.name for use in self._uses)
        labels = {
            use.alias: use.name if names[use.name] == 1 else f"{use.name} AS {use.alias}" for use in self._uses
        }
        return ViewRows(
            tables=tuple(
                ViewTableRows(label, self._rows[alias], self._unmatched[alias]) for alias, label in labels.items()
            ),
            filtered=self._filtered,
            unreadable=tuple(
                UnreadableCells(
                    labels[use.alias],
                    name,
                    kind,
                    self._unreadable_rows[use.alias, name],
                    self._unreadable[use.alias, name].most_frequent(),
                )
                for use in self._uses
                for name, kind in use.columns.items()
                if (use.alias, name) in self._unreadable
            ),
        )
