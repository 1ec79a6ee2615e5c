"""What the demo asks, and what the true answers are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from schemas import AboveThreshold, Calibration, Query, Source, StreamSpec, ValuesSource
from stream.data import adult

TABLE, FEED = "adult", "vitals"
BUDGET = 10.0
STREAM_EPSILON = 0.25
CUTOFF = 8
BETA = 1e-7
"""Chance that any answer of one stream breaks its promise: small, for the demo checks every single one."""
TABLE_STREAMS, FEED_STREAMS = 20, 20
TABLE_THRESHOLD, FEED_THRESHOLD = 12_000.0, 50_000.0


@dataclass(frozen=True)
class Asked:
    """A query with the number that only the tester knows."""

    query: Query
    truth: float
    threshold: float


def sources() -> list[Source]:
    """A table of people and a feed of trusted counts, each with its budget."""
    feed = ValuesSource(kind="values", source=FEED, neighbors="add-remove", epsilon=BUDGET, sensitivity=1.0)
    return [adult.source(epsilon=BUDGET), feed]


def streams(queries_per_stream: int) -> list[StreamSpec]:
    """Twenty streams on each source."""
    plan = [(TABLE, number, TABLE_THRESHOLD) for number in range(TABLE_STREAMS)]
    plan += [(FEED, number, FEED_THRESHOLD) for number in range(FEED_STREAMS)]
    return [
        StreamSpec(
            stream=f"{source}-{number:02}",
            source=source,
            mechanism=AboveThreshold(kind="above_threshold", threshold=threshold, cutoff=CUTOFF),
            epsilon=STREAM_EPSILON,
            expected_queries=queries_per_stream,
            beta=BETA,
        )
        for source, number, threshold in plan
    ]


def questions(
    specs: list[StreamSpec],
    calibrations: dict[str, Calibration],
    queries_per_stream: int,
    seed: int,
) -> Iterator[Asked]:
    """Queries of all streams in turn; a few in a hundred lie above the threshold, so that some streams run dry."""
    chance = random.Random(seed)  # noqa: S311  (test questions, not noise)
    people = _People()
    for number in range(queries_per_stream):
        for spec in specs:
            query_id = f"{spec.stream}/{number:06}"
            threshold = TABLE_THRESHOLD if spec.source == TABLE else FEED_THRESHOLD
            if spec.source == TABLE:
                where, truth = people.question(chance)
                yield Asked(Query(id=query_id, stream=spec.stream, where=where), truth, threshold)
            else:
                value = _feed_value(chance, threshold, calibrations[spec.stream].alpha)
                yield Asked(Query(id=query_id, stream=spec.stream, value=value), value, threshold)


def _feed_value(chance: random.Random, threshold: float, alpha: float) -> float:
    place = chance.random()
    if place < 0.98:
        return float(chance.randint(0, int(threshold - alpha)))
    if place < 0.99:
        return float(chance.randint(int(threshold - alpha), int(threshold + alpha)))
    return float(chance.randint(int(threshold + alpha), int(2 * threshold)))


class _People:
    """Counts rows with plain array comparisons: another way than the product's own bitmaps."""

    def __init__(self) -> None:
        frame = pl.read_csv(adult.PATH, columns=["age", "sex", "hours-per-week"])
        self._age = frame["age"].to_numpy()
        self._woman = frame["sex"].to_numpy() == "F"
        self._hours = frame["hours-per-week"].to_numpy()

    def question(self, chance: random.Random) -> tuple[str, float]:
        """A predicate and its true count."""
        low = chance.randint(17, 70)
        if chance.random() < 0.987:
            high, hours = low + chance.randint(0, 6), chance.randint(20, 60)
            woman = chance.random() < 0.5
            where = f"age BETWEEN {low} AND {high} AND sex = '{'F' if woman else 'M'}' AND \"hours-per-week\" < {hours}"
            chosen = (self._age >= low) & (self._age <= high) & (self._woman == woman) & (self._hours < hours)
        else:
            oldest = chance.randint(45, 80)
            where = f"age <= {oldest} OR NOT sex IN ('M')"
            chosen = (self._age <= oldest) | self._woman
        return where, float(np.count_nonzero(chosen))
