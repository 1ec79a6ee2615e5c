"""Texts of windows in feeds and merging: counts, bounds, restores, and windows with too many texts."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas import Partial, RunningCount, UnknownGroups
from schemas.wire import Codec
from stream.feeds.event_counts import TextTally
from stream.feeds.feed_definitions import StandingDefinition
from stream.feeds.merge_processor import MergeProcessor
from stream.feeds.window_queries import matches_definition
from stream.privacy.accuracy.source_facts import GroupSensitivity, SourceFacts
from stream.privacy.mechanisms.private_values import MAX_ENCODED, decode_text_counts, encode_text_counts
from stream.privacy.planning.running_text_plans import plan_calibrations
from stream.privacy.planning.unknown_groups_plans import MOST_WINDOW_BYTES, TEXT_OVERHEAD, text_size
from stream.processing.protocol import Record
from tests.processing import process_records
from tests.unit.feeds import streams
from tests.unit.feeds.crashes import LENGTH, counts_of, draw_records, run_feed
from tests.unit.feeds.partials import EVERY, FIRST, logged
from tests.unit.feeds.reference import ORIGINS
from tests.unit.feeds.topic import (
    HOUR,
    MINUTE,
    ArrivedRecord,
    FixedDefinitions,
    Kafka,
    changelog,
    source,
    standing_definition,
    start,
)

TEXTS = {"place": {"kind": "text", "max_length": 40}}


def texts_of(definition: StandingDefinition, most_bytes: int = MOST_WINDOW_BYTES) -> StandingDefinition:
    """Return the stream with private texts; a running count stays one, because feeds and merging use only the calibration's limit."""
    mechanism = UnknownGroups(kind="unknown_groups", answers=100)
    changed = {"delta": 1e-6} if definition.is_running else {"mechanism": mechanism, "delta": 1e-6}
    spec = definition.spec.model_copy(update=changed)
    return replace(definition, spec=spec, calibration=streams.texts_calibration(most_bytes))


def published_texts(kafka: Kafka, name: str) -> dict[int, dict[bytes, int] | None]:
    """Return the committed counts of a stream's texts by window."""
    partials = [partial for partial in kafka.partials() if partial["stream"] == name]
    return {partial["start"]: decode_text_counts(partial["texts"]) for partial in partials}


@pytest.mark.parametrize("seed", range(12))
def test_text_counts_equal_those_of_declared_groups(seed: int) -> None:
    """The origin is both a declared attribute and a text; both are counted despite crashes and restores."""
    chance = random.Random(seed)
    about = source(
        contribution=chance.choice([1, 2, 3]),
        texts=TEXTS,
        fields={"place": "origin"},
        total=3,
        clock=chance.choice(["broker", "marks"]),
        ahead="5m",
        idle="1s",
    )
    pairs = []
    for number in range(3):
        standing: dict[str, Any] = {
            "window": chance.choice([{"size": "10m"}, {"size": "15m", "every": "5m"}]),
            "count": chance.choice(["events", "people"]),
            "where": chance.choice(["delay >= 0", None]),
            "lateness": chance.choice(["0s", "7m"]),
            "moment": chance.choice([0, 20 * MINUTE]),
        }
        if number == 2:
            standing |= {"mechanism": {"kind": "running_count", "steps": 6}, "window": {"size": "10m"}}
        declared = standing_definition(about, f"d{number}", by=["origin"], **standing)
        pairs.append((declared, texts_of(standing_definition(about, f"t{number}", by=["place"], **standing))))
    records = draw_records(about, chance, LENGTH)
    ends = {LENGTH: records[-1].timestamp + 20 * MINUTE}
    effects = {stream.spec.stream: 0 for pair in pairs for stream in pair}
    kafka = run_feed(about, [stream for pair in pairs for stream in pair], records, ends, effects, chance)
    for declared, unknown in pairs:
        cells = counts_of(kafka, declared.spec.stream)
        wanted = {at: {ORIGINS[cell].encode(): one for cell, one in row.items()} for at, row in cells.items()}
        assert published_texts(kafka, unknown.spec.stream) == wanted


def events_with_texts(*places: Any, at: int = MINUTE) -> list[ArrivedRecord]:
    """Return events of different people, each with a text."""
    events = [
        {"who": f"p{number}", "at": at, "origin": "EWR", "delay": 0, **({} if one is None else {"place": one})}
        for number, one in enumerate(places)
    ]
    return [ArrivedRecord(number, at, json.dumps(one).encode()) for number, one in enumerate(events)]


