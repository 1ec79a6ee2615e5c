"""The checker finds each violation that is put into a log without violations, so it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from tests.builders import KEY
from tests.chaos.checker import examine
from tests.chaos.load import (
    ANALYST,
    EVERYBODY,
    MIXED,
    PURE,
    ROWS,
    SENSITIVE_STREAMS,
    Questions,
    event,
    shared,
    sources,
    specs,
)
from tests.chaos.logs import Log, logs_of
from tests.chaos.replay import Installation, answers_codec, are_alike


@cache
def _installation_with_history() -> tuple[Driver, list[str]]:
    """Return an installation with every mechanism; one stream was halted, some were exhausted, and some of these extended.

    The table and the survey share a population. The survey's budget renews in the middle, and an analyst has an allotment of it.
    """
    driver = Driver(KEY, partitions=2)
    driver.register_population(EVERYBODY)
    for source in sources(Path("people.csv")):
        driver.register(shared(source), ROWS if source.source == "people" else None)
    driver.allot(ANALYST, 2.0, source="survey")
    for spec in specs():
        driver.open(spec, acknowledge=True, analyst=ANALYST if spec.source == "survey" else None)
    questions = Questions(specs(), seed=3)
    events = [questions.next() for _ in range(400)]
    driver.ask_many([value for _, _, value in events])
    driver.halt("feed", "stream-1")
    driver.wait(3601)
    for name in ("laplace", "noisy-max", "counts", "stream-0"):
        [spec] = (spec for spec in specs() if spec.stream == name)
        driver.extend(spec.source, name, 1.0)
    later = [questions.next() for _ in range(60)]
    driver.ask_many([value for _, _, value in later])
    return driver, [identifier for identifier, _, _ in events + later]


@pytest.fixture
def driver() -> Driver:
    return _installation_with_history()[0]


@pytest.fixture
def logs(driver: Driver) -> Log:
    return logs_of(driver)


def _violations(driver: Driver, logs: Log, asked: list[str] | None = None, key: NoiseKey = KEY) -> list[str]:
    tables = TableStore.keyed_by(KEY)
    tables.put("people", ROWS)
    return examine(
        Installation(driver.topics, key, tables), logs, _installation_with_history()[1] if asked is None else asked
    ).violations


def test_checker_finds_no_violation_in_a_correct_log(driver: Driver, logs: Log) -> None:
    assert _violations(driver, logs) == []


def test_checker_replays_answers_of_two_versions_in_order() -> None:
    """No stream answers from an earlier version again."""
    driver = Driver(KEY, partitions=1)
    for source in sources(Path("people.csv")):
        driver.register(source, ROWS if source.source == "people" else None)
    for spec in specs():
        driver.open(spec, acknowledge=True)
    questions = Questions(specs(), seed=4)
    asked = []
    for _ in range(3):
        events = [questions.next() for _ in range(150)]
        driver.ask_many([value for _, _, value in events])
        driver.refresh("people")
        asked += [identifier for identifier, _, _ in events]
    found: Log = {}
    topics = driver.topics
    for topic in (topics.queries, topics.control, topics.answers, topics.state, topics.charges):
        found[topic, 0] = driver.records(topic)
    for topic in (topics.ledger, topics.trail, topics.requests):
        found[topic, 0] = driver.records(topic)
    assert _violations(driver, found, asked) == []
    _change(found, ".answers", lambda one: one.get("version") == 3, version=2)
    assert any("replay gave 1 answers that differ" in one for one in _violations(driver, found, asked))
    _change(found, ".answers", lambda one: one.get("version") == 3, version=9)
    assert any("of version 9" in one for one in _violations(driver, found, asked))


def _last(
    logs: Log, topic: str, fits: Callable[[dict[str, Any]], bool]
) -> tuple[list[Record], int, dict[str, Any]]:
    """Return the log, place and content of a topic's last record that fits."""
    for (name, _), records in logs.items():
        if name.endswith(topic):
            for place in reversed(range(len(records))):
                content = json.loads(records[place].value or b"null")
                if content is not None and fits(content):
                    return records, place, content
    raise LookupError(topic)


