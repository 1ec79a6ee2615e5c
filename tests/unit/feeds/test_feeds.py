"""The events that a feed refuses, defers, counts and drops."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count as counting
from typing import Any

import pytest

from stream.feeds import changelog_pieces, window_queries
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.event_counts import CellCounts
from stream.feeds.feed_definitions import Epoch, FeedDefinitions
from stream.feeds.window_queries import MAX_PARTIALS_PER_STEP
from stream.kernel.key_numbering import KeyNumbering
from stream.processing.dead_letters import MALFORMED_BATCH, UnreadableValue
from stream.processing.protocol import (
    PROGRESS_KEY,
    InputRefusedError,
    LaterVersionError,
    MissedRecordError,
    Outputs,
)
from stream.processing.topic_names import partition_of
from tests.processing import process_records
from tests.unit.feeds import streams
from tests.unit.feeds.topic import (
    HOUR,
    MINUTE,
    TOPICS,
    ArrivedRecord,
    FixedDefinitions,
    Kafka,
    as_of,
    changelog,
    columns,
    drain,
    ended,
    event,
    extended,
    home,
    source,
    standing_definition,
    start,
    table_bytes,
)


def hours(about: Any, name: str = "s", **standing: Any) -> Any:
    return standing_definition(about, name, window={"size": "1h"}, **standing)


def letters(kafka_or_outputs: Any) -> list[tuple[str, Any]]:
    """Return the code and the headers of each dead letter."""
    found = []
    for topic, _, messages in kafka_or_outputs:
        if topic == TOPICS.rejected:
            for _, _, headers in messages:
                facts = dict(headers)
                found.append((facts["__connect.errors.exception.class.name"].decode(), headers))
    return found


def partials_of(outputs: Outputs) -> list[tuple[str, int]]:
    """Return the stream and window of each partial, in order."""
    found = [value for topic, _, messages in outputs if topic == TOPICS.partials for _, value, _ in messages]
    return [(one["stream"], one["start"]) for one in (json.loads(value or b"") for value in found)]


def test_feed_refuses_a_topic_without_broker_timestamps() -> None:
    """The error says which setting of the topic is needed."""
    about = source()
    feed = start(about, FixedDefinitions(hours(about)))
    with pytest.raises(
        InputRefusedError,
        match=r"ops\.departures.* message\.timestamp\.type=LogAppendTime on the topic and delete",
    ):
        process_records(feed, [replace(ArrivedRecord(0, 5, event("a", 5)), timestamp_type=0)])
    with pytest.raises(InputRefusedError):
        process_records(feed, columns([ArrivedRecord(0, 5, event("a", 5))], timestamp_type=0))
    marked = source(clock="marks")
    feed = start(marked, FixedDefinitions(hours(marked)))
    process_records(feed, [replace(ArrivedRecord(0, 5, event("a", 5)), timestamp_type=0)])
    process_records(feed, columns([ArrivedRecord(1, 5, event("b", 5))], timestamp_type=0))
    assert feed.event_totals.counted == 2


def test_feed_refuses_another_number_of_partitions() -> None:
    about, kafka = source(), changelog(source())
    definitions = FixedDefinitions(hours(about))
    kafka.commit(process_records(start(about, definitions, kafka), [ArrivedRecord(0, 5, event("a", 5))]))
    with pytest.raises(InputRefusedError, match="has 2 partitions now, and had 1"):
        start(about, definitions, kafka, partitions=2)


def test_bad_events_become_dead_letters_and_cost_nothing_else() -> None:
    about = source()
    stranger = next(name for name in ("ann", "bob", "eve", "kim", "lea") if home(name, 2) != 0)
    own = next(name for name in ("ann", "bob", "eve", "kim", "lea") if home(name, 2) == 0)
    feed = start(about, FixedDefinitions(hours(about)), partitions=2)
    records = [
        ArrivedRecord(0, HOUR, event(own, HOUR)),
        ArrivedRecord(1, HOUR, event(stranger, HOUR)),
        ArrivedRecord(2, HOUR, event(own, HOUR + 5 * MINUTE + 1)),
        ArrivedRecord(3, HOUR, event(own, HOUR + 5 * MINUTE)),
        ArrivedRecord(4, HOUR, UnreadableValue(b"secret", MALFORMED_BATCH)),
        ArrivedRecord(5, HOUR, b'{"who": "' + b"x" * 1_000_000),
        ArrivedRecord(6, HOUR, event(own, HOUR, origin="SECRET")),
        ArrivedRecord(7, HOUR, None),
        ArrivedRecord(8, HOUR, event(own, HOUR), headers=[("sotto-mark", b"5")]),
    ]
    outputs = process_records(feed, records)
    found = letters(outputs)
    assert [code for code, _ in found] == [
        "partition", "ahead", "unreadable", "oversize", "unknown category", "malformed",
    ]  # fmt: skip
    for _, headers in found:
        texts = b" ".join(value for _, value in headers).lower()
        assert b"secret" not in texts
        assert own.encode() not in texts
    assert feed.event_totals.counted + feed.event_totals.left_out == 3
    assert feed.rejected == {code: 1 for code, _ in found}
    assert {partition for topic, partition, _ in outputs if topic == TOPICS.rejected} == {0}


NOON = 1_710_072_000_000
"""2024-03-10T12:00:00Z in milliseconds."""
MARCH = "2024-03-10T00:00:00Z"


@pytest.mark.parametrize(
    ("at", "unit"),
    [
        (NOON // 1000, b"in seconds"),
        (NOON * 1000, b"in microseconds"),
        (NOON * 1_000_000, b"in nanoseconds"),
        (NOON / 1000, b"in seconds"),
        (str(NOON // 1000), b"in seconds"),
        ("1970-01-20T19:01:12Z", b"in seconds"),
        (200_000_000_000_000, b"in microseconds"),
        (5, b"before the first window"),
        (NOON - 24 * HOUR, b"before the first window"),
        ("2023-03-10T12:00:00Z", b"before the first window"),
    ],
)
@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_time_in_another_unit_is_refused_with_the_likely_unit(at: Any, unit: bytes, clock: str) -> None:
    """An event dated in seconds, microseconds or nanoseconds, or before every window, has a dead letter that says so."""
    about = source(clock=clock)
    feed = start(
        about, FixedDefinitions(hours(about, begins=MARCH), hours(about, "later", begins="2024-03-10T06:00:00Z"))
    )
    records = [ArrivedRecord(0, NOON, event("a", at)), ArrivedRecord(1, NOON, event("b", NOON))]
    [(code, headers)] = letters(process_records(feed, columns(records)))
    assert code == ("before" if unit.startswith(b"before") else "time")
    assert unit in dict(headers)["__connect.errors.exception.message"]
    assert feed.event_totals.counted == 1


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_history_in_order_of_time_is_no_dead_letter(clock: str) -> None:
    """An event before every window is refused if the clock is after the first window's beginning, and accepted if it is before."""
    about = source(clock=clock)
    feed, offsets = start(about, FixedDefinitions(hours(about, begins=MARCH))), counting()

    def refused(now: int, at: int) -> list[str]:
        mark = [("sotto-mark", str(now).encode())]
        process_records(feed, [ArrivedRecord(next(offsets), now, None, headers=mark)] if clock == "marks" else [])
        return [
            code for code, _ in letters(process_records(feed, [ArrivedRecord(next(offsets), now, event("a", at))]))
        ]

    yesterday = NOON - 24 * HOUR
    assert refused(yesterday, yesterday) == refused(yesterday, yesterday - HOUR) == []
    assert refused(yesterday, yesterday // 1000) == ["time"]
    assert refused(NOON, NOON) == []
    assert refused(NOON, yesterday) == ["before"]


def test_windows_of_ended_streams_decide_which_events_are_too_early() -> None:
    """An event in the windows of an ended stream is no dead letter, even after a restart and after the stream is closed."""
    about = source()
    kafka, streams = (
        changelog(about),
        FixedDefinitions(hours(about, "first", begins=MARCH), hours(about, "next", begins="2024-03-10T12:00:00Z")),
    )
    feed = start(about, streams, kafka)
    kafka.commit(process_records(feed, [ArrivedRecord(0, NOON, event("a", NOON - HOUR))]))
    assert "first_windows" not in json.loads(kafka.state[PROGRESS_KEY]), "as earlier versions wrote it"
    for kind in ("halted", "closed"):
        streams.tell(hours(about, "first", kind=kind, begins=MARCH))
        kafka.commit(process_records(feed, [ArrivedRecord(1, NOON, event("a", NOON - HOUR))]))
        feed = start(about, streams, kafka)
        kafka.commit(process_records(feed, [ArrivedRecord(2, NOON, event("a", NOON - HOUR))]))
    assert not kafka.refused
    kafka.commit(process_records(feed, [ArrivedRecord(3, NOON, event("a", NOON - 13 * HOUR))]))
    assert kafka.refused == [(3, "before")]


def test_clock_of_marks_is_moved_by_marks_alone() -> None:
    about = source(clock="marks")
    kafka, feed = changelog(about), start(about, FixedDefinitions(hours(about)))
    mark = [("sotto-mark", b"1970-01-01T01:00:00Z")]
    kafka.commit(
        process_records(
            feed, [ArrivedRecord(0, 9 * HOUR, event("a", 5)), ArrivedRecord(1, 0, event("b", 90 * MINUTE))]
        )
    )
    feed.note_end_of_input(100 * 3600)
    drain(feed, kafka)
    assert not kafka.partials()
    outputs = process_records(
        feed,
        [
            ArrivedRecord(2, 0, None, headers=mark),
            ArrivedRecord(3, 0, event("c", 6)),
            ArrivedRecord(4, 0, b"", headers=[("sotto-mark", b"soon")]),
        ],
    )
    kafka.commit(outputs)
    assert [(one["start"], one["counts"]) for one in kafka.partials()] == [(0, [1])]
    assert feed.event_totals.late == 1
    assert [code for code, _ in letters(outputs)] == ["mark"]
    process_records(feed, [ArrivedRecord(5, 0, event("a", HOUR + 6 * MINUTE))])
    assert feed.rejected["ahead"] == 1


def test_feed_counts_late_events_of_published_windows() -> None:
    """An event is late once for each of its closed windows, also if they were published long before."""
    about = source()
    feed = start(about, FixedDefinitions(standing_definition(about, window={"size": "2h", "every": "1h"})))
    process_records(feed, [ArrivedRecord(0, 9 * HOUR, event("a", 9 * HOUR))])
    assert feed.event_totals.late == 0
    process_records(feed, [ArrivedRecord(1, 9 * HOUR, event("b", 3 * HOUR))])
    assert feed.event_totals.late == 2
    process_records(feed, [ArrivedRecord(2, 9 * HOUR, event("c", 8 * HOUR))])
    assert feed.event_totals.late == 3, "one of its windows is open"
    assert feed.event_totals.counted == 3


def test_feed_counts_no_event_before_the_first_window_as_late() -> None:
    """Events of earlier windows are late only for streams that asked these windows."""
    about = source()
    definitions = FixedDefinitions(hours(about, begins="1970-01-01T00:00:00Z"))
    feed = start(about, definitions)
    process_records(feed, [ArrivedRecord(0, 9 * HOUR, event("a", 9 * HOUR))])
    definitions.tell(hours(about, "later", lateness="1m", begins="1970-01-01T20:00:00Z"))
    process_records(feed, [ArrivedRecord(1, 9 * HOUR, event("b", 3 * HOUR))])
    assert feed.event_totals.late == 1


def test_restarted_feed_counts_late_events_of_earlier_windows() -> None:
    """A producer that waits for a restart writes events of windows that were published before it."""
    about = source()
    kafka = changelog(about)
    definitions = FixedDefinitions(hours(about, begins="1970-01-01T02:00:00Z"))
    feed = start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 9 * HOUR, event("a", 9 * HOUR))]))
    drain(feed, kafka)
    restarted = start(about, definitions, kafka)
    process_records(restarted, [ArrivedRecord(1, 9 * HOUR, event("b", one * HOUR)) for one in (1, 3, 9)])
    assert restarted.event_totals.late == 1, "no window began at 01:00, and that of 09:00 is open"


