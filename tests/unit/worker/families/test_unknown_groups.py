"""Streams of unknown groups: answers, order, charges and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import MAX_ANSWER_BYTES, MAX_KEY_BYTES, MAX_KEYS, GrantRecord
from sotto import Driver, Invalid, Refused, Rejected, Result
from stream.privacy.mechanisms.releases import ReleasedGroup, count_fitting_groups
from stream.sql.aggregates import StatementError
from tests.builders import installation, source, stream

DIAGNOSES = ["flu"] * 300 + ["cold"] * 500 + ["Flu"] * 200 + ["rare"] + [f"once {n}" for n in range(99)]
WARDS = ["A", "B"] * (len(DIAGNOSES) // 2)
ROWS = {"visits": {"ward": WARDS, "diagnosis": DIAGNOSES}}
SOURCE = source(
    "visits",
    "table",
    delta=1e-3,
    path="in memory",
    attributes={"ward": ["A", "B"], "diagnosis": {"kind": "text"}},
)
ASKED: dict[str, Any] = {"group_by": ["diagnosis"]}


def opened(*streams: dict[str, Any], rows: dict[str, Any] = ROWS, **changes: Any) -> Driver:
    return installation(*streams, sources=[{**SOURCE, **changes}], rows=rows)


def spec(answers: int = 1, **changes: Any) -> dict[str, Any]:
    mechanism = {"kind": "unknown_groups", "answers": answers}
    return stream("s", "visits", mechanism=mechanism, **{"epsilon": 1.0, "delta": 1e-6, **changes})


def counts(result: Result) -> dict[str, float]:
    return dict(zip(result.keys or (), result.estimates or (), strict=True))


def test_common_texts_are_released_with_noisy_counts() -> None:
    result = opened(spec()).ask("s", **ASKED)
    found = counts(result)
    assert list(found) == ["cold", "flu", "Flu"]
    assert result.alpha is not None
    for text, truth in (("cold", 500), ("flu", 300), ("Flu", 200)):
        assert abs(found[text] - truth) <= result.alpha
    assert found != {"cold": 500.0, "flu": 300.0, "Flu": 200.0}
    assert result.basis == "noisy"
    assert result.intervals is not None
    for (low, high), number in zip(result.intervals, result.estimates or (), strict=True):
        assert 1 <= low < number < high
        assert high - low < 2 * result.alpha
    assert result.rows()[0]["diagnosis"] == "cold"


def test_each_answer_is_charged_its_part_of_epsilon_and_delta() -> None:
    driver = opened(spec(4, delta=4e-6))
    for number in (1, 2):
        spent = driver.ask("s", **ASKED).spent
        assert spent is not None
        assert (spent.epsilon, spent.delta) == pytest.approx((number / 4, number * 1e-6))
    driver.close("visits", "s")
    left = driver.budget("visits")
    assert left.left.epsilon == pytest.approx(10.0 - 0.5)
    assert left.left.delta == pytest.approx(1e-3 - 2e-6)


def test_where_restricts_the_rows() -> None:
    found = counts(opened(spec()).ask("s", where="ward = 'A'", **ASKED))
    assert abs(found["cold"] - 250) <= 20
    assert abs(found["flu"] - 150) <= 20


def test_top_keeps_the_largest_groups() -> None:
    assert list(counts(opened(spec()).ask("s", top=2, **ASKED))) == ["cold", "flu"]


@pytest.mark.parametrize(
    ("clauses", "is_chosen"), [("LIMIT 2", True), ("LIMIT 9", False), ("ORDER BY diagnosis LIMIT 2", False)]
)
def test_texts_chosen_by_limit_say_what_their_intervals_hold_for(clauses: str, is_chosen: bool) -> None:
    """Texts come largest first, so that LIMIT alone chooses them by their noisy counts."""
    table = opened(spec()).sql(f"SELECT diagnosis, COUNT(*) AS n FROM s GROUP BY diagnosis {clauses}")  # noqa: S608
    assert any("named in advance; ± holds" in line for line in table.warnings) == is_chosen


def test_text_may_be_in_a_column_of_another_name() -> None:
    rows = {"visits": {"ward": WARDS, "icd": DIAGNOSES}}
    found = counts(opened(spec(), rows=rows, columns={"diagnosis": "icd"}).ask("s", **ASKED))
    assert list(found) == ["cold", "flu", "Flu"]


def test_nothing_is_released_if_no_text_is_common() -> None:
    result = opened(spec()).ask("s", where="ward = 'A' AND ward = 'B'", **ASKED)
    assert (result.keys, result.estimates, result.groups) == ((), (), ())
    assert result.rows() == []


def test_answers_do_not_depend_on_the_order_of_rows() -> None:
    rows = {"visits": {"ward": WARDS[::-1], "diagnosis": DIAGNOSES[::-1]}}
    person = {"person": "who", "contribution": 2}
    whose = [str(number // 3) for number in range(len(WARDS))]
    one = {"visits": {**ROWS["visits"], "who": whose}}
    other = {"visits": {**rows["visits"], "who": whose[::-1]}}
    first, second = (opened(spec(), rows=data, **person).ask("s", id="q", **ASKED) for data in (one, other))
    assert first.keys == second.keys
    assert first.estimates == second.estimates


def test_person_counts_at_most_the_contribution() -> None:
    rows = {
        "visits": {
            "ward": ["A"] * 400,
            "diagnosis": ["flu"] * 400,
            "who": ["ann"] * 300 + list(map(str, range(100))),
        }
    }
    result = opened(spec(), rows=rows, person="who", contribution=2).ask("s", **ASKED)
    assert abs(counts(result)["flu"] - 102) <= (result.alpha or 0.0)


def test_texts_without_a_value_are_in_no_group() -> None:
    texts = [None] * 100 + [""] * 100 + ["x" * 65] * 100 + ["é" * 32] * 100 + [" flu"] * 100 + ["flu"] * 100
    rows = {"visits": {"ward": ["A"] * 600, "diagnosis": texts}}
    driver = opened(spec(), stream("l", "visits", "laplace"), rows=rows)
    assert set(driver.ask("s", **ASKED).keys or ()) == {"é" * 32, " flu", "flu"}
    assert abs((driver.ask("l", where="TRUE").estimate or 0.0) - 600) < 20


def test_equal_counts_are_sorted_by_text_and_answers_are_bounded() -> None:
    groups = [ReleasedGroup(b"%05d" % number, 10) for number in range(5000)]
    assert count_fitting_groups(groups) == MAX_KEYS
    wide = [ReleasedGroup(("\u0001" * 200).encode(), 10)] * 400
    assert count_fitting_groups(wide) == MAX_KEY_BYTES // (6 * 200 + 3 + 3 * (2 + 4))


def test_full_answer_fits_the_limit_of_clients() -> None:
    texts = [f"{number:05}".ljust(128, "x") for number in range(4000)]
    cells = [text for text in texts for _ in range(30)]
    rows = {"visits": {"ward": ["A"] * len(cells), "diagnosis": cells}}
    attributes = {"ward": ["A", "B"], "diagnosis": {"kind": "text", "max_length": 128}}
    result = opened(spec(), rows=rows, attributes=attributes).ask("s", **ASKED)
    size = len(result.model_dump_json())
    assert len(result.keys or ()) < len(texts)
    assert 0.8 * MAX_ANSWER_BYTES < size < MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"group_by": ["ward"]}, "group_by: this stream groups by one text attribute; give one of 'diagnosis'"),
        ({"group_by": ["diagnosis", "diagnosis"]}, "group_by: this stream groups by one text attribute"),
        ({"group_by": ["diagnosis", "ward", "ward"]}, "with declared attributes, each once"),
        ({"people": True, **ASKED}, "people: the source declares no person column"),
        ({"where": "ward = 'A'"}, "where: this stream's mechanism does not take it; send group_by"),
        ({**ASKED, "where": "diagnosis = 'flu'"}, "attribute 'diagnosis' is a text, whose values are private"),
        ({**ASKED, "alpha": 3.0}, "alpha: this stream takes no requested error"),
    ],
)
def test_other_questions_are_refused_without_a_charge(asked: dict[str, Any], reason: str) -> None:
    driver = opened(spec())
    with pytest.raises(Rejected) as refused:
        driver.ask("s", **asked)
    assert reason in str(refused.value)
    assert driver.ask("s", **ASKED).index == 0


@pytest.mark.parametrize(
    "asked", [{"where": "diagnosis = 'flu'"}, {"group_by": ["diagnosis"]}, {"sum": "diagnosis"}]
)
def test_other_mechanisms_refuse_texts(asked: dict[str, Any]) -> None:
    driver = opened(stream("s", "visits", "laplace"))
    with pytest.raises(Rejected, match="is a text, whose values are private"):
        driver.ask("s", **asked)


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [
        (
            {"kind": "histogram", "attributes": ["diagnosis"]},
            "mechanism.attributes.0: attribute 'diagnosis' is a text",
        ),
        ({"kind": "noisy_max", "sums": ["diagnosis"]}, "mechanism.sums.0: attribute 'diagnosis' is a text"),
        ({"kind": "unknown_groups"}, "delta: is 0, but releasing a text costs δ"),
    ],
)
def test_openings_that_cannot_keep_texts_private_are_refused(mechanism: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        opened(stream("s", "visits", mechanism=mechanism))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attributes": {"ward": ["A", "B"]}}, "the source has none; declare one"),
        ({"accountant": "zcdp"}, "the accountant 'zcdp' does not add up"),
    ],
)
def test_sources_without_texts_or_with_zcdp_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        opened(spec(), **changes)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"diagnosis": {"kind": "text"}}, "all of them are texts"),
        ({"ward": ["A"], "diagnosis": {"kind": "text", "max_length": 257}}, "give at most 256"),
    ],
)
def test_declarations_of_texts_are_checked(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        opened(attributes=attributes)


def test_extension_of_texts_is_refused() -> None:
    with pytest.raises(Refused, match="unknown_groups has a δ for each answer"):
        opened(spec()).extend("visits", "s", 0.5)


def test_statement_groups_by_a_text() -> None:
    driver = opened(spec(3), stream("l", "visits", "laplace"))
    table = driver.sql(
        "SELECT Diagnosis, COUNT(*) AS n FROM visits WHERE ward = 'A' GROUP BY diagnosis ORDER BY n"
    )
    assert [row["Diagnosis"] for row in table] == ["Flu", "flu", "cold"]
    assert table.columns[:3] == ("Diagnosis", "n", "n ±")
    named = driver.sql("SELECT diagnosis, COUNT(*) FROM s GROUP BY diagnosis ORDER BY diagnosis DESC LIMIT 2")
    assert [row["diagnosis"] for row in named] == ["flu", "cold"]
    assert named.epsilon == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT diagnosis, ward, AVG(ward) FROM s GROUP BY diagnosis, ward", "SELECT the text and one COUNT"),
        ("SELECT ward FROM l GROUP BY ward", "rows are never returned"),
        ("SELECT DISTINCT COUNT(*) FROM s", "DISTINCT cannot be asked"),
        ("SELECT diagnosis, COUNT(*), COUNT(*) AS n FROM s GROUP BY diagnosis", "SELECT the text and one COUNT"),
        ("SELECT AVG(diagnosis) FROM l", "is a text, whose values are private"),
        ("SELECT COUNT(diagnosis) FROM l", "is a text, whose values are private"),
        ("SELECT COUNT(*) FROM l WHERE diagnosis = 'flu'", "is a text, whose values are private"),
        ("SELECT diagnosis, COUNT(*) FROM l GROUP BY diagnosis", "does not group by a text"),
        ("SELECT COUNT(*) FROM s", "does not answer every count"),
    ],
)
def test_statements_about_texts_are_refused(statement: str, reason: str) -> None:
    driver = opened(spec(), stream("l", "visits", "laplace"))
    with pytest.raises(StatementError, match=reason):
        driver.sql(statement)


def test_plan_states_the_rows_that_a_text_needs() -> None:
    driver = opened(spec())
    [grant] = driver.list_streams("visits")
    assert isinstance(grant, GrantRecord)
    assert grant.calibration.kind == "unknown_groups"
    assert grant.calibration.threshold == 15


PAIRS: dict[str, Any] = {"group_by": ["ward", "diagnosis"]}


def pairs(result: Result) -> dict[tuple[Any, ...], float]:
    groups = [tuple(group.values()) for group in result.groups or ()]
    return dict(zip(groups, result.estimates or (), strict=True))


def test_text_is_grouped_with_declared_attributes() -> None:
    result = opened(spec()).ask("s", **PAIRS)
    found = pairs(result)
    assert set(found) == {(ward, text) for ward in "AB" for text in ("cold", "flu", "Flu")}
    assert result.alpha is not None
    for (_, text), number in found.items():
        assert abs(number - {"cold": 250, "flu": 150, "Flu": 100}[text]) <= result.alpha
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert result.keys is None
    assert result.rows()[0]["ward"] in {"A", "B"}
    [alone] = [opened(spec()).ask("s", **ASKED).alpha]
    assert alone is not None
    assert result.alpha >= alone


def test_pairs_without_a_row_are_never_released() -> None:
    rows = {"visits": {"ward": ["A"] * 500 + ["B"] * 500, "diagnosis": ["flu"] * 500 + ["cold"] * 500}}
    for text, ward in (("flu", "A"), ("cold", "B")):
        found = pairs(opened(spec(), rows=rows).ask("s", where=f"ward = '{ward}'", **PAIRS))
        assert set(found) == {(ward, text)}


def test_people_are_counted_once_for_each_text() -> None:
    rows = {
        "visits": {
            "ward": ["A", "B"] * 300,
            "diagnosis": ["flu"] * 400 + ["cold"] * 200,
            "who": [str(number // 2) for number in range(600)],
        }
    }
    driver = opened(spec(3, epsilon=6.0), rows=rows, person="who", contribution=2)
    people = driver.ask("s", people=True, **ASKED)
    assert counts(people)["flu"] == pytest.approx(200, abs=people.alpha or 0.0)
    assert counts(people)["cold"] == pytest.approx(100, abs=people.alpha or 0.0)
    by_ward = driver.ask("s", people=True, **PAIRS)
    assert pairs(by_ward)["A", "flu"] == pytest.approx(200, abs=by_ward.alpha or 0.0)
    table = driver.sql("SELECT diagnosis, COUNT(DISTINCT who) AS n FROM visits GROUP BY diagnosis")
    assert [round(row["n"], -2) for row in table] == [200, 100]


def names_alone(answers: int = 1, **changes: Any) -> dict[str, Any]:
    mechanism = {"kind": "unknown_groups", "answers": answers, "counts": False}
    return stream("n", "visits", mechanism=mechanism, **{"epsilon": 1.0, "delta": 1e-6, **changes})


def test_stream_without_counts_names_texts_alone() -> None:
    result = opened(names_alone()).ask("n", **ASKED)
    assert result.keys == ("Flu", "cold", "flu")
    assert (result.estimates, result.alpha, result.intervals, result.basis) == (None, None, None, "noisy")
    assert [row["diagnosis"] for row in result.rows()] == ["Flu", "cold", "flu"]
    assert "'cold'" in str(result)
    assert result.spent is not None
    assert (result.spent.epsilon, result.spent.delta) == pytest.approx((1.0, 1e-6))


def test_stream_without_counts_names_pairs_alone() -> None:
    result = opened(names_alone()).ask("n", where="ward = 'B'", **PAIRS)
    assert [group["diagnosis"] for group in result.groups or ()] == ["Flu", "cold", "flu"]
    assert {group["ward"] for group in result.groups or ()} == {"B"}


def test_selection_counts_people_and_not_their_rows() -> None:
    rows = {
        "visits": {
            "ward": ["A"] * 600,
            "diagnosis": ["flu"] * 300 + ["cold"] * 300,
            "who": [str(number // 100) for number in range(300)] + [str(number) for number in range(300, 600)],
        }
    }
    result = opened(names_alone(), rows=rows, person="who", contribution=200).ask("n", **ASKED)
    # 3 people have 300 rows of flu; 300 people have one row of cold each.
    assert result.keys in {("cold",), ()}


@pytest.mark.parametrize("asked", [{"people": True, **ASKED}, {**ASKED, "top": 2}])
def test_stream_without_counts_refuses_questions_about_counts(asked: dict[str, Any]) -> None:
    rows = {"visits": {**ROWS["visits"], "who": [str(number) for number in range(len(WARDS))]}}
    with pytest.raises(Rejected, match="the stream releases no counts"):
        opened(names_alone(), rows=rows, person="who").ask("n", **asked)


def test_statement_lists_texts() -> None:
    driver = opened(names_alone(4), spec(4))
    for statement in (
        "SELECT DISTINCT diagnosis FROM n ORDER BY diagnosis",
        "SELECT diagnosis FROM n GROUP BY diagnosis ORDER BY 1",
        "SELECT DISTINCT diagnosis FROM s WHERE ward = 'A' ORDER BY diagnosis",
    ):
        assert [dict(row) for row in driver.sql(statement)] == [
            {"diagnosis": text} for text in ("Flu", "cold", "flu")
        ]
    both = driver.sql(
        "SELECT ward, diagnosis, COUNT(*) AS n FROM s GROUP BY ward, diagnosis ORDER BY ward, diagnosis"
    )
    assert [(row["ward"], row["diagnosis"]) for row in both] == [
        (ward, text) for ward in "AB" for text in ("Flu", "cold", "flu")
    ]
    with pytest.raises(StatementError, match="names texts and releases no counts"):
        driver.sql("SELECT diagnosis, COUNT(*) FROM n GROUP BY diagnosis")
