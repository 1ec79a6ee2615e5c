from __future__ import annotations

import sys

import pytest

from schemas import MAX_PREDICATE_LENGTH, Bins, Categories, Domain, Integers
from stream.tables.columns_table import PrivateTable
from stream.tables.expressions import FALSE, TRUE, AllOf, Codes, Predicate
from stream.tables.predicates import MAX_LIST_LENGTH, MAX_NESTING, MAX_TOKENS, parse
from stream.tables.table_errors import PredicateError
from tests.unit.tables.small import source

AGE = Integers(minimum=0, maximum=100)
ATTRIBUTES: dict[str, Domain] = {
    "age": AGE,
    "education-num": Integers(minimum=0, maximum=15),
    "income>50K": Integers(minimum=0, maximum=1),
    "sex": Categories(values=("F", "M")),
    "height": Bins(edges=(0.0, 0.1, 1.5, 2.0)),
    "date": Integers(minimum=0, maximum=9),
    "Zip": Integers(minimum=0, maximum=9),
    "ZIP": Integers(minimum=0, maximum=9),
}


def read(text: str) -> Predicate:
    return parse(text, ATTRIBUTES)


def refusal(text: str) -> str:
    with pytest.raises(PredicateError) as refused:
        read(text)
    return str(refused.value)


def ages(*cuts: int) -> Codes:
    return Codes("age", AGE.size, cuts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age = 5", ages(5, 6)),
        ("age <> 5", ages(0, 5, 6, 101)),
        ("age < 5", ages(0, 5)),
        ("5 > age", ages(0, 5)),
        ("age <= 5", ages(0, 6)),
        ("age > 64.5", ages(65, 101)),
        ("age >= 64.5", ages(65, 101)),
        ("age < 64.5", ages(0, 65)),
        ("age <= 64.5", ages(0, 65)),
        ("age BETWEEN 4.5 AND 6", ages(5, 7)),
        ("age IN (1, 2, 3, 7)", ages(1, 4, 7, 8)),
        ("age IN (2.5, 7)", ages(7, 8)),
        ("age = 1e1", ages(10, 11)),
    ],
)
def test_integer_comparison_is_exact(text: str, expected: Codes) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text", ["age = 64.5", "age < -3", "age > 100", "age BETWEEN 9 AND 8", "age = 1e30", "age < 0"]
)
def test_unsatisfiable_comparison_is_false(text: str) -> None:
    assert read(text) == FALSE
    assert read(f"NOT {text}") == TRUE


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("height < 0.1", (0, 1)),
        ("height >= 1.5", (2, 3)),
        ("1.5 > height", (0, 2)),
        ("height BETWEEN 0.1 AND 2", (1, 3)),
    ],
)
def test_bins_are_compared_with_their_edges(text: str, cuts: tuple[int, ...]) -> None:
    assert read(text) == Codes("height", 3, cuts)


def test_closed_last_edge_is_compared_from_above_only() -> None:
    assert read("height <= 2") == TRUE
    assert read("height > 2.0") == FALSE
    assert read("height >= 0") == TRUE
    assert "use <= or > with the last edge" in refusal("height < 2")
    assert "use <= or > with the last edge" in refusal("height >= 2")


@pytest.mark.parametrize(
    "text", ["height <= 1.5", "height > 0.1", "height = 0.1", "height IN (0.1)", "height BETWEEN 0 AND 1.5"]
)
def test_comparison_within_bin_is_refused_with_alternatives(text: str) -> None:
    assert "use < or >= with an edge" in refusal(text)


def test_number_between_edges_is_refused_with_nearest_edges() -> None:
    assert refusal("height < 1") == "character 10: a number is not a bin edge of 'height'; use 0.1 or 1.5"


@pytest.mark.parametrize(
    "text",
    [
        "age >= 30 AND sex = 'M'",
        "sex = 'M' AND age >= 30",
        "NOT (age < 30 OR sex = 'F')",
        "age > 29 AND age > 12 AND sex IN ('M') AND TRUE",
        "((sex <> 'F')) AND (age BETWEEN 30 AND 500)",
        "(age >= 30 AND sex = 'M') AND (age >= 30 AND sex = 'M') OR FALSE",
        "30<=AGE and\n\t'M' = \"SEX\"",
    ],
)
def test_equivalent_texts_give_equal_trees(text: str) -> None:
    assert read(text) == AllOf((ages(30, 101), Codes("sex", 2, (1, 2))))
    assert hash(read(text)) == hash(read("age >= 30 AND sex = 'M'"))


def test_names_match_exactly_or_by_unique_case() -> None:
    assert read("Zip = 1") != read("ZIP = 1")
    assert read("SEX = 'F' AND \"Education-NUM\" = 3") == read("sex = 'F' AND \"education-num\" = 3")
    assert "character 1: no declared attribute has this name" in refusal("zip = 1")