def test_feed_reports_when_its_next_window_closes() -> None:
    """An event or silence may close it."""
    about = source()
    feed = start(about, FixedDefinitions(hours(about), hours(about, "later", lateness="10m")))
    process_records(feed, [ArrivedRecord(0, 5, event("a", 5))])
    assert feed.closing_timestamp == 3600
    assert feed.due_at is not None
    assert feed.due_at > 3600
    process_records(feed, [ArrivedRecord(1, HOUR, event("a", HOUR))])
    assert feed.closing_timestamp == 3600 + 600, "the other stream waits for those who are late"
    feed.note_end_of_input(feed.due_at)
    process_records(feed, ())
    assert feed.closing_timestamp == 7200
    marked = source(clock="marks")
    feed = start(marked, FixedDefinitions(hours(marked)))
    process_records(feed, [ArrivedRecord(0, 5, event("a", 5))])
    assert feed.closing_timestamp is None
    assert feed.due_at is None


def test_restarted_feed_refuses_no_late_event_of_an_earlier_window() -> None:
    """After a restart, a stream without a declared beginning continues at its next window, and keeps its first window."""
    about = source()
    definition = standing_definition(about, moment=0)
    standing = definition.standing.model_copy(update={"begins": None})
    spec = definition.spec.model_copy(update={"standing": standing})
    definitions, kafka = FixedDefinitions(), changelog(about)
    feed = start(about, definitions, kafka)
    kafka.commit(process_records(feed, [ArrivedRecord(0, HOUR, event("a", HOUR))]))
    definitions.tell(replace(definition, standing=standing, spec=spec, epochs=(Epoch(begins=HOUR),)))
    for offset, hour in enumerate((2, 5, 9), 1):
        kafka.commit(process_records(feed, [ArrivedRecord(offset, hour * HOUR, event("b", hour * HOUR))]))
    drain(feed, kafka)
    feed = start(about, definitions, kafka)
    late = [
        ArrivedRecord(4, 9 * HOUR + 1, event("c", 4 * HOUR)),
        ArrivedRecord(5, 9 * HOUR + 2, event("d", 6 * HOUR)),
    ]
    kafka.commit(process_records(feed, late))
    assert kafka.refused == []


