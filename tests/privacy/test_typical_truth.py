"""Compares published typical errors with the true ones, on made-up tables of six kinds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.answered import TABLES
from benchmarks.typical_errors import Compared, compare

SEEDS = 3
WITHIN = {"cells of pairs": 1.6, "cells of triples": 1.8, "ranges": 4.0}
"""Largest factor between the means of published and true errors: ranges add up cells whose errors have like signs."""


@pytest.mark.parametrize(("place", "name"), [(place, table[0]) for place, table in enumerate(TABLES)])
def test_typical_errors_are_those_of_the_answers(place: int, name: str) -> None:
    del name
    _, make, rows = TABLES[place]
    sample = make(rows, np.random.default_rng(39))
    runs = [compare(sample, seed) for seed in range(SEEDS)]
    assert any(one.count for one in runs[0].values())
    for kind, factor in WITHIN.items():
        known = [run[kind] for run in runs if run[kind].count]
        if known:
            assert 1 / factor < _mean(known) < factor, kind


def _mean(known: list[Compared]) -> float:
    return float(np.mean([one.published for one in known]) / np.mean([one.true for one in known]))
