"""Sums of an attribute that lies far from 0: answered exactly beside their noise, or refused by public facts; nothing stops."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from tests.unit.processors.installation import KEY

MS = 1_500_000_000_000
"""A time in milliseconds: as far from 0 as an attribute of few values may well be."""

NO_NOISE = (
    "its noise would not fit 52 binary digits; ask of an attribute with a smaller range, nearer to 0, or open a stream "
    "with a larger epsilon or fewer "
)


def driver_of(columns: dict[str, list[int]], mechanism: dict[str, Any], **more: Any) -> Driver:
    """A driver with a stream ``s`` on a table with times, the least of which is ``far``, and other attributes with two values each."""
    neighbors = more.pop("neighbors", "add-remove")
    far = more.pop("far", MS)
    made = Driver(KEY, partitions=1)
    attributes = dict.fromkeys(columns, 2) | {"ms": {"kind": "integers", "minimum": far, "maximum": far + 1000}}
    source = {"kind": "table", "source": "visits", "path": "visits.csv", "epsilon": 1000.0, "delta": 0.01}
    made.register({**source, "neighbors": neighbors, "attributes": attributes}, columns)
    made.open({"stream": "s", "source": "visits", "mechanism": mechanism, **more})
    return made


def asked(driver: Driver, **question: Any) -> Answer:
    return driver.ask_many([{"id": "1", "stream": "s", **question}])[0]


def visits(far: int = MS, *, alike: bool) -> dict[str, list[int]]:
    """Of two tables the one has an error that an estimate from single attributes shows, and the other not."""
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
def test_a_sum_that_a_measurement_could_not_hide_is_refused_whatever_the_rows_are(
    far: int, delta: float, wanted: dict[str, Any]
) -> None:
    for alike in (False, True):
        driver = pmw(visits(far, alike=alike), far=far, delta=delta)
        told = asked(driver, sum="ms", where="x0 = 1 AND x1 = 1", **wanted)
        assert told.reason == f"malformed: sum: {NO_NOISE}updates"
        assert asked(driver, where="x0 = 1 AND x1 = 1").outcome == "answer"
        assert asked(driver, mean="ms", where="x0 = 1").outcome == "answer"


def test_a_sum_whose_error_no_measurement_keeps_to_has_noise_that_fits_it() -> None:
    columns = visits(alike=True)
    driver, alpha = pmw(columns), 400.0 * MS
    answer = asked(driver, sum="ms", where="x0 = 1 AND x1 = 1", alpha=alpha)
    truth = sum(ms for ms, one in zip(columns["ms"], columns["x0"], strict=True) if one)
    assert answer.estimate is not None, answer.reason
    assert abs(answer.estimate - truth) <= alpha
    assert answer.price is not None
    assert answer.price > 0.0


@pytest.mark.parametrize("wanted", [{}, {"alpha": 1e6}, {"alpha": 1e15}])
def test_a_sum_that_gaussian_noise_cannot_hide_is_refused_with_an_alpha_and_without(
    wanted: dict[str, Any],
) -> None:
    laplace = {"kind": "laplace", "answers": 2000}
    driver = driver_of({"ms": [MS] * 100}, laplace, epsilon=0.5, delta=1e-6)
    assert asked(driver, sum="ms", **wanted).reason == f"malformed: query: {NO_NOISE}answers"
    assert asked(driver, where="TRUE").outcome == "answer"
