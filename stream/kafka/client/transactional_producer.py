"""A producer of consecutive transactions over aiokafka's connections.

aiokafka's producer collects single records in queues and tasks, which cost more than a small
transaction. This producer needs no queues, because a partition session has all records of a
transaction at once.

In Kafka's first transaction protocol, partitions and groups are added to a transaction before any
write. In the second (KIP-890), which aiokafka lacks, a write adds them, and each transaction has its
own epoch, so that Kafka rejects late writes of an earlier transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition, errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from stream.kafka.client import wire_requests
from stream.kafka.client.client_patches import BrokerClient
from stream.kafka.client.wire_requests import Encoded, Identity, build_features_request, supports_second_protocol

Batches = Mapping[TopicPartition, Encoded]
Offsets = Mapping[TopicPartition, int]
Codes = Iterable[tuple[TopicPartition | None, int]]


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
        topics = _group_by_topic((one, one.partition) for one in partitions)
        request = AddPartitionsToTxnRequest(self._id, *identity, topics)
        return ProtocolRequest(request, _error_codes) if topics else None

    def produce(self, batches: Batches) -> ProtocolRequest:
        """Returns the request that writes a batch to each partition; it goes to the partitions' leader."""
        topics = _group_by_topic((one, (one.partition, batch)) for one, batch in batches.items())
        request = ProduceRequest(self._id, wire_requests.ALL_IN_SYNC, self._timeout_ms, topics)
        return ProtocolRequest(request, lambda answer: _partition_codes(answer.topics))

    def add_group(self, identity: Identity, group: str) -> ProtocolRequest | None:
        """Returns the request that adds a consumer group to the transaction."""
        return ProtocolRequest(AddOffsetsToTxnRequest(self._id, *identity, group), error_code_of)

    def commit_offsets(self, identity: Identity, group: str, offsets: Offsets) -> ProtocolRequest:
        """Returns the request that commits offsets in the transaction; it goes to the group's coordinator."""
        topics = _group_by_topic((one, (one.partition, offset, "")) for one, offset in offsets.items())
        return ProtocolRequest(TxnOffsetCommitRequest(self._id, group, *identity, topics), _error_codes)

    def end(self, identity: Identity) -> ProtocolRequest:
        """Returns the request that commits the transaction; it goes to the transaction's coordinator."""
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
        return ProtocolRequest(wire_requests.build_produce_request(self._id, self._timeout_ms, batches), tuple)

    def add_group(self, identity: Identity, group: str) -> None:
        """Returns None, because a commit of offsets adds the group to the transaction."""

    def commit_offsets(self, identity: Identity, group: str, offsets: Offsets) -> ProtocolRequest:
        """Returns the request that commits offsets in the transaction."""
        return ProtocolRequest(wire_requests.build_commit_request(self._id, group, identity, offsets), tuple)

    def end(self, identity: Identity) -> ProtocolRequest:
        """Returns the request that commits the transaction."""
        return ProtocolRequest(
            wire_requests.build_end_request(self._id, identity), lambda ended: [(None, ended.error)]
        )

    def next_identity(self, identity: Identity, ended: Any) -> Identity:
        """Returns the identity that the coordinator has assigned in its response."""
        del identity
        return Identity(ended.producer_id, ended.epoch)


def error_code_of(answer: Any) -> Codes:
    """Returns the only error code of a response."""
    return [(None, answer.error_code)]


def _error_codes(answer: Any) -> Codes:
    return _partition_codes(answer.errors)


def _group_by_topic(entries: Iterable[tuple[TopicPartition, Any]]) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for topic_partition, entry in entries:
        topics.setdefault(topic_partition.topic, []).append(entry)
    return list(topics.items())


def _partition_codes(topics: Any) -> Codes:
    return [
        (TopicPartition(topic, figures[0]), figures[1]) for topic, partitions in topics for figures in partitions
    ]


MARKER_PAUSE_SECONDS: Final = 0.002
"""Seconds before the first retry while Kafka writes the last transaction's markers; each retry doubles the pause."""
RETRY_PAUSE_SECONDS: Final = 0.1
"""Seconds before a retry after any other error; also the longest pause for markers."""

METADATA_TIMEOUT_SECONDS: Final = 2.0
"""Longest wait for new metadata; afterwards, the last known leaders are used."""

