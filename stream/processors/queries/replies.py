"""Encoding what a batch of queries writes: answers, checkpoints, charges, status and dead letters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import Answer, Charge, Checkpoint, Position, StreamStatus
from schemas.wire import encode, sparing, struct
from stream.processors.base import PROGRESS_KEY, Message, Outputs, RecordLike
from stream.processors.letters import dead_letter
from stream.processors.queries.hosted import HostedStreams
from stream.processors.queries.life import STATES
from stream.processors.queries.updates import Update, encode_update, update_key
from stream.processors.queries.windows import about_of_event
from stream.processors.rejections import BUSY, Rejection, address_of
from stream.processors.topics import LEDGER_PARTITIONS, Topics, partition_of
from stream.processors.unread import Unread

WireAnswer: Any = struct(Answer)
_WireCheckpoint: Any = sparing(Checkpoint)
_WireCharge: Any = sparing(Charge)
_WireStatus: Any = sparing(StreamStatus)
_WirePosition: Any = struct(Position)


class Replies:
    """Writes for one partition. All methods only add to ``outputs``."""

    def __init__(self, topics: Topics, partition: int, streams: HostedStreams) -> None:
        self._topics = topics
        self._partition = partition
        self._streams = streams

    def checkpoints(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """One changelog record per touched stream."""
        streams = self._streams
        columns = (
            streams.columns.state,
            streams.columns.answered,
            streams.columns.tops,
            streams.columns.last_offset,
            streams.columns.due,
            streams.columns.surplus,
        )
        rows = zip(slots.tolist(), *(column[slots].tolist() for column in columns), strict=True)
        keys, incarnations, reason_of = streams.keys, streams.incarnations, streams.life.reasons.get
        outputs.extend(
            self._topics.state,
            self._partition,
            [
                (
                    keys[slot],
                    encode(
                        _WireCheckpoint(
                            incarnations[slot],
                            STATES[state],
                            answered,
                            tops,
                            offset,
                            reason_of(slot),
                            due,
                            surplus,
                        )
                    ),
                    (),
                )
                for slot, state, answered, tops, offset, due, surplus in rows
            ],
        )

    def update(self, outputs: Outputs, slot: int, update: Update) -> None:
        """One changelog record for a step of a stream's hypothesis."""
        key = update_key(self._streams.names[slot], update.number)
        outputs.add(self._topics.state, self._partition, (key, encode_update(update), ()))

    def progress(self, outputs: Outputs, progress: Any) -> None:
        """How far this partition's queries are answered."""
        outputs.add(self._topics.state, self._partition, (PROGRESS_KEY, encode(progress), ()))

    def charges(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """One charge per stream with news for the ledger."""
        streams = self._streams
        for slot in slots.tolist():
            source = streams.terms_at(slot).source.source
            charge = _WireCharge(
                streams.names[slot],
                source,
                streams.incarnations[slot],
                STATES[streams.columns.state[slot]],
                int(streams.columns.answered[slot]),
                int(streams.columns.tops[slot]),
                streams.spent(slot),
                streams.life.reasons.get(slot),
                int(streams.columns.surplus[slot]),
            )
            key = source.encode()
            outputs.add(self._topics.charges, partition_of(key, LEDGER_PARTITIONS), (key, encode(charge), ()))

    def status(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """One digest per stream that changed since the last time."""
        streams = self._streams
        for slot in slots.tolist():
            position = _WirePosition(self._topics.queries, self._partition, int(streams.columns.last_offset[slot]))
            terms = streams.terms_at(slot)
            digest = _WireStatus(
                streams.names[slot],
                terms.source.source,
                streams.incarnations[slot],
                STATES[streams.columns.state[slot]],
                int(streams.columns.answered[slot]),
                int(streams.columns.tops[slot]),
                streams.shown_left(slot),
                streams.spent(slot),
                terms.calibration.alpha,
                position,
                streams.reason(slot) if streams.columns.refused[slot] else None,
                int(streams.columns.surplus[slot]),
            )
            outputs.add(self._topics.status, self._partition, (streams.keys[slot], encode(digest), ()))

    def reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> Message | None:
        """Give an answer where the event has an id and a stream; write a dead letter unless it need only come again.

        Nothing is wrong with a question that came too soon: its asker knows it, and a copy of it would help nobody.
        """
        if rejection.code == BUSY:
            outputs.busy += 1
        else:
            outputs.add(self._topics.rejected, self._partition, dead_letter(record, rejection))
        value = record.value
        if (isinstance(value, Unread) and value.batch is not None) or (address := address_of(value)) is None:
            return None
        query_id, name = address
        window, group = about_of_event(value)
        answer = WireAnswer(query_id, name, "rejected", reason=rejection.reason, window=window, group=group)
        return (name.encode(), encode(answer), ())
