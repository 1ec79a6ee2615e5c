"""Compares a table with its declaration, suggests corrections, and times its engine.

All numbers in a report are private: exact and without noise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import polars as pl

from schemas import Categories, Dates, TableSource
from stream.formatting import describe_public_number, did_you_mean, format_count
from stream.settings import DEFAULT_TABLE_BYTES
from stream.tables.checks.cell_checks import CellCheck, Misfit
from stream.tables.checks.row_counts import (
    ColumnMatch,
    PersonRows,
    TableScan,
    ViewCounts,
    ViewRows,
    count_people,
    match_columns,
)
from stream.tables.encoding import as_text
from stream.tables.engine_limits import EngineLimits, advise_on_engine
from stream.tables.expressions import TRUE, Predicate, make_leaf
from stream.tables.people import person_names
from stream.tables.readers.csv_files import EXTRA_CELL_COLUMN, SEPARATORS
from stream.tables.readers.table_reading import build_table, read_rows
from stream.tables.table_errors import ColumnError, TableDataError, quote_name, quote_names, to_nfc
from stream.tables.texts import is_text

_MAX_SPELLING_HINTS: Final = 3
_DECIMAL_COMMA: Final = re.compile(r"\s*[-+]?(\d+|\d{1,3}([. '’\u00a0\u202f]\d{3})+),\d+\s*")
_THOUSANDS: Final = re.compile(r"\s*[-+]?[1-9]\d{0,2}((,\d{3})+|([ '’\u00a0\u202f]\d{3})+)(\.\d+)?\s*")
_UNIT: Final = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*[^\d\s.,eE+-]+\s*")
_OFFSET: Final = re.compile(r"T.*(Z|[+-]\d\d:?\d\d)\s*$")
_NOT_UTF8: Final = "\ufffd"

NOTICE: Final = (
    "PRIVATE: exact figures about people's rows, which no noise protects. They are for the table's owner alone: do not "
    "publish, log or send them. Nothing was sent, logged or stored."
)
"""The notice at the top of every report, both of printed reports and of JSON."""


@dataclass(frozen=True)
class EngineTimes:
    """Seconds that a table's engine takes on this machine."""

    engine: str
    loading: float
    """Seconds for reading the table, choosing the rows that count, and writing their codes."""
    count: float
    batch: float
    """Seconds for a hundred counts in one batch."""
    grouping: float
    """Seconds for counting the groups of the attribute with the most values."""


