"""The workers' processor: queries in, answers out, for one partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import Checkpoint, Progress, TableSource
from schemas.wire import struct
from stream.data import TableStore
from stream.noise import NoiseKey
from stream.processors.base import PROGRESS_KEY, Message, Outputs, RecordLike, TableMissedError
from stream.processors.queries.admission import Admission, Batch, Reading
from stream.processors.queries.column_publishing import ColumnPublisher
from stream.processors.queries.definitions import Definition, DefinitionReader
from stream.processors.queries.endings import undoes
from stream.processors.queries.families import families
from stream.processors.queries.families.base import Asked, Context
from stream.processors.queries.headers import enveloped
from stream.processors.queries.hosted import HostedStreams
from stream.processors.queries.life import CLOSED, HALTED, OPEN
from stream.processors.queries.publishing import Publisher
from stream.processors.queries.replies import Replies
from stream.processors.queries.shares import UNLIMITED, Limits, Shares
from stream.processors.queries.updates import UPDATE_PREFIX, UpdateLog
from stream.processors.queries.work import SECOND
from stream.processors.rejections import INTERNAL
from stream.processors.topics import Topics

WORK_AT_ONCE = 3 * SECOND // 20
"""A step ends with the question that brings its work to this: what is done is committed, and who must stop can."""

STATUS_INTERVAL = 2.0
"""Seconds between two digests of one stream."""

DEFINITIONS_AT_ONCE = 10_000
CHECKPOINTS_AT_ONCE = 50_000
"""So many records of different keys a restore collects before it takes them in, which bounds its memory."""

_LEARNING = {"hypothesis", "estimate"}
"""The calibrations of streams whose ⊤s leave updates in the changelog."""

# An incarnation is only ever compared with that of the stream, so that nothing else need be known of it.
_WireCheckpoint = msgspec.defstruct(
    "Checkpoint",
    [("incarnation", str)],
    bases=(struct(Checkpoint, only=frozenset(Checkpoint.model_fields) - {"incarnation"}),),
    kw_only=True,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
)
_decode_checkpoint: Any = msgspec.json.Decoder(_WireCheckpoint).decode
_WireProgress: Any = struct(Progress)
_decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode


class QueryProcessor:
    """Every stream of one partition, each with its mechanism."""

    def __init__(
        self, topics: Topics, partition: int, key: NoiseKey, tables: TableStore, limits: Limits = UNLIMITED
    ) -> None:
        """Take ``limits``, how much work the partition takes on: the same wherever it is answered."""
        self.inputs = (topics.queries,)
        self.tables = (topics.control,)
        self.changelog = topics.state
        self.heavy = False
        self.repeatable = True
        self.streams = HostedStreams(key)
        self._topics = topics
        self._partition = partition
        self._key = key
        self._tables = tables
        self._replies = Replies(topics, partition, self.streams)
        context = Context(self.streams, tables, topics.queries, partition)
        self._publisher = Publisher(self.streams, self._replies)
        self._column_publisher = ColumnPublisher(self.streams, self._replies)
        self._families = families(context)
        self._limited = limits.outstanding > 0
        self._admission = Admission(topics, context, self._families, Shares(limits))
        self._reading: Reading | None = None
        self._progress = _WireProgress(0)
        self._reader = DefinitionReader(self.streams.terms_table)
        self._pending: dict[int, Definition] = {}
        self._definitions: dict[bytes, RecordLike] = {}
        self._checkpoints: dict[bytes, RecordLike] = {}
        self._early: dict[bytes, RecordLike] = {}
        self._unclaimed: dict[str, str] = {}
        self._updates = UpdateLog()
        self._status_due = 0.0

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect control events and checkpoints; hardly any but the latest of each key is ever decoded.

        Each topic's records come in its own order; the two topics may take turns.
        """
        for record in records:
            key = record.key or b""
            if record.topic != self._topics.control:
                self._checkpoints[key] = record
            elif (known := self._definitions.get(key)) is None or not undoes(known.value, record.value):
                self._definitions[key] = record
        if len(self._definitions) >= DEFINITIONS_AT_ONCE:
            self._take_definitions()
        if len(self._checkpoints) >= CHECKPOINTS_AT_ONCE:
            self._take_checkpoints()

    def restored(self) -> Mapping[str, int]:
        """End the restore and give the next query offset that the changelog holds; 0 where it holds none.

        Whoever crashed may not have shown the last digests of the streams that it answered for in its last moments.
        """
        self._take_definitions()
        self._checkpoints = {**self._early, **self._checkpoints}
        self._take_checkpoints()
        self._unclaimed = {
            key.decode(): _decode_checkpoint(record.value).incarnation for key, record in self._early.items()
        }
        self._early = {}
        ended = dict(self.streams.life.reasons)
        self._refuse_unfit(np.arange(len(self.streams)))
        self.streams.life.reasons |= ended
        self._resume_hypotheses(self._updates)
        self._updates = UpdateLog()
        self.streams.show_resumed(recent=int(5000 * STATUS_INTERVAL))
        due = self.streams.columns.due[: len(self.streams)]
        waiting = np.flatnonzero(due > self._progress.served).tolist()
        self._admission.shares.resume(
            self._progress.clock, self._progress.served, {slot: int(due[slot]) for slot in waiting}
        )
        return {self._topics.queries: self._progress.offset}

    def _take_definitions(self) -> None:
        """Host the streams whose control events were collected."""
        records, self._definitions = list(self._definitions.values()), {}
        self._define(records)

    def _take_checkpoints(self) -> None:
        """Give the hosted streams the figures that were collected; those of streams not known yet wait."""
        records, self._checkpoints = self._checkpoints, {}
        progress = records.pop(PROGRESS_KEY, None)
        if progress is not None and progress.value is not None:
            self._progress = _decode_progress(progress.value)
        slots, incarnations = self.streams.slots, self.streams.incarnations
        found = []
        for key, record in records.items():
            if record.value is None:
                continue
            if key.startswith(UPDATE_PREFIX):
                self._updates.take(key, record.value)
                continue
            checkpoint = _decode_checkpoint(record.value)
            slot = slots.get(key.decode())
            if slot is None or incarnations[slot] != checkpoint.incarnation:
                self._early[key] = record
            else:
                found.append((slot, checkpoint, record.timestamp))
                self._early.pop(key, None)
        self.streams.life.resume(found)

    def _resume_hypotheses(self, updates: UpdateLog) -> None:
        """Hand each stream the updates of its hypothesis; one that lacks any must not answer."""
        terms = self.streams.terms
        learning = [index for index in range(len(terms)) if terms[index].calibration.kind in _LEARNING]
        for slot in np.flatnonzero(np.isin(self.streams.columns.terms_of[: len(self.streams)], learning)).tolist():
            name, incarnation = self.streams.names[slot], self.streams.incarnations[slot]
            found = updates.of(name, incarnation, int(self.streams.columns.tops[slot]))
            if found is None:
                self.streams.life.refuse(
                    slot, "the changelog lacks updates of the hypothesis; restore it from a backup"
                )
            else:
                self._families.one_by_one[self.streams.kinds[slot]].resume(slot, found)

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Take in definitions; a stream that control ends reports its last totals, once."""
        self._reading = None
        self._refuse_unfit(np.array(self._define(records), dtype=np.intp))
        return self._settle()

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """Whether a query names a stream that no control event has defined yet."""
        self._reading = self._read(records)
        return self._reading.unknown

    def portion(self, records: Sequence[RecordLike]) -> int:
        """All of a batch of trusted values; of others as many as have little enough work."""
        if not self.heavy:
            return len(records)
        self._reading = self._admission.read(records, WORK_AT_ONCE)
        return len(self._reading.records)

    def idle(self, now: float) -> Outputs:
        """Finish what control ended, and show digests of the streams that changed since the last interval."""
        outputs = self._settle()
        if now >= self._status_due:
            self._status_due = now + STATUS_INTERVAL
            changed = np.flatnonzero(self.streams.columns.changed[: len(self.streams)])
            self._replies.status(outputs, changed)
            self.streams.columns.changed[changed] = False
        return outputs

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Answer queries in order: each gets one answer, and whatever is wrong with one stops no other."""
        reading, self._reading = self._read(records), None
        charged = self._charge(reading)
        outputs = self._settle()
        if not records:
            return outputs
        batch = self._admission.admit(reading)
        answers: list[Message | None] = [None] * len(records)
        for place, rejection in batch.rejected:
            answers[place] = self._replies.reject(outputs, records[place], rejection)
        if batch.rows.slots or batch.asked:
            self._answer(batch, answers, outputs)
        outputs.extend(self._topics.answers, self._partition, enveloped(self._topics.answers, records, answers))
        self._reached(outputs, records[-1], charged)
        return outputs

    def refuse(self, record: RecordLike) -> Outputs:
        """Reject an event that breaks ``process``, or that could not be read."""
        outputs = Outputs()
        answer = self._replies.reject(outputs, record, INTERNAL)
        outputs.extend(self._topics.answers, self._partition, enveloped(self._topics.answers, [record], [answer]))
        self._reached(outputs, record)
        return outputs

    def _read(self, records: Sequence[RecordLike]) -> Reading:
        if self._reading is not None and self._reading.is_of(records):
            return self._reading
        return self._admission.read(records)

    def _charge(self, reading: Reading) -> Sequence[int]:
        """Take the shares as they are now, and give the slots of the streams whose shares have changed."""
        shares = self._admission.shares = reading.shares
        charged = list(dict.fromkeys(slot for _, slot, _ in reading.waiting)) if self._limited else []
        for slot in charged:
            self.streams.columns.due[slot] = shares.due.get(slot, shares.served)
        return charged

    def _reached(self, outputs: Outputs, last: RecordLike, charged: Sequence[int] = ()) -> None:
        """Write how far the partition is, and the shares of streams that have written nothing else."""
        written = (
            {key for key, *_ in outputs.messages.get((self._topics.state, self._partition), ())} if charged else ()
        )
        missing = [slot for slot in charged if self.streams.keys[slot] not in written]
        self._replies.checkpoints(outputs, np.array(missing, dtype=np.intp))
        shares = self._admission.shares
        self._progress = _WireProgress(last.offset + 1, shares.clock, shares.served)
        self._replies.progress(outputs, self._progress)

    def _define(self, records: Sequence[RecordLike]) -> list[int]:
        """Take in control events, in order, and give the slots of the streams that they define."""
        slots: list[int] = []
        readable: list[Definition] = []
        named = [record for record in records if record.value is not None]
        definitions = self._reader.read([record.value or b"" for record in named])
        for record, definition in zip(named, definitions, strict=True):
            if definition is not None:
                readable.append(definition)
                continue
            slots += self._host(readable)
            readable = []
            # Written by a later version, perhaps to halt the stream: whatever it says, do not answer against it.
            if (known := self.streams.slots.get((record.key or b"").decode(errors="replace"))) is not None:
                self.streams.life.refuse(known, "this worker cannot read the stream's control event; upgrade it")
        return slots + self._host(readable)

    def _host(self, definitions: Sequence[Definition]) -> list[int]:
        """Host streams, unless one has answered before and was restored without its figures.

        A restore finds no definition of such a stream if a later one, behind the end up to which it reads, let
        compaction remove what stood before. Begun afresh the stream would answer beyond its cutoff.
        """
        if self._unclaimed and (missed := [one for one in definitions if self._is_unclaimed(one)]):
            raise TableMissedError(
                f"{missed[0].stream} has figures in {self.changelog} that this restore left out"
            )
        slots = self.streams.host(definitions)
        # Rows are counted, hypotheses learned, hundreds of values noised: at worst for a second a question.
        self.heavy = self.heavy or not all(self.streams.plain[slot] for slot in slots)
        for slot, definition in zip(slots, definitions, strict=True):
            if definition.kind != "opened":
                self._pending[slot] = definition
            elif slot in self._pending and self._pending[slot].incarnation != definition.incarnation:
                del self._pending[slot]
        return slots

    def _is_unclaimed(self, definition: Definition) -> bool:
        return self._unclaimed.get(definition.stream) == definition.incarnation

    def _refuse_unfit(self, slots: npt.NDArray[np.intp]) -> None:
        """Refuse those streams whose noise key or table is not here."""
        streams = self.streams
        for slot in streams.noise.keyless.keys() & set(slots.tolist() if streams.noise.keyless else ()):
            key_id = streams.noise.keyless[slot]
            streams.life.refuse(slot, f"this worker lacks noise key {key_id}; give it that key")
        terms_of = streams.columns.terms_of[slots]
        for index in np.unique(terms_of).tolist():
            source = streams.terms[index].source
            if not isinstance(source, TableSource):
                continue
            try:
                self._tables.get(source, streams.terms[index].fingerprint)
            except ValueError as error:
                for slot in slots[terms_of == index].tolist():
                    if slot not in streams.noise.keyless:
                        streams.life.refuse(slot, f"table: {error}")

    def _settle(self) -> Outputs:
        outputs = Outputs()
        ended = []
        for slot, definition in self._pending.items():
            state = CLOSED if definition.kind == "closed" else HALTED
            known = self.streams.columns.state[slot]
            if known == CLOSED or (known != OPEN and state == HALTED):
                continue
            self.streams.life.end(slot, state, definition.reason or "")
            ended.append(slot)
        self._pending.clear()
        if ended:
            slots = np.array(ended, dtype=np.intp)
            self._replies.checkpoints(outputs, slots)
            self._replies.charges(outputs, slots)
        return outputs

    def _answer(self, batch: Batch, answers: list[Message | None], outputs: Outputs) -> None:
        """Answer the admitted queries, family by family; a stream's queries all go to one."""
        rows, asked = batch.rows, batch.asked
        slots = np.array([*rows.slots, *(one.slot for one in asked)], dtype=np.intp)
        offsets = np.array([*rows.offsets, *(one.offset for one in asked)], dtype=np.int64)
        replayed = self._halt_replayed(slots, offsets)
        if rows.slots:
            verdicts = self._families.in_columns.decide(rows)
            self._column_publisher.publish(rows, verdicts, answers, outputs)
        by_kind: dict[str, list[Asked]] = {}
        for one in asked:
            by_kind.setdefault(self.streams.kinds[one.slot], []).append(one)
        for kind, questions in by_kind.items():
            self._publisher.publish(self._families.one_by_one[kind], questions, answers, outputs)
        self._replies.checkpoints(outputs, replayed)
        self._replies.charges(outputs, replayed)

    def _halt_replayed(self, slots: npt.NDArray[np.intp], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """An offset that a stream has passed already means that the input topic went back: never answer it again."""
        replayed = (offsets <= self.streams.columns.last_offset[slots]) & (
            self.streams.columns.state[slots] == OPEN
        )
        halted = np.unique(slots[replayed])
        for slot in halted.tolist():
            self.streams.life.end(
                slot,
                HALTED,
                f"replayed: {self._topics.queries} went back behind offset {self.streams.columns.last_offset[slot]} of this "
                "stream (topic recreated or offsets reset); open a new stream",
            )
        return halted
