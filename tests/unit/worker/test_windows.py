"""Workers answer a standing stream's windows, and refuse other questions to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.json import decode

from schemas import Answer
from schemas.wire import encode
from sotto import Driver
from stream.worker.output_encoding import WireAnswer
from tests.builders import installation, stream
from tests.privacy.service import KEY, feed
from tests.unit.feeds.live import GROUP, flights, question, standing, window


@pytest.fixture
def driver() -> Driver:
    return installation(sources=[flights()], key=KEY, partitions=2)


def about(answer: Answer) -> tuple[Any, Any]:
    return None if answer.window is None else answer.window.model_dump(), answer.group


def test_every_window_answer_names_its_window_and_group(driver: Driver) -> None:
    driver.open(standing(), acknowledge=True)
    driver.open(standing("numbers", {"kind": "laplace", "answers": 3}), acknowledge=True)
    driver.open(standing("all", {"kind": "histogram", "attributes": ["origin"]}, by=[]), acknowledge=True)
    answers = driver.ask_many(
        [
            *[question("late", number, value=1e6) for number in range(3)],
            question("late", 3, value=0),
            question("late", 4, category="no"),
            question("numbers", 5, value=3),
            question("numbers", 6, values=[3, 4]),
            question("nobody", 7, value=3),
            {"id": "8", "stream": "all", "values": [1, 2, 3], "window": window(8)},
            {"id": "9", "stream": "all", "values": [1, 2, 3], "window": window(9)},
            {"id": "10", "stream": "all", "values": [1, 2], "window": window(10)},
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
    assert [about(answer) for answer in answers] == [
        (window(one), GROUP) if one < 8 else (window(one), None) for one in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    ]
    estimates = answers[8].estimates
    assert estimates is not None
    assert len(estimates) == 3
    assert answers[8].tops_left == 0


def test_window_answers_are_written_as_the_contract_writes_them(driver: Driver) -> None:
    driver.register(feed())
    driver.open(stream("plain", mechanism={"threshold": 25}), acknowledge=True)
    driver.open(standing(), acknowledge=True)
    driver.open(standing("others"), acknowledge=True)
    values = [0, 0, 1e6, 0, 1e6, 1e6, 0]
    asked = [
        question(name, number, value=value) for number, value in enumerate(values) for name in ("late", "others")
    ]
    found = driver.ask_many([*asked, {"id": "p", "stream": "plain", "value": 1}])
    assert {answer.outcome for answer in found} == {"above", "below", "halted"}
    for record in driver.records(driver.topics.answers):
        assert record.value == encode(decode(record.value or b"", type=WireAnswer))


def test_query_without_a_window_is_refused(driver: Driver) -> None:
    driver.open(standing(), acknowledge=True)
    driver.open(standing("numbers", {"kind": "laplace", "answers": 3}), acknowledge=True)
    queries = [{"id": "1", "stream": name, "value": 3} for name in ("late", "numbers")]
    for answer in driver.ask_many([*queries, question("late", 2, value=1), *queries]):
        assert (answer.outcome == "rejected") is (answer.id == "1")
        if answer.outcome == "rejected":
            assert answer.reason is not None
            assert answer.reason.startswith("malformed: window: ")


def test_query_with_nan_is_refused_with_its_window(driver: Driver) -> None:
    driver.open(standing(), acknowledge=True)
    asked = question("late", 1, value=float("nan"))
    [answer] = driver.ask_many([json.dumps(asked).encode()])
    assert (answer.outcome, answer.group) == ("rejected", asked["group"])
    assert answer.window is not None
    assert answer.window.model_dump() == asked["window"]


def test_stream_that_is_not_standing_accepts_no_window(driver: Driver) -> None:
    driver.register(feed())
    mechanism = {"kind": "above_threshold", "threshold": 25, "cutoff": 3}
    driver.open(stream("plain", mechanism=mechanism), acknowledge=True)
    driver.open(standing(), acknowledge=True)
    answers = driver.ask_many(
        [question("late", 1, value=1), question("plain", 2, value=1), {"id": "3", "stream": "plain", "value": 1}]
    )
    assert [answer.outcome for answer in answers] == ["below", "rejected", "below"]
    assert answers[1].reason == "malformed: window, group: only queries to standing streams have them; remove both"
    assert (answers[2].window, answers[2].group) == (None, None)


@pytest.mark.parametrize(
    "repeated",
    [
        b'{"id":"1","stream":"late","value":1,"window":%s,"group":{"origin":"EWR","origin":"JFK"}}',
        b'{"id":"1","stream":"late","value":1,"window":{"start":"a",%.0s"start":"2013-01-01T05:15:00Z","end":"b"},"group":{"origin":"EWR"}}',
        b'{"id":"1","stream":"late","value":1,"window":%s,"group":{"origin":"EWR"},"value":2}',
    ],
)
def test_repeated_field_of_a_window_query_is_refused(driver: Driver, repeated: bytes) -> None:
    driver.open(standing(), acknowledge=True)
    before, between, after = (json.dumps(window(number)).encode() for number in range(3))
    once = b'{"id":"\\"1\\"","stream":"late","value":1,"window":%s,"group":{"origin":"EWR"}}'
    answers = driver.ask_many([once % before, repeated % between, once % after])
    assert [answer.outcome for answer in answers] == ["below", "rejected", "below"]
    assert answers[1].reason is not None
    assert "is given twice" in answers[1].reason


def test_windows_are_answered_alike_in_any_batches(driver: Driver) -> None:
    driver.open(standing(), acknowledge=True)
    driver.open(
        standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 9}, by=[]), acknowledge=True
    )
    queries = [question("late", number, value=24 + number % 3) for number in range(20)]
    queries += [
        {"id": f"a{number}", "stream": "all", "values": [number, 2, 3], "window": window(number)}
        for number in range(5)
    ]
    answers = driver.ask_many(queries)
    assert driver.redeliver() == answers
    driver.crash()
    other = installation(
        standing(),
        standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 9}, by=[]),
        sources=[flights()],
        key=KEY,
        partitions=2,
    )
    assert [other.ask(query, outcomes=True) for query in queries] == list(answers)


def test_standing_stream_is_extended_closed_and_refunded_as_others(driver: Driver) -> None:
    driver.open(
        standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 2}, by=[]), acknowledge=True
    )
    asking = [{"stream": "all", "values": [1, 2, 3], "window": window(number)} for number in range(3)]
    driver.ask(asking[0])
    extended = driver.extend("flights", "all", 1.0)
    assert extended.answers == 2
    driver.ask(asking[1])
    assert driver.ask(asking[2]).tops_left == 1
    driver.close("flights", "all")
    assert driver.grant("flights", "all").refunded.epsilon == pytest.approx(0.5)


def test_extension_says_whether_the_stream_had_ended(driver: Driver) -> None:
    """Feeds read from the latest definition which extensions resumed a stream; other extensions are written as before."""
    driver.open(
        standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 1}, by=[]), acknowledge=True
    )
    asking = [{"stream": "all", "values": [1, 2, 3], "window": window(number)} for number in range(3)]
    driver.extend("flights", "all", 1.0)
    driver.ask(asking[0])
    driver.ask(asking[1])
    assert driver.grant("flights", "all").state == "exhausted"
    driver.extend("flights", "all", 1.0)
    assert [one.resumes for one in driver.grant("flights", "all").extensions] == [False, True]
    document = json.loads(driver.records(driver.topics.control)[-1].value or b"")
    assert [one.get("resumes") for one in document["extensions"]] == [None, True]


GATES = ("EWR", "JFK", "LGA")


def asked_in_turn(number: int) -> list[dict[str, Any]]:
    return [question("numbers", number, value=3) | {"group": {"origin": gate}} for gate in GATES]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("repeated", [0, 1, 2, 3, 5])
def test_stream_whose_windows_are_asked_again_is_halted(driver: Driver, repeated: int, *, crash: bool) -> None:
    """If merging has forgotten its questions, it asks again from the first window that the topics still have."""
    driver.open(standing("numbers", {"kind": "laplace", "answers": 90}), acknowledge=True)
    driver.open(standing("other", {"kind": "laplace", "answers": 90}), acknowledge=True)
    asked = [*asked_in_turn(0), *asked_in_turn(1)]
    assert {answer.outcome for answer in driver.ask_many(asked)} == {"answer"}
    spent = driver.grant("flights", "numbers").spent
    if crash:
        driver.crash()
    answers = driver.ask_many([*asked[repeated:], *asked_in_turn(2)])
    assert {answer.outcome for answer in answers} == {"halted"}
    assert (answers[0].reason or "").startswith("asked again: ")
    assert driver.grant("flights", "numbers").spent == spent
    assert driver.grant("flights", "numbers").state == "halted"
    assert driver.ask(question("other", 0, value=3)).outcome == "answer"


@pytest.mark.parametrize("kind", ["above_threshold", "histogram"])
def test_repeated_window_halts_every_kind_of_stream(driver: Driver, kind: str) -> None:
    if kind == "histogram":
        driver.open(standing("s", {"kind": kind, "attributes": ["origin"], "answers": 9}, by=[]), acknowledge=True)
        first, later = (
            {"id": "1", "stream": "s", "values": [1, 2, 3], "window": window(number)} for number in (0, 1)
        )
    else:
        driver.open(standing("s"), acknowledge=True)
        first, later = (question("s", number, value=1) for number in (0, 1))
    driver.ask_many([first, later])
    assert driver.redeliver()[1].outcome != "halted"
    assert [answer.outcome for answer in driver.ask_many([first, later])] == ["halted"] * 2


def test_repeated_window_in_one_batch_is_not_answered_twice(driver: Driver) -> None:
    driver.open(standing("numbers", {"kind": "laplace", "answers": 90}), acknowledge=True)
    asked = asked_in_turn(0)
    answers = driver.ask_many([*asked, *asked])
    assert [answer.outcome for answer in answers].count("answer") <= len(asked)
    assert answers[-1].outcome == "halted"


def test_unknown_group_of_a_window_is_refused(driver: Driver) -> None:
    driver.open(standing(), acknowledge=True)
    for group in (None, {}, {"origin": "XXX"}, {"gate": 1}, {"origin": "EWR", "gate": 1}):
        answer = driver.ask(question("late", 0, value=1) | {"group": group}, outcomes=True)
        assert answer.outcome == "rejected"
        assert (answer.reason or "").startswith("malformed: group: not a group of this stream")
    assert driver.ask(question("late", 0, value=1)).outcome == "below"


def test_windows_are_never_busy() -> None:
    """No client would repeat the question of a window."""
    tight = Driver(KEY, partitions=1, work_outstanding=0.001, work_rate=0.001)
    tight.register(flights())
    tight.open(standing("numbers", {"kind": "laplace", "answers": 100}), acknowledge=True)
    answers = tight.ask_many([question("numbers", number, value=3) for number in range(100)])
    assert [answer.outcome for answer in answers] == ["answer"] * 100
    tight.register(feed())
    tight.open(stream("values", "feed", "laplace", mechanism={"answers": 100}), acknowledge=True)
    others = tight.ask_many([{"id": f"{number}", "stream": "values", "value": 3} for number in range(100)])
    assert (others[0].outcome, others[-1].outcome) == ("answer", "rejected")
    assert (others[-1].reason or "").startswith("busy: ")
