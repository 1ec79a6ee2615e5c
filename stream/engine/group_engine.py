"""The engine: a member of a consumer group that runs one task per input partition."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from stream.diagnostics import LoggableError, get_logger
from stream.engine.health import EngineHealth, ServiceHealth
from stream.engine.partition_task import PartitionTask
from stream.engine.restore import FETCH_BYTES, Standby, create_reader
from stream.engine.session import EngineRole, Equipment
from stream.engine.supervision import Membership, StalledError, Supervision
from stream.engine.writer import RecordClock
from stream.formatting import format_count
from stream.kafka.client.adapter import KAFKA, Clients
from stream.kafka.client.broker_connections import (
    Stopped,
    connection_options,
    describe_error,
    retry_until_available,
)
from stream.kafka.topic_layouts import PARTITIONS_REMEDY
from stream.processing.protocol import Processor
from stream.settings import Settings


class KnownRanges(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka is not typed
    """Assigns the first ``partition_count`` partitions in ranges, and later partitions in other ranges.

    If only an input topic got more partitions, ranges over all partitions would give partition n of the input
    and partition n of a lookup topic to different members. The assignor keeps the name of Kafka's range
    assignor, because members of earlier versions support no other assignor.
    """

    def __init__(self, partition_count: int) -> None:
        self._partition_count = partition_count

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the assignment of each member."""
        parts = [
            RangePartitionAssignor.assign(_ClusterSubset(cluster, numbers), members)
            for numbers in (range(self._partition_count), range(self._partition_count, 1 << 31))
        ]
        assigned = {}
        for member in members:
            topics: dict[str, list[int]] = {}
            for part in parts:
                for topic, numbers in part[member].assignment:
                    topics.setdefault(topic, []).extend(numbers)
            assigned[member] = ConsumerProtocolMemberAssignment(self.version, sorted(topics.items()), b"")
        return assigned


class _ClusterSubset:
    def __init__(self, cluster: Any, numbers: range) -> None:
        self._cluster = cluster
        self._numbers = numbers

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        found = self._cluster.partitions_for_topic(topic)
        return None if found is None else {number for number in found if number in self._numbers}


POLL_INTERVAL_MS: Final = math.inf
"""No limit on the time between two fetches of a group member; ``Supervision`` finds members that hang.

A member without partitions fetches nothing, and a batch may take any time.
"""

METADATA_MS: Final = 5_000
"""Longest age of topic metadata before a refresh; aiokafka's default of five minutes is too long.

While a topic is missing, its partitions are assigned to no member. The limit bounds the delay until
a group notices that the topic is back or has more partitions.
"""

log = get_logger("engine")