def _overtake(logs: Log) -> None:
    """Move the last request to the front, although the trail has other requests before it."""
    [requests] = [records for (name, _), records in logs.items() if name.endswith(".requests")]
    requests.insert(0, requests.pop())


def _let_wait(logs: Log) -> None:
    [ledger] = [records for (name, _), records in logs.items() if name.endswith(".ledger")]
    value = json.dumps({"kind": "waiting", "number": 0, "value": "{}"}).encode()
    ledger.append(ledger[-1]._replace(key=b"waiting|x|y", value=value))


def _change(logs: Log, topic: str, fits: Callable[[dict[str, Any]], bool], **fields: Any) -> None:
    records, place, content = _last(logs, topic, fits)
    records[place] = records[place]._replace(value=json.dumps({**content, **fields}).encode())


def _repeat(
    logs: Log, topic: str, fits: Callable[[dict[str, Any]], bool], *, times: int = 1, **fields: Any
) -> None:
    records, place, content = _last(logs, topic, fits)
    again = records[place]._replace(value=json.dumps({**content, **fields}).encode(), offset=10**6)
    records.extend([again] * times)


def _remove(logs: Log, topic: str, fits: Callable[[dict[str, Any]], bool]) -> None:
    records, place, _ = _last(logs, topic, fits)
    del records[place]


def _any(content: dict[str, Any]) -> bool:
    del content
    return True


