"""Measures the cost of online private multiplicative weights by the size of the universe, compared with the memory's speed.

A question about all attributes has a weight for each of the |X| cells; q·p̂ is then a product that can be no faster than
memory hands the weights over. Most questions name a few attributes and need no more than a marginal of p̂.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.report import Figure, show_figures, write_json
from benchmarks.stopwatch import best_seconds
from sotto import Driver
from stream.privacy.mechanisms.multiplicative_weights import TensorHypothesis
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

ATTRIBUTES = (16, 20)
"""Numbers of attributes with two values each: |X| = 2¹⁶ and 2²⁰."""
PRODUCT_BYTES = 1 << 28
"""Bytes of questions, too many for any cache."""
QUESTIONS = 64
ASKED = 2_000
ROWS = 20_000
REPEATS = 7


@dataclass(frozen=True)
class Question:
    """Weights over some of the attributes' cells."""

    axes: tuple[int, ...]
    weights: npt.NDArray[np.int32]

    def steps(self) -> npt.NDArray[np.int32]:
        """The weights, in steps."""
        return self.weights


def main(arguments: Sequence[str] | None = None) -> None:
    """Time products, hypotheses and a whole processor; the best of several repeats."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights", description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    for attributes in ATTRIBUTES:
        own = [*_products(attributes), *_hypothesis(attributes), _processor(attributes)]
        show_figures(f"|X| = 2^{attributes}", own)
        figures += [(f"2^{attributes}, {name}", value, unit) for name, value, unit in own]
    if options.json:
        write_json(options.json, figures)


def _products(attributes: int) -> list[Figure]:
    """Time numpy's product of a matrix and a vector, which has the speed of reading memory."""
    cells = 1 << attributes
    matrix = np.ones((PRODUCT_BYTES // 8 // cells, cells))
    vector = np.ones(cells)
    seconds = best_seconds(lambda: matrix @ vector, REPEATS)
    return [
        ("memory read by numpy's product", matrix.nbytes / seconds / 1e9, "GB/s"),
        ("limit, weights of 8 bytes", len(matrix) / seconds, "questions/s"),
        ("limit, weights of 4 bytes, as they are kept", 2 * len(matrix) / seconds, "questions/s"),
    ]


def _hypothesis(attributes: int) -> list[Figure]:
    generator = np.random.default_rng(attributes)
    shape = (2,) * attributes
    hypothesis = TensorHypothesis(shape, 0.01, WEIGHT_STEPS)
    everything = [_question(generator, tuple(range(attributes))) for _ in range(QUESTIONS)]
    pairs = [
        _question(generator, tuple(sorted(generator.choice(attributes, 2, replace=False).tolist())))
        for _ in range(QUESTIONS)
    ]

    def correct() -> None:
        hypothesis.update(everything[0], up=True)
        hypothesis.estimate_answers(pairs[:1], ROWS)

    corrected = best_seconds(correct, REPEATS)
    whole = best_seconds(lambda: hypothesis.estimate_answers(everything, ROWS), REPEATS)
    hypothesis.estimate_answers(pairs, ROWS)
    small = best_seconds(lambda: hypothesis.estimate_answers(pairs, ROWS), REPEATS)
    return [
        ("questions about all attributes", QUESTIONS / whole, "questions/s"),
        ("questions about two attributes", QUESTIONS / small, "questions/s"),
        ("correction, and the next question", 1e3 * corrected, "ms"),
        ("memory of the hypothesis, at most", hypothesis.nbytes / 2**20, "MiB"),
    ]


def _question(generator: np.random.Generator, axes: tuple[int, ...]) -> Question:
    return Question(axes, generator.integers(0, WEIGHT_STEPS + 1, 1 << len(axes), dtype=np.int32))


def _processor(attributes: int) -> Figure:
    """Time different questions about one to three attributes, from their bytes to the answers' bytes, in memory."""
    chosen = random.Random(attributes)
    names = [f"a{number}" for number in range(attributes)]
    driver = Driver(bytes(32), partitions=1)
    domain = {"kind": "integers", "minimum": 0, "maximum": 1}
    driver.register(
        {
            "source": "people",
            "neighbors": "add-remove",
            "epsilon": 10.0,
            "kind": "table",
            "path": "people.csv",
            "attributes": dict.fromkeys(names, domain),
        },
        {name: [chosen.randrange(2) for _ in range(ROWS)] for name in names},
    )
    mechanism = {"kind": "pmw", "attributes": names, "rows": ROWS, "worst_case": True}
    spec = {"stream": "linear", "source": "people", "mechanism": mechanism, "epsilon": 1.0}
    driver.open(spec, acknowledge=True)
    queries = [
        {
            "id": f"query-{number}",
            "stream": "linear",
            "where": " AND ".join(
                f"{name} = {chosen.randrange(2)}" for name in sorted(chosen.sample(names, chosen.randint(1, 3)))
            ),
        }
        for number in range(ASKED)
    ]
    driver.ask_many(queries[:1])
    began = time.perf_counter()
    answers = driver.ask_many(queries)
    seconds = time.perf_counter() - began
    if refused := [answer for answer in answers if answer.estimate is None]:
        raise RuntimeError(f"{len(refused)} questions were refused: {refused[0].reason}")
    return ("whole processor, one to three attributes", len(queries) / seconds, "questions/s")


if __name__ == "__main__":
    main()
