"""Keeps a table's rows in a database of codes, which applies the contribution bound and counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Final

import numpy as np

from schemas import TableSource
from stream.tables.code_database import CodeDatabase, CodeTable, Measure
from stream.tables.counted_table import Cell, CountedTable, Numbers, cell_mask, cells_as_array
from stream.tables.encoding import CodeArray, Words
from stream.tables.engine_limits import EngineLimits
from stream.tables.expressions import (
    TRUE,
    Predicate,
    attributes_of,
    conjunction,
    evaluate,
    make_leaf,
    memory_of,
)
from stream.tables.people import PERSON
from stream.tables.rows import Collector, EncodedBatch, StoredRows, column_sizes
from stream.tables.table_errors import TableDataError
from stream.tables.texts import TEXT_CODE, TextColumn, TextGroups

_INSERTED_ROWS: Final = 1 << 20
_NO_CODES: Final = np.empty(0, dtype=TEXT_CODE)


class StoredRowCollector(Collector[StoredRows]):
    """Collects batches in a database; memory holds at most a million rows, the texts and the names' digests."""

    def __init__(self, source: TableSource, limits: EngineLimits) -> None:
        super().__init__()
        self._source = source
        self._database = CodeDatabase(limits)
        self._table = self._database.create_table(column_sizes(source))
        self._waiting: list[dict[str, CodeArray]] = []
        self._waiting_rows = 0

    def _extend(self, batch: EncodedBatch) -> None:
        columns = {**batch.private_codes, **batch.private_texts}
        if batch.private_numbers is not None:
            columns[PERSON] = batch.private_numbers
        self._waiting.append(columns)
        self._waiting_rows += batch.private_row_count
        if self._waiting_rows >= _INSERTED_ROWS:
            self._insert()

    def _insert(self) -> None:
        if self._waiting_rows:
            names = self._waiting[0]
            self._table.append({name: np.concatenate([one[name] for one in self._waiting]) for name in names})
        self._waiting, self._waiting_rows = [], 0

    def rows(self, names: Words | None, texts: Mapping[str, tuple[bytes, ...]]) -> StoredRows:
        """Insert the last rows, and return all rows; see ``Collector``."""
        self._insert()
        columns = {name: TextColumn(text, _NO_CODES, texts[name]) for name, text in self._source.texts.items()}
        return StoredRows(
            self._database,
            self._table,
            self.private_row_count,
            self.file_row_count,
            columns,
            names,
            self.private_unnamed,
        )


_MEASURES_AT_ONCE: Final = 256
"""Maximum number of measures of one statement."""
_RANGES_AT_ONCE: Final = 2000
"""Maximum number of ranges of codes in one statement of several measures; their planning cannot be interrupted."""
_CUBE_CELLS: Final = 1 << 20
"""Maximum number of cells of a cube: the counts of all combinations of some attributes' values."""
_JOINED_CUBE_CELLS: Final = 1 << 16
"""Maximum number of cells of a cube that is made for several sets of attributes."""
_COUNTS_PER_CUBE: Final = 5
"""Least number of counts that are read from one cube: making it takes about as long as three to five counts."""


