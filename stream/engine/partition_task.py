"""One input partition: one life of its state after another, and in each what its clock and its input ask for."""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, ProducerFenced

from stream.engine.batch_loop import BatchLoop, InputWentBackError, ProcessingError
from stream.engine.input_positions import InputRecreatedError, StateLostError
from stream.engine.restore import TopicWentBackError, UnreadableChangelogError
from stream.engine.session import Equipment, PartitionSession, SessionOpener
from stream.engine.task_status import PartitionHealth, TaskStep
from stream.kafka.client.adapter import Fetched
from stream.kafka.client.availability import Stopped
from stream.kafka.client.client_patches import RefusedTimeError
from stream.log import get_logger
from stream.processing.protocol import InputRefusedError, LaterVersionError, Outputs, TableMissedError, Timed

IDLE_MS = 200
"""Longest wait for input before the clock's turn, in milliseconds."""
END_SECONDS = 0.5
"""A partition asks for the end of its input at most so often."""
GATHERING_SECONDS = 0.05
"""So long what is kept by the clock lets events gather, after fewer than ``FEW_EVENTS``."""
FEW_EVENTS = 1000
CLOSING_SECONDS = 0.1
"""So long after the end of a window the event that closes it may still come: nothing is let gather meanwhile."""
BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between tries after failures in a row."""
KAFKA_BACKOFF_SECONDS = 5.0
"""Longest pause after an error of Kafka's, which is over as soon as the brokers are back."""
CALM_SECONDS = 30.0
"""A partition without input is well again after so long without a failure; with input, once a batch is committed."""

log = get_logger("engine")


_EXPLAINED = (
    KafkaError,
    InputRecreatedError,
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
        self.step = TaskStep()
        self.health = PartitionHealth()
        self._disturbed = 0.0
        """When the last failure was, or the start after it, on the monotonic clock."""
        self._role = equipment.role
        self._settings = equipment.settings
        self._consumer = equipment.consumer
        self._offsets = equipment.offsets
        self._metrics = equipment.metrics
        self._clock = equipment.clock
        self._turns = equipment.turns
        self._life: PartitionSession | None = None
        self._stopping = asyncio.Event()
        self._lives = SessionOpener(partition, equipment, self._stopping, self.step)
        self._answering = BatchLoop(partition, equipment, self._stopping, self.step, self.health)
        self._log = log.bind(role=self._role.name, partition=partition, **self._role.labels)

    @property
    def life(self) -> PartitionSession | None:
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
        self.health.recover()
        task = asyncio.create_task(self._run(), name=f"{self._role.name}-{self.partition}")
        task.add_done_callback(_seen)
        return task

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
                    self._disturbed = time.monotonic()
                self._seek(self._life)
                async with self._life.arrivals, self._life.topic_ids:
                    with suppress(Stopped):
                        await self._loop(self._life)
                if self._life.gathering.seconds_left(time.monotonic()) is not None:
                    await self._answering.commit(self._life, Outputs(), idle=True)
            except asyncio.CancelledError:
                await self.close()
                raise
            except Stopped:
                return
            except RefusedTimeError:
                raise  # it would be refused again
            except Exception as error:  # noqa: BLE001  (whatever it is, the answer is to drop the state and fence)
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        self._metrics.failures.inc()
        self._disturbed = time.monotonic()
        self.step.enter("pausing")
        cause, at = error, None
        if isinstance(error, ProcessingError) and isinstance(error.__cause__, Exception):
            cause, at = error.__cause__, error.place
        name = type(cause).__name__
        if isinstance(cause, _EXPLAINED):
            reason = str(cause)[:300]
            detail: Any = reason
        else:
            # An unforeseen error's message might quote private data: where it was raised is all that is logged of it.
            frames = traceback.extract_tb(cause.__traceback__)[-3:]
            detail = [f"{frame.filename}:{frame.lineno}" for frame in frames]
            reason = f"{name} in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name
        self.health.failed(
            self._disturbed,
            reason,
            at=at,
            is_input=isinstance(cause, InputRefusedError),
            is_kafka=isinstance(cause, KafkaError),
        )
        self._log.warning(
            "partition starts over", error=name, detail=detail, **({"record": str(at)} if at else {})
        )
        try:
            await self.close()
        except KafkaError as closing:
            self._log.warning("writer did not close cleanly", error=type(closing).__name__)
        # Fenced means that somebody else may own the partition: let a heartbeat find out before fencing back.
        pause = BACKOFF[min(self.health.failures, len(BACKOFF)) - 1]
        if isinstance(error, ProducerFenced):
            pause = 2 * self._settings.heartbeat_ms / 1000
        elif isinstance(error, KafkaError):
            pause = min(pause, KAFKA_BACKOFF_SECONDS)
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _seek(self, life: PartitionSession) -> None:
        for source, offset in life.positions.items():
            self._consumer.seek(source, offset)
        life.sought = set(life.positions)
        self._consumer.resume(*life.positions)

    async def _loop(self, life: PartitionSession) -> None:
        processor = life.processor
        inputs = [TopicPartition(topic, self.partition) for topic in processor.inputs]
        tables = [TopicPartition(topic, self.partition) for topic in processor.tables]
        # Whether an object has all of a protocol takes longer to find out than many a round.
        timed = processor if isinstance(processor, Timed) else None
        if timed is not None:
            # What control has told is taken in before anything is read, and by itself.
            await self._answering.commit(
                life, await asyncio.to_thread(processor.idle, time.monotonic()), idle=True
            )
        while not self._stopping.is_set():
            if timed is None and (pause := self._turns.wait(self.partition, time.monotonic())):
                await asyncio.sleep(pause)
            fetched = await self._answering.take(life, [*tables, *inputs], self._wait_ms(life, timed))
            life.topic_ids.ask(needed=bool(fetched))
            if fetched:
                self._turns.begin(self.partition, time.monotonic())
            for table in tables:
                await self._answering.follow(life, table, fetched.get(table, ()))
            for source in inputs:
                await self._answering.answer(life, source, fetched.get(source, ()))
            if timed is not None:
                await self._keep_time(life, timed, inputs, idle=not fetched)
                await self._let_gather(timed, fetched)
            else:
                await self._answering.commit(life, processor.idle(time.monotonic()), idle=not fetched)
            if time.monotonic() - self._disturbed > CALM_SECONDS:
                self.health.recover()

    def _wait_ms(self, life: PartitionSession, timed: Timed | None) -> int:
        """How long to wait for input: until something is due by the clock, or what waits for its transaction."""
        left = life.gathering.seconds_left(time.monotonic())
        wait = IDLE_MS if left is None else min(IDLE_MS, math.ceil(1000 * left))
        if timed is not None and (due := timed.due_at) is not None and due > life.told:
            wait = min(wait, max(0, math.ceil(1000 * (due - self._clock()))))
        return wait

    async def _keep_time(
        self, life: PartitionSession, processor: Timed, inputs: Sequence[TopicPartition], *, idle: bool
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
            await self._answering.commit(life, outputs, idle=idle)
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


def _seen(task: asyncio.Task[None]) -> None:
    """An engine ends with the first error of its tasks; asyncio is not to report the others, in words that nobody has checked."""
    if not task.cancelled():
        task.exception()


def _is_due(due: float | None, told: float, moment: float) -> bool:
    """Whether something has become due by a moment since the end of the input was last asked for."""
    return due is not None and told < due <= moment
