"""A stream of every mechanism, and a question to each stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import Answer
from sotto import Driver
from tests.builders import installation, source, stream

AGES = [(index * index) % 60 for index in range(900)]
SEXES = ["F" if index % 3 else "M" for index in range(900)]
SOURCES: dict[str, dict[str, Any]] = {
    "people": source(
        "people",
        "table",
        path="in memory",
        epsilon=1000.0,
        delta=1e-3,
        attributes={"age": {"kind": "integers", "minimum": 0, "maximum": 59}, "sex": ["F", "M"]},
        texts={"town": {"kind": "text"}},
    ),
    "feed": source(epsilon=1000.0, sensitivity=2.0, grid=0.5),
    "survey": source("survey", "records", epsilon=1000.0, contributions=2),
}
TOWNS = [f"town {min(index % 100, 9)}" for index in range(900)]
CELLS = [{"at": {"age": age, "sex": "F"}, "weight": 0.5} for age in range(4)]
MANY = [{"at": {"age": age, "sex": sex}} for age, sex in ((0, "M"), (1, "F"), (4, "F"), (16, "F"))]
CANDIDATES = [{"name": "young", "where": "age < 20"}, {"name": "old", "where": "age >= 20"}]
SCORES = [{"name": "low", "value": 3.0}, {"name": "high", "value": 4.0}]


@dataclass(frozen=True)
class Kind:
    """A mechanism with questions that it accepts, and one that it refuses."""

    name: str
    mechanism: dict[str, Any]
    questions: Sequence[dict[str, Any]]
    wrong: dict[str, Any]
    source: str = "people"
    more: dict[str, Any] = field(default_factory=dict)

    def spec(self, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"epsilon": 2.0, "expected_queries": 50, "mechanism": self.mechanism}
        fields |= {**self.more, **changes}
        return stream("s", self.source, **fields)


WHERES: list[dict[str, Any]] = [{"where": f"age < {age}"} for age in range(5, 60, 5)]
VALUES: list[dict[str, Any]] = [{"value": float(value)} for value in range(60, 160, 5)]
KINDS = [
    Kind(
        "above_threshold over a table",
        {"kind": "above_threshold", "threshold": 300.0, "cutoff": 3, "sums": ["age"]},
        [*WHERES, {"sum": "age", "where": "age < 9"}],
        {"mean": "age"},
    ),
    Kind(
        "above_threshold over values",
        {"kind": "above_threshold", "threshold": 100.0, "cutoff": 2},
        VALUES,
        {"where": "age < 9"},
        source="feed",
    ),
    Kind(
        "numeric_sparse with fresh noise",
        {"kind": "numeric_sparse", "threshold": 300.0, "cutoff": 3, "monotone": True},
        WHERES,
        {"fraction": True, "where": "age < 9"},
    ),
    Kind(
        "numeric_sparse with gaps",
        {"kind": "numeric_sparse", "threshold": 100.0, "cutoff": 3, "numbers": "gap"},
        VALUES,
        {"values": [1.0]},
        source="feed",
    ),
    Kind(
        "numeric_sparse in rounds",
        {"kind": "numeric_sparse", "threshold": 200.0, "cutoff": 60},
        WHERES,
        {"group_by": ["sex"]},
        more={"delta": 1e-4},
    ),
    Kind(
        "laplace over a table",
        {"kind": "laplace", "answers": 20},
        [
            *WHERES[:3],
            {"mean": "age"},
            {"sum": "age"},
            {"group_by": ["sex"]},
            {"fraction": True, "where": "age < 9"},
            {"quantile": "age", "q": [0.1, 0.5]},
            {"iqr": "age"},
            {"stddev": "age", "group_by": ["sex"]},
            {"rate": "age < 9", "group_by": ["sex"]},
            {"group_by": ["sex"], "top": 1},
            {"people": True, "group_by": ["sex"]},
            {"person_sum": "age", "bound": 50, "where": "sex = 'F'"},
        ],
        {"cells": CELLS},
    ),
    Kind(
        "laplace over values",
        {"kind": "laplace", "answers": 40, "dimensions": 2},
        [*VALUES, {"values": [1.0, 2.0]}],
        {"values": [1.0, 2.0, 3.0]},
        source="feed",
    ),
    Kind(
        "randomized_response",
        {"kind": "randomized_response", "categories": ["a", "b", "c"]},
        [{"category": name} for name in "abcabc"],
        {"value": 1.0},
        source="survey",
    ),
    Kind(
        "histogram",
        {"kind": "histogram", "attributes": ["sex", "age"]},
        [
            *WHERES,
            {"group_by": ["sex"]},
            {"quantile": "age"},
            {"variance": "age", "group_by": ["sex"]},
            {"rate": "age < 9", "group_by": ["sex"]},
            {"group_by": ["age"], "top": 2},
        ],
        {"mean": "age"},
    ),
    Kind(
        "noisy_max over a table",
        {"kind": "noisy_max", "answers": 9, "monotone": True},
        [{"candidates": CANDIDATES}] * 4,
        {"candidates": SCORES},
    ),
    Kind(
        "noisy_max over values",
        {"kind": "noisy_max", "answers": 9},
        [{"candidates": SCORES}] * 4,
        {"candidates": CANDIDATES},
        source="feed",
    ),
    Kind(
        "exponential",
        {"kind": "exponential", "answers": 9},
        [{"candidates": CANDIDATES}] * 4,
        {"candidates": [CANDIDATES[0]] * 2},
    ),
    Kind(
        "pmw",
        {"kind": "pmw", "attributes": ["age", "sex"], "updates": 30, "rows": 900},
        [
            *WHERES,
            *WHERES,
            {"terms": [{"where": "age < 9", "weight": 0.5}, {"where": "sex = 'F'", "weight": 0.5}]},
            {"quantile": "age", "where": "sex = 'F'"},
            {"stddev": "age", "group_by": ["sex"]},
        ],
        {"terms": [{"where": "age < 9", "weight": 1.5}]},
        more={"epsilon": 5.0},
    ),
    Kind(
        "sparse_pmw",
        {"kind": "sparse_pmw", "attributes": ["age", "sex"], "sparsity": 4, "updates": 300, "rows": 900},
        [{"cells": MANY}, {"cells": MANY[:2]}, {"cells": MANY}],
        {"cells": [*CELLS, {"at": {"age": 50, "sex": "F"}}]},
        more={"epsilon": 500.0},
    ),
    Kind(
        "sparse_project",
        {"kind": "sparse_project", "attributes": ["age", "sex"], "sparsity": 4, "projections": 64},
        [{"cells": CELLS}, {"cells": CELLS[:2]}, {"cells": CELLS}],
        {"where": "age < 9"},
        more={"delta": 1e-6},
    ),
    Kind(
        "lazy_histogram",
        {"kind": "lazy_histogram", "attributes": ["age", "sex"], "sparsity": 4},
        [{"cells": CELLS}, {"cells": CELLS[:2]}, {"cells": CELLS}],
        {"cells": [{"at": {"age": 60, "sex": "F"}}]},
    ),
    Kind(
        "unknown_groups",
        {"kind": "unknown_groups", "answers": 4},
        [{"group_by": ["town"]}, {"group_by": ["town"], "where": "age < 30"}, {"group_by": ["town"]}],
        {"group_by": ["sex"]},
        more={"delta": 1e-6},
    ),
    Kind(
        "unknown_groups, names alone",
        {"kind": "unknown_groups", "answers": 4, "counts": False},
        [{"group_by": ["town"]}, {"group_by": ["sex", "town"]}, {"group_by": ["town"], "where": "age < 30"}],
        {"group_by": ["sex"]},
        more={"epsilon": 8.0, "delta": 2e-4},
    ),
]


def driver_with(kind: Kind, **changes: Any) -> Driver:
    rows = {"people": {"age": AGES, "sex": SEXES, "town": TOWNS}}
    return installation(kind.spec(**changes), sources=SOURCES.values(), rows=rows)


def ask(driver: Driver, questions: Sequence[dict[str, Any]]) -> Sequence[Answer]:
    return driver.ask_many([{"id": str(place), "stream": "s", **one} for place, one in enumerate(questions)])
