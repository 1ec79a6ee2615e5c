"""Opens a table for a check: matches its columns, counts each person's rows and the rows that a view leaves out.

All numbers are private: exact and without noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import polars as pl

from schemas import Domain, TableSource
from schemas.sources import MAX_CONTRIBUTION
from stream.tables.checks.cell_checks import FoundValue, ValueCounts, missing_cells
from stream.tables.encoding import as_text, encode
from stream.tables.people import person_names
from stream.tables.readers.csv_files import EXTRA_CELL_COLUMN, SEPARATORS
from stream.tables.readers.source_parts import open_source_parts
from stream.tables.readers.table_parts import KEPT_COLUMN
from stream.tables.readers.view_parser import parse_view
from stream.tables.readers.view_rows import PERSON_KIND, RowObserver, TableUse, column_label
from stream.tables.table_errors import ColumnError


@dataclass(frozen=True)
class ColumnMatch:
    """A comparison of the table's columns with the declared columns."""

    found: tuple[str, ...]
    missing: tuple[str, ...]
    """Declared columns that are missing."""
    lacking: dict[str, tuple[str, ...]]
    """Missing columns that some files of a folder have, with the files that lack them."""
    unusable: dict[str, str]
    """Attributes whose column has an unsupported type, with the reason."""
    undeclared: tuple[str, ...]
    """Undeclared columns, which are ignored."""
    repeated: tuple[str, ...]
    """Names that several columns of a file have; the first column is read."""
    separator: str | None
    """The probable separator of a CSV file, if not a comma."""

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """The repeated columns that are read."""
        return tuple(name for name in self.repeated if name in self.found and name not in self.undeclared)

    @property
    def usable(self) -> bool:
        """True if the file can be read as a table."""
        return not self.missing and not self.unusable


@dataclass(frozen=True)
class Bound:
    """A contribution bound, and the number of rows that it leaves out."""

    contribution: int
    rows_beyond: int


@dataclass(frozen=True)
class PersonRows:
    """Statistics of each person's rows, without rows that are left out because a cell does not fit."""

    column: str
    people: int
    most_rows: int
    with_several: int
    """Number of people with more than one row."""
    contribution: int
    rows_beyond: int
    """Number of rows beyond the contribution bound, which do not count."""
    rows_without: int
    """Number of rows without a person."""
    bounds: tuple[Bound, ...] = ()
    """Rows that 2, 4, 8 … times the bound would leave out, up to the first bound that leaves out at most 1 %."""
    alike: int = 0
    """Number of names with several spellings (by case, spaces, leading zeros or Unicode form)."""
    spellings: tuple[tuple[str, ...], ...] = ()
    """The spellings of some of these names."""


@dataclass(frozen=True)
class ViewTableRows:
    """The rows of one table of a view."""

    table: str
    rows: int
    unmatched: int
    """Number of joined rows that ``JOIN`` leaves out, because this table has no match for them."""


@dataclass(frozen=True)
class UnreadableCells:
    """Cells of one column that a view reads as NULL, because they are not of the declared kind."""

    table: str
    column: str
    kind: str
    rows: int
    found: tuple[FoundValue, ...]
    """The most frequent values."""


@dataclass(frozen=True)
class ViewRows:
    """The rows that a view reads and leaves out, and the cells of its tables that are not of the declared kind."""

    tables: tuple[ViewTableRows, ...]
    filtered: int
    """Number of joined rows that ``WHERE`` leaves out."""
    unreadable: tuple[UnreadableCells, ...]


