"""Every ``alpha`` bounds the whole error of the published numbers on a real table, for 160 streams of forty questions per mechanism.

A stream fails if the error of a number is larger than the answer's ``alpha``; a share β = 0.05 of the streams may fail. Streams have
different incarnations, and therefore different noise. Nine failures of 20 streams are too many; by chance, this happens once in a
million runs (``FALSE_ALARM``). In each setting, the test reveals a mechanism whose streams fail with probability 0.8 in 99.94 % of the
runs. Over all eight settings, 25 failures of 160 streams are too many, which reveals a failure probability of 0.25 in 99 of 100 runs.
Forty questions suffice to distinguish a β for the whole stream from a β for each answer, with which 87 % of the streams would fail.
"""

from __future__ import annotations

import random
from collections import defaultdict
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from schemas import Answer
from sotto import Driver
from stream.tables.demo_tables import adult_source
from tests.builders import source, stream
from tests.privacy.chance import FALSE_ALARM, at_most
from tests.privacy.questions import (
    BETA,
    QUESTIONS,
    STREAMS,
    JudgedQuestion,
    conditions,
    groups,
    number,
    numbers,
    people,
)
from tests.privacy.service import definition_of, open_all

ATTRIBUTES = ("age", "sex", "education-num", "race", "income>50K")
SPARSITY = 16
THRESHOLD = 2000.0
SETTINGS = list(product(("add-remove", "replace"), (1.0, 0.1), (0.0, 1e-6)))
WIDE = {
    "sparse_pmw": "planned for the worst table and asker; the hypothesis is right about most questions of this one",
    "above_threshold": "few of these counts are near the threshold",
}
"""Mechanisms whose largest error here is below a third of α, and why."""


@lru_cache(maxsize=1)
def cell_counts() -> dict[tuple[Any, ...], int]:
    counted = people().group_by(ATTRIBUTES).len()
    return {tuple(row[:-1]): row[-1] for row in counted.iter_rows()}


def counts() -> list[JudgedQuestion]:
    return [JudgedQuestion({"where": where}, number(rows.height)) for where, rows in conditions()]


def everything_of_laplace() -> list[JudgedQuestion]:
    """Return questions for counts, sums, means, shares and groups."""
    asked = []
    for place, (where, rows) in enumerate(conditions()):
        match place % 5:
            case 0:
                asked.append(JudgedQuestion({"where": where}, number(rows.height)))
            case 1:
                asked.append(JudgedQuestion({"sum": "age", "where": where}, number(float(rows["age"].sum()))))
            case 2:
                mean = rows["age"].mean() if rows.height else 58.0
                asked.append(JudgedQuestion({"mean": "age", "where": where}, number(float(str(mean)))))
            case 3:
                asked.append(
                    JudgedQuestion({"where": where, "fraction": True}, number(rows.height / people().height))
                )
            case _:
                asked.append(JudgedQuestion({"group_by": ["sex", "race"], "where": where}, numbers(groups(rows))))
    return asked