def test_feed_changelog_deletes_pieces_with_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_pieces, "SLACK_ENTRIES", 200)
    about = source(contribution=1_000)
    definitions = FixedDefinitions(standing_definition(about, window={"size": "10m"}, by=["origin"]))
    kafka, feed, offset, most = changelog(about), start(about, definitions), 0, 0
    for step in range(300):
        now = step * MINUTE // 4
        records = [ArrivedRecord(offset + one, now, event(f"p{(7 * step + one) % 40}", now)) for one in range(20)]
        offset += len(records)
        before = kafka.written
        kafka.commit(process_records(feed, records))
        assert kafka.written - before < 20_000, "what a step writes is in proportion to what it takes in"
        most = max(most, sum(map(len, kafka.state.values())))
        if step % 50 == 49:
            feed = start(about, definitions, kafka)
    assert most < 30_000
    feed.note_end_of_input(1e6)
    drain(feed, kafka)
    assert sum(one["counts"][0] for one in kafka.partials() if one["counts"]) == offset
    assert feed.people == feed.open_windows == 0
    monkeypatch.setattr(changelog_pieces, "SLACK_ENTRIES", 0)
    kafka.commit(process_records(feed, [ArrivedRecord(offset, 2_000_000_000, event("z", 2_000_000_000))]))
    assert len([key for key in kafka.state if key.startswith(b"piece|")]) == 1


