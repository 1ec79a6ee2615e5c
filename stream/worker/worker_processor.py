"""The worker's processor: answers the queries of one partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import Progress
from schemas.wire import struct
from stream.privacy.noise import NoiseKey
from stream.processing.protocol import Message, Outputs, RecordLike
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import Topics
from stream.tables import TableStore
from stream.worker.admission import Admission, AdmittedBatch, QueryBatch
from stream.worker.answer_encoding import Replies
from stream.worker.answer_headers import with_answer_headers
from stream.worker.answer_publishing import ColumnPublisher, Publisher
from stream.worker.control_records import Control, WorkerRestore
from stream.worker.fair_shares import NO_LIMITS, SECOND, Limits, Shares
from stream.worker.families import families
from stream.worker.families.family import AdmittedQuestion, Context
from stream.worker.families.question_columns import QuestionRows, Streams
from stream.worker.hosted_streams import HALTED, HostedStreams

WORK_AT_ONCE = 3 * SECOND // 20
"""Work per batch; a small batch commits early and lets the service stop in time."""

STATUS_SECONDS = 2.0
"""Seconds between two status records of one stream."""

_WireProgress: Any = struct(Progress)


class QueryProcessor:
    """Answers the queries of one partition's streams."""

    def __init__(
        self, topics: Topics, partition: int, key: NoiseKey, tables: TableStore, limits: Limits = NO_LIMITS
    ) -> None:
        """Limit outstanding work by ``limits``, which must be equal on all workers."""
        self.inputs = (topics.queries,)
        self.tables = (topics.control,)
        self.changelog = topics.state
        self.streams = HostedStreams(key)
        self._topics = topics
        self._partition = partition
        self._replies = Replies(topics, partition, self.streams)
        context = Context(self.streams, tables, topics.queries, partition)
        self._publisher = Publisher(self.streams, self._replies)
        self._column_publisher = ColumnPublisher(self.streams, self._replies)
        self._families = families(context)
        self._limited = limits.outstanding > 0
        self._admission = Admission(topics, context, self._families, Shares(limits))
        self._progress = _WireProgress(0)
        self._control = Control(self.streams, tables, topics.state)
        self._restore = WorkerRestore(topics.control, self._control, self.streams)
        self._status_due = 0.0

    @property
    def topic_ids(self) -> dict[str, str]:
        """The id of the queries topic that the progress belongs to."""
        return self._restore.topic_ids

    def recreated(self, topic: str) -> None:
        """Read recreated queries from the start; streams with later offsets then halt."""

    @property
    def heavy(self) -> bool:
        """Whether questions may take long, because some stream is not plain."""
        return self._control.heavy

    @property
    def repeatable(self) -> bool:
        """Whether control and queries alone would give the same answers again."""
        return self._control.repeatable

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect control events and checkpoints; each topic in order, the two in any order."""
        self._restore.collect(records)

    def restored(self) -> Mapping[str, int]:
        """End the restore and return the next query offset, 0 if the changelog holds none."""
        self._restore.end(self._families)
        self._progress = progress = self._restore.progress or self._progress
        self.streams.show_resumed(recent=int(5000 * STATUS_SECONDS))
        due = self.streams.columns.due[: len(self.streams)]
        waiting = {slot: int(due[slot]) for slot in np.flatnonzero(due > progress.served).tolist()}
        self._admission.shares.resume(progress.clock, progress.served, waiting)
        return {self._topics.queries: progress.offset}

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Apply control events; each stream that they end writes its last totals once."""
        self._control.refuse_unfit(np.array(self._control.define(records), dtype=np.intp))
        return self._settle()

    def refusals(self) -> Mapping[str, int]:
        """Count the open streams that this worker refuses, by reason."""
        return self.streams.refusals()

    def prepare(self, records: Sequence[RecordLike]) -> QueryBatch:
        """Decode the records of one step: all of them if the processor is not ``heavy``.

        The tables are needed if a query names a stream that no control event has defined yet.
        """
        return self._admission.read(records, WORK_AT_ONCE if self.heavy else math.inf)

    def idle(self, now: float) -> Outputs:
        """End streams, and write status records of changed streams once per interval."""
        outputs = self._settle()
        if now >= self._status_due:
            self._status_due = now + STATUS_SECONDS
            changed = np.flatnonzero(self.streams.columns.changed[: len(self.streams)])
            self._replies.status(outputs, changed)
            self.streams.columns.changed[changed] = False
        return outputs

    def process(self, batch: QueryBatch) -> Outputs:
        """Answer queries in order; an invalid query does not affect the others."""
        charged, records = self._charge(batch), batch.records
        outputs = self._settle()
        if not records:
            return outputs
        admitted = self._admission.admit(batch)
        answers: list[Message | None] = [None] * (len(records) - len(admitted.rows.slots) and len(records))
        for place, rejection in admitted.rejected:
            answers[place] = self._replies.reject(outputs, records[place], rejection)
        in_columns = self._answer(admitted, answers, outputs)
        outputs.extend(
            self._topics.answers, self._partition, self._in_order(records, admitted, answers, in_columns)
        )
        self._reached(outputs, records[-1], charged)
        return outputs

    def _in_order(
        self,
        records: Sequence[RecordLike],
        batch: AdmittedBatch,
        answers: list[Message | None],
        in_columns: Sequence[Message],
    ) -> Sequence[Message]:
        """Merge the answers in the order of records and add headers; keep columns if possible."""
        if not answers and isinstance(records, RecordColumns):
            return in_columns
        answers = answers or [None] * len(records)
        for place, answer in zip(batch.rows.places.tolist(), in_columns, strict=True):
            answers[place] = answer
        return with_answer_headers(self._topics.answers, records, answers)

    def _charge(self, batch: QueryBatch) -> Sequence[int]:
        """Keep the fair shares after a batch, and return the slots whose shares have changed."""
        shares = self._admission.shares = batch.shares
        charged = list(dict.fromkeys(slot for _, slot, _ in batch.waiting)) if self._limited else []
        for slot in charged:
            self.streams.columns.due[slot] = shares.due.get(slot, shares.served)
        return charged

    def _reached(self, outputs: Outputs, last: RecordLike, charged: Sequence[int] = ()) -> None:
        """Write the partition's progress, and the shares of streams without a checkpoint."""
        written = (
            {key for key, *_ in outputs.messages.get((self._topics.state, self._partition), ())} if charged else ()
        )
        missing = [slot for slot in charged if self.streams.key(slot) not in written]
        self._replies.checkpoints(outputs, np.array(missing, dtype=np.intp))
        shares = self._admission.shares
        self._progress = _WireProgress(last.offset + 1, shares.clock, shares.served)
        self._replies.progress(outputs, self._progress, self.topic_ids)

    def _settle(self) -> Outputs:
        outputs = Outputs()
        ended = self._control.settle()
        if len(ended):
            self._replies.checkpoints(outputs, ended)
            self._replies.charges(outputs, ended)
        return outputs

    def _answer(self, batch: AdmittedBatch, answers: list[Message | None], outputs: Outputs) -> Sequence[Message]:
        """Return the answers to ``batch.rows``; put the others into ``answers``."""
        rows, asked = batch.rows, batch.asked
        if not len(rows.slots) and not asked:
            return ()
        streams = Streams.of(rows, self.streams.columns)
        parts = (self._halt_replayed(rows, streams, asked), self._halt_asked_again(rows, asked))
        replayed = np.unique(np.concatenate(parts)) if any(map(len, parts)) else parts[0]
        if len(replayed):
            streams = Streams.of(rows, self.streams.columns)
        in_columns: Sequence[Message] = ()
        if len(rows.slots):
            verdicts = self._families.in_columns.decide(rows, streams)
            in_columns = self._column_publisher.publish(rows, verdicts, outputs)
        by_kind: dict[str, list[AdmittedQuestion]] = {}
        for one in asked:
            by_kind.setdefault(self.streams.kinds[one.slot], []).append(one)
        for kind, questions in by_kind.items():
            self._publisher.publish(self._families.one_by_one[kind], questions, answers, outputs)
        self._replies.checkpoints(outputs, replayed)
        self._replies.charges(outputs, replayed)
        return in_columns

    def _halt_replayed(
        self, rows: QuestionRows, streams: Streams, asked: Sequence[AdmittedQuestion]
    ) -> npt.NDArray[np.intp]:
        """Halt streams whose queries repeat an offset: the queries topic went back."""
        replayed = rows.slots[rows.offsets <= streams.figures.last_offset[streams.stream_of]]
        if asked:
            last_offset = self.streams.columns.last_offset
            again = [one.slot for one in asked if one.offset <= last_offset[one.slot]]
            replayed = np.append(replayed, np.array(again, dtype=np.intp))
        return self._halt(
            np.unique(replayed).tolist(),
            lambda slot: (
                f"replayed: {self._topics.queries} went back behind offset {self.streams.columns.last_offset[slot]} of this "
                "stream (topic recreated or offsets reset); open a new stream"
            ),
        )

    def _halt_asked_again(self, rows: QuestionRows, asked: Sequence[AdmittedQuestion]) -> npt.NDArray[np.intp]:
        """Halt standing streams whose windows are asked again: merging lost its state.

        Later questions may be wrong too, such as the sums of a running count.
        """
        life, latest, again = self.streams.life, dict[int, int](), set[int]()
        abouts = (
            [
                (slot, about)
                for slot, place in zip(rows.slots.tolist(), rows.places.tolist(), strict=True)
                if (about := rows.abouts.get(place)) is not None
            ]
            if rows.abouts
            else []
        )
        abouts += [(one.slot, one.about) for one in asked if one.about is not None]
        for slot, about in abouts:
            if about.turn <= latest.get(slot, life.turns.get(slot, 0)):
                again.add(slot)
            latest[slot] = about.turn
        return self._halt(
            sorted(again),
            lambda _: (
                f"asked again: a window came that this stream was asked about before ({self._topics.merges} lost or set "
                "back, with its group's offsets); open a new stream"
            ),
        )

    def _halt(self, slots: Sequence[int], reason: Callable[[int], str]) -> npt.NDArray[np.intp]:
        """Halt streams, and return the slots of those whose state has changed."""
        end = self.streams.life.end
        return np.array([slot for slot in slots if end(slot, HALTED, reason(slot))], dtype=np.intp)
