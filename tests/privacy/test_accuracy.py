"""The error that a calibration promises holds for the service's answers, and a much smaller error would not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from tests.privacy.chance import at_most
from tests.privacy.service import KEY, definition_of, feed, open_all, stream

STREAMS = 300
GRID = 1 / 64


def failures(cutoff: int, queries: int, beta: float, *, stretch: float = 1.0, calibration: str = "best") -> int:
    """Return how many streams err if their values are at T − stretch·α and the last ``cutoff`` values are at T + stretch·α."""
    threshold = 1000.0
    names = [f"stream-{number}" for number in range(STREAMS)]
    driver = Driver(KEY, partitions=1)
    driver.register(feed(grid=GRID))
    terms: dict[str, Any] = {"expected_queries": queries, "beta": beta, "calibration": calibration}
    open_all(driver, (stream(name, cutoff, threshold=threshold, **terms) for name in names))
    planned = definition_of(driver, names[0]).calibration
    assert calibration == "textbook" or planned.method == "one_sided"
    error = stretch * planned.alpha
    wanted = ["below"] * (queries - cutoff) + ["above"] * cutoff
    values = [threshold + (error if outcome == "above" else -error) for outcome in wanted]
    answers: Sequence[Answer] = driver.ask_many(
        {"id": f"{place}", "stream": name, "value": value} for place, value in enumerate(values) for name in names
    )
    return sum([answer.outcome for answer in answers[row::STREAMS]] != wanted for row in range(STREAMS))


@pytest.mark.parametrize(
    ("cutoff", "queries", "beta"), [(1, 1, 0.1), (1, 50, 0.05), (1, 50, 0.3), (3, 60, 0.2), (10, 40, 0.1)]
)
def test_failures_are_no_more_frequent_than_beta(cutoff: int, queries: int, beta: float) -> None:
    assert at_most(failures(cutoff, queries, beta), STREAMS, beta)


@pytest.mark.parametrize(("cutoff", "queries", "beta"), [(1, 50, 0.05), (3, 60, 0.2)])
def test_failures_at_half_the_error_exceed_beta(cutoff: int, queries: int, beta: float) -> None:
    assert not at_most(failures(cutoff, queries, beta, stretch=0.5), STREAMS, beta)


def test_textbook_error_holds_too() -> None:
    assert at_most(failures(3, 30, 0.1, calibration="textbook"), STREAMS, 0.1)
