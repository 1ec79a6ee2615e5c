"""Kafka's two protocols of transactions: what is asked of whom, and how to read the answers.

By the first, partitions and groups join a transaction before anything is written to them. By the second (KIP-890) they join as
they are written to, and each transaction has an epoch of its own: whatever is late from an earlier one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiokafka import TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

from stream.kafka.client import wire_requests

SECOND_FROM: Final = 2
"""From this version of a cluster's feature ``transaction.version`` on, its transactions follow the second protocol."""

_ALL_IN_SYNC: Final = -1

Batches = Mapping[TopicPartition, bytes | bytearray]
Codes = Iterable[tuple[TopicPartition | None, int]]


class Identity(NamedTuple):
    """Who a producer is to Kafka: its number, and which of those that had it."""

    producer_id: int
    epoch: int


class ProtocolRequest(NamedTuple):
    """A request, and what in the answer to it says how it went: error codes, 0 for none, with the partitions they are about."""

    request: Any
    codes: Callable[[Any], Codes]


class TransactionProtocol(Protocol):
    """The questions of one transactional id, each None where there is nothing to ask."""

    def join(self, who: Identity, places: Sequence[TopicPartition]) -> ProtocolRequest | None:
        """Let partitions join the transaction; asked of its coordinator."""

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Write a batch to each of some partitions; asked of their leader."""

    def join_group(self, who: Identity, group: str) -> ProtocolRequest | None:
        """Let a group's offsets join the transaction; asked of its coordinator."""

    def commit_offsets(self, who: Identity, group: str, offsets: Mapping[TopicPartition, int]) -> ProtocolRequest:
        """Commit a group's offsets with the transaction; asked of the group's coordinator."""

    def end(self, who: Identity) -> ProtocolRequest:
        """Commit the transaction; asked of its coordinator."""

    def following(self, who: Identity, ended: Any) -> Identity:
        """Who the producer is after the answer to ``end``."""


class First:
    """In aiokafka's requests, of every version that it knows."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self._id = transactional_id
        self._timeout_ms = timeout_ms

    def join(self, who: Identity, places: Sequence[TopicPartition]) -> ProtocolRequest | None:
        """Ask to be joined by these."""
        topics = _by_topic((place, place.partition) for place in places)
        return ProtocolRequest(AddPartitionsToTxnRequest(self._id, *who, topics), _codes) if topics else None

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Ask to write."""
        topics = _by_topic((place, (place.partition, batch)) for place, batch in batches.items())
        return ProtocolRequest(ProduceRequest(self._id, _ALL_IN_SYNC, self._timeout_ms, topics), _written)

    def join_group(self, who: Identity, group: str) -> ProtocolRequest | None:
        """Ask to be joined by a group."""
        return ProtocolRequest(AddOffsetsToTxnRequest(self._id, *who, group), _code)

    def commit_offsets(self, who: Identity, group: str, offsets: Mapping[TopicPartition, int]) -> ProtocolRequest:
        """Ask to commit."""
        topics = _by_topic((place, (place.partition, offset, "")) for place, offset in offsets.items())
        return ProtocolRequest(TxnOffsetCommitRequest(self._id, group, *who, topics), _codes)

    def end(self, who: Identity) -> ProtocolRequest:
        """Ask to commit all."""
        return ProtocolRequest(EndTxnRequest(self._id, *who, True), _code)

    def following(self, who: Identity, ended: Any) -> Identity:
        """The same as before."""
        del ended
        return who


class Second:
    """In requests that are laid out here."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self._id = transactional_id
        self._timeout_ms = timeout_ms

    def join(self, who: Identity, places: Sequence[TopicPartition]) -> None:
        """They join as they are written to."""

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Ask to write."""
        return ProtocolRequest(wire_requests.produce(self._id, self._timeout_ms, batches), _as_told)

    def join_group(self, who: Identity, group: str) -> None:
        """It joins as it commits."""

    def commit_offsets(self, who: Identity, group: str, offsets: Mapping[TopicPartition, int]) -> ProtocolRequest:
        """Ask to commit."""
        return ProtocolRequest(wire_requests.commit_offsets(self._id, group, who, offsets), _as_told)

    def end(self, who: Identity) -> ProtocolRequest:
        """Ask to commit all."""
        return ProtocolRequest(wire_requests.end(self._id, who), lambda ended: [(None, ended.error)])

    def following(self, who: Identity, ended: Any) -> Identity:
        """As the coordinator says."""
        del who
        return Identity(ended.producer_id, ended.epoch)


def speaks_second(versions: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a broker that speaks its APIs in these ranges of versions knows the requests of the second protocol, and of features."""
    return all(
        api in versions and versions[api][0] <= version <= versions[api][1]
        for api, version in (*wire_requests.SECOND, wire_requests.API_VERSIONS)
    )


def follows_second(features: Mapping[str, int]) -> bool:
    """Whether a cluster with these features has its transactions follow the second protocol."""
    return features.get(wire_requests.TRANSACTION_VERSION, 0) >= SECOND_FROM


def _by_topic(entries: Iterable[tuple[TopicPartition, Any]]) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for place, entry in entries:
        topics.setdefault(place.topic, []).append(entry)
    return list(topics.items())


def _codes(answer: Any) -> Codes:
    return [
        (TopicPartition(topic, partition), code)
        for topic, partitions in answer.errors
        for partition, code in partitions
    ]


def _code(answer: Any) -> Codes:
    return [(None, answer.error_code)]


def _written(answer: Any) -> Codes:
    return [
        (TopicPartition(topic, figures[0]), figures[1])
        for topic, partitions in answer.topics
        for figures in partitions
    ]


def _as_told(codes: Codes) -> Codes:
    return codes
