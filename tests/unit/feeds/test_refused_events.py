"""The refused share of the latest events, and the likely cause of wrong partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from schemas import RejectedHeaders
from stream.processing.dead_letters import (
    LATEST_EVENTS,
    MAX_REASONS,
    SHOWN_SECONDS,
    PartitionRefusals,
    TopicRefusals,
    refused_share,
)
from tests.processing import process_records
from tests.unit.feeds.topic import (
    MINUTE,
    TOPICS,
    ArrivedRecord,
    FixedDefinitions,
    columns,
    event,
    home,
    source,
    standing_definition,
    start,
)


@pytest.mark.parametrize(
    ("refused", "events", "share"),
    [
        (1, 2000, "below 1 %"),
        (10, 1000, "1 to 10 %"),
        (100, 1000, "10 to 50 %"),
        (1500, 2000, "50 to 90 %"),
        (2000, 2000, "90 to 100 %"),
    ],
)
def test_share_is_a_coarse_bucket(refused: int, events: int, share: str) -> None:
    """The share of refused events over partitions is one of five ranges."""
    partitions = [PartitionRefusals(), PartitionRefusals()]
    for number in range(refused):
        partitions[number % 2].add(number // 2, "time: wrong")
    for one in partitions:
        one.advance(events // 2)
    found = refused_share(partitions)
    assert found is not None
    assert (found.share, found.events, found.reason) == (share, events, "time: wrong")


def test_share_forgets_events_before_the_latest() -> None:
    """Refused events count until a thousand later events are read; an event that is added twice counts once."""
    partition = PartitionRefusals(begin=500)
    assert refused_share([partition]) is None
    for _ in range(2):
        partition.add(500, "time: wrong")
    partition.advance(500 + LATEST_EVENTS)
    found = refused_share([partition])
    assert found is not None
    assert (found.events, found.at_least) == (LATEST_EVENTS, 0.001)
    partition.advance(501 + LATEST_EVENTS)
    partition.add(500, "time: wrong")
    assert refused_share([partition]) is None
    assert partition.marks() == {}


def test_partition_keeps_a_bounded_number_of_reasons() -> None:
    """Reasons beyond the limit count as others."""
    partition = PartitionRefusals()
    for number in range(2 * MAX_REASONS):
        partition.add(number, f"code: {number}")
    assert len(partition.marks()) == MAX_REASONS + 1
    found = refused_share([partition])
    assert found is not None
    assert (found.at_least, found.reason) == (0.9, "other")


def test_topic_shows_only_recent_refusals() -> None:
    """A topic has a share for a day after its latest dead letter."""
    topic = TopicRefusals()
    topic.add(3, 41, "time: wrong", 1000.0)
    found = topic.share(1000.0 + SHOWN_SECONDS)
    assert found is not None
    assert found.events == 42
    assert topic.share(1001.0 + SHOWN_SECONDS) is None
    topic.add(3, 41, "time: wrong", 2000.0)
    assert topic.last == 1000.0, "another source read the old event again"


@pytest.mark.parametrize("as_fetched", [list, columns])
def test_feed_distinguishes_crc32_from_other_wrong_partitions(
    as_fetched: Callable[[list[ArrivedRecord]], Any],
) -> None:
    """If CRC32 of the person chose the partition, the reason names librdkafka's setting."""
    about = source()
    partitions = 4
    people = [f"p{number}" for number in range(200)]
    elsewhere = [one for one in people if home(one, partitions) != 0]
    by_checksum = next(one for one in elsewhere if crc32(one.encode()) % partitions == 0)
    by_luck = next(one for one in elsewhere if crc32(one.encode()) % partitions != 0)
    records = [
        ArrivedRecord(0, MINUTE, event(by_checksum, MINUTE), key=by_checksum.encode()),
        ArrivedRecord(1, MINUTE, event(by_luck, MINUTE), key=by_luck.encode()),
        ArrivedRecord(2, MINUTE, event(by_checksum, MINUTE), key=b"another"),
        ArrivedRecord(3, MINUTE, event(by_checksum, MINUTE), key=None),
    ]
    feed = start(about, FixedDefinitions(standing_definition(about)), partitions=partitions)
    outputs = process_records(feed, as_fetched(records))
    letters = [
        RejectedHeaders.from_kafka(headers)
        for topic, _, messages in outputs
        for _, _, headers in messages
        if topic == TOPICS.rejected
    ]
    assert {one.code for one in letters} == {"partition"}
    named = [one.offset for one in letters if "partitioner=murmur2_random" in one.message]
    assert named == [0]
    found = refused_share([feed.latest_refused])
    assert found is not None
    assert (found.events, found.at_least) == (4, 0.9)


def test_feed_counts_accepted_events_among_the_latest() -> None:
    """A restarted feed considers events from its position on, refused or not."""
    about = source()
    feed = start(about, FixedDefinitions(standing_definition(about)))
    process_records(feed, [ArrivedRecord(at, MINUTE, event("ann", MINUTE) if at else b"{") for at in range(4)])
    found = refused_share([feed.latest_refused])
    assert found is not None
    assert (found.events, found.share) == (4, "10 to 50 %")
    feed.end_restore()
    assert feed.latest_refused.events == 0
