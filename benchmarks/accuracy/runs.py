"""A file of all measured runs, which later runs extend and from which documents are written."""

from __future__ import annotations

import fcntl
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.questions import Floats
from benchmarks.accuracy.tasks import Workload
from benchmarks.installation import FOLDER

MEASURED = Path("docs/accuracy.json")


@dataclass(frozen=True)
class Run:
    """One run of a contender. Errors and the promise are shares of the rows."""

    largest: float
    mean: float
    answered: int
    charged: int
    spent: float
    promised: float | None = None

    @classmethod
    def of(cls, errors: Floats, *, charged: int = 0, spent: float, promised: float | None = None) -> Run:
        """Make a run from the errors of all answers."""
        return cls(
            largest=_short(np.max(errors, initial=0.0)),
            mean=_short(np.mean(errors)),
            answered=len(errors),
            charged=charged,
            spent=_short(spent),
            promised=None if promised is None else _short(promised),
        )


def _short(value: Any) -> float:
    return float(f"{float(value):.5g}")


@dataclass(frozen=True, order=True)
class Case:
    """A contender with a budget and a workload."""

    workload: Workload
    epsilon: float
    delta: float
    contender: str

    def key(self, number: int) -> str:
        """The name of one of its runs."""
        rows = "all" if self.workload.rows is None else str(self.workload.rows)
        of = (self.workload.name, f"{self.workload.queries} of {rows}", f"{self.epsilon:g}", f"{self.delta:g}")
        return " | ".join((*of, self.contender, str(number)))


class Measured:
    """The runs in one file."""

    def __init__(self, path: Path) -> None:
        """Read the earlier runs, if there are any."""
        self.path = path
        self._runs = self._read()

    def get(self, case: Case, number: int) -> Run | None:
        """A run, if it was made."""
        return self._runs.get(case.key(number))

    def put(self, case: Case, number: int, run: Run) -> None:
        """Write a run to disk at once, because the next one may take long; keep runs that other processes have written."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / "accuracy.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._runs = self._read() | {case.key(number): run}
            self._write()

    def of(self, case: Case) -> list[Run]:
        """All runs of one case."""
        found: list[Run] = []
        while (run := self.get(case, len(found))) is not None:
            found.append(run)
        return found

    def _read(self) -> dict[str, Run]:
        if not self.path.exists():
            return {}
        return {key: Run(**kept) for key, kept in json.loads(self.path.read_text()).items()}

    def _write(self) -> None:
        """One line a run, in order, so that changes can be read."""
        lines = [
            f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(_filled(run))}"
            for key, run in sorted(self._runs.items())
        ]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _filled(run: Run) -> Mapping[str, Any]:
    values = {field.name: getattr(run, field.name) for field in fields(run)}
    return {name: value for name, value in values.items() if value is not None}


def median(runs: Iterable[Run], figure: str) -> float | None:
    """The median of one figure, where all runs have it."""
    values = [getattr(run, figure) for run in runs]
    return None if None in values else statistics.median(values)
