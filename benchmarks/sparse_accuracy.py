"""Compares sparse multiplicative weights with a lazy histogram, on questions of many cells of which few have many rows.

Adult with a public number of rows (neighbors replace one). A quarter of the questions are about parts of one bulk, the 200 commonest
combinations of five attributes; the others about combinations that are rare or do not occur. Both mechanisms answer the same
questions through the services' own processors in memory.
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from benchmarks.report import console, markdown_line
from schemas import Answer, Integers
from sotto import Driver
from stream.tables.demo_tables import ADULT_PATH, adult_source

ATTRIBUTES = ("age", "sex", "marital-status", "occupation", "race")
SPARSITY = 200
EPSILONS = (0.1, 1.0)
BETA = 0.05
CONTENDERS: dict[str, dict[str, Any]] = {
    "lazy_histogram": {"kind": "lazy_histogram"},
    "sparse_pmw, gap 0.001, 2 updates": {"kind": "sparse_pmw", "gap": 0.001, "updates": 2},
}
_HEADINGS = ("ε", "", "largest error", "mean error", "promised", "answered", "charged", "ε spent")

Cell = tuple[Any, ...]


@dataclass(frozen=True)
class Task:
    """Questions, each a list of cells counted once, and their true values."""

    questions: tuple[tuple[Cell, ...], ...]
    truths: tuple[int, ...]


def main(arguments: list[str] | None = None) -> None:
    """Ask both mechanisms, and show a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse_accuracy", description=__doc__)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="how many noise keys; medians are shown")
    options = parser.parse_args(arguments)
    task = make_task(options.queries)
    rows = []
    for epsilon in EPSILONS:
        for name, mechanism in CONTENDERS.items():
            runs = [_run(task, mechanism, epsilon, key) for key in range(options.rounds)]
            medians = [statistics.median(run[place] for run in runs) for place in range(len(runs[0]))]
            rows.append(
                (
                    f"{epsilon:g}",
                    name,
                    *(f"{median:,.3g}" if median < 1 else f"{median:,.0f}" for median in medians),
                )
            )
    zeros = [f"{max(task.truths):,}", f"{statistics.mean(task.truths):,.0f}"]
    rows.append(("", "always 0", *zeros, "", "", "", ""))
    lines = [markdown_line(cells) for cells in (_HEADINGS, ("---",) * len(_HEADINGS), *rows)]
    head = f"{options.queries} questions, medians over {options.rounds} noise keys; errors in rows, of {people().height:,}."
    text = "\n".join([head, "", *lines])
    console.print(text, soft_wrap=True)


def people() -> pl.DataFrame:
    """The table's rows."""
    with gzip.open(ADULT_PATH) as file:
        return pl.read_csv(io.BytesIO(file.read()))


def make_task(queries: int) -> Task:
    """Random questions; equal arguments give equal questions."""
    counts = Counter(people().select(ATTRIBUTES).iter_rows())
    common = sorted(counts, key=lambda cell: (-counts[cell], cell))
    bulk, rare = common[:SPARSITY], [cell for cell in common if counts[cell] == 1]
    domains = adult_source(1.0).attributes
    generator = random.Random(queries)

    def anywhere() -> Cell:
        drawn: list[Any] = []
        for name in ATTRIBUTES:
            domain = domains[name]
            if isinstance(domain, Integers):
                drawn.append(generator.randint(domain.minimum, domain.maximum))
            else:
                drawn.append(generator.choice("FM"))
        return tuple(drawn)

    questions: list[tuple[Cell, ...]] = []
    for place in range(queries):
        if place % 4 == 0:
            questions.append(
                tuple(generator.sample(bulk, generator.randint(SPARSITY // 2, SPARSITY) if place else SPARSITY))
            )
            continue
        seldom = generator.sample(rare, generator.randint(0, SPARSITY // 2))
        questions.append(tuple(dict.fromkeys([*seldom, *(anywhere() for _ in range(SPARSITY - len(seldom)))])))
    return Task(tuple(questions), tuple(sum(counts.get(cell, 0) for cell in one) for one in questions))


def _run(task: Task, mechanism: dict[str, Any], epsilon: float, key: int) -> tuple[float, ...]:
    driver = Driver(key.to_bytes(32, "big"), partitions=1)
    driver.register(adult_source(max(EPSILONS)).model_copy(update={"neighbors": "replace"}))
    spec = {
        "stream": "asked",
        "source": "adult",
        "epsilon": epsilon,
        "beta": BETA,
        "expected_queries": len(task.truths),
    }
    driver.open(
        spec | {"mechanism": {"attributes": list(ATTRIBUTES), "sparsity": SPARSITY, **mechanism}}, acknowledge=True
    )
    answers: Sequence[Answer] = driver.ask_many(
        {
            "id": str(place),
            "stream": "asked",
            "cells": [{"at": dict(zip(ATTRIBUTES, cell, strict=True))} for cell in cells],
        }
        for place, cells in enumerate(task.questions)
    )
    kept = [
        (answer, truth) for answer, truth in zip(answers, task.truths, strict=True) if answer.estimate is not None
    ]
    errors = np.array([abs((answer.estimate or 0.0) - truth) for answer, truth in kept])
    spent = kept[-1][0].spent
    return (
        float(errors.max()),
        float(errors.mean()),
        max(answer.alpha or 0.0 for answer, _ in kept),
        float(len(kept)),
        float(sum(answer.basis == "noisy" for answer, _ in kept)),
        spent.epsilon if spent is not None else 0.0,
    )


if __name__ == "__main__":
    main()