def test_large_step_is_written_in_records_that_kafka_accepts() -> None:
    about = source()
    kafka, feed = changelog(about), start(about, FixedDefinitions(hours(about)))
    records = [ArrivedRecord(one, HOUR, event(f"person {one}", HOUR)) for one in range(70_000)]
    kafka.commit(process_records(feed, records))  # refuses a record above the size limit
    assert len([key for key in kafka.state if key.startswith(b"piece|")]) == 2
    again = start(about, FixedDefinitions(hours(about)), kafka)
    assert again.people == feed.people == 70_000
    assert table_bytes(again) / again.people <= 100


def test_changelog_entry_has_less_than_a_hundred_bytes() -> None:
    about = source(contribution=1_000_000)
    feed = start(about, FixedDefinitions(hours(about)))
    for step in range(30):
        people = [ArrivedRecord(step, HOUR, event(f"{step}/{one}", HOUR)) for one in range(1 + 100 * step)]
        process_records(feed, [replace(record, offset=place) for place, record in enumerate(people)])
        assert table_bytes(feed) / max(feed.people, 600) <= 100


def test_feed_refuses_records_of_a_later_version() -> None:
    about, kafka = source(), changelog(source())
    definitions = FixedDefinitions(hours(about))
    kafka.commit(process_records(start(about, definitions, kafka), [ArrivedRecord(0, 5, event("a", 5))]))
    for key in (b"@progress", b"stream|s", b"piece|0"):
        broken = Kafka(kafka.changelog, {**kafka.state, key: b'{"later":1}'})
        with pytest.raises(LaterVersionError):
            start(about, definitions, broken)


def test_feed_waits_for_streams_that_control_has_not_sent_yet() -> None:
    about, kafka = source(), changelog(source())
    kafka.commit(
        process_records(start(about, FixedDefinitions(hours(about)), kafka), [ArrivedRecord(0, 5, event("a", 5))])
    )
    with pytest.raises(MissedRecordError, match="control has not defined yet"):
        start(about, FixedDefinitions(), kafka)


def test_streams_with_equal_counts_share_them() -> None:
    """A stream that opens later joins them with the next window."""
    about = source(contribution=1, idle="0s")
    definitions = FixedDefinitions(hours(about, "a"), hours(about, "b", where="TRUE", by=["origin"]))
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 5, event("p", 5))]))
    assert len(feed._streams.tallies) == 1
    definitions.tell(hours(about, "c"))
    kafka.commit(process_records(feed, [ArrivedRecord(1, 6, event("p", 6))]))
    assert len(feed._streams.tallies) == 2
    feed = start(about, definitions, kafka)
    kafka.commit(process_records(feed, [ArrivedRecord(2, HOUR + 6, event("p", HOUR + 6))]))
    assert len(feed._streams.tallies) == 1
    kafka.commit(process_records(feed, [ArrivedRecord(3, 2 * HOUR, event("q", 2 * HOUR))]))
    found = {(one["stream"], one["start"]): one["counts"] for one in kafka.partials()}
    assert found == {(name, at): [1] for name in "abc" for at in (0, HOUR)}


