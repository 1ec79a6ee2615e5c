"""Made-up tables have exactly the stated law."""

from __future__ import annotations

import numpy as np
from scipy import stats

from schemas import TableSource
from stream.dev.simulation_inputs import draw_table
from stream.tables.columns_table import PrivateTable
from tests.builders import parse_source, source

ROWS = 40_000
SOURCE = parse_source(
    source(
        "people",
        "table",
        neighbors="replace",
        epsilon=1.0,
        path="none.csv",
        attributes={
            "age": {"kind": "integers", "minimum": -5, "maximum": 14, "outside": "reject"},
            "code": {"kind": "categories", "values": ["", "1", "1.0", "Ω", "null"]},
            "bmi": {"kind": "bins", "edges": [-1.5, 0, 0.1, 30, 60], "outside": "reject"},
        },
    )
)


def codes(seed: int, source: TableSource = SOURCE) -> PrivateTable:
    return PrivateTable.load(source, draw_table(source, ROWS, seed))


def test_synthetic_rows_are_in_the_declared_domain() -> None:
    table = codes(1)
    assert table.public_size == table.private_row_count == ROWS
    assert all(len(np.unique(table.private_codes[name])) == one.size for name, one in SOURCE.attributes.items())


def test_synthetic_values_follow_the_stated_odds() -> None:
    """A category has odds one over its place, and a number one over its distance."""
    table = codes(2)
    for name, domain in SOURCE.attributes.items():
        counts = np.bincount(table.private_codes[name], minlength=domain.size)
        if name == "code":
            odds = 1.0 / (1 + np.argsort(np.argsort(-counts)))
        else:
            odds = 1.0 / (1 + np.abs(np.arange(domain.size) - int(counts.argmax())))
        assert stats.chisquare(counts, ROWS * odds / odds.sum()).pvalue > 1e-4


def test_synthetic_attributes_are_independent() -> None:
    table = codes(3)
    pairs = np.histogram2d(table.private_codes["age"], table.private_codes["code"], bins=(20, 5))[0]
    assert stats.chi2_contingency(pairs).pvalue > 1e-4


def test_seed_repeats_the_synthetic_table() -> None:
    """An attribute does not depend on the others."""
    again, other = codes(4), codes(5)
    alone = SOURCE.model_copy(update={"attributes": {"bmi": SOURCE.attributes["bmi"]}})
    first = codes(4).private_codes
    assert all((first[name] == again.private_codes[name]).all() for name in first)
    assert any((first[name] != other.private_codes[name]).any() for name in first)
    assert (codes(4, alone).private_codes["bmi"] == first["bmi"]).all()
