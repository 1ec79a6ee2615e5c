"""A faulty event costs nothing and stops no other event."""

from __future__ import annotations

import json
import time
from random import Random
from traceback import walk_tb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_EVENT_BYTES, Answer, Query
from schemas.wire import Codec, MalformedEventError
from sotto import Driver
from stream.processing.dead_letters import Rejection, address_of
from stream.processing.protocol import Record
from stream.processing.topic_names import partition_of
from stream.worker import admission
from stream.worker.admission import rejection_of_malformed
from tests.builders import PEOPLE, installation, source
from tests.processing import process_records
from tests.unit.installation import LOW, answers_in, messages_to, query, records, spec, worker_of
from tests.unit.schemas.json_events import draw_damaged_query, repeats_a_name

# Event, code, words of the message, and whether the event has an id and a stream to answer to.
REJECTED = [
    pytest.param(b"{", "malformed", "event: Invalid JSON", False, id="broken JSON"),
    pytest.param(b"", "malformed", "event: Invalid JSON", False, id="empty value"),
    pytest.param(None, "malformed", "event: has no value; send a JSON object", False, id="tombstone"),
    pytest.param(b"[]", "malformed", "event: is not an object", False, id="no object"),
    pytest.param(b"\xff" * 9, "malformed", "event: Invalid JSON", False, id="not UTF-8"),
    pytest.param(
        query("bad", "feed-0", 1.0, color=1), "malformed", "field 4: unknown field", True, id="unknown field"
    ),
    pytest.param(
        query("bad", "feed-0", 1.0, threshold=1e16),
        "malformed",
        "threshold: is too large",
        True,
        id="too large a threshold",
    ),
    pytest.param(
        query("bad", "feed-0", 1.0, threshold="high"), "malformed", "threshold:", True, id="threshold no number"
    ),
    pytest.param(query("", "feed-0", 1.0), "malformed", "id: is too short; give 1 or more", False, id="empty id"),
    pytest.param(
        query("x" * 129, "feed-0", 1.0), "malformed", "id: is too long; give at most", False, id="long id"
    ),
    pytest.param(
        query("bad", "feed-0", 1.0, where="TRUE"), "malformed", "give exactly one", True, id="both questions"
    ),
    pytest.param(query("bad", "feed-0"), "malformed", "give exactly one", True, id="no question"),
    pytest.param(
        query("bad", "feed-0", where="TRUE"), "malformed", "where: ", True, id="where on a feed of values"
    ),
    pytest.param(query("bad", "people-0", 1.0), "malformed", "value: ", True, id="value on a table"),
    pytest.param(
        query("bad", "people-0", where="heigth > 1"), "predicate", "where: ", True, id="unknown attribute"
    ),
    pytest.param(query("bad", "people-0", where="age >"), "predicate", "where: ", True, id="broken predicate"),
    pytest.param(
        query("bad", "nobody", 1.0), "unknown-stream", "stream: no such stream is open", True, id="no such stream"
    ),
    pytest.param(
        query("bad", "feed-0", 1.0) + b" " * MAX_EVENT_BYTES,
        "too-large",
        f"send at most {MAX_EVENT_BYTES}",
        True,
        id="too large an event",
    ),
]


def both_sources() -> Driver:
    driver = installation(spec("feed-0"))
    driver.register(source("people", "table"), PEOPLE)
    driver.open(spec("people-0", "people", threshold=1000.0))
    return driver


GOOD = [
    query("first", "feed-0", LOW),
    query("second", "people-0", where="age < 10"),
    query("third", "feed-0", LOW),
    query("fourth", "people-0", where="sex = 'F'"),
]


@pytest.mark.parametrize(("value", "code", "words", "answered"), REJECTED)
def test_rejected_event_costs_nothing_and_stops_no_other(
    value: bytes | None, code: str, words: str, answered: bool
) -> None:
    driver = both_sources()
    log = [*GOOD[:2], value, *GOOD[2:]]
    place = (driver.topics.queries, 0)
    driver._logs[place] = [Record(*place, offset, 0, b"key", one) for offset, one in enumerate(log)]
    driver._process_all()
    answers = [Answer.model_validate_json(record.value or b"") for record in driver.records(driver.topics.answers)]
    names = ["first", "second", *(["bad"] if answered else []), "third", "fourth"]
    assert [answer.id for answer in answers] == names
    good = [answer for answer in answers if answer.outcome != "rejected"]
    assert [(answer.outcome, answer.index) for answer in good] == [("below", 0)] * 2 + [("below", 1)] * 2
    for answer in answers:
        if answer.outcome == "rejected":
            assert answer.index is None
            assert (answer.reason or "").startswith(f"{code}: ")
            assert words in (answer.reason or "")
    assert {name: figures[:3] for name, figures in driver.snapshot_streams().items()} == {
        "feed-0": ("open", 2, 0),
        "people-0": ("open", 2, 0),
    }
    assert good[0].spent == good[2].spent
    assert good[1].spent == good[3].spent


