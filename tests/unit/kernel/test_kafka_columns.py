"""Compares records and batches in columns with those of the client library."""

from __future__ import annotations

import gc
import random
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.kafka.client import adapter, column_batches
from stream.kafka.client.client_patches import fetcher
from stream.kafka.client.column_batches import checksum_of, encode_batches
from stream.kernel.array_operations import crc32c
from stream.kernel.byte_columns import Spans, spans_of
from stream.processing.dead_letters import UnreadableValue
from stream.processing.protocol import Message, Messages
from stream.processing.record_columns import MessageColumns, RecordColumns, can_be_concatenated, concatenate
from tests import bombs
from tests.kernels import kernel, use_kernel

PLACE = TopicPartition("queries", 0)
assert adapter.KAFKA, "bounded reading is under every consumer"

content = st.none() | st.binary(max_size=40)
plain_events: st.SearchStrategy[list[Any]] = st.lists(
    st.tuples(content, content, st.just([])), min_size=1, max_size=20
)
events = st.lists(
    st.tuples(content, content, st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=2)),
    min_size=1,
    max_size=6,
)


def place_batch(built: bytes, base: int) -> bytes:
    return struct.pack(">q", base) + built[8:]


def build_batch(listed: Any, codec: str) -> bytes:
    pieces = [bombs.record(delta, key, value, headers) for delta, (key, value, headers) in enumerate(listed)]
    return bombs.batch(pieces, len(pieces), codec, level=3)


def fields_of(records: Any) -> list[Any]:
    return [
        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers), isinstance(one.value, UnreadableValue))
        for one in records
    ]


def fetch(kind: Any, data: bytes, position: int) -> Any:
    return kind(PLACE, fetcher.MemoryRecords(data), [], position, None, None, True, fetcher.READ_COMMITTED)


@st.composite
def fetches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw batches of all kinds in a row, and the requested position."""
    data, base = b"", draw(st.integers(0, 5))
    first, ends = base, list[int]()
    for _ in range(draw(st.integers(1, 6))):
        listed = draw(plain_events if draw(st.integers(0, 3)) else events)
        built = bytearray(place_batch(build_batch(listed, draw(st.sampled_from(["none", "none", "lz4"]))), base))
        data += bytes(built)
        base += len(listed) + draw(st.sampled_from([0, 0, 3]))
        ends.append(base)
    # Kafka's response begins with the batch that contains the position.
    return data, draw(st.integers(first, ends[0]))


@given(fetched=fetches(), most=st.integers(1, 50))
@settings(deadline=None, max_examples=75)
def test_column_records_equal_records_of_client(fetched: tuple[bytes, int], most: int) -> None:
    data, position = fetched
    theirs = fetch(column_batches._PartitionRecords, data, position)
    expected = list(theirs)
    with use_kernel(kernel()):
        ours, found, positions = fetch(column_batches.ColumnRecords, data, position), [], []
        while taken := ours.take(most):
            assert len(taken) <= most
            found += fields_of(taken)
            positions.append(ours.next_fetch_offset)
            assert positions[-1] > taken[-1].offset
        assert ours.is_empty
    assert found == fields_of(expected)
    assert ours.next_fetch_offset == theirs.next_fetch_offset
    assert positions == sorted(positions)


@given(fetched=fetches(), most=st.integers(1, 50))
@settings(deadline=None, max_examples=50)
def test_concatenated_columns_have_same_records(fetched: tuple[bytes, int], most: int) -> None:
    data, position = fetched
    with use_kernel(kernel()):
        source, parts = fetch(column_batches.ColumnRecords, data, position), []
        while taken := source.take(most):
            parts.append(taken)
    batches: list[list[Any]] = []
    for part in parts:
        if batches and can_be_concatenated(batches[-1][0], part):
            batches[-1].append(part)
        else:
            batches.append([part])
    joined = [concatenate(batch) for batch in batches]
    assert [one for batch in joined for one in fields_of(batch)] == [
        one for part in parts for one in fields_of(part)
    ]
    assert [isinstance(batch, RecordColumns) for batch in joined] == [
        isinstance(batch[0], RecordColumns) for batch in batches
    ]


@pytest.mark.parametrize("headers", [[], [(b"a", b"b")]])
def test_column_records_are_freed_once_taken(headers: list[Any]) -> None:
    """Fetched records must be freed without garbage collection, which services rarely run."""
    events: list[Any] = [(b"key", b"value", headers)] * 5
    with use_kernel(kernel()), no_garbage():
        ours = fetch(column_batches.ColumnRecords, place_batch(build_batch(events, "none"), 0), 0)
        assert len(ours.take(9)) == 5
        assert ours.is_empty
        gone = weakref.ref(ours)
        del ours
        assert gone() is None


@contextmanager
def no_garbage() -> Iterator[None]:
    """Switch garbage collection off."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@given(fetched=fetches(), stamped=st.lists(st.booleans(), min_size=6, max_size=6), most=st.integers(1, 50))
