"""A feed's state is bounded: before the first watermark, and after periods have ended."""

from __future__ import annotations

from itertools import count
from typing import Any

from stream.feeds.count_processor import FeedProcessor
from stream.feeds.counted_streams import EARLY_WINDOWS
from tests.unit.feeds.topic import (
    HOUR,
    ArrivedRecord,
    FixedDefinitions,
    Kafka,
    changelog,
    drain,
    event,
    source,
    standing_definition,
    start,
    table_bytes,
)

FIVE_MINUTES = HOUR // 12


def committed(feed: FeedProcessor, kafka: Kafka, *records: ArrivedRecord) -> None:
    batch = list(records)
    while batch:
        prepared = feed.prepare(batch)
        kafka.commit(feed.process(prepared))
        batch = batch[len(prepared.records) :]


def test_feed_has_a_bounded_number_of_windows_before_its_first_mark() -> None:
    about = source(clock="marks")
    streams = (
        standing_definition(about, "often", window={"size": "5m"}),
        standing_definition(about, "seldom", window={"size": "1h"}, begins="1970-01-01T02:00:00Z"),
    )
    kafka, feed = changelog(about), start(about, FixedDefinitions(*streams))
    offsets, beyond = count(), 500
    # One person has an event in each window of a far longer time.
    events = [event("a", number * FIVE_MINUTES) for number in range(EARLY_WINDOWS + 1 + beyond)]
    committed(feed, kafka, *(ArrivedRecord(next(offsets), 0, value) for value in events))
    assert feed.rejected == {"ahead": beyond}
    assert feed.open_windows <= EARLY_WINDOWS + 1 + EARLY_WINDOWS // 12 + 1

    # This also holds after a restart, until a mark in the middle of a batch.
    feed = start(about, FixedDefinitions(*streams), kafka)
    late = (EARLY_WINDOWS + 5) * FIVE_MINUTES
    committed(
        feed,
        kafka,
        ArrivedRecord(next(offsets), 0, event("b", late)),
        ArrivedRecord(next(offsets), 0, None, headers=[("sotto-mark", str(late).encode())]),
        ArrivedRecord(next(offsets), 0, event("c", late)),
    )
    drain(feed, kafka)
    assert feed.rejected == {"ahead": 1}
    assert feed.open_windows <= 2
    counts = {one["start"]: one["counts"] for one in kafka.partials() if one["stream"] == "often"}
    assert all(counts[number * FIVE_MINUTES] == [1] for number in range(EARLY_WINDOWS + 1))
    assert max(counts) == late - FIVE_MINUTES


def test_feed_keeps_no_people_of_past_periods() -> None:
    about = source(clock="marks", unit="person-period", period="1d", total=3, ahead="7d")
    so_far: Any = {"kind": "running_count", "steps": 24}
    streams = FixedDefinitions(standing_definition(about, "so-far", window={"size": "1h"}, mechanism=so_far))
    kafka, feed, offsets, sizes = changelog(about), start(about, streams), count(), []
    for day in range(12):
        begun = day * 24 * HOUR
        people = [event(f"{day}-{number}", begun + number % 24 * HOUR) for number in range(1000)]
        committed(feed, kafka, *(ArrivedRecord(next(offsets), 0, value) for value in people))
        assert table_bytes(feed) > 0
        mark = [("sotto-mark", str(begun + 24 * HOUR).encode())]
        committed(feed, kafka, ArrivedRecord(next(offsets), 0, None, headers=mark))
        drain(feed, kafka)
        sizes.append(table_bytes(feed))
    assert sizes == [0] * 12
    assert table_bytes(start(about, streams, kafka)) == 0


def test_next_period_uses_up_no_bound_of_this_period() -> None:
    """The event of the next period is in a window that spans both periods, and comes earlier in the partition."""
    about = source(clock="marks", unit="person-period", period="1d", contribution=1, total=1, ahead="7d")
    so_far: Any = {"kind": "running_count", "steps": 3}
    streams = FixedDefinitions(standing_definition(about, "so-far", window={"size": "7h"}, mechanism=so_far))
    kafka, feed = changelog(about), start(about, streams)
    edge = 48 * HOUR
    records = [
        ArrivedRecord(0, 0, event("who", edge)),
        ArrivedRecord(1, 0, event("who", 36 * HOUR)),
        ArrivedRecord(2, 0, None, headers=[("sotto-mark", str(edge + 8 * HOUR).encode())]),
    ]
    committed(feed, kafka, *records)
    drain(feed, kafka)
    counts = {one["start"]: sum(one["counts"]) for one in kafka.partials()}
    assert counts[35 * HOUR] == 1
    assert counts[42 * HOUR] == 0
