"""Data sets of statsmodels as codes, for the benchmark of workloads; ranges follow from their documentation.

Takes a data set's name and an output path. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api  # type: ignore[import-not-found,import-untyped,unused-ignore]

Columns = list[tuple[Any, int]]


def main(name: str, target: Path) -> None:
    """Read a data set and write its codes and sizes."""
    made: Callable[[Any], Columns] = {"fair": fair, "anes96": anes96, "randhie": randhie}[name]
    columns = made(getattr(statsmodels.api.datasets, name).load_pandas().data)
    codes = np.stack([np.clip(np.asarray(column), 0, size - 1) for column, size in columns], axis=1)
    np.savez(target, codes=codes.astype(np.int64), sizes=[size for _, size in columns])


def at(column: Any, *bounds: float) -> tuple[Any, int]:
    """The range that a value is in: below the first bound, between two, from the last one on."""
    return np.digitize(column, bounds), len(bounds) + 1


def fair(frame: Any) -> Columns:
    """A survey of 6,366 women; numbers were given as the middles of ranges."""
    return [
        (frame["rate_marriage"] - 1, 5),
        at(frame["age"], 20, 25, 30, 35, 40),
        at(frame["yrs_married"], 1, 4, 7.5, 11, 15, 20),
        at(frame["children"], 1, 2, 3, 4, 5),
        (frame["religious"] - 1, 4),
        at(frame["educ"], 12, 14, 16, 17, 20),
        (frame["occupation"] - 1, 6),
        (frame["occupation_husb"] - 1, 6),
        at(frame["affairs"], 1e-9),
    ]


def anes96(frame: Any) -> Columns:
    """Answers of 944 voters in 1996."""
    return [
        at(frame["popul"], 1, 10, 50, 200, 1000),
        (frame["TVnews"], 8),
        *((frame[name] - 1, 7) for name in ("selfLR", "ClinLR", "DoleLR")),
        (frame["PID"], 7),
        at(frame["age"], 28, 38, 48, 58, 68, 78, 88),
        (frame["educ"] - 1, 7),
        (frame["income"] - 1, 24),
        (frame["vote"], 2),
    ]


def randhie(frame: Any) -> Columns:
    """Visits to doctors in the RAND Health Insurance Experiment."""
    return [
        (frame["mdvis"], 16),
        at(frame["lncoins"], 1, 2, 3, 4),
        (frame["idp"], 2),
        at(frame["lpi"], 1, 3, 5, 6, 6.5),
        at(frame["fmde"], 1, 3, 5, 6, 6.5, 7, 7.5),
        at(frame["physlm"], 0.5),
        (frame["disea"] // 5, 10),
        *((frame[name], 2) for name in ("hlthg", "hlthf", "hlthp")),
    ]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
