"""Encodes requests that aiokafka lacks: KIP-890 transactions, KIP-516 topic ids.

The layouts follow Kafka's message definitions (``clients/src/main/resources/common/message``).
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import UnsupportedVersionError

API_VERSIONS: Final = (18, 3)
METADATA: Final = (3, 10)
"""Key and version of the metadata request; topic ids need version 10 (Kafka 2.8)."""
PRODUCE: Final = (0, 12)
END: Final = (26, 5)
COMMIT_OFFSETS: Final = (28, 5)
SECOND_PROTOCOL_REQUESTS: Final = (PRODUCE, END, COMMIT_OFFSETS)
"""Key and version of each request of the second protocol."""

TRANSACTION_VERSION: Final = "transaction.version"
"""The cluster feature that determines the transaction protocol."""

SECOND_PROTOCOL_VERSION: Final = 2

ALL_IN_SYNC: Final = -1
"""Kafka's value of ``acks`` with which a write waits for all replicas that are in sync."""
_NO_TAGS: Final = b"\0"

_pack_header = struct.Struct(">hhih").pack
_pack_produce_start = struct.Struct(">hi").pack
_pack_identity = struct.Struct(">qh").pack
_pack_end = struct.Struct(">qh?").pack
_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_pack_int32 = struct.Struct(">i").pack
_pack_offset = struct.Struct(">iqi").pack
_unpack_end = struct.Struct(">ihqh").unpack_from
_unpack_produced = struct.Struct(">ihqqq").unpack_from
_ID_BYTES: Final = 16

Encoded = bytes | bytearray | memoryview
"""An encoded batch, or another piece of a request."""
_NO_ID: Final = bytes(_ID_BYTES)


class EndResponse(NamedTuple):
    """The coordinator's response to a commit: an error code and the next identity."""

    error: int
    producer_id: int
    epoch: int


class TopicId(NamedTuple):
    """A topic id in the form of Kafka's tools (empty if the topic has none), or an error code.

    ``operations`` has a bit for each operation that the principal may do, or is negative if Kafka does not say.
    """

    error: int
    topic_id: str
    operations: int


