"""Restores a partition's streams from control and the changelog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from schemas import Checkpoint, Progress
from schemas.wire import struct
from stream.processing.control_order import is_stale
from stream.processing.protocol import PROGRESS_KEY, RecordLike, decode_kept, topic_ids_of
from stream.worker.control_records import Control
from stream.worker.families import Families
from stream.worker.hosted_streams import HostedStreams
from stream.worker.mechanism_updates import UPDATE_PREFIX, UpdateLog

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
