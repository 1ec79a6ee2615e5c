"""The rows of a table as a place has them, encoded batch by batch, before anything says which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from schemas import Categories, Domain, TableSource
from schemas.sources import MAX_ROWS
from stream.data.encoding import CodeArray, Encoder, as_numbers, as_text, code_type
from stream.data.errors import ColumnError, UnreadableError
from stream.data.frames import Frame, in_memory, require
from stream.data.growing import GrowingColumn
from stream.data.people import Numbers, People, PeopleNumbers, named
from stream.data.places import sheets_of
from stream.data.sheets import Sheet
from stream.data.siphash import Words
from stream.later import pl


@dataclass(frozen=True, slots=True)
class Coded:
    """A batch of rows as codes, those that are left out not among them, and the numbers of the people whose they are."""

    private_codes: Mapping[str, CodeArray]
    private_numbers: Numbers | None
    file_row_count: int
    private_unnamed: int = 0
    """How many of the file's rows name nobody where rows have persons."""


class RowEncoder:
    """Encodes the batches of one source's table."""

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._encoders = {name: Encoder(name, domain) for name, domain in source.attributes.items()}
        self._people = None if source.person is None else PeopleNumbers(source.person)

    def encode(self, cells: pl.DataFrame) -> Coded:
        """The rows of a batch that the domains' rules leave, and that name somebody where rows have a person.

        DataError if a column is neither text nor numbers; no error depends on what a cell holds.
        """
        kept = None
        encoded: dict[str, CodeArray] = {}
        for name, encoder in self._encoders.items():
            encoded[name], known = encoder(cells[name])
            kept = known if kept is None else kept & known
        numbers, unnamed = None, 0
        if self._people is not None:
            numbers, somebody = self._people.add(cells[self._people.column])
            kept = somebody if kept is None else kept & somebody
            unnamed = int(np.count_nonzero(~somebody))
        if kept is not None and not kept.all():
            encoded = {name: column[kept] for name, column in encoded.items()}
            numbers = None if numbers is None else numbers[kept]
        return Coded(encoded, numbers, cells.height, unnamed)

    def sheet(self, sheet: Sheet) -> Iterator[Coded]:
        """The batches of a part of the table; ColumnError, which names the part's file, if it lacks a column."""
        names = columns_of(self._source)
        try:
            require(names, sheet.types, self._source.person)
            yield from map(self.encode, sheet.batches(names))
        except ColumnError as error:
            raise error.in_file(sheet.name) from None

    def people(self) -> PeopleNumbers | None:
        """Who was named so far."""
        return self._people


@dataclass(frozen=True)
class Rows:
    """Rows as codes of the declared attributes, and whose they are where the source says so; nothing is counted by them.

    ``file_row_count`` counts the file's rows, those that the domains' rules left out among them.
    """

    attributes: Mapping[str, Domain]
    private_codes: Mapping[str, CodeArray]
    file_row_count: int
    people: People | None = None

    @property
    def private_row_count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.private_codes.values())))

    @classmethod
    def load(cls, source: TableSource, frame: Frame | None = None) -> Rows:
        """Read a source's rows from where they lie, or from ``frame`` instead, and encode them by the declared domains.

        Rows that the domains' rules leave out are not among them, nor are those that name nobody where rows have a person.
        DataError if the table or a column is missing or unreadable; no error depends on what a cell of a well-formed file holds.
        """
        encoder = RowEncoder(source)
        if frame is not None:
            batches: Iterable[Coded] = [encoder.encode(in_memory(frame, columns_of(source), source.person))]
        else:
            batches = (batch for sheet in sheets_of(source.path) for batch in encoder.sheet(sheet))
        gathered = Gathered(source)
        for batch in batches:
            gathered.add(batch)
        people = encoder.people()
        return gathered.rows(None if people is None else people.names())


class Gathered:
    """Batches on their way to being one table; what is joined is let go of as it is, so that little is held twice."""

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._codes = {name: GrowingColumn(code_type(domain.size)) for name, domain in source.attributes.items()}
        self._numbers = GrowingColumn(np.dtype(np.uint32))
        self.private_row_count = 0
        self.file_row_count = 0
        self.private_unnamed = 0

    def add(self, batch: Coded) -> None:
        """Take a batch; UnreadableError if there are more rows than totals are planned for."""
        for name, column in batch.private_codes.items():
            self._codes[name].extend(column)
        if batch.private_numbers is not None:
            self._numbers.extend(batch.private_numbers)
        self.private_row_count += len(next(iter(batch.private_codes.values())))
        self.file_row_count += batch.file_row_count
        self.private_unnamed += batch.private_unnamed
        if self.private_row_count > MAX_ROWS:
            raise UnreadableError(f"more than {MAX_ROWS} rows")

    def rows(self, names: Words | None) -> Rows:
        """The table of all batches, once; ``names`` are those of its people, where rows have persons."""
        codes = {name: self._codes.pop(name).joined() for name in self._source.attributes}
        people = None if names is None else People(self._numbers.joined(), names, self.private_unnamed)
        return Rows(self._source.attributes, codes, self.file_row_count, people)


def read_cells(source: TableSource, path: str) -> pl.DataFrame:
    """Read the columns of a source from the table at ``path``, all at once.

    A column that files have in different types is given one from which the same codes and people are read.
    """
    names = columns_of(source)
    batches: list[pl.DataFrame] = []
    files: list[str] = []
    for sheet in sheets_of(path):
        try:
            require(names, sheet.types, source.person)
        except ColumnError as error:
            raise error.in_file(sheet.name) from None
        found = list(sheet.batches(names))
        batches += found
        files += [sheet.name] * len(found)
    for name in names:
        if len({batch.schema[name] for batch in batches}) > 1:
            for place, (file, batch) in enumerate(zip(files, batches, strict=True)):
                try:
                    batches[place] = batch.with_columns(_of_one_type(source, batch[name]))
                except ColumnError as error:
                    raise error.in_file(file) from None
    return pl.concat(batches)


def _of_one_type(source: TableSource, column: pl.Series) -> pl.Series:
    """Convert a column to the type that its attribute, or the person's name, is read from."""
    if column.name == source.person:
        texts, nobody = named(column.name, column)
        return pl.select(pl.when(pl.Series(~nobody)).then(texts).alias(column.name)).to_series()
    if isinstance(source.attributes[column.name], Categories):
        return as_text(column.name, column)
    return pl.Series(column.name, as_numbers(column.name, column))


def columns_of(source: TableSource) -> list[str]:
    """The columns that a source's table is read from: its attributes, and who each row's person is."""
    return list(dict.fromkeys([*source.attributes, *([] if source.person is None else [source.person])]))
