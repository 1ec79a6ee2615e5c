"""Contenders that run as streams, through the services' own processors in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from benchmarks.accuracy.runs import Run
from benchmarks.accuracy.tables import table
from benchmarks.accuracy.tasks import Task
from schemas import Answer
from sotto import Driver

BETA = 0.05
_AT_ONCE = 20_000
_NARROW = 6
"""Most attributes of a table that is measured by pairs here; wider tables are measured by single attributes."""
_streams = count()


@dataclass(frozen=True)
class Streamed:
    """A contender by its mechanism; ``weights`` says that the mechanism needs a public number of rows."""

    mechanism: dict[str, Any]
    calibration: str = "best"
    weights: bool = False

    def run(self, task: Task, epsilon: float, delta: float, number: int) -> Run:
        """Run one stream, with the noise key of this number."""
        driver = _driver(task, number)
        stream = f"asked-{next(_streams)}"
        mechanism = dict(self.mechanism)
        if mechanism["kind"] == "laplace":
            mechanism["answers"] = len(task.wheres)
        else:
            mechanism["attributes"] = list(task.attributes)
            if len(task.attributes) > _NARROW and mechanism["kind"] == "pmw":
                mechanism.setdefault("warm_start", 1)
        if self.weights:
            mechanism["rows"] = task.at_most
        driver.open(
            {
                "stream": stream,
                "source": task.table.source.source,
                "mechanism": mechanism,
                "calibration": self.calibration,
                "epsilon": epsilon,
                "delta": delta,
                "beta": BETA,
                "expected_queries": len(task.wheres),
            },
            acknowledge=True,
        )
        errors, seen = [], _Seen()
        for start in range(0, len(task.wheres), _AT_ONCE):
            asked = range(start, min(start + _AT_ONCE, len(task.wheres)))
            answers = driver.ask_many(
                {"id": str(place), "stream": stream, "where": task.wheres[place]} for place in asked
            )
            kept = [
                (place, one.estimate)
                for place, one in zip(asked, answers, strict=True)
                if one.estimate is not None
            ]
            seen.take(answers)
            places = np.array([place for place, _ in kept], dtype=np.int64)
            errors.append(task.errors_at(places, np.array([estimate for _, estimate in kept], dtype=np.float64)))
        return Run.of(
            np.concatenate(errors), promised=seen.promised / task.rows, charged=seen.charged, spent=seen.spent
        )


@dataclass
class _Seen:
    """The promises and prices in the answers."""

    promised: float = 0.0
    charged: int = 0
    spent: float = 0.0

    def take(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.estimate is None:
                continue
            self.promised = max(self.promised, answer.alpha or 0.0)
            self.charged += answer.basis == "noisy"
            self.spent = answer.spent.epsilon if answer.spent is not None else self.spent


def _driver(task: Task, number: int) -> Driver:
    """Return an installation with a separate noise key. Long runs and separate tables get a new installation."""
    if task.workload.rows is None and len(task.wheres) <= _AT_ONCE:
        return _shared(task.table.source.source, number)
    return _installed(task.table.source.source, number, task)


@lru_cache(maxsize=16)
def _shared(name: str, number: int) -> Driver:
    return _installed(name, number, None)


def _installed(name: str, number: int, task: Task | None) -> Driver:
    kept = table(name)
    if kept is None:
        raise RuntimeError(f"the table {name} is not installed")
    driver = Driver(number.to_bytes(32, "big"), partitions=1)
    codes = kept.codes if task is None else task.codes
    driver.register(kept.source, None if name == "adult" and task is None else kept.frame(codes))
    return driver


_PMW = {"kind": "pmw"}
STREAMED = {
    "pmw": Streamed(_PMW),
    "pmw, single attributes first": Streamed(_PMW | {"warm_start": 1}),
    "pmw, nothing first": Streamed(_PMW | {"warm_start": 0}),
    "pmw, worst case": Streamed(_PMW | {"worst_case": True}, weights=True),
    "pmw, textbook": Streamed(_PMW, "textbook", weights=True),
    "Laplace per query": Streamed({"kind": "laplace"}),
}
