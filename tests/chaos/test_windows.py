"""The checks of windows find each seeded error, and none in a live topic without faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import pytest

from schemas import EventsSource, Histogram, StreamSpec
from sotto import Driver
from stream.privacy.mechanisms.private_values import decode_text_counts, encode_text_counts
from stream.processing.protocol import Record
from stream.tables.store import TableStore
from tests.builders import KEY
from tests.chaos.checker import examine
from tests.chaos.load import standing_probe
from tests.chaos.logs import Log, logs_of
from tests.chaos.replay import Installation
from tests.chaos.windows import BEGINS, Visits, gaps_of, live_source, standing_specs, violations_of_windows

PARTITIONS = 2
SECONDS = 40


@cache
def _topic_with_windows() -> tuple[Driver, EventsSource, list[StreamSpec]]:
    """Return a live topic with a stream of each kind, with more windows than the running count's horizon."""
    driver = Driver(KEY, partitions=PARTITIONS)
    source = live_source("visits", "marks")
    driver.register(source)
    specs = standing_specs("4s", "2s", BEGINS)
    for spec in specs:
        driver.open(spec, acknowledge=True)
    visits = Visits(PARTITIONS, seed=5)
    for second in range(SECONDS):
        now = BEGINS + 1000 * second
        driver.publish(source.source, [visits.next(now, 4000)[2] for _ in range(12)])
        driver.advance(source.source, now / 1000)
    return driver, source, specs


def _logs() -> Log:
    driver, source, _ = _topic_with_windows()
    return logs_of(driver, source.topic, driver.topics.feed_state(source.source))


def _violations(logs: Log) -> list[str]:
    driver, source, specs = _topic_with_windows()
    until = BEGINS + 1000 * (SECONDS - 1)
    return violations_of_windows(logs, driver.topics, source, specs, PARTITIONS, until)


def test_checker_finds_no_violation_in_correct_windows() -> None:
    """Windows of every kind of stream equal a plain count, and answers equal a replay."""
    driver, _, specs = _topic_with_windows()
    logs = _logs()
    assert _violations(logs) == []
    asked = [json.loads(one.value or b"") for one in driver.records(driver.topics.queries)]
    assert {one["stream"] for one in asked} == {spec.stream for spec in specs}
    tables = TableStore.keyed_by(KEY)
    findings = examine(Installation(driver.topics, KEY, tables), logs, [one["id"] for one in asked])
    assert findings.violations == []
    assert len(findings.answers) == len(asked)


def _twice(records: list[Record], place: int) -> None:
    records.insert(place, records[place])


def _drop(records: list[Record], place: int) -> None:
    del records[place]


def _swapped(records: list[Record], place: int) -> None:
    records[place], records[place + 1] = records[place + 1], records[place]


def _off_by_one(records: list[Record], place: int) -> None:
    record = records[place]
    asked = json.loads(record.value or b"")
    if "value" in asked:
        asked["value"] += 1
    elif "texts" in asked:
        counts = decode_text_counts(asked["texts"]) or {}
        asked["texts"] = encode_text_counts({text: count + 1 for text, count in counts.items()})
    else:
        asked["values"][-1] += 1
    value = json.dumps(asked).encode()
    records[place] = Record(record.topic, record.partition, record.offset, 0, record.key, value)


@pytest.mark.parametrize("wrong", [_twice, _drop, _swapped, _off_by_one])
@pytest.mark.parametrize("spec", standing_specs("4s", "2s", BEGINS), ids=lambda spec: spec.stream)
def test_checker_finds_each_seeded_error_in_questions(
    spec: StreamSpec, wrong: Callable[[list[Record], int], None]
) -> None:
    logs = _logs()
    topic = _topic_with_windows()[0].topics.queries
    for number in range(PARTITIONS):
        mine = [one for one in logs[topic, number] if one.key == spec.stream.encode()]
        if mine:
            wrong(mine, len(mine) // 2)
            logs[topic, number] = mine
    assert any(one.startswith(f"{spec.stream}: ") for one in _violations(logs))


@pytest.mark.parametrize("spec", standing_specs("4s", "2s", BEGINS), ids=lambda spec: spec.stream)
def test_checker_finds_a_stream_without_a_control_event(spec: StreamSpec) -> None:
    logs, topic = _logs(), _topic_with_windows()[0].topics.control
    for place in [place for place in logs if place[0] == topic]:
        logs[place] = [one for one in logs[place] if one.key != spec.stream.encode()]
    assert _violations(logs) == [f"{spec.stream}: is granted, and there is no control event of it"]


@pytest.mark.parametrize("spec", standing_specs("4s", "2s", BEGINS), ids=lambda spec: spec.stream)
def test_checker_accepts_the_probe_of_a_standing_stream(spec: StreamSpec) -> None:
    driver, source = Driver(KEY, partitions=PARTITIONS), live_source("visits", "marks")
    driver.register(source)
    driver.open(spec, acknowledge=True)
    assert spec.standing is not None
    [answer] = driver.ask_many([standing_probe(spec.stream, spec.mechanism.kind, source, spec.standing)])
    assert answer.outcome != "rejected", answer.reason


def test_plain_count_follows_ends_and_extensions() -> None:
    """An exhausted and extended stream is asked the windows and counts of a plain count of its epochs."""
    driver = Driver(KEY, partitions=PARTITIONS)
    driver.wait(BEGINS / 1000)
    source = live_source("visits", "broker", idle="0s")
    driver.register(source)
    [spec] = [one for one in standing_specs("4s", "2s", BEGINS) if one.stream == "visits-all"]
    spec = spec.model_copy(update={"mechanism": Histogram(kind="histogram", attributes=("group",), answers=3)})
    driver.open(spec, acknowledge=True)
    visits = Visits(PARTITIONS, seed=5)
    for second in range(SECONDS):
        driver.wait(1)
        now = BEGINS + 1000 * (second + 1)
        driver.publish(source.source, [visits.next(now, 4000)[2] for _ in range(12)])
        if second in {15, 30}:
            assert driver.grant(source.source, spec.stream).state == "exhausted"
            driver.extend(source.source, spec.stream, 10.0)
    logs = logs_of(driver, source.topic, driver.topics.feed_state(source.source))
    gaps = gaps_of(logs, driver.topics, spec.stream)
    assert [again is None for _, again in gaps] == [False, False, True]
    until = BEGINS + 1000 * (SECONDS - 1)
    assert violations_of_windows(logs, driver.topics, source, [spec], PARTITIONS, until) == []
    asked = [json.loads(one.value or b"")["id"] for one in driver.records(driver.topics.queries)]
    assert 5 < len(asked) < SECONDS // 2
