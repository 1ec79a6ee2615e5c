"""How a partition's state comes to life: fence whoever had it, then restore what is committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from aiokafka import TopicPartition

from schemas import PartitionStatus
from stream.engine.input_positions import Extent, GroupOffsets, OutputBuffer, TopicIds, next_offset
from stream.engine.prefetch import Prefetch
from stream.engine.restore import read_to_end, reader
from stream.engine.task_status import EngineRole, Metrics, PartMetrics, ServiceName, TaskStep
from stream.engine.writer import Stamps, Writer
from stream.kafka.client.adapter import Clients, Consumer
from stream.kafka.client.availability import unless_stopped
from stream.log import get_logger
from stream.processing.protocol import Outputs, Processor, Refusing, Timed
from stream.settings import Settings

log = get_logger("engine")


class Refusals:
    """What one life of a partition has told of: each lack is one line, however many streams it stops."""

    def __init__(self, role: str, partition: int) -> None:
        self._log = log.bind(role=role, partition=partition)
        self._told: set[str] = set()

    def tell(self, processor: Processor) -> None:
        """Warn of what is lacking and has not been told yet, with the number of streams that are not answered for it."""
        if not isinstance(processor, Refusing):
            return
        for reason, streams in processor.refusals().items():
            if reason not in self._told:
                self._told.add(reason)
                self._log.warning("streams not answered", reason=reason, streams=streams)


INTERVAL = 2.0
"""Seconds between two reports of one restore."""


class RestoreReport:
    """One restore: ``records`` read so far, of at most ``total`` offsets.

    Reports go out by the partition's own writer, in transactions of their own: whoever has been fenced cannot report.
    """

    def __init__(self, topic: str, role: ServiceName, partition: int, member: str) -> None:
        self.records = 0
        self.total = 0
        self._topic = topic
        self._role = role
        self._partition = partition
        self._member = member
        self._began = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began

    async def progress(self, writer: Writer) -> None:
        """Say how far it is, if it is time to."""
        if time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            await self._write(writer, "restoring")

    async def ready(self, writer: Writer) -> None:
        """Say that it is over."""
        await self._write(writer, "ready")

    async def _write(self, writer: Writer, phase: Literal["restoring", "ready"]) -> None:
        status = PartitionStatus(
            role=self._role,
            partition=self._partition,
            member=self._member,
            phase=phase,
            records=self.records,
            total=self.total,
            seconds=round(self.seconds, 3),
        )
        outputs = Outputs()
        key = f"@{self._role}|{self._partition}".encode()
        outputs.add(self._topic, self._partition, (key, status.model_dump_json().encode(), ()))
        await writer.commit(outputs, {})


TURN_SECONDS: Final = 0.002
"""So long a partition waits for each of the others that are at work: twice what a small step takes."""
AT_WORK_SECONDS: Final = 0.05
"""A partition is at work if it has begun a step within so long."""


class PartitionTurns:
    """When each partition of a process has last begun a step.

    A step costs about as much for one record as for a hundred. Partitions that took each record as it came would keep the processor, and the
    broker's, busy with small steps, and all would wait for it. So each lets the others have a turn before it begins the
    next; what comes meanwhile is taken together. One that is alone, or asked less often than that, never waits.
    """

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    def begin(self, partition: int, now: float) -> None:
        """Note that a partition begins a step, at ``now`` of any clock that does not go back, in seconds."""
        self._begun[partition] = now

    def wait(self, partition: int, now: float) -> float:
        """Seconds until a partition should begin its next step."""
        if (begun := self._begun.get(partition)) is None:
            return 0.0
        others = sum(now - last < AT_WORK_SECONDS for last in self._begun.values()) - 1
        return max(0.0, begun + TURN_SECONDS * others - now)


RESTORE_WAIT_MS = 10
"""Longest wait of a restore's fetch at the broker, in milliseconds."""


@dataclass
class StandbyCopy:
    """A processor in the middle of its restore, and the offsets up to which it has taken its topics in."""

    processor: Processor
    positions: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass
class PartitionSession:
    """What lasts from one fence to the next failure."""

    processor: Processor
    writer: Writer
    positions: dict[TopicPartition, int]
    offsets: GroupOffsets
    gathering: OutputBuffer
    arrivals: Prefetch
    refusals: Refusals
    topic_ids: TopicIds
    sought: set[TopicPartition] = field(default_factory=set)
    """Partitions from which nothing has come since the seek."""
    told: float = 0.0
    """When the end of the input was last asked for."""


@dataclass(frozen=True)
class Equipment:
    """What all partitions of one engine share.

    ``consumer`` is the group's, ``offsets`` an uncommitted reader that is asked for high watermarks; ``inherit`` gives a
    warm copy of a partition where there is one, and is asked after the fence.
    """

    role: EngineRole
    settings: Settings
    clients: Clients
    consumer: Consumer
    offsets: Consumer
    metrics: Metrics | PartMetrics
    inherit: Callable[[int], StandbyCopy | None] = lambda _: None
    stamps: Stamps = field(default_factory=Stamps)
    clock: Callable[[], float] = time.time
    """Seconds since 1970, as this process has them."""
    turns: PartitionTurns = field(default_factory=PartitionTurns)


