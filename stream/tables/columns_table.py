"""Tables whose rows are columns of codes in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from schemas import MAX_UNIVERSE, Domain, TableSource
from stream.caches import BoundedCache, weigh_array
from stream.tables.counted_table import COUNT_CACHE_BYTES, Cell, CellIndex, CountedTable, Numbers, code_mask
from stream.tables.encoding import CodeArray
from stream.tables.expressions import Codes, Cuts, Predicate, evaluate, memory_of
from stream.tables.people import RowOwners, choose_rows, contribution_key, count_people_in_cells
from stream.tables.rows import Frame, Rows
from stream.tables.sensitivity import person_range, require_summable
from stream.tables.table_errors import DataError, quote_name
from stream.tables.texts import TextColumn, TextGroups, count_groups, declared_texts, hashed_columns

Bitmap = npt.NDArray[np.uint64]
"""One bit per row, 64 rows per word; the bits after the last row are 0."""

BITMAP_CACHE_BYTES: Final = 64 << 20
INDEX_CACHE_SIZE: Final = 8
"""Maximum number of cached indexes of cells; each takes as much memory as the codes of its attributes."""

_PEOPLE_GROUP_CACHE_BYTES: Final = 32 << 20
_FARTHEST_MINIMUM: Final = 1 << 32
"""Farthest minimum from 0 of values that are added up: sums of 2^30 such values fit into 64 bits."""

_WORD_BITS: Final = 64
_MAX_BITMAP_CUTS: Final = 8
_BLOCK_ROWS: Final = 1 << 20
"""Rows of a block, a multiple of 64. Temporary arrays have the length of a block, not of the table."""

ZERO_KEY: Final = bytes(32)
"""The key for public or synthetic tables, which need no secret."""

_BitmapKey = (
    tuple[str, Literal["below"], int] | tuple[str, Literal["bit"], int] | tuple[str, Literal["among"], Cuts]
)


@dataclass(frozen=True, slots=True)
class AllRows:
    """All rows of all people; the first rows are the counted ones, at most ``contribution`` of each person."""

    person: str
    contribution: int
    private_codes: Mapping[str, CodeArray]
    people: RowOwners
    private_texts: Mapping[str, TextColumn]


class PrivateTable(CountedTable):
    """The counted rows of a table as columns in memory; predicates become bitmaps over the rows.

    The time of a count or a total does not depend on the rows' content.
    """

    def __init__(
        self,
        attributes: Mapping[str, Domain],
        private_codes: Mapping[str, CodeArray],
        bitmap_cache_bytes: int = BITMAP_CACHE_BYTES,
        public_size: int | None = None,
        all_rows: AllRows | None = None,
        texts: Mapping[str, TextColumn] | None = None,
    ) -> None:
        codes = dict(private_codes)
        rows = len(next(iter(codes.values())))
        super().__init__(
            attributes,
            rows,
            rows if public_size is None else public_size,
            declared_texts(texts or {}),
            None if all_rows is None else all_rows.person,
            1 if all_rows is None else all_rows.contribution,
        )
        self.private_codes: Final = codes
        self.all_rows: Final = all_rows
        self.private_texts: Final = dict(texts or {})
        for column in self.private_codes.values():
            column.setflags(write=False)
        self._full_bitmap = self._pack_bitmap(lambda block: np.ones(block.stop - block.start, dtype=np.bool_))
        self._empty_bitmap = np.zeros_like(self._full_bitmap)
        self._bitmaps: BoundedCache[_BitmapKey, Bitmap] = BoundedCache(bitmap_cache_bytes, weigh_array)
        self._people = PeopleCounts()
        self._table_of_all_rows: PrivateTable | None = None
        self._indexes: BoundedCache[tuple[str, ...], CellIndex] = BoundedCache(INDEX_CACHE_SIZE)

    @classmethod
    def from_rows(cls, rows: Rows, source: TableSource, key: bytes = ZERO_KEY) -> PrivateTable:
        """Build the table of a source's rows; ``key`` determines which rows of a person count."""
        if rows.people is None:
            texts = rows.private_texts
            return cls(rows.attributes, rows.private_codes, public_size=rows.file_row_count, texts=texts)
        hashed = hashed_columns(rows.private_codes, rows.private_texts)
        found = choose_rows(hashed, rows.people, source.contribution, contribution_key(key, source.source))
        codes = {name: column[found.private_order] for name, column in rows.private_codes.items()}
        texts = {name: column.gather(found.private_order) for name, column in rows.private_texts.items()}
        all_rows = AllRows(source.person or "", source.contribution, codes, found.people, texts)
        counted = {name: column[: found.private_counted] for name, column in codes.items()}
        texts = {name: column.gather(slice(found.private_counted)) for name, column in texts.items()}
        return cls(rows.attributes, counted, public_size=found.people.public_size, all_rows=all_rows, texts=texts)

    @classmethod
    def load(cls, source: TableSource, frame: Frame | None = None, key: bytes = ZERO_KEY) -> PrivateTable:
        """Read a source's table from its path or from ``frame``; see ``Rows.load``."""
        return cls.from_rows(Rows.load(source, frame), source, key)

    def rows(self) -> Rows:
        """Return all rows, including those that do not count."""
        if self.all_rows is None:
            return Rows(self.attributes, self.private_codes, self.public_size, None, self.private_texts)
        every = self.all_rows
        return Rows(self.attributes, every.private_codes, self.public_size, every.people, every.private_texts)

    @property
    def table_of_all_rows(self) -> PrivateTable:
        """The table of all rows of all people, including those that do not count."""
        if self.all_rows is None:
            return self
        if self._table_of_all_rows is None:
            self._table_of_all_rows = PrivateTable(self.attributes, self.all_rows.private_codes)
        return self._table_of_all_rows

    def people_count(self, predicate: Predicate, min_rows: int = 1) -> int:
        """Return the number of people with at least ``min_rows`` matching rows; see ``PeopleCounts``."""
        return self._people.count(self, predicate, min_rows)

    def person_total(self, attribute: str, predicate: Predicate, bound: int) -> int:
        """Return the total of all people's clamped sums of an attribute; see ``PeopleCounts``."""
        return self._people.total(self, attribute, predicate, bound)

    def people_group_counts(
        self, attributes: Sequence[str], predicate: Predicate, max_cells: int = MAX_UNIVERSE
    ) -> Numbers:
        """Return the number of people with a counted row in each cell; see ``PeopleCounts``."""
        return self._people.group_counts(self, attributes, predicate, max_cells)

    def private_cells(self, attributes: Sequence[str], shape: Sequence[int], block: slice) -> Numbers:
        """Return the index of each row's cell, in row-major order, for a block of rows."""
        cell = np.zeros(block.stop - block.start, dtype=np.int64)
        for name, length in zip(attributes, shape, strict=True):
            cell *= length
            cell += self.private_codes[name][block]
        return cell

    def text_groups(
        self,
        attribute: str,
        predicate: Predicate,
        declared: Sequence[str] = (),
        *,
        people: bool = False,
        max_cells: int = MAX_UNIVERSE,
    ) -> TextGroups:
        """Return the counts of a text's groups; see ``CountedTable``."""
        shape = self.group_shape(declared, max_cells) if declared else ()
        return count_groups(self, attribute, declared, shape, predicate, people=people)

    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> Numbers:
        """Return the number of rows in each of these cells, from an index that is cached."""
        return self._index(attributes).counts(cells)

    def private_matches(self, predicate: Predicate) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """Yield blocks of rows, each with a mask of its matching rows; DataError for unknown attributes."""
        bits = self._bitmap_of(predicate).view(np.uint8)
        for block in self.blocks():
            rows = block.stop - block.start
            yield block, np.unpackbits(bits[block.start // 8 : -(-block.stop // 8)], count=rows)

    def blocks(self) -> Iterator[slice]:
        """Yield the rows in blocks."""
        for start in range(0, self.private_row_count, _BLOCK_ROWS):
            yield slice(start, min(start + _BLOCK_ROWS, self.private_row_count))

    def private_code_blocks(self, attributes: Sequence[str]) -> Iterator[Sequence[CodeArray]]:
        """Yield the codes of these attributes in one block."""
        yield [self.private_codes[name] for name in attributes]

    def _count_rows(self, predicate: Predicate) -> int:
        return _count_ones(self._bitmap_of(predicate))

    def _sum_codes(self, attribute: str, predicate: Predicate) -> int:
        rows = self._bitmap_of(predicate)
        bits = range((self.attributes[attribute].size - 1).bit_length())
        return sum(_count_ones(rows & self._bitmap_of_bit(attribute, bit)) << bit for bit in bits)

    def _count_cells(self, attributes: Sequence[str], shape: Sequence[int], predicate: Predicate) -> Numbers:
        size = math.prod(shape)
        counted = np.zeros(size + 1, dtype=np.int64)
        for block, inside in self.private_matches(predicate):
            cell = self.private_cells(attributes, shape, block)
            # Rows that do not match are counted in an extra cell, so that the time does not depend on their number.
            counted += np.bincount(np.where(inside, cell, size), minlength=size + 1)
        return counted[:size]

    def _index(self, attributes: Sequence[str]) -> CellIndex:
        key = tuple(attributes)
        index = self._indexes.get(key)
        if index is None:
            sizes = {name: domain.size for name, domain in self._require_declared(attributes).items()}
            index = CellIndex(self.private_codes, sizes)
            self._indexes.put(key, index)
        return index

    def _bitmap_of(self, predicate: Predicate) -> Bitmap:
        # Empty and full bitmaps are computed like others, because a shorter time would reveal private data.
        return evaluate(
            predicate,
            lambda holds: self._full_bitmap if holds else self._empty_bitmap,
            self._bitmap_of_leaf,
            np.bitwise_and,
            np.bitwise_or,
        )

    def _bitmap_of_leaf(self, leaf: Codes) -> Bitmap:
        self._require_leaf(leaf)
        if len(leaf.cuts) > _MAX_BITMAP_CUTS:
            inside = code_mask(leaf.cuts, leaf.size)
            return self._cached_bitmap((leaf.attribute, "among", leaf.cuts), lambda codes: inside[codes])
        # The XOR of the bitmaps "code < cut" of all cuts is the bitmap of the rows inside the ranges.
        return reduce(np.bitwise_xor, [self._bitmap_below(leaf.attribute, leaf.size, cut) for cut in leaf.cuts])

    def _bitmap_below(self, attribute: str, size: int, cut: int) -> Bitmap:
        if cut == 0:
            return self._empty_bitmap
        if cut == size:
            return self._full_bitmap
        return self._cached_bitmap((attribute, "below", cut), lambda codes: codes < cut)

    def _bitmap_of_bit(self, attribute: str, bit: int) -> Bitmap:
        return self._cached_bitmap((attribute, "bit", bit), lambda codes: (codes & (1 << bit)).astype(np.bool_))

    def _cached_bitmap(self, key: _BitmapKey, rows: Callable[[CodeArray], npt.NDArray[np.bool_]]) -> Bitmap:
        bitmap = self._bitmaps.get(key)
        if bitmap is None:
            codes = self.private_codes[key[0]]
            bitmap = self._pack_bitmap(lambda block: rows(codes[block]))
            self._bitmaps.put(key, bitmap)
        return bitmap

    def _pack_bitmap(self, rows: Callable[[slice], npt.NDArray[np.bool_]]) -> Bitmap:
        bitmap = np.zeros(-(-self.private_row_count // _WORD_BITS), dtype=np.uint64)
        for block in self.blocks():
            bitmap.view(np.uint8)[block.start // 8 : -(-block.stop // 8)] = np.packbits(rows(block))
        bitmap.setflags(write=False)
        return bitmap


def _count_ones(bitmap: Bitmap) -> int:
    return int(np.bitwise_count(bitmap).sum(dtype=np.int64))


class PeopleCounts:
    """Counts the people of one table, and adds up their clamped sums; all results are private.

    Without a person column each row is one person. Counts and sums use all rows of a person, including rows that do not
    count. Counts of groups use only the counted rows, so that a person is in at most ``contribution`` groups. The time
    does not depend on the rows' content.
    """

    def __init__(self) -> None:
        self._counts: BoundedCache[tuple[object, ...], int] = BoundedCache(COUNT_CACHE_BYTES, name="table counts")
        self._groups: BoundedCache[tuple[tuple[str, ...], Predicate], Numbers] = BoundedCache(
            _PEOPLE_GROUP_CACHE_BYTES, weigh_array
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
            # Domains have at most 2^20 values, and bounds are below 2^31. So if a domain begins farther from 0 than
            # _FARTHEST_MINIMUM, all its values have one sign and exceed the bound, also after a move to that minimum.
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


def _rows_of_people(table: PrivateTable, predicate: Predicate) -> Numbers:
    """Return each person's number of matching rows."""
    all_rows = table.all_rows
    if all_rows is None:
        raise TypeError("the table has no person column")
    person_of_row, count = all_rows.people.private_numbers, all_rows.people.count
    rows = np.zeros(count + 1, dtype=np.int64)
    for block, inside in table.table_of_all_rows.private_matches(predicate):
        # Rows that do not match are counted for an extra person, so that the time does not depend on their number.
        rows += np.bincount(np.where(inside, person_of_row[block], count), minlength=count + 1)
    return rows[:count]


def _sums_of_people(table: PrivateTable, attribute: str, minimum: int, predicate: Predicate) -> Iterator[Numbers]:
    """Yield the people's sums of an attribute over their matching rows, in one array or several."""
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
