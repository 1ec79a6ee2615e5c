"""Stores the rows of a table in a database of codes, and applies contribution bounds there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from schemas import TableSource
from stream.tables.encoding import CodeArray, Words
from stream.tables.engines.code_database import PERSON, CodeDatabase, CodeTable
from stream.tables.engines.statements import EngineLimits
from stream.tables.people import RowOwners, choose_rows, contribution_key
from stream.tables.rows import Collector, EncodedBatch
from stream.tables.texts import TEXT_CODE, TextColumn, TextDigests

_INSERTED_ROWS: Final = 1 << 20
_ROWS_CHOSEN_AT_ONCE: Final = 1 << 22
_NO_CODES: Final = np.empty(0, dtype=TEXT_CODE)


@dataclass(frozen=True)
class StoredRows:
    """All rows of a table in a database, with the texts of text columns and, of people, the names' digests."""

    database: CodeDatabase
    table: CodeTable
    private_row_count: int
    file_row_count: int
    private_texts: Mapping[str, TextColumn]
    """The texts of each text attribute, without codes."""
    private_names: Words | None = None
    private_unnamed: int = 0

    def private_blocks(self, rows: int) -> Iterator[dict[str, Any]]:
        """Yield blocks of at most this many rows: codes by attribute, digests by text, names of people."""
        for block in self.table.blocks(self.table.names):
            columns = self._with_digests(block)
            if self.private_names is not None:
                names = self.private_names[columns.pop(PERSON)]
                columns |= {f"{PERSON} {word}": names[:, word] for word in range(names.shape[1])}
            for start in range(0, len(next(iter(block.values()))), rows):
                yield {name: column[start : start + rows] for name, column in columns.items()}

    def choose(self, source: TableSource, key: bytes) -> tuple[CodeTable, int]:
        """Return a table of the rows that count, and their number; see ``people.choose_rows``.

        A row counts by its person's rows alone, so that ranges of people are chosen one after the other.
        """
        if self.private_names is None:
            return self.table, self.private_row_count
        sizes, rows = column_sizes(source), 0
        chosen, key = self.database.create_table(sizes), contribution_key(key, source.source)
        for low, high in self._person_ranges(len(self.private_names)):
            if not (blocks := list(self.table.blocks(list(sizes), (low, high)))):
                continue
            codes = {name: np.concatenate([block[name] for block in blocks]) for name in sizes}
            hashed = self._with_digests(codes)
            people = RowOwners(hashed.pop(PERSON) - np.uint32(low), self.private_names[low:high])
            found = choose_rows(hashed, people, source.contribution, key)
            counted = found.private_order[: found.private_counted]
            chosen.append({name: column[counted] for name, column in codes.items()})
            rows += len(counted)
        return chosen, rows

    def _with_digests(self, codes: Mapping[str, CodeArray]) -> dict[str, Any]:
        digests = {
            name: TextDigests(codes[name], column.digests.private_digests)
            for name, column in self.private_texts.items()
        }
        return {**codes, **digests}

    def _person_ranges(self, people: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of people with at most ``_ROWS_CHOSEN_AT_ONCE`` rows, or of a single person."""
        rows = np.zeros(people, dtype=np.int64)
        numbers, counts = self.table.count_rows_of_people()
        rows[numbers] = counts
        ends = np.cumsum(rows)
        low = done = 0
        while low < people:
            high = max(low + 1, int(np.searchsorted(ends, done + _ROWS_CHOSEN_AT_ONCE, side="right")))
            yield low, high
            low, done = high, int(ends[high - 1])


class StoredRowCollector(Collector[StoredRows]):
    """Collects batches in a database; in memory are at most a million rows, and what people and texts need."""

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
        """Insert the last rows; see ``Collector``."""
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


def column_sizes(source: TableSource) -> dict[str, int | None]:
    """Return the number of codes of each column; None for texts and people."""
    sizes: dict[str, int | None] = {name: domain.size for name, domain in source.attributes.items()}
    sizes |= dict.fromkeys(source.texts)
    return sizes if source.person is None else {**sizes, PERSON: None}