@settings(deadline=None, max_examples=40)
def test_column_records_have_timestamp_type_of_records(
    fetched: tuple[bytes, int], stamped: list[bool], most: int
) -> None:
    data, position = fetched
    marked, start = bytearray(data), 0
    for by_broker in stamped:
        if start < len(marked):
            marked[start + 22] |= 8 * by_broker
            start += 12 + int.from_bytes(marked[start + 8 : start + 12], "big")

    def kind(base: Any) -> Any:
        memory = fetcher.MemoryRecords(bytes(marked))
        return base(PLACE, memory, [], position, None, None, False, fetcher.READ_COMMITTED)

    expected = {one.offset: (one.timestamp_type, one.timestamp) for one in kind(column_batches._PartitionRecords)}
    with use_kernel(kernel()):
        ours, found = kind(column_batches.ColumnRecords), {}
        while taken := ours.take(most):
            for one in taken:
                stamper = taken.timestamp_type if isinstance(taken, RecordColumns) else one.timestamp_type
                found[one.offset] = (stamper, one.timestamp)
    assert found == expected


@given(fetched=fetches(), place=st.integers(0, 10**6), byte=st.integers(0, 255))
@settings(deadline=None, max_examples=75)
def test_broken_batches_are_refused_alike(fetched: tuple[bytes, int], place: int, byte: int) -> None:
    """One byte after the headers is changed, and the checksum is ignored, as if the batch had been sent so."""
    data, position = fetched
    broken = bytearray(data)
    length = 12 + int.from_bytes(data[8:12], "big")
    start = 61 + place % max(length - 61, 1)
    if start < length:
        broken[start] = byte

    def kind(base: Any) -> Any:
        return base(
            PLACE, fetcher.MemoryRecords(bytes(broken)), [], position, None, None, False, fetcher.READ_COMMITTED
        )

    expected = fields_of(kind(column_batches._PartitionRecords))
    with use_kernel(kernel()):
        ours, found = kind(column_batches.ColumnRecords), []
        while taken := ours.take(7):
            found += fields_of(taken)
    assert found == expected


@pytest.mark.parametrize("attributes", [0, 1, 127, 128, 255])
def test_record_attributes_hide_no_record(attributes: int) -> None:
    batch: list[Any] = [(b"key", b"value", [])] * 5
    built = bytearray(build_batch(batch, "none"))
    size = (len(built) - 61) // 5
    built[61 + 2 * size + 1] = attributes
    data = place_batch(bytes(built), 0)
    for kind in (column_batches._PartitionRecords, column_batches.ColumnRecords):
        with use_kernel(kernel()):
            records = kind(PLACE, fetcher.MemoryRecords(data), [], 0, None, None, False, fetcher.READ_COMMITTED)
            found = records.take(9) if isinstance(records, column_batches.ColumnRecords) else list(records)
        assert [(one.offset, one.value) for one in found] == [(place, b"value") for place in range(5)]


def test_column_records_join_ordinary_batches() -> None:
    batch: list[Any] = [(b"key", b"value", [])] * 5
    data = place_batch(build_batch(batch, "none"), 0) + place_batch(build_batch(batch, "none"), 5)
    with use_kernel(kernel()):
        taken = fetch(column_batches.ColumnRecords, data, 2).take(100)
    assert isinstance(taken, RecordColumns)
    assert [one.offset for one in taken] == list(range(2, 10))
    assert taken[-1].key == b"key"
    assert isinstance(taken[2:4], RecordColumns)


named = st.lists(st.tuples(st.text(max_size=70), st.binary(max_size=70)), max_size=2).map(tuple)
messages = st.lists(st.tuples(content, content, st.just(()) | named), min_size=1, max_size=40)