def closed_after(records: list[ArrivedRecord], *, most_bytes: int = MOST_WINDOW_BYTES, restores: int = 0) -> Any:
    """Return the counts of the first hour, with a restore after every so many events."""
    about = source(texts=TEXTS)
    known, kafka = (
        FixedDefinitions(texts_of(standing_definition(about, by=["place"]), most_bytes)),
        changelog(about),
    )
    feed, step = start(about, known, kafka), restores or len(records)
    for place in range(0, len(records), step):
        kafka.commit(process_records(feed, records[place : place + step]))
        if restores:
            feed = start(about, known, kafka)
    feed.note_end_of_input((HOUR + MINUTE) / 1000)
    drain_to(feed, kafka)
    return published_texts(kafka, "s").get(0)


def drain_to(feed: Any, kafka: Kafka) -> None:
    while outputs := feed.collect_due_outputs(0.0):
        kafka.commit(outputs)


def test_event_without_text_is_in_no_group() -> None:
    found = closed_after(events_with_texts("ä", "ä" * 20, "ä" * 21, "", None, 7, 2.0, True, ["x"], "a\tb", 7.50))
    assert found == {
        "ä".encode(): 1,
        ("ä" * 20).encode(): 1,
        b"7": 1,
        b"2": 1,
        b"true": 1,
        b"a\tb": 1,
        b"7.5": 1,
    }


def test_event_without_text_uses_up_its_persons_bound() -> None:
    events = events_with_texts(None, None, "late", "other")
    same = [replace(one, value=(one.value or b"").replace(b"p1", b"p0").replace(b"p2", b"p0")) for one in events]
    assert closed_after(same) == {b"other": 1}


@pytest.mark.parametrize("restores", [0, 1, 3])
def test_window_over_the_limit_keeps_no_text(restores: int) -> None:
    texts = [f"text {number}" for number in range(8)]
    size = sum(text_size(text.encode()) for text in texts)
    full = closed_after(events_with_texts(*texts, *texts), most_bytes=size, restores=restores)
    assert full == {text.encode(): 2 for text in texts}
    assert closed_after(events_with_texts(*texts, *texts), most_bytes=size - 1, restores=restores) is None


def test_texts_over_the_limit_are_dropped_from_memory() -> None:
    tally, rows = TextTally(5 * text_size(b"0000")), np.zeros(1, dtype=np.int64)
    for number in range(100):
        tally.add(rows, np.zeros(1, dtype=np.int64), [b"%04d" % number], number)
        assert tally.entry_count <= 5
    assert tally.counts(0) is None
    assert tally.counts(1) == {}
    tally.clear(0)
    assert tally.entry_count == 0


def test_changelog_is_rewritten_with_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.feeds.changelog_pieces.SLACK_ENTRIES", 0)
    monkeypatch.setattr("stream.feeds.changelog_pieces.PIECE_BYTES", 200)
    texts = [f"text {number % 7}" for number in range(60)]
    wanted = Counter(text.encode() for text in texts)
    assert closed_after(events_with_texts(*texts), restores=4) == wanted


