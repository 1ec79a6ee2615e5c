"""Constants outside the declared domain are told, and change neither an answer nor its charge."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Query, Source
from sotto import Driver
from stream.asking.outside import outside
from stream.asking.questions import as_source
from stream.data import PredicateParser
from stream.data.expressions import FALSE, TRUE
from tests.unit.processors.installation import KEY

ATTRIBUTES: dict[str, Any] = {
    "age": {"kind": "integers", "minimum": 17, "maximum": 90},
    "hours-per-week": {"kind": "integers", "minimum": 1, "maximum": 99, "outside": "reject"},
    "date": {"kind": "integers", "minimum": 1, "maximum": 31},
    "sex": ["F", "M"],
    "bmi": {"kind": "bins", "edges": [10.0, 18.5, 60.0]},
}
DOCUMENT: dict[str, Any] = {
    "source": "people",
    "kind": "table",
    "neighbors": "add-remove",
    "epsilon": 100.0,
    "path": "people.csv",
    "attributes": ATTRIBUTES,
}
SOURCE: Source = as_source(DOCUMENT)
ROWS = {"age": [30] * 40, "hours-per-week": [40] * 40, "date": [3] * 40, "sex": ["F"] * 40, "bmi": [12.0] * 40}


def told(**fields: Any) -> list[str]:
    return [
        line.removeprefix("where: ").split(";")[0] for line in outside(SOURCE, Query(id="a", stream="b", **fields))
    ]


@pytest.mark.parametrize(
    ("where", "lines"),
    [
        ("age > 200", ["age > 200 holds for no row"]),
        ("AGE < 91", ["age < 91 holds for every row"]),
        ("200 < age", ["age > 200 holds for no row"]),
        ("age = 30.5", ["age = 30.5 holds for no row"]),
        ("age <> -1", ["age <> -1 holds for every row"]),
        ("age BETWEEN 0 AND 65", ["age >= 0 holds for every row"]),
        ("NOT (sex = 'F' OR age IN (16, 17, 100))", ["age = 16 holds for no row", "age = 100 holds for no row"]),
        ('"hours-per-week" >= (168) AND date = 32', ["hours-per-week >= 168 holds for no row", "date = 32 holds for no row"]),
        ("age > 200 OR age > 200", ["age > 200 holds for no row"]),
        ("age >= 17 AND age <= 90 AND age > 64.5", []),
        ("sex = '200' AND bmi < 18.5", []),
        ("nothing = 1", []),
        ("age > > 200", []),
        ("age = '200'", []),
        ("age > --5", []),
    ],
)  # fmt: skip
def test_each_constant_outside_the_domain_is_told_with_what_it_means(where: str, lines: list[str]) -> None:
    assert told(where=where) == lines


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("constant", ["16", "16.5", "17", "30", "30.5", "90", "90.5", "91", "-3", "1e9"])
def test_what_is_told_is_what_a_worker_makes_of_it(sign: str, constant: str) -> None:
    meant = PredicateParser({"age": SOURCE.attributes["age"]}).parse(f"age {sign} {constant}")  # type: ignore[union-attr]
    for line in told(where=f"age {sign} {constant}"):
        assert meant == (FALSE if "no row" in line else TRUE)
    inside = 17 <= float(constant) <= 90 and (float(constant).is_integer() or sign not in {"=", "<>"})
    assert bool(told(where=f"age {sign} {constant}")) != inside


def test_every_predicate_of_a_question_is_looked_at() -> None:
    assert told(terms=[{"where": "age > 200"}, {"where": "age > 30"}]) == ["age > 200 holds for no row"]
    assert told(candidates=[{"name": "a", "where": "date = 0"}]) == ["date = 0 holds for no row"]
    assert told(group_by=["sex"], where="age < 0") == ["age < 0 holds for no row"]


def driver() -> Driver:
    driver = Driver(KEY)
    driver.register(DOCUMENT, ROWS)
    driver.open(
        {"stream": "counts", "source": "people", "epsilon": 50.0, "mechanism": {"kind": "laplace", "answers": 20}}
    )
    return driver


def test_a_result_and_a_table_carry_the_warnings_and_show_them() -> None:
    asked = driver()
    result = asked.ask("counts", where="age > 200")
    assert result.warnings == (
        "where: age > 200 holds for no row; 'age' is declared as whole numbers from 17 to 90",
    )
    assert "(warning: where: age > 200" in repr(result)
    assert "<p>warning: where: age &gt; 200" in result._repr_html_()
    table = asked.sql("SELECT sex, COUNT(*), AVG(age) FROM people WHERE age > 200 GROUP BY sex")
    assert table.warnings == result.warnings
    assert "(warning: " in repr(table)
    assert "<p>warning: " in table._repr_html_()
    both = asked.ask_many(
        [{"stream": "counts", "where": "age > 200"}, {"stream": "counts", "where": "age > 20"}] * 2
    )
    assert both.warnings == result.warnings
    assert [bool(one.warnings) for one in both] == [True, False, True, False]


def test_answer_and_charge_are_those_of_the_same_question_written_within_the_domain() -> None:
    beyond, within = driver(), driver()
    there = beyond.ask("counts", where="age > 200", id="one")
    here = within.ask("counts", where="age > 90", id="one")
    assert there.warnings
    assert not here.warnings
    assert there.alpha == here.alpha
    assert (there.spent, there.tops_left, there.price) == (here.spent, here.tops_left, here.price)
