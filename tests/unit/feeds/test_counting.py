"""Compares committed counts and refusals of feeds with a reference, for any batches and crashes."""

from __future__ import annotations

import random

import pytest

from tests.unit.feeds.crashes import (
    LENGTH,
    check_counts,
    counts_of,
    draw_records,
    draw_streams,
    run_feed,
)
from tests.unit.feeds.reference import defined_at, found_by, refused_by
from tests.unit.feeds.topic import MINUTE, source


@pytest.mark.parametrize("seed", [*range(24), 1220])
def test_committed_counts_match_reference(seed: int) -> None:
    """Commits the counts that a plain count finds, whatever the batches and crashes."""
    check_counts(seed)


@pytest.mark.parametrize("seed", range(12))
def test_events_before_all_windows_are_refused_and_move_no_count(seed: int) -> None:
    """The refusal of events dated before every window depends only on the event, its stamp and the streams, and changes no count.

    It is the same wherever batches are cut, whatever crashes, and whenever a feed reads of a stream before the stream counts.
    """
    chance = random.Random(seed)
    about = source(contribution=2, total=chance.choice([None, 3]), ahead="5m", idle="1s")
    streams = draw_streams(about, chance, ("1970-01-01T00:20:00Z", "1970-01-01T00:12:00Z", "1970-01-01T00:40:00Z"))
    records = draw_records(about, chance, LENGTH)
    ends = {LENGTH: records[-1].timestamp + 20 * MINUTE}
    for _ in range(2):
        latest = {
            stream.spec.stream: next(
                (place for place, one in enumerate(records) if one.timestamp >= defined_at(stream) + 1000), LENGTH
            )
            for stream in streams
        }
        effects = {name: chance.randint(1, place) if place > 1 else 0 for name, place in latest.items()}
        effects |= {stream.spec.stream: 0 for stream in streams if defined_at(stream) == 0}
        kafka = run_feed(about, streams, records, ends, effects, chance)
        dated = [one for one in kafka.refused if one[1] in {"ahead", "before"}]
        assert dated == refused_by(about, streams, records)
        for stream in streams:
            name = stream.spec.stream
            assert counts_of(kafka, name) == found_by(about, stream, records, ends, effects[name]), name