@pytest.mark.parametrize(("value", "code", "words", "answered"), REJECTED)
def test_dead_letter_has_the_original_event_and_a_reason(
    value: bytes | None, code: str, words: str, answered: bool
) -> None:
    del answered
    driver = both_sources()
    worker = worker_of(driver, tables=driver._tables)
    original = (("trace", b"7"),)
    record = Record(driver.topics.queries, 0, 42, 0, b"its key", value, original)
    [(key, kept, headers)] = messages_to(process_records(worker, [record]), driver.topics.rejected)
    assert (key, kept) == (b"its key", value)
    facts = dict(headers)
    assert facts["trace"] == b"7"
    assert facts["__connect.errors.topic"] == driver.topics.queries.encode()
    assert facts["__connect.errors.partition"] == b"0"
    assert facts["__connect.errors.offset"] == b"42"
    assert facts["__connect.errors.exception.class.name"] == code.encode()
    assert words in facts["__connect.errors.exception.message"].decode()


@pytest.mark.parametrize("key", [None, b"", b"feed-0"])
def test_dead_letter_keeps_the_key_unchanged(key: bytes | None) -> None:
    worker = worker_of(installation(spec("feed-0")))
    outputs = process_records(worker, [Record(worker.inputs[0], 0, 42, 0, key, b"{")])
    kept = [message[0] for topic, _, messages in outputs for message in messages if topic.endswith(".rejected")]
    assert kept == [key]


def test_event_in_a_wrong_partition_names_the_right_one() -> None:
    """The reason names the partitioner too."""
    driver = installation(spec("feed-0"), partitions=4)
    home = partition_of(b"feed-0", 4)
    wrong = (home + 1) % 4
    answer = driver.send(wrong, query("lost", "feed-0", LOW))
    assert answer is not None
    assert (answer.outcome, answer.stream, answer.spent, answer.tops_left) == ("rejected", "feed-0", None, None)
    assert f"stream: belongs in partition {home}, but the event is in partition {wrong}" in (answer.reason or "")
    assert "murmur2" in (answer.reason or "")
    found = driver.send(home, query("found", "feed-0", LOW))
    assert found is not None
    assert (found.outcome, found.index) == ("below", 0)


def test_private_value_is_in_no_answer_and_no_header() -> None:
    driver = installation(spec("feed-0"))
    worker = worker_of(driver)
    secret = "31415926535"  # noqa: S105  (a private value, not a password)
    events = [
        f'{{"id":"a","stream":"feed-0","value":"{secret}"}}',
        f'{{"id":"a","stream":"feed-0","value":{secret},"threshold":{secret}000000}}',
        f'{{"id":"a","stream":"feed-0","value":{secret},"where":"TRUE"}}',
        f'{{"id":"a","stream":"nobody","value":{secret}}}',
        f'{{"id":"a","stream":"feed-0","value":{secret}',
        f'{{"id":"a","stream":"feed-0","value":{secret}}}',
    ]
    outputs = process_records(worker, records([event.encode() for event in events]))
    assert len(messages_to(outputs, driver.topics.rejected)) == 5
    assert len(answers_in(outputs, driver.topics)) == 5
    for topic, _, messages in outputs:
        for key, value, headers in messages:
            shown = [
                key or b"",
                *(text for _, text in headers),
                *([] if topic == driver.topics.rejected else [value or b""]),
            ]
            assert not [text for text in shown if secret.encode() in text]


def _refused_by_the_model(data: bytes) -> bool:
    try:
        Codec(Query, limit=MAX_EVENT_BYTES).decode(data)
    except MalformedEventError:
        return True
    return False


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_any_bytes_leave_a_worker_running_with_one_output_each(seed: int) -> None:
    driver = installation(spec("s"), spec("s:x"))
    worker = worker_of(driver)
    randomness = Random(seed)
    events = [draw_damaged_query(randomness) for _ in range(200)]
    batch = records(events)
    outputs = process_records(worker, batch)
    dead = [dict(headers) for _, _, headers in messages_to(outputs, driver.topics.rejected)]
    codes = {
        int(facts["__connect.errors.offset"]): facts["__connect.errors.exception.class.name"] for facts in dead
    }
    assert len(codes) == len(dead)
    addresses = {record.offset: address for record in batch if (address := address_of(record.value))}
    answers = answers_in(outputs, driver.topics)
    assert [(answer.id, answer.stream) for answer in answers] == list(addresses.values())
    fates = dict(zip(addresses, (answer.outcome for answer in answers), strict=True))
    for record in batch:
        event = record.value or b""
        assert (record.offset in codes) == (fates.get(record.offset, "rejected") == "rejected")
        if _refused_by_the_model(event):
            assert record.offset in codes
        elif codes.get(record.offset) == b"malformed":
            # The model accepts a ``where`` for a feed of values, and a name that is given twice.
            assert Query.model_validate_json(event).where is not None or repeats_a_name(event)
        else:
            assert not repeats_a_name(event)


