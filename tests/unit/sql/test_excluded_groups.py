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
from stream.sql import statement_questions
from stream.tables.expressions import Codes, evaluate
from stream.tables.predicates import PredicateParser
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


def test_excluded_groups_hold_no_row_of_the_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over the condition decides about all groups, so that thousands of them keep no event loop waiting."""
    passes: list[object] = []

    def counted(predicate: Any, *functions: Any) -> Any:
        passes.append(predicate)
        return evaluate(predicate, *functions)

    monkeypatch.setattr(statement_questions, "evaluate", counted)
    excluded_count = 0
    for number in range(300):
        where, groups = (
            some_condition(CHANCE.randint(0, 4)),
            tuple(CHANCE.sample([*ATTRIBUTES], CHANCE.randint(1, 3))),
        )
        excluded = statement_questions._excluded_rows(where, SOURCE, groups)
        assert len(passes) == number + 1
        cells = list(product(*(range(SOURCE.attributes[name].size) for name in groups)))
        possible = groups_with_rows(where, groups)
        assert not any(cells[index] in possible for index in excluded), where
        excluded_count += len(excluded)
        if len(groups) == len(ATTRIBUTES):
            assert {cells[index] for index in excluded} == {*cells} - possible
    assert excluded_count > 500
