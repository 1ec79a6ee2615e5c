"""Processes a partition's records in batches, each batch in one transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from aiokafka import ConsumerRecord, TopicPartition

from stream.diagnostics import LoggableError, batch_span, get_logger
from stream.engine.restore import report_unreadable, select_readable
from stream.engine.session import Equipment, PartitionSession, TaskStep
from stream.kafka.client.adapter import Fetched
from stream.processing.protocol import InputRefusedError, MissedRecordError, Outputs, RecordLike
from stream.tables.engine_limits import CancelledStepError, current_cancellation

CONTROL_WAIT_SECONDS = 5.0
"""Longest wait, in seconds, for the control event of an unknown stream."""
CONTROL_FETCH_MS = 50
"""Longest wait of one fetch of control events, in milliseconds."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")

FAILURES_UNTIL_NOT_READY: Final = 5
"""Number of failures in a row at one record that make the service not ready."""


@dataclass(frozen=True)
class InputPlace:
    """The position of an input record."""

    topic_partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.topic_partition.topic} partition {self.topic_partition.partition} offset {self.offset}"


class PartitionHealth:
    """Failures of a partition, kept across its sessions."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        """Time of the first failure of the present series, on the monotonic clock; None without one."""
        self.failures = 0
        """Length of the series, which ends with a commit of the failed record, or after a time without failures."""
        self.stop_reason = ""
        """The reason why the partition processes nothing, as shown at /readyz."""
        self._failed_at: InputPlace | None = None
        self._tries = 0
        self._last_failure_was_kafka = False
        self._was_refused_at_opening = False

    def record_failure(
        self,
        now: float,
        reason: str,
        *,
        at: InputPlace | None = None,
        is_input_refused: bool = False,
        is_kafka: bool = False,
        is_opening: bool = False,
    ) -> None:
        """Count a failure; ``at`` is the record that was being processed, if there was one.

        ``is_opening`` says that no session was open.

        /readyz shows the reason at once if the processor refused an input topic
        (`InputRefusedError`), and otherwise after ``FAILURES_UNTIL_NOT_READY`` failures at one record.
        """
        self.failing_since = self.failing_since or now
        self.failures += 1
        self._last_failure_was_kafka = is_kafka
        if at is not None:
            self._tries = self._tries + 1 if at == self._failed_at else 1
            self._failed_at = at
        if is_input_refused:
            self.stop_reason, self._was_refused_at_opening = reason, is_opening
        elif at is not None and self._tries >= FAILURES_UNTIL_NOT_READY:
            self.stop_reason = (
                f"{at}: processing fails with {reason}; no later record is processed, and nothing is lost; "
                "see the log, and install a version that can process it"
            )

    def record_commit(self, topic_partition: TopicPartition, following: int) -> None:
        """End the failures if the commit goes beyond the failed record.

        After a restore, a partition repeats commits of other inputs and of earlier records, so they
        do not end the series. If no record failed, any commit ends a series of Kafka's failures.
        """
        failed = self._failed_at
        if failed is None:
            if self._last_failure_was_kafka:
                self.recover()
        elif failed.topic_partition == topic_partition and following > failed.offset:
            self.recover()

    def record_opening(self) -> None:
        """Drop the reason if the opening of a session was refused: this one was not, so the topics are accepted."""
        if self._was_refused_at_opening:
            self.stop_reason, self._was_refused_at_opening = "", False
            if self._failed_at is None:
                self.recover()

    def recover(self) -> None:
        """Forget the failures."""
        self.failing_since, self.failures, self.stop_reason = None, 0, ""
        self._failed_at, self._tries, self._last_failure_was_kafka = None, 0, False
        self._was_refused_at_opening = False


class InputWentBackError(LoggableError):
    """An input topic was recreated or truncated while it was read."""


class ProcessingError(RuntimeError):
    """The processor failed at a record, or at a batch that begins with it; the cause is chained."""

    def __init__(self, place: InputPlace) -> None:
        super().__init__(str(place))
        self.place = place


class BatchLoop:
    """Processes the records of one partition, across its sessions.

    Processors refuse invalid records. Any other error is a fault of Sotto or of its environment: the
    task fails and retries from the last commit, so no valid question is refused or skipped.
    """

    def __init__(
        self,
        partition: int,
        equipment: Equipment,
        stopping: asyncio.Event,
        step: TaskStep,
        health: PartitionHealth,
    ) -> None:
        self._partition = partition
        self._role = equipment.role
        self._run_in_thread = equipment.run_in_thread
        self._offsets = equipment.offsets_consumer
        self._metrics = equipment.metrics
        self._stopping = stopping
        self._step = step
        self._health = health
        self.cancelled = threading.Event()
        self._failed: dict[TopicPartition, int] = {}
        """Last offset of each failed batch; up to it, records are retried one by one to find the cause."""
        self._log = get_logger("engine").bind(role=self._role.name, partition=partition)

    async def fetch(
        self, session: PartitionSession, topic_partitions: Sequence[TopicPartition], wait_ms: int
    ) -> Fetched:
        """Return the fetched records of ``topic_partitions``; wait for about ``wait_ms`` if there are none."""
        self._step.enter("waiting")
        return await session.prefetch.take(topic_partitions, wait_ms)

    async def apply_lookup_records(
        self, session: PartitionSession, topic_partition: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        """Apply new records of a lookup topic, such as ``control``."""
        if new_records := self._select_unprocessed(session, topic_partition, records):
            processor, readable = session.processor, select_readable(new_records, self._metrics.unreadable)
            outputs = await self.run_step(session, processor.apply_lookup_records, readable, in_thread=True)
            await self.commit(session, outputs)
            session.positions[topic_partition] = new_records[-1].offset + 1
            # In a thread, because checking a million streams takes as long as a batch.
            await self.run_step(session, session.refusals.report, processor, in_thread=True)

    async def answer(
        self, session: PartitionSession, topic_partition: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> None:
        """Answer records in batches, one transaction each, and read control events between batches.

        After an order to stop, the remaining records stay unanswered. The next owner of the partition
        reads them again; if that is this process, it reads them after its next seek.
        """
        records = self._select_unprocessed(session, topic_partition, records)
        lookup_topics = [TopicPartition(topic, self._partition) for topic in session.processor.lookup_topics]
        while records:
            count = await self._answer_batch(session, topic_partition, records)
            if records := records[count:]:
                for lookup_topic, control_records in (await self.fetch(session, lookup_topics, 0)).items():
                    await self.apply_lookup_records(session, lookup_topic, control_records)
                if self._stopping.is_set():
                    return

    async def run_step(
        self,
        session: PartitionSession,
        step: Callable[[Argument], Result],
        argument: Argument,
        *,
        records: Sequence[RecordLike] = (),
        in_thread: bool | None = None,
    ) -> Result:
        """Run a step of the processor, by default in a thread if ``processor.runs_in_thread``.

        If a step on ``records`` fails, the error names the first record, and a retry processes the records
        one by one.

        Raises:
            ProcessingError: the step on ``records`` failed.
        """
        self._step.enter("working")
        try:
            if session.processor.runs_in_thread if in_thread is None else in_thread:
                current_cancellation.set(self.cancelled)
                return await self._run_in_thread(step, argument)
            return step(argument)
        except (MissedRecordError, InputRefusedError, CancelledStepError):
            raise
        except Exception as error:
            if not records:
                raise
            last = records[-1]
            topic_partition = TopicPartition(last.topic, last.partition)
            self._failed[topic_partition] = max(self._failed.get(topic_partition, -1), last.offset)
            raise ProcessingError(InputPlace(topic_partition, records[0].offset)) from error

    async def run_idle(self, session: PartitionSession, *, in_thread: bool, idle: bool) -> None:
        """Run the processor's timed work and commit its outputs."""
        outputs = await self.run_step(
            session, session.processor.collect_due_outputs, time.monotonic(), in_thread=in_thread
        )
        await self.commit(session, outputs, idle=idle)

    async def commit(self, session: PartitionSession, outputs: Outputs, *, idle: bool = False) -> None:
        """Add these outputs to the buffer, and commit the buffer's content if it is due."""
        if (due := session.output_buffer.add_and_take_due(outputs, time.monotonic(), idle=idle)) is not None:
            self._step.enter("writing")
            await session.writer.commit(*due)
            self._role.guard.note_committed(self._partition, session.processor)

    def _select_unprocessed(
        self, session: PartitionSession, topic_partition: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> Sequence[ConsumerRecord]:
        """Return the records at or after the position; the first fetch after a seek may have earlier ones."""
        if not records:
            return records
        position = session.positions[topic_partition]
        if records[0].offset >= position:
            session.without_records_yet.discard(topic_partition)
            return records
        if topic_partition not in session.without_records_yet:
            raise InputWentBackError(
                f"{topic_partition.topic} went back from offset {position} to {records[0].offset}"
            )
        return [record for record in records if record.offset >= position]

    async def _answer_batch(
        self, session: PartitionSession, topic_partition: TopicPartition, records: Sequence[ConsumerRecord]
    ) -> int:
        """Answer the first records, as many as one step processes, and return their number."""
        began, processor = time.monotonic(), session.processor
        if records[0].offset <= self._failed.get(topic_partition, -1):
            records = records[:1]  # these records belong to a batch that failed
        else:
            self._failed.pop(topic_partition, None)
        batch = await self.run_step(session, processor.prepare, records, records=records)
        records = batch.records
        if batch.needs_lookup_topics:
            await self._follow_to_end(session)
            batch = await self.run_step(session, processor.prepare, records, records=records)
            records = batch.records
        report_unreadable(records, self._metrics.unreadable)
        place = {
            "messaging.destination.name": topic_partition.topic,
            "messaging.destination.partition.id": self._partition,
        }
        with batch_span(f"{self._role.name} answers", records, place):
            outputs = await self.run_step(session, processor.process, batch, records=records)
            position = records[-1].offset + 1
            session.offsets.note_answered(topic_partition, position)
            await self.commit(session, outputs)
            self._metrics.busy_refusals.inc(outputs.busy)
            session.positions[topic_partition] = position
            self._health.record_commit(topic_partition, position)
        self._metrics.events.inc(len(records))
        self._metrics.batch_seconds.observe(time.monotonic() - began)
        return len(records)

    async def _follow_to_end(self, session: PartitionSession) -> None:
        """Read the lookup topics up to their high watermarks, before a query's stream counts as unknown.

        A client may ask as soon as its stream is granted. At that time the transaction with the stream's
        definition may not be visible yet.
        """
        lookup_topics = [TopicPartition(topic, self._partition) for topic in session.processor.lookup_topics]
        self._step.enter("waiting")
        ends = await self._offsets.end_offsets(lookup_topics)
        deadline = time.monotonic() + CONTROL_WAIT_SECONDS
        while time.monotonic() < deadline:
            behind = [one for one in lookup_topics if not await session.prefetch.has_reached(one, ends[one])]
            if not behind:
                return
            for topic_partition, records in (await self.fetch(session, behind, CONTROL_FETCH_MS)).items():
                await self.apply_lookup_records(session, topic_partition, records)
