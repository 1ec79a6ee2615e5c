"""Streams before and after a new version of their table."""

from __future__ import annotations

from typing import Any

from sotto import Driver, Result
from tests.builders import installation, source, stream

OLD = {"sex": ["F"] * 30 + ["M"] * 10}
NEW = {"sex": ["F"] * 70 + ["M"] * 20}
SOURCE = source("people", "table", epsilon=500.0, path="-", attributes={"sex": ["F", "M"]})
GOING_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "laplace": ({"kind": "laplace", "answers": 9}, {"where": "sex = 'F'"}),
    "above_threshold": ({"kind": "above_threshold", "threshold": 50.0, "cutoff": 5}, {"where": "sex = 'F'"}),
    "numeric_sparse": ({"kind": "numeric_sparse", "threshold": 50.0, "cutoff": 5}, {"where": "sex = 'F'"}),
    "noisy_max": (
        {"kind": "noisy_max", "answers": 9},
        {"candidates": [{"name": "F", "where": "sex = 'F'"}, {"name": "M", "where": "sex = 'M'"}]},
    ),
    "exponential": (
        {"kind": "exponential", "answers": 9},
        {"candidates": [{"name": "F", "where": "sex = 'F'"}, {"name": "M", "where": "sex = 'M'"}]},
    ),
}
KEEPING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pmw": ({"kind": "pmw", "attributes": ["sex"]}, {"where": "sex = 'F'"}),
    "sparse_pmw": ({"kind": "sparse_pmw", "attributes": ["sex"], "rows": 90}, {"cells": [{"at": {"sex": "F"}}]}),
    "histogram": ({"kind": "histogram", "attributes": ["sex"]}, {"group_by": ["sex"]}),
    "lazy_histogram": ({"kind": "lazy_histogram", "attributes": ["sex"]}, {"cells": [{"at": {"sex": "F"}}]}),
    "sparse_project": (
        {"kind": "sparse_project", "attributes": ["sex"], "projections": 8},
        {"cells": [{"at": {"sex": "F"}}]},
    ),
}
QUESTIONS = {kind: question for kind, (_, question) in (GOING_ON | KEEPING).items()}


def service(*kinds: str, epsilon: float = 20.0) -> Driver:
    streams = [spec(kind, epsilon) for kind in kinds]
    return installation(*streams, sources=[SOURCE], rows={"people": OLD}, partitions=2)


def spec(kind: str, epsilon: float = 20.0) -> dict[str, Any]:
    mechanism = (GOING_ON | KEEPING)[kind][0]
    return stream(kind, "people", mechanism=mechanism, epsilon=epsilon, expected_queries=9)


def ask(driver: Driver, kind: str) -> Result:
    return driver.ask(kind, outcomes=True, **QUESTIONS[kind])
