"""One input partition: fence, restore, then answer batch by batch, each in one transaction."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from stream.kafka.clients import Clients, Consumer, Fetched
from stream.kafka.metrics import Metrics
from stream.kafka.positions import GroupOffsets, StateLostError, next_offset
from stream.kafka.reports import RestoreReport
from stream.kafka.restore import TopicWentBackError, read_to_end, reader
from stream.kafka.writer import Writer
from stream.log import get_logger
from stream.processors.base import Outputs, Processor, Record
from stream.settings import Settings
from stream.tracing import batch_span

IDLE_MS = 200
"""Longest wait for input before the clock's turn, in milliseconds."""
RESTORE_WAIT_MS = 10
"""Longest wait of a restore's fetch at the broker, in milliseconds."""
TABLES_WAIT = 5.0
"""Longest wait, in seconds, for a control event that may be on its way when a query names an unknown stream."""
TABLES_WAIT_MS = 50
"""Longest wait of one fetch of it, in milliseconds."""
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between tries after failures in a row."""

log = get_logger("engine")


@dataclass(frozen=True)
class Role:
    """Which processor an engine runs, and under which names Kafka knows it."""

    name: Literal["worker", "budget"]
    group: str
    status: str
    make: Callable[[int], Processor]

    @property
    def member(self) -> str:
        """This process's name in the group, and in what it reports."""
        return f"{self.name}-{socket.gethostname()}-{os.getpid()}"

    def transactional_id(self, partition: int) -> str:
        """The static id that fences a partition's previous owner."""
        return f"{self.group}-{partition}"


@dataclass
class Copy:
    """A processor in the middle of its restore, and the offsets up to which it has taken its topics in."""

    processor: Processor
    positions: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass
class _Life:
    """What lasts from one fence to the next failure."""

    processor: Processor
    writer: Writer
    positions: dict[TopicPartition, int]
    offsets: GroupOffsets
    sought: set[TopicPartition] = field(default_factory=set)
    """Partitions from which nothing has come since the seek."""


class InputWentBackError(RuntimeError):
    """An input topic was recreated or cut while it was being read."""


class _Stopped(Exception):  # noqa: N818  (an order, not an error)
    """Told to stop in the middle of a restore, or before a batch could be answered: it is left to the successor."""


