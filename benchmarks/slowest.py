"""Measures the slowest question of each mechanism, and compares it with the work that the processor expects."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from benchmarks.report import Figure, show_figures, write_json
from schemas import Query
from schemas.wire import struct
from sotto import Driver
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from stream.worker.fair_shares import SECOND, WorkEstimator
from stream.worker.families.context import Context
from stream.worker.worker_processor import QueryProcessor

KEY = NoiseKey(bytes(32))
ROWS = 1 << 20
CELLS = {f"a{number}": 4 for number in range(10)}
"""Ten attributes of four values each: 2²⁰ cells."""
ATTRIBUTES = {**CELLS, "w": 1 << 16}
"""These attributes, and one with so many values that no two questions compare it with the same value."""
LONGEST = 1_950
"""Characters of a long predicate, slightly below the limit; all predicates are different."""
ROOM = 15_000
"""Bytes of an event for a list of predicates."""
REPEATS = 5

Question = dict[str, Any]

decode: Any = msgspec.json.Decoder(struct(Query)).decode


@dataclass(frozen=True)
class Case:
    """A mechanism, and a kind of question whose instances share nothing that could be kept."""

    name: str
    mechanism: dict[str, Any]
    question: Callable[[random.Random], Question]
    on_values: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask each kind of question a few times: the first, which may release what later ones read, and the median of the rest.

    Processor time counts, and beside it what the work was told to be.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slowest", description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    chance = np.random.default_rng(1)
    table = pl.DataFrame({name: chance.integers(0, size, ROWS) for name, size in ATTRIBUTES.items()})
    figures: list[Figure] = []
    for case in cases():
        figures += _timed(case, table)
    show_figures(f"Slowest questions, {ROWS:,} rows, 2^20 cells", figures)
    if options.json:
        write_json(options.json, figures)


def cases() -> Iterator[Case]:
    """Return every mechanism with its most costly questions."""
    cells = list(CELLS)
    sparse = {"attributes": cells, "sparsity": 256}
    yield Case("counts, long predicate", {"kind": "numeric_sparse", "threshold": 1e6, "cutoff": 1000}, _wide)
    yield Case("laplace, long predicate", {"kind": "laplace", "answers": 1000}, _wide)
    yield Case("laplace, sum", {"kind": "laplace", "answers": 1000}, _sum)
    yield Case("laplace, group_by 4,096 cells", {"kind": "laplace", "answers": 1000}, _groups)
    yield Case(
        "laplace, 256 values", {"kind": "laplace", "answers": 1000, "dimensions": 256}, _values, on_values=True
    )
    for kind in ("noisy_max", "exponential"):
        yield Case(f"{kind}, long predicates", {"kind": kind, "answers": 1000}, _long_candidates)
        yield Case(f"{kind}, most candidates", {"kind": kind, "answers": 1000}, _many_candidates)
        yield Case(f"{kind}, 256 values", {"kind": kind, "answers": 1000}, _named_values, on_values=True)
    yield Case("histogram, long predicate", {"kind": "histogram", "attributes": cells}, _long)
    yield Case("histogram, most cells", {"kind": "histogram", "attributes": cells}, _cells)
    yield Case("lazy_histogram", {"kind": "lazy_histogram", **sparse}, _cells)
    yield Case("sparse_project, 4,096 rows", {"kind": "sparse_project", **sparse, "projections": 4096}, _cells)
    pmw = {"kind": "pmw", "attributes": cells, "updates": 200}
    yield Case("pmw, three attributes", pmw, _short)
    yield Case("pmw, long predicate", pmw, _long)
    yield Case("pmw, long terms", pmw, _long_terms)
    yield Case("pmw, most terms", pmw, _many_terms)
    yield Case("sparse_pmw", {"kind": "sparse_pmw", **sparse, "updates": 200}, _cells)


def _timed(case: Case, table: pl.DataFrame) -> list[Figure]:
    driver = Driver(KEY, partitions=1)
    budget = {"source": "source", "epsilon": 1000.0}
    if case.on_values:
        driver.register({**budget, "kind": "values", "neighbors": "add-remove", "sensitivity": 1.0})
    else:
        people = {"path": "people.parquet", "attributes": ATTRIBUTES}
        driver.register({**budget, "kind": "table", "neighbors": "replace", "delta": 1e-3, **people}, table)
    opening = {
        "stream": "s",
        "source": "source",
        "mechanism": case.mechanism,
        "epsilon": 100.0,
        "expected_queries": 100,
    }
    driver.open(opening if case.on_values else {**opening, "delta": 1e-6}, acknowledge=True)
    tables = TableStore.keyed_by(KEY)
    tables.put("source", table)
    worker = QueryProcessor(driver.topics, 0, KEY, tables)
    worker.restore(driver.records(driver.topics.control))
    worker.end_restore()
    workload = WorkEstimator(Context(worker.streams, tables, driver.topics.queries, 0))
    seconds, told = [], []
    chance, offsets = random.Random(1), count()
    for _ in range(REPEATS + 1):
        value = json.dumps({"id": "q", "stream": "s", **case.question(chance)}, separators=(",", ":")).encode()
        record = Record(driver.topics.queries, 0, next(offsets), 0, b"s", value)
        told.append(workload.estimate(0, decode(value)).share / SECOND)
        began = time.process_time()
        outputs = worker.process(worker.prepare([record]))
        seconds.append(time.process_time() - began)
        (answer,) = outputs.messages[driver.topics.answers, 0]
        if b'"rejected"' in (answer[1] or b"") or b'"halted"' in (answer[1] or b""):
            raise AssertionError(f"{case.name}: {answer[1]!r}")
    return [
        (f"{case.name}: first", 1e3 * seconds[0], "ms"),
        (f"{case.name}: then", 1e3 * float(np.median(seconds[1:])), "ms"),
        (f"{case.name}: told", 1e3 * float(np.median(told[1:])), "ms"),
    ]


def _comparison(chance: random.Random) -> str:
    return f"a{chance.randrange(10)}={chance.randrange(4)}"


def _pairs(chance: random.Random, length: int) -> str:
    """Pairs of comparisons, any of which may hold: nothing merges, and every OR is over all cells."""
    text = f"{_comparison(chance)} AND {_comparison(chance)}"
    while len(longer := f"{text} OR {_comparison(chance)} AND {_comparison(chance)}") <= length:
        text = longer
    return text


def _short(chance: random.Random) -> Question:
    chosen = chance.sample(range(10), 3)
    return {"where": " AND ".join(f"a{number}={chance.randrange(4)}" for number in chosen)}


def _long(chance: random.Random) -> Question:
    return {"where": _pairs(chance, LONGEST)}


def _wide(chance: random.Random) -> Question:
    text = f"w={chance.randrange(1 << 16)} AND {_comparison(chance)}"
    while len(longer := f"{text} OR w={chance.randrange(1 << 16)} AND {_comparison(chance)}") <= LONGEST:
        text = longer
    return {"where": text}


def _sum(chance: random.Random) -> Question:
    return {"sum": "w", "where": f"w < {chance.randrange(1 << 16)}"}


def _groups(chance: random.Random) -> Question:
    return {"group_by": [f"a{number}" for number in chance.sample(range(10), 6)], "where": _comparison(chance)}


def _values(chance: random.Random) -> Question:
    return {"values": [chance.randrange(1000) for _ in range(256)]}


def _named_values(chance: random.Random) -> Question:
    return {"candidates": [{"name": str(number), "value": chance.randrange(1000)} for number in range(256)]}


def _long_candidates(chance: random.Random) -> Question:
    names = range(ROOM // (LONGEST + 50))
    return {"candidates": [{"name": str(name), "where": _pairs(chance, LONGEST)} for name in names]}


def _many_candidates(chance: random.Random) -> Question:
    return {"candidates": [{"name": str(name), "where": _pairs(chance, 20)} for name in range(250)]}


def _long_terms(chance: random.Random) -> Question:
    number = ROOM // (LONGEST + 50)
    return {"terms": [{"where": _pairs(chance, LONGEST), "weight": 0.125} for _ in range(number)]}


def _many_terms(chance: random.Random) -> Question:
    return {"terms": [{"where": _pairs(chance, 20), "weight": 1 / 256} for _ in range(250)]}


def _cells(chance: random.Random) -> Question:
    numbers = chance.sample(range(1 << 20), 130)
    return {
        "cells": [
            {"at": {f"a{axis}": number >> 2 * axis & 3 for axis in range(10)}, "weight": 0.5} for number in numbers
        ]
    }


if __name__ == "__main__":
    main()