def test_stream_that_begins_in_the_past_counts_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever a feed restarts, its past windows are empty."""
    monkeypatch.setattr(window_queries, "MAX_PARTIALS_PER_STEP", 1)
    about = source()
    definitions = FixedDefinitions(hours(about, "a"))
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(
        process_records(feed, [ArrivedRecord(0, 5, event("p", 5)), ArrivedRecord(1, HOUR, event("q", HOUR))])
    )
    feed.note_end_of_input(3 * 3600 + 5)
    drain(feed, kafka)
    # The changelog still has the counts of published windows.
    feed = start(about, definitions, kafka)
    definitions.tell(hours(about, "b"))
    kafka.commit(feed.collect_due_outputs(0.0))
    feed = start(about, definitions, kafka)
    drain(feed, kafka)
    found = {(one["stream"], one["start"] // HOUR): one["counts"] for one in kafka.partials()}
    assert found == {
        (name, at): [1] if (name, at) in {("a", 0), ("a", 1)} else [] for name in "ab" for at in range(3)
    }


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_only_later_streams_lack_events_from_before_their_opening(clock: str) -> None:
    """The first stream counts the whole topic, also if its events and marks were written before the opening."""
    about = source(clock=clock)
    definitions = FixedDefinitions(hours(about, "first", moment=3 * HOUR))
    kafka, feed, offsets = changelog(about), start(about, definitions), counting()
    for hour in range(6):
        mark = ArrivedRecord(next(offsets), hour * HOUR, None, headers=[("sotto-mark", b"%d" % (hour * HOUR))])
        arrived = ArrivedRecord(next(offsets), hour * HOUR, event(f"p{hour}", hour * HOUR))
        kafka.commit(process_records(feed, [mark, arrived] if clock == "marks" else [arrived]))
        if hour == 2:
            definitions.tell(hours(about, "later", moment=2 * HOUR))
    drain(feed, kafka)
    found = {(one["stream"], one["start"] // HOUR): sum(one["counts"]) for one in kafka.partials()}
    assert found == {("first", hour): 1 for hour in range(5)} | {("later", hour): hour > 2 for hour in range(5)}


def conditions(about: Any, count: int) -> list[Any]:
    """Return streams with equal windows and different conditions: lower limits of the delay from −5 on."""
    wheres = [f"delay >= {least} AND delay <= {most}" for least in range(-5, 11) for most in range(least, 11)]
    return [hours(about, f"c{number:03}", where=where) for number, where in enumerate(wheres[:count])]


def test_feed_finds_each_person_once_for_twenty_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The results of all conditions are one row."""
    about = source()
    records = [ArrivedRecord(one, HOUR, event(f"p{one % 400}", HOUR, delay=one % 16 - 5)) for one in range(2_000)]
    looked_up: list[int] = []
    numbers = KeyNumbering.number_keys

    def counted(keys: KeyNumbering, people: Any) -> Any:
        looked_up.append(len(people))
        return numbers(keys, people)

    monkeypatch.setattr(KeyNumbering, "number_keys", counted)
    written = {}
    for count in (1, 20):
        kafka, feed = changelog(about), start(about, FixedDefinitions(*conditions(about, count)))
        looked_up.clear()
        outputs = process_records(feed, records)
        kafka.commit(outputs)
        assert len(looked_up) == 1
        assert sum(looked_up) <= len(records)
        assert feed.people <= 400
        assert table_bytes(feed) <= 100 * max(feed.people, 400)
        written[count] = sum(len(value) for key, value in kafka.state.items() if key.startswith(b"piece|"))
        assert start(about, FixedDefinitions(*conditions(about, count)), kafka).people == feed.people
    assert written[20] / 400 < 40, "sixteen bytes of a person, and two bits a condition"