@dataclass(frozen=True)
class CheckReport:
    """A comparison of a table with its declaration. All numbers are private."""

    source: str
    path: str
    rows: int
    as_declared: int | None
    """Number of rows that fit; None if the file cannot be read as declared."""
    changed: int | None
    """Number of rows with a cell that is clamped or becomes ``other``."""
    left_out: int | None
    surplus_lines: int
    """Number of CSV lines with more cells than columns; extra cells are ignored."""
    columns: ColumnMatch
    misfits: tuple[Misfit, ...]
    people: PersonRows | None
    suggestions: tuple[str, ...]
    times: EngineTimes | None = None
    """Measured times of the engine; None for a table in memory."""
    counted: int | None = None
    """Number of rows that fit, have a person and are within the contribution bound.

    None if the source declares no person column.
    """
    view: ViewRows | None = None
    """Counts of the view's rows; None for a source without a view."""

    @property
    def fits(self) -> bool:
        """True if each row counts with its own or rounded values from one column, and the view can read all cells."""
        people = self.people is None or not (self.people.rows_beyond or self.people.rows_without)
        unchanged = self.left_out == 0 and all(misfit.fate == "rounded" for misfit in self.misfits)
        readable = self.view is None or not self.view.unreadable
        usable = self.columns.usable and not self.columns.ambiguous
        return usable and unchanged and not self.surplus_lines and people and readable

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the notice as its first field."""
        return {"private": NOTICE, "fits": self.fits, **asdict(self)}


def advise_on_columns(columns: ColumnMatch) -> Iterator[str]:
    """Yield advice on missing columns."""
    if columns.separator is not None:
        yield (
            f"the columns seem to be separated by {SEPARATORS[columns.separator]}; services read commas only: write the "
            "file with commas"
        )
        return
    alike = {_normalize_name(name): name for name in columns.undeclared}
    for name in columns.missing:
        if (files := columns.lacking.get(name)) is not None:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            yield f"some files have column {quote_name(name)}, and {quote_name(files[0])}{more} do not; write it to each, empty if unknown"
            continue
        found = alike.get(_normalize_name(name))
        near = [found] if found is not None else get_close_matches(name, columns.undeclared, n=1)
        if near:
            normalized = " (they differ in Unicode normalization)" if to_nfc(near[0]) == to_nfc(name) else ""
            yield (
                f"column {quote_name(near[0])} may be the declared {quote_name(name)}: names must be equal, character by character{normalized}"
            )
    if len(columns.undeclared) == len(columns.found):
        yield "no declared column was found; check that the first line of a CSV file has the column names"
    for name in columns.repeated:
        remedy = "the first one is read: rename the others" if name in columns.ambiguous else "none is read"
        yield f"several columns are called {quote_name(name)}; {remedy}"


def advise_on_cells(checks: Iterable[CellCheck]) -> Iterator[str]:
    """Yield advice on cells that do not fit their domains."""
    clamped = False
    for check in checks:
        for misfit in check.misfits():
            yield from _advise_on_misfit(check, misfit)
            clamped |= misfit.fate == "clamped"
    if clamped:
        yield (
            "a declaration is public: choose ranges without looking at the table, because ranges fitted to its rows "
            "reveal them"
        )


def advise_on_rows(
    source: TableSource, rows: int, left_out: int, surplus_lines: int, people: PersonRows | None
) -> Iterator[str]:
    """Yield advice on missing and left-out rows, lines with too many cells, and people."""
    if not rows:
        yield "the table has no rows; check that it is the right one"
    if surplus_lines:
        yield "some lines have too many cells: put cells that contain commas in quotes, or cells are read into wrong columns"
    if left_out and (public := describe_public_number(source)):
        yield (
            f"{public}, and includes those left out; mechanisms that use it promise their accuracy only if no row is "
            "left out: declare 'other', clamp, and fill in missing numbers"
        )
    if people is not None and people.alike:
        some = "; ".join(" and ".join(map(quote_name, names)) for names in people.spellings)
        yield (
            f"{people.alike:,} names in {quote_name(people.column)} have several spellings, and services take each spelling for another person: "
            f"{some}; write each person in one way"
        )
    if people is not None and source.person == people.column:
        if people.rows_beyond:
            yield f"contribution: {describe_bounds(people)}"
        if people.rows_without:
            yield f"rows without {quote_name(people.column)} are left out; add the person"
        return
    if people is not None and people.with_several:
        yield (
            f"the privacy guarantee is for one row of each person: a person with {people.most_rows:,} rows has a loss of up to "
            f"{_describe_group_loss(source, people.most_rows)}; declare person {quote_name(people.column)} and a contribution, or make one row of "
            "each person's rows"
        )
    if people is not None and people.rows_without:
        yield f"rows without {quote_name(people.column)}: their person is unknown; add the person, or drop the rows"


def describe_bounds(people: PersonRows) -> str:
    """Describe how many rows the declared and larger contribution bounds leave out, and what larger ones cost."""
    larger = "; ".join(f"{one.contribution:,} would leave out {one.rows_beyond:,}" for one in people.bounds)
    larger = f"a contribution of {larger}; " if larger else ""
    return (
        f"beyond the contribution of {people.contribution:,}: {format_count(people.rows_beyond, 'row')}, which counts and sums leave out "
        f"and no ± covers; {larger}with k times the contribution the noise is k times as large; the "
        "contribution is public, so choose it without looking at the table"
    )


def _describe_group_loss(source: TableSource, rows: int) -> str:
    if source.accountant == "zcdp":
        return f"{rows**2:,} times the ρ"
    return f"{rows:,} times the ε" + (" and more than as many times the δ" if source.delta else "")


def _advise_on_dates(kind: str, values: Sequence[str]) -> Iterator[str]:
    with_offset = [kind == "date" and _OFFSET.search(value) is not None for value in values]
    if any(with_offset):
        yield "some cells have an offset, and a date has none; declare the kind timestamp with a zone, as UTC"
    if not all(with_offset):
        yield "write dates as 2024-03-31, and timestamps as 2024-03-31T14:30:00 (ISO 8601)"


def _advise_on_misfit(check: CellCheck, misfit: Misfit) -> Iterator[str]:
    name, values = quote_name(check.name), [one.value for one in misfit.found]
    if isinstance(check.domain, Categories):
        yield from _advise_on_category(check, check.domain, misfit)
    elif isinstance(check.domain, Dates) and misfit.what == "skipped by the clock":
        yield f"{name}: the clock of {check.domain.zone} skips some times; write them with an offset, as +01:00"
    elif misfit.what == "not a date":
        yield from (f"{name}: {advice}" for advice in _advise_on_dates(check.domain.kind, values))
    elif any(_DECIMAL_COMMA.fullmatch(value) and not _THOUSANDS.fullmatch(value) for value in values):
        yield f"{name}: numbers have a decimal comma; write a decimal point, and no separator between thousands"
    elif found := next((value for value in values if _THOUSANDS.fullmatch(value)), None):
        plain = re.sub(r"[^\d.+-]", "", found)
        yield f"{name}: numbers have thousands separators; write {quote_name(found)} as {plain}"
    elif any(_UNIT.fullmatch(value) for value in values):
        yield f"{name}: numbers have a unit; write only the number"
    elif misfit.what == "not whole":
        yield f"{name}: declare decimals with a step such as 0.01 or bins, or round the numbers in the file"
    if any(_NOT_UTF8 in value for value in values):
        yield f"{name}: some cells are not UTF-8; write the file as UTF-8"


def _advise_on_category(check: CellCheck, domain: Categories, misfit: Misfit) -> Iterator[str]:
    name = quote_name(check.name)
    alike = {_normalize_name(value): value for value in domain.values}
    pairs = ((value, alike.get(_normalize_name(value))) for value in sorted(check.undeclared_values()))
    for value, declared in islice(((one, two) for one, two in pairs if two is not None), _MAX_SPELLING_HINTS):
        if misfit.what == "undeclared":
            yield f"{name}: {quote_name(value)} is the declared {quote_name(declared)} except for {_describe_difference(value, declared)}; write it in the same way"
    if misfit.fate == "left out":
        yield f'{name}: declare the field \'other\', as "other": "VALUE", to keep rows whose category is {misfit.what}'


def _normalize_name(text: str) -> str:
    return to_nfc("".join(to_nfc(text).casefold().split()))


def _describe_difference(found: str, declared: str) -> str:
    """Describe the difference of two texts that are equal after folding."""
    if to_nfc(found) == to_nfc(declared):
        return "Unicode normalization"
    plain = "".join(found.casefold().split()) == "".join(declared.casefold().split())
    return "spaces or case" if plain else "spaces, case or Unicode normalization"


def check_table(
    source: TableSource,
    path: Path | str | None = None,
    person: str | None = None,
    engine_limits: EngineLimits | None = None,
    table_bytes: int = DEFAULT_TABLE_BYTES,
) -> CheckReport:
    """Compare a source's rows, or the rows of the file at ``path``, with the source's declaration.

    Each person's rows are counted if the source declares a person column or ``person`` names one. The
    report is private. Memory does not grow with the number of rows. If the source declares an engine other than
    ``memory``, the table is also loaded into a database, within ``engine_limits``, to time questions. ``table_bytes``
    is the services' limit for tables in memory. UnreadableError if there is no table at the path, TableDataError if the
    person column is missing.
    """
    source = source if path is None else source.model_copy(update={"path": str(path), "view": None})
    file = TableScan.open(source)
    declared = person in {None, source.person}
    person = source.person if person is None else person
    columns = match_columns(source, file, person)
    if person is not None and person not in file.types:
        field = "person" if declared else "--person"
        hint = did_you_mean(person, file.types) or f"; name one of {quote_names(file.types)}"
        if columns.separator is not None:
            hint = "".join(f"; {advice}" for advice in advise_on_columns(columns))
        raise TableDataError(f"{field}: the table has no column {quote_name(person)}{hint}")
    if person is not None:
        for kind, part in file.kinds[person].items():
            try:
                person_names(person, pl.Series(person, [], dtype=kind))
            except ColumnError as error:
                raise error.in_file(part) from None
    checks = [
        CellCheck(name, domain)
        for name, domain in source.attributes.items()
        if source.column_of(name) in file.types and name not in columns.unusable
    ]
    texts = {name: source.column_of(name) for name in source.texts if name not in columns.unusable}
    texts = {name: column for name, column in texts.items() if column in file.types}
    read = list(dict.fromkeys([*(source.column_of(check.name) for check in checks), *texts.values()]))
    rows = left_out = changed = surplus_lines = 0
    without_text = dict.fromkeys(texts, 0)
    view_counts = None if source.view is None else ViewCounts(source)
    for batch in file.batches(read or list(file.types)[:1], view_counts):
        kept, altered = np.ones(batch.height, dtype=np.bool_), np.zeros(batch.height, dtype=np.bool_)
        for check in checks:
            known, altered_cells = check.add(batch[source.column_of(check.name)])
            kept &= known
            altered |= altered_cells
        for name, column in texts.items():
            without_text[name] += int((~is_text(as_text(column, batch[column]), source.texts[name])).sum())
        rows += batch.height
        left_out += int(np.count_nonzero(~kept))
        changed += int(np.count_nonzero(kept & altered))
        if EXTRA_CELL_COLUMN in batch.columns:
            surplus_lines += int((batch[EXTRA_CELL_COLUMN] != "").sum())
    times = None if source.engine == "memory" or not columns.usable else measure_engine(source, engine_limits)
    domains = [(source.column_of(check.name), check.domain) for check in checks]
    # If the person column is not declared, one row of each person is assumed.
    bound = source.contribution if declared else 1
    people = None if person is None else count_people(file, person, domains, rows - left_out, bound)
    counts = people is not None and person == source.person and columns.usable
    view = None if view_counts is None else view_counts.report()
    return CheckReport(
        source=source.source,
        path=source.path or "the view",
        rows=rows,
        as_declared=rows - left_out - changed if columns.usable else None,
        changed=changed if columns.usable else None,
        left_out=left_out if columns.usable else None,
        surplus_lines=surplus_lines,
        columns=columns,
        misfits=tuple(misfit for check in checks for misfit in check.misfits()),
        people=people,
        suggestions=(
            *advise_on_columns(columns),
            *advise_on_cells(checks),
            *advise_on_texts(source, without_text),
            *advise_on_rows(source, rows, left_out, surplus_lines, people),
            *advise_on_engine(source, rows, table_bytes),
            *advise_on_view(view),
        ),
        times=times,
        counted=rows - left_out - people.rows_beyond - people.rows_without
        if people is not None and counts
        else None,
        view=view,
    )


def advise_on_texts(source: TableSource, without_text: Mapping[str, int]) -> Iterator[str]:
    """Yield advice on each text attribute whose column lacks a text in some rows."""
    for name, rows in without_text.items():
        if rows:
            yield (
                f"{quote_name(name)}: {rows:,} rows have no text: it is missing, empty or longer than {source.texts[name].max_length} bytes; "
                "they belong to no group of unknown_groups, so fill them in, or raise max_length"
            )


def advise_on_view(view: ViewRows | None) -> Iterator[str]:
    """Yield advice on cells of a view's tables that are not of the declared kind."""
    if view is not None and view.unreadable:
        yield "view: cells that are not of the kind in 'columns' are NULL; correct them, or declare another kind"


BATCH_COUNTS: Final = 100
_NO_KEY: Final = bytes(32)


def measure_engine(source: TableSource, limits: EngineLimits | None = None) -> EngineTimes:
    """Load a source's table into its engine's database, and time questions about its largest attribute.

    The database is removed at the end. UnreadableError if the disk has no room, Missing without the extra.
    """
    began = perf_counter()
    table = build_table(read_rows(source, None, limits), source, _NO_KEY)
    loading = perf_counter() - began
    name, size = max(((name, domain.size) for name, domain in source.attributes.items()), key=lambda one: one[1])

    def count(low: int) -> Predicate:
        return make_leaf(name, size, (low % size, low % size + 1))

    table.count(TRUE)  # not timed, because the first statement of a process takes longer
    return EngineTimes(
        source.engine,
        loading,
        _measure_seconds(lambda: table.count(count(0))),
        _measure_seconds(lambda: table.count_together([count(low) for low in range(1, BATCH_COUNTS + 1)], ())),
        _measure_seconds(lambda: table.group_counts([name], count(0))),
    )


def _measure_seconds(step: Callable[[], object]) -> float:
    began = perf_counter()
    step()
    return perf_counter() - began