class StoredTable(CountedTable):
    """The counted rows of a table in a database of codes, which computes counts and sums.

    The time of a statement hardly depends on the number of matching rows. If several counts need only a few attributes,
    one statement counts all cells of these attributes (a cube), and the counts are read from them.
    """

    def __init__(self, rows: StoredRows, counted: CodeTable, private_row_count: int, source: TableSource) -> None:
        people = 0 if rows.private_names is None else len(rows.private_names)
        public_size = rows.file_row_count if source.person is None else people + rows.private_unnamed
        super().__init__(
            source.attributes, private_row_count, public_size, source.texts, source.person, source.contribution
        )
        self._rows = rows
        self._counted = counted

    @classmethod
    def from_rows(cls, rows: StoredRows, source: TableSource, key: bytes) -> StoredTable:
        """Build the table of a source's rows; ``key`` determines which rows of a person count."""
        return cls(rows, *rows.choose(source, key), source)

    def rows(self) -> StoredRows:
        """Return all rows, including rows that do not count."""
        return self._rows

    def cell_counts(self, attributes: Sequence[str], cells: Sequence[Cell]) -> Numbers:
        """Return the number of rows in each of these cells; one statement computes many of them."""
        sizes = {name: domain.size for name, domain in self._require_declared(attributes).items()}
        codes = cells_as_array(sizes, cells).tolist()
        cases = [
            conjunction(
                make_leaf(name, size, (code, code + 1))
                for (name, size), code in zip(sizes.items(), cell, strict=True)
            )
            for cell in codes
        ]
        self.count_together(cases, ())
        return self.counts(cases)

    def private_code_blocks(self, attributes: Sequence[str]) -> Iterator[Sequence[CodeArray]]:
        """Yield the codes of these attributes, block by block."""
        for block in self._counted.blocks(attributes):
            yield [block[name] for name in attributes]

    def count_together(self, predicates: Iterable[Predicate], sums: Iterable[tuple[str, Predicate]]) -> None:
        """Compute counts and sums in as few passes over the rows as possible, and cache them."""
        totals = [
            (name, predicate)
            for name, predicate in dict.fromkeys(sums)
            if name in self.attributes
            and self._is_for_this_table(predicate)
            and self._code_totals.get((name, predicate)) is None
        ]
        wanted = dict.fromkeys([*predicates, *(predicate for _, predicate in totals)])
        counts = [one for one in wanted if self._is_for_this_table(one) and self._counts.get(one) is None]
        for names, members in self._plan_cubes(counts):
            cube = self.group_counts(names, TRUE)
            sizes = {name: self.attributes[name].size for name in names}
            for predicate in members:
                self._keep_count(predicate, int(cube[cell_mask(predicate, sizes)].sum()))
        measures: list[Measure] = [(None, one) for one in counts if self._counts.get(one) is None]
        measures += totals
        if len(measures) == 1:
            return  # a single measure gains nothing here: the question computes it
        for part in _split_measures(measures):
            for (name, predicate), number in zip(part, self._counted.measure(part), strict=True):
                if name is None:
                    self._keep_count(predicate, number)
                else:
                    self._code_totals.put((name, predicate), number, memory_of(predicate))

    def _plan_cubes(self, predicates: Sequence[Predicate]) -> Iterator[tuple[tuple[str, ...], list[Predicate]]]:
        """Yield the attributes of each cube, and the predicates whose counts are read from it."""
        groups: dict[frozenset[str], list[Predicate]] = {}
        for one in predicates:
            groups.setdefault(attributes_of(one), []).append(one)
        cubes: list[tuple[frozenset[str], list[Predicate]]] = []
        for names, members in sorted(
            groups.items(), key=lambda item: (-self._cube_size(item[0]), sorted(item[0]))
        ):
            if self._cube_size(names) > _CUBE_CELLS:
                continue
            for place, (cube, others) in enumerate(cubes):
                if self._cube_size(cube | names) <= max(self._cube_size(cube), _JOINED_CUBE_CELLS):
                    cubes[place] = (cube | names, others + members)
                    break
            else:
                cubes.append((names, members))
        for names, members in cubes:
            if names and len(members) >= _COUNTS_PER_CUBE:
                yield tuple(sorted(names)), members

    def _cube_size(self, names: Iterable[str]) -> int:
        return math.prod(self.attributes[name].size for name in names)

    def _keep_count(self, predicate: Predicate, number: int) -> None:
        self._counts.put(predicate, number, memory_of(predicate))

    def _count_rows(self, predicate: Predicate) -> int:
        self._require_fitting(predicate)
        return self._counted.measure([(None, predicate)])[0]

    def _sum_codes(self, attribute: str, predicate: Predicate) -> int:
        self._require_fitting(predicate)
        total, count = self._counted.measure([(attribute, predicate), (None, predicate)])
        self._keep_count(predicate, count)
        return total

    def _count_people(self, predicate: Predicate, min_rows: int) -> int:
        self._require_fitting(predicate)
        return self._rows.table.count_people(predicate, min_rows)

    def _sum_people(self, attribute: str, minimum: int, predicate: Predicate, limits: tuple[int, int]) -> int:
        self._require_fitting(predicate)
        return self._rows.table.sum_clamped(attribute, minimum, predicate, *limits)

    def _count_cells(
        self, attributes: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> Numbers:
        self._require_fitting(predicate)
        codes, counts = self._counted.count_groups(attributes, predicate, people=people)
        # The database omits cells without rows, whose count is 0.
        found = np.zeros(math.prod(shape), dtype=np.int64)
        found[np.ravel_multi_index(tuple(codes), tuple(shape))] = counts
        return found

    def _count_text_groups(
        self, attribute: str, declared: Sequence[str], shape: Sequence[int], predicate: Predicate, *, people: bool
    ) -> TextGroups:
        self._require_fitting(predicate)
        texts = self._rows.private_texts[attribute].private_texts
        (codes, *axes), counts = self._counted.count_groups([attribute, *declared], predicate, people=people)
        if not declared:
            found = np.zeros(len(texts) + 1, dtype=np.int64)
            found[codes] = counts
            return TextGroups(texts, None, found[1:])
        cells = np.ravel_multi_index(tuple(axes), tuple(shape))
        order = np.lexsort((cells, codes))
        order = order[codes[order] > 0]
        return TextGroups([texts[code - 1] for code in codes[order].tolist()], cells[order], counts[order])

    def _require_fitting(self, predicate: Predicate) -> None:
        evaluate(
            predicate, lambda _: None, self._require_leaf, lambda _one, _other: None, lambda _one, _other: None
        )

    def _is_for_this_table(self, predicate: Predicate) -> bool:
        try:
            self._require_fitting(predicate)
        except TableDataError:
            return False
        return True


def _split_measures(measures: Iterable[Measure]) -> Iterator[list[Measure]]:
    part: list[Measure] = []
    ranges = 0
    for measure in measures:
        more = evaluate(measure[1], lambda _: 0, lambda leaf: len(leaf.cuts) // 2, add, add)
        if part and (len(part) == _MEASURES_AT_ONCE or ranges + more > _RANGES_AT_ONCE):
            yield part
            part, ranges = [], 0
        part.append(measure)
        ranges += more
    if part:
        yield part
