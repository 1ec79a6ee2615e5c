"""A worker's outputs in addition to answers: progress, checkpoints, charges and status records."""

from __future__ import annotations

import json

from schemas import MAX_EVENT_BYTES, StreamStatus
from schemas.wire import Codec
from sotto import Driver
from stream.processing.protocol import Outputs
from stream.processing.topic_names import Topics
from stream.worker.worker_processor import STATUS_SECONDS, QueryProcessor
from tests.builders import KEY, OTHER_KEY, installation, source
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
    spec,
    table_store,
    worker_of,
)

status_codec: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_EVENT_BYTES)


def digests_in(outputs: Outputs, topics: Topics) -> list[StreamStatus]:
    return [status_codec.decode(value) for _, value, _ in messages_to(outputs, topics.status)]


def busy_worker() -> tuple[Driver, QueryProcessor]:
    driver = installation(spec("one", cutoff=2), spec("two"), spec("idle"))
    return driver, worker_of(driver)


def test_every_batch_publishes_the_progress_of_its_partition() -> None:
    driver, worker = busy_worker()
    batch = records([query("a", "one", LOW), b"broken", query("b", "nobody", LOW)], start=5)
    progress = [
        value
        for key, value, _ in messages_to(process_records(worker, batch), driver.topics.state)
        if key == b"@progress"
    ]
    assert [json.loads(value or b"") for value in progress] == [{"offset": 8}]


def test_each_asked_stream_has_one_checkpoint_with_its_last_offset() -> None:
    driver, worker = busy_worker()
    log = [query("a", "one", LOW), query("b", "two", HIGH), query("c", "one", HIGH), query("d", "two", LOW)]
    kept = checkpoints_in(process_records(worker, records(log)), driver.topics)
    found = {name: (one.state, one.answered, one.tops, one.offset) for name, one in kept.items()}
    assert found == {"one": ("open", 2, 1, 2), "two": ("exhausted", 1, 1, 1)}


def test_charge_is_sent_for_the_first_answer_and_each_top() -> None:
    driver, worker = busy_worker()
    first = process_records(worker, records([query("a", "one", LOW), query("b", "two", LOW)]))
    assert [(charge.stream, charge.answered, charge.tops) for charge in charges_in(first, driver.topics)] == [
        ("one", 1, 0),
        ("two", 1, 0),
    ]
    second = process_records(worker, records([query("c", "one", HIGH), query("d", "two", HIGH)], start=2))
    found = {
        charge.stream: (charge.state, charge.answered, charge.tops) for charge in charges_in(second, driver.topics)
    }
    assert found == {"one": ("open", 2, 1), "two": ("exhausted", 2, 1)}


def test_halted_query_changes_no_state() -> None:
    driver, worker = busy_worker()
    process_records(worker, records([query("a", "two", HIGH)]))
    again = process_records(worker, records([query("b", "two", HIGH)], start=1))
    assert checkpoints_in(again, driver.topics) == {}
    assert charges_in(again, driver.topics) == []


def test_status_shows_changed_streams_once_per_interval() -> None:
    driver, worker = busy_worker()
    assert not worker.collect_due_outputs(100.0)
    process_records(
        worker, records([query("a", "one", HIGH), query("b", "one", LOW), query("c", "two", LOW)], start=7)
    )
    assert not worker.collect_due_outputs(100.0 + STATUS_SECONDS / 2)
    digests = digests_in(worker.collect_due_outputs(100.0 + STATUS_SECONDS), driver.topics)
    found = {
        one.stream: (one.state, one.answered, one.tops, one.tops_left, one.position.offset) for one in digests
    }
    assert found == {"one": ("open", 2, 1, 1, 8), "two": ("open", 1, 0, 1, 9)}
    assert not worker.collect_due_outputs(100.0 + 2 * STATUS_SECONDS)


def test_ended_stream_has_a_last_status() -> None:
    driver, worker = busy_worker()
    driver.halt("feed", "idle", reason="unused")
    worker.apply_lookup_records(driver.records(driver.topics.control)[-1:])
    [digest] = digests_in(worker.collect_due_outputs(0.0), driver.topics)
    assert (digest.stream, digest.state, digest.answered, digest.position.offset) == ("idle", "halted", 0, -1)


def test_only_a_query_to_an_unknown_stream_needs_control_first() -> None:
    _, worker = busy_worker()
    assert worker.prepare(records([query("a", "one", LOW), query("b", "nobody", LOW)])).needs_lookup_topics
    assert not worker.prepare(records([query("a", "one", LOW), b"broken", query("b", "two")])).needs_lookup_topics


def test_stream_opened_after_its_first_query_was_seen_answers_it() -> None:
    driver = installation(spec("early"))
    worker = worker_of(driver)
    batch = records([query("a", "early", LOW), query("b", "late", LOW)])
    assert worker.prepare(batch).needs_lookup_topics
    driver.open(spec("late"))
    worker.apply_lookup_records(driver.records(driver.topics.control)[-1:])
    assert not messages_to(process_records(worker, batch), driver.topics.rejected)


def test_inspecting_a_batch_first_changes_no_answer() -> None:
    driver, worker = busy_worker()
    batch = records([query("a", "one", LOW), b"broken", query("b", "nobody", LOW), query("c", "one", HIGH)])
    worker.prepare(batch)
    assert list(process_records(worker, batch)) == list(process_records(worker_of(driver), batch))


def test_prepared_and_dropped_batch_changes_no_answer() -> None:
    driver, worker = busy_worker()
    worker.prepare(records([query("a", "one", LOW)]))
    other = records([query("b", "two", LOW)])
    assert list(process_records(worker, other)) == list(process_records(worker_of(driver), other))


def test_thousand_streams_fit_one_partition() -> None:
    driver = installation(*(spec(f"stream-{number}", epsilon=0.001) for number in range(1000)))
    answers = driver.ask_many(query(str(number), f"stream-{number}", LOW) for number in range(1000))
    assert {answer.outcome for answer in answers} == {"below"}
    assert {figures[1] for figures in driver.snapshot_streams().values()} == {1}


def test_status_names_a_stream_that_its_worker_cannot_answer() -> None:
    """The refusal is gone once a worker that can answer has the partition."""
    driver = installation(spec("people-0", "people", threshold=1000.0), sources=[source("people", "table")])
    changed = table_store()
    changed.put("people", {"age": [1], "sex": ["F"]})
    worker = worker_of(driver, tables=changed)
    [digest] = digests_in(worker.collect_due_outputs(100.0), driver.topics)
    assert (digest.stream, digest.state, digest.answered) == ("people-0", "open", 0)
    assert "source data differs from what was registered" in (digest.refused or "")
    [answer] = answers_in(
        process_records(worker, records([query("a", "people-0", where="age < 10")])), driver.topics
    )
    assert (answer.outcome, answer.reason) == ("halted", digest.refused)

    fit = QueryProcessor(driver.topics, 0, KEY, driver._tables)
    fit.restore(driver.records(driver.topics.control))
    fit.end_restore()
    [digest] = digests_in(fit.collect_due_outputs(100.0), driver.topics)
    assert (digest.state, digest.refused) == ("open", None)


def test_status_names_a_missing_noise_key_until_a_worker_has_it() -> None:
    driver = installation(spec("one"))
    lacking = worker_of(driver, key=OTHER_KEY)
    [digest] = digests_in(lacking.collect_due_outputs(100.0), driver.topics)
    assert "lacks noise key" in (digest.refused or "")
