"""Tables of private rows, and exact counts over them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from schemas import Domain, TableSource
from stream.data.cache import BoundedCache
from stream.data.encoding import CodeArray, encode
from stream.data.errors import DataError, shown
from stream.data.expressions import Codes, Cuts, Predicate, evaluate, membership
from stream.data.files import Frame, in_memory, read_columns

Bitmap = npt.NDArray[np.uint64]
"""One bit a row, 64 rows a word; the bits after the last row are 0."""

BITMAP_CACHE_BYTES: Final = 64 << 20
COUNT_CACHE_SIZE: Final = 1 << 14
_WORD_BITS: Final = 64
_MOST_CUTS_BY_BITMAP: Final = 8
_FINGERPRINT_TAG: Final = b"sotto table fingerprint v1"


class Table:
    """The rows of a table as codes of its declared attributes, with exact counts.

    Everything that starts with ``private`` and every count is private data: it may meet noise and nothing else.
    Adding or removing one row of the file moves every count by at most 1.
    """

    def __init__(
        self,
        attributes: Mapping[str, Domain],
        private_codes: Mapping[str, CodeArray],
        bitmap_cache_bytes: int = BITMAP_CACHE_BYTES,
    ) -> None:
        self.attributes: Final = dict(attributes)
        self.private_codes: Final = dict(private_codes)
        self.private_row_count: Final = len(next(iter(self.private_codes.values())))
        for column in self.private_codes.values():
            column.setflags(write=False)
        self._everyone = self._packed(np.ones(self.private_row_count, dtype=np.bool_))
        self._nobody = np.zeros_like(self._everyone)
        self._bitmaps: BoundedCache[tuple[str, int | Cuts], Bitmap] = BoundedCache(
            bitmap_cache_bytes,
            lambda bitmap: bitmap.nbytes,
        )
        self._counts: BoundedCache[Predicate, int] = BoundedCache(COUNT_CACHE_SIZE)

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
        return cls(source.attributes, {name: column[kept] for name, column in encoded.items()})

    def __repr__(self) -> str:
        return f"Table(attributes={list(self.attributes)})"

    def count(self, predicate: Predicate) -> int:
        """How many rows satisfy the predicate, exactly. The number is private.

        The predicate must have been parsed for this table's attributes; DataError if the table lacks one of its
        attributes or declares it with another number of values.
        """
        known = self._counts.get(predicate)
        if known is None:
            known = int(np.bitwise_count(self._bits(predicate)).sum(dtype=np.int64))
            self._counts.put(predicate, known)
        return known

    def counts(self, predicates: Sequence[Predicate]) -> npt.NDArray[np.int64]:
        """How many rows satisfy each predicate, exactly. The numbers are private."""
        return np.fromiter(map(self.count, predicates), dtype=np.int64, count=len(predicates))

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
            return self._listed(leaf)
        # The rows below each cut hold those below the one before, so that their differences are the ranges.
        return reduce(np.bitwise_xor, [self._below(leaf.attribute, leaf.size, cut) for cut in leaf.cuts])

    def _below(self, attribute: str, size: int, cut: int) -> Bitmap:
        if cut == 0:
            return self._nobody
        if cut == size:
            return self._everyone
        bitmap = self._bitmaps.get((attribute, cut))
        if bitmap is None:
            bitmap = self._packed(self.private_codes[attribute] < cut)
            self._bitmaps.put((attribute, cut), bitmap)
        return bitmap

    def _listed(self, leaf: Codes) -> Bitmap:
        bitmap = self._bitmaps.get((leaf.attribute, leaf.cuts))
        if bitmap is None:
            inside = membership(leaf.cuts, leaf.size)
            bitmap = self._packed(inside[self.private_codes[leaf.attribute]])
            self._bitmaps.put((leaf.attribute, leaf.cuts), bitmap)
        return bitmap

    def _packed(self, rows: npt.NDArray[np.bool_]) -> Bitmap:
        bitmap = np.zeros(-(-len(rows) // _WORD_BITS), dtype=np.uint64)
        packed = np.packbits(rows)
        bitmap.view(np.uint8)[: len(packed)] = packed
        bitmap.setflags(write=False)
        return bitmap


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
