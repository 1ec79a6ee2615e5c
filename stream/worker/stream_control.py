"""Applies control events to a partition's streams, and restores the streams at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION, Checkpoint, EventsSource, Progress
from schemas.wire import struct
from stream.privacy.accuracy.source_facts import questions_in_period
from stream.processing.protocol import (
    MODEL_NOT_ASKED_REASON,
    PERIOD_OVER_REASON,
    PROGRESS_KEY,
    RETIRED_PREFIX,
    MissedRecordError,
    RecordLike,
    decode_changelog_record,
    is_stale,
    topic_ids_of,
)
from stream.worker.families import Families
from stream.worker.families.family import RestorableFamily
from stream.worker.hosted_streams import (
    CLOSED,
    CONTROL_UNREAD,
    HALTED,
    OPEN,
    PLAIN_FLAG,
    HostedStreams,
    answering_mask,
)
from stream.worker.stream_records import UPDATE_PREFIX, DefinitionReader, StreamDefinition, UpdateLog, update_key
from stream.worker.table_loads import PartitionTables


class StreamControl:
    """Adds and ends a partition's streams according to control events.

    If ``runs_in_thread`` is True, the engine answers in a thread. It becomes True with the first stream that
    reads a table or is not a sparse vector, because one question to such a stream may take a second.
    """

    def __init__(
        self, streams: HostedStreams, tables: PartitionTables, changelog: str, forget_slot: Callable[[int], None]
    ) -> None:
        """``forget_slot`` is called before the slot of a retired stream is cleared."""
        self.runs_in_thread = False
        self.stale_keys: dict[bytes, None] = {}
        """Keys of changelog records of retired streams, which must be deleted."""
        self._streams = streams
        self._tables = tables
        self._changelog = changelog
        self._forget_slot = forget_slot
        self._reader = DefinitionReader(streams.terms_table)
        self._pending_ends: dict[int, StreamDefinition] = {}
        self.checkpoints_without_definition: Mapping[str, str] = {}
        """The incarnations, by stream, of restored checkpoints whose stream has no control event."""

    def apply_events(self, records: Sequence[RecordLike], *, may_hold: bool = False) -> list[int]:
        """Apply control events in order and return the slots of their streams.

        With ``may_hold``, the event of a refreshed stream is held until the table's new version is loaded.

        Digests of retired streams are applied first, because definitions are deleted only after the digests
        are written.
        """
        slots: list[int] = []
        readable: list[StreamDefinition] = []
        named: list[RecordLike] = []
        for record in records:
            if (record.key or b"").startswith(RETIRED_PREFIX):
                self._streams.retired.add_record(record.value or b"")
            elif record.value is not None:
                named.append(record)
        definitions = self._reader.read([record.value or b"" for record in named])
        for record, definition in zip(named, definitions, strict=True):
            if definition is not None:
                if not (may_hold and self._tables.hold_event(record, definition)):
                    readable.append(definition)
                continue
            slots += self._add_streams(readable)
            readable = []
            # A later version of Sotto wrote this event, perhaps to halt the stream, so the stream must not answer.
            name = _name_of(record)
            if (known := self._streams.slots.get(name)) is not None:
                self._streams.life.refuse_stream(known, CONTROL_UNREAD)
            elif not self._streams.retired.has(name):
                self._streams.unreadable_streams.add(name)
        return slots + self._add_streams(readable)

    def drop_retired(self, slots: Iterable[int], *, restoring: bool = False) -> list[int]:
        """Drop the streams in these slots that are retired, and return the other slots.

        A retired stream is dropped even if its definition is not deleted: a slow reader may miss the
        deletion because of compaction, or another client may repeat a definition. The keys of its records
        are added to ``stale_keys``; while ``restoring``, only the key of a checkpoint that was read.
        """
        streams, slots, left = self._streams, list(slots), []
        retired = streams.retired.select(streams.names[slot] for slot in slots)
        for slot in slots:
            if (name := streams.names[slot]) not in streams.slots:
                continue  # the slot is in ``slots`` twice, and is already cleared
            if name not in retired:
                left.append(slot)
                continue
            if not restoring or streams.columns.written_at[slot]:
                self.stale_keys[name.encode()] = None
            if not restoring and streams.terms_at(slot).has_updates:
                updates = range(int(streams.columns.tops[slot]))
                self.stale_keys |= dict.fromkeys(update_key(name, number) for number in updates)
            self._pending_ends.pop(slot, None)
            self._forget_slot(slot)
            streams.remove_retired(slot)
        if forgotten_terms := streams.free_retired_slots():
            self._reader.forget(forgotten_terms)
        return left

    def drain_stale_keys(self) -> list[bytes]:
        """Return the keys of the records to delete, and forget them."""
        keys = list(self.stale_keys)
        self.stale_keys.clear()
        return keys

    def find_deleted_slots(self, records: Iterable[RecordLike]) -> list[int]:
        """Return the slots of streams whose definitions these records delete."""
        names = [_name_of(record) for record in records if record.value is None]
        self._streams.unreadable_streams.difference_update(names)
        return [slot for name in names if (slot := self._streams.slots.get(name)) is not None]

    def _add_streams(self, definitions: Sequence[StreamDefinition]) -> list[int]:
        """Add streams; MissedRecordError if the restore could not apply the checkpoint of one of them.

        Suppose that a stream's newest control event was written after the restore had read the topic, and
        that compaction had removed the older events. Then the restore has seen a checkpoint but no control
        event. If the stream started again from zero, it would answer beyond its cutoff. So the error causes
        another restore.
        """
        known = self.checkpoints_without_definition
        if known and (missed := [one.stream for one in definitions if known.get(one.stream) == one.incarnation]):
            raise MissedRecordError(
                f"{missed[0]} has a checkpoint in {self._changelog} that the restore did not apply"
            )
        slots = self._streams.host_streams(definitions)
        self.runs_in_thread |= not all(self._streams.flags[slot] & PLAIN_FLAG for slot in slots)
        for slot, definition in zip(slots, definitions, strict=True):
            if definition.kind == "opened":
                if slot in self._pending_ends and not self._is_current(slot, self._pending_ends[slot]):
                    del self._pending_ends[slot]
            elif self._is_current(slot, definition):
                self._pending_ends[slot] = definition
        return slots

    def _is_current(self, slot: int, definition: StreamDefinition) -> bool:
        """Return True if the stream was neither extended nor refreshed after this event."""
        streams = self._streams
        known = len(streams.extensions.get(slot, ())) + streams.terms_at(slot).version
        return definition.incarnation == streams.incarnations[slot] and definition.rank >= known

    @property
    def answers_are_repeatable(self) -> bool:
        """True if restored streams would give the same answers to the same queries again.

        Kafka does not record between which questions a stream was extended or its table refreshed. So a
        question that was answered ``halted`` before an extension could now be answered with a number.
        """
        streams, state = self._streams, self._streams.columns.state
        changed = streams.extensions.keys() | streams.noise.refreshed_slots
        return not any(state[slot] == OPEN for slot in changed - self._pending_ends.keys())

    def refuse_unanswerable_streams(self, slots: npt.NDArray[np.intp]) -> None:
        """Refuse streams whose noise key or table this worker does not have, and streams that are models.

        A model is not asked, because each period has its own stream (docs/live.md, "A period at a time").
        """
        streams = self._streams
        missing_keys = streams.noise.missing_keys
        for slot in missing_keys.keys() & set(slots.tolist() if missing_keys else ()):
            streams.life.refuse_stream(slot, f"this worker lacks noise key {missing_keys[slot]}; give it that key")
        terms_of = streams.columns.terms_of[slots]
        indices = np.unique(terms_of).tolist()
        for index in indices:
            terms = streams.terms[index]
            source = terms.source
            if isinstance(source, EventsSource) and source.has_periods:
                for slot in slots[terms_of == index].tolist():
                    streams.life.refuse_stream(slot, MODEL_NOT_ASKED_REASON)
            self._tables.use_terms(index)
        # A table becomes unnecessary only if a stream was refreshed or has ended.
        refreshed = any(streams.terms[index].version > FIRST_VERSION for index in indices)
        if refreshed or not answering_mask(streams.columns.gather(slots)).all():
            self._tables.free_unused()

    def end_streams(self) -> npt.NDArray[np.intp]:
        """End the streams that control events have ended, and return their slots.

        A stream whose period is over first answers all questions of the period.
        """
        ended = []
        waiting = {slot: one for slot, one in self._pending_ends.items() if self._awaits_questions(slot, one)}
        for slot, definition in self._pending_ends.items():
            if slot in waiting:
                continue
            state = CLOSED if definition.kind == "closed" else HALTED
            if self._streams.life.end_stream(slot, state, definition.reason or ""):
                ended.append(slot)
        self._pending_ends = waiting
        if ended:
            self._tables.free_unused()
        return np.array(ended, dtype=np.intp)

    def _awaits_questions(self, slot: int, definition: StreamDefinition) -> bool:
        columns, terms = self._streams.columns, self._streams.terms_at(slot)
        if definition.reason != PERIOD_OVER_REASON or columns.state[slot] != OPEN or columns.refused[slot]:
            return False
        asked = questions_in_period(terms.source, terms.mechanism, terms.standing)
        return bool(columns.answered[slot] < asked)


def _name_of(record: RecordLike) -> str:
    return (record.key or b"").decode(errors="replace")


MAX_COLLECTED_DEFINITIONS = 10_000
MAX_COLLECTED_CHECKPOINTS = 50_000
"""Maximum number of records of different keys that a restore collects before it applies them, to bound memory."""

# An incarnation is only compared with the incarnation of its stream, so its form is not checked.
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
    """Restores a partition's streams from their control events and the worker's changelog.

    The changelog has checkpoints of totals, and updates. ``progress`` is the progress record, or None.
    ``topic_ids`` comes from the headers of this record.
    """

    def __init__(self, control_topic: str, control: StreamControl, streams: HostedStreams) -> None:
        self.progress: Any = None
        self.topic_ids: dict[str, str] = {}
        self._control_topic = control_topic
        self._control = control
        self._streams = streams
        self._definitions: dict[bytes, RecordLike] = {}
        self._checkpoints: dict[bytes, RecordLike] = {}
        self._checkpoints_without_definition: dict[bytes, RecordLike] = {}
        self._updates = UpdateLog()

    def collect(self, records: Iterable[RecordLike]) -> None:
        """Collect the latest control event and the latest checkpoint of each key."""
        for record in records:
            key = record.key or b""
            if record.topic != self._control_topic:
                self._checkpoints[key] = record
            elif (known := self._definitions.get(key)) is None or not is_stale(known.value, record.value):
                self._definitions[key] = record
        if len(self._definitions) >= MAX_COLLECTED_DEFINITIONS:
            self._apply_definitions()
        if len(self._checkpoints) >= MAX_COLLECTED_CHECKPOINTS:
            self._apply_checkpoints()

    def end(self, families: Families) -> None:
        """Apply the remaining records, refuse unanswerable streams, and restore updates.

        Records of retired streams are marked for deletion, because an earlier worker may have stopped before
        it deleted them.
        """
        self._apply_definitions()
        self._checkpoints = {**self._checkpoints_without_definition, **self._checkpoints}
        self._apply_checkpoints()
        retired, stale_keys = self._streams.retired, self._control.stale_keys
        if retired:
            self._control.drop_retired(self._streams.hosted_slots().tolist(), restoring=True)
            early_names = retired.select(key.decode() for key in self._checkpoints_without_definition)
            stale_keys |= dict.fromkeys(name.encode() for name in early_names)
            stale_keys |= dict.fromkeys(self._updates.keys_of(retired.has))
        early, self._checkpoints_without_definition = self._checkpoints_without_definition, {}
        self._control.checkpoints_without_definition = {
            key.decode(): decode_changelog_record(record, _decode_checkpoint).incarnation
            for key, record in early.items()
            if key not in stale_keys
        }
        reasons = self._streams.life.reasons
        ended = dict(reasons)
        self._control.refuse_unanswerable_streams(self._streams.hosted_slots())
        reasons |= ended
        updates, self._updates = self._updates, UpdateLog()
        self._restore_updates(families, updates)

    def _apply_definitions(self) -> None:
        records, self._definitions = list(self._definitions.values()), {}
        self._control.apply_events(records)
        self._control.drop_retired(self._control.find_deleted_slots(records), restoring=True)

    def _apply_checkpoints(self) -> None:
        """Apply the collected checkpoints; keep those of streams without a definition for later."""
        records, self._checkpoints = self._checkpoints, {}
        progress = records.pop(PROGRESS_KEY, None)
        if progress is not None and progress.value is not None:
            self.progress = decode_changelog_record(progress, _decode_progress)
            self.topic_ids = topic_ids_of(progress)
        slots, incarnations = self._streams.slots, self._streams.incarnations
        found = []
        for key, record in records.items():
            if record.value is None:
                self._delete_checkpoint(key)
                continue
            if key.startswith(UPDATE_PREFIX):
                self._updates.add(record)
                continue
            checkpoint = decode_changelog_record(record, _decode_checkpoint)
            slot = slots.get(key.decode())
            if slot is None or incarnations[slot] != checkpoint.incarnation:
                self._checkpoints_without_definition[key] = record
            else:
                found.append((slot, checkpoint, record.timestamp))
                self._checkpoints_without_definition.pop(key, None)
        self._streams.life.resume(found)

    def _delete_checkpoint(self, key: bytes) -> None:
        """Apply the deletion of a retired stream's record."""
        self._checkpoints_without_definition.pop(key, None)
        self._control.stale_keys.pop(key, None)
        if key.startswith(UPDATE_PREFIX):
            self._updates.remove(key)
        elif (slot := self._streams.slots.get(key.decode())) is not None:
            self._streams.columns.written_at[slot] = 0

    def _restore_updates(self, families: Families, updates: UpdateLog) -> None:
        """Restore each stream's updates; refuse a stream if an update is missing."""
        streams, terms = self._streams, self._streams.terms
        terms_with_updates = [index for index in range(len(terms)) if terms[index].has_updates]
        slots = streams.hosted_slots()
        for slot in slots[np.isin(streams.columns.terms_of[slots], terms_with_updates)].tolist():
            count, family = int(streams.columns.tops[slot]), families.one_by_one[streams.kinds[slot]]
            found = updates.first_updates(streams.names[slot], streams.incarnations[slot], count)
            if found is None:
                reason = "the changelog lacks updates of the stream's state; restore it from a backup"
                streams.life.refuse_stream(slot, reason)
            elif isinstance(family, RestorableFamily):
                family.restore_updates(slot, found)