def concatenate_messages(parts: list[list[Message]]) -> Messages:
    found = Messages()
    for part in parts:
        if all(key is not None and value is not None and not headers for key, value, headers in part):
            found.extend(
                MessageColumns(
                    spans_of([key or b"" for key, _, _ in part]), spans_of([value or b"" for _, value, _ in part])
                )
            )
        else:
            found.extend(part)
    return found


@given(parts=st.lists(messages, min_size=1, max_size=4), timestamp=st.sampled_from([-1, 0, 1_700_000_000_000]))
@settings(deadline=None, max_examples=40)
def test_encoded_batch_equals_batch_of_client(parts: list[list[Message]], timestamp: int) -> None:
    theirs = BatchBuilder(10**6, 0, is_transactional=1)
    for part in parts:
        for key, value, headers in part:
            theirs.append(timestamp=timestamp, key=key, value=value, headers=list(headers))
    with use_kernel(kernel()):
        (ours,) = encode_batches(concatenate_messages(parts), timestamp, 10**6)
    assert ours.size() == theirs.size()
    assert ours.record_count() == theirs.record_count()
    sides: tuple[Any, Any] = (ours, theirs)
    for batch in sides:
        batch._set_producer_state(4711, 3, 17)
    assert bytes(ours._build()) == bytes(theirs._build())


@given(parts=st.lists(messages, min_size=1, max_size=4), limit=st.integers(62, 400))
@settings(deadline=None, max_examples=40)
def test_encoded_batches_keep_limit_except_for_long_message(parts: list[list[Message]], limit: int) -> None:
    with use_kernel(kernel()):
        batches = list(encode_batches(concatenate_messages(parts), 5, limit))
        built = b"".join(place_batch(bytes(one._build()), 100 * number) for number, one in enumerate(batches))
    assert all(one.size() <= limit or one.record_count() == 1 for one in batches)
    read = list(fetch(column_batches._PartitionRecords, built, 0))
    given = [message for part in parts for message in part]
    assert [(one.key, one.value, tuple(one.headers)) for one in read] == given


def test_encode_batches_copies_messages_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_batches, "_COPIED_AT_ONCE", 3)
    copied: list[int] = []

    def record_size(texts: list[bytes]) -> Spans:
        copied.append(len(texts))
        return spans_of(texts)

    monkeypatch.setattr(column_batches, "spans_of", record_size)
    given = Messages()
    for number in range(8):
        given.add((b"%d" % number, b"value", ()))
    given.extend(MessageColumns(spans_of([b"8"] * 9), spans_of([b"value"] * 9)))
    with use_kernel(kernel()):
        batches = encode_batches(given, 5, 10**6)
        counts = [next(batches).record_count()]
        assert copied == [3, 3], "keys and values of what comes first"
        counts += [one.record_count() for one in batches]
    assert counts == [3, 3, 2 + 9]
    assert sum(copied) == 2 * 8, "what is in columns is not copied"


@given(seed=st.integers(0, 255), size=st.integers(0, 40) | st.integers(0, 80_000), skipped=st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_checksum_equals_that_of_client(seed: int, size: int, skipped: int) -> None:
    """Sizes above 24,576 bytes are read in three parallel runs; ``skipped`` changes the alignment."""
    data = memoryview(random.Random(seed).randbytes(size + skipped))[skipped:]
    with use_kernel(kernel()):
        assert crc32c(data) in {None, calc_crc32c(data)}
        assert checksum_of(data) == calc_crc32c(data)
    with use_kernel(None):
        assert crc32c(data) is None
        assert checksum_of(data) == calc_crc32c(data)


@pytest.mark.parametrize("count", [5, 5000])
def test_batch_with_one_wrong_bit_is_refused(count: int) -> None:
    data = place_batch(build_batch([(b"key", b"value", [])] * count, "none"), 0)
    for bit in (8 * 17, 8 * 21 + 3, 8 * len(data) - 1):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with use_kernel(kernel()), pytest.raises(CorruptRecordException):
            fetch(column_batches.ColumnRecords, bytes(wrong), 0).take(9)


def test_install_notices_changed_client_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PartitionRecords", object)
    with use_kernel(kernel()), pytest.raises(RuntimeError, match="PartitionRecords is not the class"):
        column_batches.install()
