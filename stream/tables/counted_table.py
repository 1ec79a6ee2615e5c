"""Exact counts and sums over a table's counted rows, and the cells of its attributes.

A cell is a tuple of codes, one for each attribute in a fixed order. There may be too many possible cells for an array.
Clients do not import this module, because they have no numpy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schemas import MAX_UNIVERSE, Domain, TableSource, Text
from stream.caches import BoundedCache, weigh_array
from stream.tables.comparisons import Attribute
from stream.tables.encoding import CodeArray, code_type
from stream.tables.expressions import Codes, Cuts, Predicate, evaluate, memory_of
from stream.tables.sensitivity import person_range, require_summable
from stream.tables.table_errors import (
    PredicateError,
    TableDataError,
    private_text_message,
    quote_name,
    quote_names,
    undeclared_name_message,
)

if TYPE_CHECKING:
    from stream.tables.rows import Rows, StoredRows
    from stream.tables.texts import TextGroups


Cell = tuple[int, ...]


class CellReader:
    """Converts cells from values to codes; thread-safe."""

    def __init__(self, attributes: Mapping[str, Domain]) -> None:
        self._attributes = {name: Attribute(name, domain) for name, domain in attributes.items()}

    def read(self, cell: Mapping[str, str | int | float]) -> Cell:
        """Return the codes of the cell's values, in the attributes' order.

        PredicateError, which names the attribute, if the cell lacks an attribute or has a value outside its domain.
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


