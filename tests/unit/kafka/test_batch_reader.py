"""Consumers read batches of any kind: highly compressed, unreadable and ordinary ones."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.kafka.client import adapter, batch_reader
from stream.kafka.client.batch_frames import HEADER_BYTES, RecordPosition, parse_records
from stream.kafka.client.batch_reader import TURN_RECORDS
from stream.kafka.client.client_patches import fetcher
from stream.processing.dead_letters import (
    DECOMPRESSED_PART_BYTES,
    MAX_BATCH_RECORDS,
    MAX_DECOMPRESSED_BYTES,
    MAX_HEADERS,
    MAX_RECORD_BYTES,
    UnreadableValue,
)
from tests import bombs
from tests.unit.kafka.bomb_batches import BOMBS, PLACE, read

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

text = st.text(max_size=5)
content = st.one_of(st.none(), st.binary(max_size=40))
events = st.lists(
    st.tuples(content, content, st.lists(st.tuples(text, content), max_size=4)), min_size=1, max_size=20
)


def place_batch(built: bytes, base: int) -> bytes:
    """Return a batch as the broker keeps it, from an offset on."""
    return struct.pack(">q", base) + built[8:]


def build_batch(listed: Iterable[Any], codec: str) -> bytes:
    pieces = [
        bombs.record(delta, key, value, [(name.encode(), of_name) for name, of_name in headers])
        for delta, (key, value, headers) in enumerate(listed)
    ]
    return bombs.batch(pieces, len(pieces), codec, level=3)


def test_bounded_records_are_installed_in_every_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of the library's class is noticed."""
    assert adapter.KAFKA.consumer is not None
    assert fetcher.MemoryRecords is batch_reader.BoundedRecords
    monkeypatch.delattr(fetcher, "MemoryRecords")
    with pytest.raises(RuntimeError, match="MemoryRecords"):
        batch_reader.install()


@settings(deadline=None, max_examples=25)
@given(events, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_batch_reader_equals_library_within_bounds(
    listed: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], codec: str, base: int
) -> None:
    data = place_batch(build_batch(listed, codec), base)
    found, following = read(data, position=base)
    assert [(one.offset, one.key, one.value, list(one.headers)) for one in found] == [
        (base + delta, key, value, headers) for delta, (key, value, headers) in enumerate(listed)
    ]
    assert following == base + len(listed)
    whole, _ = read(data + place_batch(data, following), position=base + 1)
    assert [one.offset for one in whole] == list(range(base + 1, base + 2 * len(listed)))


@settings(deadline=None, max_examples=25)
@given(events, st.integers(0, 30))
def test_parse_records_equals_library(
    listed: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], skipped: int
) -> None:
    data = build_batch(listed, "none")
    own = [one for one, _ in parse_records(RecordPosition(), memoryview(data), data[HEADER_BYTES:], skipped)]
    theirs, _ = read(data)
    fields = ("offset", "timestamp", "timestamp_type", "key", "value")
    assert [[getattr(one, name) for name in fields] + [tuple(one.headers)] for one in own] == [
        [getattr(one, name) for name in fields] + [one.headers] for one in theirs if one.offset >= skipped
    ]


@pytest.mark.parametrize("name", BOMBS)
def test_batch_reader_replaces_bomb_by_one_unreadable_record(name: str) -> None:
    """The record names the offsets that were not read; batches beside it are complete."""
    bomb = BOMBS[name]()
    count = int.from_bytes(bomb[57:61], "big")
    before, after = (build_batch([(b"ward", number, [])], "none") for number in (b"1", b"2"))
    bomb = place_batch(bomb, 1)
    found, following = read(before + bomb + place_batch(after, count + 1))
    assert [one.offset for one in found] == [0, count, count + 1]
    assert [bytes(one.value) for one in (found[0], found[2])] == [b"1", b"2"]
    unread = found[1].value
    assert isinstance(unread, UnreadableValue)
    assert unread.rejection.code == "unreadable"
    assert unread.batch is not None
    assert (unread.batch.first, unread.batch.last, unread.batch.length) == (1, count, len(bomb))
    assert unread.batch.digest == blake3(bomb).hexdigest()
    assert unread == bomb[: len(unread)]
    assert following == count + 2


