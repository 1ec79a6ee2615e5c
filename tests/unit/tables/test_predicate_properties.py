from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import cell_mask
from stream.tables.expressions import attributes_of
from stream.tables.predicates import parse
from stream.tables.table_errors import MAX_MESSAGE_LENGTH, PredicateError
from tests.unit.tables.small import (
    ATTRIBUTES,
    Cell,
    PredicateCase,
    columns,
    flat_predicates,
    predicates,
    read_by_hand,
    rows,
    source,
    unhurried,
)

Rows = list[Mapping[str, Cell]]
tables = st.lists(rows, max_size=80)

SQL_SCRAPS = [
    *(
        "(",
        ")",
        "NOT",
        "AND",
        "OR",
        "IN",
        "BETWEEN",
        "=",
        "<",
        ">=",
        "<>",
        ",",
        "-",
        "+",
        "*",
        ".",
        ";",
        "::",
        "$1",
    ),
    *(
        "age",
        "sex",
        "'M'",
        "'",
        '"',
        '"age"',
        "1",
        "2.5",
        "1e9",
        "NULL",
        "IS",
        "LIKE",
        "SELECT",
        "FROM",
        "CASE",
        "WHEN",
    ),
    *(
        "CAST",
        "AS",
        "--",
        "/*",
        "*/",
        "TRUE",
        "FALSE",
        "EXISTS",
        "ANY",
        "date",
        "interval",
        "[",
        "]",
        "{",
        "}",
        "x'",
        "E'",
    ),
]


def load(table: Rows) -> PrivateTable:
    return PrivateTable.load(source(), columns(table))


def true_count(table: Rows, said: PredicateCase) -> int:
    return sum(said.test(row) for row in map(read_by_hand, table) if row is not None)


@unhurried
@given(table=tables, said=predicates)
def test_predicate_count_equals_row_by_row_evaluation(table: Rows, said: PredicateCase) -> None:
    assume(said.text.count("(") < 14)
    assert load(table).count(parse(said.text, ATTRIBUTES)) == true_count(table, said)


@unhurried
@given(table=tables, flat=flat_predicates)
def test_predicate_precedence_is_not_and_or(
    table: Rows,
    flat: tuple[list[list[tuple[bool, PredicateCase]]], str],
) -> None:
    groups, text = flat
    said = PredicateCase(
        text, lambda row: any(all(part.test(row) != no for no, part in group) for group in groups)
    )
    assert load(table).count(parse(text, ATTRIBUTES)) == true_count(table, said)


@unhurried
@given(said=predicates)
def test_predicate_double_negation_is_identity(said: PredicateCase) -> None:
    assume(said.text.count("(") < 10)
    assert parse(f"NOT (NOT ({said.text}))", ATTRIBUTES) == parse(said.text, ATTRIBUTES)


@unhurried
@given(left=predicates, right=predicates)
def test_predicate_obeys_de_morgan(left: PredicateCase, right: PredicateCase) -> None:
    assume((left.text + right.text).count("(") < 10)
    outside = parse(f"NOT (({left.text}) AND ({right.text}))", ATTRIBUTES)
    inside = parse(f"NOT ({left.text}) OR NOT ({right.text})", ATTRIBUTES)
    assert outside == inside
    assert hash(outside) == hash(inside)


@unhurried
@given(table=tables, said=predicates)
def test_predicate_and_negation_partition_rows(table: Rows, said: PredicateCase) -> None:
    assume(said.text.count("(") < 13)
    loaded = load(table)
    yes, no = parse(said.text, ATTRIBUTES), parse(f"NOT ({said.text})", ATTRIBUTES)
    assert loaded.counts([yes, no]).sum() == loaded.private_row_count


@unhurried
@given(table=tables, said=predicates)
def test_cell_mask_selects_exactly_the_matching_rows(table: Rows, said: PredicateCase) -> None:
    assume(said.text.count("(") < 14)
    loaded = load(table)
    predicate = parse(said.text, ATTRIBUTES)
    names = sorted(attributes_of(predicate)) or ["age"]
    inside = cell_mask(predicate, {name: ATTRIBUTES[name].size for name in names})
    assert inside.shape == tuple(ATTRIBUTES[name].size for name in names)
    assert np.count_nonzero(inside[tuple(loaded.private_codes[name] for name in names)]) == loaded.count(predicate)


def assert_parses_or_says_why(text: str) -> None:
    try:
        parse(text, ATTRIBUTES)
    except PredicateError as error:
        message = str(error)
        assert message.isprintable()
        assert 0 < len(message) <= MAX_MESSAGE_LENGTH
        message.encode()


@unhurried
@given(text=st.text(max_size=200))
def test_parser_returns_predicate_or_error_for_any_text(text: str) -> None:
    assert_parses_or_says_why(text)


@unhurried
@given(text=st.text(alphabet=st.characters(codec=None), max_size=30))
def test_parser_returns_error_for_unencodable_text(text: str) -> None:
    assert_parses_or_says_why(text)


@unhurried
@given(scraps=st.lists(st.sampled_from(SQL_SCRAPS), max_size=30), gap=st.sampled_from([" ", ""]))
def test_parser_returns_predicate_or_error_for_sql_fragments(scraps: list[str], gap: str) -> None:
    assert_parses_or_says_why(gap.join(scraps))


@pytest.mark.parametrize("scrap", SQL_SCRAPS)
@pytest.mark.parametrize("times", [20, 500])
def test_parser_survives_repetition(scrap: str, times: int) -> None:
    for gap in ("", " "):
        assert_parses_or_says_why((scrap + gap) * times)
        assert_parses_or_says_why("age = " + (scrap + gap) * times + "1")
