"""Measures how many of the expected questions `pmw` answers with α, and the errors of all answers, on different kinds of tables.

Every table but Adult is made from a seed, with structure: classes of respondents, popular products, dependent health figures, a few
very common values, or no dependence at all. Questions name one to three attributes. The stream has the default settings.
"""

from __future__ import annotations

import argparse
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.report import console, markdown_line
from sotto import Driver
from stream.tables.demo_tables import ADULT_PATH

Codes = npt.NDArray[np.int64]
_HEADINGS = ("table", "rows", "attributes", "α", "with α", "largest error with α", "95 % of all errors", "largest")
_RACES = 5


@dataclass(frozen=True)
class Sample:
    """A table of codes: one column and one number of values for each attribute."""

    columns: tuple[Codes, ...]
    sizes: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.columns[0])


def survey(rows: int, generator: np.random.Generator) -> Sample:
    """Nine answers that depend on which of five classes a respondent belongs to."""
    sizes = (2, 5, 4, 3, 7, 5, 6, 2, 4)
    classes = generator.integers(0, 5, rows)
    columns = []
    for size in sizes:
        chances = generator.dirichlet(np.full(size, 0.6), 5).cumsum(axis=1)
        columns.append((generator.random(rows)[:, None] > chances[classes]).sum(axis=1).clip(0, size - 1))
    return Sample(tuple(columns), sizes)


def sales(rows: int, generator: np.random.Generator) -> Sample:
    """Products of different popularity, whose amounts and regions depend on the product."""
    product = np.minimum(generator.zipf(1.4, rows) - 1, 39)
    region = (product * 3 + generator.geometric(0.4, rows)) % 8
    weekday = np.where(
        generator.random(rows) < 0.4, generator.integers(5, 7, rows), generator.integers(0, 7, rows)
    )
    channel = np.where(product < 6, generator.integers(0, 2, rows), generator.integers(0, 3, rows))
    amount = np.clip(generator.normal(4 + product % 11, 2.0, rows), 0, 19).astype(np.int64)
    return Sample((product, region, weekday, channel, amount), (40, 8, 7, 3, 20))


def health(rows: int, generator: np.random.Generator) -> Sample:
    """Figures that grow with age and weight."""
    age = np.clip(generator.normal(52, 18, rows), 0, 99).astype(np.int64)
    sex = generator.integers(0, 2, rows)
    weight = np.clip(generator.normal(9 + age / 12 + sex, 4, rows), 0, 29).astype(np.int64)
    pressure = np.clip(generator.normal(4 + age / 10 + weight / 4, 2, rows), 0, 24).astype(np.int64)
    smoker = (generator.random(rows) < 0.32 - age / 500).astype(np.int64)
    ill = (generator.random(rows) < (age + 2 * weight + 15 * smoker) / 240).astype(np.int64)
    return Sample((age, sex, weight, pressure, smoker, ill), (100, 2, 30, 25, 2, 2))


def skewed(rows: int, generator: np.random.Generator) -> Sample:
    """Very common values, and the same long tail in every attribute."""
    common = np.minimum(generator.zipf(1.7, rows) - 1, 49)
    others = [np.minimum(common + generator.zipf(2.5, rows) - 1, 49) for _ in range(4)]
    return Sample((common, *others), (50,) * 5)


def independent(rows: int, generator: np.random.Generator) -> Sample:
    """Return six independent attributes."""
    sizes = (10, 20, 5, 2, 30, 8)
    return Sample(tuple(generator.integers(0, size, rows) for size in sizes), sizes)


def census(rows: int, generator: np.random.Generator) -> Sample:
    """Adult: a sample of its rows."""
    with gzip.open(ADULT_PATH) as file:
        frame = pl.read_csv(io.BytesIO(file.read()))
    chosen = frame[generator.permutation(frame.height)[:rows].tolist()]
    age = chosen["age"].to_numpy().astype(np.int64) - 16
    sex = (chosen["sex"] == "M").to_numpy().astype(np.int64)
    return Sample(
        (
            age,
            sex,
            *(chosen[name].to_numpy().astype(np.int64) for name in ("education-num", "race", "income>50K")),
        ),
        (85, 2, 16, _RACES, 2),
    )


TABLES: tuple[tuple[str, Callable[[int, np.random.Generator], Sample], int], ...] = (
    ("independent", independent, 1_000),
    ("health", health, 3_000),
    ("survey", survey, 6_000),
    ("skewed", skewed, 10_000),
    ("sales", sales, 20_000),
    ("Adult", census, 30_000),
    ("independent", independent, 60_000),
)


def questions(sample: Sample, count: int, generator: np.random.Generator) -> tuple[list[str], Codes]:
    """Return predicates on one to three attributes, ranges or single values, and their true counts."""
    texts, truths = [], []
    for _ in range(count):
        named = sorted(generator.choice(len(sample.sizes), int(generator.integers(1, 4)), replace=False).tolist())
        chosen, parts = np.ones(sample.rows, dtype=np.bool_), []
        for axis in named:
            low, high = sorted(generator.integers(0, sample.sizes[axis], 2).tolist())
            high = low if generator.random() < 0.4 else high
            parts.append(f"a{axis} BETWEEN {low} AND {high}")
            chosen &= (sample.columns[axis] >= low) & (sample.columns[axis] <= high)
        texts.append(" AND ".join(parts))
        truths.append(int(chosen.sum()))
    return texts, np.array(truths)


def measure(name: str, sample: Sample, epsilon: float, count: int, seed: int) -> tuple[str, ...]:
    """Ask all questions of one stream, and return a row of the table."""
    driver = Driver(seed.to_bytes(32, "big"), partitions=1)
    attributes = {f"a{axis}": size for axis, size in enumerate(sample.sizes)}
    source: dict[str, Any] = {"source": "t", "kind": "table", "neighbors": "add-remove", "path": "in memory"}
    driver.register(
        {**source, "epsilon": epsilon, "attributes": attributes},
        {f"a{axis}": column.tolist() for axis, column in enumerate(sample.columns)},
    )
    mechanism = {"kind": "pmw", "attributes": list(attributes)}
    driver.open(
        {"stream": "s", "source": "t", "epsilon": epsilon, "expected_queries": count, "mechanism": mechanism}
    )
    texts, truths = questions(sample, count, np.random.default_rng(seed + 1))
    answers = driver.ask_many({"stream": "s", "id": str(at), "where": text} for at, text in enumerate(texts))
    errors = np.abs(np.array([float(str(one.estimate)) for one in answers]) - truths)
    bounds = np.array([np.nan if one.alpha is None else one.alpha for one in answers])
    promised = ~np.isnan(bounds)
    return (
        name,
        f"{sample.rows:,}",
        str(len(sample.sizes)),
        f"{driver.grant('t', 's').calibration.alpha:,.0f}",
        f"{promised.mean():.1%}",
        f"{errors[promised].max():,.0f}",
        f"{np.quantile(errors, 0.95):,.0f}",
        f"{errors.max():,.0f}",
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure every table, show the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answered", description=__doc__)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=39)
    options = parser.parse_args(arguments)
    lines = [markdown_line(_HEADINGS), markdown_line(("---", *("---:" for _ in _HEADINGS[1:])))]
    for name, make, rows in TABLES:
        sample = make(rows, np.random.default_rng(options.seed))
        lines.append(markdown_line(measure(name, sample, options.epsilon, options.queries, options.seed)))
        console.print(lines[-1], markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
