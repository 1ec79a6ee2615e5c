"""Exact counts of the groups of a text column, alone or with declared attributes; all are private.

Only groups with a counted row are listed, because there are far too many others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from stream.tables.expressions import Predicate
from stream.tables.people_counts import count_people_in_cells
from stream.tables.table_errors import DataError, quote_name

if TYPE_CHECKING:
    from stream.tables.columns_table import PrivateTable

Numbers = npt.NDArray[np.int64]

_CELL_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class TextGroups:
    """The groups' texts, the numbers of their declared cells, and their counts."""

    private_texts: Sequence[bytes]
    private_cells: Numbers | None
    private_counts: Numbers

    def private_names(self) -> Sequence[bytes]:
        """Return a name for each group: its text, and then its cell if there are declared attributes."""
        if self.private_cells is None:
            return self.private_texts
        cells = self.private_cells.astype(">u4").tobytes()
        return [
            text + cells[_CELL_BYTES * place : _CELL_BYTES * (place + 1)]
            for place, text in enumerate(self.private_texts)
        ]


def split_name(name: bytes) -> tuple[bytes, int]:
    """Return the text and the cell of a group's name, if there are declared attributes."""
    return name[:-_CELL_BYTES], int.from_bytes(name[-_CELL_BYTES:], "big")


def count_groups(
    table: PrivateTable,
    attribute: str,
    declared: Sequence[str],
    shape: Sequence[int],
    predicate: Predicate,
    *,
    people: bool,
) -> TextGroups:
    """Count the matching rows, or their people, of each group of a text and declared attributes.

    Without declared attributes all texts of the column are listed. A row without a text is in no
    group. DataError if the attribute is not a text; other errors as in ``PrivateTable.count``.
    """
    column = table.private_texts.get(attribute)
    if column is None:
        raise DataError(
            f"{quote_name(attribute)} is not a text attribute of the table; name one of its text attributes"
        )
    if not declared:
        found = _count_keys(table, column.private_codes, len(column.private_texts) + 1, predicate, people=people)
        return TextGroups(column.private_texts, None, found[1:])
    cells = int(np.prod(shape))
    keys = np.empty(table.private_row_count, dtype=np.int64)
    for block in table.blocks():
        keys[block] = column.private_codes[block].astype(np.int64) * cells
        keys[block] += table.private_cells(declared, shape, block)
    present, places = np.unique(keys, return_inverse=True)
    counts = _count_keys(table, places, len(present), predicate, people=people)
    texted = present >= cells
    present = present[texted]
    texts = [column.private_texts[code - 1] for code in (present // cells).tolist()]
    return TextGroups(texts, present % cells, counts[texted])


def _count_keys(
    table: PrivateTable, keys: npt.NDArray[np.integer], size: int, predicate: Predicate, *, people: bool
) -> Numbers:
    """Count the matching rows of each key, or their people; the time does not depend on the rows."""
    all_rows = table.all_rows
    if not people or all_rows is None or all_rows.contribution == 1:
        counts = np.zeros(size + 1, dtype=np.int64)
        for block, inside in table.private_matches(predicate):
            # Rows that do not match are counted in an extra key.
            counts += np.bincount(np.where(inside, keys[block], size), minlength=size + 1)
        return counts[:size]
    return count_people_in_cells(table, lambda block: keys[block], size, predicate)