class SessionOpener:
    """Begins the lives of one partition's state in this process."""

    def __init__(self, partition: int, equipment: Equipment, stopping: asyncio.Event, step: TaskStep) -> None:
        """Take the event that tells the partition's task to stop, and where it says what it does."""
        self._step = step
        self._partition = partition
        self._equipment = equipment
        self._role = equipment.role
        self._settings = equipment.settings
        self._consumer = equipment.consumer
        self._stopping = stopping

    async def begin(self) -> PartitionSession:
        """Fence the predecessor, then rebuild the state from the changelog up to the last stable offset.

        An order to stop ends it wherever it is: nothing has been given to anybody, and whoever begins next fences again.

        Raises:
            Stopped: told to stop before it was done.
        """
        return await unless_stopped(self._stopping, self._begin())

    async def _begin(self) -> PartitionSession:
        role, metrics = self._role, self._equipment.metrics
        self._step.enter("restoring")
        report = RestoreReport(role.status, role.name, self._partition, role.member)
        writer = await Writer.fence(
            self._settings,
            role.transactional_id(self._partition),
            role.group,
            self._equipment.clients,
            self._equipment.stamps,
        )
        try:
            copy = self._equipment.inherit(self._partition)
            processor, read = (copy.processor, copy.positions) if copy else (role.make(self._partition), {})
            seconds = self._settings.transaction_timeout_ms / 1000
            topic_ids = TopicIds(self._equipment.offsets, seconds, metrics.recreated)
            positions, offsets = await self._restore(processor, read, report, writer, topic_ids)
            if role.reports:
                await report.ready(writer)
            writer.confirm = topic_ids.confirm
        except BaseException:
            await writer.close()
            raise
        metrics.restored.inc(report.records)
        metrics.restore_seconds.observe(report.seconds)
        log.info(
            "partition ready",
            role=role.name,
            partition=self._partition,
            records=report.records,
            seconds=round(report.seconds, 3),
            warm=copy is not None,
        )
        refusals = Refusals(role.name, self._partition)
        await asyncio.to_thread(refusals.tell, processor)
        changelog = TopicPartition(processor.changelog, self._partition)
        sources, ahead = list(positions), not isinstance(processor, Timed)
        return PartitionSession(
            processor,
            writer,
            positions,
            offsets,
            OutputBuffer(changelog, offsets, role.patience),
            Prefetch(self._consumer, sources, self._settings, self._stopping, ahead=ahead),
            refusals,
            topic_ids,
        )

    async def _restore(
        self,
        processor: Processor,
        read: dict[TopicPartition, int],
        report: RestoreReport,
        writer: Writer,
        topic_ids: TopicIds,
    ) -> tuple[dict[TopicPartition, int], GroupOffsets]:
        """Take in what is committed and not ``read`` yet: the fence is up, so that nothing more will come."""
        positions: dict[TopicPartition, int] = {}
        # A fetch at one topic's end holds the next topic's up for as long as the broker lets it wait for news.
        consumer = reader(self._settings, self._equipment.clients, fetch_max_wait_ms=RESTORE_WAIT_MS)
        await consumer.start()
        try:
            sources = [
                TopicPartition(topic, self._partition) for topic in (*processor.tables, processor.changelog)
            ]
            starts = {**await consumer.beginning_offsets(sources), **read}
            report.total = sum((await consumer.end_offsets(sources)).values()) - sum(starts.values())
            for source in sources:
                limit, whole = self._settings.batch_events, source.topic == processor.changelog
                async for records in read_to_end(consumer, source, limit, read.get(source), whole=whole):
                    processor.restore(records)
                    self._step.enter("restoring")
                    report.records += len(records)
                    if self._role.reports:
                        await report.progress(writer)
                positions[source] = await consumer.position(source)
        finally:
            await consumer.stop()
        del positions[TopicPartition(processor.changelog, self._partition)]
        # Definitions may load tables, which takes seconds: heartbeats must go on. Nothing stops a thread: after an order to
        # stop it goes on with a processor that nobody has any more.
        reached = await asyncio.to_thread(processor.restored)
        offsets = GroupOffsets()
        for topic in processor.inputs:
            source, known = TopicPartition(topic, self._partition), reached.get(topic, 0)
            is_another = await topic_ids.compare(processor, source, known)
            extent = await self._extent(source)
            following = extent.beginning if is_another else self._resume_at(processor, extent, known)
            positions[source] = following
            if is_another or following > extent.committed:
                offsets.reach(source, following)
        return positions, offsets

    async def _extent(self, source: TopicPartition) -> Extent:
        committed = await self._consumer.committed(source)
        beginning = (await self._consumer.beginning_offsets([source]))[source]
        end = (await self._equipment.offsets.end_offsets([source]))[source]
        return Extent(source, beginning, end, committed or 0)

    def _resume_at(self, processor: Processor, extent: Extent, reached: int) -> int:
        self._equipment.metrics.gone.inc(extent.gone(reached))
        return next_offset(extent, reached, processor.changelog, repeatable=processor.repeatable)
