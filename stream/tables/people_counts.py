"""Exact counts and sums over the people of a table, and counts of the groups of a text; all are private.

Only groups of a text with a counted row are listed, because there are far too many others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from stream.caches import BoundedCache, weigh_array
from stream.tables.expressions import Predicate, memory_of
from stream.tables.sensitivity import person_range, require_summable
from stream.tables.table_errors import DataError, quote_name
from stream.tables.texts import TextColumn

if TYPE_CHECKING:
    from stream.tables.columns_table import PrivateTable

Numbers = npt.NDArray[np.int64]

COUNT_CACHE_BYTES: Final = 16 << 20
GROUP_CACHE_BYTES: Final = 32 << 20
_FARTHEST_MINIMUM: Final = 1 << 32
"""Sums of 2^30 codes and minimums up to this one fit in 64 bits."""


class PeopleCounts:
    """Counts the people of one table, and adds up their clamped sums; all results are private.

    Without a person column each row is one person. Counts and sums of people use all of a person's
    rows, including those that do not count. Counts by group use only the counted rows, so that a person
    is in at most ``contribution`` groups. The time does not depend on the rows' content.
    """

    def __init__(self) -> None:
        self._counts: BoundedCache[tuple[object, ...], int] = BoundedCache(COUNT_CACHE_BYTES, name="table counts")
        self._groups: BoundedCache[tuple[tuple[str, ...], Predicate], Numbers] = BoundedCache(
            GROUP_CACHE_BYTES, weigh_array
        )

    def count(self, table: PrivateTable, predicate: Predicate, min_rows: int = 1) -> int:
        """Return the number of people with at least ``min_rows`` matching rows.

        One person changes the number by at most 1. DataError as in ``PrivateTable.count``.
        """
        all_rows = table.all_rows
        if all_rows is None:
            rows = table.count(predicate)
            return rows if min_rows == 1 else 0
        key = (predicate, min_rows)
        if (known := self._counts.get(key)) is None:
            known = int(np.count_nonzero(_rows_of_people(table, predicate) >= min_rows))
            self._counts.put(key, known, memory_of(predicate))
        return known

    def total(self, table: PrivateTable, attribute: str, predicate: Predicate, bound: int) -> int:
        """Return the total of all people's clamped sums of an attribute over their matching rows.

        Each person's sum is clamped to ``person_range``, so one person changes the total by at most
        ``person_sensitivity``. DataError if the attribute has no sum, and as in ``count``.
        """
        domain = table.attributes.get(attribute)
        if domain is None:
            raise DataError("the attribute is not declared; name a declared one")
        integers = require_summable(domain, f"attribute {quote_name(attribute)}")
        key = (attribute, predicate, bound)
        if (known := self._counts.get(key)) is None:
            low, high = person_range(integers, bound)
            # Domains have at most 2^20 values, and bounds are below 2^31. So all values of a domain that
            # begins farther from 0 are beyond the bound with one sign, also if it is moved nearer to 0.
            minimum = max(-_FARTHEST_MINIMUM, min(integers.minimum, _FARTHEST_MINIMUM))
            known = 0
            for sums in _sums_of_people(table, attribute, minimum, predicate):
                known += int(np.clip(sums, low, high).sum())
            self._counts.put(key, known, memory_of(predicate))
        return known

    def group_counts(
        self, table: PrivateTable, attributes: Sequence[str], predicate: Predicate, max_cells: int
    ) -> Numbers:
        """Return, for each cell, the number of people with a counted matching row in it.

        The array has one axis per attribute. Errors as in ``PrivateTable.group_counts``.
        """
        all_rows = table.all_rows
        if all_rows is None or all_rows.contribution == 1:
            # Each person has one counted row.
            return table.group_counts(attributes, predicate, max_cells)
        shape = table.group_shape(attributes, max_cells)
        key = (tuple(attributes), predicate)
        if (known := self._groups.get(key)) is None:
            known = count_people_in_cells(
                table, lambda block: table.private_cells(attributes, shape, block), math.prod(shape), predicate
            ).reshape(shape)
            known.setflags(write=False)
            self._groups.put(key, known)
        return known


def count_people_in_cells(
    table: PrivateTable, cells_of: Callable[[slice], npt.NDArray[np.integer]], size: int, predicate: Predicate
) -> Numbers:
    """Return, for each of ``size`` cells, the number of people with a counted matching row in it.

    ``cells_of`` returns the cell of each row of a block.
    """
    all_rows = table.all_rows
    if all_rows is None:
        raise TypeError("the table has no person column")
    person_of_row = all_rows.people.private_numbers[: table.private_row_count]
    places = np.empty(table.private_row_count, dtype=np.int64)
    for block, inside in table.private_matches(predicate):
        # Rows that do not match are put in an extra cell, so that the time is constant.
        cells = np.where(inside, cells_of(block), size)
        places[block] = cells + person_of_row[block].astype(np.int64) * (size + 1)
    places.sort()
    first = np.ones(len(places), dtype=np.bool_)
    first[1:] = places[1:] != places[:-1]
    found = np.bincount(places % (size + 1), weights=first, minlength=size + 1)
    return found[:size].astype(np.int64)


def _rows_of_people(table: PrivateTable, predicate: Predicate) -> Numbers:
    """Return each person's number of matching rows."""
    all_rows = table.all_rows
    if all_rows is None:
        raise TypeError("the table has no person column")
    person_of_row, count = all_rows.people.private_numbers, all_rows.people.count
    rows = np.zeros(count + 1, dtype=np.int64)
    for block, inside in table.table_of_all_rows.private_matches(predicate):
        # Rows that do not match are counted for an extra person, so that the time is constant.
        rows += np.bincount(np.where(inside, person_of_row[block], count), minlength=count + 1)
    return rows[:count]


def _sums_of_people(table: PrivateTable, attribute: str, minimum: int, predicate: Predicate) -> Iterator[Numbers]:
    """Yield the people's sums of an attribute, in one array or several."""
    all_rows = table.all_rows
    if all_rows is None:
        for block, inside in table.private_matches(predicate):
            codes = table.private_codes[attribute][block].astype(np.int64)
            yield np.where(inside, codes + minimum, 0)
        return
    person_of_row, count = all_rows.people.private_numbers, all_rows.people.count
    sums = np.zeros(count + 1, dtype=np.int64)
    for block, inside in table.table_of_all_rows.private_matches(predicate):
        values = all_rows.private_codes[attribute][block].astype(np.int64) + minimum
        np.add.at(sums, np.where(inside, person_of_row[block], count), values)
    yield sums[:count]


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
    column = require_text(table.private_texts, attribute)
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


def require_text(columns: Mapping[str, TextColumn], attribute: str) -> TextColumn:
    """Return the column of a text; DataError for another attribute."""
    if (column := columns.get(attribute)) is None:
        raise DataError(
            f"{quote_name(attribute)} is not a text attribute of the table; name one of its text attributes"
        )
    return column


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
