"""Streams that are rarely asked take little memory in the monitor, and are shown as all others."""

from __future__ import annotations

import gc
import hashlib
import re
import tracemalloc
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from stream.monitor.api import views
from stream.monitor.entries import IDLE_SECONDS, Activity, RecordPacking
from stream.monitor.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from tests.unit.monitor.installation import HIGH, LOW, Installation, spec

MOST_BYTES = 1000
"""Most memory of an idle stream."""

Steps = st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(0, 1000), st.integers(0, 9)), min_size=1)


@given(Steps, Steps)
def test_packed_activity_has_the_same_timeline_and_rates(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]]
) -> None:
    columns = [accumulate(column) for column in zip(*before, (IDLE_SECONDS * 1000, 0, 0), *after, strict=True)]
    rows = [(time / 1000, answered, tops) for time, answered, tops in zip(*columns, strict=True)]
    kept = Activity()
    for row in rows[: len(before)]:
        kept.add(row)
    packed = Activity.unpack(kept.pack())
    for row in rows[len(before) + 1 :]:
        assert list(map(tuple, packed.timeline)) == list(map(tuple, kept.timeline))
        kept.add(row)
        packed.add(row)
        for seconds, one, other in zip((60, 600, 3600), kept.windows, packed.windows, strict=True):
            assert tuple(one.row_at(row[0] - seconds) or ()) == tuple(other.row_at(row[0] - seconds) or ())


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_packed_record_is_unpacked_to_the_same_bytes(sample: bytes, record: bytes) -> None:
    packing = RecordPacking(sample)
    assert packing.unpack(packing.pack(sample + record)) == sample + record


def test_stream_without_recent_answers_is_shown_as_before() -> None:
    installation = Installation()
    installation.open(spec("rare", cutoff=5), spec("usual", cutoff=5))
    for _ in range(3):
        installation.now += 100.0
        installation.ask("rare", LOW, HIGH)
    tables, entry = installation.tables, installation.tables.streams["rare"]
    before = views.build_stream_detail(tables, entry, installation.now + 2 * IDLE_SECONDS)
    assert not entry.is_idle
    installation.now += 2 * IDLE_SECONDS
    installation.ask("usual", LOW)
    assert entry.is_idle
    assert views.build_stream_detail(tables, entry, installation.now) == before
    assert len(before.timeline) == 4
    installation.now += 60.0
    installation.ask("rare", HIGH)
    assert not entry.is_idle
    after = views.build_stream_detail(tables, entry, installation.now)
    assert after.timeline[:-1] == before.timeline
    assert [rate.above * rate.window_seconds for rate in after.row.rates] == [1.0, 1.0, 1.0]


def _many_openings(count: int) -> list[Record]:
    """Return ``count`` grants of streams that differ in name and identity, with control events."""
    installation = Installation()
    installation.open(spec("s0"))
    topics, records = installation.driver.topics, installation.records()
    [grant] = [one for one in records if (one.key or b"").startswith(b"grant|")]
    [opened] = [one for one in records if one.topic == topics.control]
    incarnation, digest = (
        re.search(rb'"%s":"([0-9a-f]+)"' % name, grant.value or b"") for name in (b"incarnation", b"digest")
    )
    assert incarnation
    assert digest
    made = []
    for number in range(count):
        name, own = b"stream-%06d" % number, hashlib.sha256(b"%d" % number).hexdigest().encode()
        for one in (grant, opened):
            value = (one.value or b"").replace(b'"s0"', b'"%s"' % name)
            value = value.replace(incarnation[1], own[:32]).replace(digest[1], own)
            key = (one.key or b"").replace(b"s0", name)
            made.append(one._replace(key=key, value=value, partition=0, offset=one.offset + number))
    return made


def test_idle_stream_takes_at_most_a_kilobyte() -> None:
    records = _many_openings(3000)
    tables = MonitorTables(Installation().driver.topics)
    for record in records[:1000]:
        tables.add_record(record)
    gc.collect()
    tracemalloc.start()
    try:
        for record in records[1000:]:
            tables.add_record(record)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tables.shown_streams == 3000
    assert views.decode_grant(tables.streams["stream-002999"]).spec.stream == "stream-002999"
    assert taken / 2500 < MOST_BYTES
