"""Exact transcripts of online private multiplicative weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration, SparseVectorCalibration
from stream.privacy.mechanisms.estimate_questions import LinearQuestion, extent_of
from stream.privacy.mechanisms.measurements import Axes
from stream.privacy.mechanisms.releases import corner_weighting
from stream.privacy.noise.samplers import Sampler, Symmetric

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rows = tuple[int, ...]


CELLS, STEPS = 3, 1024


FLOATS = 1.0 + 1e-9


class NoMemory:
    """A cache that keeps nothing."""

    def get(self, key: Any) -> None:
        del key

    def put(self, key: Any, value: Any) -> None:
        del key, value


@dataclass
class ForcedTops:
    """Noise with which a table has a ⊤ if ``top`` is set; subclasses add the noise of what is published."""

    top: bool = field(default=False, kw_only=True)

    def barrier(self, tops: int) -> int:
        del tops
        return 0

    def query_noise(self, tops: int, keys: Sequence[bytes]) -> Integers:
        del tops
        return np.full(len(keys), 1 << 40 if self.top else -(1 << 40), dtype=np.int64)

    def choice_noise(self, number: int, count: int, law: Sampler) -> Integers:
        raise AssertionError((number, count, law))

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        raise AssertionError((order, law))


def count_cells(rows: Iterable[Rows], sizes: Sequence[int], axes: Axes) -> Integers:
    """Count the rows of each cell on some axes."""
    table = np.zeros([sizes[axis] for axis in axes], dtype=np.int64)
    for row in rows:
        table[tuple(row[axis] for axis in axes)] += 1
    return table


def question(*inside: int) -> LinearQuestion:
    weights = np.array(inside, dtype=np.int64) * STEPS
    return LinearQuestion(
        axes=(0,),
        key=bytes(inside),
        parts=((1, corner_weighting(weights)),),
        weights=lambda: weights,
        extent=lambda: extent_of(weights),
        unit=STEPS,
        width=STEPS,
        full_weights=True,
    )


def calibration(kind: Literal["numbers", "cells", "opening"], *, replace: bool = False) -> EstimateCalibration:
    """Return a calibration with two ⊤s; noisy numbers are published only if the promise needs them."""
    shared: dict[str, Any] = {
        "epsilon": 4.0,
        "delta": 0.0,
        "grid": 1.0 / STEPS,
        "sensitivity_steps": STEPS,
        "cutoff": 2,
        "expected_queries": 4,
        "beta": 0.05,
    }
    vector = SparseVectorCalibration(
        method="one_sided",
        noise="one_sided",
        fresh_threshold=False,
        epsilon_threshold=0.25,
        epsilon_query=0.25,
        epsilon_answer=1.0,
        shift=0,
        monotone=False,
        numbers="fresh",
        answer_alpha=1.0,
        alpha=1e9 if kind == "cells" else 1e-3,
        **shared,
    )
    return EstimateCalibration(
        sparse_vector=vector,
        threshold=STEPS // 2,
        epsilon_rows=0.0 if replace else 0.1,
        warm_start=1 if kind == "opening" else 0,
        starts=1 if kind == "opening" else 0,
        epsilon_start=1.0 if kind == "opening" else 0.0,
        epsilon_number=0.25,
        marginal_sensitivity=2 if replace else 1,
        alpha=1.0,
        **shared,
    )


def two_sided(noise: float, rate: float) -> float:
    """ln P of discrete Laplace noise."""
    return math.log(math.tanh(rate / 2)) - rate * abs(noise)


@cache
def thresholds(rate: float) -> Integers:
    """Return a sparse selection of the threshold's noise with non-negligible probability."""
    return np.arange(0, math.ceil(60 / rate), 16)


@cache
def first_weights(rate: float) -> Floats:
    """Return the weights of each noise of the threshold, which are its probabilities up to a factor."""
    return np.asarray(np.exp(-rate * thresholds(rate)))


@lru_cache(maxsize=256)
def chances(threshold_rate: float, rate: float, lacking: int, *, top: bool) -> Floats:
    """Return P(⊤) or P(⊥) for each noise of the threshold, for a question whose error is so far below the exact threshold."""
    above = np.asarray(np.exp(-rate * np.maximum(thresholds(threshold_rate) + lacking, 0)))
    return above if top else 1.0 - above


def find_neighbors(rows: Rows, *, replace: bool) -> set[Rows]:
    """Return the neighboring tables with sorted rows; no question depends on the order of rows."""
    if not replace:
        return {tuple(sorted((*rows, cell))) for cell in range(CELLS)}
    changed = {
        tuple(sorted((*rows[:place], cell, *rows[place + 1 :])))
        for place, cell in product(range(len(rows)), range(CELLS))
    }
    return changed - {tuple(sorted(rows))}
