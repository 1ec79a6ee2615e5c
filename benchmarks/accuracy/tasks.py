"""A table, questions about it and their true answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.accuracy import questions
from benchmarks.accuracy.questions import Boxes, Codes, Floats, marginal_of
from benchmarks.accuracy.tables import FIVE, Table, table

ROWS_AT_MOST = {"adult": 50_000, "flights": 500_000, "diamonds": 100_000}
"""Public round numbers of rows: answers are clamped to them, and plans that need a number of rows use them."""

WIDE_QUERIES = 3_000


@dataclass(frozen=True, order=True)
class Workload:
    """The questions and their table; with ``rows``, so many rows are drawn from the table."""

    name: str
    queries: int
    rows: int | None = None


FEW, DEEP, WIDE = "five attributes", "five attributes, three to five named", "all fourteen attributes"
FLIGHTS, DIAMONDS = "flights", "diamonds"
WORKLOADS = (FEW, DEEP, WIDE, FLIGHTS, DIAMONDS)


@dataclass(frozen=True)
class Task:
    """A workload with its table, questions and true answers."""

    workload: Workload
    table: Table
    attributes: tuple[str, ...]
    codes: Codes
    boxes: Boxes
    wheres: tuple[str, ...]
    truth: Floats
    at_most: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.codes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the attributes that are asked about."""
        return self.boxes.sizes

    @property
    def asked(self) -> Codes:
        """The rows' codes on these attributes."""
        names = list(self.table.domains)
        return self.codes[:, [names.index(name) for name in self.attributes]]

    def errors(self, estimates: Floats) -> Floats:
        """Errors of estimated counts, as shares of the rows."""
        return self.errors_at(np.arange(len(self.truth)), estimates)

    def errors_at(self, places: Codes, estimates: Floats) -> Floats:
        """Errors of estimates of some of the questions."""
        result: Floats = np.abs(np.clip(estimates, 0.0, self.at_most) - self.truth[places]) / self.rows
        return result


@lru_cache(maxsize=2)
def make(workload: Workload) -> Task | None:
    """Return the task; equal workloads give equal tasks. None if the table's package cannot be installed."""
    name = workload.name if workload.name in (FLIGHTS, DIAMONDS) else "adult"
    kept = table(name)
    if kept is None:
        return None
    narrow = workload.name in (FEW, DEEP)
    attributes = FIVE if narrow else tuple(kept.domains)
    ordered = [attributes.index(one) for one in (kept.five_ordered if narrow else kept.ordered)]
    domains = [(one, kept.domains[one]) for one in attributes]
    sizes = [domain.size for _, domain in domains]
    ask = {FEW: questions.few, DEEP: questions.deep}.get(workload.name, questions.wide)
    generator = random.Random(workload.queries)
    asked = [ask(generator, sizes, ordered) for _ in range(workload.queries)]
    codes, at_most = kept.codes, ROWS_AT_MOST[name]
    if workload.rows is not None:
        drawn = np.random.default_rng(workload.rows).integers(0, len(codes), workload.rows)
        codes, at_most = codes[drawn], 2 * workload.rows
    boxes = Boxes.of(sizes, asked)
    columns = [list(kept.domains).index(one) for one in attributes]
    truth = boxes.sums(marginal_of(codes[:, columns], sizes))
    wheres = tuple(questions.where(domains, question) for question in asked)
    return Task(workload, kept, attributes, codes, boxes, wheres, truth, at_most)
