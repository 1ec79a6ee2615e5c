"""The JSON Schemas accept the events that the models accept, and all written events."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from schemas import Query, Request
from schemas.queries import QUESTION_FIELDS
from sotto import Driver
from stream.dev.contract_events import CHANNELS, EVENTS, EXTENSIBLE_FIELDS, Channel, EventKind, standalone_schema
from stream.dev.contract_files import FEED_STATE
from stream.processing.topic_names import Topics
from tests.builders import KEY, installation, source, stream
from tests.unit.mechanisms import KINDS, SOURCES, ask, driver_with

BY_NAME = {event.name: event for event in EVENTS}
REQUESTS = ("RegisterSource", "OpenStream", "CloseStream", "HaltStream", "HaltSource")


def topic_of(topics: Topics, channel: Channel) -> str:
    """Return the topic of a channel; each live topic has a separate changelog."""
    name: Any = getattr(topics, channel.name)
    return str(name(LIVE["source"]) if channel.name == FEED_STATE else name)


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(standalone_schema(BY_NAME[name]))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_schema_is_valid_in_its_dialect(event: EventKind) -> None:
    Draft202012Validator.check_schema(standalone_schema(event))


def test_schemas_describe_every_topic_and_event() -> None:
    topics = Topics()
    assert {topic_of(topics, channel) for channel in CHANNELS if channel.name != FEED_STATE} == {
        value
        for name in dir(topics)
        if isinstance(value := getattr(topics, name), str) and value.startswith("sotto.")
    }
    assert {event.channel for event in EVENTS} | {"rejected"} == {channel.name for channel in CHANNELS}


# What is taken in. Nulls, and a fraction of false, are put up with but not promised: fields are to be left out.

numbers = st.one_of(st.integers(-(2 * 10**15), 2 * 10**15), st.floats(-2e15, 2e15), st.just(1e400))
words = st.one_of(st.text(max_size=3), st.sampled_from(["x" * 128, "x" * 129, "x" * 2048, "x" * 2049, "x" * 256]))
garbage = st.recursive(
    st.one_of(numbers, words, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)
weights = st.sampled_from([0.0, 1, -0.5, 1024.0, 1025.0, 1.5, "1"])
cells = st.fixed_dictionaries(
    {"at": st.dictionaries(words, st.one_of(numbers, words, st.booleans()), max_size=2)},
    optional={"weight": weights},
)
questions: dict[str, st.SearchStrategy[Any]] = {
    "value": numbers,
    "where": words,
    "threshold": numbers,
    "values": st.lists(numbers, max_size=3),
    "category": words,
    "fraction": st.just(value=True),
    "sum": words,
    "mean": words,
    "group_by": st.lists(words, max_size=3),
    "candidates": st.lists(
        st.fixed_dictionaries(
            {"name": words}, optional={"value": numbers | st.none(), "where": words | st.none(), "sum": words}
        ),
        max_size=2,
    ),
    "terms": st.lists(st.fixed_dictionaries({"where": words}, optional={"weight": weights}), max_size=2),
    "cells": st.lists(cells, max_size=2),
    "rate": words,
    "people": st.just(value=True),
    "min_rows": st.integers(0, 3),
    "person_sum": words,
    "bound": st.integers(0, 3),
    "top": st.integers(0, 3),
}


@st.composite
def queries(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"id": draw(words), "stream": draw(words)}
    for name in draw(st.lists(st.sampled_from(sorted(questions)), min_size=1, max_size=3)):
        found[name] = draw(
            questions[name] if name in {"fraction", "people"} or draw(st.integers(0, 5)) else garbage
        )
    if not draw(st.integers(0, 9)):
        found[draw(st.sampled_from(["note", "kind"]))] = draw(garbage)
    if not draw(st.integers(0, 9)):
        del found[draw(st.sampled_from(sorted(found)))]
    return found


def accepts(model: Any, document: Any) -> bool:
    try:
        TypeAdapter(model).validate_json(json.dumps(document))
    except ValidationError:
        return False
    return True


@given(queries())
def test_query_schema_accepts_same_documents_as_model(document: dict[str, Any]) -> None:
    assert validator("Query").is_valid(_infinite_as_nothing(document)) == accepts(Query, document)


def _infinite_as_nothing(value: Any) -> Any:
    """Replace infinite numbers by a value that no field accepts, because JSON has no infinity."""
    if isinstance(value, float) and abs(value) == float("inf"):
        return [[]]
    if isinstance(value, list):
        return [_infinite_as_nothing(one) for one in value]
    return {name: _infinite_as_nothing(one) for name, one in value.items()} if isinstance(value, dict) else value


def test_query_schema_has_forms_of_model() -> None:
    forms = standalone_schema(BY_NAME["Query"])["oneOf"]
    assert len(forms) == len(QUESTION_FIELDS) + 2
    common = {"id", "stream", "threshold"}
    named = set().union(*(form["properties"] for form in forms))
    assert named == set(Query.model_fields)
    assert all(common <= set(form["properties"]) for form in forms)


def requests() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"kind": "register", "request": "r", "source": source} for source in SOURCES.values()
    ]
    attributes = {"age": 85, "city": {"kind": "categories", "values": ["a", "b"], "other": "b"}}
    bins = {
        "income": {"kind": "bins", "edges": [0, 10.5, 20]},
        "n": {"kind": "integers", "minimum": 1, "maximum": 2},
    }
    found += [
        {"kind": "register", "request": "r", "source": {**SOURCES["people"], "attributes": attributes | bins}}
    ]
    found += [{"kind": "open", "request": "r", "stream": kind.spec()} for kind in KINDS]
    ending = {"request": "r", "source": "people"}
    found += [{"kind": kind, "stream": "s", **ending} for kind in ("close", "halt")]
    return [*found, {"kind": "halt_source", "reason": "audit", **ending}]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    parts = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for step, part in parts:
        yield from places(part, (*path, step))


@st.composite
def mutated_requests(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(requests())))
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(list(places(document))))
        parent: Any = document
        for step in path:
            parent = parent[step]
        match draw(st.integers(0, 3)):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent["more"] = 1
            case _:
                values: list[Any] = [
                    None,
                    True,
                    "x",
                    "",
                    -1,
                    0,
                    2,
                    0.5,
                    1e300,
                    [],
                    ["a", "b"],
                    {},
                    "pure",
                    "zcdp",
                    "clamp",
                ]
                parent[last] = draw(st.sampled_from(values))
        if not document:
            return document
    return document


@given(mutated_requests())
def test_request_schema_accepts_same_documents_as_model(document: dict[str, Any]) -> None:
    """Only the descriptions state rules about several fields together."""
    fits = any(validator(name).is_valid(document) for name in REQUESTS)
    try:
        TypeAdapter(Request).validate_json(json.dumps(document))
    except ValidationError as error:
        beyond = {"value_error"} >= {detail["type"] for detail in error.errors()}
        assert beyond or not fits
    else:
        assert fits


def test_request_schema_accepts_every_valid_request() -> None:
    for document in requests():
        assert [name for name in REQUESTS if validator(name).is_valid(document)] == [
            type(TypeAdapter(Request).validate_python(document)).__name__
        ]


# What is written.


LIVE = source(
    "visits",
    "events",
    topic="visits",
    epsilon=5.0,
    delta=1e-3,
    attributes={"ward": ["a", "b"], "note": {"kind": "text", "max_length": 20}},
    total=5,
)


def installations_in_use() -> Iterator[Driver]:
    """Yield installations in which streams of every mechanism are opened, asked, refused, crashed, closed and halted."""
    for kind in KINDS:
        driver = driver_with(kind)
        driver.open(kind.spec(stream="halted"), acknowledge=True)
        ask(driver, [*kind.questions, kind.wrong])
        for worker in driver._workers:
            driver.write(worker.collect_due_outputs(1.0))
        driver.halt(kind.source, "halted", "enough")
        driver.close(kind.source, "s")
        driver.halt("survey")
        yield driver
    private = Driver(KEY, partitions=1)
    private.register_population({"population": "patients", "epsilon": 5.0})
    private.register(
        {**SOURCES["feed"], "accountant": "zcdp", "delta": 1e-6, "renews": "1h", "population": "patients"}
    )
    private.allot("ada", 2.0, source="feed")
    private.open(next(kind for kind in KINDS if kind.source == "feed").spec(), acknowledge=True)
    private.ask_many([{"id": "a", "stream": "s", "value": 1.0}])
    private.wait(120.0)
    private.ask_many([{"id": "b", "stream": "s", "value": 1e9}])
    yield private
    # A record of an earlier version, whose ledger had no trail.
    place = (private.topics.ledger, 0)
    private._logs[place] = [one._replace(value=_without_trail(one.value)) for one in private._logs[place]]
    private.crash()
    private.open(next(kind for kind in KINDS if kind.source == "feed").spec(stream="t"), acknowledge=True)
    yield private
    live = installation(sources=[LIVE])
    live.advance("visits", "2026-01-01T00:00:00Z")
    for name, mechanism, by, fields in (
        ("whole", "histogram", "ward", {"attributes": ["ward"], "answers": 5}),
        ("so-far", "running_count", "ward", {"steps": 5}),
        ("notes", "running_count", "note", {"steps": 5}),
    ):
        standing = {"window": {"size": "1h"}, "by": [by]}
        delta = 1e-4 if by == "note" else 0.0
        live.open(stream(name, "visits", mechanism, mechanism=fields, standing=standing, delta=delta))
    live.publish("visits", [{"who": 7, "at": "2026-01-01T00:00:01Z", "ward": "a", "note": "once"}])
    live.advance("visits", "2026-01-01T02:00:00Z")
    yield live


def _without_trail(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    fields = json.loads(value)
    fields.pop("trail", None)
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def test_schemas_accept_all_written_records() -> None:
    seen: set[str] = set()
    for driver in installations_in_use():
        for channel in CHANNELS:
            if channel.name in {"queries", "requests", "rejected"}:
                continue
            names = [event.name for event in EVENTS if event.channel == channel.name]
            if channel.name == "merges":
                names.append("Progress")  # the same as in the workers' changelog
            for record in driver.records(topic_of(driver.topics, channel)):
                if record.value is None and channel.name not in {"answers", "trail", "charges", "partials"}:
                    continue  # a key that is not used any more
                if (record.key or b"").startswith(b"piece|"):
                    continue  # binary
                document = json.loads(record.value or b"null")
                fitting = [name for name in names if validator(name).is_valid(document)]
                assert fitting, f"{channel.name}: {document}"
                seen.update(fitting)
    outputs = {event.name for event in EVENTS if event.channel not in {"queries", "requests"}}
    # These need engines (the state of services), a command (a restored backup) or days (retired streams).
    # A driver reads tables at once, so no request waits.
    elsewhere = {
        "PartitionStatus",
        "MemberStatus",
        "TrailRestored",
        "RetiredNames",
        "RetiredStreams",
        "RetiredTotals",
        "WaitingRequest",
    }
    assert seen == outputs - elsewhere


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_schemas_are_closed_for_input_and_open_for_output(event: EventKind) -> None:
    closed = event.channel in {"queries", "requests"}
    schema = standalone_schema(event)
    objects = [schema, *schema.get("$defs", {}).values(), *schema.get("oneOf", [])]
    described = [one for one in objects if "properties" in one]
    assert described
    assert all((one.get("additionalProperties") is False) == closed for one in described)


def test_schemas_accept_other_words_only_in_open_lists() -> None:
    for model, name in EXTENSIBLE_FIELDS:
        assert name in model.model_fields
    document = {
        "role": "worker",
        "partition": 0,
        "member": "m",
        "phase": "later",
        "records": 0,
        "total": 0,
        "seconds": 0,
    }
    assert validator("PartitionStatus").is_valid(document)
    assert not validator("Answer").is_valid({"id": "a", "stream": "s", "outcome": "later"})


def test_schemas_refuse_null_for_omitted_default() -> None:
    answer = {"id": "a", "stream": "s", "outcome": "below"}
    assert validator("Answer").is_valid(answer)
    assert not validator("Answer").is_valid({**answer, "estimate": None})
    assert not validator("Query").is_valid({"id": "a", "stream": "s", "value": 1, "where": None})
