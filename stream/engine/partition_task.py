"""The task of one input partition: opens sessions, reads input and runs timed work."""

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

from stream.diagnostics import LoggableError, get_logger
from stream.engine.batch_loop import BatchLoop, PartitionHealth, ProcessingError
from stream.engine.partition_input import consume_exception
from stream.engine.session import Equipment, PartitionSession, SessionOpener, TaskStep
from stream.kafka.client.adapter import Fetched
from stream.kafka.client.broker_connections import Stopped, is_refusal, wait_for_stop
from stream.kafka.client.client_patches import RefusedTimeError
from stream.processing.protocol import InputRefusedError, Outputs, ReadingProcessor, TimedProcessor
from stream.tables.engine_limits import CancelledStepError

IDLE_MS = 200
"""Longest wait for input before timed work, in milliseconds."""
END_REQUEST_SECONDS = 0.5
"""Least seconds between two requests for the end offsets of a partition's input."""
GATHERING_SECONDS = 0.05
"""Pause of a feed after a batch of fewer than ``FEW_EVENTS``, so that its next batch is larger."""
FEW_EVENTS = 1000
CLOSING_SECONDS = 0.1
"""Seconds after a window's end in which feeds do not pause, because the event that closes the window may come."""
RETRY_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before a retry, by the number of failures in a row."""
KAFKA_RETRY_SECONDS = 5.0
"""Longest pause after an error of Kafka, which may end at any moment."""
CALM_SECONDS = 30.0
"""Seconds without failures after which a partition counts as recovered even without input."""

log = get_logger("engine")


class PartitionTask:
    """Runs one partition until stopped; after each failure it drops the state and restores it."""

    def __init__(self, partition: int, equipment: Equipment) -> None:
        self.partition = partition
        self.step = TaskStep()
        self.health = PartitionHealth()
        self.session: PartitionSession | None = None
        self._last_disturbance = 0.0
        """Time of the last failure or restart, on the monotonic clock."""
        self._role = equipment.role
        self._settings = equipment.settings
        self._consumer = equipment.consumer
        self._offsets = equipment.offsets_consumer
        self._metrics = equipment.metrics
        self._clock = equipment.clock
        self._turns = equipment.turns
        self._stopping = asyncio.Event()
        self._opener = SessionOpener(partition, equipment, self._stopping, self.step)
        self._batch_loop = BatchLoop(partition, equipment, self._stopping, self.step, self.health)
        self._log = log.bind(role=self._role.name, partition=partition, **self._role.labels)

    @property
    def unread_count(self) -> int:
        """Number of unprocessed input records as of the last fetch; 0 if unknown."""
        if (session := self.session) is None:
            return 0
        inputs = [TopicPartition(topic, self.partition) for topic in session.processor.inputs]
        try:
            return sum(max(0, (self._consumer.highwater(one) or 0) - session.positions[one]) for one in inputs)
        except (AssertionError, IllegalStateError):  # the partition is being revoked
            return 0

    def resume(self) -> asyncio.Task[None]:
        """Start the task, with the open session if there is one.

        If another process has owned the partition meanwhile, the session's writer is fenced and fails.
        """
        self._stopping.clear()
        self._batch_loop.cancelled.clear()
        self.health.recover()
        task = asyncio.create_task(self._run(), name=f"{self._role.name}-{self.partition}")
        task.add_done_callback(consume_exception)  # the engine raises the first error of its tasks
        return task

    def stop(self) -> None:
        """Stop at the next batch boundary; a step that waits for a database is cancelled."""
        self._stopping.set()
        self._batch_loop.cancelled.set()

    async def close(self) -> None:
        """Close the session and drop its state."""
        session, self.session = self.session, None
        if session is not None:
            if isinstance(session.processor, ReadingProcessor):
                session.processor.cancel_readings()
            await session.writer.close()

    async def _run(self) -> None:
        try:
            await self._run_sessions()
        finally:
            self.step.enter("resting")

    async def _run_sessions(self) -> None:
        while not self._stopping.is_set():
            try:
                if self.session is None:
                    self.session = await self._opener.open_session()
                    self._last_disturbance = time.monotonic()
                    self.health.record_opening()
                for topic_partition, offset in self.session.positions.items():
                    self._consumer.seek(topic_partition, offset)
                self.session.without_records_yet = set(self.session.positions)
                self._consumer.resume(*self.session.positions)
                async with self.session.prefetch, self.session.topic_ids:
                    with suppress(Stopped):
                        await self._loop(self.session)
                if self.session.output_buffer.seconds_left(time.monotonic()) is not None:
                    await self._batch_loop.commit(self.session, Outputs(), idle=True)
            except asyncio.CancelledError:
                await self.close()
                raise
            except Stopped:
                return
            except CancelledStepError:
                # The step may have changed the state, but nothing was written.
                await self._close_quietly()
                return
            except RefusedTimeError:
                raise  # it would be refused again
            except Exception as error:  # noqa: BLE001  (any failure: drop the state and fence)
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        self._metrics.failures.inc()
        self._last_disturbance = time.monotonic()
        self.step.enter("pausing")
        cause, at = error, None
        if isinstance(error, ProcessingError) and isinstance(error.__cause__, Exception):
            cause, at = error.__cause__, error.place
        name = type(cause).__name__
        if isinstance(cause, KafkaError | LoggableError):
            reason = str(cause)[:300]
            if isinstance(cause, KafkaError) and is_refusal(cause):
                reason += "; this principal lacks a right: see 'sotto topics acl'"
            detail: Any = reason
        else:
            # Another error's message might quote private data: only its location is logged.
            frames = traceback.extract_tb(cause.__traceback__)[-3:]
            detail = [f"{frame.filename}:{frame.lineno}" for frame in frames]
            reason = f"{name} in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name
        self.health.record_failure(
            self._last_disturbance,
            reason,
            at=at,
            is_input_refused=isinstance(cause, InputRefusedError),
            is_kafka=isinstance(cause, KafkaError),
            is_opening=self.session is None,
        )
        self._log.warning(
            "partition starts over", error=name, detail=detail, **({"record": str(at)} if at else {})
        )
        await self._close_quietly()
        pause = RETRY_PAUSES[min(self.health.failures, len(RETRY_PAUSES)) - 1]
        if isinstance(error, ProducerFenced):
            # Another process may own the partition, so heartbeats must confirm the assignment before the next fence.
            pause = 2 * self._settings.heartbeat_ms / 1000
        elif isinstance(error, KafkaError):
            pause = min(pause, KAFKA_RETRY_SECONDS)
        await wait_for_stop(self._stopping, pause)

    async def _close_quietly(self) -> None:
        try:
            await self.close()
        except KafkaError as closing:
            self._log.warning("writer did not close cleanly", error=type(closing).__name__)

    async def _loop(self, session: PartitionSession) -> None:
        processor = session.processor
        inputs = [TopicPartition(topic, self.partition) for topic in processor.inputs]
        lookup_topics = [TopicPartition(topic, self.partition) for topic in processor.lookup_topics]
        # An isinstance check of a protocol is slow: once per session, not per round.
        timed = processor if isinstance(processor, TimedProcessor) else None
        reading = processor if isinstance(processor, ReadingProcessor) else None
        if timed is not None:
            # Control events are applied before any input is read.
            await self._batch_loop.run_idle(session, in_thread=True, idle=True)
        while not self._stopping.is_set():
            if timed is None and (pause := self._turns.seconds_to_wait(self.partition, time.monotonic())):
                await asyncio.sleep(pause)
            ready = reading is not None and reading.has_finished_readings
            wait_ms = 0 if ready else self._wait_ms(session, timed)
            fetched = await self._batch_loop.fetch(session, [*lookup_topics, *inputs], wait_ms)
            session.topic_ids.request_ids(needed=bool(fetched))
            if fetched:
                self._turns.start_step(self.partition, time.monotonic())
            for topic_partition in lookup_topics:
                await self._batch_loop.apply_lookup_records(
                    session, topic_partition, fetched.get(topic_partition, ())
                )
            for topic_partition in inputs:
                await self._batch_loop.answer(session, topic_partition, fetched.get(topic_partition, ()))
            if timed is not None:
                await self._do_timed_work(session, timed, inputs, idle=not fetched)
                await self._wait_for_more_events(timed, fetched)
            else:
                ready = reading is not None and reading.has_finished_readings
                await self._batch_loop.run_idle(session, in_thread=ready, idle=not fetched)
                if ready:
                    await self._batch_loop.run_step(session, session.refusals.report, processor, in_thread=True)
            if time.monotonic() - self._last_disturbance > CALM_SECONDS:
                self.health.recover()

    def _wait_ms(self, session: PartitionSession, timed: TimedProcessor | None) -> int:
        left = session.output_buffer.seconds_left(time.monotonic())
        wait = IDLE_MS if left is None else min(IDLE_MS, math.ceil(1000 * left))
        if timed is not None and (due := timed.due_at) is not None and due > session.end_requested_at:
            wait = min(wait, max(0, math.ceil(1000 * (due - self._clock()))))
        return wait

    async def _do_timed_work(
        self, session: PartitionSession, processor: TimedProcessor, inputs: Sequence[TopicPartition], *, idle: bool
    ) -> None:
        """Do timed work; if all input is read, let the processor advance its clock to now.

        The time is read before the end offsets are requested, so that an event after these offsets has a
        later timestamp. The end offsets include open transactions, whose events may have earlier timestamps.
        """
        moment = self._clock()
        if idle and (
            moment - session.end_requested_at >= END_REQUEST_SECONDS
            or ((due := processor.due_at) is not None and session.end_requested_at < due <= moment)
        ):
            session.end_requested_at = moment
            ends = await self._offsets.end_offsets(inputs)
            if all([await session.prefetch.has_reached(one, ends[one]) for one in inputs]):
                processor.note_end_of_input(moment)
        while idle or processor.has_more_outputs:
            await self._batch_loop.run_idle(session, in_thread=True, idle=idle)
            if not processor.has_more_outputs or self._stopping.is_set():
                return

    async def _wait_for_more_events(self, processor: TimedProcessor, fetched: Fetched) -> None:
        """Pause after a few events: a step costs as much for one event as for hundreds."""
        if not 0 < sum(map(len, fetched.values())) < FEW_EVENTS:
            return
        pause = GATHERING_SECONDS
        if (closes := processor.closing_timestamp) is not None and (
            left := closes - self._clock()
        ) > -CLOSING_SECONDS:
            pause = min(pause, left)
        if pause > 0:
            self.step.enter("waiting")
            await wait_for_stop(self._stopping, pause)
