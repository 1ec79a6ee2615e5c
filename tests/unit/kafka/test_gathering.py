"""Visible records are committed at once; changelog-only writes are batched for a bounded time."""

from __future__ import annotations

from aiokafka import TopicPartition

from stream.engine.partition_input import GroupOffsets
from stream.engine.writer import BUFFERED_BYTES, OutputBuffer
from stream.processing.protocol import Outputs

CHANGELOG = TopicPartition("counts", 3)
INPUT = TopicPartition("visits", 3)
PATIENCE = 0.1


def outputs(*places: tuple[str, bytes, bytes]) -> Outputs:
    made = Outputs()
    for topic, key, value in places:
        made.add(topic, 3, (key, value, ()))
    return made


def written(found: tuple[Outputs, object] | None) -> list[tuple[str, bytes | None, bytes | None]]:
    assert found is not None
    return [
        (topic, message[0], message[1])
        for topic, partition, messages in found[0]
        for message in messages
        if partition == 3
    ]


def gathering(patience: float = PATIENCE) -> tuple[OutputBuffer, GroupOffsets]:
    offsets = GroupOffsets()
    return OutputBuffer(CHANGELOG, offsets, patience), offsets


def test_what_only_the_changelog_has_waits_and_is_committed_in_time_the_latest_of_each_key() -> None:
    made, offsets = gathering()
    assert made.seconds_left(0.0) is None
    offsets.note_answered(INPUT, 5)
    assert (
        made.add_and_take_due(
            outputs(("counts", b"piece", b"1"), ("counts", b"@progress", b"5")), 10.0, idle=False
        )
        is None
    )
    assert made.seconds_left(10.06) is not None
    offsets.note_answered(INPUT, 9)
    assert made.add_and_take_due(outputs(("counts", b"@progress", b"9")), 10.06, idle=False) is None
    offsets.note_answered(INPUT, 12)
    found = made.add_and_take_due(outputs(("counts", b"@progress", b"12")), 10.11, idle=False)
    assert written(found) == [("counts", b"piece", b"1"), ("counts", b"@progress", b"12")]
    assert found is not None
    assert found[1] == {INPUT: 12}
    assert made.seconds_left(10.11) is None


def test_what_others_read_is_committed_at_once_with_all_that_came_before_it() -> None:
    made, _ = gathering()
    assert made.add_and_take_due(outputs(("counts", b"@progress", b"5")), 0.0, idle=False) is None
    found = made.add_and_take_due(
        outputs(("partials", b"stream", b"7"), ("counts", b"@progress", b"6")), 0.01, idle=False
    )
    assert written(found) == [("partials", b"stream", b"7"), ("counts", b"@progress", b"6")]


def test_offsets_are_never_committed_ahead_of_what_waits() -> None:
    made, offsets = gathering()
    offsets.note_answered(INPUT, 5)
    assert made.add_and_take_due(outputs(("counts", b"@progress", b"5")), 0.0, idle=False) is None
    found = made.add_and_take_due(Outputs(), 0.01, idle=True)
    assert written(found) == [("counts", b"@progress", b"5")]
    assert found is not None
    assert found[1] == {INPUT: 5}
    assert made.add_and_take_due(Outputs(), 0.02, idle=True) is None


def test_what_waits_is_bounded() -> None:
    made, _ = gathering()
    half = bytes(BUFFERED_BYTES // 2)
    assert made.add_and_take_due(outputs(("counts", b"1", half)), 0.0, idle=False) is None
    assert len(written(made.add_and_take_due(outputs(("counts", b"2", half)), 0.0, idle=False))) == 2


def test_without_patience_nothing_waits_and_nothing_is_changed() -> None:
    made, _ = gathering(patience=0.0)
    told = outputs(("state", b"stream", b"1"), ("state", b"stream", b"2"))
    found = made.add_and_take_due(told, 0.0, idle=False)
    assert found is not None
    assert found[0] is told
    assert made.add_and_take_due(Outputs(), 0.0, idle=False) is None
