"""Private and secret values appear in no readable place: topics, headers, logs and exceptions."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from schemas import Query
from sotto import Driver, Refused
from stream.privacy.noise.keyed_noise import DrawRole
from stream.processing.protocol import Record
from tests.builders import source
from tests.privacy.service import KEY, Derived, definition_of, everything, feed, stream

PRIVATE = 314159265.25
DIGITS = "314159265"
"""The digits of every private value below; no public number has them."""

ROWS = 27183
"""A private count."""

MINUTE_GRID = 1e-9
"""A grid so fine that noise is a number of about ten digits, which no other number equals by chance."""

MALFORMED = [
    f'{{"id": "m1", "stream": "high", "value": "{PRIVATE}"}}',
    f'{{"id": "m2", "stream": "high", "value": [{PRIVATE}]}}',
    f'{{"id": "m3", "stream": "high", "value": {{"it": {PRIVATE}}}}}',
    f'{{"id": "m4", "stream": "high", "value": "{PRIVATE}e300"}}',
    f'{{"id": "m5", "stream": "high", "value": {PRIVATE}, "threshold": "{PRIVATE}"}}',
    f'{{"id": "m6", "stream": "high", "value": {PRIVATE}, "where": "age = 1"}}',
    f'{{"id": "m7", "stream": "high", "value": {PRIVATE}, "surplus": {PRIVATE}}}',
    f'{{"id": "m8", "stream": "people", "value": {PRIVATE}}}',
    f'{{"id": "m9", "stream": "nobody", "value": {PRIVATE}}}',
    f'{{"id": "m10", "stream": "high", "value": {PRIVATE}',
    f'{{"id": 5, "stream": "high", "value": {PRIVATE}}}',
    f'{{"stream": "high", "value": {PRIVATE}}}',
    f'["high", {PRIVATE}]',
    f"{PRIVATE}",
    f'{{"id": "m11", "stream": "high", "value": {PRIVATE}, "surplus": "{"x" * 20000}"}}',
    f'{{"id": "m12", "stream": "high", "value": {PRIVATE}, "value": null}}',
]

TABLE = source(
    "table",
    "table",
    attributes={
        "age": {"kind": "integers", "minimum": 0, "maximum": 120, "outside": "clamp"},
        "wage": {"kind": "bins", "edges": [0.0, 1000.0, 1e12]},
        "town": {"kind": "categories", "values": ["here", "elsewhere"], "other": "elsewhere"},
    },
)

PEOPLE = {
    "age": [int(PRIVATE)] * ROWS + [7],
    "wage": [PRIVATE] * ROWS + [1.0],
    "town": [f"town {DIGITS}"] * ROWS + ["here"],
}


Session = tuple[Driver, list[Any]]


def publish_status(driver: Driver) -> None:
    for worker in driver._workers:
        driver.write(worker.collect_due_outputs(1e9))


@pytest.fixture(scope="module")
def session() -> Session:
    """Run answers, rejections, halts, closings, crashes and redeliveries over private values; return the installation and its log."""
    with capture_logs() as logs:
        driver = Driver(KEY, partitions=2)
        driver.register({**feed(grid=MINUTE_GRID), "minimum": -1e6, "maximum": 1e6})
        driver.register(feed("coarse"))
        driver.register(TABLE, PEOPLE)
        driver.open(stream("high", 3))
        driver.open(stream("low", 3, calibration="textbook"))
        driver.open(stream("grained", 2, source="coarse"))
        driver.open(stream("halted", 2))
        driver.open(stream("people", 2, source="table", monotone=True, threshold=500.0))
        driver.ask_many(
            {"id": f"{name} {i}", "stream": name, "value": sign * (PRIVATE + i)}
            for i in range(3)
            for name, sign in (("high", -1), ("low", 1), ("low", -1), ("grained", 1), ("halted", -1))
        )
        driver.redeliver()
        driver.ask_many([{"id": "near", "stream": "high", "value": PRIVATE, "threshold": PRIVATE // 1000}])
        driver.ask_many([event.encode() for event in MALFORMED])
        driver.redeliver()
        for partition in range(2):
            driver.send(partition, f'{{"id": "lost", "stream": "high", "value": {PRIVATE}}}'.encode())
            driver.send(partition, f"\xff{PRIVATE}".encode("latin-1"))
        driver.ask_many(
            {"id": f"p{i}", "stream": "people", "where": where} for i, where in enumerate(["age = 120", "age = 7"])
        )
        driver.ask_many([{"id": "bad", "stream": "people", "where": "height = 3"}])
        publish_status(driver)
        driver.halt("feed", "halted")
        driver.ask_many([{"id": "late", "stream": "halted", "value": PRIVATE}])
        driver.crash()
        driver.ask_many([{"id": "later", "stream": "low", "value": PRIVATE}])
        driver.close("feed", "high")
        driver.halt("feed")
        driver.ask_many([{"id": "last", "stream": "low", "value": PRIVATE}])
        with pytest.raises(Refused):
            driver.open(stream("more", 1))
        publish_status(driver)
    return driver, logs


def visible(driver: Driver, record: Record) -> bytes:
    """Return a record's bytes that must not be private: all except the values of queries and of dead letters, which repeat queries."""
    parts = [record.key or b"", *(name.encode() + b" " + value for name, value in record.headers)]
    if record.topic not in (driver.topics.queries, driver.topics.rejected):
        parts.append(record.value or b"")
    return b"\n".join(parts)


def visible_text(driver: Driver) -> bytes:
    return b"\n".join(visible(driver, record) for record in everything(driver))


