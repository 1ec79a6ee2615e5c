"""The service publishes the output of the proved rule with the proved noise, which is recomputed for many streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from tests.privacy.chance import fits
from tests.privacy.exact import UNIT, Machine, outcomes
from tests.privacy.service import KEY, Derived, definition_of, feed, open_all, sparse_vector, stream

STREAMS = 2500

SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "best, c=1": ("one_sided", {"cutoff": 1}),
    "best, c=2": ("one_sided", {"cutoff": 2}),
    "best, c=20": ("one_sided", {"cutoff": 20, "epsilon": 20.0}),
    "best, monotone, c=2": ("one_sided", {"cutoff": 2, "monotone": True}),
    "textbook, c=2": ("textbook", {"cutoff": 2, "calibration": "textbook"}),
    "textbook, c=20": ("textbook", {"cutoff": 20, "calibration": "textbook", "epsilon": 20.0}),
    "rounds, c=40": ("one_sided_rounds", {"cutoff": 40, "delta": 0.3, "epsilon": 2.0}),
}
"""Specifications of streams, each with the method that the planner must choose."""


def service(names: list[str], spec: dict[str, Any], *, partitions: int = 2) -> Driver:
    driver = Driver(KEY, partitions=partitions)
    driver.register(feed(epsilon=1000.0) | {"delta": 0.499})
    open_all(driver, (stream(name, **{"expected_queries": 200, "epsilon": 1.0, **spec}) for name in names))
    return driver


@pytest.mark.parametrize("spec", SPECS)
def test_sparse_vector_answers_are_recomputed_from_the_key(spec: str) -> None:
    method, terms = SPECS[spec]
    names = ["one"] if "delta" in terms else ["one", "two", "three"]
    driver = service(names, terms)
    calibration = sparse_vector(definition_of(driver, "one"))
    assert calibration.method == method
    answers: list[Answer] = []
    for part in range(4):
        queries: list[dict[str, Any]] = [
            {"id": f"{part}-{i}", "stream": name, "value": calibration.shift + i % 7 - 3.0 + own, "threshold": own}
            for i in range(40)
            for own in ([5.5] if i % 2 else [0.0])
            for name in names
        ]
        answers += driver.ask_many(queries)
        driver.crash()
    for name in names:
        asked = [record for record in driver.records(driver.topics.queries) if record.key == name.encode()]
        expected = Derived(KEY, definition_of(driver, name)).outcomes(asked)
        assert [answer.outcome for answer in answers if answer.stream == name] == expected
        assert "above" in expected


@pytest.mark.parametrize("spec", ["best, c=1", "best, c=2", "best, monotone, c=2", "textbook, c=2"])
def test_transcripts_of_many_streams_follow_the_exact_law(spec: str) -> None:
    names = [f"stream-{number}" for number in range(STREAMS)]
    driver = service(names, {**SPECS[spec][1], "epsilon": 0.4})
    calibration = sparse_vector(definition_of(driver, names[0]))
    margins = (calibration.shift, calibration.shift + 4, calibration.shift + 1)
    answers = driver.ask_many(
        {"id": f"{number}", "stream": name, "value": float(margin)}
        for number, margin in enumerate(margins)
        for name in names
    )
    seen: Counter[tuple[str, ...]] = Counter(
        tuple(answer.outcome for answer in answers[row::STREAMS]) for row in range(STREAMS)
    )
    law = outcomes(Machine.shipped(calibration), margins, len(margins))
    counts, expected = [], []
    for transcript in law.of:
        words = ["above" if outcome.above else "below" for outcome in transcript]
        counts.append(seen.pop((*words, *["halted"] * (len(margins) - len(words))), 0))
        expected.append(STREAMS * law.probability(transcript, margins) / UNIT)
    assert not seen
    assert fits(counts, expected)
