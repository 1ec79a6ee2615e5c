"""The engine: a member of a consumer group that runs one task per input partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from stream.kafka.clients import KAFKA, Clients
from stream.kafka.lives import Equipment
from stream.kafka.metrics import Metrics
from stream.kafka.partition import PartitionTask
from stream.kafka.restore import reader
from stream.kafka.roles import Role
from stream.kafka.security import connection
from stream.kafka.standby import Standby
from stream.log import get_logger
from stream.settings import Settings

log = get_logger("engine")


class Engine:
    """Runs a role's processor on the partitions that the group gives to this process, until cancelled or stopped.

    All input and table topics of a role have equal partition counts; the range assignor gives the same numbers of each
    to the same member.
    """

    def __init__(
        self,
        role: Role,
        settings: Settings,
        topics: Iterable[str],
        clients: Clients = KAFKA,
        *,
        partitions: int = 0,
    ) -> None:
        """Take the role's input and table topics, and of how many partitions warm copies may be kept."""
        self._role = role
        self._settings = settings
        self._topics = list(topics)
        self._clients = clients
        self.metrics = Metrics(role.name)
        self._standby = Standby(role, settings, partitions, clients)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._partitions: dict[int, PartitionTask] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the batches in hand, leave the group, and return from ``run``."""
        self._stopping.set()

    async def run(self) -> None:
        """Join the group and work."""
        settings = self._settings
        consumer = self._clients.consumer(
            **connection(settings),
            group_id=self._role.group,
            client_id=self._role.member,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_partition_fetch_bytes=settings.fetch_bytes,
            fetch_max_wait_ms=100,
        )
        offsets = reader(settings, self._clients, isolation_level="read_uncommitted")
        self.metrics.serve(settings.metrics_host, settings.metrics_port)
        async with offsets, consumer, self._standby:
            equipment = Equipment(
                self._role, settings, self._clients, consumer, offsets, self.metrics, self._standby.take
            )
            consumer.subscribe(self._topics, listener=_Listener(self, equipment))
            log.info("joined", role=self._role.name, group=self._role.group)
            await self._supervise()
            await self.park(self._partitions)
            await self.discard(self._partitions)
        log.info("left", role=self._role.name)

    async def _supervise(self) -> None:
        """Wait for the order to stop; a partition's task that died takes the process down, for others to take over."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not stopping.done():
                await asyncio.wait({stopping, *self._tasks.values()}, timeout=1.0, return_when="FIRST_COMPLETED")
                for partition, task in list(self._tasks.items()):
                    if task.done() and not task.cancelled() and (error := task.exception()):
                        log.error("partition task died", partition=partition, error=type(error).__name__)
                        raise error
        finally:
            stopping.cancel()

    async def park(self, partitions: Iterable[int]) -> None:
        """Stop tasks at their next batch boundary, keeping their state for a quick return."""
        leaving = [partition for partition in partitions if partition in self._tasks]
        for partition in leaving:
            self._partitions[partition].stop()
        await asyncio.gather(*(self._tasks.pop(partition) for partition in leaving), return_exceptions=True)
        self.metrics.partitions.set(len(self._tasks))

    async def discard(self, partitions: Iterable[int]) -> None:
        """Drop the state of parked partitions."""
        gone = [self._partitions.pop(partition) for partition in list(partitions) if partition not in self._tasks]
        await asyncio.gather(*(partition.close() for partition in gone), return_exceptions=True)

    async def take(self, partitions: set[int], equipment: Equipment) -> None:
        """Start or resume the partitions assigned, and drop those that went elsewhere."""
        await self.discard(set(self._partitions) - partitions)
        if self._stopping.is_set():
            return  # A rebalance came between the order to stop and leaving the group.
        for number in sorted(partitions):
            partition = self._partitions.get(number)
            if partition is None:
                partition = self._partitions[number] = PartitionTask(number, equipment)
            self._tasks[number] = partition.resume()
        self._standby.follow(partitions)
        self.metrics.partitions.set(len(self._tasks))
        log.info("assigned", role=self._role.name, partitions=sorted(partitions))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    def __init__(self, engine: Engine, equipment: Equipment) -> None:
        self._engine = engine
        self._equipment = equipment

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._engine.park({source.partition for source in revoked})

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        # Nothing is read before the task has fenced, restored and sought.
        self._equipment.consumer.pause(*assigned)
        await self._engine.take({source.partition for source in assigned}, self._equipment)
