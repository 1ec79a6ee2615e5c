"""Counts of ranges are answered in bulk, with the same answers as when they are written in another way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from schemas import Answer
from stream.privacy.mechanisms.estimate_questions import Box
from stream.testing import Driver
from stream.worker.families import estimate_reader
from tests.builders import KEY, source, stream

SIZES = {"a": 12, "b%d": 7, "é": 5}
ROWS = 3000
ASKED = 400


def questions(seed: int) -> list[str]:
    chance = random.Random(seed)

    def one() -> str:
        parts = []
        for name, size in chance.sample(sorted(SIZES.items()), chance.randint(1, 3)):
            low, high = sorted(chance.randrange(size) for _ in range(2))
            kinds = [f"BETWEEN {low} AND {high}", f">= {low}", f"= {low}", f"< {high}"]
            parts.append(f'"{name}" {chance.choice(kinds)}')
        return " AND ".join(parts)

    return [one() for _ in range(ASKED)]


def answers(neighbors: str, mechanism: dict[str, Any], asked: list[str]) -> tuple[list[Answer], Driver]:
    chance = random.Random(1)
    driver = Driver(KEY, partitions=1)
    table = {
        name: [min(chance.randrange(size), chance.randrange(size)) for _ in range(ROWS)]
        for name, size in SIZES.items()
    }
    people = source("p", "table", path="p.csv", neighbors=neighbors, epsilon=50.0, attributes=SIZES)
    driver.register(people, table)
    mechanism = {"attributes": list(SIZES), **mechanism}
    driver.open(stream("s", "p", "pmw", mechanism=mechanism, epsilon=3.0, expected_queries=ASKED))
    found: list[Answer] = []
    for start in range(0, ASKED, 100):
        found += driver.ask_many(
            [
                {"id": str(start + n), "stream": "s", "where": text}
                for n, text in enumerate(asked[start : start + 100])
            ]
        )
    return found, driver


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("mechanism", [{"warm_start": 0, "updates": 12}, {"warm_start": 1}, {"warm_start": 2}])
def test_count_of_a_range_does_not_depend_on_its_notation(neighbors: str, mechanism: dict[str, Any]) -> None:
    mechanism = {**mechanism, "beyond": "unpromised"}
    asked = questions(3)
    plain, driver = answers(neighbors, mechanism, asked)
    # Because of the parentheses, the parser reads each predicate completely.
    nested, _ = answers(neighbors, mechanism, [f"({text})" for text in asked])
    assert plain == nested
    assert len({answer.basis for answer in plain}) > 1
    driver.redeliver()
    driver.crash()


def test_ranges_are_read_as_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(Box):
        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(estimate_reader, "Box", Counted)
    answers("replace", {}, questions(5))
    assert len(made) > ASKED / 4
