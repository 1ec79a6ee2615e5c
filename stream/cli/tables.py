"""Tables for people, in which no word is cut: what is too narrow for columns is shown one row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_EDGES, _BETWEEN = 4, 3
"""Columns of a table's outer border with its padding, and of what stands between two columns."""

WIDEST: Final = 10_000
"""Columns where there is no terminal: more than any row has."""


def table_of(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> RenderableType:
    """A table that fits the console at the ends of words; where none does, each row with its columns' names before them."""
    cells = [[Text(cell) for cell in row] for row in rows]
    widths = _widths(console, [[Text(name), *column] for name, *column in zip(columns, *cells, strict=True)])
    if widths is None:
        return Group(Text(title, "table.title"), *(_stacked(columns, row) for row in cells))
    table = Table(title=Text(title, "table.title"), title_justify="left")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _widths(console: Console, columns: Sequence[Sequence[Text]]) -> list[int] | None:
    """What each column gets of the console's width; None if some word would be cut."""
    wide = console.options.update(max_width=WIDEST)
    wanted = [[Measurement.get(console, wide, cell) for cell in column] for column in columns]
    least = [max(cell.minimum for cell in column) for column in wanted]
    widths = [max(cell.maximum for cell in column) for column in wanted]
    room = console.width - _EDGES - _BETWEEN * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        # The widest of those that can still be broken between words.
        widest = max(
            (index for index in range(len(widths)) if widths[index] > least[index]), key=widths.__getitem__
        )
        widths[widest] -= 1
    return widths


def _stacked(columns: Sequence[str], row: Sequence[Text]) -> RenderableType:
    first, *rest = row
    width = max(map(len, columns[1:]), default=0)
    lines = [
        Text(f"{name:<{width}}  ").append_text(cell)
        for name, cell in zip(columns[1:], rest, strict=True)
        if cell.plain
    ]
    return Group(first, *(Padding(line, (0, 0, 0, 2), expand=False) for line in lines))