@dataclass(frozen=True)
class TableScan:
    """An opened table, whose cells are read as services read them."""

    source: TableSource
    types: Mapping[str, pl.DataType]
    """The columns that all files have, with their types in the first file; CSV columns are text."""
    kinds: Mapping[str, Mapping[pl.DataType, str]]
    """For each of these columns its types in the files, each with the name of the first file that has it."""
    lacking: Mapping[str, Sequence[str]]
    """Columns that only some files have, with the names of the files that lack them."""
    duplicate_names: tuple[str, ...]
    """Names that several columns of one file have."""
    has_lines: bool
    """True if one of the files is CSV, whose lines may have too many cells."""

    @classmethod
    def open(cls, source: TableSource) -> TableScan:
        """Open a source's table; UnreadableError if there is none at its path, TableDataError for an invalid view."""
        parts = list(open_source_parts(source))
        types = {name: kind for name, kind in parts[0].types.items() if all(name in part.types for part in parts)}
        lacking = {
            name: [part.name for part in parts if name not in part.types]
            for name in dict.fromkeys(name for part in parts for name in part.types)
            if name not in types
        }
        kinds: dict[str, dict[pl.DataType, str]] = {name: {} for name in types}
        for name, found in kinds.items():
            for part in parts:
                found.setdefault(part.types[name], part.name)
        duplicates = dict.fromkeys(name for part in parts for name in part.duplicate_names)
        return cls(source, types, kinds, lacking, tuple(duplicates), any(part.is_csv for part in parts))

    def batches(self, names: Sequence[str], observer: RowObserver | None = None) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches, with ``EXTRA_CELL_COLUMN`` for CSV files.

        Memory does not grow with the number of rows. UnreadableError if a file is malformed.
        """
        for part in open_source_parts(self.source, observer=observer):
            for cells in part.batches([*names, EXTRA_CELL_COLUMN] if part.is_csv else names):
                yield (
                    cells.filter(pl.col(KEPT_COLUMN)).drop(KEPT_COLUMN) if KEPT_COLUMN in cells.columns else cells
                )


_ROWS_PER_PASS: Final = 1 << 23
_MAX_EXAMPLES: Final = 3
"""Maximum number of groups of names that a check shows because they differ in spelling only."""
_MAX_SPELLINGS: Final = 4
"""Maximum number of names that it shows of each group."""
_COMPARED_BOUNDS: Final = 21
"""Number of contribution bounds, each twice the one before, for which the excluded rows are counted."""


def count_people(
    file: TableScan, column: str, domains: Sequence[tuple[str, Domain]], rows: int, bound: int = 1
) -> PersonRows:
    """Count the rows of each person, and the rows beyond the contribution bound ``bound``.

    Only rows whose cells are in the columns' ``domains`` are counted; ``rows`` is their number, including rows without
    a person.

    People are distinguished by digests of 64 bits: among a hundred million people, two have the same digest with a
    probability of 0.03 %. To bound memory, the file is read once for each eight million rows, and each of these passes
    counts a part of the names.
    """
    passes = -(-rows // _ROWS_PER_PASS)
    people = most_rows = several = named_rows = alike = 0
    examples: list[int] = []
    contributions = [bound << step for step in range(_COMPARED_BOUNDS)]
    left_out = [0] * _COMPARED_BOUNDS
    for number in range(passes):
        counted = _count_names(_names_of_fitting_rows(file, column, domains), number, passes)
        forms = counted.filter(pl.len().over("folded") > 1)["folded"].unique().sort()
        alike += len(forms)
        examples += forms[: _MAX_EXAMPLES - len(examples)].to_list()
        rows_of = counted["rows"]
        people += len(rows_of)
        most_rows = max([most_rows, *rows_of.top_k(1)])
        left_out = [
            beyond + int((rows_of - larger).clip(0).sum())
            for larger, beyond in zip(contributions, left_out, strict=True)
        ]
        several += int((rows_of > 1).sum())
        named_rows += int(rows_of.sum())
    return PersonRows(
        column=column,
        people=people,
        most_rows=most_rows,
        with_several=several,
        contribution=bound,
        rows_beyond=left_out[0],
        rows_without=rows - named_rows,
        bounds=_count_left_out(contributions, left_out, named_rows, most_rows),
        alike=alike,
        spellings=_find_spellings(_names_of_fitting_rows(file, column, domains), examples) if examples else (),
    )


def _count_left_out(contributions: list[int], left_out: list[int], rows: int, most_rows: int) -> tuple[Bound, ...]:
    """Return larger bounds with the rows that they leave out, up to a bound that leaves out at most 1 %."""
    found: list[Bound] = []
    if left_out[0] == 0:
        return ()
    for contribution, beyond in zip(contributions[1:], left_out[1:], strict=True):
        if contribution > MAX_CONTRIBUTION:
            break
        found.append(Bound(min(contribution, most_rows), beyond))
        if 100 * beyond <= rows:
            break
    return tuple(found)


def _count_names(batches_of_names: Iterable[pl.Series], part: int, parts: int) -> pl.DataFrame:
    """Count the rows of each name in one of ``parts`` parts of all names.

    A name is in the part ``part`` by the digest of its folded form.
    """
    batches = []
    for names in batches_of_names:
        digests = pl.DataFrame({"name": names.hash(), "folded": _normalize_names(names).hash()})
        batches.append(digests.filter(pl.col("folded") % parts == part).group_by("name", "folded").len("rows"))
    return pl.concat(batches).group_by("name", "folded").agg(pl.col("rows").cast(pl.Int64).sum())


def _names_of_fitting_rows(
    file: TableScan, column: str, domains: Sequence[tuple[str, Domain]]
) -> Iterator[pl.Series]:
    """Yield the people of the rows whose cells are in the domains, in batches.

    Rows without a person are left out.
    """
    for batch in file.batches(list(dict.fromkeys([column, *(name for name, _ in domains)]))):
        texts, is_unnamed = person_names(column, batch[column])
        fits = ~is_unnamed
        for name, domain in domains:
            fits &= encode(name, domain, batch[name])[1]
        yield texts.filter(pl.Series(fits))


def _normalize_names(names: pl.Series) -> pl.Series:
    """Return the names in lower case and in one Unicode form, without spaces and leading zeros."""
    folded = names.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"\s+", "")
    return folded.str.replace(r"^0+([0-9])", "${1}")


def _find_spellings(batches_of_names: Iterable[pl.Series], forms: list[int]) -> tuple[tuple[str, ...], ...]:
    """Return the first spellings of each folded form whose digest is in ``forms``."""
    found: dict[int, dict[str, None]] = {form: {} for form in forms}
    for names in batches_of_names:
        spelled = pl.DataFrame({"form": _normalize_names(names).hash(), "name": names}).filter(
            pl.col("form").is_in(forms)
        )
        for form, name in spelled.unique(maintain_order=True).iter_rows():
            found[form][name] = None
    return tuple(tuple(islice(names, _MAX_SPELLINGS)) for names in found.values())


class ViewCounts:
    """Counts the rows that a source's SQL view reads and excludes, for the owner of the table."""

    def __init__(self, source: TableSource) -> None:
        self._uses = parse_view(source).uses
        self._rows: Counter[str] = Counter()
        self._unmatched: Counter[str] = Counter()
        self._filtered = 0
        self._unreadable: dict[tuple[str, str], ValueCounts] = {}
        self._unreadable_rows: Counter[tuple[str, str]] = Counter()

    def add_cells(self, use: TableUse, cells: pl.DataFrame, converted: pl.DataFrame) -> None:
        """Count a table's rows, and the cells that become NULL although they are not missing."""
        self._rows[use.alias] += cells.height
        for name, kind in use.columns.items():
            values = converted[column_label(use.alias, name)]
            if kind in {"raw", PERSON_KIND} or not values.null_count():
                continue
            unread = cells[name].filter(values.is_null() & ~pl.Series(missing_cells(cells[name])))
            if len(unread):
                self._unreadable.setdefault((use.alias, name), ValueCounts()).add(unread.cast(pl.String))
                self._unreadable_rows[use.alias, name] += len(unread)

    def add_unmatched(self, use: TableUse, rows: int) -> None:
        """Count rows that a join leaves out."""
        self._unmatched[use.alias] += rows

    def add_filtered(self, rows: int) -> None:
        """Count rows that WHERE leaves out."""
        self._filtered += rows

    def report(self) -> ViewRows:
        """Return the counts, in the order of FROM and JOIN."""
        names = Counter(use.name for use in self._uses)
        labels = {
            use.alias: use.name if names[use.name] == 1 else f"{use.name} AS {use.alias}" for use in self._uses
        }
        return ViewRows(
            tables=tuple(
                ViewTableRows(label, self._rows[alias], self._unmatched[alias]) for alias, label in labels.items()
            ),
            filtered=self._filtered,
            unreadable=tuple(
                UnreadableCells(
                    labels[use.alias],
                    name,
                    kind,
                    self._unreadable_rows[use.alias, name],
                    self._unreadable[use.alias, name].most_frequent(),
                )
                for use in self._uses
                for name, kind in use.columns.items()
                if (use.alias, name) in self._unreadable
            ),
        )


