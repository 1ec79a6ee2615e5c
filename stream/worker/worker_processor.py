"""The worker's processor: answers the queries of one partition."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Progress
from schemas.answers import (
    ANSWER_TYPE,
    CLOUD_EVENTS_VERSION,
    CONTENT_TYPE,
    MAX_TRACEPARENT,
    MAX_TRACESTATE,
    MAX_TRACESTATE_MEMBERS,
    TRACEPARENT,
)
from schemas.wire import struct
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Headers, Message, Outputs, RecordLike
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.admission import Admission, AdmittedBatch, QueryBatch
from stream.worker.answer_publishing import ColumnPublisher, ReplyPublisher
from stream.worker.fair_shares import NO_LIMITS, SECOND, Limits, Shares
from stream.worker.families import create_families
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.families.sparse_vector_family import QuestionRows, QuestionStreams
from stream.worker.hosted_streams import HALTED, HostedStreams
from stream.worker.output_encoding import OutputEncoder
from stream.worker.stream_control import StreamControl, WorkerRestore
from stream.worker.table_loads import PartitionTables, TableLoads

MAX_BATCH_WORK = 3 * SECOND // 20
"""Maximum work per batch, so that a batch is committed early and the service can stop in time."""

STATUS_SECONDS = 2.0
"""Seconds between two status records of one stream."""

_WireProgress: Any = struct(Progress)


class QueryProcessor:
    """Answers the queries of one partition's streams."""

    def __init__(
        self,
        topics: Topics,
        partition: int,
        key: NoiseKey,
        tables: TableStore,
        limits: Limits = NO_LIMITS,
        loads: TableLoads | None = None,
    ) -> None:
        """Limit outstanding work by ``limits``, which must be equal on all workers.

        ``loads`` loads tables beside the steps; without it, steps load them.
        """
        self.inputs = (topics.queries,)
        self.lookup_topics = (topics.control,)
        self.changelog = topics.state
        self.streams = HostedStreams(key)
        self._topics = topics
        self._partition = partition
        self._encoder = OutputEncoder(topics, partition, self.streams)
        self._tables = PartitionTables(self.streams, loads or TableLoads(tables))
        context = Context(self.streams, tables, topics.queries, partition, self._tables.await_slots)
        self._reply_publisher = ReplyPublisher(self.streams, self._encoder)
        self._column_publisher = ColumnPublisher(self.streams, self._encoder)
        self._families = create_families(context)
        self._limits_work = limits.outstanding > 0
        self._admission = Admission(topics, context, self._families, Shares(limits))
        self._progress = _WireProgress(0)
        streams, stream_families, admission = self.streams, self._families, self._admission

        # Not a method: a reference to the processor would keep its memory and files until a full garbage collection.
        def forget_slot(slot: int) -> None:
            stream_families.forget_stream(streams.kinds[slot], slot)
            admission.shares.forget(slot)

        self._control = StreamControl(streams, self._tables, topics.state, forget_slot)
        self._restore = WorkerRestore(topics.control, self._control, self.streams)
        self._status_due = 0.0

    @property
    def topic_ids(self) -> dict[str, str]:
        """The id of the queries topic to which the progress belongs."""
        return self._restore.topic_ids

    def restart_input(self, topic: str) -> None:
        """Change nothing, because a stream halts if a query has an offset that it has already answered."""

    @property
    def runs_in_thread(self) -> bool:
        """True if questions may take long; False if all streams are sparse vectors over values in queries."""
        return self._control.runs_in_thread

    @property
    def answers_are_repeatable(self) -> bool:
        """True if control events and queries alone would give the same answers again."""
        return self._control.answers_are_repeatable

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect control events and checkpoints; each topic's records must come in order."""
        self._restore.collect(records)

    def end_restore(self) -> Mapping[str, int]:
        """End the restore and return the next offset of queries; 0 if the changelog has none."""
        self._restore.end(self._families)
        self._progress = progress = self._restore.progress or self._progress
        self.streams.mark_uncertain_status(recent=int(5000 * STATUS_SECONDS))
        due = self.streams.columns.due[: len(self.streams)]
        due_of_busy_slot = {slot: int(due[slot]) for slot in np.flatnonzero(due > progress.served).tolist()}
        self._admission.shares.resume(progress.clock, progress.served, due_of_busy_slot)
        return {self._topics.queries: progress.offset}

    def apply_lookup_records(self, records: Sequence[RecordLike]) -> Outputs:
        """Apply control events; write the last totals of each ended stream once, and drop retired streams."""
        return self._apply_events(records, may_hold=True)

    def _apply_events(self, records: Sequence[RecordLike], *, may_hold: bool) -> Outputs:
        slots = self._control.apply_events(records, may_hold=may_hold)
        slots = self._control.drop_retired([*slots, *self._control.find_deleted_slots(records)])
        self._control.refuse_unanswerable_streams(np.array(slots, dtype=np.intp))
        return self._end_streams()

    def refusals(self) -> Mapping[str, int]:
        """Count the open streams that this worker refuses, by reason."""
        return self.streams.refusals()

    @property
    def has_finished_readings(self) -> bool:
        """True if a table has been loaded."""
        return self._tables.has_finished

    def cancel_readings(self) -> None:
        """Cancel the loads of tables, because this process gives up the partition."""
        self._tables.cancel()

    def prepare(self, records: Sequence[RecordLike]) -> QueryBatch:
        """Decode the records of one step: all records or, in a thread, up to ``MAX_BATCH_WORK``.

        ``needs_lookup_topics`` is True if a query names a stream that no control event has defined yet.
        """
        return self._admission.read_queries(records, MAX_BATCH_WORK if self.runs_in_thread else math.inf)

    def collect_due_outputs(self, now: float) -> Outputs:
        """Take in loaded tables, end streams, and write status records of changed streams once per interval."""
        outputs = (
            self._apply_events(self._tables.take_ended_loads(), may_hold=False)
            if self._tables.has_finished
            else self._end_streams()
        )
        if now >= self._status_due:
            self._status_due = now + STATUS_SECONDS
            changed = np.flatnonzero(self.streams.columns.status_changed[: len(self.streams)])
            self._encoder.write_status(outputs, changed)
            self.streams.columns.status_changed[changed] = False
        return outputs

    def process(self, batch: QueryBatch) -> Outputs:
        """Answer queries in order; an invalid query does not affect the others."""
        charged, records = self._take_shares(batch), batch.records
        outputs = self._end_streams()
        if not records:
            return outputs
        can_answer = self.streams.life.can_answer
        self._tables.await_slots(slot for _, slot, _ in batch.unresolved if can_answer(slot))
        admitted = self._admission.admit(batch)
        answers: list[Message | None] = [None] * (len(records) - len(admitted.rows.slots) and len(records))
        for place, rejection in admitted.rejected:
            answers[place] = self._encoder.write_rejection(outputs, records[place], rejection)
        for place, query, answer in batch.retired:
            answers[place] = self._reply_publisher.encode_retired(query, answer)
        in_columns = self._answer_admitted(admitted, answers, outputs)
        merged: Sequence[Message] = in_columns
        if answers or not isinstance(records, RecordColumns):
            answers = answers or [None] * len(records)
            for place, message in zip(admitted.rows.places.tolist(), in_columns, strict=True):
                answers[place] = message
            merged = with_answer_headers(self._topics.answers, records, answers)
        outputs.extend(self._topics.answers, self._partition, merged)
        self._write_progress(outputs, records[-1], charged)
        return outputs

    def _take_shares(self, batch: QueryBatch) -> Sequence[int]:
        """Store the fair shares after a batch, and return the slots whose shares have changed."""
        shares = self._admission.shares = batch.shares
        charged = list(dict.fromkeys(slot for _, slot, _ in batch.unresolved)) if self._limits_work else []
        for slot in charged:
            self.streams.columns.due[slot] = shares.due.get(slot, shares.served)
        return charged

    def _write_progress(self, outputs: Outputs, last: RecordLike, charged: Sequence[int]) -> None:
        """Write the partition's progress, and the shares of charged streams without a checkpoint."""
        written = (
            {key for key, *_ in outputs.messages.get((self._topics.state, self._partition), ())} if charged else ()
        )
        missing = [slot for slot in charged if self.streams.names[slot].encode() not in written]
        self._encoder.write_checkpoints(outputs, np.array(missing, dtype=np.intp))
        shares = self._admission.shares
        self._progress = _WireProgress(last.offset + 1, shares.clock, shares.served)
        self._encoder.write_progress(outputs, self._progress, self.topic_ids)

    def _end_streams(self) -> Outputs:
        outputs = Outputs()
        ended = self._control.end_streams()
        if len(ended):
            self._encoder.write_checkpoints(outputs, ended)
            self._encoder.write_charges(outputs, ended)
        if stale_keys := self._control.drain_stale_keys():
            self._encoder.delete_records(outputs, stale_keys)
        return outputs

    def _answer_admitted(
        self, batch: AdmittedBatch, answers: list[Message | None], outputs: Outputs
    ) -> Sequence[Message]:
        """Return the answers to ``batch.rows``; put the other answers into ``answers``."""
        rows, questions = batch.rows, batch.questions
        if not len(rows.slots) and not questions:
            return ()
        streams = QuestionStreams.from_rows(rows, self.streams.columns)
        parts = (self._halt_replayed(rows, streams, questions), self._halt_asked_again(rows, questions))
        replayed = np.unique(np.concatenate(parts)) if any(map(len, parts)) else parts[0]
        if len(replayed):
            streams = QuestionStreams.from_rows(rows, self.streams.columns)
        in_columns: Sequence[Message] = ()
        if len(rows.slots):
            verdicts = self._families.in_columns.decide(rows, streams)
            in_columns = self._column_publisher.publish(rows, verdicts, outputs)
        by_kind: dict[str, list[AdmittedQuestion]] = {}
        for one in questions:
            by_kind.setdefault(self.streams.kinds[one.slot], []).append(one)
        for kind, members in by_kind.items():
            self._reply_publisher.publish(self._families.one_by_one[kind], members, answers, outputs)
        self._encoder.write_checkpoints(outputs, replayed)
        self._encoder.write_charges(outputs, replayed)
        return in_columns

    def _halt_replayed(
        self, rows: QuestionRows, streams: QuestionStreams, questions: Sequence[AdmittedQuestion]
    ) -> npt.NDArray[np.intp]:
        """Halt streams that have already answered a query at the same offset: the topic was recreated."""
        replayed = rows.slots[rows.offsets <= streams.columns.last_offset[streams.stream_of]]
        if questions:
            last_offset = self.streams.columns.last_offset
            again = [one.slot for one in questions if one.offset <= last_offset[one.slot]]
            replayed = np.append(replayed, np.array(again, dtype=np.intp))
        return self._halt_streams(
            np.unique(replayed).tolist(),
            lambda slot: (
                f"replayed: {self._topics.queries} has repeated an offset up to {self.streams.columns.last_offset[slot]}, which this "
                "stream has answered (topic recreated or offsets reset); open a new stream"
            ),
        )

    def _halt_asked_again(self, rows: QuestionRows, questions: Sequence[AdmittedQuestion]) -> npt.NDArray[np.intp]:
        """Halt standing streams that are asked about a window again: the merging feed lost its state.

        Later questions may be wrong too, such as the sums of a running count.
        """
        life, latest, again = self.streams.life, dict[int, int](), set[int]()
        windows_and_groups = [(one.slot, one.window_and_group) for one in questions]
        if windows := rows.windows_and_groups:
            slots_and_places = zip(rows.slots.tolist(), rows.places.tolist(), strict=True)
            windows_and_groups += [(slot, windows.get(place)) for slot, place in slots_and_places]
        for slot, window_and_group in windows_and_groups:
            if window_and_group is None:
                continue
            if window_and_group.turn <= latest.get(slot, life.last_turns.get(slot, 0)):
                again.add(slot)
            latest[slot] = window_and_group.turn
        return self._halt_streams(
            sorted(again),
            lambda _: (
                f"asked again: a question repeats a window of an earlier one ({self._topics.merges} was lost or set back, with "
                "its consumer group's offsets); open a new stream"
            ),
        )

    def _halt_streams(self, slots: Sequence[int], reason: Callable[[int], str]) -> npt.NDArray[np.intp]:
        end = self.streams.life.end_stream
        return np.array([slot for slot in slots if end(slot, HALTED, reason(slot))], dtype=np.intp)


