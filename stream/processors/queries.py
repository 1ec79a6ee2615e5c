"""The workers' processor: queries in, answers out, for one partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import (
    MAX_RECORD_BYTES,
    Checkpoint,
    Control,
    Progress,
    StreamClosed,
    StreamHalted,
    TableSource,
)
from schemas.wire import Codec, MalformedEventError, encode, struct
from stream.data import TableStore
from stream.mechanisms.above_threshold import ABOVE, Decisions, decide
from stream.mechanisms.above_threshold import HALTED as QUERY_HALTED
from stream.mechanisms.grid import to_steps
from stream.noise import NoiseKey, Sampler, event_words
from stream.processors.admission import Admission, Batch
from stream.processors.base import Message, Outputs, RecordLike
from stream.processors.hosted import CLOSED, EXHAUSTED, HALTED, OPEN, HostedStreams, Terms
from stream.processors.rejections import INTERNAL
from stream.processors.replies import PROGRESS_KEY, Replies, WireAnswer
from stream.processors.topics import Topics

STATUS_INTERVAL = 2.0
"""Seconds between two digests of one stream."""

_control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)
_decode_checkpoint: Any = msgspec.json.Decoder(struct(Checkpoint)).decode
_decode_progress: Any = msgspec.json.Decoder(struct(Progress)).decode
_OUTCOMES = ("below", "above", "halted")


class QueryProcessor:
    """AboveThreshold for every stream of one partition."""

    def __init__(self, topics: Topics, partition: int, key: NoiseKey, tables: TableStore) -> None:
        self.inputs = (topics.queries,)
        self.tables = (topics.control,)
        self.changelog = topics.state
        self.heavy = False
        self.streams = HostedStreams(key)
        self._topics = topics
        self._partition = partition
        self._key_id = key.key_id
        self._tables = tables
        self._replies = Replies(topics, partition, self.streams)
        self._admission = Admission(topics, partition, self.streams, tables)
        self._admitted: Batch | None = None
        self._next_offset: int | None = None
        self._pending: dict[int, StreamHalted | StreamClosed] = {}
        self._definitions: dict[bytes, RecordLike] = {}
        self._checkpoints: dict[bytes, RecordLike] = {}
        self._status_due = 0.0

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect control events and checkpoints; of each key only the latest is ever decoded."""
        for record in records:
            kept = self._definitions if record.topic == self._topics.control else self._checkpoints
            kept[record.key or b""] = record

    def restored(self) -> int | None:
        """End the restore and give the next query offset that the changelog holds.

        Whoever crashed may not have shown the last digests of the streams that it answered for in its last moments.
        """
        progress = self._checkpoints.pop(PROGRESS_KEY, None)
        if progress is not None and progress.value is not None:
            self._next_offset = _decode_progress(progress.value).offset
        for record in self._definitions.values():
            self._define(record)
        for key, record in self._checkpoints.items():
            if record.value is not None:
                self.streams.resume(key.decode(), _decode_checkpoint(record.value), record.timestamp)
        self._definitions, self._checkpoints = {}, {}
        self.streams.resumed(recent=int(5000 * STATUS_INTERVAL))
        return self._next_offset

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Take in definitions; a stream that control ends reports its last totals, once."""
        self._admitted = None
        for record in records:
            self._define(record)
        return self._settle()

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """Whether a query names a stream that no control event has defined yet."""
        self._admitted = self._admission.admit(records)
        return self._admitted.unknown

    def idle(self, now: float) -> Outputs:
        """Finish what control ended, and show digests of the streams that changed since the last interval."""
        outputs = self._settle()
        if now >= self._status_due:
            self._status_due = now + STATUS_INTERVAL
            changed = np.flatnonzero(self.streams.changed[: len(self.streams)])
            self._replies.status(outputs, changed)
            self.streams.changed[changed] = False
        return outputs

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Answer queries in order: each gets one answer, and whatever is wrong with one stops no other."""
        outputs = self._settle()
        if not records:
            return outputs
        batch, self._admitted = self._admitted, None
        if batch is None or batch.records is not records:
            batch = self._admission.admit(records)
        answers: list[Message | None] = [None] * len(records)
        for place, rejection in batch.rejected:
            answers[place] = self._replies.reject(outputs, records[place], rejection)
        if batch.slots:
            self._answer(batch, answers, outputs)
        written = [answer for answer in answers if answer is not None]
        outputs.extend(self._topics.answers, self._partition, written)
        self._next_offset = records[-1].offset + 1
        self._replies.progress(outputs, self._next_offset)
        return outputs

    def refuse(self, record: RecordLike) -> Outputs:
        """Reject an event that breaks ``process``."""
        outputs = Outputs()
        if answer := self._replies.reject(outputs, record, INTERNAL):
            outputs.add(self._topics.answers, self._partition, answer)
        self._next_offset = record.offset + 1
        self._replies.progress(outputs, self._next_offset)
        return outputs

    def _define(self, record: RecordLike) -> None:
        if record.value is None:
            return
        try:
            definition = _control_codec.decode(record.value)
        except MalformedEventError:
            # Written by a later version, perhaps to halt the stream: whatever it says, do not answer against it.
            if (known := self.streams.slots.get((record.key or b"").decode(errors="replace"))) is not None:
                self.streams.refuse(known, "this worker cannot read the stream's control event; upgrade it")
            return
        slot = self.streams.host(definition)
        if definition.identity.key_id != self._key_id:
            self.streams.refuse(
                slot, f"this worker lacks noise key {definition.identity.key_id}; give it that key"
            )
        elif isinstance(definition.source, TableSource):
            try:
                self._tables.get(definition.source, definition.fingerprint)
            except ValueError as error:
                self.streams.refuse(slot, f"table: {error}")
        if definition.kind == "opened":
            self._pending.pop(slot, None)
        else:
            self._pending[slot] = definition

    def _settle(self) -> Outputs:
        outputs = Outputs()
        ended = []
        for slot, definition in self._pending.items():
            state = CLOSED if definition.kind == "closed" else HALTED
            known = self.streams.state[slot]
            if known == CLOSED or (known != OPEN and state == HALTED):
                continue
            self.streams.end(slot, state, definition.reason)
            ended.append(slot)
        self._pending.clear()
        if ended:
            slots = np.array(ended, dtype=np.intp)
            self._replies.checkpoints(outputs, slots)
            self._replies.charges(outputs, slots)
        return outputs

    def _answer(self, batch: Batch, answers: list[Message | None], outputs: Outputs) -> None:
        streams = self.streams
        slots = np.array(batch.slots, dtype=np.intp)
        replayed = self._halt_replayed(slots, np.array(batch.offsets, dtype=np.int64))
        rows, row_of = np.unique(slots, return_inverse=True)
        open_rows = (streams.state[rows] == OPEN) & ~streams.refused[rows]
        streams.prepare(rows)
        tops_before = streams.tops[rows]
        decisions = decide(
            self._margins(batch, slots),
            row_of,
            streams.barrier[rows],
            np.where(open_rows, streams.tops_left[rows], 0),
            lambda row, tops: streams.barrier_of_round(int(rows[row]), int(tops_before[row]) + tops),
            streams.fresh[rows],
        )
        self._write_answers(batch, row_of, rows, open_rows, decisions, answers)
        self._install(batch, row_of, rows, open_rows, decisions, outputs)
        self._replies.checkpoints(outputs, replayed)
        self._replies.charges(outputs, replayed)

    def _halt_replayed(self, slots: npt.NDArray[np.intp], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """An offset that a stream has passed already means that the input topic went back: never answer it again."""
        replayed = (offsets <= self.streams.last_offset[slots]) & (self.streams.state[slots] == OPEN)
        halted = np.unique(slots[replayed])
        for slot in halted.tolist():
            self.streams.end(
                slot,
                HALTED,
                f"replayed: {self._topics.queries} went back behind offset {self.streams.last_offset[slot]} of this "
                "stream (topic recreated or offsets reset); open a new stream",
            )
        return halted

    def _margins(self, batch: Batch, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """f + ν − T in steps, with all noise of one law drawn at once."""
        margin = np.empty(len(slots), dtype=np.int64)
        values = np.array(batch.values, dtype=np.float64)
        asked = np.array(batch.thresholds, dtype=np.float64)
        threshold = self.streams.threshold[slots]
        laws: dict[Sampler, list[npt.NDArray[np.intp]]] = {}
        for terms, members in self._by_terms(self.streams.terms_of[slots]):
            laws.setdefault(terms.query_noise, []).append(members)
            grid = terms.calibration.grid
            own = ~np.isnan(asked[members])
            threshold[members[own]] = to_steps(asked[members[own]], grid)
            margin[members] = to_steps(values[members], grid)
        query_keys = [self.streams.query_keys[slot] for slot in batch.slots]
        for law, parts in laws.items():
            members = np.sort(np.concatenate(parts))
            words, low = event_words(
                _picked(query_keys, members),
                self._topics.queries,
                self._partition,
                _picked(batch.offsets, members),
                _picked(batch.payloads, members),
                law.words,
            )
            margin[members] += law.draw(words, low)
        return margin - threshold

    def _by_terms(self, terms_of: npt.NDArray[np.int32]) -> list[tuple[Terms, npt.NDArray[np.intp]]]:
        return [
            (self.streams.terms[index], np.flatnonzero(terms_of == index))
            for index in np.unique(terms_of).tolist()
        ]

    def _write_answers(
        self,
        batch: Batch,
        row_of: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        open_rows: npt.NDArray[np.bool_],
        decisions: Decisions,
        answers: list[Message | None],
    ) -> None:
        streams = self.streams
        tops_after = streams.tops[rows][row_of] + decisions.tops_before + (decisions.codes == ABOVE)
        index = streams.answered[rows][row_of] + np.where(open_rows[row_of], decisions.place, 0)
        cutoff = (streams.tops[rows] + streams.tops_left[rows])[row_of]
        columns = (decisions.codes, index, tops_after, cutoff - tops_after, streams.terms_of[rows][row_of])
        keys, names, terms = streams.keys, streams.names, streams.terms
        for where, query_id, slot, code, place, tops, left, index_of_terms in zip(
            batch.places,
            batch.ids,
            batch.slots,
            *(column.tolist() for column in columns),
            strict=True,
        ):
            if code == QUERY_HALTED:
                spent = terms[index_of_terms].spent(place, tops)
                answer = WireAnswer(
                    query_id, names[slot], None, "halted", None, None, streams.reason(slot), spent, left
                )
            else:
                spent = terms[index_of_terms].spent(place + 1, tops)
                answer = WireAnswer(query_id, names[slot], place, _OUTCOMES[code], None, None, None, spent, left)
            answers[where] = (keys[slot], encode(answer), ())

    def _install(
        self,
        batch: Batch,
        row_of: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        open_rows: npt.NDArray[np.bool_],
        decisions: Decisions,
        outputs: Outputs,
    ) -> None:
        """Move the columns on and write what must outlive this worker."""
        streams = self.streams
        answers = decisions.codes != QUERY_HALTED
        answered = np.bincount(row_of[answers], minlength=len(rows))
        last = np.full(len(rows), -1, dtype=np.int64)
        np.maximum.at(last, row_of[answers], np.array(batch.offsets, dtype=np.int64)[answers])
        shown = np.where(open_rows, streams.tops_left[rows] - decisions.tops_left, 0)
        first = (streams.answered[rows] == 0) & (answered > 0)
        streams.answered[rows] += answered
        streams.advance(rows, shown)
        streams.last_offset[rows[answered > 0]] = last[answered > 0]
        ended = open_rows & (streams.tops_left[rows] == 0)
        streams.state[rows[ended]] = EXHAUSTED
        streams.changed[rows[(answered > 0) | ended]] = True
        self._replies.checkpoints(outputs, rows[(answered > 0) | ended])
        # A stream's first answer costs the threshold's share, each ⊤ one more; ⊥s after the first cost nothing.
        self._replies.charges(outputs, rows[first | (shown > 0) | ended])


def _picked(column: Sequence[Any], members: npt.NDArray[np.intp]) -> Sequence[Any]:
    """A column's members, in rising order; the column itself where that is all of it, as when there is one law."""
    return column if len(members) == len(column) else [column[place] for place in members.tolist()]
