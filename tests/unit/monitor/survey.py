"""Builds a monitored installation with a survey of people and five streams on it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tests.builders import source, stream
from tests.unit.monitor.installation import Installation

PEOPLE = source(
    "people",
    "table",
    epsilon=8.0,
    attributes={
        "age": {"kind": "integers", "minimum": 0, "maximum": 99},
        "sex": {"kind": "categories", "values": ["F", "M"], "other": "F"},
        "pay": {"kind": "bins", "edges": [0, 10, 100], "outside": "reject"},
    },
)
ROWS = {"age": [40] * 300 + [70] * 100, "sex": ["F", "M"] * 200, "pay": [5.0] * 400}


def surveyed(**fields: Any) -> Installation:
    installation = Installation(**fields)
    installation.driver.register(PEOPLE, pl.DataFrame(ROWS))
    for name, mechanism in (
        ("counts", {"kind": "laplace", "answers": 40}),
        ("alarms", {"kind": "numeric_sparse", "threshold": 200.0, "cutoff": 3}),
        ("choices", {"kind": "noisy_max", "answers": 3}),
        ("cells", {"kind": "histogram", "attributes": ["sex"]}),
        ("model", {"kind": "pmw", "attributes": ["age", "sex"]}),
    ):
        installation.driver.open(stream(name, "people", mechanism=mechanism))
    installation.flow()
    return installation
