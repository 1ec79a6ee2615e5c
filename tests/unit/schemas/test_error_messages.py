"""Errors name the field and the remedy, and never quote a value that may be private."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    Control,
    LedgerRecord,
    Query,
    Request,
    Source,
    StreamSpec,
)
from schemas.base import cut_at_word, message_of_pattern
from schemas.wire import MAX_DESCRIPTION, Codec, MalformedEventError, describe, event_models
from stream.questions.question_forms import opening_adapter
from tests.builders import source, stream
from tests.unit.schemas.json_events import draw_damaged_query

query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
source_codec: Codec[Source] = Codec(Source, limit=MAX_DEFINITION_BYTES)


def message_of(codec: Codec[Any], data: bytes) -> str:
    with pytest.raises(MalformedEventError) as refused:
        codec.decode(data)
    return str(refused.value)


secrets = st.integers(2 * 10**7, 10**8 - 1).map(str)
"""The digits of a private value; they are so many that no message has them by chance."""

BROKEN_AROUND_A_SECRET = [
    '{"id":"a","stream":"s","value":"SECRET"}',
    '{"id":"a","stream":"s","threshold":SECRET99999999}',
    '{"id":"a","stream":"s","threshold":-SECRETe9}',
    '{"id":"a","stream":"s","value":SECRETe400}',
    '{"id":"a","stream":"s","value":[SECRET]}',
    '{"id":"a","stream":"s","value":{"a":SECRET}}',
    '{"id":"a","stream":"s","value":SECRET x}',
    '{"id":"a","stream":"s","value":0SECRET}',
    '{"id":"a","stream":"s","value":SECRET',
    '{"id":"a","stream":"s","value":SECRET,"where":"TRUE"}',
    '{"id":"a","stream":"s","value":SECRET,"threshold":"high"}',
    '{"id":"a","stream":"s","value":SECRET,"other":1}',
    '{"id":"a","stream":"s","other":SECRET}',
    '{"id":"a","value":SECRET}',
    '{"id":SECRET,"stream":"s"}',
    '{"id":"a","stream":"s","where":SECRET}',
    '{"id":"a","stream":"s","where":["SECRET"]}',
    '["a","s",SECRET]',
    "SECRET",
    '"SECRET"',
]


@given(template=st.sampled_from(BROKEN_AROUND_A_SECRET), secret=secrets)
@settings(deadline=None, max_examples=75)
def test_message_never_quotes_a_private_value(template: str, secret: str) -> None:
    assert secret not in message_of(query_codec, template.replace("SECRET", secret).encode())


@given(template=st.sampled_from(BROKEN_AROUND_A_SECRET), secret=secrets)
@settings(deadline=None, max_examples=75)
def test_validation_errors_of_models_quote_no_private_value(template: str, secret: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Query.model_validate_json(template.replace("SECRET", secret))
    assert secret not in f"{refused.value} {refused.value!r}"


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=10)
def test_message_is_one_short_line(seed: int) -> None:
    randomness = Random(seed)
    for data in (draw_damaged_query(randomness) for _ in range(400)):
        try:
            query_codec.decode(data)
        except MalformedEventError as error:
            message = str(error)
        else:
            continue
        assert 0 < len(message) <= 500
        assert "http" not in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "event: has no value"),
        (b"x" * (MAX_EVENT_BYTES + 1), f"event: {MAX_EVENT_BYTES + 1} bytes; send at most {MAX_EVENT_BYTES}"),
        (b"{", "event: Invalid JSON"),
        (b'{"stream":"s","value":1}', "id: is missing; give it"),
        (b'{"id":"a","value":1}', "stream: is missing; give it"),
        (b'{"id":"a","stream":"s","value":"1"}', "value: is not a number"),
        (
            b'{"id":"a","stream":"s","value":1,"threshold":2e15}',
            "threshold: is too large; give at most 1000000000000000",
        ),
        (b'{"id":"a","stream":"s","value":1,"threshold":[]}', "threshold: is not a number"),
        (b'{"id":"a","stream":"s","value":1,"color":1}', "field 4: unknown field; remove it"),
        (b'{"id":"a","stream":"s"}', "give exactly one question"),
        (b'{"id":"a","stream":"s","fraction":true}', "fraction: belongs to where; give both"),
        (b'{"id":"a","stream":"s","where":""}', "where: is too short; give 1 or more characters"),
    ],
)
def test_refused_query_names_field_and_reason(data: bytes | None, words: str) -> None:
    with pytest.raises(MalformedEventError) as refused:
        query_codec.decode(data)
    assert words in str(refused.value)


def test_event_of_exactly_the_limit_is_read() -> None:
    head, tail = b'{"id":"a","stream":"s","value":1', b"}"
    data = head + b" " * (MAX_EVENT_BYTES - len(head) - len(tail)) + tail
    assert query_codec.decode(data).value == 1.0


VALUES = source(epsilon=1.0)
TABLE = source("people", "table", epsilon=1.0, attributes={"age": 85, "sex": ["F", "M"]})


@pytest.mark.parametrize(
    ("document", "change", "words"),
    [
        (VALUES, {"kind": "feed"}, "kind"),
        (
            VALUES,
            {"source": "two words"},
            "source: a name has only letters from A to Z and a to z, digits and . _ : / @ + -",
        ),
        (VALUES, {"source": "line\n"}, "source: a name has only letters"),
        (
            VALUES,
            {"renews": "1 month"},
            "renews: give a whole number of days or hours, at most 9999, as 30d or 12h",
        ),
        (VALUES, {"source": "a" * 129}, "source: is too long; give at most 128"),
        (VALUES, {"neighbors": "swap"}, "neighbors: is unknown; give 'add-remove' or 'replace'"),
        (VALUES, {"epsilon": 0.0}, "epsilon: is too small; give at least"),
        (VALUES, {"epsilon": 1e400}, "epsilon: is not a finite number"),
        (VALUES, {"delta": 0.5}, "delta: is too large; give a number below 0.5"),
        (VALUES, {"accountant": "zcdp"}, "delta must be above 0 with accountant 'zcdp'"),
        (VALUES, {"accountant": "renyi"}, "accountant: is unknown; give 'pure' or 'zcdp'"),
        (VALUES, {"sensitivity": 0}, "sensitivity: is too small; give at least"),
        (VALUES, {"grid": -1}, "grid: is too small; give at least"),
        (VALUES, {"path": "x"}, "path: unknown field; remove it"),
        (TABLE, {"path": ""}, "path: is too short; give 1 or more characters"),
        (TABLE, {"attributes": {}}, "attributes: has too few items; give at least 1"),
        (
            TABLE,
            {"attributes": {"age": 0}},
            "attributes.field 1: maximum must not be below minimum",
        ),
        (TABLE, {"attributes": {"age": True}}, "attributes.field 1"),
        (TABLE, {"attributes": {"sex": []}}, "attributes.field 1: has too few items; give at least 1"),
        (TABLE, {"attributes": {"sex": ["F", "F"]}}, "values must be distinct; remove the repeated category"),
        (
            TABLE,
            {"attributes": {"sex": {"kind": "categories", "values": ["F"], "other": "X"}}},
            "other must be one of",
        ),
        (
            TABLE,
            {"attributes": {"age": {"kind": "integers", "minimum": 0, "maximum": 2**40}}},
            "declare bins instead",
        ),
        (TABLE, {"attributes": {"age": 2**60}}, "attributes.field 1: is too large; give at most 9007199254740992"),
        (TABLE, {"attributes": {"fare": {"kind": "bins", "edges": [1, 1]}}}, "edges must increase strictly"),
        (
            TABLE,
            {"attributes": {"fare": {"kind": "bins", "edges": [1, 1e400]}}},
            "attributes.field 1.edges.1",
        ),
    ],
)
def test_refused_source_names_field_and_reason(
    document: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    assert words in message_of(source_codec, json.dumps({**document, **change}).encode())


STREAM = stream("alarms", mechanism={"threshold": 10.0})


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        (
            {"kind": "begin", "request": "1"},
            "kind: give one of 'register', 'open', 'extend', 'close', 'halt', 'halt_source'",
        ),
        ({"request": "1"}, "kind: give one of 'register', 'open', 'extend', 'close', 'halt', 'halt_source'"),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "mechanism": {"threshold": 3}}},
            "stream.mechanism.kind: give one of 'above_threshold', 'numeric_sparse', 'laplace'",
        ),
        ({"kind": "open", "stream": STREAM}, "request: is missing; give it"),
        ({"kind": "open", "request": "", "stream": STREAM}, "request: is too short; give 1 or more"),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "epsilon": "1"}},
            "stream.epsilon: is not a number; give one, without quotes",
        ),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "stream": "a b"}},
            "stream.stream: a name has only letters",
        ),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "beta": 1}},
            "stream.beta: is too large",
        ),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "expected_queries": 0}},
            "stream.expected_queries",
        ),
        ({"kind": "open", "request": "1", "stream": {**STREAM, "calibration": "x"}}, "stream.calibration"),
        (
            {"kind": "open", "request": "1", "stream": {**STREAM, "mechanism": {"kind": "median"}}},
            "stream.mechanism.kind: give one of 'above_threshold', 'numeric_sparse', 'laplace'",
        ),
        (
            {
                "kind": "open",
                "request": "1",
                "stream": {**STREAM, "mechanism": {**STREAM["mechanism"], "cutoff": 0}},
            },
            "stream.mechanism.cutoff",
        ),
        ({"kind": "close", "request": "1", "source": "feed"}, "stream: is missing; give it"),
        (
            {"kind": "halt", "request": "1", "source": "feed", "stream": 1},
            "stream: is not a text",
        ),
        (
            {"kind": "halt_source", "request": "1", "source": "feed", "stream": "a"},
            "stream: unknown field; remove it",
        ),
        (
            {"kind": "register", "request": "1", "source": {**VALUES, "epsilon": 0}},
            "source.epsilon",
        ),
    ],
)
def test_refused_request_names_field_and_reason(request_fields: dict[str, Any], words: str) -> None:
    assert words in message_of(request_codec, json.dumps(request_fields).encode())


@pytest.mark.parametrize("model", [Request, Control, LedgerRecord])
def test_every_codec_refuses_bytes_that_are_no_json(model: Any) -> None:
    assert "Invalid JSON" in message_of(Codec(model, limit=100), b"\xff")


STANDING: dict[str, Any] = {"window": {"size": "1h"}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"standing": {"mean": "delay", "window": {"size": "1h"}}},
            "standing.mean: unknown field; ask for the sum on one stream and for the events on another, or for a quantile",
        ),
        ({"mechanism": {"kind": "laplace", "cutoff": 9}}, "mechanism.cutoff: unknown field; give 'answers' in its place"),
        (
            {"mechanism": {"kind": "above_threshold", "threshold": 1, "answers": 9}},
            "mechanism.answers: unknown field; give 'cutoff' in its place",
        ),
        (
            {"mechanism": {"kind": "histogram", "attributes": ["a"], "cutoff": 9}},
            "mechanism.cutoff: unknown field; remove it",
        ),
        ({"mechanism": {"kind": "histogram", "attributes": "a"}}, "mechanism.attributes: is not a list; give one, in brackets"),
        ({"mechanism": "laplace"}, "mechanism: is not an object; give one with its fields, in braces"),
        ({"standing": {**STANDING, "window": "1h"}}, "standing.window: is not an object; give one with its fields, in braces"),
        *(
            ({"standing": {**STANDING, "count": count}}, "standing.count: give 'events', 'people', or {\"sum\": NAME} with the name of an attribute, as text")
            for count in ("flights", {"mean": "delay"}, {"sum": 3}, None)
        ),
    ],
)  # fmt: skip
def test_stream_error_is_one_sentence_without_python_terms(change: dict[str, Any], words: str) -> None:
    given = {**STREAM, **change}
    with pytest.raises(ValidationError) as refused:
        StreamSpec.model_validate(given)
    assert describe(refused.value, given=given) == words


@pytest.mark.parametrize("field", ["group_by", "terms", "candidates", "cells", "values"])
def test_text_in_place_of_a_list_is_named_as_the_fault(field: str) -> None:
    message = message_of(query_codec, json.dumps({"id": "a", "stream": "s", field: "sex"}).encode())
    assert message == f"{field}: is not a list; give one, in brackets"


def test_every_pattern_has_a_message_in_words() -> None:
    for model in event_models():
        for name, field in model.model_fields.items():
            for one in field.metadata:
                pattern = getattr(one, "pattern", None)
                assert pattern is None or message_of_pattern(pattern), f"{model.__name__}.{name}"


def test_rule_of_the_contract_has_its_own_message() -> None:
    assert message_of(query_codec, b'{"id":"a","stream":"s"}').startswith(
        "event: give exactly one question: value"
    )
    with pytest.raises(ValidationError) as refused:
        Query.model_validate_json(b'{"id":"a","stream":"s"}')
    assert describe(refused.value).startswith("give exactly one question: value")


def test_message_lists_three_faults_and_counts_the_rest() -> None:
    fields = {"id": "a", "stream": "s", "value": 1.0}
    three, four, twenty = (
        message_of(query_codec, json.dumps(fields | {f"x{number}": 1 for number in range(count)}).encode())
        for count in (3, 4, 20)
    )
    assert three == "; ".join(f"field {number}: unknown field; remove it" for number in (4, 5, 6))
    assert four == f"{three}; and 1 more"
    assert twenty == f"{three}; and 17 more"


def test_message_counts_the_rest_even_with_long_names() -> None:
    with pytest.raises(ValidationError) as refused:
        Query.model_validate({f"{'x' * 200}{number}": 1 for number in range(9)})
    message = describe(refused.value)
    assert len(message) <= MAX_DESCRIPTION
    assert message.endswith("; and 8 more")


def test_long_message_names_all_mechanisms_and_is_cut_between_words() -> None:
    """A cut in the middle of a word, as ``'lazy_histogram', 'u``, looks like another name."""
    spec = {"stream": "s", "source": "feed", "mechanism": {"kind": "laplase"}, "epsilon": 1.0}
    with pytest.raises(ValidationError) as refused:
        opening_adapter().validate_python(spec)
    message = describe(refused.value, given=spec)
    assert message.startswith("mechanism.kind: did you mean 'laplace'? give one of 'above_threshold', ")
    assert message.endswith("'auto'")
    assert len(cut_at_word("word " * 100, 18)) <= 18
    assert (cut_at_word("one 'two', 'three'", 14), cut_at_word("x" * 9, 8)) == ("one 'two', …", "xxxxxx …")


