"""The processor of the budget service: requests and charges in, ledger and control out.

The ledger topic is the source of truth and this processor's changelog. Requests are idempotent: a
request with a known id gets its first receipt again and changes nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Final

from schemas import (
    Charge,
    GrantRecord,
    LedgerProgress,
    Request,
    RetiredAnswer,
    TrailHead,
    WaitingRequest,
    charge_codec,
    ledger_codec,
    request_codec,
    subject_of,
)
from schemas.wire import MalformedEventError
from stream.budget.decision_records import ControlPublisher, TrailWriter, build_retired_answer
from stream.budget.receipts import CollectedRecords, LedgerWrite
from stream.budget.request_handler import RequestHandler
from stream.budget.waiting_requests import (
    TableNotReadError,
    TableReadings,
    WaitingRequests,
    count_requests_of_step,
)
from stream.privacy.composition.costs import RefusedError
from stream.privacy.ledger.ledger_records import (
    exhausted_reason,
    restore_ends,
    restore_ledger,
    retire_periods,
    retire_stream,
)
from stream.privacy.ledger.retirement import MAX_RETIRED_PER_STEP
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.dead_letters import Rejection, UnreadableValue, dead_letter, malformed_rejection
from stream.processing.digest_table import DigestTable
from stream.processing.protocol import PROGRESS_KEY, Batch, Outputs, RecordLike, topic_id_headers, topic_ids_of
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.tables.store import TableStore


class LedgerClock:
    """The current time by the events' timestamps, in milliseconds since 1970.

    After the latest event, the clock advances with a monotonic clock.
    """

    def __init__(self) -> None:
        self._started_at: tuple[int, float] | None = None

    def now(self, latest: int, monotonic: float) -> int:
        """Return the time, given the latest event's time and the seconds of a monotonic clock."""
        if self._started_at is None or latest > self._started_at[0] + 1000 * (monotonic - self._started_at[1]):
            self._started_at = (latest, monotonic)
        return self._started_at[0] + int(1000 * (monotonic - self._started_at[1]))


MAX_CHARGES_PER_STEP = 1_000
"""Maximum number of charges in one step."""

LEAST_RETIRED_PER_PARTITION: Final = 16
"""Minimum number of streams per partition that are retired together before ``MAX_RETIREMENT_DELAY_MS`` have passed."""
MAX_RETIREMENT_DELAY_MS: Final = 3_600_000

MAX_RENEWALS_PER_CALL = 100
"""Maximum number of budgets that one call of ``collect_due_outputs`` renews."""


