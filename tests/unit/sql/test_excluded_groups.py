"""The groups that WHERE excludes are those in which no row of the declared domains can satisfy it."""

from __future__ import annotations

from bisect import bisect_right
from itertools import product
from operator import and_, or_
from random import Random
from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas import TableSource
from stream.formatting import values_of
from stream.tables import sensitivity
from stream.tables.expressions import Codes, evaluate
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import excluded_groups
from tests.builders import source

CHANCE = Random(3)
ATTRIBUTES: dict[str, Any] = {
    "a": {"kind": "integers", "minimum": -1, "maximum": 2},
    "b": ["x", "it's", "z"],
    "c": {"kind": "bins", "edges": [0, 10, 20.5, 30]},
}
SOURCE: TableSource = TypeAdapter(TableSource).validate_python(
    source("people", "table", epsilon=1, path="people.parquet", attributes=ATTRIBUTES)
)
LEAVES = (
    *("a = 1", "a <> 0", "a BETWEEN 0 AND 1", "a NOT BETWEEN -9 AND 0", "2 > a", "a = 7"),
    *("b = 'x'", "b IN ('z', 'it''s')", "b NOT IN ('x')", "c < 10", "c >= 20.5", "TRUE", "FALSE"),
)


def some_condition(depth: int) -> str:
    if depth == 0:
        return CHANCE.choice(LEAVES)
    if CHANCE.random() < 0.3:
        return f"NOT ({some_condition(depth - 1)})"
    return f"({some_condition(depth - 1)}) {CHANCE.choice(['AND', 'OR'])} ({some_condition(depth - 1)})"


def groups_with_rows(where: str, groups: tuple[str, ...]) -> set[tuple[int, ...]]:
    """Return the groups of all rows of the domains that satisfy a condition."""
    predicate, found = PredicateParser(SOURCE.attributes).parse(where), set()
    for codes in product(*(range(one.size) for one in SOURCE.attributes.values())):
        row = dict(zip(SOURCE.attributes, codes, strict=True))

        def holds(leaf: Codes, row: dict[str, int] = row) -> bool:
            return bisect_right(leaf.cuts, row[leaf.attribute]) % 2 == 1

        if evaluate(predicate, bool, holds, and_, or_):
            found.add(tuple(row[name] for name in groups))
    return found


DAYS = {"kind": "date", "granularity": "day", "minimum": "2024-01-01", "maximum": "2024-12-31"}
HOURS = {"kind": "timestamp", "granularity": "day", "zone": "Europe/Berlin"}
RANGE = {"minimum": "2024-03-01", "maximum": "2024-04-30"}


def excluded_labels(where: str, by: str, **domains: Any) -> list[str]:
    """Return the labels of the groups that a condition excludes; all attributes are read from one column."""
    columns = dict.fromkeys(domains, "visited")
    fields = source("visits", "table", epsilon=1, path="visits.parquet", attributes=domains, columns=columns)
    declared: TableSource = TypeAdapter(TableSource).validate_python(fields)
    labels = values_of(declared.attributes[by])
    return [
        str(labels[index])
        for index in sorted(excluded_groups(PredicateParser(declared.attributes).parse(where), declared, (by,)))
    ]


def test_condition_on_days_excludes_months_without_them() -> None:
    """If month and day are read from one column with the same range, each row of a month has a day of this month."""
    both: dict[str, Any] = {"day": DAYS, "month": {**DAYS, "granularity": "month"}}
    half = [f"2024-{month:02}" for month in range(1, 7)]
    assert excluded_labels("day >= '2024-07-01'", "month", **both) == half
    assert excluded_labels("day > '2024-06-29'", "month", **both) == half[:-1]
    assert len(excluded_labels("day = '2024-02-29' OR day >= '2024-12-31'", "month", **both)) == 10
    assert len(excluded_labels("month = '2024-02'", "day", **both)) == 366 - 29
    assert len(excluded_labels("day < '2024-02-01' AND month = '2024-02'", "month", **both)) == 12


def test_condition_on_hours_excludes_local_days_without_them() -> None:
    """Days begin in the declared zone, also on the day with 23 hours."""
    both: dict[str, Any] = {"day": {**HOURS, **RANGE}, "hour": {**HOURS, **RANGE, "granularity": "hour"}}
    assert excluded_labels("hour >= '2024-03-31T00+01:00'", "day", **both)[-1] == "2024-03-30"
    assert excluded_labels("hour < '2024-03-31T23+02:00'", "day", **both)[0] == "2024-04-01"
    assert len(excluded_labels("day = '2024-03-31'", "hour", **both)) == 61 * 24 - 1 - 23


def test_condition_on_dates_of_another_range_excludes_nothing() -> None:
    """A value outside one range counts as its end, and as a cell far from it in the other range."""
    wide, narrow = {**DAYS, "granularity": "month"}, {**DAYS, **RANGE}
    assert not excluded_labels("day >= '2024-04-30'", "month", day=narrow, month=wide)
    assert not excluded_labels("day < '2024-04-01'", "hour", day=narrow, hour={**HOURS, **RANGE})


def test_excluded_groups_hold_no_row_of_the_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the condition decides about all groups, so that thousands of groups do not block the event loop."""
    passes: list[object] = []

    def counted(predicate: Any, *functions: Any) -> Any:
        passes.append(predicate)
        return evaluate(predicate, *functions)

    monkeypatch.setattr(sensitivity, "evaluate", counted)
    excluded_count = 0
    for number in range(300):
        where, groups = (
            some_condition(CHANCE.randint(0, 4)),
            tuple(CHANCE.sample([*ATTRIBUTES], CHANCE.randint(1, 3))),
        )
        excluded = excluded_groups(PredicateParser(SOURCE.attributes).parse(where), SOURCE, groups)
        assert len(passes) == number + 1
        cells = list(product(*(range(SOURCE.attributes[name].size) for name in groups)))
        possible = groups_with_rows(where, groups)
        assert not any(cells[index] in possible for index in excluded), where
        excluded_count += len(excluded)
        if len(groups) == len(ATTRIBUTES):
            assert {cells[index] for index in excluded} == {*cells} - possible
    assert excluded_count > 500
