"""Reads and encodes the rows of a table in batches; ``people`` applies contribution bounds afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from schemas import Categories, Dates, Decimals, Domain, TableSource
from schemas.sources import MAX_ROWS
from stream.optional_packages import pl
from stream.tables.date_codes import iso_text
from stream.tables.encoding import CodeArray, Encoder, Words, as_numbers, as_text, code_type, exact_text
from stream.tables.people import (
    PERSON,
    Numbers,
    PersonNumbering,
    RowOwners,
    choose_rows,
    contribution_key,
    person_names,
    person_ranges,
)
from stream.tables.readers.source_parts import open_source_parts, open_table_parts
from stream.tables.readers.table_parts import KEPT_COLUMN, TablePart
from stream.tables.table_errors import ColumnError, TableDataError, UnreadableError
from stream.tables.texts import TEXT_CODE, TextCodes, TextColumn, TextDigests, TextEncoder, hashed_columns

if TYPE_CHECKING:
    from stream.tables.code_database import CodeDatabase, CodeTable

Frame: TypeAlias = "pl.DataFrame | Mapping[str, Sequence[object]]"
"""A table in memory: a data frame, or columns of cells of any kind."""

Collected = TypeVar("Collected")

_LARGEST_INTEGER: Final = 10**30


def select_columns(frame: Frame, names: Sequence[str], person: str | None = None) -> pl.DataFrame:
    """Select columns of a table in memory; TableDataError if a column is missing, or if their lengths differ."""
    if isinstance(frame, pl.DataFrame):
        require_columns(names, frame.columns, person)
        return frame.select(names)
    require_columns(names, frame, person)
    try:
        return pl.DataFrame([_make_column(name, frame[name]) for name in names])
    except pl.exceptions.PolarsError:
        raise TableDataError(
            "the table's columns have different lengths; give each row a cell in every column"
        ) from None


def require_columns(
    names: Sequence[str], available: Sequence[str] | Mapping[str, object], person: str | None = None
) -> None:
    """Raise ColumnError for the first missing column; ``person`` is the person column."""
    for name in names:
        if name not in available:
            raise ColumnError("no person" if name == person else "missing", name)


def _make_column(name: str, values: Sequence[object]) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(name)
    return pl.Series(name, [_cell_text(value) for value in values], dtype=pl.String)


def _cell_text(cell: object) -> str | None:
    match cell:
        case str():
            return cell.encode(errors="replace").decode()
        case bool():
            return str(cell).lower()
        case int():
            return str(min(max(cell, -_LARGEST_INTEGER), _LARGEST_INTEGER))
        case float():
            return str(int(cell)) if cell.is_integer() and abs(cell) < _LARGEST_INTEGER else repr(cell)
        case _:
            return None


class GrowingColumn:
    """An array that grows in place; the operating system extends a large array without a copy."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._items: npt.NDArray[Any] = np.empty(0, dtype=kind)
        self._filled = 0

    def extend(self, items: npt.NDArray[Any]) -> None:
        """Add items at the end."""
        end = self._filled + len(items)
        if end > len(self._items):
            self._items.resize(max(end, len(self._items) * 9 // 8), refcheck=False)
        self._items[self._filled : end] = items
        self._filled = end

    def items(self) -> npt.NDArray[Any]:
        """Return all items; no items may be added afterwards."""
        self._items.resize(self._filled, refcheck=False)
        return self._items


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The encoded rows of a batch: the codes of attributes and texts, and the number of each row's person."""

    private_codes: Mapping[str, CodeArray]
    private_numbers: Numbers | None
    file_row_count: int
    private_unnamed: int = 0
    """Number of the file's rows without a person."""
    private_texts: Mapping[str, TextCodes] = field(default_factory=dict)

    @property
    def private_row_count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.private_codes.values())))


