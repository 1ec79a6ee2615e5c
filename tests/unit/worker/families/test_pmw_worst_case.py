"""Streams of multiplicative weights, planned for the worst case: their answers, charges, records and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from schemas import Answer, Pmw
from sotto import Driver, Refused
from stream.worker.families import family, hypothesis_family
from stream.worker.stream_records import UPDATE_PREFIX
from tests.builders import installation, source, stream

ROWS = 4000
AGES, SEXES = 20, ("F", "M")
SIZES = {"age": AGES, "sex": len(SEXES)}


def people() -> dict[str, list[Any]]:
    """Return a table far from uniform: most people are young, and most young people are women."""
    generator = np.random.default_rng(7)
    ages = np.minimum(generator.geometric(0.35, ROWS) - 1, AGES - 1)
    women = generator.random(ROWS) < np.where(ages < 3, 0.9, 0.3)
    return {"age": ages.tolist(), "sex": ["F" if w else "M" for w in women], "town": (ages % 3).tolist()}


PEOPLE = people()


def spec(name: str = "pmw", **more: Any) -> dict[str, Any]:
    mechanism = {
        "kind": "pmw",
        "attributes": ["age", "sex"],
        "worst_case": True,
        "rows": ROWS + 500,
        **more.pop("mechanism", {}),
    }
    fields: dict[str, Any] = {"epsilon": 20.0, "expected_queries": 500, **more}
    return stream(name, "people", mechanism=mechanism, **fields)


def driver(*specs: dict[str, Any], neighbors: str = "add-remove") -> Driver:
    """Return an installation with the table of people and these streams."""
    attributes = {"age": AGES, "sex": list(SEXES), "town": 3}
    table = source("people", "table", neighbors=neighbors, epsilon=500.0, delta=1e-4, attributes=attributes)
    return installation(*specs, sources=[table], rows={"people": PEOPLE})


def questions(count: int, seed: int = 1, stream: str = "pmw") -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    asked: list[dict[str, Any]] = []
    for number in range(count):
        low, high = sorted(generator.integers(0, AGES, 2).tolist())
        where = f"age BETWEEN {low} AND {high}"
        if generator.random() < 0.5:
            where += f" AND sex = '{SEXES[int(generator.integers(2))]}'"
        asked.append({"id": f"q{number}", "stream": stream, "where": where})
    return asked


def truth(asked: Iterable[dict[str, Any]]) -> list[int]:
    """Return the true counts, by plain loops over the rows."""
    counts = []
    for one in asked:
        condition = one["where"].replace("BETWEEN", "in range(").replace(" AND sex = ", ") and sex == ")
        low, high = condition.split("range(")[1].split(")")[0].split(" AND ")
        sex = condition.split("sex == ")[1].strip("'") if "sex" in condition else None
        counts.append(
            sum(
                int(low) <= age <= int(high) and sex in (None, own)
                for age, own in zip(PEOPLE["age"], PEOPLE["sex"], strict=True)
            )
        )
    return counts


def bases(answers: Sequence[Answer]) -> list[str | None]:
    return [answer.basis for answer in answers]


def updates_in(made: Driver) -> list[dict[str, Any]]:
    records = [one for one in made.records(made.topics.state) if (one.key or b"").startswith(UPDATE_PREFIX)]
    return [json.loads(one.value or b"") for one in records]


def test_worst_case_answers_are_within_their_alpha() -> None:
    asked = questions(300)
    answers = driver(spec()).ask_many(asked)
    assert {"noisy", "hypothesis"} == set(bases(answers))
    for answer, count in zip(answers, truth(asked), strict=True):
        assert answer.outcome == "answer"
        assert answer.estimate is not None
        assert answer.alpha is not None
        assert abs(answer.estimate - count) <= answer.alpha < ROWS / 2


def test_worst_case_charges_corrections_alone() -> None:
    """The answer says how many are left."""
    answers = driver(spec()).ask_many(questions(300))
    before = answers[0]
    for answer in answers[1:]:
        assert before.spent is not None
        assert answer.spent is not None
        assert before.tops_left is not None
        assert answer.tops_left is not None
        if answer.basis == "noisy":
            assert answer.spent.epsilon > before.spent.epsilon
            assert answer.tops_left == before.tops_left - 1
        else:
            assert (answer.spent, answer.tops_left) == (before.spent, before.tops_left)
        before = answer


def test_repeated_question_on_an_unchanged_hypothesis_is_free() -> None:
    made = driver(spec())
    made.ask_many(questions(200))
    first = made.ask_many([{"id": "a", "stream": "pmw", "where": "age >= 5 AND sex = 'F'"}])[0]
    made.crash()
    again = made.ask_many(
        [{"id": f"b{n}", "stream": "pmw", "where": "sex IN ('F') AND NOT age < 5"} for n in range(300)]
    )
    assert first.basis == "hypothesis"
    assert {(one.basis, one.estimate, one.alpha, one.spent, one.tops_left) for one in again} == {
        (first.basis, first.estimate, first.alpha, first.spent, first.tops_left)
    }


def test_worst_case_answers_do_not_depend_on_crashes_and_batches() -> None:
    asked = questions(240)
    whole = driver(spec()).ask_many(asked)
    parts = driver(spec())
    pieces: list[Answer] = []
    for start in range(0, len(asked), 40):
        pieces += parts.ask_many(asked[start : start + 40])
        parts.crash()
    assert pieces == whole


@pytest.mark.parametrize(
    ("module", "name"), [(hypothesis_family, "HYPOTHESIS_CACHE_BYTES"), (family, "STATE_CACHE_BYTES")]
)
def test_evicted_hypotheses_and_states_are_rebuilt_equal(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    asked = questions(120)
    whole = driver(spec()).ask_many(asked)
    monkeypatch.setattr(module, name, 0)
    forgetful = driver(spec())
    assert [forgetful.ask_many([one])[0] for one in asked] == whole


def test_aborted_batch_of_worst_case_is_answered_with_the_same_bytes() -> None:
    made = driver(spec())
    made.ask_many(questions(30, seed=2))
    answers = made.ask_many(questions(200))
    assert "noisy" in bases(answers)
    assert made.redeliver() == answers


def test_worst_case_changelog_has_a_small_record_for_each_update() -> None:
    """It does not contain the hypothesis."""
    made = driver(spec())
    answers = made.ask_many(questions(300))
    written = updates_in(made)
    asked = [one["where"] for one in questions(300)]
    assert [one["terms"] for one in written] == [
        [{"where": asked[place]}] for place, basis in enumerate(bases(answers)) if basis == "noisy"
    ]
    assert [one["number"] for one in written] == list(range(len(written)))
    assert max(len(record.value or b"") for record in made.records(made.topics.state)) < 300


def test_worst_case_streams_of_a_partition_keep_separate_hypotheses() -> None:
    asked = questions(150)
    names = ("one", "two", "three")
    together = driver(*(spec(name) for name in names)).ask_many(
        {**one, "stream": name} for one in asked for name in names
    )
    noisy = {
        name: [one.estimate for one in together if (one.stream, one.basis) == (name, "noisy")] for name in names
    }
    assert len({tuple(found) for found in noisy.values()}) == len(names)
    for name in names:
        own = [one.estimate for one in together if one.stream == name]
        assert all(abs(x - y) < ROWS / 2 for x, y in zip(own, truth(asked), strict=True) if x is not None)


def test_worst_case_stream_halts_after_its_last_update() -> None:
    # The table has far more rows than the plan assumes, so errors are larger than planned.
    made = driver(spec(mechanism={"rows": 100, "gap": 0.75, "beyond": "end"}))
    answers = made.ask_many(questions(200))
    cutoff = bases(answers).count("noisy")
    assert cutoff == 4
    halted = [answer for answer in answers if answer.outcome == "halted"]
    assert halted == answers[-len(halted) :]
    assert halted[0].reason == f"exhausted: all {cutoff} updates of the hypothesis are used"
    assert len(updates_in(made)) == cutoff
    made.crash()
    assert made.ask_many([{"id": "late", "stream": "pmw", "where": "TRUE"}])[0].outcome == "halted"


def test_worst_case_fractions_divide_by_noisy_rows_within_alpha() -> None:
    made = driver(spec())
    asked = questions(100)
    answers = made.ask_many({**one, "fraction": True} for one in asked)
    control = json.loads(made.records(made.topics.control)[-1].value or b"")
    assert control["calibration"]["epsilon_rows"] > 0
    for answer, count in zip(answers, truth(asked), strict=True):
        assert answer.estimate is not None
        assert answer.alpha is not None
        assert abs(answer.estimate - count / ROWS) <= answer.alpha < 0.6


def test_number_of_rows_is_public_and_exact_under_replace() -> None:
    made = driver(spec(mechanism={"rows": ROWS}), neighbors="replace")
    assert made.ask_many([{"id": "all", "stream": "pmw", "where": "TRUE"}])[0].estimate == ROWS


def test_weighted_sums_are_within_their_alpha() -> None:
    made = driver(spec())
    terms = [
        {"where": "age < 3", "weight": 0.5},
        {"where": "sex = 'F'", "weight": 0.25},
        {"where": "age < 3 AND sex = 'M'", "weight": -0.25},
    ]
    answer = made.ask_many([{"id": "sum", "stream": "pmw", "terms": terms}])[0]
    young = [age < 3 for age in PEOPLE["age"]]
    women = [sex == "F" for sex in PEOPLE["sex"]]
    exact = sum(0.5 * y + 0.25 * w - 0.25 * (y and not w) for y, w in zip(young, women, strict=True))
    assert answer.estimate is not None
    assert answer.alpha is not None
    assert abs(answer.estimate - exact) <= answer.alpha
    assert made.redeliver() == [answer]


def test_equivalent_terms_to_worst_case_share_their_noise() -> None:
    made = driver(spec())
    asked = questions(150)
    once = driver(spec()).ask_many(asked)
    split = made.ask_many(
        {
            "id": one["id"],
            "stream": "pmw",
            "terms": [
                {"where": one["where"], "weight": 0.25},
                {"where": "age = 1", "weight": 0.0},
                {"where": one["where"], "weight": 0.75},
            ],
        }
        for one in asked
    )
    assert [one.estimate for one in split] == [one.estimate for one in once]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (
            {"value": 3.0},
            "malformed: value: this stream's mechanism does not take it; send where, fraction, terms",
        ),
        ({"where": "town = 1"}, "predicate: where: attribute 'town' is not in the stream's mechanism.attributes"),
        ({"where": "age >"}, "predicate: where: "),
        ({"where": "age > 3", "threshold": 5.0}, "malformed: threshold: "),
        ({"terms": [{"where": "age > 3"}, {"where": "town = 1"}]}, "predicate: terms[1].where: attribute 'town'"),
        (
            {"terms": [{"where": "age > 3", "weight": 0.1}]},
            "malformed: terms[0].weight: weights are multiples of 1/1024; round it to one",
        ),
        (
            {"terms": [{"where": "age > 3"}, {"where": "sex = 'F'", "weight": 0.5}]},
            "malformed: terms: some row's weights add up to less than 0 or more than 1; scale them",
        ),
        (
            {"terms": [{"where": "age > 3", "weight": -0.5}]},
            "malformed: terms: some row's weights add up to less than 0 or more than 1; scale them, or add a term",
        ),
        (
            {"cells": [{"at": {"age": 1, "sex": "F"}}]},
            "malformed: cells: this stream's mechanism does not take it",
        ),
    ],
)
def test_invalid_question_to_worst_case_is_rejected_with_the_remedy(question: dict[str, Any], reason: str) -> None:
    """It costs nothing."""
    made = driver(spec())
    answer = made.ask_many([{"id": "bad", "stream": "pmw", **question}])[0]
    assert answer.outcome == "rejected"
    assert answer.reason is not None
    assert answer.reason.startswith(reason)
    assert made.ask_many([{"id": "good", "stream": "pmw", "where": "TRUE"}])[0].index == 0


def test_terms_may_have_weights_beyond_one_if_their_sum_does_not() -> None:
    terms = [{"where": "age < 10", "weight": 2.0}, {"where": "age < 10 AND TRUE", "weight": -1.5}]
    assert driver(spec()).ask_many([{"id": "ok", "stream": "pmw", "terms": terms}])[0].outcome == "answer"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": None}, "mechanism.rows: give a public number"),
        ({"attributes": ["age", "height"]}, "mechanism.attributes: name 2 is no attribute of the source"),
        ({"attributes": ["age", "age"]}, "mechanism.attributes: the list contains an attribute twice"),
    ],
)
def test_invalid_worst_case_opening_is_refused_with_the_remedy(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        driver(spec(mechanism=changed))


def test_worst_case_accepts_the_textbook_constants() -> None:
    made = driver(spec(calibration="textbook", epsilon=100.0))
    answer = made.ask_many([{"id": "all", "stream": "pmw", "where": "age < 4"}])[0]
    assert answer.alpha is not None
    assert answer.outcome == "answer"


def test_worst_case_stream_closed_early_refunds_the_unspent_amount() -> None:
    made = driver(spec())
    answers = made.ask_many(questions(300))
    spent = answers[-1].spent
    assert spent is not None
    assert spent.epsilon < 20.0
    made.close("people", "pmw")
    assert made.budget("people").spent.epsilon == pytest.approx(spent.epsilon)


def test_strong_corrections_are_recorded_and_replayed() -> None:
    made = driver(spec(epsilon=200.0, mechanism={"gap": 0.03}))
    asked = questions(200)
    answers = made.ask_many(asked[:100])
    assert max(one.get("times", 1) for one in updates_in(made)) > 1
    made.crash()
    later = made.ask_many(asked[100:])
    assert [*answers, *later] == driver(spec(epsilon=200.0, mechanism={"gap": 0.03})).ask_many(asked)


@pytest.mark.parametrize(
    ("calibration", "mechanism"),
    [("best", {"rows": 100, "gap": 0.75}), ("textbook", {"worst_case": False, "rows": 20, "gap": 0.9})],
)
def test_hypothesis_answers_free_after_its_last_update(calibration: str, mechanism: dict[str, Any]) -> None:
    made = driver(spec(mechanism=mechanism, calibration=calibration))
    answers = made.ask_many(questions(900))
    last = max(place for place, answer in enumerate(answers) if answer.basis == "noisy")
    rest = answers[last + 1 :]
    assert answers[last].tops_left == 0
    assert {(one.outcome, one.basis, one.alpha, one.tops_left) for one in rest} == {
        ("answer", "hypothesis", None, 0)
    }
    assert {one.spent for one in rest} == {answers[last].spent}
    assert all(one.estimate is not None and one.interval is None for one in rest)
    made.crash()
    assert made.redeliver() == answers


def test_streams_that_were_opened_to_end_still_end() -> None:
    """Definitions record the choice, so that the default of a later version does not change them."""
    definition = Pmw.model_validate_json('{"kind": "pmw", "attributes": ["age"], "beyond": "end"}')
    assert definition.beyond == "end"
    assert b'"beyond":"unpromised"' in Pmw(kind="pmw", attributes=("age",)).model_dump_json().encode()
