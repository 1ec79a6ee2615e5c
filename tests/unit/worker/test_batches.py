"""Neither the division of events into batches nor the other streams in a batch change an answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Amount, Answer, Checkpoint
from stream.processing.protocol import Outputs, Record
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, installation, source
from tests.processing import process_records
from tests.unit.installation import (
    HIGH,
    LOW,
    answers_in,
    charges_in,
    checkpoints_in,
    messages_to,
    query,
    records,
    restarted,
    spec,
    worker_of,
)
from tests.unit.worker.batches import DRIVER, FEEDS, TABLES, new_worker

near_the_noise = st.one_of(
    st.integers(-40, 40).map(lambda number: number / 4), st.sampled_from([HIGH, LOW, 1e15, 0.015])
)


@st.composite
def events(draw: st.DrawFn) -> list[bytes]:
    """Draw queries near their thresholds, so that the noise decides."""
    found = []
    for number in range(draw(st.integers(1, 40))):
        name = draw(st.sampled_from(FEEDS + TABLES))
        more: dict[str, Any] = {}
        if draw(st.booleans()):
            more["threshold"] = draw(st.one_of(st.integers(-20, 20).map(float), st.just(80.0)))
        if name in FEEDS:
            found.append(query(str(number), name, draw(near_the_noise), **more))
        else:
            found.append(query(str(number), name, where=f"age < {draw(st.integers(0, 99))}", **more))
    return found


def run(worker: QueryProcessor, batches: list[list[Record]]) -> list[Outputs]:
    return [process_records(worker, batch) for batch in batches]


def answers_of(outputs: list[Outputs]) -> list[Answer]:
    return [answer for one in outputs for answer in answers_in(one, DRIVER.topics)]


def last_charges(outputs: list[Outputs]) -> dict[str, tuple[str, int, Amount]]:
    """Return what the ledger knows of each stream at the end."""
    charges = [charge for one in outputs for charge in charges_in(one, DRIVER.topics)]
    return {charge.stream: (charge.state, charge.tops, charge.spent) for charge in charges}


def last_checkpoints(outputs: list[Outputs]) -> dict[str, Checkpoint]:
    return {name: kept for one in outputs for name, kept in checkpoints_in(one, DRIVER.topics).items()}


@given(log=events())
@settings(deadline=None, max_examples=30)
def test_answers_keep_the_order_of_the_queries(log: list[bytes]) -> None:
    answers = answers_of(run(new_worker(), [records(log)]))
    assert [answer.id for answer in answers] == [str(number) for number in range(len(log))]
    for name in FEEDS + TABLES:
        indexes = [answer.index for answer in answers if answer.stream == name and answer.outcome != "halted"]
        assert indexes == list(range(len(indexes)))


@given(log=events())
@settings(deadline=None, max_examples=30)
def test_stream_answers_the_same_beside_other_streams(log: list[bytes]) -> None:
    together = answers_of(run(new_worker(), [records(log)]))
    for name in {answer.stream for answer in together}:
        own = [record for record in records(log) if f'"stream": "{name}"'.encode() in (record.value or b"")]
        alone = answers_of(run(new_worker({name}), [own]))
        assert alone == [answer for answer in together if answer.stream == name]


@given(log=events(), cuts=st.lists(st.integers(0, 40), max_size=6))
@settings(deadline=None, max_examples=30)
def test_batches_may_be_cut_anywhere(log: list[bytes], cuts: list[int]) -> None:
    bounds = sorted({0, len(log), *(min(cut, len(log)) for cut in cuts)})
    all_records = records(log)
    whole, parts = new_worker(), new_worker()
    at_once = run(whole, [all_records])
    bit_by_bit = run(parts, [all_records[start:end] for start, end in pairwise(bounds)])
    assert answers_of(bit_by_bit) == answers_of(at_once)
    assert parts.streams.snapshot_streams() == whole.streams.snapshot_streams()
    assert last_charges(bit_by_bit) == last_charges(at_once)
    assert last_checkpoints(bit_by_bit) == last_checkpoints(at_once)


@given(log=events(), cut=st.integers(0, 40))
@settings(deadline=None, max_examples=25)
def test_successor_continues_as_its_predecessor_would(log: list[bytes], cut: int) -> None:
    all_records = records(log)
    expected = answers_of(run(new_worker(), [all_records]))
    predecessor = new_worker()
    first = process_records(predecessor, all_records[:cut])
    successor = QueryProcessor(DRIVER.topics, 0, KEY, DRIVER._tables)
    successor.restore(record for record in DRIVER.records(DRIVER.topics.control))
    state = DRIVER.topics.state
    successor.restore(
        Record(state, 0, number, 0, key, value) for number, (key, value, _) in enumerate(messages_to(first, state))
    )
    assert successor.end_restore() == {DRIVER.topics.queries: min(cut, len(log))}
    assert successor.streams.snapshot_streams() == predecessor.streams.snapshot_streams()
    second = process_records(successor, all_records[cut:])
    assert answers_of([first, second]) == expected


@pytest.mark.parametrize("name", FEEDS)
def test_threshold_of_a_query_replaces_that_of_the_stream(name: str) -> None:
    log = [
        query("0", name, 0.0, threshold=HIGH),
        query("1", name, HIGH, threshold=1e15),
        query("2", name, 0.0, threshold=LOW),
        query("3", name, LOW),
    ]
    answers = answers_of(run(new_worker({name}), [records(log)]))
    assert [answer.outcome for answer in answers[:3]] == ["below", "below", "above"]
    assert answers[3].outcome == ("halted" if answers[2].tops_left == 0 else "below")


@pytest.mark.parametrize("name", FEEDS)
def test_threshold_of_a_query_is_in_its_unit_on_any_grid(name: str) -> None:
    log = [query("0", name, 5e5, threshold=1e6), query("1", name, 2e6, threshold=1e6)]
    assert [answer.outcome for answer in answers_of(run(new_worker({name}), [records(log)]))] == ["below", "above"]


def test_threshold_of_a_query_works_on_tables() -> None:
    log = [
        query("0", "people-best", where="TRUE", threshold=1e6),
        query("1", "people-best", where="FALSE", threshold=-1e6),
    ]
    assert [answer.outcome for answer in answers_of(run(new_worker(), [records(log)]))] == ["below", "above"]


def test_rejection_does_not_depend_on_the_batch() -> None:
    log = records([query("0", "best", LOW), query("1", "best", HIGH), query("2", "best")])
    at_once = answers_of(run(new_worker(), [log]))
    one_by_one = answers_of(run(new_worker(), [[record] for record in log]))
    assert at_once == one_by_one


def test_empty_batch_writes_nothing() -> None:
    assert not process_records(new_worker(), [])


def test_worker_runs_in_a_thread_only_if_it_counts_rows() -> None:
    """Streams that only draw noise need no thread."""
    driver = installation(spec("s"))
    assert not worker_of(driver).runs_in_thread
    driver.register(source("people", "table"), {"age": [1, 2, 3], "sex": ["F", "M", "F"]})
    driver.open(spec("people", "people", threshold=1e9))
    assert worker_of(driver).runs_in_thread
    assert not worker_of(driver, only=["s"]).runs_in_thread
    assert restarted(driver, []).runs_in_thread
