"""Converts cells to codes, counts the rows of cells, and converts predicates to masks over cells.

A cell is a tuple of codes, one per attribute in a fixed order. There may be too many cells for an array.
This module needs numpy, so clients, which have predicates but no numpy, do not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas import Domain
from stream.tables.comparisons import Attribute
from stream.tables.encoding import CodeArray, code_type
from stream.tables.expressions import Codes, Cuts, Predicate, evaluate
from stream.tables.table_errors import DataError, PredicateError, quote_name, undeclared_name_message

Cell = tuple[int, ...]


class CellReader:
    """Converts cells from values to codes; thread-safe."""

    def __init__(self, attributes: Mapping[str, Domain]) -> None:
        self._attributes = {name: Attribute(name, domain) for name, domain in attributes.items()}

    def read(self, cell: Mapping[str, str | int | float]) -> Cell:
        """Return the codes of the cell's values, in the attributes' order.

        Each attribute needs a value of its domain. PredicateError names the attribute whose value is
        missing, unknown or invalid.
        """
        for place, name in enumerate(cell):
            if name not in self._attributes:
                raise PredicateError(
                    undeclared_name_message(place, name, self._attributes, "these cells, which have")
                )
        for name in self._attributes:
            if name not in cell:
                raise PredicateError(f"the cell has no value for {quote_name(name)}; give it one")
        return tuple(attribute.code(cell[name]) for name, attribute in self._attributes.items())


def cell_codes(attributes: Mapping[str, Domain], cell: Mapping[str, str | int | float]) -> Cell:
    """Return the codes of one cell."""
    return CellReader(attributes).read(cell)


def cells_as_array(sizes: Mapping[str, int], cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
    """Return the codes of cells, a row for each; DataError if a cell does not fit the attributes."""
    for cell in cells:
        if len(cell) != len(sizes):
            raise DataError(f"a cell has {len(cell)} codes for {len(sizes)} attributes; give one for each")
    codes = np.array(cells, dtype=np.int64).reshape(len(cells), len(sizes))
    for (name, size), column in zip(sizes.items(), codes.T, strict=True):
        if ((column < 0) | (column >= size)).any():
            raise DataError(f"a code of {quote_name(name)} is not from 0 to {size - 1}; read cells for this table")
    return codes


class CellIndex:
    """The sorted cells of all rows: two binary searches count the rows of a cell.

    Equal cells are not merged, so the time of a search depends only on the number of rows.
    """

    def __init__(self, private_columns: Mapping[str, CodeArray], sizes: Mapping[str, int]) -> None:
        self._sizes: Final = dict(sizes)
        # Cells become byte strings: with big-endian codes of fixed width, they sort like the tuples.
        self._layout = np.dtype(
            [(f"axis {axis}", code_type(size).newbyteorder(">")) for axis, size in enumerate(sizes.values())]
        )
        self._private_keys = self._keys([private_columns[name] for name in sizes])
        self._private_keys.sort()

    def counts(self, cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
        """Return the number of rows in each cell; DataError if a cell does not fit the attributes."""
        codes = cells_as_array(self._sizes, cells)
        keys = self._keys(list(codes.T))
        return self._private_keys.searchsorted(keys, "right") - self._private_keys.searchsorted(keys, "left")

    def _keys(self, columns: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.bytes_]:
        rows = np.empty(len(columns[0]), dtype=self._layout)
        for axis, column in zip(self._layout.fields or (), columns, strict=True):
            rows[axis] = column
        return rows.view(f"S{self._layout.itemsize}")


def code_mask(cuts: Cuts, size: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the codes 0 … size − 1 that lie in ``cuts``."""
    inside = np.zeros(size, dtype=np.bool_)
    for low, high in zip(cuts[::2], cuts[1::2], strict=True):
        inside[low:high] = True
    return inside


def cell_mask(predicate: Predicate, sizes: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Return a mask over all cells of these attributes, true where the predicate holds.

    Axes are in the order of ``sizes``, as in ``PrivateTable.group_counts``. The array is read-only, because
    axes of attributes without a condition are broadcast. It does not depend on the table's rows.
    PredicateError if the predicate uses an attribute that is not in ``sizes``.
    """
    shape = tuple(sizes.values())
    axes = {name: axis for axis, name in enumerate(sizes)}

    def leaf(node: Codes) -> npt.NDArray[np.bool_]:
        size = sizes.get(node.attribute)
        if size is None:
            raise PredicateError(
                f"attribute {quote_name(node.attribute)} is not one of the stream's attributes; ask only about those"
            )
        if size != node.size:
            raise PredicateError(
                f"the tensor declares {quote_name(node.attribute)} otherwise; parse the predicate for its attributes"
            )
        broadcast = [1] * len(shape)
        broadcast[axes[node.attribute]] = node.size
        return code_mask(node.cuts, node.size).reshape(broadcast)

    inside = evaluate(predicate, np.bool_, leaf, np.logical_and, np.logical_or)
    return np.broadcast_to(np.asarray(inside, dtype=np.bool_), shape)
