"""The plan of a view: which tables are joined how, which rows are kept, and what is selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas import ColumnKind, ViewTable
from stream.optional_packages import pl

PERSON_KIND: Final = "person"
"""The kind of a person column: names as ``people`` compares them, NULL if blank."""

UsedKind = ColumnKind | Literal["raw", "person"]


def column_label(alias: str, column: str) -> str:
    """Return the name of a table's column among the joined columns."""
    return f"{alias}\0{column}"


@dataclass(frozen=True)
class TableUse:
    """One table in FROM or JOIN: the name in the view's ``tables``, its alias, and the columns that are read."""

    name: str
    alias: str
    table: ViewTable
    columns: Mapping[str, UsedKind]


@dataclass(frozen=True)
class Join:
    """A join of the earlier tables to one more, on equal values.

    ``on`` has an expression of the earlier tables for each column of the other: for a lookup table those of its key,
    for a table of people the person. A row without a match is left out of the view if ``is_inner``.
    """

    use: TableUse
    on: Mapping[str, pl.Expr]
    is_inner: bool


@dataclass(frozen=True)
class ViewPlan:
    """A checked view: each row of the first table has rows of its own, and only they depend on it.

    ``where`` is a condition, and ``outputs`` has an expression for each selected column.
    """

    first: TableUse
    joins: tuple[Join, ...]
    where: pl.Expr | None
    outputs: Mapping[str, pl.Expr]

    @property
    def uses(self) -> tuple[TableUse, ...]:
        """The tables in the order of FROM and JOIN."""
        return (self.first, *(join.use for join in self.joins))
