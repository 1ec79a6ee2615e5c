"""Opens partition sessions: fences the previous owner, restores the state and reports progress."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Self, TypeVar

from aiokafka import TopicPartition

from schemas import PartitionStatus
from stream.diagnostics import get_logger
from stream.engine.health import Metrics, ServiceName
from stream.engine.partition_input import Extent, GroupOffsets, Prefetch, TopicIds, next_offset
from stream.engine.restore import StandbyCopy, create_reader, read_to_end
from stream.engine.writer import OutputBuffer, RecordClock, Writer
from stream.kafka.client.adapter import Clients, Consumer
from stream.kafka.client.broker_connections import unless_stopped
from stream.processing.protocol import Outputs, Processor, RefusingProcessor, TimedProcessor
from stream.settings import Settings

log = get_logger("engine")

Result = TypeVar("Result")

StepName = Literal["resting", "restoring", "waiting", "working", "writing", "pausing"]
"""A task is ``resting`` before its start and after its end, ``waiting`` for Kafka's records or offsets,
and ``pausing`` between a failure and the next attempt."""

STEPS_WAITING_FOR_KAFKA: Final[frozenset[StepName]] = frozenset({"waiting", "writing"})
"""Steps that end soon if Kafka answers. The other steps may take any time."""


class TaskStep:
    """The current step and its start on the monotonic clock."""

    def __init__(self) -> None:
        self.enter("resting")

    def enter(self, name: StepName) -> None:
        """Begin a step; its time starts again even if the step is the same."""
        self.name: StepName = name
        self.since = time.monotonic()


class SessionGuard:
    """Compares restored partitions with witnesses; this base class accepts all partitions."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the guard's tasks after the engine has stopped."""

    async def check(self, partition: int, processor: Processor, consumer: Consumer) -> None:
        """Check a restored partition before it reads input; ``consumer`` sees uncommitted records too.

        Raises:
            InputRefusedError: the partition must not process anything.
        """

    def forget(self, partition: int) -> None:
        """Forget a partition that this process no longer has."""

    def note_committed(self, partition: int, processor: Processor) -> None:
        """Note that all outputs of a partition's processor are committed.

        Raises:
            InputRefusedError: the partition must not process anything more.
        """


@dataclass(frozen=True)
class EngineRole:
    """The processor of an engine and its names in Kafka."""

    name: ServiceName
    group: str
    status_topic: str
    make_processor: Callable[[int], Processor]
    reports_restores: bool = True
    """True if restores are reported on the status topic."""

    max_write_delay: float = 0.0
    """Seconds that a step's output may wait if it goes only to the changelog; 0 if other services read it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Fields of log lines in addition to role and partition, such as the source."""

    guard: SessionGuard = field(default_factory=SessionGuard)
    """Checks each partition before it processes input."""

    process: str = ""
    """The process's name; if it is empty, ``member`` is made of host name and process id."""

    @property
    def member(self) -> str:
        """This process's name in the group and in its reports."""
        return self.process or f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """Return the static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"


class Refusals:
    """Logs each reason why streams are not answered, when it appears."""

    def __init__(self, role: str, partition: int) -> None:
        self._log = log.bind(role=role, partition=partition)
        self._logged_reasons: frozenset[str] = frozenset()

    def report(self, processor: Processor) -> None:
        """Log each new reason with the number of its streams."""
        if not isinstance(processor, RefusingProcessor):
            return
        refusals = processor.refusals()
        for reason, streams in refusals.items():
            if reason not in self._logged_reasons:
                self._log.warning("streams not answered", reason=reason, streams=streams)
        self._logged_reasons = frozenset(refusals)


RESTORE_REPORT_SECONDS = 2.0
"""Seconds between two progress reports of a restore."""


class RestoreReport:
    """Progress of one restore: ``records`` read so far, of at most ``total`` offsets.

    The partition's writer sends each report in a separate transaction, so a task that another
    owner has fenced cannot report.
    """

    def __init__(self, role: EngineRole, partition: int) -> None:
        self.records = 0
        self.total = 0
        self._role = role
        self._partition = partition
        self._began = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the restore began."""
        return time.monotonic() - self._began

    async def send_progress(self, writer: Writer) -> None:
        """Send a report of the progress if one is due."""
        if time.monotonic() - self._reported >= RESTORE_REPORT_SECONDS:
            self._reported = time.monotonic()
            await self.send(writer, "restoring")

    async def send(self, writer: Writer, phase: Literal["restoring", "ready"]) -> None:
        """Send a report if the role reports restores."""
        role = self._role
        if not role.reports_restores:
            return
        status = PartitionStatus(
            role=role.name,
            partition=self._partition,
            member=role.member,
            phase=phase,
            records=self.records,
            total=self.total,
            seconds=round(self.seconds, 3),
        )
        outputs = Outputs()
        key = f"@{role.name}|{self._partition}".encode()
        outputs.add(role.status_topic, self._partition, (key, status.model_dump_json().encode(), ()))
        await writer.commit(outputs, {})