def cells_as_array(sizes: Mapping[str, int], cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
    """Return an array with a row of codes for each cell; TableDataError if a cell does not fit the attributes."""
    for cell in cells:
        if len(cell) != len(sizes):
            raise TableDataError(f"a cell has {len(cell)} codes for {len(sizes)} attributes; give one for each")
    codes = np.array(cells, dtype=np.int64).reshape(len(cells), len(sizes))
    for (name, size), column in zip(sizes.items(), codes.T, strict=True):
        if ((column < 0) | (column >= size)).any():
            raise TableDataError(
                f"a code of {quote_name(name)} is not from 0 to {size - 1}; read cells for this table"
            )
    return codes


class CellIndex:
    """The sorted cells of all rows: two binary searches count the rows of a cell.

    Equal cells are not merged, so the time of a search depends only on the number of rows.
    """

    def __init__(self, private_columns: Mapping[str, CodeArray], sizes: Mapping[str, int]) -> None:
        self._sizes: Final = dict(sizes)
        # Cells become byte strings of big-endian codes with fixed widths, which sort like the tuples of codes.
        self._layout = np.dtype(
            [(f"axis {axis}", code_type(size).newbyteorder(">")) for axis, size in enumerate(sizes.values())]
        )
        self._private_keys = self._keys([private_columns[name] for name in sizes])
        self._private_keys.sort()

    def counts(self, cells: Sequence[Cell]) -> npt.NDArray[np.int64]:
        """Return the number of rows in each cell; TableDataError if a cell does not fit the attributes."""
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
    """Return a mask over all cells of these attributes; it is true for the cells that satisfy the predicate.

    The axes are in the order of ``sizes``, as in ``CountedTable.group_counts``. The array is read-only, because axes of
    attributes without a condition are broadcast. It does not depend on a table's rows. PredicateError if the predicate
    has an attribute that is not in ``sizes``.
    """
    shape = tuple(sizes.values())
    axes = {name: axis for axis, name in enumerate(sizes)}

    def leaf(node: Codes) -> npt.NDArray[np.bool_]:
        if (size := sizes.get(node.attribute)) is None:
            raise PredicateError(
                f"attribute {quote_name(node.attribute)} is not one of the stream's attributes, which are {quote_names(sizes)}"
            )
        if size != node.size:
            raise PredicateError(
                f"the stream declares {quote_name(node.attribute)} with other values; parse the predicate for its attributes"
            )
        broadcast = [1] * len(shape)
        broadcast[axes[node.attribute]] = node.size
        return code_mask(node.cuts, node.size).reshape(broadcast)

    inside = evaluate(predicate, np.bool_, leaf, np.logical_and, np.logical_or)
    return np.broadcast_to(np.asarray(inside, dtype=np.bool_), shape)


Numbers = npt.NDArray[np.int64]

GROUP_CACHE_BYTES: Final = 64 << 20
COUNT_CACHE_BYTES: Final = 16 << 20
_MAX_AXES: Final = 64


class CountedTable(ABC):
    """The counted rows of a table, as codes of attributes; computes exact counts and sums of them.

    Counts, totals and all attributes and results whose name begins with ``private`` must not be published without noise.

    - One more counted row changes each count by at most 1, a total by at most ``sum_sensitivity``, and only one of the
      counts of disjoint cells.
    - One person has one row or, with a person column, at most ``contribution`` counted rows, and
      changes ``people_count`` by at most 1.
    - ``public_size`` is the number of rows in the file or, with a person column, of people plus rows without a person.
      It includes rows that are left out. It is the same for two neighbors by ``replace``.
    """

    def __init__(
        self,
        attributes: Mapping[str, Domain],
        private_row_count: int,
        public_size: int,
        texts: Mapping[str, Text],
        person: str | None,
        contribution: int,
    ) -> None:
        self.attributes: Final = dict(attributes)
        self.private_row_count: Final = private_row_count
        self.public_size: Final = public_size
        self.texts: Final = dict(texts)
        self.person: Final = person
        self.contribution: Final = contribution
        self._counts: BoundedCache[Predicate, int] = BoundedCache(COUNT_CACHE_BYTES, name="table counts")
        self._code_totals: BoundedCache[tuple[str, Predicate], int] = BoundedCache(
            COUNT_CACHE_BYTES, name="table counts"
        )
        self._people_numbers: BoundedCache[tuple[object, ...], int] = BoundedCache(
            COUNT_CACHE_BYTES, name="table counts"
        )
        self._groups: BoundedCache[tuple[tuple[str, ...], Predicate, bool], Numbers] = BoundedCache(
            GROUP_CACHE_BYTES, weigh_array, "table groups"
        )

    def __repr__(self) -> str:
        return f"Table(attributes={list(self.attributes)})"

    def fits_source(self, source: TableSource) -> bool:
        """Return whether the table fits a source's declaration."""
        declared = self.attributes == source.attributes and self.texts == source.texts
        return declared and (self.person, self.contribution) == (source.person, source.contribution)

    @abstractmethod
    def rows(self) -> Rows | StoredRows:
        """Return all rows, including rows that do not count."""

    def count(self, predicate: Predicate) -> int:
        """Return the exact (private) number of rows that satisfy the predicate.

        TableDataError if the table lacks an attribute of the predicate or declares it with another size.
        """
        if (known := self._counts.get(predicate)) is None:
            known = self._count_rows(predicate)
            self._counts.put(predicate, known, memory_of(predicate))
        return known

    def counts(self, predicates: Sequence[Predicate]) -> Numbers:
        """Return the exact (private) number of rows that satisfy each predicate."""
        return np.fromiter(map(self.count, predicates), dtype=np.int64, count=len(predicates))

    def total(self, attribute: str, predicate: Predicate, center: int = 0) -> int:
        """Return the exact (private) sum of value − center over the matching rows.

        Values out of the domain are clamped, or their rows left out, as declared. So one row changes the total by at most
        ``sum_sensitivity`` with the same center. A sum of decimals is in whole steps. TableDataError if the attribute has no
        sum, or if the table lacks an attribute of the predicate.
        """
        [(name, domain)] = self._require_declared((attribute,)).items()
        integers = require_summable(domain, f"attribute {quote_name(name)}")
        if (known := self._code_totals.get((name, predicate))) is None:
            known = self._sum_codes(name, predicate)
            self._code_totals.put((name, predicate), known, memory_of(predicate))
        return known + self.count(predicate) * (integers.minimum - center)

    def group_counts(
        self,
        attributes: Sequence[str],
        predicate: Predicate,
        max_cells: int = MAX_UNIVERSE,
        *,
        people: bool = False,
    ) -> Numbers:
        """Return the exact (private) number of matching rows in each cell, or of people with a counted matching row.

        The array has one axis for each attribute in the given order, and is row-major and read-only. TableDataError if an
        attribute is unknown or repeated, if there are more than ``max_cells`` cells, or if the table lacks an attribute of
        the predicate.
        """
        shape = self.group_shape(attributes, max_cells)
        # With a bound of 1 each person has one counted row.
        people = people and self.contribution > 1
        key = (tuple(attributes), predicate, people)
        if (known := self._groups.get(key)) is None:
            known = self._count_cells(attributes, shape, predicate, people=people).reshape(shape)
            known.setflags(write=False)
            self._groups.put(key, known)
        return known

    def group_shape(self, attributes: Sequence[str], max_cells: int) -> tuple[int, ...]:
        """Return the number of values of each attribute; TableDataError for more than ``max_cells`` cells or unknown names."""
        shape = tuple(domain.size for domain in self._require_declared(attributes).values())
        if math.prod(shape) > max_cells or len(shape) > _MAX_AXES:
            raise TableDataError(
                f"grouping has {math.prod(shape):,} cells of {len(shape)} attributes, and at most {max_cells:,} "
                f"cells of {_MAX_AXES} attributes are allowed; group by fewer or smaller ones"
            )
        return shape

    def count_together(self, predicates: Iterable[Predicate], sums: Iterable[tuple[str, Predicate]]) -> None:
        """Prepare the counts and sums of a batch of questions, if the table can compute several in one pass.

        Names and predicates that do not fit the table are ignored here, because their questions are refused later.
        """
        del predicates, sums

    def people_count(self, predicate: Predicate, min_rows: int = 1) -> int:
        """Return the (private) number of people with at least ``min_rows`` matching rows among all their rows.

        Without a person column each row is one person. One person changes the number by at most 1. TableDataError as in
        ``count``.
        """
        if self.person is None:
            return self.count(predicate) if min_rows == 1 else 0
        key = (predicate, min_rows)
        if (known := self._people_numbers.get(key)) is None:
            known = self._count_people(predicate, min_rows)
            self._people_numbers.put(key, known, memory_of(predicate))
        return known

    def person_total(self, attribute: str, predicate: Predicate, bound: int) -> int:
        """Return the (private) total of all people's clamped sums of an attribute over all their matching rows.

        Each person's sum is clamped to ``person_range``, so one person changes the total by at most
        ``person_sensitivity``. Without a person column each row is one person. TableDataError as in ``total``.
        """
        [(name, domain)] = self._require_declared((attribute,)).items()
        integers = require_summable(domain, f"attribute {quote_name(name)}")
        key = (name, predicate, bound)
        if (known := self._people_numbers.get(key)) is None:
            known = self._sum_people(name, integers.minimum, predicate, person_range(integers, bound))
            self._people_numbers.put(key, known, memory_of(predicate))
        return known

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

        A group is a text or, with ``declared`` attributes, a text and a cell of these attributes. A row is in at most one
        group; a row without a text is in none. Without declared attributes all texts of the column are listed, also with
        the count 0. TableDataError if ``attribute`` is no text; other errors as in ``group_counts``.
        """
        shape = self.group_shape(declared, max_cells) if declared else ()
        if attribute not in self.texts:
            raise TableDataError(
                f"{quote_name(attribute)} is not a text attribute of the table; name one of its text attributes"
            )
        return self._count_text_groups(
            attribute, declared, shape, predicate, people=people and self.contribution > 1
        )

    @abstractmethod
    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> Numbers:
        """Return the exact (private) number of rows in each of these cells.

        A cell has one code for each attribute in the given order; the number of possible cells is unlimited. TableDataError if
        an attribute is unknown or repeated, or if a cell is invalid.
        """

    @abstractmethod
    def private_code_blocks(self, attributes: Sequence[str]) -> Iterator[Sequence[CodeArray]]:
        """Yield the codes of these attributes, block by block, in any order of rows."""

    @abstractmethod
    def _count_rows(self, predicate: Predicate) -> int:
        """Count the matching rows."""

    @abstractmethod
    def _sum_codes(self, attribute: str, predicate: Predicate) -> int:
        """Add up the codes of an attribute over the matching rows."""

    @abstractmethod
    def _count_people(self, predicate: Predicate, min_rows: int) -> int:
        """Count the people with at least ``min_rows`` matching rows, in a table with a person column."""

    @abstractmethod
    def _sum_people(self, attribute: str, minimum: int, predicate: Predicate, limits: tuple[int, int]) -> int:
        """Add up all people's sums of code + ``minimum``, each clamped to ``limits``."""

    @abstractmethod
    def _count_cells(
        self, attributes: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> Numbers:
        """Count the matching rows of each cell, or their people, in row-major order."""

    @abstractmethod
    def _count_text_groups(
        self, attribute: str, declared: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> TextGroups:
        """Count the matching rows of each group, or their people; ``shape`` belongs to ``declared``."""

    def _require_leaf(self, leaf: Codes) -> None:
        if (domain := self.attributes.get(leaf.attribute)) is None or domain.size != leaf.size:
            raise TableDataError(
                f"the table declares {quote_name(leaf.attribute)} with other values; parse the predicate for this table"
            )

    def _require_declared(self, attributes: Sequence[str]) -> dict[str, Domain]:
        if not attributes:
            raise TableDataError("no attribute is named; name at least one")
        for place, name in enumerate(attributes):
            if name in self.texts:
                raise TableDataError(private_text_message(name))
            if name not in self.attributes:
                raise TableDataError(undeclared_name_message(place, name, self.attributes, "the table, which has"))
            if name in attributes[:place]:
                raise TableDataError(f"attribute {quote_name(name)} is named twice; name it once")
        return {name: self.attributes[name] for name in attributes}
