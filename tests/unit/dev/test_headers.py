"""Answers have CloudEvents headers and trace context if their question had them, and otherwise no headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from schemas import Answer, RejectedHeaders
from schemas.answers import ANSWER_TYPE, MAX_TRACEPARENT, MAX_TRACESTATE, MAX_TRACESTATE_MEMBERS
from schemas.wire import Codec
from sotto import Driver
from stream.dev.contract_files import ANSWER_HEADERS, DEAD_LETTER_HEADERS
from stream.processing.protocol import Headers, Record
from stream.worker.worker_processor import answer_headers
from tests.builders import installation
from tests.unit.installation import query, spec

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
CLOUD_EVENT = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"a-1"),
    ("ce_source", b"/wards"),
    ("ce_type", b"org.example.question"),
    ("ce_time", b"2026-01-01T00:00:00Z"),
    ("content-type", b"application/json"),
)

answers: Codec[Answer] = Codec(Answer, limit=1 << 20)


def ask_and_read_answers(*events: tuple[bytes, Headers], driver: Driver | None = None) -> list[Record]:
    """Return the records that a driver writes to the topic of answers for these queries."""
    driver = driver or installation(spec("ward"))
    before = len(driver.records(driver.topics.answers))
    for value, headers in events:
        driver.send(0, value, headers)
    return driver.records(driver.topics.answers)[before:]


def headers_of_answer(*headers: tuple[str, bytes]) -> dict[str, bytes]:
    return dict(answer_headers("sotto.answers", Record("sotto.queries", 3, 7, 0, b"ward", b"", headers), b"ward"))


def test_answer_has_no_headers_by_default() -> None:
    plain, other = ask_and_read_answers(
        (query("a", "ward", 1.0), ()), (query("b", "ward", 1.0), (("x-request", b"7"),))
    )
    assert (plain.headers, other.headers) == ((), ())


def test_answer_to_cloud_event_is_cloud_event() -> None:
    [record] = ask_and_read_answers((query("a", "ward", 1.0), CLOUD_EVENT))
    assert dict(record.headers) == {
        "content-type": b"application/json",
        "ce_specversion": b"1.0",
        "ce_id": b"0-0",
        "ce_source": b"/sotto.answers",
        "ce_type": ANSWER_TYPE,
        "ce_subject": b"ward",
    }


@pytest.mark.parametrize(
    "value",
    [query("a", "ward", 1.0), query("a", "nobody", 1.0), b'{"id": "a", "stream": "ward"}'],
    ids=["answered", "unknown stream", "malformed"],
)
def test_answers_of_every_outcome_have_headers(value: bytes) -> None:
    [record] = ask_and_read_answers((value, (*CLOUD_EVENT, ("traceparent", PARENT), ("tracestate", STATE))))
    headers = {name: text.decode() for name, text in record.headers}
    assert headers["traceparent"].encode() == PARENT
    assert headers["tracestate"].encode() == STATE
    assert headers["ce_subject"] == answers.decode(record.value).stream
    Draft7Validator(ANSWER_HEADERS).validate(headers)


def test_answers_to_equal_queries_have_different_ids() -> None:
    first, second = ask_and_read_answers(*[(query("a", "ward", 1.0), CLOUD_EVENT)] * 2)
    assert dict(first.headers)["ce_id"] != dict(second.headers)["ce_id"]


def test_headers_change_neither_outcome_nor_noise() -> None:
    values = [query(str(number), "ward", float(100 * number - 2000)) for number in range(40)]
    stream = spec("ward", cutoff=20)
    plain = ask_and_read_answers(*((value, ()) for value in values), driver=installation(stream))
    dressed = ask_and_read_answers(
        *((value, (*CLOUD_EVENT, ("traceparent", PARENT))) for value in values), driver=installation(stream)
    )
    assert [record.value for record in plain] == [record.value for record in dressed]
    assert len({answers.decode(record.value).outcome for record in plain}) > 1


def test_headers_are_equal_after_crash() -> None:
    def run(*, crash: bool) -> list[Record]:
        driver = installation(spec("ward", cutoff=10))
        ask_and_read_answers((query("a", "ward", 1.0), CLOUD_EVENT), driver=driver)
        if crash:
            driver.crash()
        ask_and_read_answers((query("b", "ward", 2.0), (*CLOUD_EVENT, ("traceparent", PARENT))), driver=driver)
        return driver.records(driver.topics.answers)

    assert run(crash=True) == run(crash=False)


def test_dead_letter_keeps_headers_and_adds_reason() -> None:
    driver = installation(spec("ward"))
    driver.send(0, b"not json", (*CLOUD_EVENT, ("traceparent", PARENT)))
    [letter] = driver.records(driver.topics.rejected)
    assert letter.headers[: len(CLOUD_EVENT) + 1] == (*CLOUD_EVENT, ("traceparent", PARENT))
    facts = {name: text.decode() for name, text in letter.headers}
    Draft7Validator(DEAD_LETTER_HEADERS).validate(facts)
    reasons = RejectedHeaders(
        topic="sotto.queries", partition=0, offset=0, code="malformed", message=""
    ).to_kafka()
    assert {name for name, _ in reasons} <= facts.keys()
    assert facts["__connect.errors.exception.class.name"] == "malformed"


@pytest.mark.parametrize("version", [b"0.3", b"2.0", b"", b"1.0 "])
def test_unsupported_cloud_events_version_is_ignored(version: bytes) -> None:
    assert headers_of_answer(("ce_specversion", version)) == {}


@pytest.mark.parametrize(
    "parent",
    [
        PARENT,
        PARENT[:-2] + b"00",
        b"cc" + PARENT[2:],
        b"cc" + PARENT[2:] + b"-what-the-future-brings",
    ],
)
def test_valid_traceparent_is_copied(parent: bytes) -> None:
    assert headers_of_answer(("traceparent", parent)) == {"traceparent": parent}


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT[:-1],
        PARENT + b"0",
        PARENT + b"-more",
        PARENT + b"\n",
        PARENT.replace(b"-", b"_"),
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + PARENT[52:],
        b"cc" + PARENT[2:] + b"more",
        b"cc" + PARENT[2:] + b"-" + b"x" * MAX_TRACEPARENT,
        b"\xff" * 55,
    ],
)
def test_malformed_traceparent_is_dropped_with_its_state(parent: bytes) -> None:
    assert headers_of_answer(("traceparent", parent), ("tracestate", STATE)) == {}


@pytest.mark.parametrize(
    "state",
    [
        b"a=1",
        STATE,
        b"a=1 ,\t b=2,,",
        b"0tenant@system=x y",
        b",".join(b"k%d=v" % number for number in range(MAX_TRACESTATE_MEMBERS)),
        b"a=" + b"v" * 256,
    ],
)
def test_valid_tracestate_is_copied_with_traceparent(state: bytes) -> None:
    assert headers_of_answer(("traceparent", PARENT), ("tracestate", state)) == {
        "traceparent": PARENT,
        "tracestate": state,
    }


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"a",
        b"=1",
        b"A=1",
        b"a=1,a=2",
        b"a=b=c",
        b"a=1\n",
        b"a=\xc3\xa9",
        b",".join(b"k%d=v" % number for number in range(MAX_TRACESTATE_MEMBERS + 1)),
        b"a=" + b"v" * 257,
        b"a=" + b"v" * 200 + b",b=" + b"v" * 200 + b",c=" + b"v" * (MAX_TRACESTATE - 400),
    ],
)
def test_malformed_tracestate_is_dropped_alone(state: bytes) -> None:
    assert headers_of_answer(("traceparent", PARENT), ("tracestate", state)) == {"traceparent": PARENT}


def test_repeated_header_is_treated_as_malformed() -> None:
    assert headers_of_answer(("traceparent", PARENT), ("traceparent", PARENT)) == {}
    assert headers_of_answer(("ce_specversion", b"1.0"), ("ce_specversion", b"1.0")) == {}
    twice = (("traceparent", PARENT), ("tracestate", b"a=1"), ("tracestate", b"b=1"))
    assert headers_of_answer(*twice) == {"traceparent": PARENT}


names = st.sampled_from(["ce_specversion", "traceparent", "tracestate", "ce_id", "content-type", "é"])
texts = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.sampled_from([b"1.0", PARENT, STATE]),
    st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-x)?", fullmatch=True),
    st.from_regex(rb"([a-z]=[ -~]{0,5},?){1,4}", fullmatch=True),
)


@given(st.lists(st.tuples(names, texts), max_size=5))
def test_answer_headers_satisfy_contract_for_any_input(
    headers: list[tuple[str, bytes]],
) -> None:
    found = headers_of_answer(*headers)
    Draft7Validator(ANSWER_HEADERS).validate({name: text.decode() for name, text in found.items()})
    assert sum(map(len, found.values())) <= MAX_TRACEPARENT + MAX_TRACESTATE + 100
