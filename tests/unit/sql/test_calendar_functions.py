"""Calendar functions of SQL: each stands for an attribute that reads the same column with that granularity."""

from __future__ import annotations

import re
from typing import Any

import pytest

from schemas import Dates
from sotto import Driver, StatementError
from tests.builders import installation, source, stream

DAYS = [f"2024-{1 + place % 12:02}-{1 + place % 28:02}" for place in range(1_200)]
YEAR = {"minimum": "2024-01-01", "maximum": "2024-12-31"}
VISITS: dict[str, Any] = source(
    "visits",
    "table",
    epsilon=1_000.0,
    attributes={
        "visited": {"kind": "date", **YEAR},
        "month": {"kind": "date", "granularity": "month", **YEAR},
        "weekday": {"kind": "date", "granularity": "weekday"},
        "season": {"kind": "date", "granularity": "month-of-year"},
        "ward": ["A", "B"],
    },
    columns=dict.fromkeys(("month", "weekday", "season"), "visited"),
)


@pytest.fixture(scope="module")
def driver() -> Driver:
    rows = {"visits": {"visited": DAYS, "ward": ["A", "B"] * 600}}
    return installation(
        stream("s", "visits", "laplace", mechanism={"answers": 200}, epsilon=900.0), sources=[VISITS], rows=rows
    )


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        ("EXTRACT(MONTH FROM visited) = 3", lambda day: day[5:7] == "03"),
        ("EXTRACT(MONTH FROM visited::date) = 3", lambda day: day[5:7] == "03"),
        ("DATE_TRUNC('month', visited) >= '2024-11-01'", lambda day: day >= "2024-11"),
        ("DATE_TRUNC('month', visited) = DATE '2024-02-01'", lambda day: day.startswith("2024-02")),
        (
            "DATE_TRUNC('month', visited) IN ('2024-02-01', '2024-04-01 00:00:00')",
            lambda day: day[5:7] in {"02", "04"},
        ),
        (
            "visited >= DATE '2024-03-01' AND visited < CAST('2024-03-15' AS date)",
            lambda day: "2024-03-01" <= day < "2024-03-15",
        ),
        (
            "visited >= '2024-03-01 00:00:00.000000' AND visited < '2024-03-15T00:00:00'",
            lambda day: "2024-03-01" <= day < "2024-03-15",
        ),
        ("NOT EXTRACT(ISODOW FROM visited) IN (6, 7) AND ward = 'A'", None),
    ],
)
def test_calendar_functions_in_conditions_name_attributes(driver: Driver, condition: str, true: Any) -> None:
    [row] = driver.sql("SELECT COUNT(*) AS n FROM s WHERE …".replace("…", condition))
    if true is not None:
        assert abs(row["n"] - sum(map(true, DAYS))) <= row["n ±"]


def test_calendar_functions_in_group_by_name_attributes(driver: Driver) -> None:
    statement = (
        "SELECT DATE_TRUNC('month', visited) AS month, COUNT(*) AS n FROM s WHERE visited >= '2024-01-01' "
        "GROUP BY DATE_TRUNC('month', visited) ORDER BY month DESC"
    )
    table = driver.sql(statement)
    assert [row["month"] for row in table] == [f"2024-{month:02}" for month in range(12, 0, -1)]
    assert all(abs(row["n"] - 100) <= row["n ±"] for row in table)
    parts = driver.sql("SELECT EXTRACT(MONTH FROM visited), COUNT(*) AS n FROM s GROUP BY 1")
    assert parts.columns[0] == "EXTRACT(MONTH FROM visited)"
    assert [row["EXTRACT(MONTH FROM visited)"] for row in parts] == list(range(1, 13))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT COUNT(*) FROM s WHERE EXTRACT(YEAR FROM visited) = 2024", "no attribute has granularity 'year'"),
        (
            "SELECT EXTRACT(YEAR FROM visited), COUNT(*) FROM s GROUP BY 1",
            (
                """declare one in a new source: "year": {"kind": "date", "granularity": "year", "minimum": …, "maximum": …} in """
                """attributes, and "year": "visited" in columns"""
            ),
        ),
        ("SELECT EXTRACT(HOUR FROM visited), COUNT(*) FROM s GROUP BY 1", "holds dates, which have no hours"),
        ("SELECT COUNT(*) FROM s WHERE EXTRACT(DOW FROM visited) = 0", "ISODOW counts from Monday"),
        ("SELECT COUNT(*) FROM s WHERE EXTRACT(MONTH FROM ward) = 1", "'ward' is not an attribute of dates"),
        (
            "SELECT COUNT(*) FROM s WHERE DATE_TRUNC('month', nowhere) = '2024-01'",
            "no attribute is called 'nowhere'",
        ),
        ("SELECT COUNT(*) FROM s WHERE DATE_TRUNC('month', visited) = '2024-01-15'", "use '2024-01' or '2024-02'"),
    ],
)
def test_calendar_functions_without_an_attribute_are_refused(driver: Driver, statement: str, words: str) -> None:
    with pytest.raises(StatementError, match=words):
        driver.sql(statement)


def test_column_that_is_no_attribute_is_refused_with_its_attributes() -> None:
    """A column and the attributes that read it may have different names."""
    day = {"kind": "date", **YEAR}
    table = source("visits", "table", attributes={"day": day}, columns={"day": "seen_at"})
    spec = stream("s", "visits", "laplace", mechanism={"answers": 2})
    driver = installation(spec, sources=[table], rows={"visits": {"seen_at": DAYS}})
    with pytest.raises(StatementError, match="is called 'seen_at'; name an attribute of this column: 'day'"):
        driver.sql("SELECT EXTRACT(MONTH FROM seen_at), COUNT(*) FROM s GROUP BY 1")


def test_declaration_that_a_refusal_gives_is_valid() -> None:
    """A weekday in another zone is another attribute, and the refusal says so."""
    days = {"kind": "timestamp", "zone": "Europe/Berlin", **YEAR}
    attributes = {"day": days, "weekday": {"kind": "timestamp", "granularity": "weekday"}}
    table = source("visits", "table", attributes=attributes, columns={"weekday": "day"})
    spec = stream("s", "visits", "laplace", mechanism={"answers": 2})
    driver = installation(spec, sources=[table], rows={"visits": {"day": DAYS}})
    with pytest.raises(
        StatementError, match="granularity 'weekday' in the zone 'Europe/Berlin' and reads"
    ) as refused:
        driver.sql("SELECT EXTRACT(ISODOW FROM day), COUNT(*) FROM s GROUP BY 1")
    declared = re.search(r"source: \"weekday\": (\{.*\}) in attributes", str(refused.value))
    assert declared is not None
    assert Dates.model_validate_json(declared[1]).zone == "Europe/Berlin"
