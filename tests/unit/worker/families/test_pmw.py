"""Streams that answer from an estimate: their answers, promises, charges, records and refusals."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from schemas import Answer
from sotto import Driver, Refused
from stream.privacy.mechanisms import estimator, measurements
from stream.worker.families import estimate_family, family
from stream.worker.stream_records import UPDATE_PREFIX
from tests.builders import KEY, OTHER_KEY, installation, parse_stream, source, stream
from tests.unit.people import AGES, PEOPLE, ROWS, SEXES, TABLE, TOWNS, Row

CACHE_BOUNDS = {
    estimate_family: ("ESTIMATE_CACHE_BYTES", "EXACT_COUNT_CACHE_BYTES", "QUESTION_CACHE_BYTES"),
    family: ("STATE_CACHE_BYTES",),
    estimator: ("_FREE_ANSWER_CACHE_BYTES", "_MAX_CACHED_BOUNDS"),
    measurements: ("_MAX_CACHED_SETS",),
}


def spec(name: str = "pmw", **more: Any) -> dict[str, Any]:
    mechanism = {"kind": "pmw", "attributes": ["age", "sex", "town"], **more.pop("mechanism", {})}
    fields: dict[str, Any] = {"epsilon": 8.0, "expected_queries": 500, **more}
    return stream(name, "people", mechanism=mechanism, **fields)


def driver(*specs: dict[str, Any], neighbors: str = "add-remove", table: Any = None) -> Driver:
    """Return an installation with the table of people and these streams."""
    attributes = {
        "age": {"kind": "integers", "minimum": 0, "maximum": AGES - 1},
        "sex": list(SEXES),
        "town": TOWNS,
    }
    people = source("people", "table", neighbors=neighbors, epsilon=500.0, delta=1e-4, attributes=attributes)
    return installation(*specs, sources=[people], rows={"people": table or PEOPLE})


Holds = Callable[[Row], bool]


def conditions(count: int, seed: int = 1) -> list[tuple[str, Holds]]:
    """Return random ranges of age, some within one sex, town or both, as predicates and as plain functions."""
    generator = np.random.default_rng(seed)
    made: list[tuple[str, Holds]] = []
    for _ in range(count):
        low, high = sorted(generator.integers(0, AGES, 2).tolist())
        sex = SEXES[int(generator.integers(2))] if generator.random() < 0.6 else None
        town = int(generator.integers(TOWNS)) if generator.random() < 0.6 else None
        where = f"age BETWEEN {low} AND {high}"
        where += f" AND sex = '{sex}'" if sex else ""
        where += f" AND town = {town}" if town is not None else ""

        def holds(row: Row, low: int = low, high: int = high, sex: Any = sex, town: Any = town) -> bool:
            return low <= row["age"] <= high and sex in (None, row["sex"]) and town in (None, row["town"])

        made.append((where, holds))
    return made


def as_queries(made: Sequence[tuple[str, Holds]], stream: str = "pmw") -> list[dict[str, Any]]:
    return [{"id": f"q{place}", "stream": stream, "where": where} for place, (where, _) in enumerate(made)]


def counts(made: Sequence[tuple[str, Holds]]) -> list[int]:
    return [sum(map(holds, TABLE)) for _, holds in made]


def within(answer: Answer, exact: float) -> bool:
    assert answer.estimate is not None
    assert answer.alpha is not None
    return abs(answer.estimate - exact) <= answer.alpha + 1e-9


def updates_in(made: Driver) -> list[dict[str, Any]]:
    records = [one for one in made.records(made.topics.state) if (one.key or b"").startswith(UPDATE_PREFIX)]
    return [json.loads(one.value or b"") for one in records]


NOTHING_FIRST = {"warm_start": 0, "updates": 12}


@pytest.mark.parametrize("mechanism", [{}, {"warm_start": 1}, NOTHING_FIRST], ids=["auto", "one", "nothing"])
def test_pmw_answers_are_within_their_alpha(mechanism: dict[str, Any]) -> None:
    made = conditions(300)
    answers = driver(spec(mechanism=mechanism)).ask_many(as_queries(made))
    assert {answer.outcome for answer in answers} == {"answer"}
    promised = [answer for answer in answers if answer.alpha is not None]
    assert len(promised) > 200
    assert {answer.basis for answer in promised} <= {"measured", "hypothesis", "independence", "noisy"}
    pairs = zip(answers, counts(made), strict=True)
    assert all(within(answer, exact) for answer, exact in pairs if answer.alpha is not None)
    assert max(answer.alpha or 0.0 for answer in promised) < ROWS / 10


def test_pmw_measures_a_whole_marginal_once() -> None:
    """Later questions about it are free."""
    made = driver(spec(mechanism=NOTHING_FIRST))
    first = made.ask_many([{"id": "a", "stream": "pmw", "where": "age < 3 AND sex = 'F'"}])[0]
    assert first.basis == "noisy"
    assert updates_in(made)[0]["attributes"] == ["age", "sex"]
    others = [{"id": f"b{age}", "stream": "pmw", "where": f"age = {age} AND sex = 'M'"} for age in range(AGES)]
    answers = made.ask_many(others)
    assert {answer.basis for answer in answers} == {"measured"}
    assert {answer.spent for answer in answers} == {first.spent}
    for age, answer in enumerate(answers):
        assert within(answer, sum(row["age"] == age and row["sex"] == "M" for row in TABLE))


def test_pmw_charges_the_opening_and_tops_alone() -> None:
    """The opening is charged with the first answer."""
    answers = driver(spec(mechanism={"warm_start": 1, "updates": 12})).ask_many(as_queries(conditions(200)))
    before = answers[0]
    assert before.spent is not None
    assert before.spent.epsilon > 0.2 * 8.0
    assert "noisy" in {answer.basis for answer in answers}
    for answer in answers[1:]:
        assert before.tops_left is not None
        assert answer.spent is not None
        if answer.basis == "noisy":
            assert answer.spent.epsilon > before.spent.epsilon
            assert answer.tops_left == before.tops_left - 1
        else:
            assert (answer.spent, answer.tops_left) == (before.spent, before.tops_left)
        assert answer.spent.epsilon <= 8.0
        before = answer
        assert before.spent is not None


def test_repeated_question_to_pmw_gets_the_same_answer_free() -> None:
    made = driver(spec())
    made.ask_many(as_queries(conditions(100)))
    first = made.ask_many([{"id": "a", "stream": "pmw", "where": "age >= 5 AND sex = 'F' AND town = 1"}])[0]
    made.crash()
    again = made.ask_many(
        [{"id": f"b{n}", "stream": "pmw", "where": "sex IN ('F') AND NOT age < 5 AND town = 1"} for n in range(50)]
    )
    assert {(one.estimate, one.alpha, one.spent) for one in again} == {(first.estimate, first.alpha, first.spent)}


def test_pmw_answers_do_not_depend_on_crashes_batches_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = as_queries(conditions(120))
    mechanism = {"warm_start": 1, "updates": 12}
    whole = driver(spec(mechanism=mechanism)).ask_many(questions)
    assert "noisy" in {answer.basis for answer in whole}
    parts = driver(spec(mechanism=mechanism))
    pieces: list[Answer] = []
    for start in range(0, len(questions), 17):
        pieces += parts.ask_many(questions[start : start + 17])
        parts.crash()
    assert pieces == whole
    for module, names in CACHE_BOUNDS.items():
        for name in names:
            monkeypatch.setattr(module, name, 0)
    forgetful = driver(spec(mechanism=mechanism))
    assert [*forgetful.ask_many(questions[:30]), *forgetful.ask_many(questions[30:])] == whole


def test_aborted_batch_is_answered_with_the_same_bytes() -> None:
    made = driver(spec(mechanism=NOTHING_FIRST))
    made.ask_many(as_queries(conditions(5, seed=2)))
    answers = made.ask_many(as_queries(conditions(60)))
    assert "noisy" in {answer.basis for answer in answers}
    assert made.redeliver() == answers


def test_pmw_changelog_has_a_small_record_for_each_measurement() -> None:
    """It does not contain the estimate."""
    made = driver(spec(mechanism=NOTHING_FIRST))
    answers = made.ask_many(as_queries(conditions(150)))
    written = updates_in(made)
    assert len(written) == sum(answer.basis == "noisy" for answer in answers)
    assert [one["number"] for one in written] == list(range(len(written)))
    assert max(len(record.value or b"") for record in made.records(made.topics.state)) < 300


def test_pmw_stream_that_lost_a_measurement_does_not_answer() -> None:
    made = driver(spec(mechanism=NOTHING_FIRST))
    made.ask_many(as_queries(conditions(20)))
    log = made._logs[made.topics.state, 0]
    log[:] = [record for record in log if not (record.key or b"").startswith(UPDATE_PREFIX)]
    made.crash()
    late = made.ask_many([{"id": "late", "stream": "pmw", "where": "TRUE"}])[0]
    assert late.outcome == "halted"
    assert late.reason is not None
    assert "changelog lacks updates" in late.reason


def test_pmw_stream_ends_after_its_last_top_on_request() -> None:
    made = driver(spec(mechanism={"warm_start": 0, "updates": 2, "beyond": "end"}))
    answers = made.ask_many(as_queries(conditions(100)))
    assert sum(answer.basis == "noisy" for answer in answers) == 2
    assert answers[-1].outcome == "halted"
    assert answers[-1].reason == "exhausted: all 2 measurements of the estimate are made"


def test_pmw_question_after_the_last_top_gets_a_free_number() -> None:
    """By default, the stream does not end: later answers have no promise and cost nothing."""
    made = driver(spec(mechanism={"warm_start": 0, "updates": 2}))
    answers = made.ask_many(as_queries(conditions(100)))
    assert sum(answer.basis == "noisy" for answer in answers) == 2
    last = max(place for place, answer in enumerate(answers) if answer.basis == "noisy")
    assert {answer.outcome for answer in answers} == {"answer"}
    assert {answer.spent for answer in answers[last:]} == {answers[last].spent}
    unpromised = [answer for answer in answers[last + 1 :] if answer.basis == "hypothesis"]
    assert unpromised
    assert all(answer.alpha is None and answer.estimate is not None for answer in unpromised)
    made.crash()
    assert made.redeliver() == answers
    made.close("people", "pmw")
    assert made.budget("people").spent.epsilon == pytest.approx(8.0)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("mechanism", [{}, NOTHING_FIRST], ids=["auto", "nothing"])
def test_pmw_answers_of_every_form_are_within_their_alpha(neighbors: str, mechanism: dict[str, Any]) -> None:
    made = driver(spec(mechanism=mechanism, epsilon=20.0), neighbors=neighbors)
    women = [row for row in TABLE if row["sex"] == "F"]
    old = [row for row in TABLE if row["age"] >= 4]
    exact = {
        "sum": sum(row["age"] for row in women),
        "all": sum(row["age"] for row in TABLE),
        "mean": sum(row["age"] for row in women) / len(women),
        "fraction": len(women) / ROWS,
        "terms": sum(0.5 * (row["age"] < 3) + 0.25 * (row["sex"] == "F") for row in TABLE),
    }
    questions: list[dict[str, Any]] = [
        {"id": "sum", "sum": "age", "where": "sex = 'F'"},
        {"id": "all", "sum": "age"},
        {"id": "mean", "mean": "age", "where": "sex = 'F'"},
        {"id": "fraction", "where": "sex = 'F'", "fraction": True},
        {
            "id": "terms",
            "terms": [{"where": "age < 3", "weight": 0.5}, {"where": "sex = 'F'", "weight": 0.25}],
        },
        {"id": "groups", "group_by": ["town", "sex"], "where": "age >= 4"},
    ]
    answers = made.ask_many({**one, "stream": "pmw"} for one in questions * 2)
    for answer in answers:
        if answer.id == "groups":
            cells = [
                sum(row["town"] == town and row["sex"] == sex for row in old)
                for town in range(TOWNS)
                for sex in SEXES
            ]
            assert answer.estimates is not None
            assert answer.alpha is not None
            errors = [abs(estimate - true) for estimate, true in zip(answer.estimates, cells, strict=True)]
            assert max(errors) <= answer.alpha < ROWS
        else:
            assert within(answer, exact[answer.id])
    assert made.redeliver() == answers


def test_pmw_group_by_costs_one_top_for_any_number_of_cells() -> None:
    made = driver(spec(mechanism=NOTHING_FIRST))
    answer = made.ask_many([{"id": "g", "stream": "pmw", "group_by": ["age", "town"]}])[0]
    assert (answer.basis, len(answer.estimates or ())) == ("noisy", AGES * TOWNS)
    assert len(updates_in(made)) == 1


def test_pmw_accepts_many_attributes_with_few_per_question() -> None:
    wide = {f"a{place}": [(row * (place + 3) + row // 7) % 50 for row in range(500)] for place in range(12)}
    made = Driver(KEY, partitions=1)
    attributes = dict.fromkeys(wide, 50)
    made.register(source("wide", "table", epsilon=50.0, path="wide.csv", attributes=attributes), table=wide)
    mechanism = {"kind": "pmw", "attributes": list(wide)}
    made.open(stream("wide", "wide", mechanism=mechanism, epsilon=20.0, expected_queries=50))
    good = made.ask_many([{"id": "3", "stream": "wide", "where": "a0 < 9 AND a5 = 3 AND a11 > 4"}])[0]
    assert good.outcome == "answer"
    columns = zip(wide["a0"], wide["a5"], wide["a11"], strict=True)
    assert within(good, sum(a < 9 and b == 3 and c > 4 for a, b, c in columns))
    where = " AND ".join(f"a{place} < 9" for place in range(4))
    large = made.ask_many([{"id": "4", "stream": "wide", "where": where}])[0]
    assert large.outcome == "rejected"
    assert large.reason is not None
    assert large.reason.startswith(
        "malformed: where: the attributes named have more than 1048576 cells together; ask"
    )


def test_pmw_marginals_have_twice_the_noise_under_replace() -> None:
    """The number of rows is public there."""
    made = driver(spec(), neighbors="replace")
    control = json.loads(made.records(made.topics.control)[-1].value or b"")["calibration"]
    assert (control["epsilon_rows"], control["marginal_sensitivity"]) == (0.0, 2)


def test_equivalent_terms_share_their_noise() -> None:
    made = conditions(60)
    once = driver(spec(mechanism=NOTHING_FIRST)).ask_many(as_queries(made))
    halves = driver(spec(mechanism=NOTHING_FIRST)).ask_many(
        {
            "id": f"q{place}",
            "stream": "pmw",
            "terms": [
                {"where": where, "weight": 0.25},
                {"where": "age = 1", "weight": 0.0},
                {"where": where, "weight": 0.75},
            ],
        }
        for place, (where, _) in enumerate(made)
    )
    assert [one.estimate for one in halves] == [one.estimate for one in once]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (
            {"value": 3.0},
            "malformed: value: this stream's mechanism does not take it; send where, fraction, terms, sum",
        ),
        ({"where": "age >"}, "predicate: where: "),
        ({"where": "age > 3", "threshold": 5.0}, "malformed: threshold: "),
        (
            {"terms": [{"where": "age > 3", "weight": 0.1}]},
            "malformed: terms[0].weight: weights are multiples of 1/1024",
        ),
        (
            {"terms": [{"where": "age > 3", "weight": -0.5}]},
            "malformed: terms: some row's weights add up to less than 0",
        ),
        ({"sum": "sex"}, "malformed: sum: attribute 'sex' has neither integers nor decimals; declared are 'age'"),
        (
            {"mean": "height"},
            "malformed: mean: this name is not in the stream's mechanism.attributes, which are 'age'",
        ),
        ({"group_by": ["sex", "sex"]}, "malformed: group_by: an attribute is named twice; name it once"),
    ],
)
def test_invalid_question_to_pmw_is_rejected_with_the_remedy(question: dict[str, Any], reason: str) -> None:
    """It costs nothing."""
    made = driver(spec())
    answer = made.ask_many([{"id": "bad", "stream": "pmw", **question}])[0]
    assert answer.outcome == "rejected"
    assert answer.reason is not None
    assert answer.reason.startswith(reason)
    assert made.ask_many([{"id": "good", "stream": "pmw", "where": "TRUE"}])[0].index == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gap": 0.1}, "mechanism.rows: missing, but gap is a share of the rows"),
        ({"worst_case": True}, "mechanism.rows: give a public number"),
        ({"attributes": ["age", "height"]}, "mechanism.attributes: name 2 is no attribute of the source"),
        ({"attributes": ["age", "age"]}, "mechanism.attributes: the list contains an attribute twice"),
    ],
)
def test_invalid_pmw_opening_is_refused_with_the_remedy(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        driver(spec(mechanism=changed))


def test_pmw_streams_of_a_partition_keep_separate_measurements() -> None:
    names = ("one", "two")
    made = conditions(60)
    together = driver(*(spec(name, mechanism=NOTHING_FIRST) for name in names)).ask_many(
        one for pair in zip(*(as_queries(made, name) for name in names), strict=True) for one in pair
    )
    noisy = [[one.estimate for one in together if (one.stream, one.basis) == (name, "noisy")] for name in names]
    assert noisy[0] != noisy[1]


def test_pmw_specification_accepts_updates_without_warm_start() -> None:
    made = parse_stream(stream("s", "t", "pmw", mechanism={"attributes": ["a"], "updates": 9}))
    assert made.mechanism.model_dump()["warm_start"] == "auto"


@pytest.mark.parametrize(("count", "size"), [(18, 2), (9, 4)])
def test_questions_over_many_small_attributes_need_little_memory(count: int, size: int) -> None:
    """Cumulated sums over 18 attributes with two values would have 1,478 numbers per cell."""
    names = [f"a{number}" for number in range(count)]
    random = np.random.default_rng(3)
    rows = {name: random.integers(0, size, 300) for name in names}
    driver = Driver(OTHER_KEY)
    driver.register(source("wide", "table", path="wide.csv", attributes=dict.fromkeys(names, size)), rows)
    mechanism = {"kind": "pmw", "attributes": names, "warm_start": 0}
    driver.open(stream("s", "wide", mechanism=mechanism, epsilon=5.0, expected_queries=10))
    every, some = (joint.join(f"{name} = 1" for name in names) for joint in (" AND ", " OR "))
    tracemalloc.start()
    try:
        answers = driver.ask_many(
            [
                {"id": "every", "stream": "s", "where": every},
                {"id": "some", "stream": "s", "where": some},
                {
                    "id": "terms",
                    "stream": "s",
                    "terms": [{"where": some, "weight": 0.5}, {"where": every, "weight": 0.5}],
                },
                {"id": "sum", "stream": "s", "sum": "a0", "where": some},
            ]
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {answer.outcome for answer in answers} == {"answer"}
    assert peak < 200 * 8 * size**count
