"""One input partition: answer batch by batch, each in one transaction; after any failure begin a new life."""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, ProducerFenced

from stream.kafka.clients import Fetched
from stream.kafka.lives import Equipment, Life, Lives
from stream.kafka.positions import StateLostError
from stream.kafka.restore import TopicWentBackError
from stream.kafka.starting import Stopped
from stream.kafka.steps import Step
from stream.kafka.unread import UnreadableChangelogError, readable, tell_of_unread
from stream.log import get_logger
from stream.processors.base import InputRefusedError, LaterVersionError, Outputs, TableMissedError, Timed
from stream.tracing import batch_span

IDLE_MS = 200
"""Longest wait for input before the clock's turn, in milliseconds."""
TABLES_WAIT = 5.0
"""Longest wait, in seconds, for a control event that may be on its way when a query names an unknown stream."""
TABLES_WAIT_MS = 50
"""Longest wait of one fetch of it, in milliseconds."""
END_SECONDS = 0.5
"""A partition asks for the end of its input at most so often."""
GATHERING_SECONDS = 0.05
"""So long what is kept by the clock lets events gather, after fewer than ``FEW_EVENTS``."""
FEW_EVENTS = 1000
CLOSING_SECONDS = 0.1
"""So long after the end of a window the event that closes it may still come: nothing is let gather meanwhile."""
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds between tries after failures in a row."""
CALM_SECONDS = 30.0
"""A partition without input is well again after so long without a failure; with input, once a batch is committed."""

Result = TypeVar("Result")

log = get_logger("engine")


class InputWentBackError(RuntimeError):
    """An input topic was recreated or cut while it was being read."""


_EXPLAINED = (
    KafkaError,
    InputWentBackError,
    StateLostError,
    TopicWentBackError,
    TableMissedError,
    UnreadableChangelogError,
    LaterVersionError,
    InputRefusedError,
)
"""Errors whose messages may be logged: they quote nothing private."""


class PartitionTask:
    """Runs one partition until told to stop. State lives in memory only between a fence and the next failure."""

    def __init__(self, partition: int, equipment: Equipment) -> None:
        self.partition = partition
        self.step = Step()
        self.failing_since: float | None = None
        """When the first of the failures in a row was, on the monotonic clock; None if all is well."""
        self.refusal = ""
        """Why nothing is taken of an input that is not as it must be."""
        self._failed = 0.0
        self._role = equipment.role
        self._settings = equipment.settings
        self._consumer = equipment.consumer
        self._offsets = equipment.offsets
        self._metrics = equipment.metrics
        self._clock = equipment.clock
        self._life: Life | None = None
        self._stopping = asyncio.Event()
        self._lives = Lives(partition, equipment, self._stopping, self.step)
        self._failures = 0
        self._suspects: dict[TopicPartition, int] = {}
        self._poison: dict[TopicPartition, set[int]] = {}
        self._log = log.bind(role=self._role.name, partition=partition)

    @property
    def life(self) -> Life | None:
        """What is in memory."""
        return self._life

    @property
    def unread(self) -> int:
        """Input records that are not taken in yet, as of the last fetch; 0 before there is anything to say."""
        if (life := self._life) is None:
            return 0
        inputs = [TopicPartition(topic, self.partition) for topic in life.processor.inputs]
        try:
            return sum(max(0, (self._consumer.highwater(one) or 0) - life.positions[one]) for one in inputs)
        except (AssertionError, IllegalStateError):  # the group is taking the partition away
            return 0

    def resume(self) -> asyncio.Task[None]:
        """Start, or go on after ``stop`` with what is in memory: if another owner came between, its fence tells."""
        self._stopping.clear()
        self.failing_since = None
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
        try:
            await self._live()
        finally:
            self.step.enter("resting")

    async def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._life is None:
                    self._life = await self._lives.begin()
                self._seek(self._life)
                async with self._life.arrivals:
                    with suppress(Stopped):
                        await self._loop(self._life)
                if self._life.gathering.seconds_left(time.monotonic()) is not None:
                    await self._commit(self._life, Outputs(), idle=True)
            except asyncio.CancelledError:
                await self.close()
                raise
            except Stopped:
                return
            except Exception as error:  # noqa: BLE001  (whatever it is, the answer is to drop the state and fence)
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        self._metrics.failures.inc()
        self._failed = time.monotonic()
        self.failing_since = self.failing_since or self._failed
        self.step.enter("pausing")
        fenced = isinstance(error, ProducerFenced)
        known = isinstance(error, _EXPLAINED)
        self.refusal = str(error) if isinstance(error, InputRefusedError) else ""
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

    def _seek(self, life: Life) -> None:
        for source, offset in life.positions.items():
            self._consumer.seek(source, offset)
        life.sought = set(life.positions)
        self._consumer.resume(*life.positions)

    async def _loop(self, life: Life) -> None:
        processor = life.processor
        inputs = [TopicPartition(topic, self.partition) for topic in processor.inputs]
        tables = [TopicPartition(topic, self.partition) for topic in processor.tables]
        while not self._stopping.is_set():
            fetched = await self._take(life, [*tables, *inputs], self._wait_ms(life))
            for table in tables:
                await self._follow(life, table, fetched.get(table, ()))
            for source in inputs:
                await self._answer_in_portions(life, source, fetched.get(source, ()))
            if isinstance(processor, Timed):
                await self._keep_time(life, processor, inputs, idle=not fetched)
                await self._let_gather(processor, fetched)
            else:
                await self._commit(life, processor.idle(time.monotonic()), idle=not fetched)
            self._failures = 0
            if time.monotonic() - self._failed > CALM_SECONDS:
                self.failing_since = None

    def _wait_ms(self, life: Life) -> int:
        """How long to wait for input: until something is due by the clock, or what waits for its transaction."""
        left = life.gathering.seconds_left(time.monotonic())
        wait = IDLE_MS if left is None else min(IDLE_MS, math.ceil(1000 * left))
        if isinstance(life.processor, Timed) and (due := life.processor.due_at) is not None and due > life.told:
            wait = min(wait, max(0, math.ceil(1000 * (due - self._clock()))))
        return wait

    async def _keep_time(
        self, life: Life, processor: Timed, inputs: Sequence[TopicPartition], *, idle: bool
    ) -> None:
        """Do what is due by the clock; where nothing has come, the clock is told that there was nothing up to now.

        The moment is taken before the end is asked for, and the end is that of whatever was written: an event in a
        transaction that is open may have been stamped long ago.
        """
        moment = self._clock()
        if idle and (moment - life.told >= END_SECONDS or _is_due(processor.due_at, life.told, moment)):
            life.told = moment
            ends = await self._offsets.end_offsets(inputs)
            if all([await life.arrivals.has_reached(source, ends[source]) for source in inputs]):
                processor.reached_end(moment)
        while idle or processor.behind:
            self.step.enter("working")
            outputs = await asyncio.to_thread(life.processor.idle, time.monotonic())
            await self._commit(life, outputs, idle=idle)
            if not processor.behind or self._stopping.is_set():
                return

    async def _let_gather(self, processor: Timed, fetched: Fetched) -> None:
        """Let events gather after a few, since a step of a feed costs as much for one as for hundreds; but not where a window ends."""
        if not 0 < sum(map(len, fetched.values())) < FEW_EVENTS:
            return
        pause = GATHERING_SECONDS
        if (closes := processor.closes_at) is not None and (left := closes - self._clock()) > -CLOSING_SECONDS:
            pause = min(pause, left)
        if pause > 0:
            self.step.enter("waiting")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _take(self, life: Life, sources: Sequence[TopicPartition], wait_ms: int) -> Fetched:
        self.step.enter("waiting")
        return await life.arrivals.take(sources, wait_ms)

    def _news(
        self,
        life: Life,
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

    async def _answer_in_portions(
        self, life: Life, source: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        """Answer a batch step by step, each in a transaction of its own; between two, hear what control says.

        An order to stop leaves the rest to the successor, or to the next seek.
        """
        records = self._news(life, source, records)
        tables = [TopicPartition(topic, self.partition) for topic in life.processor.tables]
        while records:
            count = await self._portion(life, source, records)
            await self._answer(life, source, records[:count])
            if records := records[count:]:
                for table, news in (await self._take(life, tables, 0)).items():
                    await self._follow(life, table, news)
                if self._stopping.is_set():
                    return

    async def _portion(self, life: Life, source: TopicPartition, records: Sequence[ConsumerRecord]) -> int:
        if records[0].offset <= self._suspects.get(source, -1):
            return 1
        try:
            return await self._in_time(life, life.processor.portion, records)
        except Exception:
            self._suspects[source] = records[-1].offset
            raise

    async def _answer(self, life: Life, source: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        began = time.monotonic()
        tell_of_unread(records, self._metrics.unread)
        place = {"messaging.destination.name": source.topic, "messaging.destination.partition.id": self.partition}
        with batch_span(f"{self._role.name} answers", records, place):
            await self._answer_all(life, source, records)
        self._metrics.events.inc(len(records))
        self._metrics.batch_seconds.observe(time.monotonic() - began)

    async def _answer_all(self, life: Life, source: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        if records[0].offset <= self._suspects.get(source, -1):
            for record in records:
                outputs = await self._process_suspect(life, source, record)
                await self._finish(life, source, outputs, record.offset + 1)
        else:
            self._suspects.pop(source, None)
            try:
                outputs = await self._process(life, records)
            except (KafkaError, Stopped, InputRefusedError):
                raise
            except Exception:
                self._suspects[source] = records[-1].offset
                raise
            await self._finish(life, source, outputs, records[-1].offset + 1)

    async def _process(self, life: Life, records: Sequence[ConsumerRecord]) -> Outputs:
        if await self._in_time(life, life.processor.needs_tables, records):
            await self._follow_to_end(life)
        return await self._in_time(life, life.processor.process, records)

    async def _in_time(
        self, life: Life, step: Callable[[Sequence[ConsumerRecord]], Result], records: Sequence[ConsumerRecord]
    ) -> Result:
        """Take a step of the processor, beside the heartbeats if it may take longer than they can wait."""
        self.step.enter("working")
        return await asyncio.to_thread(step, records) if life.processor.heavy else step(records)

    async def _process_suspect(self, life: Life, source: TopicPartition, record: ConsumerRecord) -> Outputs:
        """Answer one event of a batch that broke the processor; refuse the one that breaks it alone as well."""
        if record.offset in self._poison.get(source, ()):
            self._log.error("event refused: it breaks the processor", topic=source.topic, offset=record.offset)
            return life.processor.refuse(record)
        try:
            return await self._process(life, [record])
        except (KafkaError, Stopped, InputRefusedError):
            raise
        except Exception:
            self._poison.setdefault(source, set()).add(record.offset)
            raise

    async def _finish(self, life: Life, source: TopicPartition, outputs: Outputs, following: int) -> None:
        life.offsets.reach(source, following)
        await self._commit(life, outputs)
        self._metrics.busy.inc(outputs.busy)
        life.positions[source] = following
        self.failing_since = None
        self.refusal = ""

    async def _follow(self, life: Life, table: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        if news := self._news(life, table, records):
            self.step.enter("working")
            await self._commit(
                life, await asyncio.to_thread(life.processor.follow, readable(news, self._metrics.unread))
            )
            life.positions[table] = news[-1].offset + 1

    async def _commit(self, life: Life, outputs: Outputs, *, idle: bool = False) -> None:
        """Commit what is due of these outputs and of those that waited."""
        if (due := life.gathering.due(outputs, time.monotonic(), idle=idle)) is not None:
            self.step.enter("writing")
            await life.writer.commit(*due)

    async def _follow_to_end(self, life: Life) -> None:
        """Catch up with the tables' high watermark before a query is told that its stream is unknown.

        An asker that saw its stream granted may ask before the commit marker has reached the control partition.
        """
        tables = [TopicPartition(topic, self.partition) for topic in life.processor.tables]
        self.step.enter("waiting")
        ends = await self._offsets.end_offsets(tables)
        deadline = time.monotonic() + TABLES_WAIT
        while time.monotonic() < deadline:
            behind = [table for table in tables if not await life.arrivals.has_reached(table, ends[table])]
            if not behind:
                return
            fetched = await self._take(life, behind, TABLES_WAIT_MS)
            for table, records in fetched.items():
                await self._follow(life, table, records)


def _is_due(due: float | None, told: float, moment: float) -> bool:
    """Whether something has become due by a moment since the end of the input was last asked for."""
    return due is not None and told < due <= moment
