"""How a partition's state comes to life: fence whoever had it, then restore what is committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from stream.kafka.arrivals import Arrivals
from stream.kafka.clients import Clients, Consumer
from stream.kafka.gathering import Gathering
from stream.kafka.metrics import Metrics, PartMetrics
from stream.kafka.positions import Extent, GroupOffsets, next_offset
from stream.kafka.refusals import Refusals
from stream.kafka.reports import RestoreReport
from stream.kafka.restore import read_to_end, reader
from stream.kafka.roles import Role
from stream.kafka.stamps import Stamps
from stream.kafka.starting import unless_stopped
from stream.kafka.steps import Step
from stream.kafka.topic_ids import TopicIds
from stream.kafka.turns import Turns
from stream.kafka.writer import Writer
from stream.log import get_logger
from stream.processors.base import Processor, Timed
from stream.settings import Settings

RESTORE_WAIT_MS = 10
"""Longest wait of a restore's fetch at the broker, in milliseconds."""

log = get_logger("engine")


@dataclass
class Copy:
    """A processor in the middle of its restore, and the offsets up to which it has taken its topics in."""

    processor: Processor
    positions: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass
class Life:
    """What lasts from one fence to the next failure."""

    processor: Processor
    writer: Writer
    positions: dict[TopicPartition, int]
    offsets: GroupOffsets
    gathering: Gathering
    arrivals: Arrivals
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

    role: Role
    settings: Settings
    clients: Clients
    consumer: Consumer
    offsets: Consumer
    metrics: Metrics | PartMetrics
    inherit: Callable[[int], Copy | None] = lambda _: None
    stamps: Stamps = field(default_factory=Stamps)
    clock: Callable[[], float] = time.time
    """Seconds since 1970, as this process has them."""
    turns: Turns = field(default_factory=Turns)


class Lives:
    """Begins the lives of one partition's state in this process."""

    def __init__(self, partition: int, equipment: Equipment, stopping: asyncio.Event, step: Step) -> None:
        """Take the event that tells the partition's task to stop, and where it says what it does."""
        self._step = step
        self._partition = partition
        self._equipment = equipment
        self._role = equipment.role
        self._settings = equipment.settings
        self._consumer = equipment.consumer
        self._stopping = stopping

    async def begin(self) -> Life:
        """Fence the predecessor, then rebuild the state from the changelog up to the last stable offset.

        An order to stop ends it wherever it is: nothing has been given to anybody, and whoever begins next fences again.

        Raises:
            Stopped: told to stop before it was done.
        """
        return await unless_stopped(self._stopping, self._begin())

    async def _begin(self) -> Life:
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
        return Life(
            processor,
            writer,
            positions,
            offsets,
            Gathering(changelog, offsets, role.patience),
            Arrivals(self._consumer, sources, self._settings, self._stopping, ahead=ahead),
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
