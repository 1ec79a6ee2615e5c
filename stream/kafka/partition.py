"""One input partition: fence, restore, then answer batch by batch, each in one transaction."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from stream.kafka.metrics import Metrics
from stream.kafka.restore import read_to_end, reader
from stream.kafka.writer import Writer
from stream.log import get_logger
from stream.processors.base import Outputs, Processor
from stream.settings import Settings

IDLE_MS = 200
"""Longest wait for input before the clock's turn, in milliseconds."""
TABLES_WAIT = 5.0
"""Longest wait, in seconds, for a control event that may be on its way when a query names an unknown stream."""
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between tries after failures in a row."""

log = get_logger("engine")


@dataclass(frozen=True)
class Role:
    """Which processor an engine runs, and under which names Kafka knows it."""

    name: str
    group: str
    make: Callable[[int], Processor]

    def transactional_id(self, partition: int) -> str:
        """The static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"


@dataclass
class _Life:
    """What lasts from one fence to the next failure."""

    processor: Processor
    writer: Writer
    positions: dict[TopicPartition, int]
    sought: set[TopicPartition] = field(default_factory=set)
    """Partitions from which nothing has come since the seek."""


class InputWentBackError(RuntimeError):
    """An input topic was recreated or cut while it was being read."""


class _Stopped(Exception):  # noqa: N818  (an order, not an error)
    """Told to stop in the middle of a restore: what is restored so far is of no use."""


