"""Claims that hold for a stream of every mechanism."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from schemas import Answer, StreamIdentity, StreamSpec
from sotto import Driver, Refused
from stream.privacy.ledger.grants import Claim, Grant
from tests.builders import KEY, stream
from tests.unit.mechanisms import AGES, KINDS, SEXES, SOURCES, TOWNS, Kind, ask, driver_with

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_every_valid_question_is_answered_until_the_grant_is_used(kind: Kind) -> None:
    answers = ask(driver_with(kind), kind.questions)
    given = [answer for answer in answers if answer.index is not None]
    assert [answer.index for answer in given] == list(range(len(given)))
    assert {answer.outcome for answer in given} <= {"above", "below", "answer"}
    assert all(answer.outcome == "halted" for answer in answers[len(given) :])
    if len(given) < len(answers):
        assert given[-1].tops_left == 0


@every_kind
def test_spent_amount_grows_with_charged_answers_within_the_grant(kind: Kind) -> None:
    driver = driver_with(kind)
    given = [
        answer for answer in ask(driver, kind.questions) if answer.spent is not None and answer.index is not None
    ]
    granted = driver.budget(kind.source).granted.epsilon
    spent = [answer.spent.epsilon for answer in given if answer.spent is not None]
    assert spent[0] > 0
    assert spent == sorted(spent)
    assert spent[-1] <= granted + 1e-12
    for (before, after), (first, second) in zip(pairwise(spent), pairwise(given), strict=True):
        # A stream that uses δ counts as fully spent from its first answer on.
        assert (after > before) <= (first.tops_left != second.tops_left)
    assert driver.budget(kind.source).spent.epsilon == pytest.approx(spent[-1], abs=1e-11)


@every_kind
def test_invalid_question_is_rejected_by_field_without_a_charge(kind: Kind) -> None:
    driver = driver_with(kind)
    rejected, answered = ask(driver, [kind.wrong, kind.questions[0]])
    assert rejected.outcome == "rejected"
    assert rejected.spent is None
    assert rejected.reason is not None
    field_of_question = next(iter(kind.wrong))
    assert f"{field_of_question}" in rejected.reason
    assert answered.index == 0
    other = driver_with(kind)
    assert ask(other, [kind.questions[0]])[0].spent == answered.spent


@every_kind
def test_batches_crashes_and_redelivery_change_no_byte(kind: Kind) -> None:
    together = ask(driver_with(kind), kind.questions)
    driver = driver_with(kind)
    apart: list[Answer] = []
    for place, question in enumerate(kind.questions):
        apart += driver.ask_many([{"id": str(place), "stream": "s", **question}])
        assert driver.redeliver() == apart[-1:]
        if place % 3 == 0:
            figures = driver.snapshot_streams()
            driver.crash()
            assert driver.snapshot_streams() == figures
    assert apart == together


@every_kind
def test_closed_stream_refunds_the_unspent_amount(kind: Kind) -> None:
    driver = driver_with(kind)
    ask(driver, kind.questions[:2])
    driver.close(kind.source, "s")
    record = driver.budget(kind.source)
    assert record.granted.epsilon - record.refunded.epsilon == pytest.approx(record.spent.epsilon)
    [answer] = ask(driver, kind.questions[:1])
    assert answer.outcome == "halted"


@every_kind
def test_stream_without_questions_costs_nothing(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.close(kind.source, "s")
    record = driver.budget(kind.source)
    assert record.spent.epsilon == 0.0
    assert record.refunded == record.granted


@every_kind
def test_halted_stream_answers_nothing_and_gives_its_reason(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.halt(kind.source, "s", "enough for today")
    [answer] = ask(driver, kind.questions[:1])
    assert (answer.outcome, answer.reason) == ("halted", "enough for today")
    assert answer.estimate is None
    assert answer.choice is None


@every_kind
def test_streams_of_equal_specifications_have_independent_noise(kind: Kind) -> None:
    driver = driver_with(kind)
    driver.open(kind.spec(stream="second"), acknowledge=True)

    def seen(stream: str) -> list[Any]:
        log = [{"id": f"{place}", "stream": stream, **one} for place, one in enumerate(list(kind.questions) * 5)]
        keep = {"outcome", "estimate", "estimates", "choice", "keys", "top_groups"}
        return [answer.model_dump(include=keep) for answer in driver.ask_many(log)]

    assert seen("s") != seen("second")


@pytest.mark.parametrize(
    "kind", [one for one in KINDS if one.mechanism.get("counts", True)], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("calibration", ["best", "textbook"])
def test_every_kind_has_a_textbook_calibration(kind: Kind, calibration: str) -> None:
    driver = driver_with(kind, calibration=calibration)
    definition = json.loads(driver.records(driver.topics.control)[-1].value or b"")["calibration"]
    assert (definition["method"] == "textbook") or calibration == "best"


@pytest.mark.parametrize(
    "kind", [one for one in KINDS if one.mechanism["kind"] != "unknown_groups"], ids=lambda kind: kind.name
)
def test_source_under_zcdp_is_charged_in_rho(kind: Kind) -> None:
    driver = Driver(KEY, partitions=1)
    source = {**SOURCES[kind.source], "accountant": "zcdp", "delta": 1e-3}
    driver.register(source, {"age": AGES, "sex": SEXES, "town": TOWNS} if source["kind"] == "table" else None)
    driver.open(kind.spec(epsilon=2.0), acknowledge=True)
    ask(driver, kind.questions[:1])
    record = driver.budget(kind.source)
    assert record.spent.rho is not None
    assert 0 < record.spent.rho <= record.granted.rho  # type: ignore[operator]


@pytest.mark.parametrize(
    ("source", "mechanism", "words"),
    [
        ("survey", {"kind": "laplace"}, "mechanism.kind: laplace does not run on a source of kind 'records'"),
        ("feed", {"kind": "histogram", "attributes": ["age"]}, "use 'table'"),
        ("people", {"kind": "randomized_response"}, "use 'records'"),
        (
            "people",
            {"kind": "histogram", "attributes": ["height"]},
            "mechanism.attributes: name 1 is no attribute",
        ),
        (
            "people",
            {"kind": "histogram", "attributes": ["age", "age"]},
            "mechanism.attributes: the list contains an attribute",
        ),
        (
            "people",
            {"kind": "noisy_max", "sums": ["sex"]},
            "mechanism.sums.0: the source has no attribute of integers or decimals",
        ),
        ("feed", {"kind": "noisy_max", "sums": ["age"]}, "mechanism.sums: a source of values has no attributes"),
        ("people", {"kind": "pmw", "attributes": ["age"], "worst_case": True}, "rows"),
    ],
)
def test_unsuitable_mechanism_is_refused_with_the_field(
    source: str, mechanism: dict[str, Any], words: str
) -> None:
    driver = driver_with(KINDS[0])
    with pytest.raises(Refused, match="mechanism") as refused:
        driver.open(stream("other", source, mechanism=mechanism), acknowledge=True)
    assert words in refused.value.reason
    assert driver.budget(source).granted.epsilon == (2.0 if source == "people" else 0.0)


@every_kind
def test_grant_keeps_the_whole_specification(kind: Kind) -> None:
    """The grant keeps the specification without default values, and not as a model."""
    spec = StreamSpec.model_validate(kind.spec(beta=0.01))
    identity = StreamIdentity(incarnation="0f" * 16, digest="1e" * 32, key_id="ab" * 8)
    calibration: Any = None
    grant = Grant.create(spec, identity, calibration, Claim("pure"))
    assert grant.decode_opening() == (spec, identity)
    assert len(grant.opening) < 48 + len(spec.model_dump_json())
