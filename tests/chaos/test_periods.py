"""The checks of periods find each seeded error, and none in a live topic without faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest

from schemas import EventsSource, GrantRecord, SourceRecord
from sotto import Driver
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from tests.builders import KEY
from tests.chaos.checker import examine
from tests.chaos.logs import Log, logs_of
from tests.chaos.periods import Periods
from tests.chaos.replay import Installation, ledger_codec
from tests.chaos.windows import BEGINS, Visits, live_source, standing_specs

PARTITIONS = 2
MINUTE = 60_000
STEPS = 70
UNTIL = BEGINS + (STEPS - 1) * 3 * MINUTE
"""The last moment of the clock: in the middle of the fourth hour, so that two periods are closed."""
FIRST = "@2026-01-01T00:00:00Z"


@cache
def _topic_with_periods() -> tuple[Driver, EventsSource]:
    """Return a live topic with periods of an hour, and a stream of each kind."""
    driver = Driver(KEY, partitions=PARTITIONS)
    source = live_source("visits", "marks", unit="person-period", period="1h", ahead="7d")
    driver.register(source)
    for spec in standing_specs("20m", "10m", BEGINS, horizon=4):
        driver.open(spec, acknowledge=True)
    visits = Visits(PARTITIONS, seed=5)
    for step in range(STEPS):
        now = BEGINS + step * 3 * MINUTE
        driver.publish(source.source, [visits.next(now, 25 * MINUTE)[2] for _ in range(8)])
        driver.advance(source.source, now / 1000)
    return driver, source


def _logs() -> Log:
    driver, source = _topic_with_periods()
    return logs_of(driver, source.topic, driver.topics.feed_state(source.source))


def _violations(logs: Log) -> list[str]:
    driver, source = _topic_with_periods()
    periods = Periods(logs, driver.topics, source)
    return [*periods.violations(PARTITIONS, UNTIL), *periods.refunds()]


def test_checker_finds_no_violation_in_correct_periods() -> None:
    """Begins, questions and ends are computed from the topics; answers equal a replay."""
    driver, source = _topic_with_periods()
    logs = _logs()
    assert _violations(logs) == []
    assert len(Periods(logs, driver.topics, source).accounts) == 4
    asked = [json.loads(one.value or b"")["id"] for one in driver.records(driver.topics.queries)]
    findings = examine(Installation(driver.topics, KEY, TableStore.keyed_by(KEY)), logs, asked)
    assert findings.violations == []
    assert len(findings.answers) == len(asked)


def _of_first(record: Record) -> bool:
    return (record.key or b"").endswith(FIRST.encode())


def _question_lost(logs: Log, driver: Driver) -> None:
    for log in logs.values():
        if log and log[0].topic == driver.topics.queries:
            log[:] = [one for one in log if not (_of_first(one) and b"T00:20:00Z/1" in (one.value or b""))]


def _question_added(logs: Log, driver: Driver) -> None:
    for log in logs.values():
        if log and log[0].topic == driver.topics.queries:
            last = next(one for one in reversed(log) if _of_first(one))
            log.append(last._replace(value=(last.value or b"").replace(b'"id":"', b'"id":"one more ')))


def _answer_lost(logs: Log, driver: Driver) -> None:
    for log in logs.values():
        if log and log[0].topic == driver.topics.answers:
            log.remove(next(one for one in log if b"T01:20:00Z/1" in (one.value or b"")))


def _period_unknown(logs: Log, driver: Driver) -> None:
    _drop(logs, driver, lambda one: isinstance(one, SourceRecord) and one.source.source == f"visits{FIRST}")


def _left_open(logs: Log, driver: Driver) -> None:
    _drop(
        logs,
        driver,
        lambda one: (
            isinstance(one, GrantRecord) and one.spec.stream == f"visitors{FIRST}" and one.ending is not None
        ),
    )


def _not_refunded(logs: Log, driver: Driver) -> None:
    _drop(
        logs,
        driver,
        lambda one: (
            isinstance(one, SourceRecord) and one.source.source == f"visits{FIRST}" and one.refunded.epsilon > 0
        ),
    )


def _without_a_stream(logs: Log, driver: Driver) -> None:
    _drop(logs, driver, lambda one: isinstance(one, GrantRecord) and one.spec.stream == f"visits-all{FIRST}")


def _drop(logs: Log, driver: Driver, which: Callable[[object], bool]) -> None:
    for log in logs.values():
        if log and log[0].topic == driver.topics.ledger:
            log[:] = [one for one in log if one.value is None or not which(ledger_codec.decode(one.value))]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_question_lost, "not asked"),
        (_question_added, "there are only"),
        (_answer_lost, "is not answered"),
        (_period_unknown, "is not begun"),
        (_left_open, "is not closed"),
        (_not_refunded, "was not spent"),
        (_without_a_stream, "is not opened as its model is"),
    ],
)
def test_checker_finds_each_seeded_error_in_periods(spoil: Callable[[Log, Driver], None], words: str) -> None:
    logs = _logs()
    spoil(logs, _topic_with_periods()[0])
    assert any(words in one for one in _violations(logs))


def test_checker_finds_early_begins_and_ends() -> None:
    driver, source = _topic_with_periods()
    found = Periods(_logs(), driver.topics, source).violations(PARTITIONS, BEGINS + 70 * MINUTE)
    assert any("has begun early" in one for one in found)
    assert any("is closed early" in one for one in found)