class Identity(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


class Features(NamedTuple):
    """The range of versions that a broker supports for each request, and the version of each cluster feature."""

    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


def supports_request(versions: Mapping[int, tuple[int, int]], api: tuple[int, int]) -> bool:
    """Returns whether a broker supports a request: ``api`` is its key and version."""
    least, most = versions.get(api[0], (0, -1))
    return least <= api[1] <= most


def supports_second_protocol(features: Features) -> bool:
    """Returns whether a broker supports the second protocol and its cluster enables it."""
    return features.features.get(TRANSACTION_VERSION, 0) >= SECOND_PROTOCOL_VERSION and all(
        supports_request(features.versions, api) for api in SECOND_PROTOCOL_REQUESTS
    )


class Header(NamedTuple):
    """The header of a request or response."""

    correlation_id: int
    encoded: bytes = b""

    def encode(self) -> bytes:
        """Returns the bytes of the header."""
        return self.encoded


class Request:
    """A request that aiokafka's connections can send: its bytes, and the response's decoder."""

    def __init__(
        self,
        api: tuple[int, int],
        body: bytes | Sequence[Encoded],
        read: Callable[[bytes], Any],
        *,
        tagged: bool = True,
    ) -> None:
        """Takes the request's key and version, its body (in pieces if it is long) and the response's decoder.

        ``tagged`` is False for ``API_VERSIONS``, whose response header has no tags.
        """
        self._api = api
        self.body: Sequence[Encoded] = [body] if isinstance(body, bytes) else body
        self._read = read
        self._tagged = tagged

    @property
    def RESPONSE_TYPE(self) -> Request:  # noqa: N802  (aiokafka's name of the decoder)
        """The object that decodes the response, which is this request."""
        return self

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Request:
        """Returns the request itself, because it has only one version.

        UnsupportedVersionError if the broker does not know this version.
        """
        if not supports_request(versions, self._api):
            raise UnsupportedVersionError
        return self

    def build_request_header(self, *, correlation_id: int, client_id: str) -> Header:
        """Returns a header of version 2 without tags."""
        name = client_id.encode()
        return Header(correlation_id, _pack_header(*self._api, correlation_id, len(name)) + name + _NO_TAGS)

    def encode(self) -> bytes:
        """Returns the bytes after the header."""
        return b"".join(self.body)

    @property
    def size(self) -> int:
        """The number of bytes after the header."""
        return sum(map(len, self.body))

    def parse_response_header(self, response: BytesIO) -> Header:
        """Reads the header."""
        (correlation_id,) = _int32(response.read(4))
        if self._tagged:
            response.seek(FieldReader(response.getbuffer(), 4).skip_tags())
        return Header(correlation_id)

    def decode(self, response: BytesIO) -> Any:
        """Reads the response after the header."""
        return self._read(response.read())


def build_features_request() -> Request:
    """Returns the request for the broker's and cluster's ``Features``."""
    return Request(API_VERSIONS, _text("sotto") + _text("1") + _NO_TAGS, _parse_features, tagged=False)


def build_produce_request(
    transactional_id: str, timeout_ms: int, batches: Mapping[TopicPartition, Encoded]
) -> Request:
    """Returns the request that writes batches; the response has an error code per partition."""
    topics: dict[str, list[tuple[int, Encoded]]] = {}
    for (topic, partition), batch in batches.items():
        topics.setdefault(topic, []).append((partition, batch))
    pieces: list[Encoded] = []
    between = _text(transactional_id) + _pack_produce_start(ALL_IN_SYNC, timeout_ms) + _varint(len(topics) + 1)
    for topic, written in topics.items():
        between += _text(topic) + _varint(len(written) + 1)
        for partition, batch in written:
            pieces += (between + _pack_int32(partition) + _varint(len(batch) + 1), batch)
            between = _NO_TAGS
        between += _NO_TAGS
    return Request(PRODUCE, [*pieces, between + _NO_TAGS], _parse_produce_response)


def build_commit_request(
    transactional_id: str, group: str, identity: tuple[int, int], offsets: Mapping[TopicPartition, int]
) -> Request:
    """Returns the request that commits offsets; the response has an error code per partition."""
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(_pack_offset(partition, offset, -1) + _text("") + _NO_TAGS)
    no_member = _pack_int32(-1) + _text("") + _varint(0)
    parts = [_text(transactional_id), _text(group), _pack_identity(*identity), no_member, _varint(len(topics) + 1)]
    for topic, committed in topics.items():
        parts += (_text(topic), _varint(len(committed) + 1), *committed, _NO_TAGS)
    return Request(COMMIT_OFFSETS, b"".join((*parts, _NO_TAGS)), _parse_commit_response)


def build_end_request(transactional_id: str, identity: tuple[int, int]) -> Request:
    """Returns the request that commits a transaction; the response is an ``EndResponse``."""
    return Request(END, _text(transactional_id) + _pack_end(*identity, True) + _NO_TAGS, _parse_end_response)


def build_topic_ids_request(topics: Collection[str], *, operations: bool = False) -> Request:
    """Returns the request for the ``TopicId`` of each topic, on demand with ``operations``; it creates no topics."""
    asked = b"".join(_NO_ID + _text(topic) + _NO_TAGS for topic in topics)
    no_creation_no_cluster_operations = bytes(2)
    body = _varint(len(topics) + 1) + asked + no_creation_no_cluster_operations + bytes([operations]) + _NO_TAGS
    return Request(METADATA, body, _parse_topic_ids)


class FieldReader:
    """Reads consecutive fields of a response."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self._data = data
        self._at = at

    def int16(self) -> int:
        """Reads an integer of two bytes."""
        self._at += 2
        return int(_int16(self._data, self._at - 2)[0])

    def int32(self) -> int:
        """Reads an integer of four bytes."""
        self._at += 4
        return int(_int32(self._data, self._at - 4)[0])

    def varint(self) -> int:
        """Reads an unsigned varint."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """Reads the length of an array or text; 0 for null."""
        return max(0, self.varint() - 1)

    def text(self) -> str:
        """Reads a text; empty for null."""
        return str(self.data(self.count()), "utf-8")

    def data(self, size: int) -> bytes | memoryview:
        """Reads ``size`` bytes; ValueError if the response has fewer bytes."""
        self._at += size
        if self._at > len(self._data):
            raise ValueError("a response of Kafka ends too early")
        return self._data[self._at - size : self._at]

    def committed_partition(self) -> tuple[int, int]:
        """Reads the number and error code of a partition from a response to ``build_commit_request``."""
        found = self.int32(), self.int16()
        self.skip_tags()
        return found

    def produced_partition(self) -> tuple[int, int]:
        """Reads the number and error code of a partition from a response to ``build_produce_request``."""
        number, error, *_ = _unpack_produced(self._data, self._at)
        self._at += 30
        for _ in range(self.count()):
            self.int32()
            self.text()
            self.skip_tags()
        self.text()
        self.skip_tags()
        return number, error

    def skip_tags(self) -> int:
        """Skips tagged fields; returns the position after them."""
        for _ in range(self.varint()):
            self.varint()
            self.data(self.varint())
        return self._at

    def tags(self) -> Mapping[int, bytes | memoryview]:
        """Reads tagged fields."""
        return {self.varint(): self.data(self.varint()) for _ in range(self.varint())}


def _parse_features(body: bytes) -> Features:
    reader = FieldReader(body)
    reader.int16()
    versions = {}
    for _ in range(reader.count()):
        api = reader.int16()
        versions[api] = (reader.int16(), reader.int16())
        reader.skip_tags()
    reader.int32()
    finalized = reader.tags().get(2, b"\0")
    reader = FieldReader(finalized)
    found = {}
    for _ in range(reader.count()):
        name, found_version, _ = reader.text(), reader.int16(), reader.int16()
        reader.skip_tags()
        found[name] = found_version
    return Features(versions, found)


def _parse_produce_response(body: bytes) -> list[tuple[TopicPartition, int]]:
    reader = FieldReader(body)
    return _read_partition_errors(reader, reader.produced_partition)


def _parse_commit_response(body: bytes) -> list[tuple[TopicPartition, int]]:
    reader = FieldReader(body)
    reader.int32()
    return _read_partition_errors(reader, reader.committed_partition)


def _read_partition_errors(
    reader: FieldReader, read_partition: Callable[[], tuple[int, int]]
) -> list[tuple[TopicPartition, int]]:
    found = []
    for _ in range(reader.count()):
        topic = reader.text()
        for _ in range(reader.count()):
            number, error = read_partition()
            found.append((TopicPartition(topic, number), error))
        reader.skip_tags()
    return found


def _parse_topic_ids(body: bytes) -> Mapping[str, TopicId]:
    reader = FieldReader(body)
    reader.int32()
    for _ in range(reader.count()):
        reader.int32()
        reader.text()
        reader.int32()
        reader.text()
        reader.skip_tags()
    reader.text()
    reader.int32()
    found = {}
    for _ in range(reader.count()):
        error, topic, topic_id = reader.int16(), reader.text(), bytes(reader.data(_ID_BYTES))
        shown_id = "" if topic_id == _NO_ID else urlsafe_b64encode(topic_id).decode().rstrip("=")
        reader.data(1)
        for _ in range(reader.count()):
            reader.data(2 + 3 * 4)
            for _ in range(3):  # replicas, in-sync replicas, offline replicas
                reader.data(4 * reader.count())
            reader.skip_tags()
        found[topic] = TopicId(error, shown_id, reader.int32())
        reader.skip_tags()
    return found


def _parse_end_response(body: bytes) -> EndResponse:
    _, error, producer_id, epoch = _unpack_end(body)
    return EndResponse(error, producer_id, epoch)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded) + 1) + encoded


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