class BudgetProcessor:
    """Decides requests and adds charges to the ledger of all sources."""

    def __init__(
        self,
        topics: Topics,
        partition: int,
        *,
        key_id: str,
        tables: TableStore,
        new_incarnation: Callable[[RecordLike], bytes],
        retire_after_ms: int = 0,
        threads: Executor | None = None,
    ) -> None:
        """``new_incarnation`` returns 16 unpredictable bytes for a request.

        Tables are read in ``threads`` or, without threads, while a request is decided. A stream is retired
        ``retire_after_ms`` after its end by the ledger's clock; if this time is 0, no stream is retired.
        """
        self.inputs = (topics.requests, topics.charges)
        self.lookup_topics: tuple[str, ...] = ()
        self.changelog = topics.ledger
        self.answers_are_repeatable = False
        self.runs_in_thread = True
        self.ledger = Ledger(DigestTable())
        self._topics = topics
        self._partition = partition
        self._control_publisher = ControlPublisher(topics)
        self._readings = TableReadings(tables, threads)
        self._waiting = WaitingRequests()
        self.request_handler = RequestHandler(
            self.ledger,
            self._control_publisher,
            topics,
            key_id=key_id,
            readings=self._readings,
            new_incarnation=new_incarnation,
        )
        self._trail = TrailWriter(topics, self.ledger)
        self._clock = LedgerClock()
        self._retire_after_ms = retire_after_ms
        self._least_retired_together = min(
            MAX_RETIRED_PER_STEP, LEAST_RETIRED_PER_PARTITION * max(4, topics.partitions)
        )
        self._next_offsets = dict.fromkeys(self.inputs, 0)
        self.topic_ids: dict[str, str] = {}
        self._collected = CollectedRecords(topics.ledger, partition, self.ledger.retired_names)

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect the ledger's records; ``end_restore`` decodes the latest one of each key."""
        self._collected.add(records)

    def end_restore(self) -> Mapping[str, int]:
        """Rebuild the accounts from the collected records; return the inputs' next offsets."""
        collected = self._collected
        ends: list[tuple[str, str, int]] = []
        with _gc_disabled():
            self.request_handler.receipts.restore(collected.take_receipts())
            others = collected.take_others()
            restore_ledger(self.ledger, (entry for _, entry in others), _note_ends(collected.take_grants(), ends))
        restore_ends(self.ledger, ends)
        self._waiting.restore(entry for _, entry in others if isinstance(entry, WaitingRequest))
        for record, progress in others:
            if isinstance(progress, LedgerProgress):
                self.topic_ids = topic_ids_of(record)
                self._next_offsets = dict(zip(self.inputs, (progress.requests, progress.charges), strict=True))
                self._trail.restore(progress.trail)
        return dict(self._next_offsets)

    @property
    def trail_head(self) -> TrailHead | None:
        """The trail's head after all outputs so far; None without a trail."""
        return self._trail.head

    def take_largest_grant(self) -> float | None:
        """Return the largest ε granted since the last call; None without a grant."""
        return self._trail.take_largest_grant()

    def restart_input(self, topic: str) -> None:
        """Accept a recreated topic, which is read from offset 0: a repeated request or charge changes nothing."""
        self._next_offsets[topic] = 0

    def apply_lookup_records(self, records: Sequence[RecordLike]) -> Outputs:
        """Return no outputs: this processor has no lookup topics."""
        del records
        return Outputs()

    def collect_due_outputs(self, now: float) -> Outputs:
        """Decide requests whose tables have been read, renew budgets, and write totals to the trail."""
        outputs = Outputs()
        self._decide_waiting(outputs)
        clock = self._clock.now(self.ledger.clock, now)
        over = [owner for owner in self.ledger.renewing_owners if owner.budget.period_is_over(clock)]
        if over:
            self.ledger.advance_clock(clock)
            for owner in over[:MAX_RENEWALS_PER_CALL]:
                self.ledger.begin_due_period(owner)
            self._trail.write_renewals(outputs)
        self._trail.write_points_when_quiet(now, outputs)
        self._retire_streams(outputs)
        self._write_changes(outputs)
        if outputs:
            self._write_progress(outputs)
        return outputs

    @property
    def has_finished_readings(self) -> bool:
        """True if waiting requests can be decided by ``collect_due_outputs``."""
        return bool(self._waiting.list_ready())

    def cancel_readings(self) -> None:
        """Cancel the readings of tables, because this process gives up the partition."""
        self._readings.cancel()

    def _decide_waiting(self, outputs: Outputs) -> None:
        """Decide waiting requests, as many as one step processes; requests about one subject keep their order."""
        ready = self._waiting.list_ready()
        for held in ready[: count_requests_of_step([held.record for held in ready], self.ledger)]:
            self._trail.ensure_begun(outputs)
            try:
                self._decide(held.record, held.request, outputs)
            except TableNotReadError as unread:
                held.reading = unread.reading
                return
            self._trail.write_renewals(outputs)
            self._write_ledger([self._waiting.remove(held)], outputs)

    def _retire_streams(self, outputs: Outputs) -> None:
        """Retire streams whose retention is over, many at a time.

        Each call that retires streams writes the newest block of retired names again, and a record per partition
        to ``control``. So a few streams wait for others until ``MAX_RETIREMENT_DELAY_MS`` have passed.
        """
        if not self._retire_after_ms:
            return
        ended_by = self.ledger.clock - self._retire_after_ms
        ended = self.ledger.ended_streams
        due = ended.list_ended_by(ended_by)
        delay = min(MAX_RETIREMENT_DELAY_MS, self._retire_after_ms // 8)
        if len(due) >= self._least_retired_together or ended.list_ended_by(ended_by - delay):
            answers: dict[str, RetiredAnswer] = {}
            for source, stream in due:
                answers[stream] = build_retired_answer(*self.ledger.find_stream(source, stream))
                retire_stream(self.ledger, source, stream)
            self._control_publisher.publish_retired(answers, outputs)
            retire_periods(self.ledger, ended_by)

    def prepare(self, records: Sequence[RecordLike]) -> Batch:
        """Return the first records, at most the number that one step may process."""
        if records and records[0].topic == self._topics.charges:
            return Batch(records[:MAX_CHARGES_PER_STEP])
        return Batch(records[: count_requests_of_step(records, self.ledger)])

    def process(self, batch: Batch) -> Outputs:
        """Process requests or charges in order."""
        outputs, records = Outputs(), batch.records
        for record in records:
            self.ledger.advance_clock(record.timestamp)
            self._trail.ensure_begun(outputs)
            try:
                if isinstance(record.value, UnreadableValue):
                    self._reject(outputs, record, record.value.rejection)
                elif record.topic == self._topics.charges:
                    self._process_charge(charge_codec.decode(record.value), outputs)
                else:
                    self._process_request(record, request_codec.decode(record.value), outputs)
            except MalformedEventError as error:
                self._reject(outputs, record, malformed_rejection(str(error)))
            except RefusedError as refused:  # only charges: a refused request gets a receipt
                self._reject(outputs, record, Rejection("refused", refused.reason))
            self._trail.write_renewals(outputs)
        self._trail.write_due_points(outputs)
        self._write_changes(outputs)
        if records:
            self._next_offsets[records[-1].topic] = records[-1].offset + 1
            self._write_progress(outputs)
        return outputs

    def _write_progress(self, outputs: Outputs) -> None:
        requests, charges = (self._next_offsets[topic] for topic in self.inputs)
        progress = LedgerProgress(requests=requests, charges=charges, trail=self._trail.head)
        headers = topic_id_headers(self.topic_ids)
        outputs.add(self._topics.ledger, self._partition, (PROGRESS_KEY, ledger_codec.encode(progress), headers))

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        partition = partition_of(record.key or b"", self._topics.partitions)
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))

    def _process_request(self, record: RecordLike, request: Request, outputs: Outputs) -> None:
        """Decide a request; it waits if its table is being read, or if earlier requests about its subject wait."""
        reading = None
        if not self._waiting.has(subject_of(request)[0]):
            try:
                self._decide(record, request, outputs)
            except TableNotReadError as unread:
                reading = unread.reading
            else:
                return
        self._write_ledger([self._waiting.add(record, request, reading)], outputs)

    def _decide(self, record: RecordLike, request: Request, outputs: Outputs) -> None:
        """Process a request and write its receipt; write a trail entry unless it is a repeat.

        Raises:
            TableNotReadError: the request's table is being read; nothing has changed.
        """
        receipt, writes, is_new = self.request_handler.handle(record, request, outputs)
        self._write_ledger(writes, outputs)
        if is_new:
            self._trail.write_decision(request, receipt, outputs)
        for account in self.request_handler.periods.drain_begun():
            self._trail.write_period(receipt, account, outputs)
        self._readings.forget(subject_of(request)[0])

    def _process_charge(self, charge: Charge, outputs: Outputs) -> None:
        if self.ledger.retired_names.has("stream", charge.stream):
            return  # a repeated charge, because a stream is retired after its worker has reported the last totals
        account, grant = self.ledger.find_stream(charge.source, charge.stream)
        before = grant.state
        changed = self.ledger.record_charge(
            charge.source,
            charge.stream,
            charge.incarnation,
            answered=charge.answered,
            tops=charge.tops,
            surplus=charge.surplus,
            state=charge.state,
            reason=charge.reason,
        )
        if not changed:
            return
        # Publish even an end that a worker has reported, because the stream's next worker must not answer.
        reason = charge.reason or "halted by its worker"
        ended = grant.state == "halted" and self.ledger.end_stream(charge.source, charge.stream, "halted", reason)
        if grant.state == "exhausted" and grant.ending is None:
            grant.reason, ended = exhausted_reason(grant.calibration, grant.cutoff), True
        if ended:
            self._control_publisher.publish_control(account, grant, outputs)
        if grant.state == before:
            self._trail.schedule_point(account)
        else:
            self._trail.write_end(account, grant, outputs)

    def _write_ledger(self, writes: Iterable[LedgerWrite], outputs: Outputs) -> None:
        for key, value in writes:
            outputs.add(self._topics.ledger, self._partition, (key, value, ()))

    def _write_changes(self, outputs: Outputs) -> None:
        for source, key, record in self.ledger.drain_changes():
            value = None if record is None else ledger_codec.encode(record)
            partition = partition_of(source.encode(), LEDGER_PARTITIONS)
            outputs.add(self._topics.ledger, partition, (key, value, ()))


def _note_ends(
    grants: Iterable[tuple[GrantRecord, int]], ends: list[tuple[str, str, int]]
) -> Iterator[GrantRecord]:
    """Yield grants, and note the source, name and time of each ended stream with final totals."""
    for grant, timestamp in grants:
        if grant.settled:
            ends.append((grant.spec.source, grant.spec.stream, timestamp))
        yield grant


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection during a restore, which creates many objects and frees few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