class PartitionTask:
    """Runs one partition until told to stop. State lives in memory only between a fence and the next failure."""

    def __init__(
        self,
        partition: int,
        role: Role,
        settings: Settings,
        consumer: AIOKafkaConsumer,
        offsets: AIOKafkaConsumer,
        metrics: Metrics,
    ) -> None:
        """Take the group's consumer, and ``offsets``, an uncommitted reader that is asked for high watermarks."""
        self.partition = partition
        self._role = role
        self._settings = settings
        self._consumer = consumer
        self._offsets = offsets
        self._metrics = metrics
        self._life: _Life | None = None
        self._stopping = asyncio.Event()
        self._failures = 0
        self._suspects: dict[TopicPartition, int] = {}
        self._poison: dict[TopicPartition, set[int]] = {}
        self._log = log.bind(role=role.name, partition=partition)

    def resume(self) -> asyncio.Task[None]:
        """Start, or go on after ``stop`` with what is in memory: if another owner came between, its fence tells."""
        self._stopping.clear()
        return asyncio.create_task(self._run(), name=f"{self._role.name}-{self.partition}")

    def stop(self) -> None:
        """Ask for an end at the next batch boundary."""
        self._stopping.set()

    async def close(self) -> None:
        """Drop what is in memory."""
        life, self._life = self._life, None
        if life is not None:
            await life.writer.close()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._life is None:
                    self._life = await self._begin()
                self._seek(self._life)
                await self._loop(self._life)
            except asyncio.CancelledError:
                await self.close()
                raise
            except _Stopped:
                return
            except Exception as error:  # noqa: BLE001  (whatever it is, the answer is to drop the state and fence)
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        self._metrics.failures.inc()
        fenced = isinstance(error, ProducerFenced)
        known = isinstance(error, KafkaError | InputWentBackError)
        # An unforeseen error's message might quote private data: where it was raised is all that is logged of it.
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        detail = str(error)[:200] if known else [f"{frame.filename}:{frame.lineno}" for frame in frames]
        self._log.warning("partition starts over", error=type(error).__name__, detail=detail)
        try:
            await self.close()
        except KafkaError as closing:
            self._log.warning("writer did not close cleanly", error=type(closing).__name__)
        # Fenced means that somebody else may own the partition: let a heartbeat find out before fencing back.
        pause = (
            2 * self._settings.heartbeat_ms / 1000 if fenced else BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        )
        self._failures += 1
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _begin(self) -> _Life:
        """Fence the predecessor, then rebuild the state from the changelog up to the last stable offset."""
        began = time.monotonic()
        writer = await Writer.fence(self._settings, self._role.transactional_id(self.partition), self._role.group)
        try:
            processor = self._role.make(self.partition)
            positions, records = await self._restore(processor)
        except BaseException:
            await writer.close()
            raise
        seconds = time.monotonic() - began
        self._metrics.restored.inc(records)
        self._metrics.restore_seconds.observe(seconds)
        self._log.info("partition ready", records=records, seconds=round(seconds, 3))
        return _Life(processor, writer, positions)

    async def _restore(self, processor: Processor) -> tuple[dict[TopicPartition, int], int]:
        positions: dict[TopicPartition, int] = {}
        count = 0
        consumer = reader(self._settings)
        await consumer.start()
        try:
            for topic in (*processor.tables, processor.changelog):
                source = TopicPartition(topic, self.partition)
                async for records in read_to_end(consumer, source, self._settings.batch_events):
                    processor.restore(records)
                    count += len(records)
                    if self._stopping.is_set():
                        raise _Stopped
                positions[source] = await consumer.position(source)
        finally:
            await consumer.stop()
        del positions[TopicPartition(processor.changelog, self.partition)]
        # Definitions may load tables, which takes seconds: heartbeats must go on.
        reached = await asyncio.to_thread(processor.restored)
        for number, topic in enumerate(processor.inputs):
            source = TopicPartition(topic, self.partition)
            positions[source] = await self._resume_at(source, reached if number == 0 else None)
        return positions, count

    async def _resume_at(self, source: TopicPartition, reached: int | None) -> int:
        """The next offset to read: committed offsets expire and can be reset; the changelog's own does neither."""
        committed = await self._consumer.committed(source)
        beginning = (await self._consumer.beginning_offsets([source]))[source]
        end = (await self._offsets.end_offsets([source]))[source]
        position = max(offset for offset in (beginning, committed, reached) if offset is not None)
        if position <= end:
            return int(position)
        # The topic was recreated or cut. Streams that answered beyond its end halt rather than answer again.
        self._log.error("input went back", topic=source.topic, position=position, end=end)
        return int(beginning)

    def _seek(self, life: _Life) -> None:
        for source, offset in life.positions.items():
            self._consumer.seek(source, offset)
        life.sought = set(life.positions)
        self._consumer.resume(*life.positions)

    async def _loop(self, life: _Life) -> None:
        processor = life.processor
        inputs = [TopicPartition(topic, self.partition) for topic in processor.inputs]
        tables = [TopicPartition(topic, self.partition) for topic in processor.tables]
        while not self._stopping.is_set():
            fetched = await self._consumer.getmany(
                *tables,
                *inputs,
                timeout_ms=IDLE_MS,
                max_records=self._settings.batch_events,
            )
            for table in tables:
                await self._follow(life, table, fetched.get(table, ()))
            for source in inputs:
                if records := self._news(life, source, fetched.get(source, ())):
                    await self._answer(life, source, records)
            await self._commit(life, processor.idle(time.time()))
            self._failures = 0

    def _news(
        self,
        life: _Life,
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

    async def _answer(self, life: _Life, source: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        began = time.monotonic()
        if records[0].offset <= self._suspects.get(source, -1):
            for record in records:
                outputs = await self._process_suspect(life, source, record)
                await self._finish(life, source, outputs, record.offset + 1)
        else:
            self._suspects.pop(source, None)
            try:
                outputs = await self._process(life, records)
            except KafkaError:
                raise
            except Exception:
                self._suspects[source] = records[-1].offset
                raise
            await self._finish(life, source, outputs, records[-1].offset + 1)
        self._metrics.events.inc(len(records))
        self._metrics.batch_seconds.observe(time.monotonic() - began)

    async def _process(self, life: _Life, records: Sequence[ConsumerRecord]) -> Outputs:
        if life.processor.needs_tables(records):
            await self._follow_to_end(life)
        if life.processor.heavy:
            return await asyncio.to_thread(life.processor.process, records)
        return life.processor.process(records)

    async def _process_suspect(self, life: _Life, source: TopicPartition, record: ConsumerRecord) -> Outputs:
        """Answer one event of a batch that broke the processor; refuse the one that breaks it alone as well."""
        if record.offset in self._poison.get(source, ()):
            self._log.error("event refused: it breaks the processor", topic=source.topic, offset=record.offset)
            return life.processor.refuse(record)
        try:
            return await self._process(life, [record])
        except KafkaError:
            raise
        except Exception:
            self._poison.setdefault(source, set()).add(record.offset)
            raise

    async def _finish(self, life: _Life, source: TopicPartition, outputs: Outputs, following: int) -> None:
        await self._commit(life, outputs, {source: following})
        life.positions[source] = following

    async def _follow(self, life: _Life, table: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        if news := self._news(life, table, records):
            await self._commit(life, await asyncio.to_thread(life.processor.follow, news))
            life.positions[table] = news[-1].offset + 1

    async def _commit(
        self,
        life: _Life,
        outputs: Outputs,
        positions: dict[TopicPartition, int] | None = None,
    ) -> None:
        if outputs or positions:
            await life.writer.commit(outputs, positions or {})

    async def _follow_to_end(self, life: _Life) -> None:
        """Catch up with the tables' high watermark before a query is told that its stream is unknown.

        An asker that saw its stream granted may ask before the commit marker has reached the control partition.
        """
        tables = [TopicPartition(topic, self.partition) for topic in life.processor.tables]
        ends: dict[TopicPartition, int] = await self._offsets.end_offsets(tables)
        deadline = time.monotonic() + TABLES_WAIT
        while time.monotonic() < deadline:
            behind = [table for table in tables if await self._consumer.position(table) < ends[table]]
            if not behind or self._stopping.is_set():
                return
            fetched: dict[TopicPartition, Any] = await self._consumer.getmany(*behind, timeout_ms=50)
            for table, records in fetched.items():
                await self._follow(life, table, records)
