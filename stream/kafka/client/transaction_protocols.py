"""Builds the requests of Kafka's two transaction protocols, and reads their error codes.

In the first protocol, partitions and groups are added to a transaction before any write. In the
second (KIP-890), a write adds them, and each transaction has its own epoch, so that Kafka rejects
late writes of an earlier transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from stream.kafka.client import wire_requests

SECOND_PROTOCOL_VERSION: Final = 2
"""The second protocol needs at least this ``transaction.version`` of the cluster."""

_ALL_IN_SYNC: Final = -1

Batches = Mapping[TopicPartition, wire_requests.Encoded]
Codes = Iterable[tuple[TopicPartition | None, int]]


class Identity(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


class ProtocolRequest(NamedTuple):
    """A request, and a function that returns the error codes in its response."""

    request: Any
    codes: Callable[[Any], Codes]


class FirstProtocol:
    """Builds the requests of the first protocol with aiokafka's classes."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self._id = transactional_id
        self._timeout_ms = timeout_ms

    def add_partitions(self, identity: Identity, partitions: Sequence[TopicPartition]) -> ProtocolRequest | None:
        """Returns the request that adds partitions to the transaction; None if there are none."""
        topics = _by_topic((topic_partition, topic_partition.partition) for topic_partition in partitions)
        return ProtocolRequest(AddPartitionsToTxnRequest(self._id, *identity, topics), _errors) if topics else None

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Returns the request that writes a batch to each partition, for the partitions' leader."""
        topics = _by_topic(
            (topic_partition, (topic_partition.partition, batch)) for topic_partition, batch in batches.items()
        )
        return ProtocolRequest(
            ProduceRequest(self._id, _ALL_IN_SYNC, self._timeout_ms, topics), lambda answer: _codes(answer.topics)
        )

    def add_group(self, identity: Identity, group: str) -> ProtocolRequest | None:
        """Returns the request that adds a consumer group to the transaction."""
        return ProtocolRequest(AddOffsetsToTxnRequest(self._id, *identity, group), error_code_of)

    def commit_offsets(
        self, identity: Identity, group: str, offsets: Mapping[TopicPartition, int]
    ) -> ProtocolRequest:
        """Returns the request that commits offsets in the transaction, for the group's coordinator."""
        topics = _by_topic(
            (topic_partition, (topic_partition.partition, offset, ""))
            for topic_partition, offset in offsets.items()
        )
        return ProtocolRequest(TxnOffsetCommitRequest(self._id, group, *identity, topics), _errors)

    def end(self, identity: Identity) -> ProtocolRequest:
        """Returns the request that commits the transaction, for its coordinator."""
        return ProtocolRequest(EndTxnRequest(self._id, *identity, True), error_code_of)

    def next_identity(self, identity: Identity, ended: Any) -> Identity:
        """Returns the identity for the next transaction, given the response to ``end``."""
        del ended
        return identity


class SecondProtocol(FirstProtocol):
    """Builds the requests of the second protocol with ``wire_requests``."""

    def add_partitions(self, identity: Identity, partitions: Sequence[TopicPartition]) -> None:
        """Returns None, because a write adds its partition to the transaction."""

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Returns the request that writes a batch to each partition."""
        return ProtocolRequest(wire_requests.produce(self._id, self._timeout_ms, batches), _unchanged)

    def add_group(self, identity: Identity, group: str) -> None:
        """Returns None, because a commit of offsets adds the group to the transaction."""

    def commit_offsets(
        self, identity: Identity, group: str, offsets: Mapping[TopicPartition, int]
    ) -> ProtocolRequest:
        """Returns the request that commits offsets in the transaction."""
        return ProtocolRequest(wire_requests.commit_offsets(self._id, group, identity, offsets), _unchanged)

    def end(self, identity: Identity) -> ProtocolRequest:
        """Returns the request that commits the transaction."""
        return ProtocolRequest(wire_requests.end(self._id, identity), lambda ended: [(None, ended.error)])

    def next_identity(self, identity: Identity, ended: Any) -> Identity:
        """Returns the identity that the coordinator has assigned in its response."""
        del identity
        return Identity(ended.producer_id, ended.epoch)


def supports_second_protocol(features: wire_requests.Features) -> bool:
    """Returns whether a broker supports the second protocol and its cluster enables it."""
    return features.features.get(wire_requests.TRANSACTION_VERSION, 0) >= SECOND_PROTOCOL_VERSION and all(
        wire_requests.supports_request(features.versions, api) for api in wire_requests.SECOND_PROTOCOL_REQUESTS
    )


def error_code_of(answer: Any) -> Codes:
    """Returns the only error code of a response."""
    return [(None, answer.error_code)]


def _by_topic(entries: Iterable[tuple[TopicPartition, Any]]) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for topic_partition, entry in entries:
        topics.setdefault(topic_partition.topic, []).append(entry)
    return list(topics.items())


def _errors(answer: Any) -> Codes:
    return _codes(answer.errors)


def _codes(topics: Any) -> Codes:
    return [
        (TopicPartition(topic, figures[0]), figures[1]) for topic, partitions in topics for figures in partitions
    ]


def _unchanged(codes: Codes) -> Codes:
    return codes
