"""A predicate with a known shape has the same result as the parser's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Categories, Domain, Integers
from stream.tables.comparisons import predicate_of
from stream.tables.predicates import PredicateParser
from stream.tables.table_errors import PredicateError

ATTRIBUTES: dict[str, Domain] = {
    "age": Integers(kind="integers", minimum=5, maximum=40),
    "b c": Integers(kind="integers", minimum=-3, maximum=10),
    "not": Integers(kind="integers", minimum=0, maximum=9),
    "sex": Categories(kind="categories", values=("F", "M", "x'y", "5 6")),
    "one": Categories(kind="categories", values=("a",)),
}

names = st.sampled_from(["age", "AGE", '"age"', '"b c"', "b c", "sex", "not", '"not"', "nobody"])
digits = st.one_of(st.integers(0, 60).map(str), st.sampled_from(["007", "-3", "3.5", "1e1", "9999999999", "'5'"]))
comparisons = st.one_of(
    st.tuples(names, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), digits).map(" ".join),
    st.tuples(names, st.sampled_from(["=", ">="]), digits).map("".join),
    st.tuples(names, st.sampled_from(["BETWEEN", "between"]), digits, st.just("AND"), digits).map(" ".join),
    st.sampled_from(
        [
            "sex = 'F'",
            "sex='M'",
            "sex = '5 6'",
            "sex IN ('F')",
            "sex <> 'M'",
            "one = 'a'",
            "sex = 'x''y'",
            "sex = 'z'",
        ]
    ),
    st.sampled_from(
        ["NOT age = 3", "(age > 7)", "age > 3 OR age < 2", "TRUE", "3 < age", "age = 3 -- 4", "\0age = 3"]
    ),
)
texts = st.builds(
    str.join, st.sampled_from([" AND ", " and ", "\nAND\t", "AND"]), st.lists(comparisons, min_size=1, max_size=4)
)

_shared = PredicateParser(ATTRIBUTES)


def parse_result(parser: PredicateParser, text: str) -> object:
    try:
        return parser.parse(text)
    except PredicateError as error:
        return str(error)


@given(asked=st.lists(texts, min_size=1, max_size=8))
def test_shared_parser_gives_results_of_new_parser(asked: list[str]) -> None:
    for text in asked:
        assert parse_result(_shared, text) == parse_result(PredicateParser(ATTRIBUTES), text)
        if (ranges := _shared.ranges(text)) is not None:
            assert predicate_of(ranges) == parse_result(PredicateParser(ATTRIBUTES), text)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("age BETWEEN 20 AND 30", "age BETWEEN 7 AND 12"),
        ('age >= 20 AND "b c" < 4', 'age >= 0 AND "b c" < 9'),
        ("sex = 'F' AND age = 20", "sex = 'F' AND age = 40"),
        ("age > 6 AND age <= 20", "age > 30 AND age <= 32"),
    ],
)
def test_parser_reuses_known_shape(first: str, then: str) -> None:
    parser = PredicateParser(ATTRIBUTES)
    assert parser.ranges(then) is None
    parser.parse(first)
    assert parser.ranges(then) is not None


@pytest.mark.parametrize("text", ["age BETWEEN 30 AND 20", "age > 39 AND age < 7", "age = 3 OR age = 7"])
def test_parser_has_no_ranges_for_other_shapes(text: str) -> None:
    parser = PredicateParser(ATTRIBUTES)
    parser.parse(text)
    assert parser.ranges(text) is None


def test_parser_matches_attribute_of_shape_exactly() -> None:
    parser = PredicateParser(ATTRIBUTES)
    parser.parse("age = 20")
    with pytest.raises(PredicateError, match="no declared attribute"):
        parser.parse("agE2 = 20")
    assert parser.ranges("agE = 20") is None
