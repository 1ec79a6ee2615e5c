"""A table of hostile values, as a Parquet file and in every engine: all must give the same codes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import polars as pl

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers, TableSource
from stream.tables.readers.table_reading import build_table
from stream.tables.rows import Rows
from stream.tables.store import TableStore, fingerprint
from tests.unit.tables.small import KEY, source

_ATTRIBUTES: Final[dict[str, Domain]] = {
    "big": Integers(minimum=-(2**53) + 1, maximum=-(2**53) + 1000),
    "exact": Integers(minimum=2**53 - 10, maximum=2**53 - 1),
    "key": Categories(values=("9007199254740993", "9007199254740992", "-1", "?"), other="?"),
    "ratio": Bins(edges=(-1.0, 0.0, 0.1, 0.3, 1.0)),
    "single": Bins(edges=(0.0, 0.7, 1.0)),
    "number": Categories(values=("NaN", "-0.0", "0", "0.1", "?"), other="?"),
    "cost": Decimals(minimum=0, maximum=1000, step=0.01),
    "fine": Decimals(minimum=-1, maximum=1, step=0.001),
    "name": Categories(values=("é", "e\u0301", "Å", "ﬁ", " a", "", "?"), other="?"),
    "is_open": Categories(values=("true", "false", "?"), other="?"),
    "day": Dates(kind="date", minimum="1969-12-01", maximum="2024-12-31"),
    "hour": Dates(kind="timestamp", granularity="hour-of-day", zone="Europe/Berlin"),
    "local": Dates(kind="timestamp", granularity="hour-of-day", zone="Europe/Berlin"),
}
_COLUMNS: Final = {"exact": "big", "key": "big", "number": "ratio"}


def hostile_cells(*, timestamps_without_zone: bool = True) -> pl.DataFrame:
    """Return rows with nulls, NaN, -0.0, integers beyond doubles, ties of decimals, Unicode forms and clock changes."""
    clock = [
        datetime(2024, 3, 31, hour, minute, second, micro)  # noqa: DTZ001  (local and UTC times are made of it)
        for hour, minute, second, micro in ((0, 59, 59, 999_999), (1, 0, 0, 0), (2, 30, 0, 0), (23, 59, 59, 1))
    ]
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 10, 27, 0, 30), *clock, None, None]  # noqa: DTZ001
    rows = len(times)
    cells = {
        "who": pl.Series(["ann", "ann", " ann", "Ann", "1.0", "1", "", None]),
        "big": pl.Series([2**53 + 1, 2**53, 2**63 - 1, -(2**63), -1, -(2**53) - 1, 0, None], dtype=pl.Int64),
        "ratio": pl.Series([float("nan"), -0.0, 0.1, 0.30000000000000004, float("inf"), 5e-324, -1.0, None]),
        "single": pl.Series([0.7, 0.1, float("nan"), -0.0, 1e-45, 0.69999999, 1.0, None], dtype=pl.Float32),
        "cost": pl.Series(
            [Decimal(x) for x in ("0.005", "0.015", "-0.005", "999.995", "12.3449999999", "1e-10", "1e6")]
            + [None],
            dtype=pl.Decimal(28, 10),
        ),
        "fine": pl.Series(
            [Decimal(x) for x in ("0.0005", "-0.0005", "0.0015", "0.00049", "0", "-1", "1")] + [None],
            dtype=pl.Decimal(9, 5),
        ),
        "name": pl.Series(["é", "e\u0301", "Å", "Å", "ﬁ", " a", "", None]),
        "is_open": pl.Series([True, False, None, True, False, None, True, False]),
        "day": pl.Series([None if time is None else time.date() for time in times], dtype=pl.Date),
        "hour": pl.Series([time and time.replace(tzinfo=UTC) for time in times], dtype=pl.Datetime("us", "UTC")),
    }
    if timestamps_without_zone:
        cells["local"] = pl.Series(times, dtype=pl.Datetime("us"))
    assert all(len(column) == rows for column in cells.values())
    assert date(1969, 12, 31) in cells["day"]
    return pl.concat([pl.DataFrame(cells)] * 5)


def hostile_source(path: str, *, columns: pl.DataFrame, person: str | None = None) -> TableSource:
    """Return a source over the hostile table at a path, with the attributes whose columns it has."""
    attributes = {
        name: domain for name, domain in _ATTRIBUTES.items() if _COLUMNS.get(name, name) in columns.columns
    }
    return source(
        {**attributes, "word": {"kind": "text", "max_length": 8}},  # type: ignore[dict-item]
        path=path,
        columns={**_COLUMNS, "word": "name"},
        person=person,
        contribution=1 if person is None else 3,
    )


def assert_reads_as_parquet(path: str, parquet: Path, columns: pl.DataFrame, **reading: Any) -> None:
    """Assert that a table has the codes, texts, people and counted rows of the Parquet file.

    ``reading`` are options of the store that reads the table.
    """
    for person in (None, "who"):
        declared = hostile_source(path, columns=columns, person=person)
        rows = Rows.load(hostile_source(str(parquet), columns=columns, person=person))
        expected = fingerprint(build_table(rows, declared, KEY), declared, KEY)
        assert rows.file_row_count
        assert TableStore(KEY, **reading).fingerprint(declared) == expected
