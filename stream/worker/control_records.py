"""Applies control events to a partition's streams, and restores these from control and changelog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION, Checkpoint, EventsSource, Progress, TableSource
from schemas.wire import struct
from stream.processing.control_order import (
    MODEL_NOT_ASKED_REASON,
    PERIOD_OVER_REASON,
    is_stale,
    questions_in_period,
)
from stream.processing.protocol import PROGRESS_KEY, RecordLike, TableMissedError, decode_kept, topic_ids_of
from stream.tables import PrivateTable, TableStore
from stream.worker.families import Families
from stream.worker.hosted_streams import CLOSED, CONTROL_UNREAD, HALTED, OPEN, PLAIN, HostedStreams, answering
from stream.worker.mechanism_updates import UPDATE_PREFIX, UpdateLog
from stream.worker.stream_definitions import Definition, DefinitionReader


class Control:
    """Hosts and ends streams as control events say, and holds the tables in use.

    ``heavy`` is true if any stream reads a table or is no sparse vector: a question to it may take
    up to a second.
    """

    def __init__(self, streams: HostedStreams, tables: TableStore, changelog: str) -> None:
        self.heavy = False
        self._streams = streams
        self._tables = tables
        self._changelog = changelog
        self._reader = DefinitionReader(streams.terms_table)
        self._pending: dict[int, Definition] = {}
        self._held: dict[int, PrivateTable] = {}
        self._unclaimed: Mapping[str, str] = {}

    def expect_none_of(self, unclaimed: Mapping[str, str]) -> None:
        """Set streams and incarnations of checkpoints for which a restore found no definition."""
        self._unclaimed = unclaimed

    def define(self, records: Sequence[RecordLike]) -> list[int]:
        """Apply control events in order and return the slots of their streams."""
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
            # A later version wrote this event, perhaps to halt the stream: it must not answer.
            name = (record.key or b"").decode(errors="replace")
            if (known := self._streams.slots.get(name)) is not None:
                self._streams.life.refuse(known, CONTROL_UNREAD)
            else:
                self._streams.unread.add(name)
        return slots + self._host(readable)

    def _host(self, definitions: Sequence[Definition]) -> list[int]:
        """Host streams; TableMissedError if the restore left out the checkpoint of one.

        If a definition lies behind the end of the restore, compaction may have removed the earlier
        ones, so the restore found a checkpoint without a stream. A fresh start would answer beyond
        the cutoff.
        """
        if self._unclaimed and (
            missed := [one for one in definitions if self._unclaimed.get(one.stream) == one.incarnation]
        ):
            raise TableMissedError(
                f"{missed[0].stream} has figures in {self._changelog} that this restore left out"
            )
        slots = self._streams.host(definitions)
        self.heavy = self.heavy or not all(self._streams.sorts[slot] & PLAIN for slot in slots)
        for slot, definition in zip(slots, definitions, strict=True):
            if definition.kind == "opened":
                if slot in self._pending and not self._is_current(slot, self._pending[slot]):
                    del self._pending[slot]
            elif self._is_current(slot, definition):
                self._pending[slot] = definition
        return slots

    def _is_current(self, slot: int, definition: Definition) -> bool:
        """Return whether the stream was neither extended nor refreshed after this event."""
        streams = self._streams
        known = len(streams.extensions.get(slot, ())) + streams.terms_at(slot).version
        return definition.incarnation == streams.incarnations[slot] and definition.rank >= known

    @property
    def repeatable(self) -> bool:
        """Whether the same control events and queries would give the same answers again.

        The log does not record between which questions a stream was extended or its table
        refreshed: a question that it answered with ``halted`` before an extension would now get an
        answer.
        """
        streams, state = self._streams, self._streams.columns.state
        changed = streams.extensions.keys() | streams.noise.renewed
        return not any(state[slot] == OPEN for slot in changed - self._pending.keys())

    def refuse_unfit(self, slots: npt.NDArray[np.intp]) -> None:
        """Refuse streams whose noise key or table this worker lacks, and models."""
        streams = self._streams
        keyless = streams.noise.keyless
        for slot in keyless.keys() & set(slots.tolist() if keyless else ()):
            streams.life.refuse(slot, f"this worker lacks noise key {keyless[slot]}; give it that key")
        terms_of = streams.columns.terms_of[slots]
        indices = np.unique(terms_of).tolist()
        for index in indices:
            terms = streams.terms[index]
            source = terms.source
            if isinstance(source, EventsSource) and source.has_periods:
                for slot in slots[terms_of == index].tolist():
                    streams.life.refuse(slot, MODEL_NOT_ASKED_REASON)
            if not isinstance(source, TableSource):
                continue
            try:
                self._held[index] = self._tables.get(source, terms.fingerprint, terms.version)
            except ValueError as error:
                for slot in slots[terms_of == index].tolist():
                    if slot not in keyless:
                        streams.life.refuse(slot, f"table: {error}")
        # Only a refreshed or ended stream can make a held table unnecessary.
        renewed = any(streams.terms[index].version > FIRST_VERSION for index in indices)
        if renewed or not answering(streams.columns.picked(slots)).all():
            self._let_go()

    def _let_go(self) -> None:
        """Release the tables from which no stream answers."""
        if not self._held:
            return
        columns = self._streams.columns
        hosted = slice(len(self._streams))
        terms_of = columns.terms_of[hosted][answering(columns)[hosted]]
        needed = np.bincount(terms_of, minlength=len(self._streams.terms))
        self._held = {index: table for index, table in self._held.items() if needed[index]}

    def settle(self) -> npt.NDArray[np.intp]:
        """End the streams that control has ended, and return their slots.

        A stream whose period is over first answers all questions of the period.
        """
        ended = []
        waiting = {slot: one for slot, one in self._pending.items() if self._is_still_asked(slot, one)}
        for slot, definition in self._pending.items():
            if slot in waiting:
                continue
            state = CLOSED if definition.kind == "closed" else HALTED
            if self._streams.life.end(slot, state, definition.reason or ""):
                ended.append(slot)
        self._pending = waiting
        if ended:
            self._let_go()
        return np.array(ended, dtype=np.intp)

    def _is_still_asked(self, slot: int, definition: Definition) -> bool:
        columns, terms = self._streams.columns, self._streams.terms_at(slot)
        if definition.reason != PERIOD_OVER_REASON or columns.state[slot] != OPEN or columns.refused[slot]:
            return False
        asked = questions_in_period(terms.source, terms.mechanism, terms.standing)
        return bool(columns.answered[slot] < asked)


DEFINITIONS_AT_ONCE = 10_000
CHECKPOINTS_AT_ONCE = 50_000
"""Records of different keys that a restore collects at once, which bounds its memory."""

_LEARNING = {"hypothesis", "estimate"}
"""Kinds of calibration whose streams write updates to the changelog."""

# An incarnation is only compared with its stream's, so its form is not checked.
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
_decode_progress: Any = msgspec.json.Decoder(struct(Progress)).decode


class WorkerRestore:
    """Collects records, and restores streams' definitions, checkpoints and updates.

    ``progress`` is the changelog's progress record, or None, and ``topic_ids`` come from its
    headers.
    """

    def __init__(self, control_topic: str, control: Control, streams: HostedStreams) -> None:
        self.progress: Any = None
        self.topic_ids: dict[str, str] = {}
        self._control_topic = control_topic
        self._control = control
        self._streams = streams
        self._definitions: dict[bytes, RecordLike] = {}
        self._checkpoints: dict[bytes, RecordLike] = {}
        self._early: dict[bytes, RecordLike] = {}
        self._updates = UpdateLog()

    def collect(self, records: Iterable[RecordLike]) -> None:
        """Collect control events and checkpoints, the latest of each key."""
        for record in records:
            key = record.key or b""
            if record.topic != self._control_topic:
                self._checkpoints[key] = record
            elif (known := self._definitions.get(key)) is None or not is_stale(known.value, record.value):
                self._definitions[key] = record
        if len(self._definitions) >= DEFINITIONS_AT_ONCE:
            self._take_definitions()
        if len(self._checkpoints) >= CHECKPOINTS_AT_ONCE:
            self._take_checkpoints()

    def end(self, families: Families) -> None:
        """Restore the remaining records, refuse unfit streams, and distribute updates."""
        self._take_definitions()
        self._checkpoints = {**self._early, **self._checkpoints}
        self._take_checkpoints()
        early, self._early = self._early, {}
        self._control.expect_none_of(
            {key.decode(): decode_kept(record, _decode_checkpoint).incarnation for key, record in early.items()}
        )
        reasons = self._streams.life.reasons
        ended = dict(reasons)
        self._control.refuse_unfit(np.arange(len(self._streams)))
        reasons |= ended
        updates, self._updates = self._updates, UpdateLog()
        self._resume_learning(families, updates)

    def _take_definitions(self) -> None:
        records, self._definitions = list(self._definitions.values()), {}
        self._control.define(records)

    def _take_checkpoints(self) -> None:
        """Restore the collected checkpoints; they wait if their stream has no definition yet."""
        records, self._checkpoints = self._checkpoints, {}
        progress = records.pop(PROGRESS_KEY, None)
        if progress is not None and progress.value is not None:
            self.progress = decode_kept(progress, _decode_progress)
            self.topic_ids = topic_ids_of(progress)
        slots, incarnations = self._streams.slots, self._streams.incarnations
        found = []
        for key, record in records.items():
            if record.value is None:
                continue
            if key.startswith(UPDATE_PREFIX):
                self._updates.add(record)
                continue
            checkpoint = decode_kept(record, _decode_checkpoint)
            slot = slots.get(key.decode())
            if slot is None or incarnations[slot] != checkpoint.incarnation:
                self._early[key] = record
            else:
                found.append((slot, checkpoint, record.timestamp))
                self._early.pop(key, None)
        self._streams.life.resume(found)

    def _resume_learning(self, families: Families, updates: UpdateLog) -> None:
        """Restore each stream's updates; refuse a stream if one is missing."""
        streams, terms = self._streams, self._streams.terms
        learning = [index for index in range(len(terms)) if terms[index].calibration.kind in _LEARNING]
        for slot in np.flatnonzero(np.isin(streams.columns.terms_of[: len(streams)], learning)).tolist():
            count = int(streams.columns.tops[slot])
            found = updates.first_updates(streams.names[slot], streams.incarnations[slot], count)
            if found is None:
                streams.life.refuse(
                    slot, "the changelog lacks updates of the hypothesis; restore it from a backup"
                )
            else:
                families.one_by_one[streams.kinds[slot]].resume(slot, found)
