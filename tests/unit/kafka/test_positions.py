"""Where an input is read on from."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from stream.kafka.positions import OFFSETS_INTERVAL, GroupOffsets, StateLostError, next_offset

SOURCE = TopicPartition("queries", 3)
OFFSETS = st.integers(0, 100)


@given(OFFSETS, OFFSETS, st.none() | OFFSETS, st.none() | OFFSETS)
def test_the_next_offset_is_one_that_the_topic_has(
    beginning: int, more: int, committed: int | None, reached: int | None
) -> None:
    end = beginning + more
    try:
        assert beginning <= next_offset(SOURCE, beginning, end, committed, reached) <= end
    except StateLostError:
        assert (reached or 0) < (committed or 0)


@given(OFFSETS, OFFSETS, st.none() | OFFSETS, OFFSETS)
def test_no_answered_event_is_left_out_of_the_state(
    beginning: int, more: int, committed: int | None, reached: int
) -> None:
    """Either reading goes on where the state ends, or nothing that was answered lies in between."""
    end = beginning + more
    try:
        following = next_offset(SOURCE, beginning, end, committed, reached)
    except StateLostError:
        return
    assert following <= reached or (committed or 0) <= reached


def test_expired_offsets_do_not_matter_where_the_changelog_knows_better() -> None:
    assert next_offset(SOURCE, 0, 50, None, 40) == 40


def test_committed_offsets_count_where_the_changelog_records_none() -> None:
    assert next_offset(SOURCE, 0, 50, 30, None) == 30


def test_a_new_installation_begins_at_the_beginning() -> None:
    assert next_offset(SOURCE, 7, 50, None, 0) == 7


def test_a_state_that_went_back_is_brought_up_to_date_by_the_events_it_lacks() -> None:
    assert next_offset(SOURCE, 0, 50, 40, 10) == 10


@pytest.mark.parametrize(("beginning", "end"), [(11, 50), (0, 39)], ids=["retention", "a recreated topic"])
def test_a_state_that_lacks_events_which_are_gone_is_refused_with_the_remedy(beginning: int, end: int) -> None:
    with pytest.raises(StateLostError, match=r"reaches offset 10 of queries.*restore state and queries"):
        next_offset(SOURCE, beginning, end, 40, 10)


def test_an_input_that_was_cut_is_read_from_its_beginning() -> None:
    assert next_offset(SOURCE, 2, 5, 40, 40) == 2


def test_offsets_go_into_every_transaction_where_the_changelog_records_no_position() -> None:
    offsets = GroupOffsets(recorded=False)
    for reached in range(1, 4):
        offsets.reach(SOURCE, reached)
        assert offsets.due(0.0) == {SOURCE: reached}


def test_offsets_go_into_few_transactions_where_the_changelog_records_the_position() -> None:
    offsets = GroupOffsets(recorded=True)
    times = [number * OFFSETS_INTERVAL / 10 for number in range(101)]
    committed: list[int] = []
    for reached, now in enumerate(times):
        offsets.reach(SOURCE, reached)
        committed += offsets.due(now).values()
    assert len(committed) <= 1 + times[-1] / OFFSETS_INTERVAL
    assert committed == sorted(committed)


def test_the_last_offset_reached_is_due_in_the_end_and_only_once() -> None:
    offsets = GroupOffsets(recorded=True)
    offsets.reach(SOURCE, 1)
    assert offsets.due(0.0) == {SOURCE: 1}
    offsets.reach(SOURCE, 2)
    offsets.reach(SOURCE, 3)
    assert offsets.due(0.0) == {}
    assert offsets.due(OFFSETS_INTERVAL) == {SOURCE: 3}
    assert offsets.due(9 * OFFSETS_INTERVAL) == {}
