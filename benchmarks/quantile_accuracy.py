"""Compares the errors of quantiles with those of OpenDP, diffprivlib and PyDP, at the same ε for one quantile.

Sotto is asked through the driver, on a stream whose answers have this ε each. The peers run in the
interpreter given with ``--peers``, which has them installed; without it, only Sotto is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.report import console
from sotto import Driver
from stream.tables.demo_tables import ADULT_PATH

RUNS = 60
EPSILONS = (1.0, 0.1)
SOTTO = "Sotto"
_PEER = Path(__file__).parent / "peers" / "quantiles.py"
_SEED = 20_260
_LEAST = 5e-4
"""Smaller distances are written as 0: the values are whole numbers."""


@dataclass(frozen=True)
class Sample:
    """A public column of whole numbers, the declared range, and the quantiles that are asked."""

    name: str
    values: npt.NDArray[np.int64]
    low: int
    high: int
    parts: tuple[float, ...]


def samples() -> tuple[Sample, ...]:
    """Return two columns of Adult, a small part of one, and skewed amounts."""
    frame = pl.read_csv(ADULT_PATH)
    ages = frame["age"].to_numpy().astype(np.int64)
    hours = frame["hours-per-week"].to_numpy().astype(np.int64) + 1
    amounts = np.random.default_rng(_SEED).lognormal(5.0, 1.2, 2000).astype(np.int64).clip(0, 9999)
    return (
        Sample("Adult, age", ages, 17, 90, (0.9,)),
        Sample("Adult, hours a week", hours, 1, 99, (0.9,)),
        Sample("Adult, age of 500 rows", ages[:500], 17, 90, (0.5,)),
        Sample("skewed amounts, 2,000 rows", amounts, 0, 9999, (0.5, 0.9)),
    )


@dataclass(frozen=True)
class Errors:
    """Mean and 95 % quantile of the errors of one contender, in rows of rank and in value."""

    rank: float
    rank_high: float
    value: float
    covered: float | None = None
    width: float | None = None


def errors(sample: Sample, q: float, estimates: npt.NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the errors of estimates in rank and in value."""
    ordered = np.sort(sample.values)
    wanted = q * len(ordered)
    below = np.searchsorted(ordered, estimates, side="left")
    upto = np.searchsorted(ordered, estimates, side="right")
    ranks = np.maximum(0.0, np.maximum(below - wanted, wanted - upto))
    return ranks, np.abs(estimates - float(np.quantile(ordered, q, method="inverted_cdf")))


def sotto_errors(sample: Sample, q: float, epsilon: float, runs: int) -> Errors:
    """Ask a stream of laplace ``runs`` times."""
    driver = Driver(bytes(32))
    domain = {"kind": "integers", "minimum": sample.low, "maximum": sample.high}
    source = {
        "source": "people",
        "kind": "table",
        "neighbors": "add-remove",
        "epsilon": 1000.0,
        "path": "people.csv",
        "attributes": {"number": domain},
    }
    driver.register(source, {"number": sample.values.tolist()})
    mechanism = {"kind": "laplace", "answers": runs}
    driver.open({"stream": "s", "source": "people", "epsilon": epsilon * runs, "mechanism": mechanism})
    answers = driver.ask_many(
        [{"id": str(run), "stream": "s", "quantile": "number", "q": q} for run in range(runs)]
    )
    estimates = np.array([one.estimate for one in answers], dtype=np.float64)
    ranks, values = errors(sample, q, estimates)
    intervals = np.array([one.interval for one in answers], dtype=np.float64)
    true = float(np.quantile(sample.values, q, method="inverted_cdf"))
    covered = float(np.mean((intervals[:, 0] <= true) & (true <= intervals[:, 1])))
    width = float(np.mean(intervals[:, 1] - intervals[:, 0]))
    return Errors(float(ranks.mean()), float(np.quantile(ranks, 0.95)), float(values.mean()), covered, width)


def peers_errors(
    interpreter: str, cases: list[tuple[Sample, float, float]], runs: int
) -> dict[str, list[Errors | None]]:
    """Measure the other libraries in their interpreter."""
    asked = {
        "runs": runs,
        "cases": [
            {"values": one.values.tolist(), "low": one.low, "high": one.high, "q": q, "epsilon": epsilon}
            for one, q, epsilon in cases
        ],
    }
    told = subprocess.run(
        [interpreter, str(_PEER)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    console.print(told.stderr)
    measured: dict[str, list[Errors | None]] = {}
    for name, all_estimates in json.loads(told.stdout).items():
        found = measured[name] = []
        for (one, q, _), estimates in zip(cases, all_estimates, strict=True):
            if estimates is None:
                found.append(None)
                continue
            ranks, values = errors(one, q, np.array(estimates))
            found.append(Errors(float(ranks.mean()), float(np.quantile(ranks, 0.95)), float(values.mean())))
    return measured


def _written(number: float) -> str:
    """Write a number with three significant digits, thousands with commas, and rounding errors as 0."""
    if abs(number) < _LEAST:
        return "0"
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def table(cases: list[tuple[Sample, float, float]], measured: dict[str, list[Errors | None]]) -> str:
    """Format the errors as a table: in value, and in rows of rank in brackets."""
    lines = [
        "| column | q | ε | " + " | ".join(measured) + " | mean width of the interval | covered |",
        "| --- | ---: | ---: |" + " ---: |" * (len(measured) + 2),
    ]
    for place, (one, q, epsilon) in enumerate(cases):
        cells = []
        for found in measured.values():
            own = found[place]
            cells.append("–" if own is None else f"{_written(own.value)} ({_written(own.rank)})")
        sotto = measured[SOTTO][place]
        told = (
            ("–", "–") if sotto is None else (_written(sotto.width or 0.0), f"{100 * (sotto.covered or 0):.0f} %")
        )
        lines.append(f"| {one.name} | {q} | {epsilon} | {' | '.join(cells)} | {told[0]} | {told[1]} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="an interpreter with opendp, diffprivlib and python-dp")
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    cases = [(one, q, epsilon) for one in samples() for q in one.parts for epsilon in EPSILONS]
    measured: dict[str, list[Errors | None]] = {
        SOTTO: [sotto_errors(one, q, epsilon, given.runs) for one, q, epsilon in cases]
    }
    if given.peers:
        measured |= peers_errors(given.peers, cases, given.runs)
    found = table(cases, measured)
    console.print(found)


if __name__ == "__main__":
    main()