def test_repeated_field_with_a_wrong_value_is_reported_as_repeated() -> None:
    driver = installation(spec("feed-0"))
    event = b'{"id":"a","stream":"feed-0","value":"much","value":1.0}'
    [answer] = driver.ask_many([event])
    assert answer.outcome == "rejected"
    assert "twice" in (answer.reason or "") or "more than once" in (answer.reason or "")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": "a"},
        {"stream": "s"},
        {"id": 1, "stream": "s"},
        {"id": "", "stream": "s"},
        {"id": "a", "stream": "s" * 129},
    ],
)
def test_event_without_readable_id_and_stream_has_no_address(fields: dict[str, object]) -> None:
    assert address_of(json.dumps(fields).encode()) is None


def test_address_is_read_despite_other_faults() -> None:
    assert address_of(b'{"value":[{}],"id":"a","stream":"s","color":"\xff"}') == ("a", "s")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "[NaN, -Infinity]", '{"id":NaN}'])
def test_address_is_read_beside_numbers_unknown_to_json(number: str) -> None:
    event = f'{{"id":"NaN","stream":"feed-0","value":{number},"where":"-Infinity \\"NaN"}}'.encode()
    assert address_of(event) == ("NaN", "feed-0")
    [answer] = installation(spec("feed-0")).ask_many([event])
    assert (answer.id, answer.outcome) == ("NaN", "rejected")
    assert (answer.reason or "").startswith("malformed: ")


@pytest.mark.parametrize(
    "rest",
    [
        '"value":--Infinity}',
        '"value":NaN1}',
        '"value":-NaN}',
        '"value":nan}',
        "NaN:1}",
        '"value":"NaN}',
        '"value":NaN',
    ],
)
def test_address_is_not_read_from_text_that_no_parser_accepts(rest: str) -> None:
    assert address_of(f'{{"id":"a","stream":"s",{rest}'.encode()) is None


@pytest.mark.parametrize("value", ["1.0", "NaN"])
@pytest.mark.parametrize(
    "names",
    [
        '"id":"a","id":"b","stream":"s"',
        '"id":"a","stream":"s","stream":"t"',
        r'"\u0069d":"a","id":"b","stream":"s"',
    ],
)
def test_repeated_id_or_stream_gives_no_address(names: str, value: str) -> None:
    event = f'{{{names},"value":{value}}}'.encode()
    assert address_of(event) is None
    driver = installation(spec("s"))
    assert driver.ask_many([event]) == []
    assert [record.value for record in driver.records(driver.topics.rejected)] == [event]


def test_address_names_elsewhere_in_an_event_do_not_hide_it() -> None:
    inside = rb'{"id":"a","stream":"s","category":"id","cells":[{"at":{"id":1,"stream":"\u0069d"}}]}'
    assert address_of(inside) == ("a", "s")
    assert address_of(b'{"id":"a","stream":"s","id":"a"}') == ("a", "s")


def test_address_is_searched_in_linear_time() -> None:
    events = [b'{"id":"' + b'\\"' * 500_000 + b"NaN", b'{"id":NaN,"' + b'"' * 1_000_000, b"NaN" * 300_000]
    started = time.process_time()
    assert [address_of(event) for event in events] == [None] * 3
    assert time.process_time() - started < 5.0


def test_event_of_escaped_quotes_is_refused_in_linear_time() -> None:
    event = b'{"id":"' + b'\\"' * (MAX_EVENT_BYTES // 2 - 4)
    started = time.process_time()
    for _ in range(20):
        assert rejection_of_malformed(event).code == "malformed"
    assert time.process_time() - started < 5.0


@given(message=st.text(max_size=2000))
def test_rejection_reason_fits_an_answer(message: str) -> None:
    rejection = Rejection("wrong-partition", message)
    assert len(rejection.reason) <= 1024
    assert rejection.reason.startswith("wrong-partition: ")


def test_separately_built_worker_answers_as_the_driver() -> None:
    # Fingerprints and noise depend on the key, so a worker that is made by hand needs the driver's key.
    driver = installation(spec("feed-0"))
    worker = worker_of(driver)
    [mine] = answers_in(process_records(worker, records([query("a", "feed-0", 3.0)])), driver.topics)
    assert driver.ask_many([query("a", "feed-0", 3.0)]) == [mine]


def test_rejection_keeps_no_frames_of_earlier_raises() -> None:
    """One exception object is raised for each event that repeats a field; its frames would keep the events in memory."""
    worker = worker_of(installation(spec("people-0", "people")))
    event = b'{"id":"q","stream":"people-0","where":"age > 1","where":"age > 1"}'
    process_records(worker, records([event] * 50))
    assert len(list(walk_tb(admission._REPEATED_FIELD.__traceback__))) < 5
