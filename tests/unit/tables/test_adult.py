from __future__ import annotations

import gzip

import pytest

from stream.tables.columns_table import PrivateTable
from stream.tables.demo_tables import ADULT_PATH, adult_source
from stream.tables.predicates import parse

SOURCE = adult_source(epsilon=1.0)


@pytest.fixture(scope="module")
def table() -> PrivateTable:
    return PrivateTable.load(SOURCE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRUE", 48_842),
        ("sex = 'M'", 32_650),
        ("sex = 'F'", 16_192),
        ('"income>50K" = 1', 11_687),
        ('"income>50K" = 0', 37_155),
        ("age < 17 OR age > 90", 0),
        ("age = 17 OR age = 90", 595 + 55),
    ],
)
def test_adult_counts_match_published_dataset(table: PrivateTable, text: str, expected: int) -> None:
    assert table.count(parse(text, SOURCE.attributes)) == expected


def test_adult_sums_and_groups_match_published_dataset(table: PrivateTable) -> None:
    everyone = parse("TRUE", SOURCE.attributes)
    assert round(table.total("age", everyone) / 48_842, 4) == 38.6436
    assert table.total("income>50K", everyone) == 11_687
    assert table.group_counts(["sex", "income>50K"], everyone).tolist() == [[14_423, 1_769], [22_732, 9_918]]
    assert table.cell_counts(["sex", "income>50K"], [(1, 1), (0, 1)]).tolist() == [9_918, 1_769]


def test_adult_first_row_matches_published_dataset(table: PrivateTable) -> None:
    first = {name: int(column[0]) for name, column in table.private_codes.items()}
    assert first["age"] + 16 == 39
    assert first["education-num"] + 1 == 13
    assert first["hours-per-week"] + 1 == 40
    assert first["sex"] == 1


def test_adult_domains_cover_every_cell() -> None:
    with gzip.open(ADULT_PATH, "rt") as file:
        header, *rows = (line.rstrip("\n").split(",") for line in file)
    assert len(rows) == 48_842
    assert set(header) == set(SOURCE.attributes)
    for name, cells in zip(header, zip(*rows, strict=True), strict=True):
        domain = SOURCE.attributes[name]
        if domain.kind == "categories":
            assert set(cells) == set(domain.values)
        elif domain.kind == "integers":
            assert domain.minimum <= min(map(int, cells)) <= max(map(int, cells)) <= domain.maximum


def test_adult_source_takes_budget_of_caller() -> None:
    source = adult_source(epsilon=2.0, delta=1e-9, accountant="zcdp")
    assert (source.epsilon, source.delta, source.accountant, source.neighbors) == (2.0, 1e-9, "zcdp", "add-remove")


def test_adult_file_has_no_time_and_no_name() -> None:
    header = ADULT_PATH.read_bytes()[:10]
    assert header[3] == 0
    assert header[4:8] == bytes(4)