def _amount(epsilon: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": 0.0, "rho": None}


def _reopen(logs: Log) -> None:
    """Reopen a halted stream, as if its worker had not got the halt."""
    _remove(logs, ".control", lambda one: one["spec"]["stream"] == "stream-1" and one["kind"] == "halted")
    for records in [records for (topic, _), records in logs.items() if topic.endswith(".state")]:
        records[:] = [one for one in records if not (one.key == b"stream-1" and b'"halted"' in (one.value or b""))]


def _granted_unasked(logs: Log) -> None:
    """Add a grant of another stream, as if another program had written to the ledger."""
    records, place, content = _last(logs, ".ledger", lambda one: one["kind"] == "grant")
    grant = {**content, "spec": {**content["spec"], "stream": "unasked"}}
    key = f"grant|{content['spec']['source']}|unasked".encode()
    records.append(records[place]._replace(key=key, value=json.dumps(grant).encode(), offset=10**6))


def _forget_a_grant(logs: Log) -> None:
    records, place, _ = _last(logs, ".ledger", lambda one: one["kind"] == "grant" and not one.get("extensions"))
    key = records[place].key
    records[:] = [one for one in records if one.key != key]


def _begin_again(logs: Log) -> None:
    _, _, content = _last(logs, ".ledger", lambda one: one["kind"] == "source" and "period" in one)
    period = {**content["period"], "number": content["period"]["number"] + 1}
    _repeat(logs, ".ledger", lambda one: one == content, period=period)


def _go_back(logs: Log) -> None:
    _, _, content = _last(logs, ".ledger", lambda one: one["kind"] == "source" and "period" in one)
    period = {**content["period"], "number": 1, "starts": content["period"]["starts"] - 3_600_000}
    _repeat(logs, ".ledger", lambda one: one == content, period=period)


SEEDED: dict[str, tuple[Callable[[Log], None], str]] = {
    "an answer is missing": (lambda logs: _remove(logs, ".answers", _any), "answered 0 times"),
    "an answer came twice": (lambda logs: _repeat(logs, ".answers", _any), "answered 2 times"),
    "a question that nobody asked was answered": (
        lambda logs: _repeat(logs, ".answers", _any, id="another"),
        "never asked",
    ),
    "an index is left out": (
        lambda logs: _change(logs, ".answers", lambda one: one.get("index", 0) > 1, index=1000),
        "not 0, 1, 2",
    ),
    "an answer followed a halt": (
        lambda logs: _repeat(logs, ".answers", lambda one: one["stream"] == "stream-1", outcome="below", index=99),
        "after it had halted",
    ),
    "an answer has other noise": (
        lambda logs: _change(logs, ".answers", lambda one: one.get("basis") == "hypothesis", estimate=0.125),
        "answers that differ",
    ),
    "more charged answers than the cutoff": (
        lambda logs: _repeat(
            logs, ".answers", lambda one: one["stream"] == "noisy-max" and one.get("basis") == "noisy", times=9
        ),
        "charged answers, cutoff",
    ),
    "more charged answers left than were granted": (
        lambda logs: _change(logs, ".answers", lambda one: one["stream"] == "laplace", tops_left=10**6),
        "other charged answers left",
    ),
    "a stream had run dry with charged answers left": (
        lambda logs: _change(
            logs, ".answers", lambda one: (one.get("reason") or "").startswith("exhausted"), tops_left=1
        ),
        "had run dry",
    ),
    "a stream was extended without a receipt": (
        lambda logs: _remove(logs, ".ledger", lambda one: one["kind"] == "receipt" and "answers" in one),
        "has receipts for",
    ),
    "an extension that nobody granted was taken in": (
        lambda logs: _change(logs, ".ledger", lambda one: bool(one.get("extensions")), extensions=[]),
        "charged answers",
    ),
    "the ledger lacks a charged answer": (
        lambda logs: _change(logs, ".ledger", lambda one: one.get("tops", 0) > 0, tops=0),
        "the ledger has 0",
    ),
    "a charge is above its grant": (
        lambda logs: _repeat(logs, ".charges", _any, spent=_amount(99.0)),
        "was charged 99.0",
    ),
    "a stream was charged and never granted": (
        lambda logs: _repeat(logs, ".charges", _any, stream="nobody"),
        "never granted",
    ),
    "a stream spent more than its grant": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "grant", spent=_amount(99.0)),
        "spent 99.0 of",
    ),
    "a refund without a closing": (
        lambda logs: _change(
            logs, ".ledger", lambda one: one["kind"] == "grant" and one["ending"] is None, refunded=_amount(0.1)
        ),
        "has not closed it",
    ),
    "a source granted more than its budget": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "source", granted=_amount(999.0)),
        "granted 999.0 of",
    ),
    "a source spent what no grant did": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "source", spent=_amount(0.001)),
        "not the sum over its grants",
    ),
    "a stream was opened twice": (
        lambda logs: _repeat(
            logs,
            ".control",
            _any,
            identity={"incarnation": "0" * 32, "digest": "0" * 64, "key_id": "0" * 16},
        ),
        "opened 2 times",
    ),
    "a request has two receipts": (
        lambda logs: _repeat(logs, ".ledger", lambda one: one["kind"] == "receipt", outcome="registered"),
        "two receipts",
    ),
    "a checkpoint is missing": (
        lambda logs: _remove(logs, ".state", lambda one: one.get("answered", 0) > 1),
        "changelog and replay disagree",
    ),
    "a step of a hypothesis is missing": (
        lambda logs: _remove(logs, ".state", lambda one: "up" in one),
        "would answer differently",
    ),
    "a measurement of a price of its own is missing": (
        lambda logs: _remove(logs, ".state", lambda one: "share" in one),
        "would answer differently",
    ),
    "a price was shown and not charged": (
        lambda logs: _change(
            logs, ".answers", lambda one: one.get("price", 0) > 0 and one.get("basis") == "noisy", price=50.0
        ),
        "showed prices of 5",
    ),
    "a charged answer cost more than the grant has": (
        lambda logs: _change(logs, ".ledger", lambda one: one.get("surplus", 0) != 0, surplus=10**9),
        "charged answers, cutoff",
    ),
    "a halt did not reach the worker": (_reopen, "can still answer"),
    "an entry of the trail is gone": (
        lambda logs: _remove(logs, ".trail", lambda one: one["number"] == 3),
        "the record at its place is entry 4",
    ),
    "an entry of the trail was changed": (
        lambda logs: _change(logs, ".trail", lambda one: one["number"] == 3, epsilon=0.5),
        "its digest of entry 3 differs",
    ),
    "the trail was cut off": (
        lambda logs: _remove(logs, ".trail", _any),
        "but the ledger was last written with",
    ),
    "a request is not in the trail": (
        lambda logs: _repeat(logs, ".requests", _any, request="unseen"),
        "request unseen has no entry",
    ),
    "a request was overtaken": (_overtake, "was overtaken by a later one about"),
    "a request still waits": (_let_wait, "still waits"),
    "a receipt says otherwise than the trail": (
        lambda logs: _change(logs, ".ledger", lambda one: one.get("outcome") == "opened", outcome="refused"),
        "its receipt says refused",
    ),
    "a grant is in the ledger that nobody asked for": (
        _granted_unasked,
        "the streams from before the trail's beginning were changed",
    ),
    "a population was not charged": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "population", granted=_amount(0.5)),
        "population everybody granted 0.5, and its grants cost",
    ),
    "a population's stream is counted nowhere": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "population", streams=1),
        "population everybody has 1 streams",
    ),
    "an analyst has more left than was allotted": (
        lambda logs: _change(logs, ".ledger", lambda one: one["kind"] == "allotment", left=_amount(1.9)),
        "allotment ada has 1.9 left",
    ),
    "what is open at an edge is not carried over": (
        lambda logs: _change(
            logs, ".ledger", lambda one: one["kind"] == "source" and "period" in one, left=_amount(60.0)
        ),
        "source survey has 60.0 left",
    ),
    "a period began twice": (_begin_again, "source survey began a period more than once"),
    "a period came back": (_go_back, "source survey went back to an earlier period"),
    "a grant is gone from the ledger": (_forget_a_grant, "the ledger does not have the stream"),
}


