"""Feeds find what a plain count finds, however a topic is cut into batches, and whatever crashes in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from schemas import EventsSource
from stream.kernel import use
from stream.processors.feeds.told import Told
from tests.unit.processors.feeds.reference import WHERES, Found, found_by, refused_by
from tests.unit.processors.feeds.topic import (
    MINUTE,
    TOPICS,
    Arrived,
    Kafka,
    Known,
    changelog,
    columns,
    drain,
    event,
    source,
    start,
    told,
)

LENGTH = 60


def _streams(
    about: EventsSource,
    chance: random.Random,
    begins: Sequence[str] = ("1970-01-01T00:00:00Z", "1970-01-01T00:12:00Z"),
) -> list[Told]:
    """Streams of all kinds, some of which count the same events."""
    wheres = [*WHERES, None]
    windows: list[dict[str, str]] = [{"size": "10m"}, {"size": "15m", "every": "5m"}]
    found = [
        told(
            about,
            f"s{number}",
            window=chance.choice(windows),
            count=chance.choice(["events", "people", {"sum": "delay"}]),
            where=chance.choice(wheres),
            by=chance.choice([[], ["origin"], ["origin", "delay"]]),
            lateness=chance.choice(["0s", "7m"]),
            begins=chance.choice(begins),
            moment=chance.choice([0, 20 * MINUTE, 20 * MINUTE, 50 * MINUTE]),
        )
        for number in range(6)
    ]
    if about.total is not None:
        for number, count in enumerate(["events", "people", {"sum": "delay"}]):
            running = {"kind": "running_count", "steps": chance.choice([2, 100])}
            found.append(
                told(
                    about,
                    f"r{number}",
                    window={"size": "10m"},
                    count=count,
                    by=["origin"],
                    begins=begins[0],
                    mechanism=running,
                    moment=chance.choice([0, 20 * MINUTE]),
                )
            )
    return found


def _records(about: EventsSource, chance: random.Random, length: int) -> list[Arrived]:
    now, found = 0, []
    for offset in range(length):
        now += chance.choice([0, 1, MINUTE, 3 * MINUTE])
        at = max(0, now + chance.randrange(-12 * MINUTE, 8 * MINUTE))
        value: Any = event(
            chance.choice("abcde"), at, chance.choice(["EWR", "JFK", "LGA"]), chance.randrange(-8, 14)
        )
        odd = chance.random()
        if odd < 0.05:
            value = chance.choice([b"{", b"[]", None, event("", at), event("a", "soon"), event("a", at, "XXX")])
        marked = about.clock == "marks" and chance.random() < 0.2
        headers = [("sotto-mark", str(now).encode())] if marked else []
        found.append(Arrived(100 + offset, now, value, headers=headers))
    return found


def _run(
    about: EventsSource,
    streams: list[Told],
    records: list[Arrived],
    ends: dict[int, int],
    effects: dict[str, int],
    chance: random.Random,
) -> Kafka:
    """A life of a feed: batches are cut anywhere, and a step that was not committed is done again after a restore."""
    kafka = changelog(about)
    definitions = Known()
    definitions.tell(*[stream for stream in streams if effects[stream.spec.stream] == 0])
    feed, place, told_end = start(about, definitions, kafka), 0, -1
    while True:
        definitions.tell(*[stream for stream in streams if effects[stream.spec.stream] <= place])
        if place in ends and told_end < place:
            feed.reached_end(ends[place] / 1000)
            outputs = feed.idle(0.0)
            if chance.random() < 0.3:
                feed = start(about, definitions, kafka)
                continue
            kafka.commit(outputs)
            told_end = place
        if place == len(records):
            break
        barrier = min([bar for bar in [*ends, *effects.values()] if bar > place], default=len(records))
        end = min(place + chance.choice([1, 2, 5, 40]), barrier, len(records))
        fetched: Any = records[place:end]
        if chance.random() < 0.5 and not any(one.headers for one in fetched):
            fetched = columns(fetched)
        outputs = feed.process(fetched)
        if chance.random() < 0.2:
            feed = start(about, definitions, kafka)
            if chance.random() < 0.5:
                continue
            outputs = feed.process(records[place:end])
        kafka.commit(outputs)
        place = end
        if chance.random() < 0.2:
            kafka.commit(feed.idle(0.0))
        if chance.random() < 0.2:
            feed = start(about, definitions, kafka)
    drain(feed, kafka)
    return kafka


def _found(kafka: Kafka, name: str) -> Found:
    partials = [partial for partial in kafka.partials() if partial["stream"] == name]
    starts = [partial["start"] for partial in partials]
    assert starts == sorted(set(starts)), "each window is told of once, in order"
    return {partial["start"]: dict(zip(partial["cells"], partial["counts"], strict=True)) for partial in partials}


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_it_is_so_without_the_compiled_kernel(seed: int) -> None:
    with use(None):
        test_what_is_committed_is_what_a_plain_count_finds(seed)


@pytest.mark.parametrize("seed", [*range(24), 1220])
def test_what_is_committed_is_what_a_plain_count_finds(seed: int) -> None:
    chance = random.Random(seed)
    about = source(
        contribution=chance.choice([1, 2, 3]),
        total=chance.choice([None, 3, 4]),
        clock=chance.choice(["broker", "broker", "marks"]),
        ahead="5m",
        idle="1s",
    )
    streams = _streams(about, chance)
    records = _records(about, chance, LENGTH)
    ends = {
        place: (records[place - 1].timestamp if place else 0) + 1
        for place in sorted(chance.sample(range(1, LENGTH), 3))
    } | {LENGTH: records[-1].timestamp + 20 * MINUTE}
    effects = {stream.spec.stream: chance.choice([0, 0, 0, 20, 21, 40]) for stream in streams}
    first = _run(about, streams, records, ends, effects, chance)
    for stream in streams:
        name = stream.spec.stream
        assert _found(first, name) == found_by(about, stream, records, ends, effects[name]), name
    again = _run(about, streams, records, ends, effects, chance)
    for number in range(TOPICS.partitions):
        assert first.partials(number) == again.partials(number), "nor does the order over all streams"


@pytest.mark.parametrize("seed", range(12))
def test_events_before_all_windows_are_refused_and_move_no_count(seed: int) -> None:
    """Which events are refused as dated before every window depends on the event, its stamp and the streams, and changes no count.

    It is the same wherever batches are cut, whatever crashes, and whenever a feed reads of a stream before the stream counts.
    """
    chance = random.Random(seed)
    about = source(contribution=2, total=chance.choice([None, 3]), ahead="5m", idle="1s")
    streams = _streams(about, chance, ("1970-01-01T00:20:00Z", "1970-01-01T00:12:00Z", "1970-01-01T00:40:00Z"))
    records = _records(about, chance, LENGTH)
    ends = {LENGTH: records[-1].timestamp + 20 * MINUTE}
    for _ in range(2):
        latest = {
            stream.spec.stream: next(
                (place for place, one in enumerate(records) if one.timestamp >= stream.moment + 1000), LENGTH
            )
            for stream in streams
        }
        effects = {name: chance.randint(1, place) if place > 1 else 0 for name, place in latest.items()}
        effects |= {stream.spec.stream: 0 for stream in streams if stream.moment == 0}
        kafka = _run(about, streams, records, ends, effects, chance)
        dated = [one for one in kafka.refused if one[1] in {"ahead", "before"}]
        assert dated == refused_by(about, streams, records)
        for stream in streams:
            name = stream.spec.stream
            assert _found(kafka, name) == found_by(about, stream, records, ends, effects[name]), name
