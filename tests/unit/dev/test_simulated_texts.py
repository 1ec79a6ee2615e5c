"""Simulations of unknown groups: made-up texts, and errors of released groups."""

from __future__ import annotations

from typing import Any

import pytest

from stream.dev.simulation_inputs import draw_table, read_questions
from stream.dev.simulation_run import SimulationReport, simulate
from tests.builders import parse_source, parse_spec, source

SOURCE = parse_source(
    source(
        "visits",
        "table",
        epsilon=8.0,
        delta=1e-3,
        path="private.csv",
        attributes={"ward": ["A", "B"], "note": {"kind": "text", "max_length": 2}},
    )
)
ROWS = draw_table(SOURCE, 4000, 1)


def simulated(question: str, **mechanism: Any) -> SimulationReport:
    spec = parse_spec("unknown_groups", source="visits", epsilon=2.0, delta=1e-5, **mechanism)
    return simulate(spec, SOURCE, read_questions([question], spec.stream), ROWS, runs=2, seed=1)


def test_synthetic_texts_are_short_enough_and_some_are_rarer() -> None:
    counts = ROWS["note"].value_counts().sort("count", descending=True)
    assert 90 <= counts.height <= 99
    assert ROWS["note"].str.len_bytes().max() == 2
    assert counts["count"][0] > 20 * counts["count"][-1]


@pytest.mark.parametrize(
    "question",
    ['{"group_by": ["note"]}', '{"group_by": ["ward", "note"], "where": "ward = \'A\'"}'],
)
def test_released_groups_are_compared_with_their_counts(question: str) -> None:
    report = simulated(question)
    for run in report.runs:
        [summary] = run.error_summaries
        assert (summary.what, summary.broken) == ("released groups", 0)
        assert summary.numbers > 5
        assert 0.0 < summary.largest <= (summary.alpha or (0.0, 0.0))[1]


def test_names_alone_are_judged_by_the_groups_left_out() -> None:
    report = simulated('{"group_by": ["note"]}', counts=False)
    for run in report.runs:
        [summary] = run.error_summaries
        assert (summary.what, summary.broken) == ("people of groups left out", 0)
        assert 0.0 < summary.largest < report.grant.calibration.alpha
