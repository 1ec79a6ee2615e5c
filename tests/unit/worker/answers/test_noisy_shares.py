"""Shares of a private number of rows on pmw are at least as accurate as the count from which they are computed."""

from __future__ import annotations

from typing import Any

import pytest

from sotto import Driver, Result
from tests.builders import installation, source, stream

ROWS = 20_000
X = [number * number % 8 for number in range(ROWS)]
TABLE = {"people": {"x": X, "y": X, "z": [number % 2 for number in range(ROWS)]}}
NUMBERS = {name: {"kind": "integers", "minimum": 0, "maximum": 7 if name != "z" else 1} for name in "xyz"}
RARE = "x = 4 AND y = 4"


def opened(neighbors: str = "add-remove", **mechanism: Any) -> Driver:
    people = source("people", "table", epsilon=100.0, path="-", attributes=NUMBERS, neighbors=neighbors)
    fields = {"kind": "pmw", "attributes": ["x", "y", "z"], "warm_start": 1, **mechanism}
    spec = stream("s", "people", mechanism=fields, epsilon=2.0, expected_queries=50)
    return installation(spec, sources=[people], rows=TABLE)


def width(result: Result) -> float:
    assert result.interval is not None
    return result.interval[1] - result.interval[0]


def test_measured_share_has_the_error_of_its_count() -> None:
    driver = opened()
    count, share = driver.ask("s", where="z = 1"), driver.ask("s", where="z = 1", fraction=True)
    rate = driver.ask("s", rate="z = 1")
    assert (count.basis, share.basis) == ("measured", "measured")
    assert share.estimate == pytest.approx(0.5, abs=0.01)
    assert (share.estimate, share.alpha, share.interval) == (rate.estimate, rate.alpha, rate.interval)
    assert count.alpha is not None
    assert share.alpha is not None
    assert share.alpha * ROWS == pytest.approx(count.alpha, rel=0.05)
    # The hits and the misses each have a part of the interval's failure probability of 5 %.
    assert width(share) * ROWS < 1.3 * width(count)


def test_newly_measured_share_publishes_its_count() -> None:
    driver = opened(warm_start=0)
    first = driver.ask("s", where=RARE, fraction=True)
    truth = X.count(4) / ROWS
    assert first.basis == "noisy"
    assert first.estimate == pytest.approx(truth, abs=first.alpha)
    assert first.interval is not None
    assert first.interval[0] <= truth <= first.interval[1]
    spent = first.spent
    again, count = driver.ask("s", where=RARE, fraction=True), driver.ask("s", where=RARE)
    assert (again.basis, count.basis) == ("measured", "measured")
    assert (again.spent, count.spent) == (spent, spent)
    assert count.alpha is not None
    assert first.alpha is not None
    # Only the share p of the noise of the number of rows is added.
    assert first.alpha * ROWS < 1.5 * count.alpha


def test_restore_repeats_the_answers_to_shares() -> None:
    asked: list[dict[str, Any]] = [
        {"where": where, "fraction": True} for where in (RARE, "z = 1", "x < 3 AND y < 3", RARE)
    ]
    first, second = opened(warm_start=0), opened(warm_start=0)
    answers = [first.ask("s", id=str(place), **one) for place, one in enumerate(asked)]
    found = []
    for place, one in enumerate(asked):
        found.append(second.ask("s", id=str(place), **one))
        second.crash()
    assert found == answers


def test_share_of_public_rows_is_a_count_divided_by_them() -> None:
    driver = opened("replace")
    count, share = driver.ask("s", where="z = 1"), driver.ask("s", where="z = 1", fraction=True)
    assert share.estimate == pytest.approx((count.estimate or 0.0) / ROWS)
    assert share.alpha == pytest.approx((count.alpha or 0.0) / ROWS)
