"""Merging asks each window of each stream once, in order and with the same bytes, despite all faults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import format_moment
from stream.feeds import merge_processor
from stream.processing.protocol import LaterVersionError, Message, Record
from tests.processing import process_records
from tests.unit.feeds.merge_bench import RUNNING, SPECS, Bench, running_window, window
from tests.unit.feeds.partials import EVERY, FIRST, logged, partial
from tests.unit.feeds.streams import TOPICS, control_event, incarnation_of

GROUPS = {"all": 1, "origins": 3, "both": 6, "whole": 3}


@st.composite
def flows(draw: st.DrawFn) -> tuple[list[Message], dict[tuple[str, int], list[int]], dict[str, int]]:
    """Draw partials in any interleaving that keeps each partition's order, with the sums of the windows."""
    partitions, windows = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sums: dict[tuple[str, int], list[int]] = {}
    queues: list[list[Message]] = []
    whole: dict[str, int] = {}
    for spec in SPECS:
        groups = GROUPS[spec.stream]
        for number in range(partitions):
            queue = []
            for place in range(draw(st.integers(0, windows))):
                start = FIRST + place * EVERY
                counts = draw(st.dictionaries(st.integers(0, groups - 1), st.integers(-5, 2**60).filter(bool)))
                total = sums.setdefault((spec.stream, start), [0] * groups)
                for cell, count in counts.items():
                    total[cell] += count
                queue.append(partial(spec.stream, number, start, counts, partitions))
            whole[spec.stream] = min(whole.get(spec.stream, windows), len(queue))
            queues.append(queue)
    mixed = []
    while left := [queue for queue in queues if queue]:
        mixed.append(draw(st.sampled_from(left)).pop(0))
    return mixed, sums, whole


@given(flow=flows(), data=st.data())
def test_merging_asks_each_window_once_in_order(flow: Any, data: st.DataObject) -> None:
    messages, sums, whole = flow
    partials = logged(messages)
    control = [control_event(spec, offset=at) for at, spec in enumerate(SPECS)]
    plain = Bench(control, partials)
    plain.run()
    upset = Bench(control, partials)
    while upset.at < len(partials):
        fate = data.draw(st.sampled_from(["go on", "lost", "crash"]))
        upset.step(data.draw(st.integers(1, 5)), lost=fate == "lost")
        if fate == "crash":
            upset.start()
    by_stream = [
        {name: [value for key, value, _ in one.logs[TOPICS.queries] if key == name.encode()] for name in GROUPS}
        for one in (plain, upset)
    ]
    assert by_stream[0] == by_stream[1]
    assert plain.kept == upset.kept
    for name, groups in GROUPS.items():
        asked = [one for one in plain.asked if one.stream == name]
        starts = [FIRST + window * EVERY for window in range(whole[name])]
        numbers = [
            json.loads(value or b"") for key, value, _ in plain.logs[TOPICS.queries] if key == name.encode()
        ]
        if name == "whole":
            assert [(one["id"], one["values"]) for one in numbers] == [
                (format_moment(start), sums[name, start]) for start in starts
            ]
        else:
            assert [(one["id"], one["value"]) for one in numbers] == [
                (f"{format_moment(start)}/{cell}", sums[name, start][cell])
                for start in starts
                for cell in range(groups)
            ]
        assert all(one.window and one.window.start in one.id for one in asked)
    assert not plain.logs[TOPICS.rejected]


def bench(*messages: Message) -> Bench:
    """Return a task with some unread partials and all streams open."""
    return Bench([control_event(spec, offset=at) for at, spec in enumerate(SPECS)], logged(messages))


def test_merging_asks_a_window_once_all_partitions_published_it() -> None:
    [first, second] = window("all", 0)
    task = bench(first, second)
    task.step(1)
    assert not task.asked
    task.step(1)
    assert [(one.id, one.value) for one in task.asked] == [("2026-01-01T00:00:00Z/0", 2.0)]
    assert not [key for key in task.kept if key.startswith(b"@partial")]


def test_repeated_partial_counts_once() -> None:
    [first, second] = window("all", 0)
    task = bench(first, first, second, second, *window("all", 0))
    task.run(1)
    assert [one.value for one in task.asked] == [2.0]


def running_bench(*messages: Message) -> Bench:
    """Return a task with some unread partials of a running count over four windows."""
    return Bench([RUNNING.control_event(incarnation_of(RUNNING.name))], logged(messages))