_traceparent = re.compile(TRACEPARENT.removesuffix("$").encode() + rb"\Z")
_tracestate_member = re.compile(
    rb"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]\Z"
)
_RELEVANT_HEADERS: Final = frozenset({"ce_specversion", "traceparent", "tracestate"})


def with_answer_headers(
    topic: str, records: Sequence[RecordLike], answers: Sequence[Message | None]
) -> list[Message]:
    """Return the answers that are not None, with the headers that their queries request."""
    return [
        (answer[0], answer[1], answer_headers(topic, record, answer[0] or b"")) if record.headers else answer
        for record, answer in zip(records, answers, strict=True)
        if answer is not None
    ]


def answer_headers(topic: str, record: RecordLike, stream: bytes) -> Headers:
    """Return the headers of an answer on ``topic``; none if the query requests none.

    If a query has ``ce_specversion`` 1.0, its answer is a CloudEvent whose id is the query's position. A
    well-formed ``traceparent`` is copied, together with a well-formed ``tracestate``. A repeated header
    counts as malformed.
    """
    query_headers = _relevant_headers(record.headers)
    return (*_cloud_event(topic, record, stream, query_headers), *_trace_context(query_headers))


def _relevant_headers(headers: Headers) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _RELEVANT_HEADERS:
            found[name] = b"" if name in found else value or b""
    return found


def _cloud_event(
    topic: str, record: RecordLike, stream: bytes, query_headers: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    if query_headers.get("ce_specversion") != CLOUD_EVENTS_VERSION:
        return
    yield "content-type", CONTENT_TYPE
    yield "ce_specversion", CLOUD_EVENTS_VERSION
    yield "ce_id", f"{record.partition}-{record.offset}".encode()
    yield "ce_source", f"/{topic}".encode()
    yield "ce_type", ANSWER_TYPE
    yield "ce_subject", stream


def _trace_context(query_headers: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    parent, state = query_headers.get("traceparent", b""), query_headers.get("tracestate", b"")
    if len(parent) > MAX_TRACEPARENT or not _traceparent.match(parent):
        return
    yield "traceparent", parent
    if _is_well_formed(state):
        yield "tracestate", state


def _is_well_formed(tracestate: bytes) -> bool:
    if len(tracestate) > MAX_TRACESTATE:
        return False
    members = [stripped for member in tracestate.split(b",") if (stripped := member.strip(b" \t"))]
    names = {member.partition(b"=")[0] for member in members}
    return 0 < len(members) == len(names) <= MAX_TRACESTATE_MEMBERS and all(map(_tracestate_member.match, members))