@pytest.mark.parametrize("name", SEEDED)
def test_checker_finds_each_seeded_violation(name: str, driver: Driver, logs: Log) -> None:
    seed, expected = SEEDED[name]
    seed(logs)
    assert any(expected in found for found in _violations(driver, logs)), _violations(driver, logs)


@pytest.mark.parametrize(
    ("estimate", "are_equal"), [(214.1, True), (300.0, False)], ids=["within-the-bounds", "beyond-the-bounds"]
)
def test_checker_compares_measured_numbers_of_two_versions_by_their_bounds(
    estimate: float, are_equal: bool
) -> None:
    released = Answer(
        id="q0", stream="weights", outcome="answer", index=0, estimate=213.9, basis="measured", alpha=37.7
    )
    fields = {"estimate": estimate, "alpha": 37.6, "interval": (198.3, 229.7)}
    today = released.model_copy(update=fields)
    one, other = answers_codec.encode(released), answers_codec.encode(today)
    assert are_alike(one, other, same_version=False) == are_equal
    assert not are_alike(one, other, same_version=True)


def test_checker_finds_answers_drawn_with_another_key(driver: Driver, logs: Log) -> None:
    assert any("replay gave" in found for found in _violations(driver, logs, key=NoiseKey(bytes(32))))


def test_checker_finds_a_dropped_question(driver: Driver, logs: Log) -> None:
    assert any(
        "answered 0 times" in found
        for found in _violations(driver, logs, [*_installation_with_history()[1], "dropped"])
    )


def test_load_has_questions_of_every_price(driver: Driver) -> None:
    answers = [json.loads(record.value or b"") for record in driver.records(driver.topics.answers)]
    priced = [answer for answer in answers if answer["stream"] in PURE and "price" in answer]
    assert {answer["outcome"] for answer in priced} == {"answer", "rejected"}
    charged = {answer["price"] for answer in priced if answer["outcome"] == "answer"}
    assert 0.0 in charged
    assert len(charged) > 3


def test_load_has_events_for_every_stream() -> None:
    assert len(specs()) == SENSITIVE_STREAMS + len(MIXED)
    assert event("a", "b", {"value": 1}) == b'{"id": "a", "stream": "b", "value": 1}'
