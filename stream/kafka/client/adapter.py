"""Defines the Kafka clients that the engine needs, and implements them with aiokafka."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import NodeNotReadyError, UnsupportedVersionError, for_code

from stream.kafka.client import batch_reader
from stream.kafka.client.client_patches import GroupObserver, KafkaConsumer
from stream.kafka.client.transactional_producer import TransactionalProducer
from stream.kafka.client.wire_requests import TopicId, build_topic_ids_request

Offsets = Mapping[TopicPartition, int]
Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_NO_LEADER: Final = -1


class Consumer(Protocol):
    """The methods of ``aiokafka.AIOKafkaConsumer`` that the engine uses."""

    @property
    def member_id(self) -> str: ...  # noqa: D102
    @property
    def displaced(self) -> bool: ...  # noqa: D102
    @property
    def session_refused(self) -> bool: ...  # noqa: D102
    async def start(self) -> None: ...  # noqa: D102
    async def stop(self) -> None: ...  # noqa: D102
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
    def subscribe(self, topics: Iterable[str], *, listener: ConsumerRebalanceListener) -> None: ...  # noqa: D102
    def assign(self, partitions: Iterable[TopicPartition]) -> None: ...  # noqa: D102
    def pause(self, *partitions: TopicPartition) -> None: ...  # noqa: D102
    def resume(self, *partitions: TopicPartition) -> None: ...  # noqa: D102
    def seek(self, partition: TopicPartition, offset: int) -> None: ...  # noqa: D102
    async def seek_to_beginning(self, *partitions: TopicPartition) -> Any: ...  # noqa: D102
    def highwater(self, partition: TopicPartition) -> int | None: ...  # noqa: D102
    async def position(self, partition: TopicPartition) -> int: ...  # noqa: D102
    async def committed(self, partition: TopicPartition) -> int | None: ...  # noqa: D102
    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets: ...  # noqa: D102
    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets: ...  # noqa: D102
    async def topic_id(self, partition: TopicPartition) -> str: ...  # noqa: D102
    async def getmany(  # noqa: D102
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Fetched: ...


class Producer(Protocol):
    """The methods of ``TransactionalProducer`` that the writer uses."""

    async def start(self) -> None: ...  # noqa: D102
    async def stop(self) -> None: ...  # noqa: D102
    def create_batch(self) -> Any: ...  # noqa: D102
    async def write(self, batches: Mapping[TopicPartition, Iterable[Any]]) -> None: ...  # noqa: D102
    async def add_offsets(self, offsets: Offsets, group: str) -> None: ...  # noqa: D102
    async def commit(self) -> None: ...  # noqa: D102


class Observer(Protocol):
    """A client that lists the members of a group, such as ``GroupObserver``."""

    async def members(self, group: str) -> frozenset[str]: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Clients:
    """Functions that create a process's clients; they take aiokafka's options by name."""

    consumer: Callable[..., Consumer]
    producer: Callable[..., Producer]
    observer: Callable[..., Observer]


class _Consumer(KafkaConsumer):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's consumer with the state of its group membership."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    @property
    def member_id(self) -> str:
        """The consumer's id in its group; empty without a group."""
        return str(self._coordinator.member_id) if self._coordinator is not None else ""

    @property
    def displaced(self) -> bool:
        """True if another process has joined the group under the same instance id."""
        return bool(getattr(self._coordinator, "displaced", False))

    @property
    def session_refused(self) -> bool:
        """True if the group refuses the session timeout."""
        return bool(getattr(self._coordinator, "session_refused", False))

    def skip_batches(self, searched_bytes: Callable[[int], Collection[bytes] | None]) -> None:
        """Skips batches without any of the byte strings that ``searched_bytes`` returns for the partition.

        If the function returns None, all batches of the partition are read.
        """
        self._fetcher.searched_bytes = searched_bytes

    async def topic_id(self, partition: TopicPartition) -> str:
        """Asks a partition's leader for the topic id; empty if the cluster has none.

        The leader is asked because other brokers may still have the id of a deleted topic. KafkaError if Kafka
        does not answer or does not know the topic.
        """
        client = self._client
        if (node := client.cluster.leader_for_partition(partition)) is None or node == _NO_LEADER:
            node = client.get_random_node()
        if node is None:
            raise NodeNotReadyError
        try:
            answer = await client.send(node, build_topic_ids_request([partition.topic]))
        except UnsupportedVersionError:
            return ""
        found: TopicId = answer[partition.topic]
        if found.error:
            raise for_code(found.error)
        return found.topic_id


batch_reader.install()

KAFKA = Clients(_Consumer, TransactionalProducer, GroupObserver)