def test_cells_are_added_to_once_a_condition_for_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of windows that the batch is in does not matter."""
    about = source(ahead="200h")
    added: list[int] = []
    add = CellCounts.add

    def counted(cells: CellCounts, places: Any, *others: Any) -> Any:
        added.append(len(places))
        return add(cells, places, *others)

    monkeypatch.setattr(CellCounts, "add", counted)
    kafka, feed = changelog(about), start(about, FixedDefinitions(*conditions(about, 3)))
    kafka.commit(
        process_records(
            feed, [ArrivedRecord(one, 0, event(f"p{one % 7}", one % 90 * HOUR, delay=-5)) for one in range(900)]
        )
    )
    assert added == [900] * 3
    assert feed.open_windows == 90
    again = start(about, FixedDefinitions(*conditions(about, 3)), kafka)
    assert (again.open_windows, again.people) == (90, feed.people)
    again.note_end_of_input(1e6)
    drain(again, kafka)
    assert all(one["counts"] == [10] for one in kafka.partials() if one["start"] < 90 * HOUR)


def test_conditions_beyond_the_columns_of_a_table_get_another_table() -> None:
    about = source()
    many = conditions(about, 100)
    kafka, feed = changelog(about), start(about, FixedDefinitions(*many))
    kafka.commit(
        process_records(
            feed, [ArrivedRecord(one, 5, event(f"p{one % 7}", 5, delay=one % 16 - 5)) for one in range(64)]
        )
    )
    assert len(feed._streams.tally_groups) == 2
    # After a restart, tallies are combined again, in the changelog's order of streams.
    kafka.state = dict(reversed(kafka.state.items()))
    feed = start(about, FixedDefinitions(*many), kafka)
    more = [ArrivedRecord(64 + one, 6, event(f"p{one % 7}", 6, delay=one % 16 - 5)) for one in range(64)]
    kafka.commit(process_records(feed, more))
    feed.note_end_of_input(1e6)
    drain(feed, kafka)
    found = {one["stream"]: one["counts"] for one in kafka.partials() if one["start"] == 0}
    alone = changelog(about)
    for stream in many:
        single = start(about, FixedDefinitions(stream))
        process_records(
            single, [ArrivedRecord(one, 5, event(f"p{one % 7}", 5, delay=one % 16 - 5)) for one in range(64)]
        )
        process_records(single, more)
        single.note_end_of_input(1e6)
        drain(single, alone)
    assert found == {one["stream"]: one["counts"] for one in alone.partials() if one["start"] == 0}


def test_column_that_is_free_again_begins_empty() -> None:
    about = source(contribution=1, idle="0s")
    first, second, third = conditions(about, 3)
    definitions = FixedDefinitions(first, second)
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 5, event("p", 5, delay=-5))]))
    definitions.tell(replace(first, kind="closed"))
    kafka.commit(feed.collect_due_outputs(0.0))
    definitions.tell(third)
    kafka.commit(process_records(feed, [ArrivedRecord(1, 6, event("q", 6, delay=-5))]))
    feed = start(about, definitions, kafka)
    assert {tally.column for tally in feed._streams.tallies.values()} == {0, 1}
    kafka.commit(
        process_records(
            feed, [ArrivedRecord(2, 7, event("p", 7, delay=-5)), ArrivedRecord(3, 8, event("q", 8, delay=-5))]
        )
    )
    feed.note_end_of_input(1e6)
    drain(feed, kafka)
    found = {one["stream"]: one["counts"] for one in kafka.partials() if one["start"] == 0}
    assert found == {second.spec.stream: [2], third.spec.stream: [2]}


def test_counts_are_dropped_with_their_stream() -> None:
    """A stream that is extended continues with whole windows."""
    about = source()
    definitions = FixedDefinitions(hours(about, "a"), hours(about, "b", where="delay > 0"))
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 5, event("p", 5, delay=1))]))
    definitions.tell(ended(definitions.streams_of("flights")[1], 10))
    kafka.commit(feed.collect_due_outputs(0.0))
    assert feed.open_windows == 1
    assert feed.event_totals.counted == 2
    kafka.commit(process_records(feed, [ArrivedRecord(1, 150 * MINUTE, event("p", 150 * MINUTE, delay=1))]))
    feed = start(about, definitions, kafka)
    definitions.tell(extended(definitions.streams_of("flights")[1], 155 * MINUTE))
    kafka.commit(process_records(feed, [ArrivedRecord(2, 160 * MINUTE, event("q", 160 * MINUTE, delay=1))]))
    kafka.commit(process_records(feed, [ArrivedRecord(3, 190 * MINUTE, event("q", 190 * MINUTE, delay=1))]))
    kafka.commit(process_records(feed, [ArrivedRecord(4, 250 * MINUTE, event("q", 250 * MINUTE, delay=1))]))
    found = {(one["stream"], one["start"]): one["counts"] for one in kafka.partials()}
    assert {at for name, at in found if name == "b"} == {3 * HOUR}
    assert found["b", 3 * HOUR] == [1]
    definitions.tell(replace(definitions.streams_of("flights")[1], kind="closed"))
    kafka.commit(feed.collect_due_outputs(0.0))
    assert {key for key in kafka.state if b"piece" not in key} == {b"@progress", b"stream|a"}


@pytest.mark.parametrize("last", [None, 2 * HOUR - 1, 2 * HOUR + 2_500])
def test_extension_resumes_at_a_time_that_no_event_decides(
    last: int | None,
) -> None:
    """Only the time at which control announced the extension decides."""
    about = source()
    definitions = FixedDefinitions(hours(about))
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 5, event("p", 5))]))
    definitions.tell(ended(hours(about), 10))
    kafka.commit(feed.collect_due_outputs(0.0))
    if last is not None:
        kafka.commit(process_records(feed, [ArrivedRecord(1, last, event("victim", last))]))
    definitions.tell(extended(definitions.streams_of("flights")[0], 2 * HOUR - 3_000))
    kafka.commit(process_records(feed, [ArrivedRecord(2, 2 * HOUR + 2_600, event("q", 2 * HOUR + 2_600))]))
    feed.note_end_of_input(5 * 3600)
    drain(feed, kafka)
    # Five seconds later, when all partitions have read the control event, the hour has begun.
    assert [one["start"] // HOUR for one in kafka.partials()] == [3]
    assert start(about, definitions, kafka).due_at == feed.due_at


def hourly_marks(hours: int) -> list[ArrivedRecord]:
    """Return a mark per hour, with timestamps a minute apart, each followed by two events that are ahead of the clock."""
    return [
        one
        for hour in range(hours)
        for one in (
            ArrivedRecord(3 * hour, hour * MINUTE, None, headers=[("sotto-mark", b"%d" % (hour * HOUR))]),
            ArrivedRecord(3 * hour + 1, 0, event("p", hour * HOUR + HOUR)),
            ArrivedRecord(3 * hour + 2, 0, event("q", hour * HOUR + 89 * MINUTE)),
        )
    ]


def test_marks_decide_where_a_stream_ends_and_resumes() -> None:
    """An end and an extension take effect with the first mark stamped ``idle`` later, whenever a feed reads of them."""
    about = source(clock="marks", ahead="90m")
    opened = hours(about)
    halted = ended(opened, MINUTE + 1)  # in effect with the mark of 2:00
    # In effect with the mark of 3:00, before which the clock is at 2:00.
    resumed = extended(halted, 2 * MINUTE + 1)
    for heard in range(1, 7):
        for again in range(heard, 10):
            definitions, records = FixedDefinitions(opened), hourly_marks(8)
            kafka, feed = changelog(about), start(about, definitions)
            kafka.commit(feed.collect_due_outputs(0.0))
            for place, record in enumerate(records):
                if place in {heard, again}:
                    definitions.tell(resumed if place == again else halted)
                    feed = start(about, definitions, kafka)
                kafka.commit(process_records(feed, [record]))
            drain(feed, kafka)
            found = {one["start"] // HOUR: one["counts"] for one in kafka.partials()}
            assert found == {0: [], 4: [2], 5: [2], 6: [2]}, (heard, again)


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_restarted_feed_publishes_the_windows_of_all_epochs(clock: str) -> None:
    """A feed that restarts after several ends and extensions publishes the same windows as a feed that read each in time."""
    about = source(clock=clock, contribution=100, idle="5m")
    states = [hours(about)]
    for end in (100, 200, 300):
        states.append(ended(states[-1], end * MINUTE))
        states.append(extended(states[-1], (end + 3) * MINUTE))
    records = [
        record
        for minute in range(0, 600, 10)
        for record in (
            ArrivedRecord(minute, minute * MINUTE, None, headers=[("sotto-mark", b"%d" % (minute * MINUTE))])
            if clock == "marks"
            else ArrivedRecord(minute, minute * MINUTE, event("q", minute * MINUTE)),
            ArrivedRecord(minute + 1, minute * MINUTE, event(f"p{minute}", minute * MINUTE)),
        )
    ]

    def asked(away: range) -> list[tuple[int, list[int]]]:
        definitions, kafka = FixedDefinitions(states[0]), changelog(about)
        feed = start(about, definitions, kafka)
        kafka.commit(feed.collect_due_outputs(0.0))
        for record in records:
            if (
                record.offset not in away
                and (news := as_of(states[-1], record.timestamp - 5 * MINUTE)) is not None
            ):
                definitions.tell(news)
            if record.offset == away.stop:
                definitions.tell(states[-1])
                feed = start(about, definitions, kafka)
            kafka.commit(process_records(feed, [record]))
        feed = start(about, definitions, kafka)
        drain(feed, kafka)
        return [(one["start"] // HOUR, one["counts"]) for one in kafka.partials()]

    wanted = asked(range(0))
    assert [start for start, _ in wanted] == [0, 2, 4, 6, 7, 8]
    assert all(count for _, count in wanted)
    for stop in (10, 50, 90, 100):
        assert asked(range(stop)) == wanted


def test_epochs_of_a_stream_are_known_from_compacted_control() -> None:
    """The latest event alone tells which extensions followed an end; stamps are the broker's on the first event of each epoch."""
    spec = streams.spec_of("late")
    events = [
        streams.control_event(spec),
        streams.control_event(spec, extended=[False]),
        streams.control_event(spec, "halted", extended=[False]),
        streams.control_event(spec, extended=[False, True]),
        streams.control_event(spec, "halted", extended=[False, True]),
        streams.control_event(spec, extended=[False, True, True]),
        streams.control_event(spec, extended=[False, True, True, False]),
    ]
    stamped = [record._replace(timestamp=place) for place, record in enumerate(events)]
    again = events[2]._replace(timestamp=9)

    def epochs(*places: int) -> list[tuple[int, int | None, int | None]]:
        definitions = FeedDefinitions()
        definitions.apply_control([*(stamped[place] for place in places), again])
        [definition] = definitions.streams_of("flights")
        return [(one.number, one.begins, one.ends) for one in definition.epochs]

    assert epochs(*range(7)) == [(0, 0, 2), (2, 3, 4), (3, 5, None)]
    assert epochs(1, 4, 6) == [(0, 1, 4), (2, None, 4), (3, 6, None)]
    assert epochs(6) == [(0, None, 6), (2, None, 6), (3, 6, None)]
    assert epochs(0, 1, 2) == [(0, 0, 2)]