def test_batch_reader_limits_are_exact() -> None:
    """A batch of exactly the limit is read, and a batch with one byte more is refused."""
    most = b"".join(piece for delta in range(670) for piece in bombs.long_record(delta, bombs.MEGABYTE // 10))
    left = MAX_DECOMPRESSED_BYTES - len(most)
    frame = len(b"".join(bombs.long_record(670, left - 100))) - (left - 100)
    for length, is_read in ((left - frame, True), (left - frame + 1, False)):
        built = bombs.batch([most, *bombs.long_record(670, length)], 671, level=1)
        assert isinstance(first_of(built).value, UnreadableValue) is not is_read
    for records, is_read in ((MAX_BATCH_RECORDS, True), (MAX_BATCH_RECORDS + 1, False)):
        assert isinstance(first_of(bombs.tiny_records(records, "none")).value, UnreadableValue) is not is_read


@pytest.mark.parametrize("codec", CODECS)
def test_batch_without_searched_bytes_is_passed_unread(codec: str) -> None:
    """A batch is read if it contains one of the byte strings, and otherwise skipped; None reads all."""
    first = build_batch([(b"ward-7", b"of-mine", []), (b"ward-8", b"of-others", [])], codec)
    second = place_batch(build_batch([(b"ward-9", b"of-nobody", [])], codec), 2)

    def keys(searched: list[bytes] | None) -> tuple[list[bytes], int]:
        fetched = fetcher.MemoryRecords(first + second)
        fetched.searched_bytes = lambda: searched
        records = fetcher.PartitionRecords(PLACE, fetched, [], 0, None, None, True, fetcher.READ_COMMITTED)
        return [one.key for one in records], records.next_fetch_offset

    assert keys([b"of-mine"]) == ([b"ward-7", b"ward-8"], 3)
    assert keys([b"absent", b"ward-9"]) == ([b"ward-9"], 3)
    assert keys([b"absent"]) == keys([]) == ([], 3)
    assert keys(None) == ([b"ward-7", b"ward-8", b"ward-9"], 3)


def first_of(data: bytes) -> Any:
    return next(iter(fetcher.MemoryRecords(data).next_batch()))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_batch_reader_reads_other_records_of_large_batch(codec: str) -> None:
    others = [bombs.record(delta, b"p%d" % delta, b"%d" % delta) for delta in range(1000)]
    for size in (10, 2 * MAX_RECORD_BYTES, 5 * bombs.MEGABYTE):
        pieces = [*others[:500], *bombs.long_record(500, size), *others[501:]]
        found, following = read(bombs.batch(pieces, 1000, codec, level=1))
        assert [one.offset for one in found] == list(range(1000))
        assert following == 1000
        large = found.pop(500)
        assert [(one.key, one.value) for one in found] == [
            (b"p%d" % delta, b"%d" % delta) for delta in range(1000) if delta != 500
        ]
        if size < 5 * bombs.MEGABYTE:
            assert bytes(large.value) == b"a" * size
        else:
            assert (large.value.batch.first, large.value.batch.last) == (500, 500)
            assert "128 KiB" in large.value.rejection.message


@cache
def many_records() -> list[bytes]:
    return [bombs.record(delta, None, b"%d" % delta) for delta in range(2 * TURN_RECORDS)]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_batch_read_in_several_turns_is_complete_and_ordered(codec: str) -> None:
    values = [b"%d" % number + b"a" * (number % 5 * 600) for number in range(TURN_RECORDS // 5)]
    few = [bombs.record(delta, b"ward", value, [(b"name", b"x")]) for delta, value in enumerate(values)]
    many = many_records()
    for pieces in (few, [*many, *bombs.long_record(len(many), DECOMPRESSED_PART_BYTES)]):
        data = bombs.batch(pieces, len(few) if pieces is few else len(many) + 1, codec, level=1)
        found: list[Any] = []
        while not found or (found[-1].offset < len(pieces) - 1 and len(found) < len(many)):
            more, following = read(data, position=found[-1].offset + 1 if found else 0)
            found += more
            assert following == found[-1].offset + 1
        assert [one.offset for one in found[: len(pieces)]] == list(range(len(found[: len(pieces)])))
        expected = values if pieces is few else [b"%d" % delta for delta in range(len(many))]
        assert [one.value for one in found][: len(expected)] == expected


@pytest.mark.parametrize("size", [10, 5 * bombs.MEGABYTE])
def test_batch_reader_refuses_rest_after_broken_record(size: int) -> None:
    pieces = [bombs.record(0, b"ward", b"0"), *bombs.long_record(1, size), b"\x01", bombs.record(3, b"ward", b"3")]
    found, following = read(bombs.batch(pieces, 4, level=1))
    assert [one.offset for one in found] == [0, 1, 3]
    assert (found[2].value.batch.first, found[2].value.batch.last) == (2, 3)
    assert following == 4


@pytest.mark.parametrize("name", ["400 MB in a value", "more than a million records"])
def test_unreadable_value_has_timestamp_of_its_batch(name: str) -> None:
    """Otherwise a feed with the broker's clock would treat it as an event with its writer's timestamp."""
    built = bytearray(BOMBS[name]())
    assert (first_of(bytes(built)).timestamp, first_of(bytes(built)).timestamp_type) == (0, 0)
    built[22] |= 8
    built[35:43] = (1234).to_bytes(8, "big")
    assert (first_of(with_checksum(built)).timestamp, first_of(with_checksum(built)).timestamp_type) == (1234, 1)


def test_batch_reader_refuses_offset_beyond_batch() -> None:
    """A position after this offset would be beyond the topic's end."""
    pieces = [bombs.record(0, b"ward", b"0"), bombs.record(1_000_000, b"ward", b"1")]
    found, following = read(bombs.batch(pieces, 2, "none"))
    assert [one.offset for one in found] == [0, 1]
    assert found[1].value.batch.first == 1
    assert following == 2


def test_batch_reader_limits_bytes_of_one_fetch() -> None:
    """A thousand batches of a few hundred bytes, each with four megabytes of content, are not decompressed at once."""
    bomb = bombs.large_values(4)
    data = b"".join(place_batch(bomb, 4 * number) for number in range(1000))
    found, following = read(data)
    assert len(found) == following == 8
    found, following = read(data[2 * len(bomb) :], position=8)
    assert [one.offset for one in found] == list(range(8, 16))


def test_batch_reader_refuses_only_record_with_invalid_header_name() -> None:
    pieces = [
        bombs.record(
            number, b"ward", b"%d" % number, [(b"\xff\xfe", b"x")] if number % 3 == 1 else [(b"name", b"x")]
        )
        for number in range(9)
    ]
    for codec in CODECS:
        found, following = read(bombs.batch(pieces, 9, codec))
        assert [one.offset for one in found] == list(range(9))
        assert [bytes(one.value) for one in found] == [b"%d" % number for number in range(9)]
        assert [isinstance(one.value, UnreadableValue) for one in found] == [
            number % 3 == 1 for number in range(9)
        ]
        assert all("UTF-8" in one.value.rejection.message for one in found[1::3])
        assert found[1].headers == (("\\xff\\xfe", b"x"),)
        assert following == 9


def test_batch_reader_limits_number_of_headers() -> None:
    few, many = MAX_HEADERS, MAX_HEADERS + 1
    for extra in (0, bombs.MEGABYTE // 2):  # A larger batch is read in Python.
        pieces = [
            bombs.record(delta, None, b"v" * (1 + extra), [(b"n", b"v")] * count)
            for delta, count in enumerate((few, many, 500_000 if extra else 5000))
        ]
        found, _ = read(bombs.batch(pieces, 3))
        assert [isinstance(one.value, UnreadableValue) for one in found] == [False, True, True]
        assert [len(one.headers) for one in found] == [few, few, few]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_reader_refuses_at_first_broken_record(codec: str) -> None:
    pieces = [bombs.record(number, b"ward", b"%d" % number) for number in range(5)]
    pieces[3] = pieces[3][:1] + b"\xff" * (len(pieces[3]) - 1)
    found, following = read(bombs.batch(pieces, 5, codec))
    assert [one.offset for one in found] == [0, 1, 2, 4]
    assert found[3].value.batch.first == 3
    assert following == 5


@settings(deadline=None, max_examples=25)
@given(st.binary(max_size=200), st.integers(1, 7), st.integers(0, 5))
def test_batch_reader_passes_batch_of_any_bytes(garbage: bytes, codec: int, count: int) -> None:
    built = bytearray(bombs.batch([garbage], count, "none"))
    built[22] |= codec
    found, following = read(with_checksum(built))
    assert following == count
    assert all(isinstance(one.value, UnreadableValue) for one in found if one.offset == count - 1 and count)


def with_checksum(built: bytearray) -> bytes:
    built[17:21] = calc_crc32c(bytes(built[21:])).to_bytes(4, "big")
    return bytes(built)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_old_formats_are_unread(magic: Any, codec: str) -> None:
    """Formats from before Kafka 0.11 are refused as a whole, so that none is decompressed without a bound."""
    builder = LegacyRecordBatchBuilder(magic, bombs.CODECS[codec], 10**6)
    for number in range(1 if codec == "none" else 3):
        builder.append(number, timestamp=1, key=b"ward", value=b"value" * 100)
    [one], following = read(bytes(builder.build()))
    assert isinstance(one.value, UnreadableValue)
    assert one.value.batch is not None
    assert one.value.batch.codec == codec
    assert following == one.offset + 1


def test_batch_reader_refuses_window_of_128_megabytes() -> None:
    """A frame of Zstandard states how much memory it needs; this one is made by hand, from blocks of one repeated byte."""
    block = (128 * 1024 << 3 | 2).to_bytes(3, "little") + b"a"
    frame = bytes.fromhex("28b52ffd0088") + block * 4000 + bytes.fromhex("010000")
    assert batch_reader.decompress(4, memoryview(frame)) is None
    built = bytearray(bombs.batch([frame], 1, "none"))
    built[22] |= 4
    assert isinstance(first_of(with_checksum(built)).value, UnreadableValue)


_PEAK = """
import resource, sys
from stream.kafka.client import adapter as clients
from tests.unit.kafka.bomb_batches import read
made = [open(name, "rb").read() for name in sys.argv[1:]]
read(made[0])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for one in made:
    read(one)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_batch_reader_memory_stays_within_bound(tmp_path: Any) -> None:
    """The process's largest memory, in kilobytes, stays within the bound for all kinds of bombs."""
    names = []
    block = (128 * 1024 << 3 | 2).to_bytes(3, "little") + b"a"
    frame = bytes.fromhex("28b52ffd0088") + block * 4000 + bytes.fromhex("010000")
    windowed = bytearray(bombs.batch([frame], 1, "none"))
    windowed[22] |= 4
    for number, made in enumerate([*(one() for one in BOMBS.values()), with_checksum(windowed)]):
        path = tmp_path / f"{number}"
        path.write_bytes(made)
        names.append(str(path))
    printed = subprocess.run([sys.executable, "-c", _PEAK, *names], capture_output=True, text=True, check=True)
    assert int(printed.stdout) < (MAX_DECOMPRESSED_BYTES + 3 * DECOMPRESSED_PART_BYTES) // 1024
