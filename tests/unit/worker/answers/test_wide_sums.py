"""Sums of an attribute far from 0 are exact apart from their noise, or refused by public facts; no service stops."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Answer
from schemas.sources import MAX_ROWS
from sotto import Driver, Refused
from stream.privacy.accuracy.source_facts import LARGEST_SUMMED, LARGEST_TOTAL, MAX_STEPS
from stream.tables.columns_table import PrivateTable
from stream.tables.expressions import Predicate
from stream.tables.rows import Rows
from stream.tables.table_errors import TableDataError
from tests.builders import KEY, parse_source, source, stream
from tests.unit.feeds.live import flights, standing

MS = 1_500_000_000_000
"""A time in milliseconds: an example of an attribute with few values that are far from 0."""

NO_NOISE = (
    "its noise would not fit 52 binary digits; ask of an attribute with a smaller range, nearer to 0, or open a stream "
    "with a larger epsilon or fewer "
)


def source_of_visits(**changes: Any) -> dict[str, Any]:
    return source("visits", "table", path="visits.csv", **changes)


def driver_of(columns: dict[str, list[int]], mechanism: dict[str, Any], **more: Any) -> Driver:
    """Return a driver with a stream ``s`` on a table with times from ``far`` on, and other attributes with two values each."""
    neighbors = more.pop("neighbors", "add-remove")
    far = more.pop("far", MS)
    made = Driver(KEY, partitions=1)
    attributes = dict.fromkeys(columns, 2) | {"ms": {"kind": "integers", "minimum": far, "maximum": far + 1000}}
    made.register(
        source_of_visits(neighbors=neighbors, epsilon=1000.0, delta=0.01, attributes=attributes), columns
    )
    made.open(stream("s", "visits", mechanism=mechanism, **more), acknowledge=True)
    return made


def ask_one(driver: Driver, **question: Any) -> Answer:
    return driver.ask_many([{"id": "1", "stream": "s", **question}])[0]


def visits(far: int = MS, *, alike: bool) -> dict[str, list[int]]:
    """Return one of two tables: an estimate from single attributes shows the error of only one of them."""
    rows = range(4000)
    columns = {f"x{axis}": [row >> axis & 1 for row in rows] for axis in range(6)}
    if alike:
        columns["x1"] = columns["x0"]
    shown = columns["x0"] if alike else [row >> 9 & 1 for row in rows]
    return columns | {"ms": [far + 1000 * one for one in shown]}


def pmw(columns: dict[str, list[int]], **more: Any) -> Driver:
    mechanism = {"kind": "pmw", "attributes": list(columns), "warm_start": 1, "updates": 5}
    return driver_of(columns, mechanism, epsilon=0.5, **more)


@pytest.mark.parametrize(
    ("far", "delta", "wanted"), [(MS, 0.0, {}), (MS, 0.0, {"alpha": 1e15}), (10 * MS, 1e-9, {})]
)
def test_sum_that_a_measurement_cannot_hide_is_refused(far: int, delta: float, wanted: dict[str, Any]) -> None:
    """The refusal does not depend on the rows."""
    for alike in (False, True):
        driver = pmw(visits(far, alike=alike), far=far, delta=delta)
        answer = ask_one(driver, sum="ms", where="x0 = 1 AND x1 = 1", **wanted)
        assert answer.reason == f"malformed: sum: {NO_NOISE}updates"
        assert ask_one(driver, where="x0 = 1 AND x1 = 1").outcome == "answer"
        assert ask_one(driver, mean="ms", where="x0 = 1").outcome == "answer"


def test_sum_beyond_the_measurable_errors_has_fitting_noise() -> None:
    columns = visits(alike=True)
    driver, alpha = pmw(columns), 400.0 * MS
    answer = ask_one(driver, sum="ms", where="x0 = 1 AND x1 = 1", alpha=alpha)
    truth = sum(ms for ms, one in zip(columns["ms"], columns["x0"], strict=True) if one)
    assert answer.estimate is not None, answer.reason
    assert abs(answer.estimate - truth) <= alpha
    assert answer.price is not None
    assert answer.price > 0.0


@pytest.mark.parametrize("wanted", [{}, {"alpha": 1e6}, {"alpha": 1e15}])
def test_sum_that_gaussian_noise_cannot_hide_is_refused(
    wanted: dict[str, Any],
) -> None:
    """This holds with and without an alpha."""
    laplace = {"kind": "laplace", "answers": 2000}
    driver = driver_of({"ms": [MS] * 100}, laplace, epsilon=0.5, delta=1e-6)
    assert ask_one(driver, sum="ms", **wanted).reason == f"malformed: query: {NO_NOISE}answers"
    assert ask_one(driver, where="TRUE").outcome == "answer"


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("wanted", [{}, {"alpha": 1e15}])
def test_laplace_sum_is_never_clipped(neighbors: str, wanted: dict[str, Any]) -> None:
    rows = [MS + number % 1001 for number in range(5000)]
    driver = driver_of({"ms": rows}, {"kind": "laplace", "answers": 4}, epsilon=4.0, neighbors=neighbors)
    answer = ask_one(driver, sum="ms", **wanted)
    assert sum(rows) > 6 * MAX_STEPS
    assert answer.estimate is not None
    assert answer.alpha is not None
    assert abs(answer.estimate - sum(rows)) <= answer.alpha < sum(rows) / 2
    mean = ask_one(driver, mean="ms")
    assert mean.estimate == pytest.approx(sum(rows) / len(rows), abs=mean.alpha)


SUMS: list[dict[str, Any]] = [
    {"kind": "above_threshold", "threshold": 0.0, "cutoff": 1},
    {"kind": "numeric_sparse", "threshold": 0.0, "cutoff": 1},
    {"kind": "noisy_max", "answers": 1},
    {"kind": "exponential", "answers": 1},
]


def summing(mechanism: dict[str, Any], low: int, high: int, neighbors: str = "add-remove") -> Driver:
    made = Driver(KEY, partitions=1)
    domain = {"kind": "integers", "minimum": low, "maximum": high}
    made.register(
        source_of_visits(neighbors=neighbors, epsilon=1000.0, attributes={"v": domain}),
        {"v": [low, low + 1, high]},
    )
    made.open(stream("s", "visits", mechanism=mechanism | {"sums": ["v"]}, epsilon=1000.0), acknowledge=True)
    return made


@pytest.mark.parametrize("mechanism", SUMS, ids=lambda one: str(one["kind"]))
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_sums_that_might_be_clipped_are_neither_compared_nor_chosen(
    mechanism: dict[str, Any], neighbors: str
) -> None:
    summing(mechanism, LARGEST_SUMMED - 1000, LARGEST_SUMMED, neighbors)
    summing(mechanism, -LARGEST_SUMMED, -LARGEST_SUMMED + 1000, neighbors)
    for low, high in ((LARGEST_SUMMED - 1000, LARGEST_SUMMED + 1), (-LARGEST_SUMMED - 1, 0 - LARGEST_SUMMED)):
        with pytest.raises(Refused, match=r"mechanism\.sums\.0: 'v' has values up to 8,388,609 from 0, and"):
            summing(mechanism, low, high, neighbors)


@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "above_threshold", "threshold": 25.0, "cutoff": 3},
        {"kind": "laplace", "answers": 3},
        {"kind": "histogram", "attributes": ["origin"], "answers": 3},
        {"kind": "running_count", "steps": 3},
    ],
    ids=lambda one: str(one["kind"]),
)
def test_sums_that_might_be_clipped_are_not_counted_in_windows(mechanism: dict[str, Any]) -> None:
    driver = Driver(KEY, partitions=1)
    source = flights(total=4)
    far = {"kind": "integers", "minimum": LARGEST_SUMMED - 1000, "maximum": LARGEST_SUMMED + 1}
    source["attributes"] |= {"far": far, "near": far | {"maximum": LARGEST_SUMMED}}
    driver.register(source)
    more = {"window": {"size": "1h"}, "epsilon": 500, "expected_queries": 3}
    driver.open(standing("near", mechanism, count={"sum": "near"}, **more), acknowledge=True)
    with pytest.raises(Refused, match=r"standing\.count\.sum: 'far' has values up to 8,388,609 from 0, and"):
        driver.open(standing("far", mechanism, count={"sum": "far"}, **more), acknowledge=True)


@pytest.mark.parametrize("least", [2**50 + 1, 2**52 + 1, 2**53 - 3])
def test_largest_totals_are_compared_and_published_exactly(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    def total(_: PrivateTable, attribute: str, predicate: Predicate, center: int = 0) -> int:
        return least + (repr(predicate) == repr(seen.setdefault(attribute, predicate))) * 3 + center

    seen: dict[str, Predicate] = {}
    monkeypatch.setattr(PrivateTable, "total", total)
    vector = {"kind": "numeric_sparse", "threshold": 1e15, "cutoff": 1}
    answer = ask_one(summing(vector, 0, 1), sum="v")
    assert answer.outcome == "above"
    assert answer.estimate == least + 3
    seen.clear()
    candidates = [{"name": name, "sum": "v", "where": where} for name, where in (("a", "v = 0"), ("b", "TRUE"))]
    for kind in ("noisy_max", "exponential"):
        assert ask_one(summing({"kind": kind, "answers": 1}, 0, 1), candidates=candidates).choice == "a"


def test_table_has_at_most_the_rows_that_totals_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST_SUMMED * MAX_ROWS == LARGEST_TOTAL
    assert LARGEST_SUMMED * (MAX_ROWS >> 3) == MAX_STEPS
    monkeypatch.setattr("stream.tables.rows.MAX_ROWS", 100)
    table = parse_source(source_of_visits(neighbors="replace", epsilon=1.0, attributes={"ms": 2}))
    assert Rows.load(table, {"ms": [1] * 100}).private_row_count == 100
    with pytest.raises(TableDataError, match="path: no table can be read there") as refused:
        Rows.load(table, {"ms": [1] * 101})
    assert getattr(refused.value, "cause", None) == "more than 100 rows"