def test_catching_up_is_bounded_in_each_step() -> None:
    about = source()
    definitions = FixedDefinitions(
        standing_definition(about, "a", window={"size": "1m"}),
        standing_definition(about, "b", window={"size": "1m"}),
    )
    kafka, feed = changelog(about), start(about, definitions)
    kafka.commit(process_records(feed, [ArrivedRecord(0, 6_000 * MINUTE, event("p", 6_000 * MINUTE))]))
    assert 0 < len(kafka.partials()) <= MAX_PARTIALS_PER_STEP
    assert feed.has_more_outputs
    feed = start(about, definitions, kafka)
    drain(feed, kafka)
    assert not feed.has_more_outputs
    for name in "ab":
        assert [one["start"] for one in kafka.partials() if one["stream"] == name] == [
            n * MINUTE for n in range(6_000)
        ]


def test_windows_of_a_step_do_not_depend_on_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of windows in a step does not reveal the groups of people."""
    monkeypatch.setattr(window_queries, "MAX_CELLS_PER_STEP", 100)
    about = source()
    steps: dict[int, list[Any]] = {}
    for crowd in (0, 16):
        feed = start(about, FixedDefinitions(*(standing_definition(about, name, by=["delay"]) for name in "ab")))
        process_records(feed, [ArrivedRecord(one, 5, event(f"p{one}", 5, delay=one - 5)) for one in range(crowd)])
        feed.note_end_of_input(1e5)
        steps[crowd] = []
        while outputs := feed.collect_due_outputs(0.0):
            steps[crowd].append(partials_of(outputs))
    assert len(steps[0]) > 5
    assert steps[0] == steps[16]


def test_windows_are_published_in_order_of_closing() -> None:
    """This holds for all streams together, wherever steps end."""
    about = source(clock="marks", ahead="1h")
    definitions = FixedDefinitions(
        standing_definition(about, "b", window={"size": "2h"}),
        standing_definition(about, "d", window={"size": "1h"}),
        standing_definition(about, "e", window={"size": "2h", "every": "1h"}, lateness="30m"),
    )
    [to] = {partition_of(name.encode(), TOPICS.partitions) for name in "bde"}
    records: list[ArrivedRecord] = []
    for hour in range(1, 9):
        mark = [("sotto-mark", str(hour * HOUR).encode())]
        records += [
            ArrivedRecord(len(records), 0, event("p", hour * HOUR)),
            ArrivedRecord(len(records) + 1, 0, None, headers=mark),
        ]
    orders = []
    for size in (1, 3, 5, len(records)):
        kafka, feed = changelog(about), start(about, definitions)
        for place in range(0, len(records), size):
            kafka.commit(process_records(feed, records[place : place + size]))
        orders.append([(one["stream"], one["start"] // HOUR) for one in kafka.partials(to)])
    assert orders[0][:8] == [("d", 0), ("b", 0), ("d", 1), ("e", 0), ("d", 2), ("e", 1), ("b", 2), ("d", 3)]
    assert all(order == orders[0] for order in orders)


def test_portion_is_smaller_if_events_lie_in_more_windows() -> None:
    about = source()
    records = [ArrivedRecord(one, 5, event("p", 5)) for one in range(5_000)]

    def portion(*streams: Any) -> int:
        feed = start(about, FixedDefinitions(*streams))
        process_records(feed, ())
        return len(feed.prepare(records).records)

    assert portion(hours(about)) == 5_000
    many = [
        standing_definition(about, f"s{n}", window={"size": "64m", "every": "1m"}, where=f"delay > {n - 5}")
        for n in range(12)
    ]
    assert 0 < portion(*many) < 2_000


def test_feed_writes_nothing_if_nothing_is_due() -> None:
    about = source()
    feed: FeedProcessor = start(about, FixedDefinitions(hours(about)))
    assert process_records(feed, [ArrivedRecord(0, 5, event("p", 5))])
    assert not feed.collect_due_outputs(0.0)
    assert not feed.apply_lookup_records(())
    assert not feed.prepare([ArrivedRecord(1, 5, event("p", 5))]).needs_lookup_topics