TURN_SECONDS: Final = 0.002
"""Seconds that a partition pauses for each other active partition: twice the time of a small step."""
ACTIVE_SECONDS: Final = 0.05
"""A partition is active if its last step began within this time."""


class PartitionTurns:
    """Spaces out the steps of a process's partitions, so that each step has more records.

    A step costs about as much for one record as for a hundred. So a partition waits, before its next step,
    until each other active partition can have made a step. A single or slow partition never waits.
    """

    def __init__(self) -> None:
        self._step_began_at: dict[int, float] = {}

    def start_step(self, partition: int, now: float) -> None:
        """Record that a partition begins a step at ``now``, in seconds of a monotonic clock."""
        self._step_began_at[partition] = now

    def seconds_to_wait(self, partition: int, now: float) -> float:
        """Return the seconds until a partition should begin its next step."""
        if (begun := self._step_began_at.get(partition)) is None:
            return 0.0
        others = sum(now - last < ACTIVE_SECONDS for last in self._step_began_at.values()) - 1
        return max(0.0, begun + TURN_SECONDS * others - now)


RESTORE_WAIT_MS = 10
"""Longest wait of a restore's fetch at the broker, in milliseconds."""


@dataclass
class PartitionSession:
    """The work on one partition, from a fence to its release or the next failure."""

    processor: Processor
    writer: Writer
    positions: dict[TopicPartition, int]
    offsets: GroupOffsets
    output_buffer: OutputBuffer
    prefetch: Prefetch
    refusals: Refusals
    topic_ids: TopicIds
    without_records_yet: set[TopicPartition] = field(default_factory=set)
    """Partitions from which no record has arrived since the seek."""
    end_requested_at: float = 0.0
    """Time at which the end of the input was last requested."""


@dataclass(frozen=True)
class Equipment:
    """Objects that all partitions of one engine share.

    ``consumer`` is the member of the consumer group. ``offsets_consumer`` sees uncommitted records too, and
    requests high watermarks. ``take_standby_copy`` returns a partition's standby copy, if there is one; it
    must be called after the fence.
    """

    role: EngineRole
    settings: Settings
    clients: Clients
    consumer: Consumer
    offsets_consumer: Consumer
    metrics: Metrics
    take_standby_copy: Callable[[int], StandbyCopy | None] = lambda _: None
    record_clock: RecordClock = field(default_factory=RecordClock)
    clock: Callable[[], float] = time.time
    """Seconds since 1970 on this machine's clock."""
    turns: PartitionTurns = field(default_factory=PartitionTurns)
    threads: Executor | None = None
    """Threads for slow steps, one for each partition, so that no partition waits for another's database."""

    async def run_in_thread(self, step: Callable[..., Result], *arguments: object) -> Result:
        """Run a step in a thread, with the current context."""
        run = partial(copy_context().run, step, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self.threads, run)


