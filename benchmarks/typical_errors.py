"""Compares the typical errors that `pmw` publishes with the mean errors of the same answers, on different kinds of tables.

One stream of each table with the warm start `workload` is asked for the counts of all pairs and of some triples of its attributes, and
for ranges of two attributes. Answers that a measurement settles have an interval in place of a typical error and are left out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.answered import TABLES, Sample, questions
from benchmarks.report import console, markdown_line
from schemas import MAX_CATEGORIES, Answer
from sotto import Driver

_HEADINGS = ("table", "rows", "cells of pairs", "cells of triples", "ranges")
_TRIPLES, _RANGES = 30, 300
_LEAST_ESTIMATE = 0.5


@dataclass(frozen=True)
class Compared:
    """Means over the ``count`` answers with a typical error: of that error, and of the true one over numbers of half a row or more."""

    published: float
    true: float
    count: int


def compare(sample: Sample, seed: int, epsilon: float = 1.0, **mechanism: Any) -> dict[str, Compared]:
    """Ask all questions of one stream, and compare typical errors with the truth."""
    driver = Driver(seed.to_bytes(32, "big"), partitions=1)
    names = [f"a{axis}" for axis in range(len(sample.sizes))]
    source: dict[str, Any] = {"source": "t", "kind": "table", "neighbors": "add-remove", "path": "in memory"}
    driver.register(
        {**source, "epsilon": epsilon, "attributes": dict(zip(names, sample.sizes, strict=True))},
        {name: column.tolist() for name, column in zip(names, sample.columns, strict=True)},
    )
    chosen = {"kind": "pmw", "attributes": names, "warm_start": "workload", **mechanism}
    driver.open({"stream": "s", "source": "t", "epsilon": epsilon, "expected_queries": 1000, "mechanism": chosen})

    def ask(asked: Iterable[dict[str, Any]], truths: Sequence[Any]) -> Compared:
        answers = driver.ask_many({"stream": "s", "id": str(at), **one} for at, one in enumerate(asked))
        return _compared(answers, truths)

    def cells(order: int, most: int) -> Compared:
        sets = [axes for axes in combinations(range(len(names)), order) if _cells(sample, axes) <= MAX_CATEGORIES]
        sets = sets if len(sets) <= most else [sets[place * len(sets) // most] for place in range(most)]
        return ask(
            ({"group_by": [names[axis] for axis in axes]} for axes in sets),
            [_counts(sample, axes) for axes in sets],
        )

    found = {"cells of pairs": cells(2, len(names) ** 2), "cells of triples": cells(3, _TRIPLES)}
    texts, truths = questions(sample, _RANGES, np.random.default_rng(seed + 1))
    found["ranges"] = ask(({"where": text} for text in texts), truths.tolist())
    return found


def _cells(sample: Sample, axes: Sequence[int]) -> int:
    return math.prod(sample.sizes[axis] for axis in axes)


def _counts(sample: Sample, axes: Sequence[int]) -> Any:
    flat = np.ravel_multi_index(
        tuple(sample.columns[axis] for axis in axes), tuple(sample.sizes[axis] for axis in axes)
    )
    return np.bincount(flat, minlength=_cells(sample, axes))


def _compared(answers: Iterable[Answer], truths: Sequence[Any]) -> Compared:
    published: list[float] = []
    true: list[float] = []
    for answer, truth in zip(answers, truths, strict=True):
        if answer.typical_error is not None:
            estimates = np.array(answer.estimates or [answer.estimate], dtype=np.float64)
            published.append(answer.typical_error)
            shown = estimates >= _LEAST_ESTIMATE
            true.append(float(np.abs(estimates - truth)[shown | ~shown.any()].mean()))
    if not true:
        return Compared(math.nan, math.nan, 0)
    return Compared(float(np.mean(published)), float(np.mean(true)), len(true))


def _shown(found: Sequence[Compared]) -> str:
    known = [one for one in found if one.count]
    if not known:
        return "settled"
    return f"{np.mean([one.published for one in known]):,.3g} / {np.mean([one.true for one in known]):,.3g}"


def main(arguments: list[str] | None = None) -> None:
    """Measure every table, show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typical_errors", description=__doc__)
    parser.add_argument("--keys", type=int, default=5, help="how many noise keys; means over them are shown")
    options = parser.parse_args(arguments)
    lines = [markdown_line(_HEADINGS), markdown_line(("---", *("---:" for _ in _HEADINGS[1:])))]
    for name, make, rows in TABLES:
        runs = [compare(_made(make, rows), seed) for seed in range(options.keys)]
        shown = [_shown([run[kind] for run in runs]) for kind in _HEADINGS[2:]]
        lines.append(markdown_line((name, f"{rows:,}", *shown)))
        console.print(lines[-1], markup=False, soft_wrap=True)


def _made(make: Callable[[int, np.random.Generator], Sample], rows: int) -> Sample:
    return make(rows, np.random.default_rng(39))


if __name__ == "__main__":
    main()