class RowEncoder:
    """Encodes the batches of one source's table."""

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._encoders = {
            name: Encoder(source.column_of(name), domain) for name, domain in source.attributes.items()
        }
        self._texts = {
            name: TextEncoder(source.column_of(name), declared) for name, declared in source.texts.items()
        }
        self.people: Final = None if source.person is None else PersonNumbering(source.person)
        """The people of the encoded batches; None if the source has no person column."""

    def encode(self, cells: pl.DataFrame) -> EncodedBatch:
        """Encode a batch, without rows of no person and rows that the WHERE or a domain of the source excludes.

        TableDataError if a column's type does not fit its domain; no error depends on a cell.
        """
        kept, numbers, unnamed, height = None, None, 0, cells.height
        if self.people is not None:
            numbers, kept = self.people.add(cells[self.people.column])
            unnamed = int(np.count_nonzero(~kept))
        if KEPT_COLUMN in cells.columns:
            selected = cells[KEPT_COLUMN].to_numpy() if kept is None else cells[KEPT_COLUMN].to_numpy() & kept
            cells = cells.filter(pl.Series(selected))
            numbers, kept = None if numbers is None else numbers[selected], None
        encoded: dict[str, CodeArray] = {}
        for name, encoder in self._encoders.items():
            encoded[name], known = encoder(cells[self._source.column_of(name)])
            kept = known if kept is None else kept & known
        texts = {name: encoder(cells[self._source.column_of(name)]) for name, encoder in self._texts.items()}
        if kept is not None and not kept.all():
            encoded = {name: column[kept] for name, column in encoded.items()}
            texts = {name: column[kept] for name, column in texts.items()}
            numbers = None if numbers is None else numbers[kept]
        return EncodedBatch(encoded, numbers, height, unnamed, texts)

    def encode_part(self, part: TablePart) -> Iterator[EncodedBatch]:
        """Encode one part of the table in batches; ColumnError if the part lacks a column."""
        names = columns_of(self._source)
        try:
            require_columns(names, part.types, self._source.person)
            yield from map(self.encode, part.batches(names))
        except ColumnError as error:
            raise error.in_file(part.name) from None

    def texts(self) -> dict[str, tuple[bytes, ...]]:
        """Return the texts of each text attribute in the encoded batches, in the order of their codes."""
        return {name: encoder.texts() for name, encoder in self._texts.items()}


@dataclass(frozen=True)
class Rows:
    """Encoded rows: the codes of attributes, the texts and, with a person column, the rows' people.

    ``file_row_count`` includes the rows that were left out.
    """

    attributes: Mapping[str, Domain]
    private_codes: Mapping[str, CodeArray]
    file_row_count: int
    people: RowOwners | None = None
    private_texts: Mapping[str, TextColumn] = field(default_factory=dict)

    @property
    def private_row_count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.private_codes.values())))

    @property
    def private_unnamed(self) -> int:
        """Number of the file's rows without a person."""
        return 0 if self.people is None else self.people.private_unnamed

    def private_blocks(self, rows: int) -> Iterator[dict[str, Any]]:
        """Yield blocks of at most ``rows`` rows: the codes of attributes, and the digests of texts."""
        columns = hashed_columns(self.private_codes, self.private_texts)
        for start in range(0, self.private_row_count, rows):
            yield {name: column[start : start + rows] for name, column in columns.items()}

    @classmethod
    def load(cls, source: TableSource, frame: Frame | None = None) -> Rows:
        """Read a source's rows from its path or from ``frame``, and encode them.

        Rows that a domain rejects or that have no person are left out. TableDataError if the table or a
        column is missing or unreadable; no error depends on a cell of a well-formed file.
        """
        return collect_rows(source, RowCollector(source), frame)


@dataclass(frozen=True)
class StoredRows:
    """All rows of a table in a database, with the texts of text columns and the digests of people's names."""

    database: CodeDatabase
    table: CodeTable
    private_row_count: int
    file_row_count: int
    private_texts: Mapping[str, TextColumn]
    """The texts of each text attribute; their codes are in the database."""
    private_names: Words | None = None
    private_unnamed: int = 0

    def private_blocks(self, rows: int) -> Iterator[dict[str, Any]]:
        """Yield blocks of at most ``rows`` rows: codes of attributes, digests of texts, and digests of people's names."""
        for block in self.table.blocks(self.table.names):
            columns = self._with_digests(block)
            if self.private_names is not None:
                names = self.private_names[columns.pop(PERSON)]
                columns |= {f"{PERSON} {word}": names[:, word] for word in range(names.shape[1])}
            for start in range(0, len(next(iter(block.values()))), rows):
                yield {name: column[start : start + rows] for name, column in columns.items()}

    def choose(self, source: TableSource, key: bytes) -> tuple[CodeTable, int]:
        """Return a table of the rows that count, and their number; see ``people.choose_rows``.

        Whether a row counts depends only on the rows of its person, so one range of people is processed at a time.
        """
        if self.private_names is None:
            return self.table, self.private_row_count
        sizes, rows = column_sizes(source), 0
        chosen, key = self.database.create_table(sizes), contribution_key(key, source.source)
        rows_of_people = np.zeros(len(self.private_names), dtype=np.int64)
        numbers, counts = self.table.count_rows_of_people()
        rows_of_people[numbers] = counts
        for low, high in person_ranges(rows_of_people):
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


