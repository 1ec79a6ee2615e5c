"""Only a refused event's id, stream and positions, declared names and words of the contract reach a public topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.answers import HEADER_PREFIX
from sotto import Driver
from stream.budget.openings import PLAN_FAILED_MESSAGE
from stream.monitor.api.source_views import RejectedQuery, list_rejected
from stream.monitor.monitor_tables import MonitorTables
from tests.builders import installation, source
from tests.unit.budget.budget_service import TOPICS, opening, ready, receipts_in, register
from tests.unit.installation import messages_to, spec

MARKER = "patient Alice Smith HIV+"
STREAMS = ("feed-0", "people-0", "sums", "nobody")
FIELDS = (
    *("value", "values", "where", "threshold", "category", "fraction", "sum", "mean", "group_by"),
    *("rate", "people", "min_rows", "person_sum", "bound", "top"),
)
NESTED = ("candidates", "terms", "cells")

texts = st.sampled_from(
    [MARKER, f'"{MARKER}" = 1', f"sex = '{MARKER}'", f"age = 1 AND {MARKER}", f"'{MARKER}", "TRUE"]
)
scalars = st.one_of(texts, st.none(), st.booleans(), st.integers(-5, 200), st.floats(allow_nan=False, width=32))
names = st.sampled_from([MARKER, "name", "where", "weight", "at", "sum", "value", "age", "sex"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
mutants = st.fixed_dictionaries(
    {"id": st.just("mine"), "stream": st.sampled_from(STREAMS)},
    optional={**dict.fromkeys((*FIELDS, *NESTED), values), MARKER: values, f"value\n{MARKER}": scalars},
)


def new_driver() -> Driver:
    streams = (
        spec("feed-0"),
        spec("people-0", "people", threshold=1000.0),
        spec("sums", "people", mechanism={"kind": "laplace", "answers": 1000}),
    )
    return installation(*streams)


def public_outputs_of(driver: Driver, event: bytes) -> list[bytes]:
    """Return all public effects of one event: answers, headers of dead letters, and the monitor's page of refusals."""
    before = {topic: len(driver.records(topic)) for topic in vars_of(driver)}
    driver.send(0, event)
    texts: list[bytes] = []
    tables = MonitorTables(driver.topics)
    for topic, known in before.items():
        for record in driver.records(topic)[known:]:
            ours = topic == driver.topics.rejected
            texts += [b"" if ours else record.key or b"", b"" if ours else record.value or b""]
            texts += [value for _, value in record.headers]
            if ours:
                tables.add_record(record)
    return [*texts, list_rejected(tables, RejectedQuery()).model_dump_json().encode()]


def vars_of(driver: Driver) -> list[str]:
    topics = driver.topics
    return [
        topics.answers,
        topics.rejected,
        topics.status,
        topics.state,
        topics.charges,
        topics.ledger,
        topics.trail,
        topics.control,
    ]


@given(mutant=mutants, cut=st.integers(0, 40))
@settings(deadline=None, max_examples=150)
def test_refused_query_is_not_quoted_in_public(mutant: dict[str, Any], cut: int) -> None:
    driver = SHARED
    event = json.dumps(mutant).encode()
    for one in (event, event[: max(0, len(event) - cut)]):
        for text in public_outputs_of(driver, one):
            assert b"Alice" not in text


SHARED = new_driver()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"value": 1.0, MARKER: 1}, "malformed: field 4: unknown field; remove it"),
        (
            {"where": f'"{MARKER}" = 1'},
            "character 1: no declared attribute has this name; declared are 'age', 'sex'",
        ),
        ({"where": f"sex = '{MARKER}'"}, "character 7: this text is not a declared value of 'sex'"),
        ({"where": "age >= '30'"}, "character 8: 'age' is numeric; write numbers without quotes"),
        ({"where": f"sex LIKE '{MARKER}'"}, "character 5: LIKE is not allowed in a predicate"),
        ({"where": "age = 1 AND (sex = 'F'"}, "line 1, column"),
        ({"terms": [{"where": "TRUE", MARKER: 2}]}, "malformed: terms.0.field 2: unknown field; remove it"),
        (
            {"group_by": ["sex", MARKER]},
            "malformed: group_by: name 2 is no attribute of the table, which has 'age', 'sex'",
        ),
    ],
)
def test_rejection_names_the_place_and_the_remedy(event: dict[str, Any], words: str) -> None:
    stream = "sums" if "group_by" in event else "people-0"
    answer = SHARED.send(0, json.dumps({"id": "a", "stream": stream, **event}).encode())
    assert answer is not None
    assert words in (answer.reason or "")


@pytest.mark.parametrize(
    "request_bytes",
    [
        register("1", **{MARKER: 1}),
        register("1", attributes={MARKER: {"kind": "integers", "minimum": MARKER}}, kind="table"),
        opening("1", "alarms", mechanism={"kind": MARKER}),
        opening("1", "alarms", mechanism={"kind": "pmw", "attributes": [MARKER], "updates": 1}, source="people"),
        opening("1", "alarms", mechanism={"kind": "laplace", "answers": 1, "sums": [MARKER]}, source="people"),
        json.dumps({"kind": MARKER}).encode(),
        b'{"' + MARKER.encode(),
    ],
)
def test_refused_request_is_not_quoted_in_public(request_bytes: bytes) -> None:
    service = ready()
    service.send(
        json.dumps({"kind": "register", "request": "0", "source": source("people", "table", path="none")}).encode()
    )
    outputs = service.send(request_bytes)
    texts = [value or b"" for _, value, _ in messages_to(outputs, TOPICS.ledger)]
    for _, _, headers in messages_to(outputs, TOPICS.rejected):
        texts += [value for name, value in headers if name.startswith(HEADER_PREFIX)]
    assert any(b"refused" in one or b"malformed" in one for one in texts)
    assert not [one for one in texts if b"Alice" in one]


@pytest.mark.parametrize("error", [ValueError, OverflowError])
def test_planner_errors_refuse_without_their_message(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an arithmetic error, the service refuses in its own words, and a log line names the place of the error."""

    def breaks(*_: object) -> None:
        raise error(MARKER)

    monkeypatch.setattr("stream.budget.openings.choose_calibration", breaks)
    with capture_logs() as lines:
        outputs = ready().send(opening("1", "alarms"))
    [receipt] = receipts_in(outputs)
    assert (receipt.outcome, receipt.reason) == ("refused", PLAN_FAILED_MESSAGE)
    assert not [value for _, value, _ in messages_to(outputs, TOPICS.ledger) if b"Alice" in (value or b"")]
    [line] = [one for one in lines if one["event"] == "stream not planned"]
    assert line["error"] == error.__name__
    assert "Alice" not in str(line)


def test_error_outside_the_planner_refuses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error fails the task, which retries the request; it does not refuse the request."""

    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("stream.budget.openings.definition_digest", breaks)
    with pytest.raises(ZeroDivisionError):
        ready().send(opening("1", "alarms"))
