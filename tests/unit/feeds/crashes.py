"""Runs feeds over random events, batches and crashes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from schemas import EventsSource
from stream.feeds.feed_definitions import StandingDefinition
from tests.processing import process_records
from tests.unit.feeds.reference import WHERES, StatisticNumber, found_by
from tests.unit.feeds.topic import (
    MINUTE,
    TOPICS,
    ArrivedRecord,
    FixedDefinitions,
    Kafka,
    changelog,
    columns,
    drain,
    event,
    source,
    standing_definition,
    start,
)

LENGTH = 60


def draw_streams(
    about: EventsSource,
    chance: random.Random,
    begins: Sequence[str] = ("1970-01-01T00:00:00Z", "1970-01-01T00:12:00Z"),
) -> list[StandingDefinition]:
    """Draw streams of all kinds, some of which count the same events."""
    wheres = [*WHERES, None]
    windows: list[dict[str, str]] = [{"size": "10m"}, {"size": "15m", "every": "5m"}]
    found = [
        standing_definition(
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
                standing_definition(
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


def draw_records(about: EventsSource, chance: random.Random, length: int) -> list[ArrivedRecord]:
    """Draw events, some of them odd, and marks."""
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
        found.append(ArrivedRecord(100 + offset, now, value, headers=headers))
    return found


def run_feed(
    about: EventsSource,
    streams: list[StandingDefinition],
    records: list[ArrivedRecord],
    ends: dict[int, int],
    effects: dict[str, int],
    chance: random.Random,
) -> Kafka:
    """Run a feed over the records, with batches cut at any place and restores that repeat uncommitted steps."""
    kafka = changelog(about)
    definitions = FixedDefinitions()
    definitions.tell(*[stream for stream in streams if effects[stream.spec.stream] == 0])
    feed, place, told_end = start(about, definitions, kafka), 0, -1
    while True:
        definitions.tell(*[stream for stream in streams if effects[stream.spec.stream] <= place])
        if place in ends and told_end < place:
            feed.note_end_of_input(ends[place] / 1000)
            outputs = feed.collect_due_outputs(0.0)
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
        outputs = process_records(feed, fetched)
        if chance.random() < 0.2:
            feed = start(about, definitions, kafka)
            if chance.random() < 0.5:
                continue
            outputs = process_records(feed, records[place:end])
        kafka.commit(outputs)
        place = end
        if chance.random() < 0.2:
            kafka.commit(feed.collect_due_outputs(0.0))
        if chance.random() < 0.2:
            feed = start(about, definitions, kafka)
    drain(feed, kafka)
    return kafka


def counts_of(kafka: Kafka, name: str) -> StatisticNumber:
    """Return the committed counts of a stream by window and cell."""
    partials = [partial for partial in kafka.partials() if partial["stream"] == name]
    starts = [partial["start"] for partial in partials]
    assert starts == sorted(set(starts)), "each window is published once, in order"
    return {partial["start"]: dict(zip(partial["cells"], partial["counts"], strict=True)) for partial in partials}


def check_counts(seed: int) -> None:
    """Assert that two runs with other batches and crashes commit the counts of the reference."""
    chance = random.Random(seed)
    about = source(
        contribution=chance.choice([1, 2, 3]),
        total=chance.choice([None, 3, 4]),
        clock=chance.choice(["broker", "broker", "marks"]),
        ahead="5m",
        idle="1s",
    )
    streams = draw_streams(about, chance)
    records = draw_records(about, chance, LENGTH)
    ends = {
        place: (records[place - 1].timestamp if place else 0) + 1
        for place in sorted(chance.sample(range(1, LENGTH), 3))
    } | {LENGTH: records[-1].timestamp + 20 * MINUTE}
    effects = {stream.spec.stream: chance.choice([0, 0, 0, 20, 21, 40]) for stream in streams}
    first = run_feed(about, streams, records, ends, effects, chance)
    for stream in streams:
        name = stream.spec.stream
        assert counts_of(first, name) == found_by(about, stream, records, ends, effects[name]), name
    again = run_feed(about, streams, records, ends, effects, chance)
    for number in range(TOPICS.partitions):
        assert first.partials(number) == again.partials(number), "nor does the order over all streams"