def everything_of_histogram(neighbors: str) -> list[JudgedQuestion]:
    asked = cells()[: QUESTIONS // 2]
    for place, (where, rows) in enumerate(conditions()[QUESTIONS // 2 :]):
        share = place % 3 == 0 and neighbors == "replace"
        if place % 3 == 1:
            asked.append(JudgedQuestion({"group_by": ["sex", "race"], "where": where}, numbers(groups(rows))))
        else:
            truth = rows.height / people().height if share else rows.height
            asked.append(JudgedQuestion({"where": where, **({"fraction": True} if share else {})}, number(truth)))
    return asked


def everything_of_pmw() -> list[JudgedQuestion]:
    asked = []
    for place, (where, rows) in enumerate(conditions()):
        share = place % 4 == 0
        truth = rows.height / people().height if share else rows.height
        asked.append(JudgedQuestion({"where": where, **({"fraction": True} if share else {})}, number(truth)))
    return asked


@lru_cache(maxsize=1)
def cells() -> list[JudgedQuestion]:
    """Return weighted sums of up to 16 cells: some with many rows, some at random, some single."""
    generator = random.Random(16)
    heavy = sorted(cell_counts(), key=lambda cell: (-cell_counts()[cell], cell))[:400]
    asked = []
    for place in range(QUESTIONS):
        chosen = generator.sample(heavy, (SPARSITY, 4, 1)[place % 3])
        if place % 2:
            chosen = [(age, sex, place % 16, race, 0) for age, sex, _, race, _ in chosen]
        weights = {cell: generator.choice((1.0, 1.0, 0.5)) for cell in chosen}
        truth = sum(weight * cell_counts().get(cell, 0) for cell, weight in weights.items())
        named = [{"at": dict(zip(ATTRIBUTES, cell, strict=True)), "weight": one} for cell, one in weights.items()]
        asked.append(JudgedQuestion({"cells": named}, number(truth)))
    return asked


def choices() -> list[JudgedQuestion]:
    """Return questions for the best of four counts; the error is the difference of the chosen count from the best."""
    asked = []
    for place in range(QUESTIONS):
        named = {f"c{one}": conditions()[(place + 7 * one) % QUESTIONS] for one in range(4)}
        scores = {name: rows.height for name, (_, rows) in named.items()}

        def below(answer: Answer, scores: dict[str, int] = scores) -> float:
            return float(max(scores.values()) - scores[str(answer.choice)])

        candidates = [{"name": name, "where": where} for name, (where, _) in named.items()]
        asked.append(JudgedQuestion({"candidates": candidates}, below))
    return asked


def values() -> list[JudgedQuestion]:
    """Return values of a feed with grid 1 that are as far from the grid as possible."""
    generator = random.Random(17)
    asked = []
    for place in range(QUESTIONS):
        if place % 2:
            asked.append(JudgedQuestion({"value": (value := generator.randint(0, 4000) + 0.5)}, number(value)))
        else:
            several = [generator.randint(-50, 4000) + 0.5 for _ in range(3)]
            asked.append(JudgedQuestion({"values": several}, numbers(np.array(several))))
    return asked


def single_values() -> list[JudgedQuestion]:
    generator = random.Random(18)
    drawn = [generator.randint(0, 4000) + 0.5 for _ in range(QUESTIONS)]
    return [JudgedQuestion({"value": value}, number(value)) for value in drawn]


def mechanisms(neighbors: str) -> dict[str, tuple[str, dict[str, Any], list[JudgedQuestion]]]:
    """Return every mechanism with an α: its source, the mechanism and its questions."""
    table: dict[str, Any] = {"attributes": list(ATTRIBUTES)}
    sparse = table | {"sparsity": SPARSITY}
    updates = {"updates": 30} | ({"rows": 50_000} if neighbors == "add-remove" else {})
    alarm = {"threshold": THRESHOLD, "cutoff": QUESTIONS // 5}
    return {
        "laplace": ("adult", {"kind": "laplace", "answers": QUESTIONS}, everything_of_laplace()),
        "laplace, feed": ("feed", {"kind": "laplace", "answers": QUESTIONS, "dimensions": 3}, values()),
        "histogram": ("adult", {"kind": "histogram", **table}, everything_of_histogram(neighbors)),
        "lazy_histogram": ("adult", {"kind": "lazy_histogram", **sparse}, cells()),
        "sparse_project": ("adult", {"kind": "sparse_project", **sparse}, cells()),
        "pmw": ("adult", {"kind": "pmw", **table, **updates}, everything_of_pmw()),
        "sparse_pmw": ("adult", {"kind": "sparse_pmw", **sparse, **updates}, cells()),
        "numeric_sparse, fresh": ("adult", {"kind": "numeric_sparse", **alarm}, counts()),
        "numeric_sparse, gap": ("adult", {"kind": "numeric_sparse", "numbers": "gap", **alarm}, counts()),
        "numeric_sparse, feed": ("feed", {"kind": "numeric_sparse", **alarm}, single_values()),
        "above_threshold": ("adult", {"kind": "above_threshold", **alarm}, counts()),
        "noisy_max": ("adult", {"kind": "noisy_max", "answers": QUESTIONS}, choices()),
        "exponential": ("adult", {"kind": "exponential", "answers": QUESTIONS}, choices()),
    }


@lru_cache(maxsize=len(SETTINGS))
def largest_shares(neighbors: str, epsilon: float, delta: float) -> dict[str, list[float]]:
    """For each mechanism, the largest error of each of its streams, divided by the answer's α."""
    driver = Driver(bytes(range(7, 39)), partitions=1)
    driver.register(adult_source(1000.0, 1e-3).model_copy(update={"neighbors": neighbors}))
    driver.register(source(neighbors=neighbors, epsilon=1000.0, delta=1e-3, grid=1.0))
    shares = defaultdict(list)
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "beta": BETA, "expected_queries": QUESTIONS}
    for name, (data, mechanism, asked) in mechanisms(neighbors).items():
        streams = [f"{name.replace(', ', '-')}-{number}" for number in range(STREAMS)]
        open_all(driver, (stream(one, data, mechanism=mechanism, **budget) for one in streams))
        queries = [{"id": "q", "stream": label, **one.query} for label in streams for one in asked]
        answers = driver.ask_many(queries)
        definition = definition_of(driver, streams[0])
        for start in range(0, len(answers), len(asked)):
            own = zip(asked, answers[start : start + len(asked)], strict=True)
            shares[name].append(max(_share(one, answer, definition) for one, answer in own))
    return dict(shares)


def _share(asked: JudgedQuestion, answer: Answer, definition: Any) -> float:
    assert answer.outcome in {"answer", "above", "below", "halted"}, answer.reason
    if definition.calibration.kind == "sparse_vector" and answer.outcome != "halted":
        truth = asked.error(answer.model_copy(update={"estimate": 0.0}))  # every value here is at least 0
        wrong_by = THRESHOLD - truth if answer.outcome == "above" else truth - THRESHOLD
        decided = max(0.0, wrong_by) / definition.calibration.alpha
        return float(
            decided if answer.estimate is None else max(decided, asked.error(answer) / (answer.alpha or np.nan))
        )
    if answer.outcome == "halted" or (definition.spec.mechanism.kind == "pmw" and answer.tops_left == 0):
        return 0.0  # after the last update, answers have no promise
    assert answer.alpha is not None
    return float(asked.error(answer) / answer.alpha)


NAMES = (
    "laplace",
    "laplace, feed",
    "histogram",
    "lazy_histogram",
    "sparse_project",
    "pmw",
    "sparse_pmw",
    "numeric_sparse, fresh",
    "numeric_sparse, gap",
    "numeric_sparse, feed",
    "above_threshold",
    "noisy_max",
    "exponential",
)


@pytest.mark.parametrize(("neighbors", "epsilon", "delta"), SETTINGS)
def test_errors_of_each_setting_exceed_alpha_within_beta(neighbors: str, epsilon: float, delta: float) -> None:
    """No more streams of a setting have an error beyond α than β allows."""
    failed = {
        name: sum(share > 1.0 for share in shares)
        for name, shares in largest_shares(neighbors, epsilon, delta).items()
    }
    assert all(at_most(failures, STREAMS, BETA) for failures in failed.values()), failed


@pytest.mark.parametrize("name", NAMES)
def test_errors_over_all_settings_exceed_alpha_within_beta(name: str) -> None:
    """No more streams have an error beyond α than β allows."""
    shares = [share for setting in SETTINGS for share in largest_shares(*setting)[name]]
    assert at_most(sum(share > 1.0 for share in shares), len(shares), BETA)


@pytest.mark.parametrize("name", NAMES)
def test_alpha_is_less_than_three_times_the_largest_error(name: str) -> None:
    """The exceptions are listed in WIDE with their reason."""
    largest = max(share for setting in SETTINGS for share in largest_shares(*setting)[name])
    # The noise depends on the table's folder, so the largest of many errors varies a little.
    assert largest < 0.4 if name in WIDE else largest > 0.3, largest


def test_checks_find_the_failures_that_they_claim_to_find() -> None:
    one, all_of_them = STREAMS, STREAMS * len(SETTINGS)
    most_of_one, most_of_all = (int(binom.isf(FALSE_ALARM, trials, BETA)) for trials in (one, all_of_them))
    assert (most_of_one, most_of_all) == (8, 24)
    assert binom.sf(most_of_one, one, 0.8) >= 0.9994
    assert binom.sf(most_of_all, all_of_them, 0.25) >= 0.99
    assert 1 - (1 - BETA) ** QUESTIONS >= 0.8
