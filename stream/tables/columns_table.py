"""Tables of private rows, and exact counts and sums over them."""

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
from stream.tables.encoding import CodeArray
from stream.tables.expressions import Codes, Cuts, Predicate, evaluate, memory_of
from stream.tables.people import RowOwners, choose_rows, contribution_key
from stream.tables.people_counts import PeopleCounts, TextGroups, count_groups
from stream.tables.rows import Frame, Rows
from stream.tables.sensitivity import require_summable
from stream.tables.table_errors import DataError, private_text_message, quote_name, undeclared_name_message
from stream.tables.texts import TextColumn, declared_texts, hashed_columns
from stream.tables.universe import Cell, CellIndex, code_mask

Bitmap = npt.NDArray[np.uint64]
"""One bit per row, 64 rows per word; the bits after the last row are 0."""

BITMAP_CACHE_BYTES: Final = 64 << 20
GROUP_CACHE_BYTES: Final = 64 << 20
COUNT_CACHE_BYTES: Final = 16 << 20
INDEX_CACHE_SIZE: Final = 8
"""Maximum number of cached indexes of cells; each takes as much memory as its attributes' codes."""

_MAX_AXES: Final = 64
_WORD_BITS: Final = 64
_MAX_BITMAP_CUTS: Final = 8
_BLOCK_ROWS: Final = 1 << 20
"""Rows per block, a multiple of 64; temporary arrays have the length of a block, not of the table."""

ZERO_KEY: Final = bytes(32)
"""The key for public or synthetic tables, which need no secret."""

_BitmapKey = (
    tuple[str, Literal["below"], int] | tuple[str, Literal["bit"], int] | tuple[str, Literal["among"], Cuts]
)


@dataclass(frozen=True, slots=True)
class AllRows:
    """All rows of all people: first the counted ones (at most ``contribution`` per person)."""

    person: str
    contribution: int
    private_codes: Mapping[str, CodeArray]
    people: RowOwners
    private_texts: Mapping[str, TextColumn]


