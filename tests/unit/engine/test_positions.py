"""The offset from which an input is read on, and the offsets that the group shows."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from stream.engine import partition_input
from stream.engine.partition_input import (
    AWAITED_OFFSET_COMMIT_SECONDS,
    OFFSET_COMMIT_SECONDS,
    Extent,
    GroupOffsets,
    StateLostError,
    next_offset,
)

SOURCE = TopicPartition("queries", 3)
OFFSETS = st.integers(0, 100)


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    beginning = draw(OFFSETS)
    return Extent(SOURCE, beginning, beginning + draw(OFFSETS), draw(OFFSETS))


def next_offset_of(
    reached: int, *, beginning: int = 0, end: int = 50, committed: int = 0, repeatable: bool = True
) -> int:
    return next_offset(Extent(SOURCE, beginning, end, committed), reached, "state", repeatable=repeatable)


@given(extents(), OFFSETS, st.booleans())
def test_next_offset_exists_in_topic(extent: Extent, reached: int, repeatable: bool) -> None:
    try:
        found = next_offset(extent, reached, "state", repeatable=repeatable)
    except StateLostError:
        assert reached < extent.committed
    else:
        assert extent.beginning <= found <= extent.end


@given(extents(), OFFSETS, st.booleans())
def test_next_offset_skips_no_answered_event(extent: Extent, reached: int, repeatable: bool) -> None:
    """Reading continues where the state ends, or no answered event lies in between."""
    try:
        found = next_offset(extent, reached, "state", repeatable=repeatable)
    except StateLostError:
        return
    assert found <= reached or extent.committed <= reached


@given(extents(), OFFSETS)
def test_next_offset_never_repeats_unrepeatable_input(extent: Extent, reached: int) -> None:
    """The exception is a topic that ends before the state's position."""
    try:
        found = next_offset(extent, reached, "ledger", repeatable=False)
    except StateLostError:
        return
    assert found >= extent.committed or extent.end < reached


def test_next_offset_ignores_expired_group_offsets() -> None:
    assert next_offset_of(40) == 40


def test_next_offset_of_new_installation_is_beginning() -> None:
    assert next_offset_of(0, beginning=7) == 7


def test_next_offset_of_older_state_is_position_of_state() -> None:
    assert next_offset_of(10, committed=40) == 10


@pytest.mark.parametrize(("beginning", "end"), [(11, 50), (0, 39)], ids=["retention", "a recreated topic"])
def test_next_offset_refuses_state_that_lacks_deleted_events(beginning: int, end: int) -> None:
    with pytest.raises(StateLostError, match=r"state reaches offset 10 of queries.*restore a newer copy"):
        next_offset_of(10, beginning=beginning, end=end, committed=40)


def test_next_offset_refuses_older_ledger_even_with_all_requests() -> None:
    with pytest.raises(StateLostError, match="reaches offset 10"):
        next_offset_of(10, committed=40, repeatable=False)


def test_next_offset_of_truncated_input_is_its_beginning() -> None:
    assert next_offset_of(40, beginning=2, end=5, committed=40) == 2


@pytest.mark.parametrize(
    ("reached", "beginning", "gone"), [(10, 25, 15), (0, 25, None), (25, 25, None), (30, 25, None)]
)
def test_deleted_unread_input_is_logged(
    reached: int, beginning: int, gone: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Mock()
    monkeypatch.setattr(partition_input, "log", log)
    assert next_offset_of(reached, beginning=beginning, committed=reached) == max(reached, beginning)
    assert Extent(SOURCE, beginning, 50, reached).max_deleted_unread(reached) == (gone or 0)
    logged = [(one.args, one.kwargs["at_most"]) for one in log.error.mock_calls]
    assert logged == ([] if gone is None else [(("input deleted unread",), gone)])


def test_group_offsets_are_committed_rarely() -> None:
    offsets = GroupOffsets()
    times = [number * OFFSET_COMMIT_SECONDS / 10 for number in range(101)]
    committed: list[int] = []
    for reached, now in enumerate(times):
        offsets.note_answered(SOURCE, reached)
        committed += offsets.take_due(now).values()
    assert len(committed) <= 1 + times[-1] / OFFSET_COMMIT_SECONDS
    assert committed == sorted(committed)


def test_group_offsets_commit_last_offset_once() -> None:
    offsets = GroupOffsets()
    offsets.note_answered(SOURCE, 1)
    assert offsets.take_due(0.0) == {SOURCE: 1}
    offsets.note_answered(SOURCE, 2)
    offsets.note_answered(SOURCE, 3)
    assert offsets.take_due(0.0) == {}
    assert offsets.take_due(OFFSET_COMMIT_SECONDS) == {SOURCE: 3}
    assert offsets.take_due(9 * OFFSET_COMMIT_SECONDS) == {}


def test_group_offsets_rarely_join_awaited_transactions() -> None:
    offsets = GroupOffsets()
    offsets.note_answered(SOURCE, 1)
    assert offsets.take_due(0.0, waited_for=True) == {SOURCE: 1}
    offsets.note_answered(SOURCE, 2)
    assert offsets.take_due(0.9 * AWAITED_OFFSET_COMMIT_SECONDS, waited_for=True) == {}
    assert offsets.take_due(0.9 * AWAITED_OFFSET_COMMIT_SECONDS) == {SOURCE: 2}
    offsets.note_answered(SOURCE, 3)
    assert offsets.take_due(2.0 * AWAITED_OFFSET_COMMIT_SECONDS, waited_for=True) == {SOURCE: 3}