class Engine:
    """Runs a role's processor on the partitions that the group assigns to this process.

    The input topics and lookup topics of a role have equal partition counts, and the assignor gives
    partitions of equal number to one member. Partitions that are added while the engine runs are refused.
    """

    def __init__(
        self,
        role: EngineRole,
        settings: Settings,
        topics: Iterable[str],
        clients: Clients = KAFKA,
        *,
        partitions: int,
        copies: bool = True,
        remedy: str = PARTITIONS_REMEDY,
        stops_if_topics_grow: bool = False,
        health: ServiceHealth | EngineHealth | None = None,
        record_clock: RecordClock | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``copies`` allows standby copies; ``remedy`` is the end of the refusal of partitions that are added later."""
        self.role = role
        self._settings = settings
        self._topics = list(topics)
        self._clients = clients
        self.health = health or ServiceHealth(role.name)
        self.metrics = self.health.metrics
        self._partition_count = partitions
        self._remedy = remedy
        self._stops_if_topics_grow = stops_if_topics_grow
        self._standby = Standby(role.make_processor, settings, partitions if copies else 0, clients)
        self._record_clock = record_clock or RecordClock()
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._partitions: dict[int, PartitionTask] = {}
        self._stopping = asyncio.Event()
        self._stopping_tasks = 0
        self.refused: set[int] = set()
        """Assigned partitions that at least one topic did not have when this engine began."""
        self.refusal = ""
        """Reason and remedy for the refused partitions."""
        self.broken: Exception | None = None
        """The error of a failed rebalance."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called before ``run`` raises, because the cleanup may hang too."""

    def stop(self) -> None:
        """Finish the current batches, leave the group and return from ``run``."""
        self._stopping.set()

    def processors(self) -> list[Processor]:
        """Return the processor of each partition that has a session."""
        return [session.processor for one in self._partitions.values() if (session := one.session) is not None]

    def count_unread(self) -> int:
        """Return the number of unprocessed input records in the assigned partitions."""
        return sum(self._partitions[number].unread_count for number in self._tasks)

    async def run(self) -> None:
        """Join the group as soon as Kafka is reachable, and run tasks until stopped.

        Raises:
            MembershipLostError: this process lost its group membership and did not regain it.
            RefusedTimeError: a time in the settings is outside the brokers' bounds.
            StalledError: a partition's task hangs, or was cancelled.
        """
        settings = self._settings
        consumer = self._clients.consumer(
            **connection_options(settings),
            group_id=self.role.group,
            group_instance_id=settings.instance or None,
            client_id=self.role.member,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            partition_assignment_strategy=[KnownRanges(self._partition_count)],
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            max_partition_fetch_bytes=settings.fetch_bytes,
            fetch_max_bytes=max(settings.fetch_bytes, FETCH_BYTES),
            fetch_max_wait_ms=100,
            metadata_max_age_ms=METADATA_MS,
        )
        offsets = create_reader(settings, self._clients, isolation_level="read_uncommitted")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.role.guard)
            for client in (offsets, consumer):
                stack.push_async_callback(client.stop)
                try:
                    await retry_until_available(client.start, self._stopping, self.health.set_not_ready_reason)
                except Stopped:
                    return
            await stack.enter_async_context(self._standby)
            threads = ThreadPoolExecutor(self._partition_count + 1, thread_name_prefix=self.role.name)
            stack.callback(threads.shutdown, wait=False)
            equipment = Equipment(
                self.role,
                settings,
                self._clients,
                consumer,
                offsets,
                self.metrics,
                self._standby.take_standby_copy,
                self._record_clock,
                self._clock,
                threads=threads,
            )
            consumer.subscribe(self._topics, listener=_Listener(self, equipment))
            log.info("joined", role=self.role.name, group=self.role.group)
            membership = Membership(self.role, settings, consumer, self._clients, lambda: self._stopping_tasks > 0)
            try:
                await self._supervise(membership)
            except Exception as error:
                reason = str(error) if isinstance(error, LoggableError) else type(error).__name__
                if isinstance(error, KafkaError):
                    reason = describe_error(error)
                log.error("engine ends", role=self.role.name, reason=reason)  # noqa: TRY400  (no message of another error)
                self.on_failure()
                raise
            await self.stop_partitions(self._partitions)
            await self.drop_partitions(self._partitions)
        log.info("left", role=self.role.name)

    async def _supervise(self, membership: Membership) -> None:
        """Wait for the order to stop; raise if a task dies, so that other processes take over."""
        supervision = Supervision(self.role.name, membership, self.health)
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(membership.watch())
        try:
            while not stopping.done():
                # `stop_partitions` keeps stopped tasks in `_tasks` until all have stopped, and waiting for one would return at once.
                tasks = [task for task in self._tasks.values() if not task.done()]
                await asyncio.wait({stopping, watching, *tasks}, timeout=1.0, return_when="FIRST_COMPLETED")
                if watching.done():
                    watching.result()
                for partition, task in list(self._tasks.items()):
                    if task.cancelled():
                        raise StalledError(
                            f"partition {partition}'s task was cancelled from within; this process ends, and its "
                            "supervisor must restart it"
                        )
                    if task.done() and (error := task.exception()):
                        log.error("partition task died", partition=partition, error=type(error).__name__)
                        raise error
                if self.broken is not None:
                    raise self.broken
                supervision.check_tasks(self._partitions.values(), self.refused, self.refusal)
        finally:
            stopping.cancel()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self.health.set_not_ready_reason(f"this {self.role.name} is leaving its group")

    async def stop_partitions(self, partitions: Iterable[int]) -> None:
        """Stop tasks at their next batch boundary and keep their state.

        Each task stays in ``_tasks`` until all have stopped, so that a rebalance during shutdown
        neither resumes it nor drops its state.
        """
        leaving = [partition for partition in partitions if partition in self._tasks]
        for partition in leaving:
            self._partitions[partition].stop()
        self._stopping_tasks += 1
        try:
            await asyncio.gather(*(self._tasks[partition] for partition in leaving), return_exceptions=True)
        finally:
            self._stopping_tasks -= 1
        for partition in leaving:
            self._tasks.pop(partition, None)
        self.metrics.partitions.set(len(self._tasks))

    async def drop_partitions(self, partitions: Iterable[int]) -> None:
        """Drop the state of parked partitions; when this process stops, its guard keeps its facts about them."""
        gone = [self._partitions.pop(partition) for partition in list(partitions) if partition not in self._tasks]
        for task in () if self._stopping.is_set() else gone:
            self.role.guard.forget(task.partition)
        await asyncio.gather(*(partition.close() for partition in gone), return_exceptions=True)

    def refuse_unknown(self, assigned: Iterable[TopicPartition]) -> set[int]:
        """Return the assigned partitions to work on, and refuse the others."""
        beyond = sorted(
            topic_partition for topic_partition in assigned if topic_partition.partition >= self._partition_count
        )
        self.refused = {topic_partition.partition for topic_partition in beyond}
        self.refusal = ""
        if beyond:
            named = ", ".join(
                f"{topic_partition.partition} of {topic_partition.topic}" for topic_partition in beyond
            )
            self.refusal = (
                f"this {self.role.name}'s topics all had {format_count(self._partition_count, 'partition')} when it began; it refuses later "
                f"ones: {named}; {self._remedy}"
            )
            log.error("partitions refused", role=self.role.name, reason=self.refusal)
            if self._stops_if_topics_grow:
                self.stop()
        return {topic_partition.partition for topic_partition in assigned} - self.refused

    async def start_partitions(self, partitions: set[int], equipment: Equipment) -> None:
        """Start or resume the assigned partitions and drop all others."""
        await self.drop_partitions(set(self._partitions) - partitions)
        if self._stopping.is_set():
            return  # a rebalance during shutdown
        for number in sorted(partitions):
            partition = self._partitions.get(number)
            if partition is None:
                partition = self._partitions[number] = PartitionTask(number, equipment)
            self._tasks[number] = partition.resume()
        self._standby.copy_neighbors(partitions)
        self.metrics.partitions.set(len(self._tasks))
        log.info("assigned", role=self.role.name, partitions=sorted(partitions))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    def __init__(self, engine: Engine, equipment: Equipment) -> None:
        self._engine = engine
        self._equipment = equipment

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        with self._record_error():
            await self._engine.stop_partitions({topic_partition.partition for topic_partition in revoked})

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        with self._record_error():
            # Fetching starts after the task has fenced, restored and set the positions.
            self._equipment.consumer.pause(*assigned)
            await self._engine.start_partitions(self._engine.refuse_unknown(assigned), self._equipment)

    @contextmanager
    def _record_error(self) -> Iterator[None]:
        """Keep an error for the engine, because aiokafka ignores errors of its listener and stays in the group."""
        try:
            yield
        except Exception as error:
            self._engine.broken = error
            raise