class Collector(ABC, Generic[Collected]):
    """Collects batches into one table."""

    def __init__(self) -> None:
        self.private_row_count = 0
        self.file_row_count = 0
        self.private_unnamed = 0

    def add(self, batch: EncodedBatch) -> None:
        """Add a batch; UnreadableError if there are more than ``MAX_ROWS`` rows."""
        self._extend(batch)
        self.private_row_count += batch.private_row_count
        self.file_row_count += batch.file_row_count
        self.private_unnamed += batch.private_unnamed
        if self.private_row_count > MAX_ROWS:
            raise UnreadableError(f"more than {MAX_ROWS} rows")

    @abstractmethod
    def rows(self, names: Words | None, texts: Mapping[str, tuple[bytes, ...]]) -> Collected:
        """Join all batches; call it only once, after the last batch.

        ``names`` has the digests of people's names, and is None without a person column. ``texts`` has the texts of
        each text attribute.
        """

    @abstractmethod
    def _extend(self, batch: EncodedBatch) -> None:
        """Keep the rows of a batch."""


class RowCollector(Collector[Rows]):
    """Collects batches as columns in memory."""

    def __init__(self, source: TableSource) -> None:
        super().__init__()
        self._source = source
        self._codes = {name: GrowingColumn(code_type(domain.size)) for name, domain in source.attributes.items()}
        self._texts = {name: GrowingColumn(TEXT_CODE) for name in source.texts}
        self._numbers = GrowingColumn(np.dtype(np.uint32))

    def _extend(self, batch: EncodedBatch) -> None:
        for name, column in batch.private_codes.items():
            self._codes[name].extend(column)
        for name, texts in batch.private_texts.items():
            self._texts[name].extend(texts)
        if batch.private_numbers is not None:
            self._numbers.extend(batch.private_numbers)

    def rows(self, names: Words | None, texts: Mapping[str, tuple[bytes, ...]]) -> Rows:
        """Join all batches; see ``Collector``."""
        codes = {name: self._codes.pop(name).items() for name in self._source.attributes}
        people = None if names is None else RowOwners(self._numbers.items(), names, self.private_unnamed)
        columns = {
            name: TextColumn(declared, self._texts.pop(name).items(), texts[name])
            for name, declared in self._source.texts.items()
        }
        return Rows(self._source.attributes, codes, self.file_row_count, people, columns)


def collect_rows(source: TableSource, collector: Collector[Collected], frame: Frame | None = None) -> Collected:
    """Read a source's rows from its path or from ``frame`` into a collector; see ``Rows.load``."""
    encoder = RowEncoder(source)
    if frame is not None:
        batches: Iterable[EncodedBatch] = [
            encoder.encode(select_columns(frame, columns_of(source), source.person))
        ]
    else:
        batches = (batch for part in open_source_parts(source) for batch in encoder.encode_part(part))
    for batch in batches:
        collector.add(batch)
    return collector.rows(None if encoder.people is None else encoder.people.names(), encoder.texts())


def read_cells(source: TableSource, path: str) -> pl.DataFrame:
    """Read a source's columns from the table at ``path`` into one frame of texts and numbers.

    A column may have several types in the table's files. In the frame it has one type, and is encoded to the same codes
    and people.
    """
    names = columns_of(source)
    batches: list[pl.DataFrame] = []
    for part in open_table_parts(path):
        try:
            require_columns(names, part.types, source.person)
            batches += [
                cells.with_columns(_to_common_type(source, cells[name]) for name in names)
                for cells in part.batches(names)
            ]
        except ColumnError as error:
            raise error.in_file(part.name) from None
    return pl.concat(batches)


def _to_common_type(source: TableSource, column: pl.Series) -> pl.Series:
    """Convert a column of any type to text or numbers, which are encoded to the same codes or names."""
    if column.name == source.person:
        texts, is_unnamed = person_names(column.name, column)
        return pl.select(pl.when(pl.Series(~is_unnamed)).then(texts).alias(column.name)).to_series()
    domains = [domain for name, domain in source.attributes.items() if source.column_of(name) == column.name]
    is_text = column.name in map(source.column_of, source.texts)
    if is_text or any(isinstance(domain, Categories) for domain in domains):
        return as_text(column.name, column)
    dates = next((domain for domain in domains if isinstance(domain, Dates)), None)
    if dates is not None:
        return iso_text(column.name, dates, column)
    numbers = as_numbers(column.name, column)
    if any(isinstance(domain, Decimals) for domain in domains):
        return exact_text(column)
    return pl.Series(column.name, numbers)


def column_sizes(source: TableSource) -> dict[str, int | None]:
    """Return the number of codes of each column; None for texts and people."""
    sizes: dict[str, int | None] = {name: domain.size for name, domain in source.attributes.items()}
    sizes |= dict.fromkeys(source.texts)
    return sizes if source.person is None else {**sizes, PERSON: None}


def columns_of(source: TableSource) -> list[str]:
    """Return the columns that a source needs for its attributes, its texts and its person."""
    person = [] if source.person is None else [source.person]
    return list(dict.fromkeys([*map(source.column_of, (*source.attributes, *source.texts)), *person]))