def test_largest_window_fits_a_record() -> None:
    texts = {number.to_bytes(3, "big"): (1 << 62) for number in range(1, MOST_WINDOW_BYTES // (3 + TEXT_OVERHEAD))}
    encoded = encode_text_counts(texts)
    assert len(encoded) <= MAX_ENCODED < 900_000
    assert decode_text_counts(encoded) == texts
    assert decode_text_counts(encode_text_counts(None)) is None


@pytest.mark.parametrize(
    "encoded", ["", "x", "wA", encode_text_counts({b"": 1}), encode_text_counts({b"a": 0}), "gA==x"]
)
def test_counts_that_feeds_do_not_write_are_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match="texts: "):
        decode_text_counts(encoded)


_partials: Codec[Partial] = Codec(Partial, limit=1 << 22)


def merge_windows(
    *windows: list[dict[bytes, int] | None],
    most_bytes: int = MOST_WINDOW_BYTES,
    steps: int | None = None,
    restored: bool = False,
) -> list[Any]:
    """Return the questions that merging asks if each of two partitions publishes its counts of some windows.

    With ``steps``, the stream is a running count; with ``restored``, another process merges each partial.
    """
    spec = streams.spec_of("s", ("place",))
    mechanism: Any = UnknownGroups(kind="unknown_groups", answers=9)
    calibration: Any = streams.texts_calibration(most_bytes)
    if steps is not None:
        mechanism = RunningCount(kind="running_count", steps=steps)
        facts = SourceFacts(horizon=GroupSensitivity(1, 1, 1, 1), text_bytes=40)
        planned = spec.model_copy(update={"mechanism": mechanism, "delta": 1e-3})
        calibration = plan_calibrations(planned, facts)[-1].model_copy(update={"most_bytes": most_bytes})
    spec = spec.model_copy(update={"mechanism": mechanism, "delta": 1e-6})
    about = streams.SOURCE.model_copy(update={"texts": source(texts=TEXTS).texts})
    record = streams.control_event(spec, source=about)
    control = json.loads(record.value or b"")
    control["calibration"] = json.loads(calibration.model_dump_json())
    told_record = record._replace(value=json.dumps(control).encode())
    messages = []
    for place, counts in enumerate(windows):
        for number in range(2):
            event = Partial(
                source="flights",
                stream="s",
                incarnation=streams.incarnation_of("s"),
                partition=number,
                partitions=2,
                start=FIRST + place * EVERY,
                cells=(),
                counts=(),
                texts=encode_text_counts(counts[number]),
            )
            messages.append((b"s", _partials.encode(event), ()))
    partials = logged(messages)
    asked: list[Any] = []
    kept: list[Record] = []
    for batch in [[partial] for partial in partials] if restored else [partials]:
        merging = MergeProcessor(streams.TOPICS, 0, FixedDefinitions())
        merging.restore([told_record, *kept])
        merging.end_restore()
        for topic, _, found in process_records(merging, batch):
            assert topic != streams.TOPICS.rejected, found
            asked += [json.loads(value or b"") for _, value, _ in found if topic == streams.TOPICS.queries]
            if topic == streams.TOPICS.merges:
                kept += [Record(topic, 0, len(kept), 0, key, value) for key, value, _ in found]
    return asked


@pytest.mark.parametrize("restored", [False, True])
def test_running_count_asks_the_texts_of_all_windows_so_far(restored: bool) -> None:
    asked = merge_windows(
        [{b"a": 2}, {b"b": 3}], [{}, {}], [{b"a": 1}, {b"c": 4}], [{b"d": 1}, {}], steps=3, restored=restored
    )
    found = [decode_text_counts(question["texts"]) for question in asked]
    assert found == [{b"a": 2, b"b": 3}, {b"a": 2, b"b": 3}, {b"a": 3, b"b": 3, b"c": 4}]
    assert asked[0].keys() == {"id", "stream", "window", "texts"}


@pytest.mark.parametrize("restored", [False, True])
def test_running_count_over_the_limit_keeps_no_text(restored: bool) -> None:
    windows: list[list[dict[bytes, int] | None]] = [
        [{b"a": 1}, {b"b": 1}],
        [{b"a": 1}, {b"c": 1}],
        [{b"a": 1}, {}],
    ]
    asked = merge_windows(*windows, steps=9, most_bytes=2 * text_size(b"a"), restored=restored)
    found = [decode_text_counts(question["texts"]) for question in asked]
    assert found == [{b"a": 1, b"b": 1}, None, None]


def test_merging_adds_the_texts_of_all_partitions() -> None:
    first, second = merge_windows([{b"a": 2, b"b": 1}, {b"b": 3, b"c": 4}], [{}, {}])
    assert first["id"] == "2026-01-01T00:00:00Z"
    assert first["window"] == {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:05:00Z"}
    assert decode_text_counts(first["texts"]) == {b"a": 2, b"b": 4, b"c": 4}
    assert decode_text_counts(second["texts"]) == {}


def test_merged_texts_over_the_limit_are_left_out() -> None:
    limit = 2 * text_size(b"a")
    [within] = merge_windows([{b"a": 1, b"b": 1}, {b"a": 1}], most_bytes=limit)
    assert decode_text_counts(within["texts"]) == {b"a": 2, b"b": 1}
    too_large: list[list[dict[bytes, int] | None]] = [[{b"a": 1, b"b": 1}, {b"c": 1}], [None, {b"c": 1}]]
    for counts in too_large:
        [beyond] = merge_windows(counts, most_bytes=limit)
        assert decode_text_counts(beyond["texts"]) is None


@pytest.mark.parametrize(
    "changed",
    [{"texts": None}, {"texts": "AAAA"}, {"cells": (0,), "counts": (1,)}],
    ids=["none", "other", "cells"],
)
def test_partials_of_another_form_are_refused(changed: dict[str, Any]) -> None:
    about = source(texts=TEXTS)
    definition = texts_of(standing_definition(about, by=["place"]))
    event: dict[str, Any] = {
        "source": "flights",
        "stream": "s",
        "incarnation": definition.incarnation,
        "partition": 0,
        "partitions": 1,
        "start": 0,
        "cells": (),
        "counts": (),
        "texts": encode_text_counts({b"a": 1}),
    }
    assert matches_definition(Partial(**event), definition)
    assert not matches_definition(Partial(**{**event, **changed}), definition)