class PrivateTable:
    """The counted rows of a table, as codes of attributes; computes exact counts and sums.

    Counts, totals and everything named ``private…`` must not be published without noise.

    - One more counted row changes each count by at most 1, only one of the counts of disjoint cells,
      and a total by at most ``sum_sensitivity``.
    - One person has one row or, with a person column, at most ``contribution`` counted rows, and
      changes ``people_count`` by at most 1.
    - The time that a count or total takes does not depend on the rows' content.
    - ``public_size`` is the number of rows in the file or, with a person column, of people plus rows
      without a person. Rows that are left out are included. It is equal for all neighbors that replace
      a person.
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
        self.attributes: Final = dict(attributes)
        self.private_codes: Final = dict(private_codes)
        self.private_row_count: Final = len(next(iter(self.private_codes.values())))
        self.public_size: Final = self.private_row_count if public_size is None else public_size
        self.all_rows: Final = all_rows
        self.private_texts: Final = dict(texts or {})
        for column in self.private_codes.values():
            column.setflags(write=False)
        self._full_bitmap = self._pack_bitmap(lambda block: np.ones(block.stop - block.start, dtype=np.bool_))
        self._empty_bitmap = np.zeros_like(self._full_bitmap)
        self._bitmaps: BoundedCache[_BitmapKey, Bitmap] = BoundedCache(bitmap_cache_bytes, weigh_array)
        self._counts: BoundedCache[Predicate, int] = BoundedCache(COUNT_CACHE_BYTES, name="table counts")
        self._people = PeopleCounts()
        self._table_of_all_rows: PrivateTable | None = None
        self._code_totals: BoundedCache[tuple[str, Predicate], int] = BoundedCache(
            COUNT_CACHE_BYTES, name="table counts"
        )
        self._groups: BoundedCache[tuple[tuple[str, ...], Predicate], npt.NDArray[np.int64]] = BoundedCache(
            GROUP_CACHE_BYTES, weigh_array, "table groups"
        )
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

    def fits_source(self, source: TableSource) -> bool:
        """Return whether the table fits a source's declaration."""
        bound = (None, 1) if self.all_rows is None else (self.all_rows.person, self.all_rows.contribution)
        declared = self.attributes == source.attributes and declared_texts(self.private_texts) == source.texts
        return declared and bound == (source.person, source.contribution)

    def __repr__(self) -> str:
        return f"Table(attributes={list(self.attributes)})"

    def count(self, predicate: Predicate) -> int:
        """Return the exact (private) number of rows that satisfy the predicate.

        DataError if the table lacks an attribute of the predicate or declares it with another size.
        """
        known = self._counts.get(predicate)
        if known is None:
            known = _count_ones(self._bitmap_of(predicate))
            self._counts.put(predicate, known, memory_of(predicate))
        return known

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
        """Return the sum over people of each one's clamped sum of an attribute; see ``PeopleCounts``."""
        return self._people.total(self, attribute, predicate, bound)

    def people_group_counts(
        self, attributes: Sequence[str], predicate: Predicate, max_cells: int = MAX_UNIVERSE
    ) -> npt.NDArray[np.int64]:
        """Return the number of people with a counted row in each cell; see ``PeopleCounts``."""
        return self._people.group_counts(self, attributes, predicate, max_cells)

    def counts(self, predicates: Sequence[Predicate]) -> npt.NDArray[np.int64]:
        """Return the exact (private) number of rows that satisfy each predicate."""
        return np.fromiter(map(self.count, predicates), dtype=np.int64, count=len(predicates))

    def total(self, attribute: str, predicate: Predicate, centre: int = 0) -> int:
        """Return the exact (private) sum of value − centre over the matching rows.

        Values are clamped, or their rows left out, as declared. So ``sum_sensitivity`` with the same centre
        bounds the effect of one row. The sum of decimals is in whole steps. DataError if the attribute has
        no sum, or the table lacks an attribute of the predicate.
        """
        [(name, domain)] = self._require_declared((attribute,)).items()
        integers = require_summable(domain, f"attribute {quote_name(name)}")
        known = self._code_totals.get((name, predicate))
        if known is None:
            rows = self._bitmap_of(predicate)
            bits = range((integers.size - 1).bit_length())
            known = sum(_count_ones(rows & self._bitmap_of_bit(name, bit)) << bit for bit in bits)
            self._code_totals.put((name, predicate), known, memory_of(predicate))
        return known + self.count(predicate) * (integers.minimum - centre)

    def group_counts(
        self, attributes: Sequence[str], predicate: Predicate, max_cells: int = MAX_UNIVERSE
    ) -> npt.NDArray[np.int64]:
        """Return the exact (private) number of matching rows in each cell.

        One axis per attribute in the given order; row-major and read-only. DataError if an attribute is
        unknown or repeated, if there are more than ``max_cells`` cells, or if the table lacks an attribute
        of the predicate.
        """
        shape = self.group_shape(attributes, max_cells)
        size = math.prod(shape)
        key = (tuple(attributes), predicate)
        known = self._groups.get(key)
        if known is None:
            counted = np.zeros(size + 1, dtype=np.int64)
            for block, inside in self.private_matches(predicate):
                cell = self.private_cells(attributes, shape, block)
                # Rows that do not match are counted in an extra cell, so that the time is constant.
                counted += np.bincount(np.where(inside, cell, size), minlength=size + 1)
            known = counted[:size].reshape(shape)
            known.setflags(write=False)
            self._groups.put(key, known)
        return known

    def group_shape(self, attributes: Sequence[str], max_cells: int) -> tuple[int, ...]:
        """Return the number of values of each attribute; DataError for too many cells or unknown names."""
        shape = tuple(domain.size for domain in self._require_declared(attributes).values())
        if math.prod(shape) > max_cells or len(shape) > _MAX_AXES:
            raise DataError(
                f"grouping has more than {max_cells} cells or {_MAX_AXES} attributes; group by fewer or smaller ones"
            )
        return shape

    def private_cells(
        self, attributes: Sequence[str], shape: Sequence[int], block: slice
    ) -> npt.NDArray[np.int64]:
        """Return the number of each row's cell, in row-major order, for a block of rows."""
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
        """Return the exact (private) number of matching rows, or people, in each group of a text.

        A group is a text or, with ``declared`` attributes, a text and a cell of these attributes. A row is
        in at most one group.
        DataError if ``attribute`` is not a text, and as in ``group_counts``.
        """
        shape = self.group_shape(declared, max_cells) if declared else ()
        return count_groups(self, attribute, declared, shape, predicate, people=people)

    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
        """Return the exact (private) number of rows in each of these cells.

        A cell has one code per attribute in the given order; the number of possible cells is unlimited.
        DataError if an attribute is unknown or repeated, or a cell is invalid.
        """
        return self._index(attributes).counts(cells)

    def private_matches(self, predicate: Predicate) -> Iterator[tuple[slice, npt.NDArray[np.uint8]]]:
        """Yield blocks of rows, each with a mask of matching rows; DataError for unknown attributes."""
        bits = self._bitmap_of(predicate).view(np.uint8)
        for block in self.blocks():
            rows = block.stop - block.start
            yield block, np.unpackbits(bits[block.start // 8 : -(-block.stop // 8)], count=rows)

    def blocks(self) -> Iterator[slice]:
        """Yield the rows in blocks."""
        for start in range(0, self.private_row_count, _BLOCK_ROWS):
            yield slice(start, min(start + _BLOCK_ROWS, self.private_row_count))

    def _require_declared(self, attributes: Sequence[str]) -> dict[str, Domain]:
        if not attributes:
            raise DataError("no attribute is named; name at least one")
        for place, name in enumerate(attributes):
            if name in self.private_texts:
                raise DataError(private_text_message(name))
            if name not in self.attributes:
                raise DataError(undeclared_name_message(place, name, self.attributes, "the table, which has"))
            if name in attributes[:place]:
                raise DataError(f"attribute {quote_name(name)} is named twice; name it once")
        return {name: self.attributes[name] for name in attributes}

    def _index(self, attributes: Sequence[str]) -> CellIndex:
        key = tuple(attributes)
        index = self._indexes.get(key)
        if index is None:
            sizes = {name: domain.size for name, domain in self._require_declared(attributes).items()}
            index = CellIndex(self.private_codes, sizes)
            self._indexes.put(key, index)
        return index

    def _bitmap_of(self, predicate: Predicate) -> Bitmap:
        # Empty and full bitmaps take the same path, because a shorter time would reveal private data.
        return evaluate(
            predicate,
            lambda holds: self._full_bitmap if holds else self._empty_bitmap,
            self._bitmap_of_leaf,
            np.bitwise_and,
            np.bitwise_or,
        )

    def _bitmap_of_leaf(self, leaf: Codes) -> Bitmap:
        domain = self.attributes.get(leaf.attribute)
        if domain is None or domain.size != leaf.size:
            raise DataError(
                f"the table declares {quote_name(leaf.attribute)} otherwise; parse the predicate for this table"
            )
        if len(leaf.cuts) > _MAX_BITMAP_CUTS:
            inside = code_mask(leaf.cuts, leaf.size)
            return self._cached_bitmap((leaf.attribute, "among", leaf.cuts), lambda codes: inside[codes])
        # The XOR of the bitmaps "code < cut" over all cuts is the bitmap of the rows inside the ranges.
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
