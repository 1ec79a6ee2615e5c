"""A stream's share of work is bounded, fair, and independent of batches and repetitions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_EVENT_BYTES, Answer, Query
from schemas.wire import struct
from sotto import Driver
from stream.processing.dead_letters import Rejection
from stream.processing.protocol import Outputs, Record
from stream.settings import Settings
from stream.worker.fair_shares import ASSUMED_ROWS, NO_LIMITS, SECOND, Limits, Shares, WorkEstimator
from stream.worker.families.context import Context
from stream.worker.worker_processor import MAX_BATCH_WORK, QueryProcessor
from tests.builders import KEY, PEOPLE, installation, source, stream
from tests.processing import process_records
from tests.unit.installation import answers_in, changelog, messages_to, table_store

decode: Any = msgspec.json.Decoder(struct(Query)).decode

CELLS = {f"a{number}": 4 for number in range(10)}
DEFAULT = Limits.from_seconds(Settings().work_outstanding, Settings().work_rate)
STREAMS = ("greedy", "quiet", "third")
TIGHT = Limits.from_seconds(0.004, 0.002)
"""Limits that accept a few small questions at once, and one or two more in each second."""


def admits(shares: Shares, slot: int, work: int, timestamp: int) -> bool:
    try:
        shares.admit(slot, work, timestamp)
    except Rejection:
        return False
    return True


def test_stream_alone_has_half_of_its_partitions_backlog() -> None:
    """After that it has the rate that the partition serves."""
    shares = Shares(Limits.from_seconds(20.0, 0.5))
    assert sum(admits(shares, 0, SECOND, 0) for _ in range(1800)) == 10
    assert sum(admits(shares, 0, SECOND, 10_000) for _ in range(1800)) == 5
    assert sum(admits(shares, 0, SECOND, 3_600_000) for _ in range(1800)) == 10


def test_other_streams_have_as_much_room_as_each_greedy_one() -> None:
    shares = Shares(Limits.from_seconds(20.0, 0.5))
    had = [sum(admits(shares, slot, SECOND // 10, 0) for _ in range(1800)) for slot in (0, 1, 2)]
    assert had == [100, 50, 25]
    for second in range(1, 200):
        for slot in random.Random(second).choices(range(3), k=300):
            had[slot] += admits(shares, slot, SECOND // 10, 1000 * second)
    assert max(had) - min(had) < 0.2 * max(had)
    assert sum(had) <= 10 * (20 + 0.5 * 199)


def test_time_that_goes_back_or_stands_still_serves_no_stream() -> None:
    shares = Shares(Limits.from_seconds(20.0, 0.5))
    assert sum(admits(shares, 0, SECOND, 60_000) for _ in range(100)) == 10
    assert not any(admits(shares, 0, SECOND, timestamp) for timestamp in (60_000, 0, -1, 59_999))


def test_question_larger_than_the_share_runs_alone() -> None:
    shares = Shares(Limits.from_seconds(20.0, 0.5))
    assert admits(shares, 0, 100 * SECOND, 0)
    assert not admits(shares, 1, 1, 0)
    assert not admits(shares, 1, 1, 100_000)
    assert admits(shares, 1, 1, 200_000)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 4 * 10**9), st.integers(0, 3000)), min_size=1, max_size=80
    ),
    st.integers(0, 80),
)
def test_outstanding_work_is_bounded_and_survives_a_restore(
    asked: Sequence[tuple[int, int, int]], at: int
) -> None:
    """A successor with the restored figures makes the same decisions as its predecessor."""
    limits, now = Limits.from_seconds(5.0, 0.7), 0
    shares = Shares(limits)
    for number, (slot, work, pause) in enumerate(asked):
        if number == at:
            successor = Shares(limits)
            successor.resume(shares.clock, shares.served, shares.due)
            assert successor._outstanding == shares._outstanding
            shares = successor
        now += pause
        tried = shares.copy()
        accepted = admits(tried, slot, work, now)
        assert admits(shares, slot, work, now) == accepted
        assert tried.__dict__ == shares.__dict__
        outstanding = [due - shares.served for due in shares.due.values()]
        assert sum(outstanding) == shares._outstanding
        assert min(outstanding, default=1) > 0
        assert shares._outstanding <= max(limits.outstanding, work)


# Tests of whole processors.


@cache
def people() -> Driver:
    """Return an installation with three streams over a table and one of values, all in one partition."""
    return installation(
        *(stream(name, "people", "laplace", mechanism={"answers": 500}) for name in STREAMS),
        stream("feed"),
        sources=[source("people", "table", epsilon=100.0), source()],
    )


def worker(limits: Limits = TIGHT, changed: Sequence[Outputs] = ()) -> QueryProcessor:
    driver = people()
    store = table_store()
    store.put("people", PEOPLE)
    found = QueryProcessor(driver.topics, 0, KEY, store, limits)
    found.restore(driver.records(driver.topics.control))
    found.restore(changelog(driver.topics, changed))
    found.end_restore()
    return found


def event(stream: str, offset: int, timestamp: int, **asked: Any) -> Record:
    value = json.dumps({"id": f"q{offset}", "stream": stream, **asked}).encode()
    return Record(people().topics.queries, 0, offset, timestamp, stream.encode(), value)


def burst(count: int, stream: str = "greedy", *, start: int = 0, timestamp: int = 0) -> list[Record]:
    return [event(stream, start + number, timestamp, where=f"age < {number % 90}") for number in range(count)]


def outcomes(answers: Sequence[Answer]) -> list[str]:
    return ["busy" if (answer.reason or "").startswith("busy") else answer.outcome for answer in answers]


def test_busy_stream_pays_nothing_and_its_neighbor_is_answered() -> None:
    outputs = process_records(worker(), [*burst(100), event("quiet", 100, 0, where="age < 5")])
    answers = answers_in(outputs, people().topics)
    found = outcomes(answers)
    assert set(found[:100]) == {"answer", "busy"}
    assert found[:100] == sorted(found[:100])
    assert found[100] == "answer"
    refused = answers[99]
    assert (refused.index, refused.spent) == (None, None)
    assert "ask again in 1 s" in (refused.reason or "")
    assert outputs.busy == found.count("busy")
    last = [answer for answer in answers if answer.stream == "greedy" and answer.outcome == "answer"][-1]
    assert last.index == found[:100].count("answer") - 1


def test_busy_question_leaves_no_dead_letter() -> None:
    outputs = process_records(worker(), [*burst(100), event("greedy", 100, 0, where="age <")])
    assert len(messages_to(outputs, people().topics.rejected)) == 0
    outputs = process_records(worker(), [event("greedy", 0, 0, where="age <"), *burst(100, start=1)])
    assert len(messages_to(outputs, people().topics.rejected)) == 1


def test_trusted_values_are_never_busy_nor_divided() -> None:
    records = [event("feed", number, 0, value=-1e6) for number in range(3000)]
    one = worker()
    batch = one.prepare(records)
    assert len(batch.records) == 3000
    outputs = one.process(batch)
    assert set(outcomes(answers_in(outputs, people().topics))) == {"below"}


def test_refused_predicate_costs_its_stream_the_parsing() -> None:
    records = [event("greedy", number, 0, where="age < 1" + " AND age" * 50) for number in range(50)]
    assert outcomes(answers_in(process_records(worker(), records), people().topics)).count("busy") > 25


def test_no_limit_means_no_stream_is_busy() -> None:
    outputs = process_records(worker(Limits.from_seconds(0.0, 1.0)), burst(400))
    assert set(outcomes(answers_in(outputs, people().topics))) == {"answer"}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_busy_answers_depend_on_the_log_alone(data: st.DataObject) -> None:
    """No batch and no restart changes them; the log has malformed questions and clocks that go back."""
    chance, now, records = random.Random(data.draw(st.integers(0, 2**32))), 0, []
    for offset in range(80):
        now += chance.choice((0, 0, 0, 5, 700, -300))
        stream = chance.choice(("greedy", "greedy", "greedy", "quiet", "third", "feed"))
        asked: dict[str, Any] = {"value": -1e6} if stream == "feed" else {"where": f"age < {chance.randrange(90)}"}
        if chance.random() < 0.1:
            asked = {"where": "age < 'x'"}
        records.append(event(stream, offset, max(0, now), **asked))
    whole = process_records(worker(), records)
    cuts = sorted(data.draw(st.lists(st.integers(0, 80), max_size=12)))
    steps: list[Outputs] = []
    one = worker()
    for start, end in zip([0, *cuts], [*cuts, 80], strict=True):
        if data.draw(st.booleans()):
            one = worker(changed=steps)
        steps.append(process_records(one, records[start:end]))
    topics = people().topics
    assert [value for step in steps for _, value, _ in messages_to(step, topics.answers)] == [
        value for _, value, _ in messages_to(whole, topics.answers)
    ]
    assert 0 < whole.busy == sum(step.busy for step in steps)


def test_batch_is_divided_by_its_work_with_progress_in_each_piece() -> None:
    one, records, sizes = worker(NO_LIMITS), burst(3000), []
    while records:
        batch = one.prepare(records)
        count = len(batch.records)
        assert len(one.prepare(batch.records).records) == count
        progress = {key: value for key, value, _ in messages_to(one.process(batch), people().topics.state)}
        assert json.loads(progress[b"@progress"] or b"")["offset"] == records[count - 1].offset + 1
        sizes.append(count)
        records = records[count:]
    assert len(sizes) > 3
    assert max(sizes[:-1]) - min(sizes[:-1]) < 0.1 * max(sizes)


# Tests of the work of questions.


def estimated_work(driver: Driver, **asked: Any) -> int:
    (one,) = driver._workers
    workload = WorkEstimator(Context(one.streams, driver._tables, driver.topics.queries, 0))
    return workload.estimate(0, decode(json.dumps({"id": "q", "stream": "s", **asked}).encode())).share


def over(
    mechanism: dict[str, Any],
    rows: int = 200,
    neighbors: str = "replace",
    attributes: Mapping[str, int] = CELLS,
    engine: str = "memory",
) -> Driver:
    driver = Driver(KEY, partitions=1)
    declared = {"attributes": attributes, "neighbors": neighbors, "engine": engine}
    table = source("people", "table", **declared, epsilon=100.0, delta=1e-3)
    driver.register(table, {name: np.zeros(rows, dtype=np.int64) for name in attributes})
    driver.open(stream("s", "people", mechanism=mechanism, epsilon=50.0, delta=1e-6))
    return driver


def test_work_does_not_depend_on_a_private_number_of_rows() -> None:
    mechanism = {"kind": "laplace"}
    few, many = (over(mechanism, rows, "add-remove") for rows in (10, 5000))
    assert estimated_work(few, where="a1 = 2") == estimated_work(many, where="a1 = 2") > ASSUMED_ROWS // 4
    few, many = (over(mechanism, rows) for rows in (10, 500_000))
    assert estimated_work(many, where="a1 = 2") > 2 * estimated_work(few, where="a1 = 2")


def test_work_in_an_engine_is_that_of_a_larger_table() -> None:
    """Long predicates are refused as ``busy`` there, while a hundred counts fit into a share and are one batch."""
    long, short = " OR ".join(f"a{n % 10} = {n % 4} AND a1 = 2" for n in range(90)), "a1 = 2 AND a2 = 1"
    hidden = over({"kind": "laplace"}, 10, "add-remove", engine="duckdb")
    assert estimated_work(hidden, where=long) > 5 * SECOND
    assert estimated_work(over({"kind": "laplace"}, 10, "add-remove"), where=long) < SECOND // 5
    assert estimated_work(over({"kind": "laplace"}, 10, engine="duckdb"), where=long) < SECOND // 20
    assert 100 * estimated_work(hidden, where=short) < SECOND * Settings().work_outstanding / 2
    (one,) = hidden._workers
    workload = WorkEstimator(Context(one.streams, hidden._tables, hidden.topics.queries, 0))
    query = decode(json.dumps({"id": "q", "stream": "s", "where": short}).encode())
    assert 100 * workload.estimate(0, query).batch < MAX_BATCH_WORK


def test_work_grows_with_the_size_of_a_question() -> None:
    laplace, pmw = (
        over({"kind": "laplace"}, 100_000),
        over({"kind": "pmw", "attributes": list(CELLS), "updates": 5}),
    )
    assert (
        estimated_work(laplace, where="a1 = 1")
        < estimated_work(laplace, where="a1 = 1 AND a2 = 2")
        < estimated_work(laplace, where="a1 = 1" * 100)
    )
    assert estimated_work(laplace, group_by=["a1"]) < estimated_work(laplace, group_by=["a1", "a2", "a3"])
    narrow = estimated_work(pmw, where="a1 = 1 OR a2 = 2")
    wide = estimated_work(pmw, where=" OR ".join(f"a{number} = 1" for number in range(10)))
    assert narrow < SECOND // 50 < SECOND // 5 < wide
    terms = [{"where": f"a{number % 10} = 1", "weight": 1 / 256} for number in range(250)]
    assert estimated_work(pmw, terms=terms) > SECOND // 5
    assert (
        estimated_work(over({"kind": "pmw", "attributes": ["a1"], "updates": 5}), terms=terms)
        < estimated_work(pmw, terms=terms) / 10
    )


@pytest.mark.parametrize("names", [("age", "between"), ("a1", "b2"), ("1", "e")])
def test_work_of_an_estimate_does_not_depend_on_earlier_questions(names: tuple[str, str]) -> None:
    attributes = {names[0]: 300, names[1]: 200, "z": 9}
    mechanism = {"kind": "pmw", "attributes": list(attributes), "updates": 5}
    one, other = (f'"{name}"' for name in names)
    texts = [
        f"{one} = 1",
        f"{one} = 23",
        f"{one} BETWEEN 1 AND 7",
        f"{other} > 1 AND {one} < 11",
        "z = 1",
        "z = 1.1e1",
    ]
    shared = over(mechanism, attributes=attributes)
    for text in [*texts, *reversed(texts)]:
        for fields in ({}, {"group_by": ["z"]}, {"sum": "z"}):
            alone = over(mechanism, attributes=attributes)
            assert estimated_work(shared, where=text, **fields) == estimated_work(alone, where=text, **fields)


def test_attribute_is_found_in_any_spelling_of_its_name() -> None:
    attributes = {"Straße": 1024, 'a"b': 1024}
    pmw = over({"kind": "pmw", "attributes": list(attributes), "updates": 5}, attributes=attributes)
    least = estimated_work(pmw, where="TRUE")
    for where in ('"STRASSE" = 1', "straße = 1", '"a""b" = 1'):
        assert estimated_work(pmw, where=where) > least + 1024
    assert (
        estimated_work(pmw, where='strasse = 1 or "A""B" = 1')
        > estimated_work(pmw, where="strasse = 1 or strasse = 3") + 2**20
    )


def test_slowest_questions_delay_a_neighbor_by_ten_seconds_of_work() -> None:
    """The settings are the defaults, and each question has the most terms that an event can have, over 2²⁰ cells."""
    assert (Settings().work_outstanding, Settings().work_rate) == (20.0, 0.5)
    driver = over({"kind": "pmw", "attributes": list(CELLS), "updates": 5})
    driver.open(stream("quiet", "people", "laplace"))
    store = driver._tables
    one = QueryProcessor(driver.topics, 0, KEY, store, DEFAULT)
    one.restore(driver.records(driver.topics.control))
    one.end_restore()
    workload = WorkEstimator(Context(one.streams, store, driver.topics.queries, 0))
    records = []
    for number in range(1800):
        terms = [
            {"where": f"a{term % 10} = {(term + number) % 4} OR a{(term + number) % 10} = 1", "weight": 1 / 256}
            for term in range(200)
        ]
        value = json.dumps({"id": str(number), "stream": "s", "terms": terms}, separators=(",", ":")).encode()
        assert len(value) < MAX_EVENT_BYTES
        records.append(Record(driver.topics.queries, 0, number, 1, b"s", value))
    records.append(
        Record(driver.topics.queries, 0, 1800, 1, b"quiet", b'{"id":"1800","stream":"quiet","where":"a1 = 1"}')
    )
    work, found = 0, []
    while records:
        batch = one.prepare(records)
        outputs = one.process(batch)
        answers = answers_in(outputs, driver.topics)
        done = [
            workload.estimate(0, decode(record.value)).share
            for record, answer in zip(records, answers, strict=False)
            if answer.stream == "s" and answer.outcome == "answer"
        ]
        assert sum(done) <= max([MAX_BATCH_WORK, *done])
        work += sum(done)
        found += outcomes(answers)
        records = records[len(batch.records) :]
    assert found[-1] == "answer"
    assert found.count("busy") > 1700
    assert 5 * SECOND < work <= 10 * SECOND
