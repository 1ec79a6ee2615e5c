"""What the workers of standing streams answer to windows, and to whoever is none."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from tests.privacy.service import KEY, feed
from tests.unit.processors.live import GROUP, WINDOW, flights, question, standing


@pytest.fixture
def driver() -> Driver:
    made = Driver(KEY, partitions=2)
    made.register(flights())
    return made


def about(answer: Answer) -> tuple[Any, Any]:
    return None if answer.window is None else answer.window.model_dump(), answer.group


def test_every_answer_tells_its_window_and_group(driver: Driver) -> None:
    driver.open(standing())
    driver.open(standing("numbers", {"kind": "laplace", "answers": 3}))
    driver.open(standing("all", {"kind": "histogram", "attributes": ["origin"]}, by=[]))
    answers = driver.ask_many(
        [
            *[question("late", number, value=1e6) for number in range(3)],
            question("late", 3, value=0),
            question("late", 4, category="no"),
            question("numbers", 5, value=3),
            question("numbers", 6, values=[3, 4]),
            question("nobody", 7, value=3),
            {"id": "8", "stream": "all", "values": [1, 2, 3], "window": WINDOW},
            {"id": "9", "stream": "all", "values": [1, 2, 3], "window": WINDOW},
            {"id": "10", "stream": "all", "values": [1, 2], "window": WINDOW},
        ]
    )
    outcomes = ["above"] * 3 + [
        "halted",
        "rejected",
        "answer",
        "rejected",
        "rejected",
        "answer",
        "halted",
        "rejected",
    ]
    assert [answer.outcome for answer in answers] == outcomes
    assert [about(answer) for answer in answers] == [(WINDOW, GROUP)] * 8 + [(WINDOW, None)] * 3
    told = answers[8].estimates
    assert told is not None
    assert len(told) == 3
    assert answers[8].tops_left == 0


def test_a_query_without_a_window_is_refused(driver: Driver) -> None:
    driver.open(standing())
    driver.open(standing("numbers", {"kind": "laplace", "answers": 3}))
    queries = [{"id": "1", "stream": name, "value": 3} for name in ("late", "numbers")]
    for answer in driver.ask_many([*queries, question("late", 2, value=1), *queries]):
        assert (answer.outcome == "rejected") is (answer.id == "1")
        if answer.outcome == "rejected":
            assert answer.reason is not None
            assert answer.reason.startswith("malformed: window: ")


def test_a_stream_that_is_not_standing_takes_no_window(driver: Driver) -> None:
    driver.register(feed())
    mechanism = {"kind": "above_threshold", "threshold": 25, "cutoff": 3}
    driver.open({"stream": "plain", "source": "feed", "epsilon": 1, "mechanism": mechanism})
    driver.open(standing())
    answers = driver.ask_many(
        [question("late", 1, value=1), question("plain", 2, value=1), {"id": "3", "stream": "plain", "value": 1}]
    )
    assert [answer.outcome for answer in answers] == ["below", "rejected", "below"]
    assert answers[1].reason == "malformed: window, group: this stream is no standing one; remove them"
    assert (answers[2].window, answers[2].group) == (None, None)


@pytest.mark.parametrize(
    "repeated",
    [
        b'{"id":"1","stream":"late","value":1,"window":{"start":"a","end":"b"},"group":{"a":"x","a":"y"}}',
        b'{"id":"1","stream":"late","value":1,"window":{"start":"a","start":"c","end":"b"}}',
        b'{"id":"1","stream":"late","value":1,"window":{"start":"a","end":"b"},"value":2}',
    ],
)
def test_a_field_given_twice_is_refused(driver: Driver, repeated: bytes) -> None:
    driver.open(standing())
    once = (
        b'{"id":"\\"1\\"","stream":"late","value":1,"window":{"start":"a","end":"b"},"group":{"a":1,"b":"\\"y"}}'
    )
    answers = driver.ask_many([once, repeated, once])
    assert [answer.outcome for answer in answers] == ["below", "rejected", "below"]
    assert answers[1].reason is not None
    assert "is given twice" in answers[1].reason


def test_windows_are_answered_alike_in_any_batches(driver: Driver) -> None:
    driver.open(standing())
    driver.open(standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 9}, by=[]))
    queries = [question("late", number, value=24 + number % 3) for number in range(20)]
    queries += [
        {"id": f"a{number}", "stream": "all", "values": [number, 2, 3], "window": WINDOW} for number in range(5)
    ]
    answers = driver.ask_many(queries)
    assert driver.redeliver() == answers
    driver.crash()
    other = Driver(KEY, partitions=2)
    other.register(flights())
    other.open(standing())
    other.open(standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 9}, by=[]))
    assert [other.ask(query, outcomes=True) for query in queries] == list(answers)


def test_a_standing_stream_is_extended_closed_and_refunded_as_others(driver: Driver) -> None:
    driver.open(standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 2}, by=[]))
    window = {"stream": "all", "values": [1, 2, 3], "window": WINDOW}
    driver.ask(window)
    extended = driver.extend("flights", "all", 1.0)
    assert extended.answers == 2
    driver.ask(window)
    assert driver.ask(window).tops_left == 1
    driver.close("flights", "all")
    assert driver.grant("flights", "all").refunded.epsilon == pytest.approx(0.5)