@dataclass(frozen=True, eq=False)
class SessionOpener:
    """Opens the sessions of one partition in this process; an order to stop ends the opening."""

    partition: int
    equipment: Equipment
    stopping: asyncio.Event
    step: TaskStep

    async def open_session(self) -> PartitionSession:
        """Fence the predecessor, then restore the state up to the last stable offset.

        An order to stop may end the opening at any point: this session has not written any answers, and
        the next owner fences it.

        Raises:
            Stopped: the order to stop came before the end.
        """
        return await unless_stopped(self.stopping, self._open())

    async def _open(self) -> PartitionSession:
        partition, equipment = self.partition, self.equipment
        role, settings, metrics = equipment.role, equipment.settings, equipment.metrics
        self.step.enter("restoring")
        report = RestoreReport(role, partition)
        transactional_id = role.transactional_id(partition)
        writer = await Writer.fence(
            settings, transactional_id, role.group, equipment.clients, equipment.record_clock
        )
        try:
            copy = equipment.take_standby_copy(partition) or StandbyCopy(role.make_processor(partition))
            processor, is_warm = copy.processor, bool(copy.positions)
            seconds = settings.transaction_timeout_ms / 1000
            topic_ids = TopicIds(equipment.offsets_consumer, seconds, metrics.recreated)
            positions, offsets = await self._restore(processor, copy.positions, report, writer, topic_ids)
            await role.guard.check(partition, processor, equipment.offsets_consumer)
            await report.send(writer, "ready")
            writer.confirm = topic_ids.confirm
        except BaseException:
            await writer.close()
            raise
        metrics.restored.inc(report.records)
        metrics.restore_seconds.observe(report.seconds)
        log.info(
            "partition ready",
            role=role.name,
            partition=partition,
            records=report.records,
            seconds=round(report.seconds, 3),
            warm=is_warm,
        )
        refusals = Refusals(role.name, partition)
        await equipment.run_in_thread(refusals.report, processor)
        changelog = TopicPartition(processor.changelog, partition)
        ahead = not isinstance(processor, TimedProcessor)
        return PartitionSession(
            processor,
            writer,
            positions,
            offsets,
            OutputBuffer(changelog, offsets, role.max_write_delay),
            Prefetch(equipment.consumer, list(positions), settings, self.stopping, ahead=ahead),
            refusals,
            topic_ids,
        )

    async def _restore(
        self,
        processor: Processor,
        copied_to: dict[TopicPartition, int],
        report: RestoreReport,
        writer: Writer,
        topic_ids: TopicIds,
    ) -> tuple[dict[TopicPartition, int], GroupOffsets]:
        """Read the committed records from the offsets ``copied_to`` on; the fence prevents new ones."""
        equipment, settings = self.equipment, self.equipment.settings
        positions: dict[TopicPartition, int] = {}
        # A long wait at one topic's end would delay the fetch of the next topic.
        consumer = create_reader(settings, equipment.clients, fetch_max_wait_ms=RESTORE_WAIT_MS)
        await consumer.start()
        try:
            topic_partitions = [
                TopicPartition(topic, self.partition) for topic in (*processor.lookup_topics, processor.changelog)
            ]
            starts = {**await consumer.beginning_offsets(topic_partitions), **copied_to}
            report.total = sum((await consumer.end_offsets(topic_partitions)).values()) - sum(starts.values())
            for topic_partition in topic_partitions:
                whole, start = topic_partition.topic == processor.changelog, copied_to.get(topic_partition)
                limit = settings.batch_events
                async for records in read_to_end(consumer, topic_partition, limit, start, whole=whole):
                    processor.restore(records)
                    self.step.enter("restoring")
                    report.records += len(records)
                    await report.send_progress(writer)
                positions[topic_partition] = await consumer.position(topic_partition)
        finally:
            await consumer.stop()
        del positions[TopicPartition(processor.changelog, self.partition)]
        # The end of a restore may take seconds, and heartbeats must continue. After an order to stop, the
        # thread continues on a discarded processor.
        changelog_offsets = await equipment.run_in_thread(processor.end_restore)
        offsets = GroupOffsets()
        for topic in processor.inputs:
            topic_partition, known = TopicPartition(topic, self.partition), changelog_offsets.get(topic, 0)
            is_recreated = await topic_ids.compare(processor, topic_partition, known)
            committed = await equipment.consumer.committed(topic_partition)
            beginning = (await equipment.consumer.beginning_offsets([topic_partition]))[topic_partition]
            end = (await equipment.offsets_consumer.end_offsets([topic_partition]))[topic_partition]
            extent = Extent(topic_partition, beginning, end, committed or 0)
            position = beginning if is_recreated else self._resume_at(processor, extent, known)
            positions[topic_partition] = position
            if is_recreated or position > extent.committed:
                offsets.note_answered(topic_partition, position)
        return positions, offsets

    def _resume_at(self, processor: Processor, extent: Extent, changelog_offset: int) -> int:
        self.equipment.metrics.deleted_unread.inc(extent.max_deleted_unread(changelog_offset))
        return next_offset(
            extent, changelog_offset, processor.changelog, repeatable=processor.answers_are_repeatable
        )
