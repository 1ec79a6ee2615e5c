"""Requests of the second transaction protocol, which another parser reads, and all forms of Kafka's responses."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from io import BytesIO

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import UnsupportedVersionError
from aiokafka.protocol.types import CompactString, Int16, Int32, Int64, TaggedFields, UnsignedVarInt32
from hypothesis import given
from hypothesis import strategies as st

from stream.kafka.client import wire_requests

names = st.text(min_size=1, max_size=200)
places = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))
codes = st.integers(-1, 120)
tags = st.dictionaries(st.integers(3, 300), st.binary(max_size=300), max_size=3)


def tagged(fields: Mapping[int, bytes]) -> bytes:
    parts = [UnsignedVarInt32.encode(len(fields))]
    for number in sorted(fields):
        parts += [UnsignedVarInt32.encode(number), UnsignedVarInt32.encode(len(fields[number])), fields[number]]
    return b"".join(parts)


def text(value: str | None) -> bytes:
    return bytes(CompactString("utf-8").encode(value))


def several(entries: list[bytes]) -> bytes:
    return bytes(UnsignedVarInt32.encode(len(entries) + 1)) + b"".join(entries)


def topics_of(body: BytesIO) -> int:
    return int(UnsignedVarInt32.decode(body)) - 1


@given(names, st.integers(0, 2**31 - 1), st.dictionaries(places, st.binary(min_size=1, max_size=300), min_size=1))
def test_produce_request_encodes_batches_by_partition(
    transactional_id: str, timeout: int, batches: dict[TopicPartition, bytes]
) -> None:
    body = BytesIO(wire_requests.build_produce_request(transactional_id, timeout, batches).encode())
    assert CompactString("utf-8").decode(body) == transactional_id
    assert Int16.decode(body) == -1, "not from all replicas in sync"
    assert Int32.decode(body) == timeout
    found = {}
    for _ in range(topics_of(body)):
        topic = CompactString("utf-8").decode(body)
        for _ in range(topics_of(body)):
            partition, size = Int32.decode(body), UnsignedVarInt32.decode(body) - 1
            found[TopicPartition(topic, partition)] = body.read(size)
            assert TaggedFields.decode(body) == {}
        assert TaggedFields.decode(body) == {}
    assert TaggedFields.decode(body) == {}
    assert found == batches
    assert not body.read()


@given(names, names, st.dictionaries(places, st.integers(0, 2**62), min_size=1))
def test_offset_commit_request_encodes_group_and_offsets(
    transactional_id: str, group: str, offsets: dict[TopicPartition, int]
) -> None:
    body = BytesIO(wire_requests.build_commit_request(transactional_id, group, (2**40, 7), offsets).encode())
    string = CompactString("utf-8")
    assert (string.decode(body), string.decode(body)) == (transactional_id, group)
    assert (Int64.decode(body), Int16.decode(body)) == (2**40, 7)
    assert (Int32.decode(body), string.decode(body), string.decode(body)) == (-1, "", None), "it names a member"
    found = {}
    for _ in range(topics_of(body)):
        topic = string.decode(body)
        for _ in range(topics_of(body)):
            place = TopicPartition(topic, Int32.decode(body))
            found[place] = Int64.decode(body)
            assert (Int32.decode(body), string.decode(body), TaggedFields.decode(body)) == (-1, "", {})
        assert TaggedFields.decode(body) == {}
    assert TaggedFields.decode(body) == {}
    assert found == offsets
    assert not body.read()


def test_end_request_commits() -> None:
    body = BytesIO(wire_requests.build_end_request("worker-0", (2**40, 32_000)).encode())
    assert CompactString("utf-8").decode(body) == "worker-0"
    assert (Int64.decode(body), Int16.decode(body)) == (2**40, 32_000)
    assert body.read() == b"\1\0"


@given(st.dictionaries(places, codes), tags, st.lists(st.tuples(st.integers(0, 9), st.none() | names), max_size=2))
def test_produce_response_decodes_codes_of_all_batches(
    given_codes: dict[TopicPartition, int], extra: dict[int, bytes], records: list[tuple[int, str | None]]
) -> None:
    reasons = several([Int32.encode(number) + text(reason) + tagged(extra) for number, reason in records])
    leader = {0: struct.pack(">iib", 2, 9, 0), **extra}
    topics = [
        text(place.topic)
        + several(
            [struct.pack(">ihqqq", place.partition, code, 5, -1, 0) + reasons + text("why") + tagged(leader)]
        )
        + tagged(extra)
        for place, code in given_codes.items()
    ]
    body = several(topics) + Int32.encode(0) + tagged(extra)
    request = wire_requests.build_produce_request("worker-0", 1, {})
    assert dict(request.decode(BytesIO(body))) == given_codes


@given(st.dictionaries(places, codes), tags)
def test_offset_commit_response_decodes_codes(
    given_codes: dict[TopicPartition, int], extra: dict[int, bytes]
) -> None:
    topics = [
        text(place.topic) + several([struct.pack(">ih", place.partition, code) + tagged(extra)]) + tagged(extra)
        for place, code in given_codes.items()
    ]
    body = Int32.encode(0) + several(topics) + tagged(extra)
    request = wire_requests.build_commit_request("worker-0", "workers", (1, 1), {})
    assert dict(request.decode(BytesIO(body))) == given_codes


def test_end_response_decodes_next_producer_identity() -> None:
    body = struct.pack(">ihqh", 0, 51, 2**40, 3) + b"\0"
    assert wire_requests.build_end_request("worker-0", (1, 1)).decode(BytesIO(body)) == wire_requests.EndResponse(
        51, 2**40, 3
    )


@given(st.dictionaries(names, st.integers(0, 30)), tags)
def test_features_response_decodes_versions_and_features(
    features: dict[str, int], extra: dict[int, bytes]
) -> None:
    supported = several([text(name) + struct.pack(">hh", 0, 99) + b"\0" for name in features])
    finalized = several(
        [text(name) + struct.pack(">hh", version, 0) + b"\0" for name, version in features.items()]
    )
    apis = several([struct.pack(">hhh", 0, 0, 12) + tagged(extra)])
    fields = {0: supported, 1: struct.pack(">q", 7), 2: finalized, **extra}
    body = Int16.encode(0) + apis + Int32.encode(0) + tagged(fields)
    assert wire_requests.build_features_request().decode(BytesIO(body)) == ({0: (0, 12)}, features)


def test_features_response_without_features_is_empty() -> None:
    body = Int16.encode(0) + several([]) + Int32.encode(0) + b"\0"
    assert wire_requests.build_features_request().decode(BytesIO(body)) == ({}, {})


@given(st.lists(names, min_size=1, unique=True))
def test_ask_topic_ids_names_topics_and_creates_none(topics: list[str]) -> None:
    """A metadata request of version 10 names topics without ids, and asks for no creation, and for operations on demand."""
    body = BytesIO(wire_requests.build_topic_ids_request(topics).encode())
    found = []
    for _ in range(topics_of(body)):
        assert body.read(16) == bytes(16)
        found.append(CompactString("utf-8").decode(body))
        assert TaggedFields.decode(body) == {}
    assert found == topics
    assert body.read() == b"\0\0\0\0"
    assert wire_requests.build_topic_ids_request(topics, operations=True).encode().endswith(b"\0\0\1\0")


ids = st.binary(min_size=16, max_size=16)


@given(st.dictionaries(names, st.tuples(codes, ids)), st.integers(0, 3), tags)
def test_topic_ids_are_decoded_as_kafkas_tools_show_them(
    topics: dict[str, tuple[int, bytes]], partitions: int, extra: dict[int, bytes]
) -> None:
    """Ids are found among all fields of a response; an id of zeros means that there is none."""
    numbers = several([Int32.encode(number) for number in range(partitions)])
    parts = [
        struct.pack(">hiii", 0, number, 1, 7) + numbers + numbers + several([]) + tagged(extra)
        for number in range(partitions)
    ]
    described = several(
        [
            Int16.encode(code)
            + text(name)
            + topic_id
            + b"\0"
            + several(parts)
            + Int32.encode(1 << 4)
            + tagged(extra)
            for name, (code, topic_id) in topics.items()
        ]
    )
    brokers = several([Int32.encode(1) + text("host") + Int32.encode(9092) + text(None) + tagged(extra)])
    body = (
        Int32.encode(0) + brokers + text("cluster") + Int32.encode(1) + described + Int32.encode(-1) + tagged({})
    )
    assert wire_requests.build_topic_ids_request(list(topics)).decode(BytesIO(body)) == {
        name: (code, base64.urlsafe_b64encode(topic_id).decode()[:22] if any(topic_id) else "", 1 << 4)
        for name, (code, topic_id) in topics.items()
    }


@given(tags)
def test_request_and_response_headers_match_kafkas_layout(extra: dict[int, bytes]) -> None:
    header = wire_requests.build_end_request("worker-0", (1, 1)).build_request_header(
        correlation_id=77, client_id="sotto"
    )
    assert header.encode() == struct.pack(">hhih", 26, 5, 77, 5) + b"sotto\0"
    answered = BytesIO(Int32.encode(77) + tagged(extra) + b"rest")
    assert wire_requests.build_end_request("worker-0", (1, 1)).parse_response_header(answered).correlation_id == 77
    assert answered.read() == b"rest"


def test_features_response_has_oldest_header() -> None:
    answered = BytesIO(Int32.encode(77) + b"rest")
    assert wire_requests.build_features_request().parse_response_header(answered).correlation_id == 77
    assert answered.read() == b"rest"


def test_truncated_response_raises() -> None:
    body = several(
        [text("answers") + several([struct.pack(">ihqqq", 0, 0, 5, -1, 0) + several([]) + text("why")])]
    )
    for end in range(len(body)):
        with pytest.raises((ValueError, IndexError, struct.error)):
            wire_requests.build_produce_request("worker-0", 1, {}).decode(BytesIO(body[:end]))


def test_request_is_prepared_only_for_broker_with_its_version() -> None:
    """Another version raises an error that callers tell from a refusal."""
    request = wire_requests.build_end_request("worker-0", (1, 1))
    assert request.prepare({26: (0, 5)}) is request
    for versions in ({26: (0, 4)}, {26: (6, 7)}, {}):
        with pytest.raises(UnsupportedVersionError):
            request.prepare(versions)
