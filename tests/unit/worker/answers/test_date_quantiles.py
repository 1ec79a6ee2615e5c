"""Quantiles of dates, timestamps and ordered categories: answers in the attribute's own unit."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from sotto import Driver, Rejected
from stream.sql.aggregates import StatementError
from tests.builders import installation, source, stream

FIRST = date(2024, 1, 1)
GRADES = ["poor", "fair", "good", "excellent"]
DAYS = [(FIRST + timedelta(days=number % 100)).isoformat() for number in range(2000)]
ROWS = {
    "visits": {
        "day": DAYS,
        "month": DAYS,
        "time": [f"{day}T08:30:00" for day in DAYS],
        "grade": [GRADES[(number % 10) // 3] for number in range(2000)],
        "ward": ["A" if number % 100 < 50 else "B" for number in range(2000)],
        "town": ["X", "Y"] * 1000,
    }
}
RANGE = {"minimum": "2024-01-01", "maximum": "2024-04-30"}
SOURCE = source(
    "visits",
    "table",
    epsilon=1000.0,
    path="in memory",
    attributes={
        "day": {"kind": "date", **RANGE},
        "month": {"kind": "date", "granularity": "month", **RANGE},
        "time": {"kind": "timestamp", "granularity": "day", "zone": "Europe/Berlin", **RANGE},
        "grade": {"kind": "categories", "values": GRADES, "ordered": True},
        "ward": ["A", "B"],
        "town": ["X", "Y"],
    },
)
PMW = {"kind": "pmw", "attributes": ["day", "grade", "ward"], "warm_start": 1}
STREAMS = {
    "laplace": stream("s", "visits", "laplace", epsilon=100.0, mechanism={"answers": 20}),
    "histogram": stream(
        "s", "visits", epsilon=50.0, mechanism={"kind": "histogram", "attributes": ["day", "grade", "ward"]}
    ),
    "pmw": stream("s", "visits", epsilon=50.0, expected_queries=20, mechanism=PMW),
}

every_kind = pytest.mark.parametrize("kind", STREAMS)


def opened(kind: str = "laplace") -> Driver:
    return installation(STREAMS[kind], sources=[SOURCE], rows=ROWS)


@every_kind
def test_quantile_of_dates_is_a_date_with_an_interval(kind: str) -> None:
    result = opened(kind).ask("s", quantile="day")
    assert result.choice is not None
    assert abs((date.fromisoformat(result.choice) - date(2024, 2, 19)).days) <= 3
    assert (result.estimate, result.estimates, result.choices) == (None, None, None)
    assert result.choice_intervals is not None
    [(low, high)] = result.choice_intervals
    assert low <= "2024-02-19" <= high
    assert low <= result.choice <= high
    assert f"'{result.choice}'" in str(result)
    assert f"(95 %: {low} to {high})" in str(result)
    [row] = result.rows()
    assert (row["choice"], row["interval_low"], row["interval_high"]) == (result.choice, low, high)


@every_kind
def test_quantiles_of_ordered_categories_are_categories(kind: str) -> None:
    result = opened(kind).ask("s", quantile="grade", q=[0.1, 0.5, 0.95])
    assert result.choices == ("poor", "fair", "excellent")
    assert len(result.choice_intervals or ()) == 3
    assert [(row["q"], row["choice"]) for row in result.rows()] == list(
        zip((0.1, 0.5, 0.95), result.choices, strict=True)
    )
    assert "'poor', 'fair', 'excellent'" in str(result)


@every_kind
def test_quantile_of_dates_differs_by_group(kind: str) -> None:
    result = opened(kind).ask("s", quantile="day", group_by=["ward"])
    assert [row["ward"] for row in result.rows()] == ["A", "B"]
    for found, truth in zip(result.choices or (), ("2024-01-25", "2024-03-15"), strict=True):
        assert abs((date.fromisoformat(found) - date.fromisoformat(truth)).days) <= 3


def test_quantiles_of_other_granularities_and_timestamps_are_cells() -> None:
    driver = opened()
    assert driver.ask("s", quantile="month", q=0.9).choice == "2024-03"
    choice = driver.ask("s", quantile="time").choice
    assert choice is not None
    assert abs((date.fromisoformat(choice) - date(2024, 2, 19)).days) <= 3


@every_kind
def test_interquartile_range_of_dates_is_a_number_of_days(kind: str) -> None:
    result = opened(kind).ask("s", iqr="day")
    assert result.estimate == pytest.approx(50.0, abs=4.0)
    assert result.interval is not None
    assert result.interval[0] <= 50.0 <= result.interval[1]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"iqr": "grade"}, "iqr: attribute 'grade' is not an attribute of ordered values"),
        ({"variance": "day"}, "variance: attribute 'day' is not an attribute of numbers"),
        ({"quantile": "ward"}, "quantile: attribute 'ward' is not an attribute of ordered values"),
    ],
)
def test_undefined_statistics_of_dates_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        opened().ask("s", **asked)


def test_statements_return_dates_and_categories() -> None:
    driver = opened()
    table = driver.sql(
        "SELECT ward, MEDIAN(day) AS d, QUANTILE(grade, 0.95) AS g FROM visits GROUP BY ward ORDER BY d DESC"
    )
    assert [row["ward"] for row in table] == ["B", "A"]
    assert [row["g"] for row in table] == ["excellent", "excellent"]
    assert table[0]["d 95% low"] <= table[0]["d"] <= table[0]["d 95% high"]
    [one] = driver.sql("SELECT PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY month) AS m FROM visits")
    assert (one["m"], one["m ±"]) == ("2024-02", None)
    by_grade = driver.sql("SELECT town, MEDIAN(grade) AS g FROM visits GROUP BY town ORDER BY g")
    assert [row["g"] for row in by_grade] == ["fair", "fair"]
    with pytest.raises(StatementError, match="HAVING: 'd' is not a number"):
        driver.sql("SELECT ward, MEDIAN(day) AS d FROM visits GROUP BY ward HAVING d > 3")
