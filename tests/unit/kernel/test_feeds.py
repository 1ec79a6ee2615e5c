"""Compares the feeds that count with the kernel with those that count in Python."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels import kernel, use_kernel
from tests.processing import process_records
from tests.unit.feeds.crashes import check_counts
from tests.unit.feeds.topic import (
    ArrivedRecord,
    FixedDefinitions,
    Kafka,
    changelog,
    columns,
    event,
    source,
    standing_definition,
    start,
)

NOON = 1_710_072_000_000
"""2024-03-10T12:00:00Z in milliseconds."""
HOUR = 3_600_000


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_counts_match_reference_with_and_without_kernel(seed: int, compiled: bool) -> None:
    """Commits the counts that a plain count finds, whatever the batches and crashes."""
    with use_kernel(kernel() if compiled else None):
        check_counts(seed)


@pytest.mark.parametrize(
    "at",
    [
        NOON // 1000,
        NOON * 1000,
        NOON * 1_000_000,
        NOON / 1000,
        str(NOON // 1000),
        "1970-01-20T19:01:12Z",
        200_000_000_000_000,
        5,
        NOON - 24 * HOUR,
        "2023-03-10T12:00:00Z",
    ],
)
@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_wrong_times_are_refused_alike_without_kernel(at: Any, clock: str) -> None:
    """Writes the same dead letters, counts and changelog for columns with the kernel and for records without."""
    about = source(clock=clock)
    records = [ArrivedRecord(0, NOON, event("a", at)), ArrivedRecord(1, NOON, event("b", NOON))]
    found: list[tuple[Kafka, int, list[Any]]] = []
    for library, fetched in ((kernel(), columns(records)), (None, records)):
        begins = {"s": "2024-03-10T00:00:00Z", "later": "2024-03-10T06:00:00Z"}
        feed = start(
            about,
            FixedDefinitions(
                *[standing_definition(about, name, begins=moment) for name, moment in begins.items()]
            ),
        )
        kafka = changelog(about)
        with use_kernel(library):
            outputs = process_records(feed, fetched)
        kafka.commit(outputs)
        letters = [[*messages] for topic, _, messages in outputs if topic.endswith("rejected")]
        found.append((kafka, feed.event_totals.counted, letters))
    assert found[0] == found[1]
    assert found[0][1] == 1
