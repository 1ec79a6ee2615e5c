"""Tables whose rows are columns of codes in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from schemas import Domain, TableSource
from stream.caches import BoundedCache, weigh_array
from stream.tables.counted_table import Cell, CellIndex, CountedTable, Numbers, code_mask
from stream.tables.encoding import CodeArray
from stream.tables.expressions import Codes, Cuts, Predicate, evaluate
from stream.tables.people import RowOwners, choose_rows, contribution_key
from stream.tables.rows import Frame, Rows
from stream.tables.texts import TextColumn, TextGroups, hashed_columns

Bitmap = npt.NDArray[np.uint64]
"""One bit per row, 64 rows per word; the bits after the last row are 0."""

BITMAP_CACHE_BYTES: Final = 64 << 20
INDEX_CACHE_SIZE: Final = 8
"""Maximum number of cached indexes of cells; each takes as much memory as the codes of its attributes."""

_FARTHEST_MINIMUM: Final = 1 << 32
"""Sums of 2^30 values that are not farther from 0 fit into 64 bits."""

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
            {name: column.declared for name, column in (texts or {}).items()},
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

    @cached_property
    def _table_of_all_rows(self) -> PrivateTable:
        return PrivateTable(self.attributes, self._require_people().private_codes)

    def _require_people(self) -> AllRows:
        if self.all_rows is None:
            raise TypeError("the table has no person column")
        return self.all_rows

    def _cells_of_rows(self, attributes: Sequence[str], shape: Sequence[int], block: slice) -> Numbers:
        """Return the index of each row's cell, in row-major order, for a block of rows."""
        cell = np.zeros(block.stop - block.start, dtype=np.int64)
        for name, length in zip(attributes, shape, strict=True):
            cell *= length
            cell += self.private_codes[name][block]
        return cell

    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> Numbers:
        """Return the number of rows in each of these cells, from an index that is cached."""
        return self._index(attributes).counts(cells)

    def private_matches(self, predicate: Predicate) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """Yield blocks of rows, each with a mask of its matching rows; TableDataError for unknown attributes."""
        bits = self._bitmap_of(predicate).view(np.uint8)
        for block in self._blocks():
            rows = block.stop - block.start
            yield block, np.unpackbits(bits[block.start // 8 : -(-block.stop // 8)], count=rows)

    def _blocks(self) -> Iterator[slice]:
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

    def _count_people(self, predicate: Predicate, min_rows: int) -> int:
        people = self._require_people().people
        rows = np.zeros(people.count + 1, dtype=np.int64)
        for block, inside in self._table_of_all_rows.private_matches(predicate):
            # Rows that do not match are counted for an extra person, so that the time does not depend on their number.
            owners = np.where(inside, people.private_numbers[block], people.count)
            rows += np.bincount(owners, minlength=people.count + 1)
        return int(np.count_nonzero(rows[: people.count] >= min_rows))

    def _sum_people(self, attribute: str, minimum: int, predicate: Predicate, limits: tuple[int, int]) -> int:
        # Domains have at most 2^20 values, and limits are below 2^31. So if a domain begins farther from 0 than
        # _FARTHEST_MINIMUM, all its values have one sign and exceed the limit, also after a move to that minimum.
        minimum = max(-_FARTHEST_MINIMUM, min(minimum, _FARTHEST_MINIMUM))
        if self.all_rows is None:
            total = 0
            for block, inside in self.private_matches(predicate):
                values = self.private_codes[attribute][block].astype(np.int64) + minimum
                total += int(np.clip(np.where(inside, values, 0), *limits).sum())
            return total
        people, codes = self.all_rows.people, self.all_rows.private_codes[attribute]
        sums = np.zeros(people.count + 1, dtype=np.int64)
        for block, inside in self._table_of_all_rows.private_matches(predicate):
            owners = np.where(inside, people.private_numbers[block], people.count)
            np.add.at(sums, owners, codes[block].astype(np.int64) + minimum)
        return int(np.clip(sums[: people.count], *limits).sum())

    def _count_cells(
        self, attributes: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> Numbers:
        def cells_of(block: slice) -> Numbers:
            return self._cells_of_rows(attributes, shape, block)

        return self._count_by_cell(cells_of, math.prod(shape), predicate, people=people)

    def _count_text_groups(
        self, attribute: str, declared: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> TextGroups:
        column = self.private_texts[attribute]
        codes, texts = column.private_codes, column.private_texts
        if not declared:
            counts = self._count_by_cell(lambda block: codes[block], len(texts) + 1, predicate, people=people)
            return TextGroups(texts, None, counts[1:])
        cells = math.prod(shape)
        groups = np.empty(self.private_row_count, dtype=np.int64)
        for block in self._blocks():
            groups[block] = codes[block].astype(np.int64) * cells
            groups[block] += self._cells_of_rows(declared, shape, block)
        # Only groups with a row are listed, because there are far too many others.
        present, places = np.unique(groups, return_inverse=True)
        counts = self._count_by_cell(lambda block: places[block], len(present), predicate, people=people)
        has_text = present >= cells
        present = present[has_text]
        names = [texts[code - 1] for code in (present // cells).tolist()]
        return TextGroups(names, present % cells, counts[has_text])

    def _count_by_cell(
        self,
        cells_of: Callable[[slice], npt.NDArray[np.integer]],
        size: int,
        predicate: Predicate,
        *,
        people: bool,
    ) -> Numbers:
        """Count the matching rows in each of ``size`` cells, or the people with a counted matching row in it.

        ``cells_of`` returns the cell of each row of a block. Rows that do not match go into an extra cell, so that the
        time does not depend on their number.
        """
        if not people:
            counts = np.zeros(size + 1, dtype=np.int64)
            for block, inside in self.private_matches(predicate):
                counts += np.bincount(np.where(inside, cells_of(block), size), minlength=size + 1)
            return counts[:size]
        owners = self._require_people().people.private_numbers
        places = np.empty(self.private_row_count, dtype=np.int64)
        for block, inside in self.private_matches(predicate):
            places[block] = np.where(inside, cells_of(block), size) + owners[block].astype(np.int64) * (size + 1)
        places.sort()
        first = np.ones(len(places), dtype=np.bool_)
        first[1:] = places[1:] != places[:-1]
        return np.bincount(places % (size + 1), weights=first, minlength=size + 1)[:size].astype(np.int64)

    def _index(self, attributes: Sequence[str]) -> CellIndex:
        key = tuple(attributes)
        if (index := self._indexes.get(key)) is None:
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
        if (bitmap := self._bitmaps.get(key)) is None:
            codes = self.private_codes[key[0]]
            bitmap = self._pack_bitmap(lambda block: rows(codes[block]))
            self._bitmaps.put(key, bitmap)
        return bitmap

    def _pack_bitmap(self, rows: Callable[[slice], npt.NDArray[np.bool_]]) -> Bitmap:
        bitmap = np.zeros(-(-self.private_row_count // _WORD_BITS), dtype=np.uint64)
        for block in self._blocks():
            bitmap.view(np.uint8)[block.start // 8 : -(-block.stop // 8)] = np.packbits(rows(block))
        bitmap.setflags(write=False)
        return bitmap


def _count_ones(bitmap: Bitmap) -> int:
    return int(np.bitwise_count(bitmap).sum(dtype=np.int64))
