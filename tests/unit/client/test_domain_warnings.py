"""Clients warn of conditions that the domain alone decides; answer and charge stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Query, Source, StreamSpec
from sotto import Driver
from stream.formatting import ROWS_LEFT_OUT
from stream.questions.answer_warnings import warn_about_domains
from stream.questions.clamped_values import describe_clamping
from stream.questions.question_forms import as_source
from stream.questions.stream_watch import describe_standing_query
from stream.tables.expressions import FALSE, TRUE
from stream.tables.predicates import PredicateParser
from tests.builders import KEY, installation, source, stream
from tests.unit.client.outside import DOCUMENT, ROWS

SOURCE: Source = as_source(DOCUMENT)


def warnings_of(**fields: Any) -> list[str]:
    return [
        line.removeprefix("where: ").split(";")[0]
        for line in warn_about_domains(SOURCE, Query(id="a", stream="b", **fields))
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
def test_warning_states_meaning_of_constant_outside_domain(where: str, lines: list[str]) -> None:
    assert warnings_of(where=where) == lines


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("constant", ["16", "16.5", "17", "30", "30.5", "90", "90.5", "91", "-3", "1e9"])
def test_warning_agrees_with_workers_predicate(sign: str, constant: str) -> None:
    meant = PredicateParser({"age": SOURCE.attributes["age"]}).parse(f"age {sign} {constant}")  # type: ignore[union-attr]
    lines = warnings_of(where=f"age {sign} {constant}")
    for line in lines:
        assert meant == (FALSE if "no row" in line else TRUE)
    assert len(lines) == (meant in {TRUE, FALSE})


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("age BETWEEN 50 AND 30", "no row"),
        ("age > 30.5 AND age < 30.7", "no row"),
        ("age = 30 AND age = 31", "no row"),
        ("sex = 'F' AND sex = 'M'", "no row"),
        ("sex = 'F' AND (age = 30 AND age = 31)", "no row"),
        ("FALSE", "no row"),
        ("sex IN ('F', 'M')", "every row"),
        ("age < 40 OR NOT age < 40", "every row"),
        ("age >= 17", "every row"),
        ("sex <> 'F' OR bmi < 18.5", None),
        ("age = 30 OR age = 31", None),
        (" true ", None),
        ("sex = 'F'", None),
    ],
)
def test_warning_of_predicate_decided_by_domain_appears_once(where: str, rows: str | None) -> None:
    decided = f"{where} holds for {rows}: the declared domains alone decide it"
    assert warnings_of(where=where) == ([] if rows is None else [decided])


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("cost <= 26.4", "cost <= 26"),
        ("26.4 > cost", "cost <= 26"),
        ("cost > 26.4", "cost >= 26.5"),
        ("cost BETWEEN 1.1 AND 2", "cost >= 1.5"),
        ("cost < 26.5", "exact"),
        ("cost <= 50.2", None),
        ("age <= 30.5", None),
    ],
)
def test_warning_states_meaning_of_number_between_steps(where: str, meant: str | None) -> None:
    """Values are rounded to the step, so the comparison holds for others than its number says."""
    source = as_source(
        {
            **DOCUMENT,
            "attributes": {"cost": {"kind": "decimal", "minimum": 0, "maximum": 50, "step": 0.5}, "age": 100},
        }
    )
    lines = warn_about_domains(source, Query(id="a", stream="b", where=where))
    counted = [line for line in lines if " counts as " in line]
    exact = "where: values of 'cost' are rounded to multiples of 0.5 before they are compared, so a condition is exact only to ±0.25"
    assert (exact in lines) == (meant == "exact" or "BETWEEN" in where)
    assert len(counted) == (meant not in {None, "exact"})
    for line in counted:
        assert line.endswith(f" counts as {meant}; values of 'cost' are rounded to multiples of 0.5")
        assert PredicateParser(source.attributes).parse(where) == PredicateParser(source.attributes).parse(  # type: ignore[union-attr]
            where if "BETWEEN" in where else str(meant)
        )


def test_no_warning_of_rounding_in_a_range_of_many_steps() -> None:
    cents = {"kind": "decimal", "minimum": 0, "maximum": 1000, "step": 0.01}
    source = as_source({**DOCUMENT, "attributes": {"cost": cents}})
    assert not warn_about_domains(source, Query(id="a", stream="b", where="cost < 99.99"))


def test_warning_of_comparison_comes_before_other_reasons() -> None:
    assert warnings_of(where="age > 200 AND sex = 'F'") == ["age > 200 holds for no row"]
    both = warnings_of(where="age BETWEEN 0 AND 65 AND age > 80")
    assert both[0] == "age >= 0 holds for every row"
    assert both[1].startswith("age BETWEEN 0 AND 65 AND age > 80 holds for no row: ")


def test_warning_of_single_candidate_says_choice_is_known() -> None:
    one = warn_about_domains(
        SOURCE,
        Query.model_validate({"id": "a", "stream": "b", "candidates": [{"name": "x", "where": "age > 30"}]}),
    )
    assert one == (
        "candidates: with one candidate the choice is known in advance; an answer is charged as any other",
    )
    assert not warnings_of(candidates=[{"name": "x", "where": "age > 30"}, {"name": "y", "where": "age > 31"}])
    made = driver()
    made.open(stream("c", "people", "noisy_max", epsilon=9.0))
    result = made.ask("c", candidates=[{"name": "x", "where": "sex = 'F'"}])
    assert (result.warnings, result.tops_left) == ((*one, ROWS_LEFT_OUT), 0)


def test_warnings_beyond_ten_are_counted() -> None:
    asked = [{"stream": "counts", "where": f"age = {age} AND age = 90"} for age in range(30, 43)]
    warnings = driver().ask_many(asked).warnings
    assert warnings[0].startswith("where: age = 30 AND age = 90 holds for no row")
    assert len(warnings) == 11
    assert warnings[-1] == "and 5 more warnings"


def test_warnings_cover_every_predicate_of_question() -> None:
    assert warnings_of(terms=[{"where": "age > 200"}, {"where": "age > 30"}]) == ["age > 200 holds for no row"]
    choices = [{"name": "a", "where": "date = 0"}, {"name": "b", "where": "date = 1"}]
    assert warnings_of(candidates=choices) == ["date = 0 holds for no row"]
    assert warnings_of(group_by=["sex"], where="age < 0") == ["age < 0 holds for no row"]


def test_warning_says_what_counts_beyond_a_clamped_range() -> None:
    """Only values of a clamped attribute count as an end; a row with a rejected value is left out."""
    for where, ending in (
        ("age > 99", "values outside count as 17 or 90"),
        ('"hours-per-week" > 100', "from 1 to 99"),
    ):
        [line] = warn_about_domains(SOURCE, Query(id="a", stream="b", where=where))
        assert line.endswith(ending)


def driver() -> Driver:
    counts = stream("counts", "people", "laplace", mechanism={"answers": 20}, epsilon=50.0)
    return installation(counts, sources=[DOCUMENT], rows={"people": ROWS}, partitions=4)


def test_warnings_are_shown_by_results_and_tables() -> None:
    asked = driver()
    result = asked.ask("counts", where="age > 200")
    assert result.warnings == (
        "where: age > 200 holds for no row; 'age' is declared as whole numbers from 17 to 90, and values outside count as 17 or 90",
        ROWS_LEFT_OUT,
        "not informative: the error may exceed the number itself",
    )
    assert "(warning: where: age > 200" in repr(result)
    assert "<p>warning: where: age &gt; 200" in result._repr_html_()
    table = asked.sql("SELECT sex, COUNT(*), AVG(age) FROM people WHERE age > 200 GROUP BY sex")
    assert table.warnings[0] == result.warnings[0]
    assert "(warning: " in repr(table)
    assert "<p>warning: " in table._repr_html_()
    both = asked.ask_many(
        [{"stream": "counts", "where": "age > 200"}, {"stream": "counts", "where": "age > 20"}] * 2
    )
    assert both.warnings == result.warnings
    assert [len(one.warnings) for one in both] == [3, 1, 3, 1]


def test_warning_changes_neither_answer_nor_charge() -> None:
    beyond, within = driver(), driver()
    there = beyond.ask("counts", where="age > 200", id="one")
    here = within.ask("counts", where="age > 90", id="one")
    assert there.warnings != here.warnings
    assert there.alpha == here.alpha
    assert (there.spent, there.tops_left, there.price) == (here.spent, here.tops_left, here.price)


@pytest.mark.parametrize(
    ("where", "warning"),
    [
        ("delay > 90", "where: delay > 90 holds for no event; 'delay' is declared as whole numbers from 0 to 60, and values outside count as 0 or 60"),
        ("row = 1 AND row = 2", "where: row = 1 AND row = 2 holds for no event: the declared domains alone decide it; an answer is charged as any other"),
        ("delay > 30", None),
    ],
)  # fmt: skip
def test_standing_stream_warns_of_condition_its_domains_decide(where: str, warning: str | None) -> None:
    """The clamped delay of 99 never satisfies ``delay > 90``, so the description and each answer say so."""
    with Driver(KEY) as client:
        delay = {"kind": "integers", "minimum": 0, "maximum": 60}
        topic = source(
            "flights",
            "events",
            person="tailnum",
            time="scheduled",
            clock="marks",
            attributes={"delay": delay, "row": 9},
        )
        client.register(topic)
        standing = {"where": where, "window": {"size": "1h"}, "begins": "2013-03-08T05:00:00Z"}
        late = stream("late", "flights", "laplace", mechanism={"answers": 9}, epsilon=1.0, standing=standing)
        client.open(late)
        client.publish("flights", [{"tailnum": "N1", "scheduled": "2013-03-08T05:15:00Z", "delay": 99, "row": 1}])
        client.advance("flights", "2013-03-08T06:00:00Z")
        [answer] = client.answers(from_beginning=True)
    spec, declared = StreamSpec.model_validate(late), as_source(topic)
    described = describe_standing_query(spec, declared)
    assert describe_clamping(spec, declared) is describe_clamping(spec, declared), "each answer has it"
    for text in ("; ".join(answer.warnings), described):
        assert ("where: " in text) == (warning is not None)
        assert (warning or "") in text
