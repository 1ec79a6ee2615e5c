"""A table beside its declaration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from schemas import TableSource
from stream.data.checks.cells import CellCheck
from stream.data.checks.people import count_people
from stream.data.checks.report import Columns, Report
from stream.data.checks.scan import TableScan
from stream.data.checks.suggestions import about_cells, about_columns, about_rows, separator_of
from stream.data.csv_files import SURPLUS
from stream.data.encoding import encode
from stream.data.errors import ColumnError, DataError, shown
from stream.data.people import named


def check_table(source: TableSource, path: Path | str | None = None, person: str | None = None) -> Report:
    """Compare a source's table, or another file, with the source's declaration, as services would read it.

    ``person`` names a column that says whose row it is, if not the one that the source declares; each person's rows are counted
    then. The report is private.
    Memory does not grow with the number of rows. UnreadableError if there is no table at the path, DataError if it has
    no column of the person's.
    """
    file = TableScan.open(source.path if path is None else str(path))
    declared = person in {None, source.person}
    person = source.person if person is None else person
    if person is not None and person not in file.types:
        field = "person" if declared else "--person"
        raise DataError(f"{field}: the table has no column {shown(person)}; name one of {_listed(file)}")
    if person is not None:
        for kind, part in file.kinds[person].items():
            try:
                named(person, pl.Series(person, [], dtype=kind))
            except ColumnError as error:
                raise error.in_file(part) from None
    columns = _columns(source, file, person)
    checks = [
        CellCheck(name, domain)
        for name, domain in source.attributes.items()
        if name in file.types and name not in columns.unusable
    ]
    rows = left_out = changed = surplus_lines = 0
    for batch in file.batches([check.name for check in checks] or list(file.types)[:1]):
        kept, altered = np.ones(batch.height, dtype=np.bool_), np.zeros(batch.height, dtype=np.bool_)
        for check in checks:
            known, misread = check.add(batch[check.name])
            kept &= known
            altered |= misread
        rows += batch.height
        left_out += int(np.count_nonzero(~kept))
        changed += int(np.count_nonzero(kept & altered))
        if SURPLUS in batch.columns:
            surplus_lines += int((batch[SURPLUS] != "").sum())
    # Of a column that is not the declared one, each row beyond a person's first is beyond what is promised.
    people = None if person is None else count_people(file, person, rows, source.contribution if declared else 1)
    return Report(
        source=source.source,
        path=file.path,
        rows=rows,
        as_declared=rows - left_out - changed if columns.usable else None,
        changed=changed if columns.usable else None,
        left_out=left_out if columns.usable else None,
        surplus_lines=surplus_lines,
        columns=columns,
        misfits=tuple(misfit for check in checks for misfit in check.misfits()),
        people=people,
        suggestions=(
            *about_columns(columns),
            *about_cells(checks),
            *about_rows(source, left_out, surplus_lines, people),
        ),
    )


def _columns(source: TableSource, file: TableScan, person: str | None) -> Columns:
    unusable: dict[str, str] = {}
    for name, domain in source.attributes.items():
        for kind, part in file.kinds.get(name, {}).items():
            try:
                encode(name, domain, pl.Series(name, [], dtype=kind))
            except ColumnError as error:
                unusable.setdefault(name, str(error.in_file(part)))
    missing = tuple(name for name in source.attributes if name not in file.types)
    return Columns(
        found=tuple(file.types),
        missing=missing,
        lacking={name: tuple(file.lacking[name]) for name in missing if name in file.lacking},
        unusable=unusable,
        undeclared=tuple(name for name in file.types if name not in source.attributes and name != person),
        repeated=file.repeated,
        separator=separator_of(list(file.types), source.attributes) if file.has_lines and missing else None,
    )


def _listed(file: TableScan) -> str:
    return ", ".join(shown(name) for name in file.types)
