"""Ordinary questions, and their true answers."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas import Answer
from stream.tables.demo_tables import ADULT_PATH

STREAMS, QUESTIONS, BETA = 20, 40, 0.05


Truth = Callable[[Answer], float]
"""The largest error of an answer's numbers."""


@dataclass(frozen=True)
class JudgedQuestion:
    """A question without its stream, and a function that returns the error of its answer."""

    query: dict[str, Any]
    error: Truth


@lru_cache(maxsize=1)
def people() -> pl.DataFrame:
    with gzip.open(ADULT_PATH) as file:
        return pl.read_csv(io.BytesIO(file.read()))


def number(truth: float) -> Truth:
    return lambda answer: abs((answer.estimate if answer.estimate is not None else np.inf) - truth)


def numbers(truths: npt.NDArray[Any]) -> Truth:
    return lambda answer: float(np.max(np.abs(np.array(answer.estimates) - truths)))


@lru_cache(maxsize=1)
def conditions() -> list[tuple[str, pl.DataFrame]]:
    """Return ordinary predicates, and the rows that satisfy them."""
    generator = random.Random(15)
    found = []
    for _ in range(QUESTIONS):
        low, high = sorted(generator.randint(16, 100) for _ in range(2))
        sex, taught = generator.choice("FM"), generator.randint(0, 15)
        where, chosen = f"age BETWEEN {low} AND {high}", pl.col("age").is_between(low, high)
        if generator.random() < 0.6:
            where, chosen = f"{where} AND sex = '{sex}'", chosen & (pl.col("sex") == sex)
        if generator.random() < 0.3:
            where, chosen = (
                f'{where} AND "education-num" >= {taught}',
                chosen & (pl.col("education-num") >= taught),
            )
        found.append((where, people().filter(chosen)))
    return found


def groups(rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return counts by sex and race in row-major order."""
    found = np.zeros((2, 5), dtype=np.int64)
    for sex, race in rows.select("sex", "race").iter_rows():
        found["FM".index(sex), race] += 1
    return found.ravel()