def test_message_names_a_field_as_it_was_given() -> None:
    with pytest.raises(ValidationError) as refused:
        Query.model_validate({"id": "a", "stream": "s", "value": 1.0, "cells": [{"at": {}}]})
    assert describe(refused.value, lambda name: f"--{name}").startswith("--cells.0.at: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": 1}, "extra: unknown field; remove it"),
        ({"attribute": {}}, "attribute: unknown field; did you mean 'attributes'?"),
        ({"kind": "tabel"}, "kind: did you mean 'table'? give one of 'values', "),
        ({"attributes": {"age": {"kind": "integer"}}}, "attributes.age.kind: did you mean 'integers'? give one of "),
        ({"attributes": {"age": {"kind": "integers", "minmum": 9, "maximum": 9}}}, "attributes.age.minimum: is missing"),
        ({"attributes": {"integers": {"kind": "integers", "minimum": "x", "maximum": 3}}}, "attributes.integers.minimum: "),
        ({"attributes": {"age": {"kind": "integers", "minimum": 9, "maximum": 3}}}, "attributes.age: maximum must not"),
        ({"attributes": {"values": ["a", 3]}}, "attributes.values.1: "),
    ],
)  # fmt: skip
def test_describe_names_fields_as_they_were_given(change: dict[str, Any], words: str) -> None:
    """A field's name contains no kind of the contract that its author did not write."""
    given = {**TABLE, **change}
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Source).validate_python(given)
    assert describe(refused.value, given=given).startswith(words)
    assert message_of(Codec(Source, limit=10_000), json.dumps({**TABLE, "extra": 1}).encode()).startswith("field ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expected_querys": 3}, "expected_querys: unknown field; did you mean 'expected_queries'?"),
        ({"standing": {"window": {"size": "1h", "evry": "1m"}}}, "standing.window.evry: unknown field; did you mean 'every'?"),
        ({"standing": {"cuont": "events", "window": {"size": "1h"}}}, "standing.cuont: unknown field; did you mean 'count'?"),
    ],
)  # fmt: skip
def test_describe_suggests_fields_of_objects_without_a_kind(change: dict[str, Any], words: str) -> None:
    """An unknown field is compared with the fields of the objects that have its neighbors."""
    given = stream(**change)
    with pytest.raises(ValidationError) as refused:
        opening_adapter().validate_python(given)
    assert words in describe(refused.value, given=given)