def test_session_has_every_kind_of_record(session: Session) -> None:
    driver, _ = session
    topics = driver.topics
    for topic in (
        topics.answers,
        topics.state,
        topics.charges,
        topics.ledger,
        topics.trail,
        topics.rejected,
        topics.status,
    ):
        assert driver.records(topic), topic
    answers = b"".join(record.value or b"" for record in driver.records(topics.answers))
    for outcome in (b'"above"', b'"below"', b'"halted"', b'"rejected"'):
        assert outcome in answers
    assert any(DIGITS.encode() in (record.value or b"") for record in driver.records(topics.queries))


def test_private_values_appear_only_in_queries_and_dead_letters(session: Session) -> None:
    driver, _ = session
    text = visible_text(driver)
    steps = [PRIVATE / MINUTE_GRID, PRIVATE]
    forms = [
        DIGITS,
        f"{PRIVATE:e}"[:9],
        *(f"{int(step)}" for step in steps),
        f"{int(PRIVATE):x}",
        str(ROWS),
        f"town {DIGITS}",
    ]
    for form in forms:
        assert form.encode() not in text, form


def test_dead_letters_are_the_original_bytes(session: Session) -> None:
    driver, _ = session
    topics = driver.topics
    originals = {record.value for record in driver.records(topics.queries)}
    letters = driver.records(topics.rejected)
    assert len(letters) >= len(MALFORMED)
    assert {record.value for record in letters} <= originals


def test_draws_of_noise_appear_nowhere(session: Session) -> None:
    driver, _ = session
    text = b"\n".join(
        [visible_text(driver), *(record.value or b"" for record in driver.records(driver.topics.rejected))]
    )
    numbers: list[int] = []
    for name in ("high", "low", "halted"):
        derived = Derived(KEY, definition_of(driver, name))
        for tops in range(4):
            numbers += [derived.threshold_noise(tops), derived.barrier(tops)]
        asked = [record for record in driver.records(driver.topics.queries) if record.key == name.encode()]
        numbers += [derived.query_noise(record) for record in asked]
    large = [abs(number) for number in numbers if abs(number) > 10**7]
    assert len(large) > 0.9 * len(numbers)
    for number in large:
        in_units = f"{number * MINUTE_GRID:.9f}".rstrip("0")[:9]
        for form in (str(number), f"{number:x}", in_units):
            assert form.encode() not in text, form


def secrets_of(driver: Driver) -> Iterator[bytes]:
    keys = [KEY.secret, KEY.subkey("sotto table fingerprint v1")]
    for name in ("high", "low", "people"):
        derived = Derived(KEY, definition_of(driver, name))
        keys += [derived._subkey(role) for role in DrawRole]
    for key in keys:
        yield from (key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key), repr(key).encode())


def test_keys_appear_nowhere(session: Session) -> None:
    driver, logs = session
    text = b"\n".join(
        [visible_text(driver), *(record.value or b"" for record in everything(driver)), repr(logs).encode()]
    )
    assert KEY.key_id.encode() in text
    for secret in secrets_of(driver):
        assert secret not in text
    for shown in (repr(KEY), str(KEY), repr(driver), *map(repr, driver._workers)):
        assert not any(secret in shown.encode() for secret in secrets_of(driver))


def test_logs_contain_nothing_private(
    session: Session, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    _, logs = session
    with caplog.at_level(logging.DEBUG):
        driver = Driver(KEY)
        driver.register(feed())
        driver.open(stream("high", 3))
        driver.ask_many(
            [{"id": "1", "stream": "high", "value": PRIVATE}, *(event.encode() for event in MALFORMED)]
        )
        driver.crash()
    output = capfd.readouterr()
    text = repr(logs) + caplog.text + output.out + output.err
    assert DIGITS not in text
    assert KEY.secret.hex() not in text


def shown_by(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


def refusal_of(driver: Driver, table: pl.DataFrame) -> str:
    """Return the reason for which a table is refused, or an empty text."""
    try:
        driver.register(TABLE, table)
        driver.open(stream("people", 2, source="table", monotone=True))
        driver.ask_many([{"id": "1", "stream": "people", "where": "age = 7"}])
    except (Refused, ValueError) as error:
        return shown_by(error)
    return ""


def test_contract_errors_quote_no_value() -> None:
    for wrong in ({"value": str(PRIVATE)}, {"value": PRIVATE, "where": "x"}, {"value": 1e300 * PRIVATE}):
        with pytest.raises(ValidationError) as caught:
            Query.model_validate({"id": "1", "stream": "s", **wrong})
        assert DIGITS not in shown_by(caught.value)


@pytest.mark.parametrize(
    "cells",
    [
        {"age": [DIGITS, "7"], "wage": [PRIVATE, 1.0], "town": ["here", "here"]},
        {"age": [PRIVATE, 7.5], "wage": [PRIVATE, 1.0], "town": ["here", "here"]},
        {"age": [None, 7], "wage": [PRIVATE, None], "town": [f"town {DIGITS}", None]},
        {"age": [7, 7], "wage": [f"{PRIVATE} a month", "1"], "town": ["here", "here"]},
        {"age": [7, 7], "wage": [float("nan"), PRIVATE], "town": [int(PRIVATE), 1]},
        {"age": [[int(PRIVATE)], [7]], "wage": [PRIVATE, 1.0], "town": ["here", "here"]},
        {"wage": [PRIVATE, 1.0], "town": [f"town {DIGITS}", "here"]},
    ],
)
def test_misfitting_table_shows_no_cell(cells: dict[str, list[Any]]) -> None:
    driver = Driver(KEY)
    refusal = refusal_of(driver, pl.DataFrame(cells, strict=False))
    assert DIGITS not in refusal
    assert DIGITS.encode() not in visible_text(driver)
