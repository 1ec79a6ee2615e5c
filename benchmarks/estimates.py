"""Measures the cost of streams that answer from an estimate: a fit, a ⊤, and questions about measured attributes.

All in one process, the processor from the questions' bytes to the answers' bytes, without Kafka. Seconds are of the
processor, not of the clock.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
from rich.table import Table as RichTable

from benchmarks.report import console
from schemas import StreamSpec
from sotto import Driver
from stream.caches import reduce_gc_frequency
from stream.privacy.mechanisms.maximum_entropy import NoisyMarginal, fit_distribution
from stream.privacy.noise.keyed_noise import block_words
from stream.privacy.noise.samplers import sampler
from stream.processing.protocol import Record

SHAPES = ((100, 100), (25, 20, 20), (1024, 1024), (128, 128, 64))
ROWS = 50_000
ASKED, DISTINCT = 100_000, 2_000
FRESH = 20_000
BATCH = 5_000
_BLOCK = 1 << 15


def main() -> None:
    """Measure and show."""
    table = RichTable(title="Estimates", show_header=False)
    for what, value in [*map(_fit, SHAPES), *map(_noise, (10_000, 1 << 20)), *_questions()]:
        table.add_row(what, value)
    console.print(table)


def _seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def _fit(shape: tuple[int, ...]) -> tuple[str, str]:
    """All single attributes, all pairs and the whole marginal were measured."""
    generator = np.random.default_rng(1)
    sets = [axes for size in range(1, len(shape) + 1) for axes in combinations(range(len(shape)), size)]
    marginals = []
    for axes in sets:
        own = [shape[axis] for axis in axes]
        noisy = generator.exponential(ROWS / np.prod(own), own) + generator.laplace(0.0, 50.0, own)
        marginals.append(NoisyMarginal(axes, np.rint(noisy), 5000.0))
    seconds = _seconds(lambda: fit_distribution(shape, marginals, ROWS), 3)
    cells = f"{np.prod(shape):,} cells, {len(sets)} marginals"
    return f"fit, {cells}", f"{1e3 * seconds:,.0f} ms"


def _noise(cells: int) -> tuple[str, str]:
    """The noise of a marginal, which a ⊤ draws and a restore draws again."""
    law = sampler("two_sided", Fraction(1, 50))

    def draw() -> None:
        for start in range(0, cells, _BLOCK):
            size = min(_BLOCK, cells - start)
            law.draw(*block_words(bytes(32), start.to_bytes(8, "big"), size, law.words))

    return f"noise of a marginal, {cells:,} cells", f"{1e3 * _seconds(draw, 3):,.0f} ms"


def _questions() -> list[tuple[str, str]]:
    chosen = random.Random(1)
    sizes = {"a": 25, "b": 20, "c": 20}
    driver = Driver(bytes(32), partitions=1)
    source = {
        "source": "people",
        "neighbors": "add-remove",
        "epsilon": 10.0,
        "kind": "table",
        "path": "people.csv",
    }
    columns = {name: [chosen.randrange(size) for _ in range(ROWS)] for name, size in sizes.items()}
    driver.register({**source, "attributes": sizes}, columns)
    first, fresh, known = measure_questions(driver, "people", sizes)
    return [
        ("first questions of a stream, with its opening and fits, 10,000 cells", f"{first:,.0f} /s"),
        ("questions never asked before on known attributes, 10,000 cells", f"{fresh:,.0f} /s"),
        ("questions asked before, 10,000 cells", f"{known:,.0f} /s"),
    ]


def measure_questions(driver: Driver, source: str, sizes: Mapping[str, int]) -> tuple[float, float, float]:
    """Ask a new ``pmw`` stream: first questions a second, new ones on known attributes, and repeated ones."""
    chosen = random.Random(2)
    mechanism = {"kind": "pmw", "attributes": list(sizes)}
    spec = {
        "stream": "many",
        "source": source,
        "mechanism": mechanism,
        "epsilon": 1.0,
        "expected_queries": ASKED,
    }
    driver.open(StreamSpec.model_validate(spec), acknowledge=True)
    wheres = [_where(chosen, sizes) for _ in range(DISTINCT)]
    others = sorted({_where(chosen, sizes) for _ in range(2 * FRESH)} - set(wheres))
    chosen.shuffle(others)
    worker = driver._workers[0]  # noqa: SLF001  (the processor itself is timed, not the driver around it)
    topic, offset = worker.inputs[0], 0

    def asked(texts: Sequence[str]) -> float:
        nonlocal offset
        seconds = 0.0
        for start in range(0, len(texts), BATCH):
            values = [
                f'{{"id":"q{offset + n}","stream":"many","where":"{text}"}}'.encode()
                for n, text in enumerate(texts[start : start + BATCH])
            ]
            records = [Record(topic, 0, offset + n, 0, b"many", value, ()) for n, value in enumerate(values)]
            began = time.process_time()
            worker.process(worker.prepare(records))
            seconds += time.process_time() - began
            offset += len(records)
        return seconds

    gc.collect()
    reduce_gc_frequency()
    first = asked(wheres)
    fresh = asked(others)
    again = (wheres * (ASKED // len(wheres)))[: ASKED // 4]
    known = min(asked(again) for _ in range(4))
    return len(wheres) / first, len(others) / fresh, len(again) / known


def _where(chosen: random.Random, sizes: Mapping[str, int]) -> str:
    """One to three attributes, with ranges and single values."""
    parts = []
    for name in chosen.sample(sorted(sizes), chosen.randint(1, len(sizes))):
        low, high = sorted(chosen.randrange(sizes[name]) for _ in range(2))
        parts.append(chosen.choice([f"{name} BETWEEN {low} AND {high}", f"{name} >= {low}", f"{name} = {low}"]))
    return " AND ".join(parts)


if __name__ == "__main__":
    main()
