"""A repeated field is refused on every topic, in any spelling."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_RECORD_BYTES, Answer, Charge, Control, LedgerRecord, Query, Request, StreamStatus
from schemas.base import REPEATED_FIELD, may_repeat_a_field, repeats_a_field
from schemas.wire import Codec, MalformedEventError, struct
from stream.worker.stream_records import DefinitionReader
from stream.worker.stream_terms import TermsTable
from tests.builders import installation
from tests.processing import process_records
from tests.unit.histories import asked_installation
from tests.unit.installation import LOW, messages_to, query, records, spec, worker_of
from tests.unit.schemas.json_events import repeats_a_name

decode: Any = msgspec.json.Decoder(struct(Query)).decode
TOPICS: dict[str, Codec[Any]] = {
    topic: Codec(model, limit=MAX_RECORD_BYTES)
    for topic, model in (
        ("queries", Query),
        ("answers", Answer),
        ("requests", Request),
        ("control", Control),
        ("charges", Charge),
        ("ledger", LedgerRecord),
        ("status", StreamStatus),
    )
}


WRONG = b'"surplus": true'
"""The text that all malformed queries of the load contain."""


@cache
def events(topic: str) -> list[bytes]:
    """Return the events that an installation with every mechanism wrote to a topic."""
    driver = asked_installation()
    if topic == "status":
        spent, position = {"epsilon": 1.0, "delta": 0.0}, {"topic": "sotto.queries", "partition": 0, "offset": 7}
        names = {"stream": "ward", "source": "feed", "incarnation": "0" * 32, "state": "open"}
        figures = {"answered": 3, "tops": 1, "tops_left": 2, "alpha": 12.5}
        return [json.dumps({**names, **figures, "spent": spent, "position": position}).encode()]
    return [
        record.value
        for record in driver.records(getattr(driver.topics, topic))
        if record.value is not None and not (record.key or b"").startswith(b"@") and WRONG not in record.value
    ]


def with_a_repeat(value: bytes, place: int, spelling: str = "") -> bytes | None:
    """Return the event with the field at a place repeated with the same value; None if there is no such field."""
    fields: list[str] = []

    def write(tree: Any) -> str:
        if isinstance(tree, dict):
            return "{" + ",".join(pair for name, inner in tree.items() for pair in pairs(name, write(inner))) + "}"
        if isinstance(tree, list):
            return "[" + ",".join(map(write, tree)) + "]"
        return json.dumps(tree, ensure_ascii=False)

    def pairs(name: str, inner: str) -> list[str]:
        fields.append(name)
        member = f"{json.dumps(name)}:{inner}"
        again = f'"{_escape_name(name) if spelling else name}":{inner}'
        return [member, again] if len(fields) == place + 1 else [member]

    text = write(json.loads(value))
    return text.encode() if len(fields) > place else None


def _escape_name(name: str) -> str:
    return "".join(f"\\u{ord(sign):04x}" for sign in name)


@pytest.mark.parametrize("topic", TOPICS)
def test_event_of_any_topic_with_a_repeated_field_is_refused(topic: str) -> None:
    assert events(topic)
    for value in events(topic)[:40]:
        assert TOPICS[topic].decode(value)
        for spelling in ("", "escaped"):
            place = 0
            while (repeated := with_a_repeat(value, place, spelling)) is not None:
                with pytest.raises(MalformedEventError, match=REPEATED_FIELD):
                    TOPICS[topic].decode(repeated)
                place += 1
            assert place > 0


def test_definition_reader_refuses_a_repeated_field() -> None:
    reader = DefinitionReader(TermsTable())
    for value in events("control"):
        assert reader.read([value]) != [None]
        place = 0
        while (repeated := with_a_repeat(value, place)) is not None:
            assert reader.read([value, repeated])[1] is None
            place += 1


FORMS: list[dict[str, Any]] = [
    {"value": 1.5},
    {"value": 1.5, "threshold": 2.0},
    {"where": 'sex = "F\\"'},
    {"where": "age > 3", "fraction": True},
    {"values": [1.0, 2.0]},
    {"category": 'a"b'},
    {"sum": "age", "where": "TRUE"},
    {"group_by": ["age", "sex"]},
    {"terms": [{"where": "TRUE"}, {"where": "FALSE", "weight": 0.5}]},
    {"cells": [{"at": {"age": 3, "sex": 'F"'}, "weight": 0.5}, {"at": {"age": 4}}]},
]
texts = st.text(st.sampled_from('ab"\\é\x00'), min_size=1, max_size=6)


@given(st.sampled_from(FORMS), texts, texts, st.booleans(), st.integers(0, 30), st.booleans())
@settings(max_examples=75, deadline=None)
def test_quick_repeat_test_misses_no_repeat(
    form: dict[str, Any], identifier: str, stream: str, ascii_only: bool, place: int, nulls: bool
) -> None:
    """It passes queries as clients write them."""
    fields = {"id": identifier, "stream": stream, **form, **({"mean": None} if nulls else {})}
    plain = json.dumps(fields, ensure_ascii=ascii_only).encode()
    assert not repeats_a_field(plain)
    if not nulls and "\\" not in plain.decode():
        assert not may_repeat_a_field(plain, decode(plain))
    repeated = with_a_repeat(plain, place)
    if repeated is not None:
        assert repeats_a_name(repeated)
        assert repeats_a_field(repeated)
        assert may_repeat_a_field(repeated, decode(repeated))


@given(st.lists(st.tuples(texts, st.sampled_from(FORMS[:2]), st.integers(-1, 4)), min_size=1, max_size=8))
@settings(max_examples=75, deadline=None)
def test_worker_refuses_exactly_the_queries_with_repeated_fields(
    asked: list[tuple[str, dict[str, Any], int]],
) -> None:
    batch, repeated = [], []
    for identifier, form, place in asked:
        value = json.dumps({"id": identifier, "stream": "feed-0", **form}).encode()
        again = with_a_repeat(value, place) if place >= 0 else None
        batch.append(value if again is None else again)
        repeated.append(again is not None)
    driver = installation(spec("feed-0"))
    outputs = process_records(worker_of(driver), records(batch))
    answers = [json.loads(value or b"") for _, value, _ in messages_to(outputs, driver.topics.answers)]
    assert [one["outcome"] == "rejected" for one in answers] == repeated
    assert all(REPEATED_FIELD in one["reason"] for one in answers if one["outcome"] == "rejected")
    refused = [value for _, value, _ in messages_to(outputs, driver.topics.rejected)]
    assert refused == [value for value, twice in zip(batch, repeated, strict=True) if twice]


def test_omitted_null_hides_no_repeated_field() -> None:
    driver = installation(spec("feed-0"))
    hidden = b'{"id":"a","stream":"feed-0","candidates":[{"name":"a","value":1,"value":1,"value":1}]}'
    [answer] = driver.ask_many([hidden])
    assert REPEATED_FIELD in (answer.reason or "")


def test_escaped_quote_hides_no_repeated_field() -> None:
    driver = installation(spec("feed-0"))
    hidden = b'{"id":"\\u0022","stream":"feed-0","value":-1e9,"value":-1e9}'
    null = b'{"id":"a","stream":"feed-0","value":-1e9,"threshold":null}'
    outputs = process_records(worker_of(driver), records([hidden, null, query("b", "feed-0", LOW)]))
    answers = [json.loads(value or b"")["outcome"] for _, value, _ in messages_to(outputs, driver.topics.answers)]
    assert answers == ["rejected", "below", "below"]
