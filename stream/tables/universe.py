"""Cells of the product of some attributes' domains, which may be far too large to be written out.

A cell is a tuple of codes, one an attribute in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas import Domain
from stream.tables.comparisons import Attribute
from stream.tables.encoding import CodeArray, code_type
from stream.tables.table_errors import DataError, PredicateError, no_attribute, shown

Cell = tuple[int, ...]


class CellReader:
    """Reads cells that are named by values; safe to use from several threads."""

    def __init__(self, attributes: Mapping[str, Domain]) -> None:
        self._attributes = {name: Attribute(name, domain) for name, domain in attributes.items()}

    def read(self, cell: Mapping[str, str | int | float]) -> Cell:
        """The codes of the cell's values, in the attributes' order: those that a row of these values has.

        Each attribute has one value: a declared category, a whole number in range, or a number within the bins.
        PredicateError, which names the attribute, for any other value, one that is missing and one too many.
        """
        for place, name in enumerate(cell):
            if name not in self._attributes:
                raise PredicateError(no_attribute(place, name, self._attributes, "these cells, which have"))
        for name in self._attributes:
            if name not in cell:
                raise PredicateError(f"the cell has no value for {shown(name)}; give it one")
        return tuple(attribute.code(cell[name]) for name, attribute in self._attributes.items())


def cell_codes(attributes: Mapping[str, Domain], cell: Mapping[str, str | int | float]) -> Cell:
    """The codes of one cell, as ``CellReader`` reads them."""
    return CellReader(attributes).read(cell)


class CellIndex:
    """All rows' cells, sorted, to count the rows of a cell by two binary searches.

    Repeats are kept, so that size and time of a search depend on the number of rows and not on what they hold.
    """

    def __init__(self, private_columns: Mapping[str, CodeArray], sizes: Mapping[str, int]) -> None:
        self._sizes: Final = dict(sizes)
        # Codes of fixed width, highest byte first and side by side, compare as strings of bytes like the tuples.
        self._layout = np.dtype(
            [(f"axis {axis}", code_type(size).newbyteorder(">")) for axis, size in enumerate(sizes.values())],
        )
        self._private_keys = self._keys([private_columns[name] for name in sizes])
        self._private_keys.sort()

    def counts(self, cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
        """How many rows lie in each of the cells; DataError if one is no cell of these attributes."""
        for cell in cells:
            if len(cell) != len(self._sizes):
                raise DataError(
                    f"a cell has {len(cell)} codes for {len(self._sizes)} attributes; give one for each"
                )
        codes = np.array(cells, dtype=np.int64).reshape(len(cells), len(self._sizes))
        for (name, size), column in zip(self._sizes.items(), codes.T, strict=True):
            if ((column < 0) | (column >= size)).any():
                raise DataError(f"a code of {shown(name)} is not from 0 to {size - 1}; read cells for this table")
        keys = self._keys(list(codes.T))
        return self._private_keys.searchsorted(keys, "right") - self._private_keys.searchsorted(keys, "left")

    def _keys(self, columns: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.bytes_]:
        rows = np.empty(len(columns[0]), dtype=self._layout)
        for axis, column in zip(self._layout.fields or (), columns, strict=True):
            rows[axis] = column
        return rows.view(f"S{self._layout.itemsize}")
