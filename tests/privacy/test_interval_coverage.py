"""Each published interval contains the true number in 95 of 100 cases: ordinary questions about a real table, many streams.

Intervals of one question in different streams are independent. Those of one stream may depend on one another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
import pytest

from schemas import Answer
from sotto import Driver
from stream.tables.demo_tables import adult_source
from tests.builders import source, stream
from tests.privacy.questions import QUESTIONS, conditions, groups, people
from tests.privacy.service import open_all

STREAMS = 40
PMW_STREAMS = 120
"""More than of other mechanisms, because each stream publishes few intervals that can miss."""
SETTINGS = (("add-remove", 0.3, 0.0), ("replace", 0.1, 1e-6))
"""Settings with wide noise, so that an interval that is one step wider covers little more."""
ATTRIBUTES = ("age", "sex", "education-num", "race", "income>50K")
EXACT = ("laplace", "laplace, feed", "histogram", "numeric_sparse", "lazy_histogram, equal weights")
"""Mechanisms whose intervals are as narrow as the noise allows."""
BOUNDED = ("laplace, quotients", "pmw", "lazy_histogram, unequal weights")
"""Mechanisms with wider intervals: bounds of quotients and weighted sums, and intervals that contain the estimate."""

Question = tuple[dict[str, Any], tuple[float, ...]]
"""A question without its stream, and its true numbers."""


def counts() -> list[Question]:
    return [({"where": where}, (float(rows.height),)) for where, rows in conditions()]


def of_laplace() -> list[Question]:
    found = counts()[: QUESTIONS // 2]
    for place, (where, rows) in enumerate(conditions()[QUESTIONS // 2 :]):
        if place % 2:
            found.append(({"sum": "age", "where": where}, (float(rows["age"].sum()),)))
        else:
            # Small groups are covered more often: intervals are cut off at 0.
            truths = groups(rows).reshape(2, 5).sum(axis=1)
            found.append(({"group_by": ["sex"], "where": where}, tuple(map(float, truths))))
    return found


def quotients(neighbors: str) -> list[Question]:
    found: list[Question] = []
    for place, (where, rows) in enumerate(conditions()):
        if place % 2 and rows.height:
            mean = pl.Series(rows["age"]).cast(pl.Float64).mean()
            found.append(({"mean": "age", "where": where}, (float(str(mean)),)))
        elif neighbors == "add-remove":
            found.append(({"where": where, "fraction": True}, (rows.height / people().height,)))
    return found


def of_cells(weights: tuple[float, ...]) -> list[Question]:
    generator = random.Random(3)
    counted = people().group_by(ATTRIBUTES).len().sort(ATTRIBUTES)
    rows = list(counted.iter_rows())
    found: list[Question] = []
    for _ in range(QUESTIONS):
        chosen = generator.sample(rows, 6)
        each = [weights[place % len(weights)] for place in range(len(chosen))]
        cells = [
            {"at": dict(zip(ATTRIBUTES, row[:-1], strict=True)), "weight": weight}
            for row, weight in zip(chosen, each, strict=True)
        ]
        found.append(({"cells": cells}, (sum(w * row[-1] for w, row in zip(each, chosen, strict=True)),)))
    return found


def values() -> list[Question]:
    generator = random.Random(4)
    drawn = [generator.randint(100, 4000) + 0.25 for _ in range(QUESTIONS)]
    return [({"value": value}, (value,)) for value in drawn]


def questions_by_setting(neighbors: str) -> dict[str, tuple[str, dict[str, Any], list[Question]]]:
    table: dict[str, Any] = {"attributes": list(ATTRIBUTES)}
    numbers = {"kind": "laplace", "answers": QUESTIONS}
    lazy = {"kind": "lazy_histogram", "sparsity": 6, **table}
    return {
        "laplace": ("adult", numbers, of_laplace()),
        "laplace, quotients": ("adult", numbers, quotients(neighbors)),
        "laplace, feed": ("feed", numbers, values()),
        "histogram": ("adult", {"kind": "histogram", **table}, counts()),
        "numeric_sparse": ("adult", {"kind": "numeric_sparse", "threshold": 2000.0, "cutoff": 20}, counts()),
        "lazy_histogram, equal weights": ("adult", lazy, of_cells((1.0,))),
        "lazy_histogram, unequal weights": ("adult", lazy, of_cells((1.0, 0.5))),
        "pmw": ("adult", {"kind": "pmw", "warm_start": 1, "updates": 30, **table}, counts()),
    }


def hits(answer: Answer, truths: tuple[float, ...]) -> Iterator[bool]:
    intervals = answer.intervals if answer.intervals is not None else (answer.interval,)
    for interval, truth in zip(intervals, truths, strict=True):
        if interval is not None:
            yield interval[0] <= truth <= interval[1]


@lru_cache(maxsize=1)
def covered() -> dict[str, list[list[bool]]]:
    """For each mechanism and each of its streams, whether each interval contains the true number."""
    found: dict[str, list[list[bool]]] = {}
    for neighbors, epsilon, delta in SETTINGS:
        driver = Driver(bytes(range(9, 41)), partitions=1)
        driver.register(adult_source(1000.0, 1e-3).model_copy(update={"neighbors": neighbors}))
        driver.register(source(neighbors=neighbors, epsilon=1000.0, delta=1e-3, grid=1.0))
        for name, (data, mechanism, questions) in questions_by_setting(neighbors).items():
            count = PMW_STREAMS if name == "pmw" else STREAMS
            streams = [f"{name.replace(', ', '-').replace(' ', '-')}-{number}" for number in range(count)]
            budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "expected_queries": QUESTIONS}
            open_all(driver, (stream(one, data, mechanism=mechanism, **budget) for one in streams))
            answers = driver.ask_many(
                {"id": "q", "stream": label, **query} for label in streams for query, _ in questions
            )
            for start in range(0, len(answers), len(questions)):
                pairs = zip(answers[start : start + len(questions)], questions, strict=True)
                found.setdefault(name, []).append([hit for one, (_, truths) in pairs for hit in hits(one, truths)])
    return found


def flatten(streams: list[list[bool]]) -> list[bool]:
    return [hit for hits_of_one in streams for hit in hits_of_one]


def standard_error(streams: list[list[bool]]) -> float:
    """Of the part of intervals that contain the truth, if the intervals of one stream depend on each other."""
    seen = flatten(streams)
    excess = [sum(hits_of_one) - len(hits_of_one) * np.mean(seen) for hits_of_one in streams]
    return float(np.sqrt(np.sum(np.square(excess))) / len(seen))


@pytest.mark.parametrize("name", EXACT)
def test_exact_intervals_contain_the_truth_in_95_of_100_cases(name: str) -> None:
    seen = flatten(covered()[name])
    assert len(seen) > 1000
    assert np.mean(seen) == pytest.approx(0.95, abs=0.005 + 4.0 * standard_error(covered()[name]))


def test_all_exact_intervals_together_cover_95_of_100_cases() -> None:
    seen = [hit for name in EXACT for hit in flatten(covered()[name])]
    assert np.mean(seen) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_intervals_contain_the_truth_at_least_as_often(name: str) -> None:
    seen = flatten(covered()[name])
    assert len(seen) > 500
    assert np.mean(seen) >= 0.95 - 5.0 * standard_error(covered()[name])
