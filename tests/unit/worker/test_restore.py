"""A state that is restored in parts, from topics in turn, equals the state restored at once and the live state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import MissedRecordError, Record
from stream.tables.store import TableStore
from stream.worker import stream_control
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, OTHER_KEY, installation, source
from tests.chaos.load import ROWS
from tests.chaos.replay import differences
from tests.processing import process_records
from tests.unit.histories import CLOSED, HALTED, asked_installation
from tests.unit.installation import query, records, spec


def tables(key: NoiseKey = KEY) -> TableStore:
    store = TableStore.keyed_by(key)
    store.put("people", ROWS)
    return store


def empty() -> QueryProcessor:
    return QueryProcessor(asked_installation().topics, 0, KEY, tables())


def restored(*logs: Sequence[Record]) -> QueryProcessor:
    processor = empty()
    for log in logs:
        processor.restore(log)
    processor.end_restore()
    return processor


@contextmanager
def taken_in_every(count: int) -> Iterator[None]:
    """Let restores apply the collected records whenever there are so many."""
    with (
        patch.object(stream_control, "MAX_COLLECTED_DEFINITIONS", count),
        patch.object(stream_control, "MAX_COLLECTED_CHECKPOINTS", count),
    ):
        yield


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data(), at_once=st.sampled_from([1, 3, 10]))
def test_restore_in_turns_gives_the_state_of_one_restore(data: st.DataObject, at_once: int) -> None:
    driver = asked_installation()
    left = [driver.records(driver.topics.control), driver.records(driver.topics.state)]
    expected, processor = empty(), empty()
    for log in left:
        expected.restore(log)
    with taken_in_every(at_once):
        while any(left):
            number = data.draw(st.sampled_from([number for number in (0, 1) if left[number]]))
            count = data.draw(st.integers(1, len(left[number])))
            processor.restore(left[number][:count])
            left[number] = left[number][count:]
        assert processor.end_restore() == expected.end_restore()
    assert differences("by turns and at once", processor, expected, expected.streams.names) == []


def test_restored_state_equals_the_live_state() -> None:
    driver = asked_installation()
    with taken_in_every(3):
        processor = restored(driver.records(driver.topics.control), driver.records(driver.topics.state))
    assert processor.streams.snapshot_streams() == driver.snapshot_streams()
    figures = {name: kept[0] for name, kept in processor.streams.snapshot_streams().items()}
    assert figures["stream-3"] == "exhausted"
    assert {figures[HALTED], figures[CLOSED]} == {"halted", "closed"}
    assert len(set(processor.streams.kinds)) == 12


def test_opening_behind_the_halt_does_not_reopen_the_stream() -> None:
    """A restore has read both."""
    driver = asked_installation()
    control = driver.records(driver.topics.control)
    opened = next(record for record in control if record.key == HALTED.encode())
    with taken_in_every(1):
        processor = restored(control, [opened])
    process_records(processor, [])
    assert processor.streams.snapshot_streams()[HALTED][0] == "halted"


def test_figures_of_another_incarnation_are_ignored() -> None:
    first, second = (installation(spec("s", cutoff=3), key=key) for key in (KEY, OTHER_KEY))
    first.ask_many([query("a", "s", 1e9)])
    state, control = first.records(first.topics.state), second.records(second.topics.control)
    for order in ((control, state), (state, control)):
        processor = QueryProcessor(second.topics, 0, OTHER_KEY, TableStore.keyed_by(OTHER_KEY))
        with taken_in_every(1):
            for log in order:
                processor.restore(log)
        processor.end_restore()
        assert processor.streams.snapshot_streams()["s"] == second.snapshot_streams()["s"]


def test_stream_with_a_new_definition_starts_fresh() -> None:
    """Its name was restored with another definition before."""
    first = installation(spec("s", cutoff=3))
    second = installation(spec("s", cutoff=2, threshold=5.0), key=OTHER_KEY)
    first.ask_many([query("a", "s", 1e9)])
    key = NoiseKey(OTHER_KEY.secret, (KEY,))
    processor = QueryProcessor(first.topics, 0, key, TableStore.keyed_by(key))
    with taken_in_every(1):
        processor.restore(first.records(first.topics.control))
        processor.restore(first.records(first.topics.state))
        processor.restore(second.records(second.topics.control))
    processor.end_restore()
    assert processor.streams.snapshot_streams()["s"] == second.snapshot_streams()["s"]
    assert processor.streams.shown_answers_left(0) == 2


def test_definition_missed_by_the_restore_does_not_start_fresh() -> None:
    """A stream with a checkpoint keeps it."""
    # During a restore, compaction can remove a definition because of a later one after the restore's end.
    driver = installation(spec("s", cutoff=1), spec("other", cutoff=1, epsilon=0.1))
    driver.ask_many([query("a", "s", 1e9)])
    control = driver.records(driver.topics.control)
    processor = QueryProcessor(driver.topics, 0, KEY, TableStore.keyed_by(KEY))
    processor.restore([record for record in control if record.key == b"other"])
    processor.restore(driver.records(driver.topics.state))
    processor.end_restore()
    processor.apply_lookup_records([record for record in control if record.key == b"other"])
    with pytest.raises(MissedRecordError, match="s has a checkpoint in sotto"):
        processor.apply_lookup_records([record for record in control if record.key == b"s"])
    assert "s" not in processor.streams.slots


def test_stream_reopened_after_a_restore_starts_fresh() -> None:
    """The changelog still has the earlier state of its name."""
    first = installation(spec("s", cutoff=1))
    second = installation(spec("s", cutoff=2), key=OTHER_KEY)
    first.ask_many([query("a", "s", 1e9)])
    key = NoiseKey(OTHER_KEY.secret, (KEY,))
    processor = QueryProcessor(first.topics, 0, key, TableStore.keyed_by(key))
    processor.restore(first.records(first.topics.state))
    processor.end_restore()
    processor.apply_lookup_records(second.records(second.topics.control))
    assert processor.streams.shown_answers_left(0) == 2


def test_late_table_is_found_at_the_end_of_the_restore() -> None:
    driver = installation(
        spec("people", "people", threshold=1e9),
        sources=[source("people", "table")],
        rows={"people": {"age": [1, 2, 3], "sex": ["F", "M", "F"]}},
    )
    store = TableStore.keyed_by(KEY)
    processor = QueryProcessor(driver.topics, 0, KEY, store)
    with taken_in_every(1):
        processor.restore(driver.records(driver.topics.control))
        store.put("people", {"age": [1, 2, 3], "sex": ["F", "M", "F"]})
        processor.end_restore()
    assert not processor.streams.columns.refused[: len(processor.streams)].any()


@pytest.mark.parametrize("count", [1, 7, 64, 65, 300])
def test_columns_have_room_for_any_number_of_new_streams(count: int) -> None:
    driver = installation(
        *(spec(f"s{number}", cutoff=2, threshold=float(number), epsilon=0.01) for number in range(count))
    )
    driver.ask_many([query(f"q{number}", f"s{number}", 1e9) for number in range(0, count, 2)])
    processor = QueryProcessor(driver.topics, 0, KEY, TableStore.keyed_by(KEY))
    processor.restore(driver.records(driver.topics.control))
    processor.restore(driver.records(driver.topics.state))
    processor.end_restore()
    assert processor.streams.snapshot_streams() == driver.snapshot_streams()
    answers = process_records(processor, records([query("next", f"s{count - 1}", 1e9)], start=count + 1))
    assert answers
