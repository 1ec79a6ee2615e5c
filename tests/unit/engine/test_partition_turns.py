"""Partitions of a process wait for each other's steps; a partition that is alone or seldom asked never waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.engine.session import ACTIVE_SECONDS, TURN_SECONDS, PartitionTurns


def test_lone_partition_never_waits_for_turn() -> None:
    turns = PartitionTurns()
    assert turns.seconds_to_wait(0, 100.0) == 0.0
    turns.start_step(0, 100.0)
    assert turns.seconds_to_wait(0, 100.0) == 0.0


def test_partition_waits_for_turn_of_each_other() -> None:
    turns = PartitionTurns()
    for partition in range(4):
        turns.start_step(partition, 100.0 + partition / 1000)
    assert turns.seconds_to_wait(0, 100.003) == pytest.approx(3 * TURN_SECONDS - 0.003)
    assert turns.seconds_to_wait(3, 100.003) == pytest.approx(3 * TURN_SECONDS)
    assert turns.seconds_to_wait(0, 100.0 + 3 * TURN_SECONDS) == 0.0


def test_idle_partition_takes_no_part_in_turns() -> None:
    turns = PartitionTurns()
    for partition in range(1, 4):
        turns.start_step(partition, 100.0)
    later = 100.0 + 1.1 * ACTIVE_SECONDS
    turns.start_step(0, later)
    assert turns.seconds_to_wait(0, later) == 0.0
    assert turns.seconds_to_wait(1, later) == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 0.1)), max_size=60))
def test_wait_for_turn_is_at_most_one_turn_of_each_other(steps: list[tuple[int, float]]) -> None:
    turns, now = PartitionTurns(), 0.0
    for partition, after in steps:
        now += after
        assert 0.0 <= turns.seconds_to_wait(partition, now) <= 9 * TURN_SECONDS + 1e-9
        turns.start_step(partition, now)