def test_attribute_may_have_reserved_name() -> None:
    assert read("date = 3") == read('"date" = 3') == Codes("date", 10, (3, 4))
    assert "function" in refusal("date(3) = 3")
    assert "character 1: this word or sign is not allowed" in refusal("E'date' = 3")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("abs(age) = 3", "function"),
        ("sex = lower('M')", "function"),
        ("age = (SELECT 3)", "SELECT"),
        ("EXISTS (SELECT 1)", "EXISTS"),
        ("age IN (SELECT 1)", "SELECT"),
        ("age = CAST(3 AS int)", "AS"),
        ("age::int = 3", "::"),
        ("age + 1 = 3", "+"),
        ("age - 1 = 3", "arithmetic"),
        ("education-num = 3", "arithmetic"),
        ("age * 2 = 3", "*"),
        ("age = - - 3", "arithmetic"),
        ("age = date", "two attributes"),
        ("1 = 1", "two literals"),
        ("age = NULL", "NULL"),
        ("age IS NULL", "IS"),
        ("age IS NOT DISTINCT FROM 3", "IS"),
        ("sex LIKE 'M%'", "LIKE"),
        ("sex ILIKE 'M%'", "ILIKE"),
        ("sex ~ 'M'", "~"),
        ("age = $1", "$"),
        ("age = ?", "?"),
        ("age = :x", ":"),
        ("age = 3 -- x", "comment"),
        ("age = 3 /* x */", "comment"),
        ("{# x #} age = 3", "comment"),
        ("age = 3; DROP TABLE t", ";"),
        ("age = 3;", ";"),
        ("t.age = 3", "."),
        ("age = 3 AS x", "AS"),
        ("age", "'age' alone"),
        ("NOT age", "'age' alone"),
        ("3", "literal"),
        ("age = 3 = TRUE", "condition"),
        ("age < 3 < 5", "condition"),
        ("TRUE = FALSE", "literal"),
        ("age = TRUE", "'age' is numeric; write a number in place of TRUE"),
        ("age IN ()", "IN list"),
        ("age IN 3", "IN"),
        ("age IN (date)", "attribute"),
        ("3 IN (age)", "literal"),
        ("(age, date) = (1, 2)", "TUPLE"),
        ("age BETWEEN SYMMETRIC 3 AND 1", "BETWEEN"),
        ("age BETWEEN 1 AND date", "attribute"),
        ("age = 0x10", "character 7: this word or sign"),
        ("sex = E'M'", "character 7: this word or sign"),
        ("sex = $$M$$", "character 7: this word or sign"),
        ("sex = 'M' COLLATE \"C\"", "COLLATE"),
        ("sex = 'F' 'M'", "string"),
        ("CASE WHEN TRUE THEN TRUE END", "CASE"),
        ("age = ANY(ARRAY[3])", "ANY"),
        ("[age] = 3", "["),
        ("age = 3 age", "line 1, column 11"),
        ("nothing = 3", "character 1: no declared attribute"),
        ('sex = "Male"', "character 7: no declared attribute has this name; put a value in single quotes"),
        ('"Male" <> sex', "character 1: no declared attribute has this name; put a value in single quotes"),
        (
            "sex IN ('Male', \"Female\")",
            "character 17: no declared attribute has this name; put a value in single",
        ),
        ("sex = Male", "character 7: no declared attribute has this name; put a value in single quotes"),
        ('age BETWEEN 3 AND "x"', "character 19: no declared attribute has this name; put a value in single"),
        ('age = "sex"', "two attributes are compared"),
        ('"nothing" = "none"', "two attributes are compared"),
        ("sex = 'X'", "character 7: this text is not a declared value of 'sex'; declared are 'F', 'M'"),
        ("sex = 1", "single quotes"),
        ("sex < 'M'", "no order"),
        ("sex BETWEEN 'F' AND 'M'", "no order"),
        ("age = '3'", "without quotes"),
        ("age = 1e31", "character 7: a number is beyond"),
        ("age = 1e-400", "character 7: a number is beyond"),
        ("age = 3 OR", "OR"),
        ("age = 3)", "line 1, column 8"),
        ("", "empty"),
        (" \n", "empty"),
        ("-- only", "empty"),
        ("'", "character 1: this quote is not closed; close it"),
        ("sex = 'it''s", "character 7: this quote is not closed; close it; inside a text, double a quote, as in"),
        ("\"sex = 'F'", "character 1: this quote is not closed"),
        ("sex = %(sex)s", "character 7: % is not allowed in a predicate; write the value itself"),
        ("\ud800", "cannot be read"),
    ],
)
def test_unsupported_syntax_is_refused_by_name(text: str, named: str) -> None:
    assert named in refusal(text)


def test_similar_value_is_refused_with_difference() -> None:
    with pytest.raises(PredicateError) as refused:
        parse("ward = 'Pa\u0308diatrie'", {"ward": Categories(values=("Pädiatrie", "Pa"))})
    assert (
        "not a declared value of 'ward'; it differs from the declared 'Pädiatrie' in Unicode normalization"
        in str(refused.value)
    )


