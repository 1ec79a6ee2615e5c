"""Dates and timestamps in texts and columns become calendar cells in the declared zone; literals lie on the cells' edges."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from schemas import Dates
from stream.tables.checks import check_table
from stream.tables.columns_table import PrivateTable
from stream.tables.comparisons import Attribute
from stream.tables.encoding import encode
from stream.tables.predicates import parse
from stream.tables.rows import read_cells
from stream.tables.table_errors import PredicateError, TableDataError
from tests.unit.tables.readers.guarded import reader
from tests.unit.tables.small import source

BERLIN = "Europe/Berlin"
DAYS = Dates(kind="date", minimum="2024-01-01", maximum="2024-12-31")
STRICT = Dates(kind="date", minimum="2024-01-01", maximum="2024-12-31", outside="reject")
MONTHS = Dates(kind="date", granularity="month", minimum="2020-01-01", maximum="2024-12-31")
HOURS = Dates(kind="timestamp", granularity="hour", zone=BERLIN, minimum="2024-01-01", maximum="2024-12-31")
WEEKDAYS = Dates(kind="date", granularity="weekday")


def cells(domain: Dates, column: Any) -> list[Any]:
    """Return the label of each cell; None for a row that is left out."""
    series = column if isinstance(column, pl.Series) else pl.Series(column, dtype=pl.String)
    codes, known = encode("x", domain, series)
    labels = domain.values()
    return [labels[code] if is_known else None for code, is_known in zip(codes.tolist(), known, strict=True)]


@pytest.mark.parametrize(
    ("domain", "text", "expected"),
    [
        (DAYS, " 2024-03-01 ", "2024-03-01"),
        (DAYS, "2024-03-01 23:59:59.5", "2024-03-01"),
        (DAYS, "2024-03-31T02:30:00+01:00", None),  # the day depends on a zone
        (DAYS, "2024-02-30", None),
        (DAYS, "2024-02-29", "2024-02-29"),
        (DAYS, "01.03.2024", None),
        (DAYS, "٢٠٢٤-٠٣-٠١", None),
        (DAYS, "", None),
        (DAYS, None, None),
        (DAYS, "1999-12-31", "2024-01-01"),
        (STRICT, "1999-12-31", None),
        (MONTHS, "2030-01-01", "2024-12"),
        (WEEKDAYS, "2024-03-03", 7),
        (HOURS, "2024-03-31T02:30:00+01:00", "2024-03-31T03+02:00"),
        (HOURS, "2024-03-31T02:30:00", None),  # the clock skips it
        (HOURS, "2024-10-27T02:30:00", "2024-10-27T02+02:00"),  # the first of two
        (HOURS, "2024-10-27T02:30:00+01:00", "2024-10-27T02+01:00"),
        (HOURS, "2024-03-01T11:00Z", "2024-03-01T12+01:00"),
        (HOURS, "2024-03-01", "2024-03-01T00+01:00"),
        (HOURS, "2024-03-01T24:00", None),
        (HOURS, "2024-03-01T12:00:00.123456789", "2024-03-01T12+01:00"),
    ],
)
def test_date_cell_is_read_by_the_declared_rules(domain: Dates, text: str | None, expected: Any) -> None:
    assert cells(domain, [text]) == [expected]


def test_date_columns_of_all_types_have_equal_codes() -> None:
    day, noon = date(2024, 3, 1), datetime(2024, 3, 1, 12, tzinfo=UTC)
    assert cells(DAYS, pl.Series([day, None], dtype=pl.Date)) == ["2024-03-01", None]
    for unit in ("ms", "us", "ns"):
        local = pl.Series([noon.replace(tzinfo=None)], dtype=pl.Datetime(unit))
        assert cells(DAYS, local) == ["2024-03-01"]
        assert cells(HOURS, local) == ["2024-03-01T12+01:00"]
        assert cells(HOURS, pl.Series([noon]).cast(pl.Datetime(unit, "UTC"))) == ["2024-03-01T13+01:00"]
    with pytest.raises(TableDataError, match="not dates, local times or text"):
        cells(DAYS, pl.Series([noon]))
    with pytest.raises(TableDataError, match="not times, dates or text"):
        cells(HOURS, pl.Series([1]))


@pytest.mark.parametrize("zone", [BERLIN, "America/Havana", "Australia/Lord_Howe", "Pacific/Apia"])
def test_timestamps_have_cells_of_zoneinfo(zone: str) -> None:
    """The zones change their clocks at midnight, by half an hour, or by a whole day."""
    random = np.random.default_rng(1)
    seconds = random.integers(1_230_768_000, 1_767_225_600, 2_000).tolist()  # 2009 to 2025
    column = pl.Series([datetime.fromtimestamp(one, UTC) for one in seconds], dtype=pl.Datetime("us", "UTC"))
    local = [datetime.fromtimestamp(one, ZoneInfo(zone)) for one in seconds]
    years = {"minimum": "2009-01-01", "maximum": "2025-12-31"}
    for granularity, label in (
        ("day", [one.date().isoformat() for one in local]),
        ("month", [one.isoformat()[:7] for one in local]),
        ("year", [str(one.year) for one in local]),
        ("weekday", [one.isoweekday() for one in local]),
        ("hour-of-day", [one.hour for one in local]),
    ):
        ends = years if granularity in {"day", "month", "year"} else {}
        domain = Dates(kind="timestamp", zone=zone, granularity=granularity, outside="reject", **ends)  # type: ignore[arg-type]
        known = [one for one in cells(domain, column) if one is not None]
        inside = [one for one, at in zip(label, local, strict=True) if 2009 <= at.year <= 2025 or not ends]
        assert known == inside


def test_local_times_skipped_by_clock_are_left_out() -> None:
    zone = ZoneInfo(BERLIN)
    texts = [datetime.fromisoformat("2024-03-30") + timedelta(minutes=15 * place) for place in range(300)]
    shown = [at.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == at for at in texts]
    found = cells(HOURS, [at.isoformat() for at in texts])
    assert [one is not None for one in found] == shown
    assert shown.count(False) == 4


@pytest.mark.parametrize(
    ("attribute", "text", "first", "last"),
    [
        (MONTHS, "x >= '2024-03-01'", "2024-03", "2024-12"),
        (MONTHS, "x BETWEEN '2024-03-01' AND '2024-03-31'", "2024-03", "2024-03"),
        (MONTHS, "x = '2023'", "2023-01", "2023-12"),
        (MONTHS, "x = '2024-Q1'", "2024-01", "2024-03"),
        (DAYS, "x <= '2024-01'", "2024-01-01", "2024-01-31"),
        (DAYS, "x > '2024-11-30'", "2024-12-01", "2024-12-31"),
        (DAYS, "x = '2024-W10'", "2024-03-04", "2024-03-10"),
        (HOURS, "x < '2024-01-02T00:00:00+01:00'", "2024-01-01T00+01:00", "2024-01-01T23+01:00"),
        (HOURS, "x = '2024-10-27'", "2024-10-27T00+02:00", "2024-10-27T23+01:00"),
        (WEEKDAYS, "x >= 6", 6, 7),
    ],
)
def test_date_literals_name_whole_periods(attribute: Dates, text: str, first: Any, last: Any) -> None:
    predicate: Any = parse(text, {"x": attribute})
    labels = attribute.values()
    low, high = predicate.cuts
    assert (labels[low], labels[high - 1]) == (first, last)


@pytest.mark.parametrize(
    ("attribute", "text", "words"),
    [
        (MONTHS, "x >= '2024-03-15'", "a date is not the edge of a month of 'x'; use '2024-03' or '2024-04'"),
        (DAYS, "x = '2024-02-30'", "cannot be read; write one as 2024, 2024-Q1, 2024-03 or 2024-03-31"),
        (DAYS, "x = '2024-03-01T12:00'", "cannot be read"),
        (DAYS, "x = 20240301", "'x' holds dates; put them in single quotes"),
        (DAYS, "x = 2024-03-01", "'x' holds dates; write a date in single quotes, as '2024-03-31'"),
        (DAYS, "x BETWEEN 2024-03 AND 2024-04", "'x' holds dates; write a date in single quotes, as '2024-03-31'"),
        (DAYS, "x >= DATE '2024-03-01'", "write a date in single quotes, as '2024-03-31', without a type"),
        (DAYS, "x > 1/3/2024", "write a date in single quotes, as '2024-03-31'; arithmetic is not possible"),
        (DAYS, "x = TRUE", "'x' holds dates; write one in single quotes in place of TRUE"),
        (HOURS, "x <= '2024-03-01T12:00'", "with a time of day is one instant; compare it with < or >="),
        (HOURS, "x >= '2024-03-01T12:30'", "a date is not the edge of a hour of 'x'"),
        (HOURS, "x >= '2024-10-27T02'", "the clock skips or repeats this time; write its offset"),
        (WEEKDAYS, "x = '6'", "'x' is numeric; write numbers without quotes"),
    ],
)
def test_date_literals_off_the_edges_are_refused(attribute: Dates, text: str, words: str) -> None:
    with pytest.raises(PredicateError) as refused:
        parse(text, {"x": attribute})
    assert words in str(refused.value)


@pytest.mark.parametrize("domain", [DAYS, MONTHS, HOURS, WEEKDAYS])
def test_date_label_names_its_cell(domain: Dates) -> None:
    attribute = Attribute("x", domain)
    assert [attribute.code(label) for label in domain.values()] == list(range(domain.size))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"granularity": "month", "minimum": "2020-01-15", "maximum": "2024-12-31"},
            "give 2020-01-01 or 2020-02-01",
        ),
        (
            {"granularity": "quarter", "minimum": "2020-01-01", "maximum": "2024-12-30"},
            "give 2024-09-30 or 2024-12-31",
        ),
        ({"granularity": "hour", "minimum": "2020-01-01", "maximum": "2020-01-02"}, "a date has no hours"),
        ({"granularity": "weekday", "minimum": "2020-01-01"}, "a part of a date repeats"),
        ({"minimum": "2020-01-01"}, "give the first and the last day"),
        ({"minimum": "2020-02-30", "maximum": "2024-01-01"}, "give a date in the form YYYY-MM-DD"),
        ({"minimum": "2024-01-02", "maximum": "2024-01-01"}, "swap them"),
        ({"minimum": "2024-01-01", "maximum": "2024-01-01", "zone": "UTC"}, "zone: a date has none"),
        (
            {"kind": "timestamp", "granularity": "weekday", "zone": "Mars/Base"},
            "there is no time zone 'Mars/Base'",
        ),
        ({"minimum": "0001-01-01", "maximum": "9998-12-31"}, "more than 1,048,576 days"),
    ],
)
def test_date_declaration_refuses_impossible_fields(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Dates(**{"kind": "date", **fields})


def test_date_check_reports_misfits(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("day,y\n2024-03-01,\n1999-01-01,\n2024-02-30,\n,\n2031-01-01,\n")
    report = check_table(source({"day": DAYS}), path)
    assert {one.what: (one.rows, one.becomes) for one in report.misfits} == {
        "missing": (1, None),
        "not a date": (1, None),
        "below": (1, "2024-01-01"),
        "above": (1, "2024-12-31"),
    }


def test_date_check_tells_skipped_times_from_text_that_is_no_time(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("at\n2024-03-31 02:30\n1999-03-28 02:30\n2024-03-31 02:30+01:00\nsoon\n")
    report = check_table(source({"at": HOURS.model_copy(update={"outside": "reject"})}), path)
    assert {one.what: one.rows for one in report.misfits} == {"not a date": 1, "skipped by the clock": 2}
    assert any("the clock of Europe/Berlin skips some times; write them" in one for one in report.suggestions)


def test_midnight_of_a_date_is_its_day() -> None:
    """Programs give a date as a datetime at midnight; another time, or one with a zone, is refused."""
    for operator in ("=", "<", ">="):
        expected = parse(f"x {operator} '2024-03-01'", {"x": DAYS})
        assert parse(f"x {operator} '2024-03-01T00:00:00'", {"x": DAYS}) == expected
        assert parse(f"x {operator} '2024-03-01 00:00'", {"x": DAYS}) == expected
    for text in ("2024-03-01T00:00:00Z", "2024-03-01T00:00:00+01:00", "2024-03-01T00:00:01"):
        with pytest.raises(PredicateError, match="cannot be read"):
            parse(f"x = '{text}'", {"x": DAYS})


def test_parts_of_one_column_are_attributes(tmp_path: Path) -> None:
    """One column of visits gives days for conditions, and months and weekdays for groups."""
    path = tmp_path / "visits.parquet"
    pl.DataFrame({"visited": [date(2024, 3, 1), date(2024, 3, 2), None]}).write_parquet(path)
    declared = source({"day": DAYS, "month": MONTHS, "weekday": WEEKDAYS}, path=str(path))
    declared = declared.model_copy(update={"columns": dict.fromkeys(("day", "month", "weekday"), "visited")})
    for table in (PrivateTable.load(declared), PrivateTable.load(declared, read_cells(declared, str(path)))):
        assert table.private_codes["day"].tolist() == [60, 61]
        assert table.private_codes["month"].tolist() == [50, 50]
        assert table.private_codes["weekday"].tolist() == [4, 5]


def test_reading_process_knows_the_zones_of_a_confined_table(tmp_path: Path) -> None:
    """Landlock hides the system's time zone data, which must be read before."""
    path = tmp_path / "visits.csv"
    path.write_text("at\n2024-03-31T02:30:00+01:00\n2024-07-01 12:00\n2024-03-31 02:30\n")
    declared = source({"at": HOURS}, path=str(path))
    table = reader(tmp_path)(declared)
    assert (
        table.private_codes["at"].tolist()
        == encode("at", HOURS, pl.Series(path.read_text().split("\n")[1:3]))[0].tolist()
    )
    assert (table.private_row_count, table.file_row_count) == (2, 3)
