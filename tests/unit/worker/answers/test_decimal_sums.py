"""Sums and means of decimals on every mechanism that has them: exact in steps, published in the attribute's unit."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from sotto import Driver, Refused, Rejected
from stream.budget.openings import facts_for_plan
from tests.builders import installation, parse_source, parse_stream, source, stream

COSTS = [f"{place % 150}.{place % 100:02}" for place in range(3_000)]
VISITS: dict[str, Any] = {
    "cost": COSTS,
    "ward": ["A", "B", "C"] * 1_000,
    "visited": [f"2024-{1 + place % 12:02}-{1 + place % 28:02}" for place in range(3_000)],
}
TRUE_SUM = float(sum(map(Decimal, COSTS)))
CLINIC = source(
    "clinic",
    "table",
    epsilon=1_000.0,
    attributes={
        "cost": {"kind": "decimal", "minimum": 0, "maximum": 200, "step": 0.01},
        "ward": ["A", "B", "C"],
        "visited": {"kind": "date", "granularity": "month", "minimum": "2024-01-01", "maximum": "2024-12-31"},
    },
)


def clinic(*streams: dict[str, Any]) -> Driver:
    return installation(*streams, sources=[CLINIC], rows={"clinic": VISITS})


def opened(kind: str, **mechanism: Any) -> dict[str, Any]:
    return stream("s", "clinic", kind, mechanism=mechanism, epsilon=10.0, expected_queries=10)


def in_cents(number: float | None) -> bool:
    return number is not None and number == float(round(Decimal(repr(number)), 2))


def test_laplace_sum_of_decimals_is_in_their_unit() -> None:
    driver = clinic(opened("laplace", answers=10))
    answer: Any = driver.ask("s", sum="cost")
    assert in_cents(answer.estimate)
    assert abs(answer.estimate - TRUE_SUM) <= answer.alpha
    # A visit moves the sum by at most 200, and the noise's scale is a tenth of this.
    assert 20 < answer.alpha < 2_000


def test_laplace_mean_of_decimals_is_in_their_unit() -> None:
    answer: Any = clinic(opened("laplace", answers=10)).ask("s", mean="cost", where="visited >= '2024-07-01'")
    costs = [float(cost) for cost, day in zip(COSTS, VISITS["visited"], strict=True) if day >= "2024-07"]
    assert abs(answer.estimate - sum(costs) / len(costs)) <= answer.alpha < 5


def test_requested_error_of_a_decimal_sum_is_in_its_unit() -> None:
    driver = clinic(opened("laplace", answers=10))
    answer: Any = driver.ask("s", sum="cost", alpha=5_000.0)
    assert answer.alpha <= 5_000.0
    assert answer.price < 0.5
    assert abs(answer.estimate - TRUE_SUM) <= 5_000.0


def test_pmw_sums_and_means_of_decimals_are_in_their_unit() -> None:
    kept = {"cost": {"kind": "decimal", "minimum": 0, "maximum": 200, "step": 0.5}, "ward": ["A", "B", "C"]}
    driver = installation(
        stream(
            "s", "clinic", "pmw", mechanism={"attributes": ["cost", "ward"]}, epsilon=20.0, expected_queries=50
        ),
        sources=[source("clinic", "table", epsilon=100.0, attributes=kept)],
        rows={"clinic": VISITS},
    )
    halves = [math.floor(2 * float(cost) + 0.5) / 2 for cost in COSTS]
    total: Any = driver.ask("s", sum="cost")
    assert abs(total.estimate - sum(halves)) <= total.alpha < sum(halves)
    mean: Any = driver.ask("s", mean="cost", where="ward = 'A'")
    in_ward = [one for one, ward in zip(halves, VISITS["ward"], strict=True) if ward == "A"]
    assert abs(mean.estimate - sum(in_ward) / len(in_ward)) <= mean.alpha < 100


@pytest.mark.parametrize("kind", ["above_threshold", "numeric_sparse"])
def test_sparse_vector_compares_decimal_sums_with_thresholds_in_their_unit(kind: str) -> None:
    driver = clinic(opened(kind, threshold=TRUE_SUM - 5_000.5, cutoff=5, sums=["cost"]))
    assert driver.ask("s", sum="cost").outcome == "above"
    assert driver.ask("s", sum="cost", threshold=TRUE_SUM + 20_000.25).outcome == "below"
    assert driver.ask("s", where="TRUE", threshold=100.0).outcome == "above"
    assert driver.ask("s", where="TRUE", threshold=40_000.0).outcome == "below"
    if kind == "numeric_sparse":
        answer: Any = driver.ask("s", sum="cost")
        assert in_cents(answer.estimate)
        assert abs(answer.estimate - TRUE_SUM) <= answer.alpha


def test_noisy_max_compares_decimal_sums_with_counts_in_one_unit() -> None:
    driver = clinic(opened("noisy_max", answers=3, sums=["cost"]))
    candidates = [{"name": "rows", "where": "TRUE"}, {"name": "money", "sum": "cost"}]
    assert driver.ask("s", candidates=candidates).choice == "money"


def test_sensitivity_of_decimal_sums_is_exact_in_common_steps() -> None:
    """A visit moves the sum by 200.00, which is 20,000 steps of 0.01, and a count by 100 of them."""
    spec = parse_stream(opened("above_threshold", sums=["cost"]))
    facts = facts_for_plan(spec, parse_source(CLINIC))
    assert (facts.grid, facts.sensitivity_steps) == (0.01, 20_000)
    plain = facts_for_plan(parse_stream(opened("above_threshold")), parse_source(CLINIC))
    assert (plain.grid, plain.sensitivity_steps) == (1.0, 1)


def test_decimal_sums_that_may_be_clipped_are_refused() -> None:
    wide = {"cost": {"kind": "decimal", "minimum": 90_000, "maximum": 100_000, "step": 0.01}}
    clinic_source = source("clinic", "table", attributes=wide)
    with pytest.raises(Refused, match="values up to 10,000,000 steps from 0, and sums are exact for"):
        installation(
            opened("above_threshold", sums=["cost"]), sources=[clinic_source], rows={"clinic": {"cost": []}}
        )


def test_sum_refuses_an_attribute_of_dates() -> None:
    with pytest.raises(Rejected, match="no attribute of integers or decimals; declared are 'cost'"):
        clinic(opened("laplace", answers=3)).ask("s", sum="visited")


def test_groups_and_statements_use_dates_and_decimals() -> None:
    driver = clinic(opened("laplace", answers=40))
    table = driver.sql("SELECT visited, AVG(cost) AS mean FROM s WHERE visited >= '2024-10-01' GROUP BY visited")
    assert [row["visited"] for row in table][-3:] == ["2024-10", "2024-11", "2024-12"]
    counts = driver.sql("SELECT visited, COUNT(*) AS n FROM s WHERE cost >= 99.995 GROUP BY visited")
    true = sum(
        float(cost) >= 99.995 and day.startswith("2024-05")
        for cost, day in zip(COSTS, VISITS["visited"], strict=True)
    )
    assert abs(counts[4]["n"] - true) <= counts[4]["n ±"]


def test_histogram_releases_cells_of_dates() -> None:
    driver = clinic(opened("histogram", attributes=["visited", "ward"]))
    answer: Any = driver.ask("s", where="visited BETWEEN '2024-01-01' AND '2024-03-31'")
    assert abs(answer.estimate - 750) <= answer.alpha