def test_huge_exponent_is_evaluated_cheaply() -> None:
    assert read("age >= 0e999999999999") == TRUE
    refusal("age >= 1e999999999999")
    refusal("age >= 1e99999999999999999999999999")


def test_nesting_is_limited_for_any_stack() -> None:
    assert read("(" * MAX_NESTING + "age = 1" + ")" * MAX_NESTING) == ages(1, 2)
    assert read("NOT " * MAX_NESTING + "age = 1") == ages(1, 2)
    for text in (
        "(" * 17 + "age = 1" + ")" * 17,
        "NOT " * 17 + "age = 1",
        "NOT (" * 9 + "age = 1" + ")" * 9,
        "(" * 1000,
    ):
        assert "nests deeper" in refusal(text)
    assert "nests deeper" in refusal("age = " + "- " * 500 + "1")


def test_deepest_predicate_uses_half_of_stack() -> None:
    deepest = "(" * MAX_NESTING + "age = 1" + ")" * MAX_NESTING
    used = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, used = frame.f_back, used + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(used + limit // 2)
    try:
        assert read(deepest) == ages(1, 2)
    finally:
        sys.setrecursionlimit(limit)


def test_full_stack_raises_predicate_error() -> None:
    assert "cannot be read" in refusal("age BETWEEN 1 AND NOT " * 80 + "TRUE")


def test_wide_predicates_do_not_nest() -> None:
    assert read(" OR ".join(f"age={number}" for number in range(0, 100, 2)) + " OR date = 1")
    assert read(" AND ".join(["NOT age = 1"] * 120)) == read("age <> 1")


def test_predicate_lengths_are_limited() -> None:
    assert str(MAX_PREDICATE_LENGTH) in refusal("age = 1" + " " * MAX_PREDICATE_LENGTH)
    assert str(MAX_TOKENS) in refusal("(" + "1," * (MAX_TOKENS // 2) + "1) =")
    most = ",".join(["1"] * MAX_LIST_LENGTH)
    assert read(f"age IN ({most})") == ages(1, 2)
    assert str(MAX_LIST_LENGTH) in refusal(f"age IN ({most},1)")


def test_long_names_and_literals_are_cut_in_messages() -> None:
    assert len(refusal(f"sex = '{'x' * 2000}'")) < 200
    assert len(refusal(f'"{"x" * 2000}" = 1')) < 200
    assert refusal("sex = '\x1b[31m\nred'").isprintable()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("`age` = 3", "character 1: ` is not allowed in a predicate; put names in double quotes"),
        ("[education-num] = 3", "character 1: [ is not allowed in a predicate; put names in double quotes"),
        ("sex = 'O\\'Brien'", "double a quote inside a text, as in 'O''Brien'"),
        (
            "height < .5",
            "character 10: . is not allowed in a predicate; write a digit before the point, as in 0.5",
        ),
        (
            "age IS NOT NULL",
            "as the category declared as 'other'; leave this condition out, or exclude that category",
        ),
        (
            "age IS NULL",
            "rows with a missing cell are left out, or count as the category declared as 'other'; ask for",
        ),
        ("flag = TRUE", "'flag' holds categories, not TRUE; put a category in single quotes; write 'true'"),
        ("FALSE <> flag", "'flag' holds categories, not FALSE; put a category in single quotes; write 'False'"),
        ("sex IN (TRUE)", "not TRUE; put a category in single quotes; declared are 'F', 'M'"),
    ],
)
def test_other_dialect_is_refused_with_accepted_form(text: str, remedy: str) -> None:
    """Other dialects' quotes, numbers, truth values and nulls are refused with the accepted form."""
    with pytest.raises(PredicateError) as refused:
        parse(text, {**ATTRIBUTES, "flag": Categories(values=("true", "False"))})
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x >= 'high'", {"high", "critical"}),
        ("x < 'high'", {"low", "medium"}),
        ("'medium' < x", {"high", "critical"}),
        ("x <= 'low'", {"low"}),
        ("x BETWEEN 'medium' AND 'high'", {"medium", "high"}),
        ("NOT x > 'medium' AND x <> 'low'", {"medium"}),
        ("x = 'high'", {"high"}),
    ],
)
def test_ordered_categories_compare_in_the_declared_order(text: str, kept: set[str]) -> None:
    severity = Categories(values=("low", "medium", "high", "critical"), ordered=True)
    rows = PrivateTable.load(source({"x": severity}), {"x": list(severity.values)})
    assert rows.count(parse(text, {"x": severity})) == len(kept)
    for value in severity.values:
        one = PrivateTable.load(source({"x": severity}), {"x": [value]})
        assert one.count(parse(text, {"x": severity})) == (value in kept)


def test_order_of_categories_is_left_out_of_definitions_without_it() -> None:
    """Definitions, fingerprints and noise of sources that declare no order do not change."""
    assert "ordered" not in Categories(values=("a",)).model_dump_json()
    assert Categories(values=("a",), ordered=True).model_dump()["ordered"]