def test_describe_suggests_no_field_of_an_outer_object() -> None:
    given = {"id": "a", "stream": "s", "cells": [{"cell": [5, "F"]}]}
    with pytest.raises(ValidationError) as refused:
        Query.model_validate(given)
    assert "cells.0.cell: unknown field; remove it" in describe(refused.value, given=given)


def test_missing_neighbors_is_refused_with_both_values() -> None:
    """A source without ``neighbors`` is refused with its two values, what each protects, and which is recommended."""
    given = {name: value for name, value in TABLE.items() if name != "neighbors"}
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Source).validate_python(given)
    assert describe(refused.value, given=given) == (
        "neighbors: is missing; give 'add-remove' (recommended: how many people there are stays private) or "
        "'replace' (their number is public)"
    )


@pytest.mark.parametrize(
    ("names", "listed"), [(["a"], "'a'"), (["d", "c", "b", "a", "e"], "'a', 'b', 'c' and 2 more")]
)
def test_columns_of_no_attribute_are_named(names: list[str], listed: str) -> None:
    """A definition's names are public, so the message has up to three of them."""
    columns = dict.fromkeys(names, "x")
    given = source("people", "table", path="p.csv", attributes={"age": 9}, columns=columns, epsilon=1)
    refused = message_of(source_codec, json.dumps(given).encode())
    assert f"columns: not attributes: {listed}; declare them in attributes" in refused


@pytest.mark.parametrize("ahead", [5, "5", "5 m", "x" * 40])
def test_span_without_a_unit_is_refused_with_the_units(ahead: object) -> None:
    topic = {"kind": "events", "source": "a", "neighbors": "replace", "epsilon": 1, "topic": "a", "time": "t"}
    message = message_of(source_codec, json.dumps({**topic, "person": "p", "ahead": ahead}).encode())
    assert (
        message == "ahead: is no span of time with a unit; give one as 90s, 15m, 1h, 2d, or in ISO 8601 as PT15M"
    )