def separator_of(header: list[str], declared: Iterable[str]) -> str | None:
    """Return the probable separator of a header; None if it is a comma."""
    wanted, line = set(declared), ",".join(header)
    named = {sign: len(wanted & {name.strip().strip('"') for name in line.split(sign)}) for sign in SEPARATORS}
    best = max(named, key=lambda sign: named[sign])
    return best if named[best] > len(wanted.intersection(header)) else None


def match_columns(source: TableSource, file: TableScan, person: str | None) -> ColumnMatch:
    """Compare the columns of an opened table with the declared columns and their domains."""
    unusable: dict[str, str] = {}
    declared = list(dict.fromkeys(map(source.column_of, (*source.attributes, *source.texts))))
    for name in (*source.attributes, *source.texts):
        column = source.column_of(name)
        for kind, part in file.kinds.get(column, {}).items():
            empty = pl.Series(column, [], dtype=kind)
            try:
                as_text(column, empty) if name in source.texts else encode(column, source.attributes[name], empty)
            except ColumnError as error:
                unusable.setdefault(name, str(error.in_file(part)))
    missing = tuple(name for name in declared if name not in file.types)
    return ColumnMatch(
        found=tuple(file.types),
        missing=missing,
        lacking={name: tuple(file.lacking[name]) for name in missing if name in file.lacking},
        unusable=unusable,
        undeclared=tuple(name for name in file.types if name not in declared and name != person),
        repeated=file.duplicate_names,
        separator=separator_of(list(file.types), declared) if file.has_lines and missing else None,
    )