class PartitionTask:
    """Runs one partition until told to stop. State lives in memory only between a fence and the next failure."""

    def __init__(
        self,
        partition: int,
        role: Role,
        settings: Settings,
        clients: Clients,
        consumer: Consumer,
        offsets: Consumer,
        metrics: Metrics,
        inherit: Callable[[int], Copy | None] = lambda _: None,
    ) -> None:
        """Take the group's consumer, and ``offsets``, an uncommitted reader that is asked for high watermarks.

        ``inherit`` gives a warm copy of the partition where there is one; it is asked after the fence.
        """
        self.partition = partition
        self._role = role
        self._settings = settings
        self._clients = clients
        self._consumer = consumer
        self._offsets = offsets
        self._metrics = metrics
        self._inherit = inherit
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
        known = isinstance(error, KafkaError | InputWentBackError | StateLostError | TopicWentBackError)
        # An unforeseen error's message might quote private data: where it was raised is all that is logged of it.
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        detail = str(error)[:300] if known else [f"{frame.filename}:{frame.lineno}" for frame in frames]
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
        role = self._role
        report = RestoreReport(role.status, role.name, self.partition, role.member)
        writer = await Writer.fence(
            self._settings, role.transactional_id(self.partition), role.group, self._clients
        )
        try:
            copy = self._inherit(self.partition)
            processor, read = (copy.processor, copy.positions) if copy else (role.make(self.partition), {})
            positions, offsets = await self._restore(processor, read, report, writer)
            await report.ready(writer)
        except BaseException:
            await writer.close()
            raise
        self._metrics.restored.inc(report.records)
        self._metrics.restore_seconds.observe(report.seconds)
        self._log.info(
            "partition ready", records=report.records, seconds=round(report.seconds, 3), warm=copy is not None
        )
        return _Life(processor, writer, positions, offsets)

    async def _restore(
        self, processor: Processor, read: dict[TopicPartition, int], report: RestoreReport, writer: Writer
    ) -> tuple[dict[TopicPartition, int], GroupOffsets]:
        """Take in what is committed and not ``read`` yet: the fence is up, so that nothing more will come."""
        positions: dict[TopicPartition, int] = {}
        # A fetch at one topic's end holds the next topic's up for as long as the broker lets it wait for news.
        consumer = reader(self._settings, self._clients, fetch_max_wait_ms=RESTORE_WAIT_MS)
        await consumer.start()
        try:
            sources = [TopicPartition(topic, self.partition) for topic in (*processor.tables, processor.changelog)]
            starts = {**await consumer.beginning_offsets(sources), **read}
            report.total = sum((await consumer.end_offsets(sources)).values()) - sum(starts.values())
            for source in sources:
                async for records in read_to_end(consumer, source, self._settings.batch_events, read.get(source)):
                    processor.restore(records)
                    report.records += len(records)
                    if self._stopping.is_set():
                        raise _Stopped
                    await report.progress(writer)
                positions[source] = await consumer.position(source)
        finally:
            await consumer.stop()
        del positions[TopicPartition(processor.changelog, self.partition)]
        # Definitions may load tables, which takes seconds: heartbeats must go on.
        reached = await asyncio.to_thread(processor.restored)
        offsets = GroupOffsets(recorded=reached is not None)
        for number, topic in enumerate(processor.inputs):
            source = TopicPartition(topic, self.partition)
            committed = await self._consumer.committed(source)
            positions[source] = await self._resume_at(source, committed, reached if number == 0 else None)
            if positions[source] > (committed or 0):
                offsets.reach(source, positions[source])
        return positions, offsets

    async def _resume_at(self, source: TopicPartition, committed: int | None, reached: int | None) -> int:
        beginning = (await self._consumer.beginning_offsets([source]))[source]
        end = (await self._offsets.end_offsets([source]))[source]
        return next_offset(source, beginning, end, committed, reached)

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
            try:
                fetched = await self._fetch([*tables, *inputs], IDLE_MS, self._settings.batch_events)
            except UnicodeDecodeError:
                await self._step_over(life, inputs)
                continue
            for table in tables:
                await self._follow(life, table, fetched.get(table, ()))
            for source in inputs:
                if records := self._news(life, source, fetched.get(source, ())):
                    await self._answer(life, source, records)
            await self._commit(life, processor.idle(time.time()), idle=not fetched)
            self._failures = 0

    async def _fetch(self, sources: Sequence[TopicPartition], wait_ms: int, limit: int) -> Fetched:
        """Records that have come, or what comes next within a wait.

        aiokafka holds whoever waits for records until a rebalance is over, and the rebalance waits for this task to
        stop: an order to stop must end the wait.

        Raises:
            _Stopped: the task was told to stop. Whatever had been fetched is fetched again after the next seek.
        """
        fetching = asyncio.ensure_future(self._consumer.getmany(*sources, timeout_ms=wait_ms, max_records=limit))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                raise _Stopped
            return await fetching
        finally:
            for waiting in (fetching, stopping):
                waiting.cancel()
            await asyncio.gather(fetching, stopping, return_exceptions=True)

    async def _step_over(self, life: _Life, inputs: Sequence[TopicPartition]) -> None:
        """Refuse the event whose headers the client library cannot read, which would stop the partition for ever.

        What the failed fetch held of other topics is lost with it: all positions go back first. Then events come one by
        one until the library fails again, so that the position is the event's own. Whatever follows it in the same
        producer's batch cannot be read either, and is refused in its turn.
        """
        self._seek(life)
        for source in inputs:
            for _ in range(self._settings.batch_events):
                try:
                    fetched = await self._fetch([source], IDLE_MS, 1)
                except UnicodeDecodeError:
                    offset = await self._consumer.position(source)
                    self._log.error("event refused: its headers cannot be read", topic=source.topic, offset=offset)
                    unread = Record(source.topic, source.partition, offset, 0, None, None)
                    await self._finish(life, source, life.processor.refuse(unread, unread=True), offset + 1)
                    self._consumer.seek(source, offset + 1)
                    return
                records = self._news(life, source, fetched.get(source, ()))
                if not records:
                    break
                await self._answer(life, source, records)

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
        place = {"messaging.destination.name": source.topic, "messaging.destination.partition.id": self.partition}
        with batch_span(f"{self._role.name} answers", records, place):
            await self._answer_all(life, source, records)
        self._metrics.events.inc(len(records))
        self._metrics.batch_seconds.observe(time.monotonic() - began)

    async def _answer_all(self, life: _Life, source: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        if records[0].offset <= self._suspects.get(source, -1):
            for record in records:
                outputs = await self._process_suspect(life, source, record)
                await self._finish(life, source, outputs, record.offset + 1)
        else:
            self._suspects.pop(source, None)
            try:
                outputs = await self._process(life, records)
            except (KafkaError, _Stopped):
                raise
            except Exception:
                self._suspects[source] = records[-1].offset
                raise
            await self._finish(life, source, outputs, records[-1].offset + 1)

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
        except (KafkaError, _Stopped):
            raise
        except Exception:
            self._poison.setdefault(source, set()).add(record.offset)
            raise

    async def _finish(self, life: _Life, source: TopicPartition, outputs: Outputs, following: int) -> None:
        life.offsets.reach(source, following)
        await self._commit(life, outputs)
        life.positions[source] = following

    async def _follow(self, life: _Life, table: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        if news := self._news(life, table, records):
            await self._commit(life, await asyncio.to_thread(life.processor.follow, news))
            life.positions[table] = news[-1].offset + 1

    async def _commit(self, life: _Life, outputs: Outputs, *, idle: bool = False) -> None:
        """Commit outputs, if any, with the offsets that are due; these get a transaction of their own only if ``idle``.

        Right after another transaction aiokafka would wait 100 ms before it asks again to add them.
        """
        if outputs or idle:
            offsets = life.offsets.due(time.monotonic())
            if outputs or offsets:
                await life.writer.commit(outputs, offsets)

    async def _follow_to_end(self, life: _Life) -> None:
        """Catch up with the tables' high watermark before a query is told that its stream is unknown.

        An asker that saw its stream granted may ask before the commit marker has reached the control partition.
        """
        tables = [TopicPartition(topic, self.partition) for topic in life.processor.tables]
        ends = await self._offsets.end_offsets(tables)
        deadline = time.monotonic() + TABLES_WAIT
        while time.monotonic() < deadline:
            behind = [table for table in tables if await self._consumer.position(table) < ends[table]]
            if not behind:
                return
            fetched = await self._fetch(behind, TABLES_WAIT_MS, self._settings.batch_events)
            for table, records in fetched.items():
                await self._follow(life, table, records)
