"""What has come for a partition becomes answers, batch by batch, each in one transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from aiokafka import ConsumerRecord, TopicPartition

from stream.engine.restore import readable, tell_of_unread
from stream.engine.session import Equipment, PartitionSession
from stream.engine.task_status import InputPlace, PartitionHealth, TaskStep
from stream.kafka.client.adapter import Fetched
from stream.log import get_logger
from stream.processing.protocol import InputRefusedError, Outputs, TableMissedError
from stream.tracing import batch_span

TABLES_WAIT = 5.0
"""Longest wait, in seconds, for a control event that may be on its way when a query names an unknown stream."""
TABLES_WAIT_MS = 50
"""Longest wait of one fetch of it, in milliseconds."""

Result = TypeVar("Result")


class InputWentBackError(RuntimeError):
    """An input topic was recreated or cut while it was being read."""


class ProcessingError(RuntimeError):
    """The processor failed at a record, or at a batch that begins with it; the cause says how."""

    def __init__(self, place: InputPlace) -> None:
        super().__init__(str(place))
        self.place = place


class BatchLoop:
    """Answers the records of one partition, over all lives of its state.

    Processors refuse what is wrong with a record. Any other error is a fault of Sotto or of its surroundings: it fails the
    task, which tries again from the last commit, so that no valid question is refused and none behind it is taken in.
    """

    def __init__(
        self,
        partition: int,
        equipment: Equipment,
        stopping: asyncio.Event,
        step: TaskStep,
        health: PartitionHealth,
    ) -> None:
        """Take the event that tells the partition's task to stop, and where it says what it does and how it gets on."""
        self._partition = partition
        self._role = equipment.role
        self._offsets = equipment.offsets
        self._metrics = equipment.metrics
        self._stopping = stopping
        self._step = step
        self._health = health
        self._failed: dict[TopicPartition, int] = {}
        """The last offset of the batches that failed. Their records are taken one by one, so that the log names the one that fails."""
        self._log = get_logger("engine").bind(role=self._role.name, partition=partition)

    async def take(self, life: PartitionSession, sources: Sequence[TopicPartition], wait_ms: int) -> Fetched:
        """Take what has come of some topics, or what comes next within a wait."""
        self._step.enter("waiting")
        return await life.arrivals.take(sources, wait_ms)

    async def follow(
        self, life: PartitionSession, table: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        """Take in what a table says anew."""
        if news := self._news(life, table, records):
            self._step.enter("working")
            await self.commit(
                life, await asyncio.to_thread(life.processor.follow, readable(news, self._metrics.unread))
            )
            life.positions[table] = news[-1].offset + 1
            # All streams may lack something: to look at a million takes as long as a batch.
            await asyncio.to_thread(life.refusals.tell, life.processor)

    async def answer(
        self, life: PartitionSession, source: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        """Answer a batch step by step, each in a transaction of its own; between two, hear what control says.

        An order to stop leaves the rest to the successor, or to the next seek.
        """
        records = self._news(life, source, records)
        tables = [TopicPartition(topic, self._partition) for topic in life.processor.tables]
        while records:
            count = await self._portion(life, source, records)
            await self._answer_portion(life, source, records[:count])
            if records := records[count:]:
                for table, news in (await self.take(life, tables, 0)).items():
                    await self.follow(life, table, news)
                if self._stopping.is_set():
                    return

    async def commit(self, life: PartitionSession, outputs: Outputs, *, idle: bool = False) -> None:
        """Commit what is due of these outputs and of those that waited."""
        if (due := life.gathering.due(outputs, time.monotonic(), idle=idle)) is not None:
            self._step.enter("writing")
            await life.writer.commit(*due)

    def _news(
        self,
        life: PartitionSession,
        source: TopicPartition,
        records: Sequence[ConsumerRecord],
    ) -> Sequence[ConsumerRecord]:
        """Records not seen yet: aiokafka may have started fetching from an older offset before our seek."""
        if not records:
            return records
        position = life.positions[source]
        if records[0].offset >= position:
            life.sought.discard(source)
            return records
        if source not in life.sought:
            raise InputWentBackError(f"{source.topic} went back from offset {position} to {records[0].offset}")
        return [record for record in records if record.offset >= position]

    async def _portion(
        self, life: PartitionSession, source: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> int:
        """Return how many records the next transaction takes: one by one up to the end of a batch that failed."""
        if records[0].offset <= self._failed.get(source, -1):
            return 1
        self._failed.pop(source, None)
        return await self._in_time(life, life.processor.portion, records)

    async def _answer_portion(
        self, life: PartitionSession, source: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        began = time.monotonic()
        tell_of_unread(records, self._metrics.unread)
        place = {"messaging.destination.name": source.topic, "messaging.destination.partition.id": self._partition}
        with batch_span(f"{self._role.name} answers", records, place):
            await self._finish(life, source, await self._process(life, records), records[-1].offset + 1)
        self._metrics.events.inc(len(records))
        self._metrics.batch_seconds.observe(time.monotonic() - began)

    async def _process(self, life: PartitionSession, records: Sequence[ConsumerRecord]) -> Outputs:
        if await self._in_time(life, life.processor.needs_tables, records):
            await self._follow_to_end(life)
        return await self._in_time(life, life.processor.process, records)

    async def _in_time(
        self,
        life: PartitionSession,
        step: Callable[[Sequence[ConsumerRecord]], Result],
        records: Sequence[ConsumerRecord],
    ) -> Result:
        """Take a step of the processor, beside the heartbeats if it may take longer than they can wait."""
        self._step.enter("working")
        try:
            return await asyncio.to_thread(step, records) if life.processor.heavy else step(records)
        except (TableMissedError, InputRefusedError):
            raise
        except Exception as error:
            last = records[-1]
            source = TopicPartition(last.topic, last.partition)
            self._failed[source] = max(self._failed.get(source, -1), last.offset)
            raise ProcessingError(InputPlace(source, records[0].offset)) from error

    async def _finish(
        self, life: PartitionSession, source: TopicPartition, outputs: Outputs, following: int
    ) -> None:
        life.offsets.reach(source, following)
        await self.commit(life, outputs)
        self._metrics.busy.inc(outputs.busy)
        life.positions[source] = following
        self._health.went_on(source, following)

    async def _follow_to_end(self, life: PartitionSession) -> None:
        """Catch up with the tables' high watermark before a query is told that its stream is unknown.

        An asker that saw its stream granted may ask before the commit marker has reached the control partition.
        """
        tables = [TopicPartition(topic, self._partition) for topic in life.processor.tables]
        self._step.enter("waiting")
        ends = await self._offsets.end_offsets(tables)
        deadline = time.monotonic() + TABLES_WAIT
        while time.monotonic() < deadline:
            behind = [table for table in tables if not await life.arrivals.has_reached(table, ends[table])]
            if not behind:
                return
            fetched = await self.take(life, behind, TABLES_WAIT_MS)
            for table, records in fetched.items():
                await self.follow(life, table, records)
