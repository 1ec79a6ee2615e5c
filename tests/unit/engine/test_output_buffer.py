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


def records_of(found: tuple[Outputs, object] | None) -> list[tuple[str, bytes | None, bytes | None]]:
    assert found is not None
    return [
        (topic, message[0], message[1])
        for topic, partition, messages in found[0]
        for message in messages
        if partition == 3
    ]


def buffer_and_offsets(patience: float = PATIENCE) -> tuple[OutputBuffer, GroupOffsets]:
    offsets = GroupOffsets()
    return OutputBuffer(CHANGELOG, offsets, patience), offsets


def test_output_buffer_delays_changelog_writes_for_bounded_time() -> None:
    """The latest record of each key is committed."""
    made, offsets = buffer_and_offsets()
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
    assert records_of(found) == [("counts", b"piece", b"1"), ("counts", b"@progress", b"12")]
    assert found is not None
    assert found[1] == {INPUT: 12}
    assert made.seconds_left(10.11) is None


def test_output_buffer_commits_visible_records_at_once() -> None:
    made, _ = buffer_and_offsets()
    assert made.add_and_take_due(outputs(("counts", b"@progress", b"5")), 0.0, idle=False) is None
    found = made.add_and_take_due(
        outputs(("partials", b"stream", b"7"), ("counts", b"@progress", b"6")), 0.01, idle=False
    )
    assert records_of(found) == [("partials", b"stream", b"7"), ("counts", b"@progress", b"6")]


def test_output_buffer_commits_offsets_with_buffered_records() -> None:
    made, offsets = buffer_and_offsets()
    offsets.note_answered(INPUT, 5)
    assert made.add_and_take_due(outputs(("counts", b"@progress", b"5")), 0.0, idle=False) is None
    found = made.add_and_take_due(Outputs(), 0.01, idle=True)
    assert records_of(found) == [("counts", b"@progress", b"5")]
    assert found is not None
    assert found[1] == {INPUT: 5}
    assert made.add_and_take_due(Outputs(), 0.02, idle=True) is None


def test_output_buffer_is_limited_in_bytes() -> None:
    made, _ = buffer_and_offsets()
    half = bytes(BUFFERED_BYTES // 2)
    assert made.add_and_take_due(outputs(("counts", b"1", half)), 0.0, idle=False) is None
    assert len(records_of(made.add_and_take_due(outputs(("counts", b"2", half)), 0.0, idle=False))) == 2


def test_output_buffer_without_delay_keeps_nothing() -> None:
    made, _ = buffer_and_offsets(patience=0.0)
    given = outputs(("state", b"stream", b"1"), ("state", b"stream", b"2"))
    found = made.add_and_take_due(given, 0.0, idle=False)
    assert found is not None
    assert found[0] is given
    assert made.add_and_take_due(Outputs(), 0.0, idle=False) is None