@pytest.mark.parametrize("crash", [False, True])
def test_running_count_stops_after_a_partition_lost_its_counts(crash: bool) -> None:
    """People whose counts the partition has lost could otherwise count beyond their total."""
    [told_again, _] = running_window(0)
    task = running_bench(
        *running_window(0), *running_window(1), told_again, *running_window(2), *running_window(3)
    )
    task.run(1)
    if crash:
        task.start()
    assert len(task.asked) == 2
    [(_, value, headers)] = task.logs[TOPICS.rejected]
    assert value == told_again[1]
    assert (
        b"were lost, so the stream gets no more questions" in dict(headers)["__connect.errors.exception.message"]
    )
    assert task.task._streams[RUNNING.name].running.are_lost


def test_running_count_without_its_first_windows_asks_nothing() -> None:
    """Otherwise its sums would differ from the published ones, with the same noise."""
    task = running_bench(*running_window(1), *running_window(2))
    task.run(1)
    assert not task.asked
    assert len(task.logs[TOPICS.rejected]) == 1


def test_groups_are_in_row_major_order_with_or_without_events() -> None:
    task = bench(*window("both", 0, counts={}))
    task.run()
    assert [(one.group, one.value) for one in task.asked] == [
        ({"origin": origin, "late": late}, 0.0) for origin in ("EWR", "JFK", "LGA") for late in (0, 1)
    ]


def test_merging_step_asks_at_most_its_bound_and_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_processor, "MAX_QUESTIONS_PER_STEP", 7)
    messages = [one for number in range(5) for one in window("both", number)]
    task = bench(*messages)
    assert (
        len(task.task.prepare(logged(messages)).records) == 4
    )  # twelve questions: with the second window, there are more than seven
    task.run()
    assert len(task.asked) == 30


@pytest.mark.parametrize("crash", [False, True])
def test_closed_streams_ask_and_keep_nothing(crash: bool) -> None:
    task = bench(*window("all", 0), *window("all", 1)[:1], *window("all", 1)[1:], *window("all", 2))
    task.step(3)
    ending = control_event(SPECS[0], "closed", offset=9)
    if crash:
        task.control.append(ending)
        task.start()
        task.write(task.task.collect_due_outputs(0.0))
    else:
        task.hear(ending)
    task.run()
    assert [one.value for one in task.asked] == [2.0]
    assert set(task.kept) == {b"@progress"}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("halted", range(7))
@pytest.mark.parametrize("resumed", range(7))
def test_merging_asks_the_same_whenever_it_reads_of_an_end(halted: int, resumed: int, crash: bool) -> None:
    """Windows before an end are asked, even after the end or an extension; a window that a partition skips is not asked."""
    first, _ = window("all", 2)
    partials = [*window("all", 0), *window("all", 1), first, *window("all", 3)[1:], *window("all", 4)]
    task = bench(*partials)
    for place in range(len(partials)):
        if place == halted:
            task.hear(control_event(SPECS[0], "halted", offset=9))
        if place == halted + resumed:
            task.hear(control_event(SPECS[0], offset=10, extended=[True]))
        if crash:
            task.start()
        task.step(1)
    minutes = [one.id[14:16] for one in task.asked]
    assert minutes == ["00", "05", "20"]


def test_invalid_partial_is_a_dead_letter_and_stops_no_stream() -> None:
    key, value, _ = window("origins", 0)[0]
    wrong = [
        (key, b"{", ()),
        (key, None, ()),
        (b"else", value, ()),
        partial("never-opened", 0, FIRST, {0: 1}, 2),
        partial("origins", 0, FIRST + 1, {0: 1}, 2),
        partial("origins", 0, FIRST, {3: 1}, 2),
        partial("origins", 2, FIRST, {0: 1}, 2),
        (key, (value or b"").replace(incarnation_of("origins").encode(), b"ab" * 16), ()),
        (key, (value or b"").replace(b'"counts":[1]', b'"counts":[1,1]'), ()),
    ]
    task = Bench([control_event(spec) for spec in SPECS], logged([*wrong, *window("origins", 0)]))
    while task.at < len(task.partials):
        task.write(process_records(task.task, [task.partials[task.at]]))
        task.at += 1
    assert len(task.logs[TOPICS.rejected]) == len(wrong)
    assert [one.value for one in task.asked] == [2.0, 0.0, 0.0]


def test_merging_refuses_partials_of_another_partition_count() -> None:
    task = bench(window("all", 0)[0], partial("all", 1, FIRST, {0: 1}, 3))
    task.run()
    assert not task.asked
    assert len(task.logs[TOPICS.rejected]) == 1


def test_merging_refuses_a_later_versions_changelog() -> None:
    task = bench()
    task.task.restore([Record(TOPICS.merges, 0, 0, 0, b"all", b'{"later":1}')])
    with pytest.raises(LaterVersionError):
        task.task.end_restore()
