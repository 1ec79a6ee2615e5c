"""Failures of a partition: how they are counted, when they are over, and what /readyz shows."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from structlog.testing import capture_logs

from stream.engine import partition_task
from stream.engine.batch_loop import FAILURES_UNTIL_NOT_READY, InputPlace, PartitionHealth
from tests.unit.engine.tasks import task_of_a_worker

SOURCE = TopicPartition("queries", 3)


def test_partition_health_names_a_record_that_always_fails() -> None:
    """The record is shown after as many failures as FAILURES_UNTIL_NOT_READY, and other errors in between are not counted for it."""
    health = PartitionHealth()
    for number in range(FAILURES_UNTIL_NOT_READY):
        assert health.stop_reason == ""
        health.record_failure(float(number), "ZeroDivisionError in work.py:7", at=InputPlace(SOURCE, 12))
    assert health.stop_reason.startswith(
        "queries partition 3 offset 12: processing fails with ZeroDivisionError in work.py:7"
    )
    health.recover()
    for number in range(3 * FAILURES_UNTIL_NOT_READY):
        health.record_failure(float(number), "KafkaConnectionError", is_kafka=True)
    assert health.stop_reason == ""


def test_partition_health_recovers_only_beyond_the_failed_record() -> None:
    """Commits of earlier records (as after a restore) and of other inputs do not change the pause between attempts."""
    health = PartitionHealth()
    for tries in range(1, 2 * FAILURES_UNTIL_NOT_READY):
        health.record_failure(1.0, "ValueError in tally.py:9", at=InputPlace(SOURCE, 100))
        health.record_commit(SOURCE, 50)
        health.record_commit(SOURCE, 100)
        health.record_commit(TopicPartition("charges", 3), 1000)
        assert health.failures == tries
    assert "queries partition 3 offset 100" in health.stop_reason
    health.record_commit(SOURCE, 101)
    assert (health.failures, health.failing_since, health.stop_reason) == (0, None, "")


def test_partition_health_keeps_failures_of_no_record_through_commits() -> None:
    """If a timed step fails between commits of new input, only a time without failures resets the pause between attempts."""
    health = PartitionHealth()
    for tries in range(1, 4):
        health.record_failure(1.0, "ValueError in tally.py:9")
        health.record_commit(SOURCE, tries)
        assert health.failures == tries


def test_partition_health_shows_a_refused_input_at_once() -> None:
    """An error that an operator must correct is shown from the first failure until the partition recovers."""
    health = PartitionHealth()
    health.record_failure(1.0, "live: stamp the topic", is_input_refused=True)
    assert health.stop_reason == "live: stamp the topic"
    health.recover()
    assert health.stop_reason == ""


@pytest.mark.parametrize("is_opening", [False, True])
def test_partition_health_ends_a_refusal_of_the_opening_with_the_next_session(*, is_opening: bool) -> None:
    """After an accepted rollback a session opens; an input that is refused later is refused again in each session."""
    health = PartitionHealth()
    health.record_failure(1.0, "control ends at offset 6", is_input_refused=True, is_opening=is_opening)
    health.record_failure(2.0, "KafkaConnectionError", is_kafka=True, is_opening=True)
    health.record_opening()
    assert (health.stop_reason == "", health.failing_since is None) == (is_opening, is_opening)


def test_partition_health_keeps_a_failing_record_through_a_refused_opening() -> None:
    """The refusal hides the record's failures only until a session opens."""
    health = PartitionHealth()
    for number in range(FAILURES_UNTIL_NOT_READY - 1):
        health.record_failure(float(number), "ValueError in tally.py:9", at=InputPlace(SOURCE, 100))
    health.record_failure(8.0, "control ends at offset 6", is_input_refused=True, is_opening=True)
    health.record_opening()
    assert health.stop_reason == ""
    health.record_failure(9.0, "ValueError in tally.py:9", at=InputPlace(SOURCE, 100))
    assert "queries partition 3 offset 100" in health.stop_reason


def test_partition_health_ends_kafka_failures_with_a_commit() -> None:
    """Errors of a rolling restart of the brokers, with commits between them, do not add up to a failing partition."""
    health = PartitionHealth()
    for number in range(5):
        health.record_failure(25.0 * number, "KafkaConnectionError", is_kafka=True)
        assert health.failures == 1
        health.record_commit(SOURCE, number)
        assert health.failing_since is None


def test_partition_health_keeps_a_failing_record_through_errors_of_kafka() -> None:
    """An outage between two failures at one record neither hides the record nor starts its count again."""
    health = PartitionHealth()
    for _ in range(FAILURES_UNTIL_NOT_READY):
        health.record_failure(1.0, "ValueError in tally.py:9", at=InputPlace(SOURCE, 100))
        health.record_failure(2.0, "KafkaConnectionError", is_kafka=True)
        health.record_commit(SOURCE, 100)
    assert "queries partition 3 offset 100" in health.stop_reason


async def test_log_names_the_remedy_for_a_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_task, "RETRY_PAUSES", (0.0,))
    with capture_logs() as logs:
        await task_of_a_worker()._recover(TopicAuthorizationFailedError("sotto.state"))
    [line] = [one for one in logs if one["event"] == "partition starts over"]
    assert "sotto.state; this principal lacks a right: see 'sotto topics acl'" in line["detail"]
