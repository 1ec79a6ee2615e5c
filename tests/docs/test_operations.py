"""Checks the operations page on loss, replay and keys with the services' processors.

The driver's topics are lists; losing one is emptying it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver, Refused, Unknown
from stream.privacy.noise.keys import NoiseKey
from tests.builders import OTHER_KEY, PEOPLE, installation, source, stream

SOURCE: dict[str, Any] = source("vitals", neighbors="add-remove", epsilon=4.0)


def ward(name: str) -> dict[str, Any]:
    return stream(name, "vitals", mechanism={"threshold": 1000.0, "cutoff": 2})


@pytest.fixture
def driver() -> Driver:
    """Return an installation with a stream that has given one of its two ⊤s."""
    made = installation(ward("ward-7"), sources=[SOURCE], key=OTHER_KEY)
    assert [ask(made, value).outcome for value in (20.0, 5000.0)] == ["below", "above"]
    return made


def ask(driver: Driver, value: float, name: str = "ward-7") -> Answer:
    return driver.ask_many([{"id": f"{name} {value}", "stream": name, "value": value}])[0]


def lose(driver: Driver, topic: str) -> None:
    driver._logs[topic, 0].clear()


def budget_left(driver: Driver) -> float:
    return driver.budget("vitals").left.epsilon


def test_older_state_with_its_own_position_repeats_the_bytes(driver: Driver) -> None:
    answers = [record.value for record in driver.records(driver.topics.answers)]
    lose(driver, driver.topics.state)
    driver._positions[driver.topics.queries, 0] = 0
    driver.crash()
    assert [record.value for record in driver.records(driver.topics.answers)] == answers * 2
    assert ask(driver, 5000.0).tops_left == 0
    assert ask(driver, 20.0).outcome == "halted"


@pytest.mark.parametrize("halted", [False, True])
def test_older_copies_spend_again_unless_sources_are_halted(driver: Driver, *, halted: bool) -> None:
    """Copies of one moment follow from each other, so that no service finds the later ⊤ and the later grant missing."""
    copies, positions = {place: list(log) for place, log in driver._logs.items()}, dict(driver._positions)
    assert ask(driver, 6000.0).tops_left == 0
    driver.open(ward("ward-8"))
    driver._logs, driver._positions = copies, positions
    driver._start()
    if halted:
        driver.halt("vitals")
    assert ask(driver, 7000.0).outcome == ("halted" if halted else "above")
    with pytest.raises(Refused, match="is halted") if halted else nullcontext():
        driver.open(ward("ward-8"))


@pytest.mark.parametrize("ending", ["halt", "close"])
def test_stream_with_lost_state_ends_without_answers_and_refund(driver: Driver, ending: str) -> None:
    spent = driver.budget("vitals").spent
    lose(driver, driver.topics.state)
    driver._start()
    getattr(driver, ending)("vitals", "ward-7")
    assert ask(driver, 5000.0).outcome == "halted"
    if ending == "halt":
        driver.close("vitals", "ward-7")
    assert budget_left(driver) == 3.0
    assert driver.budget("vitals").spent == spent


def test_without_control_no_stream_answers_and_closing_refunds(driver: Driver) -> None:
    spent = driver.budget("vitals").spent.epsilon
    lose(driver, driver.topics.control)
    driver.crash()
    lost = ask(driver, 5000.0)
    assert (lost.outcome, lost.spent) == ("rejected", None)
    assert "unknown-stream" in (lost.reason or "")
    driver.close("vitals", "ward-7")
    assert driver.budget("vitals").spent.epsilon == spent > 0
    assert budget_left(driver) == pytest.approx(4.0 - spent)
    assert ask(driver, 5000.0).outcome == "halted"


def test_without_the_ledger_workers_continue(driver: Driver) -> None:
    """Charges become dead letters."""
    lose(driver, driver.topics.ledger)
    driver.crash()
    assert ask(driver, 5000.0).outcome == "above"
    with pytest.raises(Unknown):
        driver.budget("vitals")
    assert any(b"not registered" in value for _, value in driver.records(driver.topics.rejected)[-1].headers)


def test_recreated_queries_halt_a_stream_that_has_passed_their_offsets(driver: Driver) -> None:
    lose(driver, driver.topics.queries)
    driver._positions[driver.topics.queries, 0] = 0
    driver.crash()
    answer = ask(driver, 5000.0)
    assert answer.outcome == "halted"
    assert (answer.reason or "").startswith("replayed: ")


def test_stream_without_its_key_can_only_be_closed_for_its_refund(driver: Driver) -> None:
    spent = driver.budget("vitals").spent.epsilon
    driver.restart(bytes([1]) * 32)
    answer = ask(driver, 5000.0)
    assert answer.outcome == "halted"
    assert (answer.reason or "").startswith("this worker lacks noise key ")
    driver.close("vitals", "ward-7")
    assert budget_left(driver) == pytest.approx(4.0 - spent)


def test_rotation_keeps_old_streams_and_gives_new_ones_the_new_key(driver: Driver) -> None:
    rotated = OTHER_KEY.successor()
    driver.restart(rotated)
    driver.open(ward("ward-8"))
    assert ask(driver, 5000.0).outcome == "above"
    assert ask(driver, 5000.0, "ward-8").outcome == "above"
    driver.restart(NoiseKey(rotated.secret))
    assert ask(driver, 20.0).outcome == "halted"
    assert ask(driver, 20.0, "ward-8").outcome == "below"


def test_table_of_a_removed_key_answers_after_its_refresh() -> None:
    rotated = OTHER_KEY.successor()
    driver = installation(stream("counts", "people", "laplace"), key=OTHER_KEY)
    driver.restart(rotated)
    driver.open(stream("later", "people", "laplace"), acknowledge=True)
    driver.restart(NoiseKey(rotated.secret))
    questions = [{"id": name, "stream": name, "where": "age < 40"} for name in ("counts", "later")]
    reasons = [answer.reason or "" for answer in driver.ask_many(questions)]
    assert ("lacks noise key" in reasons[0], "noise key of that registration was removed" in reasons[1]) == (
        True,
        True,
    )
    driver.refresh("people", PEOPLE)
    again = driver.ask_many([{**question, "id": f"{question['id']} again"} for question in questions])
    assert [answer.outcome for answer in again] == ["halted", "answer"]