_PRODUCER_FENCED: Final = 90
_FENCED: Final = frozenset({_PRODUCER_FENCED, errors.InvalidProducerEpoch.errno})
_COORDINATOR_RETRY_CODES: Final = frozenset(
    {
        errors.CoordinatorNotAvailableError.errno,
        errors.NotCoordinatorError.errno,
        errors.RequestTimedOutError.errno,
    }
)
_AUTHORIZATION_ERRORS: Final = frozenset(
    {
        errors.TopicAuthorizationFailedError,
        errors.TransactionalIdAuthorizationFailed,
        errors.GroupAuthorizationFailedError,
    }
)
_DELIVERED_CODES: Final = frozenset({0, errors.DuplicateSequenceNumber.errno})
_PREVIOUS_TRANSACTION_ENDING: Final = errors.ConcurrentTransactions.errno
_NOT_ATTEMPTED: Final = errors.OperationNotAttempted.errno
_MAX_SEQUENCE_NUMBER: Final = 2**31 - 1
_NO_LEADER: Final = -1


class TransactionalProducer:
    """Writes transactions under one transactional id; after an error, call only ``stop``."""

    def __init__(
        self, *, transactional_id: str, transaction_timeout_ms: int, max_batch_size: int, **connection: Any
    ) -> None:
        """Takes the limits of transactions and batches, and aiokafka's connection options."""
        self._id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._batch_bytes = max_batch_size
        self._client = BrokerClient(**connection)
        self._coordinators: dict[int, int] = {}
        self._identity = Identity(-1, -1)
        self._protocol = FirstProtocol(transactional_id, transaction_timeout_ms)
        self._sequences: dict[TopicPartition, int] = {}
        self._added_to_transaction: set[TopicPartition | str] = set()
        """The partitions and groups that have been added to the open transaction."""

    async def start(self) -> None:
        """Fences earlier producers of this id and waits for the end of their transactions.

        KafkaError if Kafka cannot be reached, or refuses.
        """
        await self._client.bootstrap()
        request = InitProducerIdRequest(self._id, self._timeout_ms)
        response = await self._request_coordinator(ProtocolRequest(request, error_code_of))
        self._identity = Identity(response.producer_id, response.producer_epoch)
        if await self._uses_second_protocol():
            self._protocol = SecondProtocol(self._id, self._timeout_ms)

    async def stop(self) -> None:
        """Closes the connections; the next producer of this id will abort an open transaction."""
        await self._client.close()

    def create_batch(self) -> BatchBuilder:
        """Creates an empty batch."""
        return BatchBuilder(self._batch_bytes, 0, is_transactional=1)

    async def write(self, batches: Mapping[TopicPartition, Iterable[Any]]) -> None:
        """Writes each partition's batches in order in the transaction; waits until they are stored.

        KafkaError if a batch is refused, or has not arrived within the transaction's timeout.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                for partition in batches:
                    await self._client._wait_on_metadata(partition.topic)  # noqa: SLF001  (as aiokafka's producer does)
        except TimeoutError:
            raise errors.KafkaTimeoutError from None
        new_partitions = [partition for partition in batches if partition not in self._added_to_transaction]
        if (joining := self._protocol.add_partitions(self._identity, new_partitions)) is not None:
            await self._request_coordinator(joining)
        self._added_to_transaction.update(batches)
        for next_batches in zip_longest(*batches.values()):
            await self._deliver(
                {
                    partition: self._encode_batch(partition, batch)
                    for partition, batch in zip(batches, next_batches, strict=True)
                    if batch is not None
                }
            )

    async def add_offsets(self, offsets: Offsets, group: str) -> None:
        """Commits a group's offsets in the transaction; KafkaError if the offsets are refused."""
        if (joining := self._protocol.add_group(self._identity, group)) is not None:
            await self._request_coordinator(joining)
        self._added_to_transaction.add(group)
        await self._request_coordinator(self._protocol.commit_offsets(self._identity, group, offsets), group)

    async def commit(self) -> None:
        """Commits the transaction if it has writes.

        KafkaError if the transaction was not committed, or its outcome is unknown.
        """
        if not self._added_to_transaction:
            return
        ended = await self._request_coordinator(self._protocol.end(self._identity))
        following = self._protocol.next_identity(self._identity, ended)
        if following != self._identity:
            self._identity, self._sequences = following, {}
        self._added_to_transaction.clear()

    def _encode_batch(self, partition: TopicPartition, batch: Any) -> Encoded:
        """Encodes a batch with its sequence number, by which Kafka detects duplicates."""
        first = self._sequences.get(partition, 0)
        batch._set_producer_state(*self._identity, first)  # noqa: SLF001
        following = first + batch.record_count()
        self._sequences[partition] = following if following <= _MAX_SEQUENCE_NUMBER else following - 2**31
        built: Encoded = batch._build()  # noqa: SLF001
        return built

    async def _deliver(self, batches: dict[TopicPartition, Encoded]) -> None:
        """Sends a batch to each partition; retries until all batches have arrived or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        while True:
            pause = 0.0
            for partition, code in await self._send(batches):
                if code in _DELIVERED_CODES:
                    del batches[partition]
                else:
                    pause = max(pause, _pause_after(code, partition.topic))
            if not batches:
                return
            if loop.time() > deadline:
                raise errors.KafkaTimeoutError
            if pause == RETRY_PAUSE_SECONDS:
                await self._refresh_metadata()
            await asyncio.sleep(pause)

    async def _send(self, batches: Batches) -> list[tuple[TopicPartition, int]]:
        """Sends batches to their leaders; returns each partition's error code."""
        by_node: dict[int, dict[TopicPartition, Encoded]] = {}
        error_codes = []
        for partition, batch in batches.items():
            leader = self._client.cluster.leader_for_partition(partition)
            if leader is None or leader == _NO_LEADER:
                error_codes.append((partition, errors.LeaderNotAvailableError.errno))
            else:
                by_node.setdefault(leader, {})[partition] = batch
        for node_codes in await _gather_all([self._send_to(node, part) for node, part in by_node.items()]):
            error_codes += node_codes
        return error_codes

    async def _send_to(self, node: int, batches: Batches) -> list[tuple[TopicPartition | None, int]]:
        protocol_request = self._protocol.produce(batches)
        try:
            return list(protocol_request.codes(await self._client.send(node, protocol_request.request)))
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            return [(partition, errors.RequestTimedOutError.errno) for partition in batches]

    async def _request_coordinator(self, protocol_request: ProtocolRequest, group: str | None = None) -> Any:
        """Sends a request to the transaction's or a group's coordinator until it succeeds.

        KafkaError if the coordinator refuses, or the transaction's timeout is over.
        """
        kind = CoordinationType.TRANSACTION if group is None else CoordinationType.GROUP
        loop = asyncio.get_running_loop()
        deadline, marker_pause = loop.time() + self._timeout_ms / 1000, MARKER_PAUSE_SECONDS
        while True:
            answer, code, failed_name = await self._ask_coordinator(kind, group or self._id, protocol_request)
            if not code:
                return answer
            wait = _pause_after(code, failed_name)
            if loop.time() > deadline:
                raise _error_of(code, failed_name)
            if code in _COORDINATOR_RETRY_CODES:
                self._coordinators.pop(kind, None)
            if code == _PREVIOUS_TRANSACTION_ENDING:
                wait, marker_pause = marker_pause, min(2 * marker_pause, RETRY_PAUSE_SECONDS)
            await asyncio.sleep(wait)

    async def _ask_coordinator(
        self, kind: int, key: str, protocol_request: ProtocolRequest
    ) -> tuple[Any, int, str]:
        """Returns a coordinator's response, its first error code, and the name that failed.

        The code is 0 if there is no error. The name is a topic's, a group's or the transactional id.
        """
        try:
            node = await self._find_coordinator(kind, key)
            answer = await self._client.send(node, protocol_request.request, group=ConnectionGroup.COORDINATION)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            return None, errors.RequestTimedOutError.errno, key
        for partition, code in protocol_request.codes(answer):
            if code not in {0, _NOT_ATTEMPTED}:
                return answer, code, key if partition is None else partition.topic
        return answer, 0, key

    async def _find_coordinator(self, kind: int, key: str) -> int:
        if (known := self._coordinators.get(kind)) is not None:
            return known
        try:
            node: int = await self._client.coordinator_lookup(kind, key)
        except (errors.NodeNotReadyError, errors.RequestTimedOutError):
            await self._refresh_metadata()
            raise
        self._coordinators[kind] = node
        return node

    async def _refresh_metadata(self) -> None:
        """Updates the cluster's metadata; gives up after ``METADATA_TIMEOUT_SECONDS``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(METADATA_TIMEOUT_SECONDS):
                await self._client.force_metadata_update()

    async def _uses_second_protocol(self) -> bool:
        node = await self._find_coordinator(CoordinationType.TRANSACTION, self._id)
        group = ConnectionGroup.COORDINATION
        try:
            return supports_second_protocol(await self._client.send(node, build_features_request(), group=group))
        except errors.UnsupportedVersionError:
            return False


def _pause_after(code: int, failed_name: str) -> float:
    """Returns the seconds to wait before a retry after an error; KafkaError if the error is permanent."""
    if code == _PREVIOUS_TRANSACTION_ENDING:
        return MARKER_PAUSE_SECONDS
    error = _error_of(code, failed_name)
    if not error.retriable and code not in _COORDINATOR_RETRY_CODES:
        raise error
    return RETRY_PAUSE_SECONDS


def _error_of(code: int, failed_name: str) -> errors.KafkaError:
    """Returns aiokafka's error for a code; if access is denied, its argument is ``failed_name``."""
    if code in _FENCED:
        return errors.ProducerFenced()
    kind = errors.for_code(code)
    return kind(failed_name) if kind in _AUTHORIZATION_ERRORS else kind()


async def _gather_all(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Waits until all awaitables are done, then raises the first error, so that no failure is lost."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
