"""Encodes the output of a batch: checkpoints, updates, charges, status records and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import STREAM_STATES, Answer
from schemas.wire import encode, struct
from stream.kernel.array_operations import Part, pack_rows
from stream.kernel.byte_columns import Column, Spans, spans_of
from stream.processing.dead_letters import BUSY, Rejection, UnreadableValue, address_of, dead_letter
from stream.processing.protocol import PROGRESS_KEY, Message, Outputs, RecordLike, topic_id_headers
from stream.processing.record_columns import MessageColumns
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.worker.hosted_streams import HostedStreams
from stream.worker.stream_columns import StreamColumns, group_equal_rows
from stream.worker.stream_records import UPDATE_PREFIX, Update, encode_update, update_key
from stream.worker.stream_terms import StreamTerms, window_and_group_of_event

WireAnswer: Any = struct(Answer)
_STATE_FRAGMENTS: Final = spans_of([b'","state":"%s","answered":' % state.encode() for state in STREAM_STATES])


class OutputEncoder:
    """Encodes the records of one partition; the methods only add to ``outputs``."""

    def __init__(self, topics: Topics, partition: int, streams: HostedStreams) -> None:
        self._topics = topics
        self._partition = partition
        self._streams = streams

    def write_checkpoints(
        self, outputs: Outputs, slots: npt.NDArray[np.intp], gathered: StreamColumns | None = None
    ) -> None:
        """Write one checkpoint per stream; ``gathered`` are these slots' columns if the caller has them."""
        if not len(slots):
            return
        if gathered is None:
            gathered = self._streams.columns.gather(slots)
        values = pack_rows(
            len(slots),
            (
                b'{"incarnation":"',
                self._streams.noise.incarnations(slots),
                _constant_or_texts(_STATE_FRAGMENTS, gathered.state),
                gathered.answered,
                b',"tops":',
                _constant_or_column(gathered.tops),
                b',"offset":',
                gathered.last_offset,
                b',"reason":',
                self._encode_stream_reasons(slots),
                b',"due":',
                _constant_or_column(gathered.due),
                self._encode_surplus(gathered),
                self._encode_turns(slots),
                b"}",
            ),
        )
        outputs.extend(
            self._topics.state, self._partition, MessageColumns(self._streams.names_of(gathered), values)
        )

    def _encode_surplus(self, gathered: StreamColumns) -> Part:
        """Encode the fields ``surplus``; a surplus of 0 has no field."""
        surplus = gathered.surplus
        if not surplus.any():
            return b""
        known, which = np.unique(surplus, return_inverse=True)
        return spans_of([b',"surplus":%d' % one if one else b"" for one in known.tolist()]), which

    def _encode_turns(self, slots: npt.NDArray[np.intp]) -> Part:
        """Encode ``turn``, the window and group of a standing stream's last question; see ``WindowAndGroup``."""
        if not (turns := self._streams.life.last_turns):
            return b""
        fields = [b',"turn":%d' % turns[slot] if slot in turns else b"" for slot in slots.tolist()]
        return spans_of(fields), np.arange(len(slots))

    def _encode_stream_reasons(self, slots: npt.NDArray[np.intp]) -> Part:
        if not (reasons := self._streams.life.reasons):
            return b"null"
        return _encode_reasons([reasons.get(slot) for slot in slots.tolist()])

    def delete_records(self, outputs: Outputs, keys: Sequence[bytes]) -> None:
        """Delete the changelog records with these keys, and the status record of each retired stream among the keys."""
        outputs.extend(self._topics.state, self._partition, [(key, None, ()) for key in keys])
        names = [key for key in keys if not key.startswith(UPDATE_PREFIX)]
        outputs.extend(self._topics.status, self._partition, [(name, None, ()) for name in names])

    def write_update(self, outputs: Outputs, slot: int, update: Update) -> None:
        """Write one changelog record for an update of a stream's state."""
        key = update_key(self._streams.names[slot], update.number)
        outputs.add(self._topics.state, self._partition, (key, encode_update(update), ()))

    def write_progress(self, outputs: Outputs, progress: Any, topic_ids: Mapping[str, str]) -> None:
        """Write the progress record, with the offset up to which this partition's queries are answered."""
        outputs.add(
            self._topics.state, self._partition, (PROGRESS_KEY, encode(progress), topic_id_headers(topic_ids))
        )

    def write_charges(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """Write one charge per stream."""
        if not len(slots):
            return
        gathered = self._streams.columns.gather(slots)
        sources, source_of = self._encode_terms(gathered, _encode_source)
        values = pack_rows(
            len(slots),
            (
                *self._encode_common_fields(slots, gathered, (sources, source_of)),
                b',"spent":',
                self._encode_spent(slots, gathered),
                b',"reason":',
                self._encode_stream_reasons(slots),
                self._encode_surplus(gathered),
                b"}",
            ),
        )
        home = np.array([partition_of(source, LEDGER_PARTITIONS) for source in sources])[source_of]
        for partition in np.unique(home).tolist():
            own = np.flatnonzero(home == partition)
            charges = MessageColumns(sources.gather(source_of[own]), values.gather(own))
            outputs.extend(self._topics.charges, partition, charges)

    def write_status(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """Write one status record per stream."""
        if not len(slots):
            return
        gathered = self._streams.columns.gather(slots)
        refusals: Part = b"null"
        if gathered.refused.any():
            reasons = zip(slots.tolist(), gathered.refused.tolist(), strict=True)
            refusals = _encode_reasons(
                [self._streams.reason(slot) if is_refused else None for slot, is_refused in reasons]
            )
        values = pack_rows(
            len(slots),
            (
                *self._encode_common_fields(slots, gathered, self._encode_terms(gathered, _encode_source)),
                self._encode_tops_left(slots, gathered),
                b',"spent":',
                self._encode_spent(slots, gathered),
                b',"alpha":',
                self._encode_terms(gathered, lambda terms: encode(terms.calibration.alpha)),
                b',"position":{"topic":"' + self._topics.queries.encode(),
                b'","partition":%d,"offset":' % self._partition,
                gathered.last_offset,
                b'},"refused":',
                refusals,
                self._encode_surplus(gathered),
                b"}",
            ),
        )
        outputs.extend(
            self._topics.status, self._partition, MessageColumns(self._streams.names_of(gathered), values)
        )

    def _encode_common_fields(
        self, slots: npt.NDArray[np.intp], gathered: StreamColumns, sources: Part
    ) -> tuple[Part, ...]:
        """Encode the fields with which charges and status records begin."""
        streams = self._streams
        return (
            b'{"stream":"',
            streams.names_of(gathered),
            b'","source":"',
            sources,
            b'","incarnation":"',
            streams.noise.incarnations(slots),
            (_STATE_FRAGMENTS, gathered.state.astype(np.int64)),
            gathered.answered,
            b',"tops":',
            gathered.tops,
        )

    def _encode_terms(
        self, gathered: StreamColumns, encode_fact: Callable[[StreamTerms], bytes]
    ) -> tuple[Spans, Column]:
        """Encode a fact of the streams' terms, once for streams with equal terms."""
        first, group = group_equal_rows(len(gathered.terms_of), [gathered.terms_of])
        terms = self._streams.terms
        return spans_of([encode_fact(terms[index]) for index in gathered.terms_of[first].tolist()]), group

    def _encode_tops_left(self, slots: npt.NDArray[np.intp], gathered: StreamColumns) -> Part:
        first, group = group_equal_rows(len(slots), [gathered.cutoff, gathered.tops, gathered.surplus])
        shown = [encode(self._streams.shown_answers_left(slot)) for slot in slots[first].tolist()]
        return spans_of([b',"tops_left":' + left for left in shown]), group

    def _encode_spent(self, slots: npt.NDArray[np.intp], gathered: StreamColumns) -> Part:
        streams = self._streams
        equal_columns = [gathered.terms_of, gathered.answered > 0, gathered.tops, gathered.surplus]
        if streams.extensions:
            extended = np.array([slot in streams.extensions for slot in slots.tolist()], dtype=np.bool_)
            equal_columns.append(np.where(extended, slots + 1, 0))
        first, group = group_equal_rows(len(slots), equal_columns)
        return spans_of([encode(streams.spent(slot)) for slot in slots[first].tolist()]), group

    def write_rejection(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> Message | None:
        """Write a dead letter, and return the answer if the event has an id and a stream.

        A question that is refused as busy is valid, and its client can send it again. So it has no dead
        letter.
        """
        if rejection.code == BUSY:
            outputs.busy += 1
        else:
            outputs.add(self._topics.rejected, self._partition, dead_letter(record, rejection))
        value = record.value
        if (isinstance(value, UnreadableValue) and value.batch is not None) or (
            address := address_of(value)
        ) is None:
            return None
        query_id, name = address
        window, group = window_and_group_of_event(value)
        answer = WireAnswer(query_id, name, "rejected", reason=rejection.reason, window=window, group=group)
        return (name.encode(), encode(answer), ())


def _encode_source(terms: StreamTerms) -> bytes:
    return terms.source.source.encode()


def _constant_or_column(numbers: Column) -> Part:
    """Return the argument of ``pack_rows`` for integers: one constant if all are equal."""
    return b"%d" % numbers[0] if (numbers == numbers[0]).all() else numbers


def _constant_or_texts(texts: Spans, text_of_row: npt.NDArray[np.uint8]) -> Part:
    """Return the argument of ``pack_rows`` for texts: one constant if all rows have the same text."""
    first = text_of_row[0]
    return texts[int(first)] if (text_of_row == first).all() else (texts, text_of_row.astype(np.int64))


def _encode_reasons(reasons: Sequence[str | None]) -> Part:
    number_of = {reason: number for number, reason in enumerate(dict.fromkeys(reasons))}
    return spans_of(list(map(encode, number_of))), np.array([number_of[one] for one in reasons], dtype=np.int64)
