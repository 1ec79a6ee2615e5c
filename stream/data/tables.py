"""Tables of private rows, and exact counts and sums over them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import Domain, TableSource
from stream.data.cache import BoundedCache
from stream.data.encoding import CodeArray, encode
from stream.data.errors import DataError, shown
from stream.data.expressions import Codes, Cuts, Predicate, evaluate, membership
from stream.data.files import Frame, in_memory, read_columns
from stream.data.sums import summable
from stream.data.universe import Cell, CellIndex

Bitmap = npt.NDArray[np.uint64]
"""One bit a row, 64 rows a word; the bits after the last row are 0."""

BITMAP_CACHE_BYTES: Final = 64 << 20
GROUP_CACHE_BYTES: Final = 64 << 20
COUNT_CACHE_SIZE: Final = 1 << 14
INDEX_CACHE_SIZE: Final = 8
"""Most indexes of cells that are kept; each takes as much memory as the codes of its attributes."""

MAX_GROUP_CELLS: Final = 1 << 20
"""Most cells of one group-by, unless the caller allows more."""

_MOST_AXES: Final = 64
_WORD_BITS: Final = 64
_MOST_CUTS_BY_BITMAP: Final = 8
_FINGERPRINT_TAG: Final = b"sotto table fingerprint v1"

_BitmapKey = (
    tuple[str, Literal["below"], int] | tuple[str, Literal["bit"], int] | tuple[str, Literal["among"], Cuts]
)


class Table:
    """The rows of a table as codes of its declared attributes, with exact counts and sums.

    Everything that starts with ``private`` and every count and total is private data: it may meet noise and nothing
    else. Adding or removing one row of the file moves every count by at most 1, and of a group-by or of distinct
    cells one count at most; totals move by at most ``sum_sensitivity``. No count or total is cut short by what the
    rows hold. ``file_row_count`` counts the file's rows, those that the domains' rules left out among them: it alone is
    the same for all neighbours where these replace a row.
    """

    def __init__(
        self,
        attributes: Mapping[str, Domain],
        private_codes: Mapping[str, CodeArray],
        bitmap_cache_bytes: int = BITMAP_CACHE_BYTES,
        file_row_count: int | None = None,
    ) -> None:
        self.attributes: Final = dict(attributes)
        self.private_codes: Final = dict(private_codes)
        self.private_row_count: Final = len(next(iter(self.private_codes.values())))
        self.file_row_count: Final = self.private_row_count if file_row_count is None else file_row_count
        for column in self.private_codes.values():
            column.setflags(write=False)
        self._everyone = self._packed(np.ones(self.private_row_count, dtype=np.bool_))
        self._nobody = np.zeros_like(self._everyone)
        self._bitmaps: BoundedCache[_BitmapKey, Bitmap] = BoundedCache(
            bitmap_cache_bytes,
            lambda bitmap: bitmap.nbytes,
        )
        self._counts: BoundedCache[Predicate, int] = BoundedCache(COUNT_CACHE_SIZE)
        self._code_totals: BoundedCache[tuple[str, Predicate], int] = BoundedCache(COUNT_CACHE_SIZE)
        self._groups: BoundedCache[tuple[tuple[str, ...], Predicate], npt.NDArray[np.int64]] = BoundedCache(
            GROUP_CACHE_BYTES,
            lambda group: group.nbytes,
        )
        self._indexes: BoundedCache[tuple[str, ...], CellIndex] = BoundedCache(INDEX_CACHE_SIZE)

    @classmethod
    def load(cls, source: TableSource, frame: Frame | None = None) -> Table:
        """Read a source's table from its file, or from ``frame`` instead, and encode it by the declared domains.

        Rows that the domains' rules leave out are not in the table. DataError if the file or a column is missing
        or unreadable; no error depends on what a cell of a well-formed file holds.
        """
        names = list(source.attributes)
        cells = read_columns(Path(source.path), names) if frame is None else in_memory(frame, names)
        kept = np.ones(cells.height, dtype=np.bool_)
        encoded: dict[str, CodeArray] = {}
        for name, domain in source.attributes.items():
            encoded[name], known = encode(name, domain, cells[name])
            kept &= known
        kept_codes = {name: column[kept] for name, column in encoded.items()}
        return cls(source.attributes, kept_codes, file_row_count=cells.height)

    def __repr__(self) -> str:
        return f"Table(attributes={list(self.attributes)})"

    def count(self, predicate: Predicate) -> int:
        """How many rows satisfy the predicate, exactly. The number is private.

        The predicate must have been parsed for this table's attributes; DataError if the table lacks one of its
        attributes or declares it with another number of values.
        """
        known = self._counts.get(predicate)
        if known is None:
            known = _ones(self._bits(predicate))
            self._counts.put(predicate, known)
        return known

    def counts(self, predicates: Sequence[Predicate]) -> npt.NDArray[np.int64]:
        """How many rows satisfy each predicate, exactly. The numbers are private."""
        return np.fromiter(map(self.count, predicates), dtype=np.int64, count=len(predicates))

    def total(self, attribute: str, predicate: Predicate, centre: int = 0) -> int:
        """The exact sum of value − centre over the rows that satisfy the predicate. The number is private.

        The values are those that the declared rule left, so that ``sum_sensitivity`` of the attribute's domain and
        the same centre bounds what one row does. DataError if the attribute is not declared as integers, and as
        from ``count``.
        """
        [(name, domain)] = self._declared((attribute,)).items()
        integers = summable(domain, f"attribute {shown(name)}")
        known = self._code_totals.get((name, predicate))
        if known is None:
            rows = self._bits(predicate)
            bits = range((integers.size - 1).bit_length())
            known = sum(_ones(rows & self._bit(name, bit)) << bit for bit in bits)
            self._code_totals.put((name, predicate), known)
        return known + self.count(predicate) * (integers.minimum - centre)

    def group_counts(
        self,
        attributes: Sequence[str],
        predicate: Predicate,
        max_cells: int = MAX_GROUP_CELLS,
    ) -> npt.NDArray[np.int64]:
        """How many rows that satisfy the predicate lie in each cell, exactly. The numbers are private.

        One axis an attribute, in the order given, along the codes of its domain; in memory in row-major order, and
        read-only. DataError if an attribute is unknown or named twice, if the product of the domains' sizes exceeds
        ``max_cells``, and as from ``count``.
        """
        shape = tuple(domain.size for domain in self._declared(attributes).values())
        size = math.prod(shape)
        if size > max_cells or len(shape) > _MOST_AXES:
            raise DataError(
                f"grouping has more than {max_cells} cells or {_MOST_AXES} attributes; group by fewer or smaller ones"
            )
        key = (tuple(attributes), predicate)
        known = self._groups.get(key)
        if known is None:
            cell = np.zeros(self.private_row_count, dtype=np.int64)
            for name, length in zip(attributes, shape, strict=True):
                cell *= length
                cell += self.private_codes[name]
            # Rows outside take one cell more, instead of being left out: how many they are would show in the time.
            inside = np.unpackbits(self._bits(predicate).view(np.uint8), count=self.private_row_count)
            counted = np.bincount(np.where(inside, cell, size), minlength=size + 1)
            known = counted[:size].astype(np.int64).reshape(shape)
            known.setflags(write=False)
            self._groups.put(key, known)
        return known

    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
        """How many rows lie in each cell of the attributes' product, exactly. The numbers are private.

        A cell has one code an attribute, in the order given, as ``cell_codes`` reads them; the product may be of any
        size. DataError if an attribute is unknown or named twice, or a cell is none of theirs.
        """
        return self._index(attributes).counts(cells)

    def _declared(self, attributes: Sequence[str]) -> dict[str, Domain]:
        if not attributes:
            raise DataError("no attribute is named; name at least one")
        for place, name in enumerate(attributes):
            if name not in self.attributes:
                raise DataError(f"name {place + 1} is no attribute of the table; name a declared one")
            if name in attributes[:place]:
                raise DataError(f"attribute {shown(name)} is named twice; name it once")
        return {name: self.attributes[name] for name in attributes}

    def _index(self, attributes: Sequence[str]) -> CellIndex:
        key = tuple(attributes)
        index = self._indexes.get(key)
        if index is None:
            sizes = {name: domain.size for name, domain in self._declared(attributes).items()}
            index = CellIndex(self.private_codes, sizes)
            self._indexes.put(key, index)
        return index

    def _bits(self, predicate: Predicate) -> Bitmap:
        # Nothing is cut short when a part is empty or full: the time taken would tell of the rows.
        return evaluate(
            predicate,
            lambda holds: self._everyone if holds else self._nobody,
            self._leaf,
            np.bitwise_and,
            np.bitwise_or,
        )

    def _leaf(self, leaf: Codes) -> Bitmap:
        domain = self.attributes.get(leaf.attribute)
        if domain is None or domain.size != leaf.size:
            raise DataError(
                f"the table declares {shown(leaf.attribute)} otherwise; parse the predicate for this table"
            )
        if len(leaf.cuts) > _MOST_CUTS_BY_BITMAP:
            return self._among(leaf)
        # The rows below each cut hold those below the one before, so that their differences are the ranges.
        return reduce(np.bitwise_xor, [self._below(leaf.attribute, leaf.size, cut) for cut in leaf.cuts])

    def _below(self, attribute: str, size: int, cut: int) -> Bitmap:
        if cut == 0:
            return self._nobody
        if cut == size:
            return self._everyone
        return self._kept((attribute, "below", cut), lambda codes: codes < cut)

    def _among(self, leaf: Codes) -> Bitmap:
        key: _BitmapKey = (leaf.attribute, "among", leaf.cuts)
        return self._kept(key, lambda codes: membership(leaf.cuts, leaf.size)[codes])

    def _bit(self, attribute: str, bit: int) -> Bitmap:
        return self._kept((attribute, "bit", bit), lambda codes: (codes & (1 << bit)).astype(np.bool_))

    def _kept(self, key: _BitmapKey, rows: Callable[[CodeArray], npt.NDArray[np.bool_]]) -> Bitmap:
        bitmap = self._bitmaps.get(key)
        if bitmap is None:
            bitmap = self._packed(rows(self.private_codes[key[0]]))
            self._bitmaps.put(key, bitmap)
        return bitmap

    def _packed(self, rows: npt.NDArray[np.bool_]) -> Bitmap:
        bitmap = np.zeros(-(-len(rows) // _WORD_BITS), dtype=np.uint64)
        packed = np.packbits(rows)
        bitmap.view(np.uint8)[: len(packed)] = packed
        bitmap.setflags(write=False)
        return bitmap


def _ones(bitmap: Bitmap) -> int:
    return int(np.bitwise_count(bitmap).sum(dtype=np.int64))


def fingerprint(table: Table, source: TableSource, key: bytes) -> str:
    """A digest of the source's name and schema and of the table's rows in their order: 64 hexadecimal digits.

    Equal data gives an equal digest; without the 32-byte key the digest tells nothing about the rows.
    """
    if table.attributes != source.attributes:
        raise DataError(f"the table was not encoded for source {shown(source.source)}; load it again")
    schema = {name: domain.model_dump(mode="json") for name, domain in source.attributes.items()}
    digest = blake3(key=key)

    def add(part: bytes | memoryview) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    add(_FINGERPRINT_TAG)
    add(source.source.encode())
    add(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(table.private_codes):
        column = np.ascontiguousarray(table.private_codes[name])
        add(name.encode())
        add(column.dtype.str.encode())
        add(column.view(np.uint8).data)
    return digest.hexdigest()
