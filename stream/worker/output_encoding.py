"""Encodes the output of a batch: headers, checkpoints, charges, status and dead letters.

Answers have trace context and CloudEvents attributes if their queries have them as headers. These
headers depend on the query's record alone, so a repeated answer has the same ones. Sources: W3C Trace
Context (2021); CloudEvents 1.0.2 with its Kafka protocol binding, binary content mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Answer
from schemas.wire import encode, struct
from stream.kernel import Column, Part, Spans, pack_rows, spans_of
from stream.processing.dead_letters import BUSY, Rejection, UnreadableValue, address_of, dead_letter
from stream.processing.protocol import PROGRESS_KEY, Headers, Message, Outputs, RecordLike, topic_id_headers
from stream.processing.record_columns import MessageColumns
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.worker.hosted_streams import STATES, HostedStreams
from stream.worker.mechanism_updates import UPDATE_PREFIX, Update, encode_update, update_key
from stream.worker.stream_columns import StreamColumns, group_equal_rows
from stream.worker.stream_terms import window_and_group_of_event

WireAnswer: Any = struct(Answer)
_STATE_FRAGMENTS: Final = spans_of([b'","state":"%s","answered":' % state.encode() for state in STATES])


class OutputEncoder:
    """Encodes the records of one partition; the methods only add to ``outputs``."""

    def __init__(self, topics: Topics, partition: int, streams: HostedStreams) -> None:
        self._topics = topics
        self._partition = partition
        self._streams = streams

    def write_checkpoints(
        self, outputs: Outputs, slots: npt.NDArray[np.intp], figures: StreamColumns | None = None
    ) -> None:
        """Write one checkpoint per stream.

        ``figures`` are the columns of these slots, if the caller has them already.
        """
        if not len(slots):
            return
        if figures is None:
            figures = self._streams.columns.gather(slots)
        values = pack_rows(
            len(slots),
            (
                b'{"incarnation":"',
                self._streams.noise.incarnations(slots),
                _constant_or_texts(_STATE_FRAGMENTS, figures.state),
                figures.answered,
                b',"tops":',
                _constant_or_column(figures.tops),
                b',"offset":',
                figures.last_offset,
                b',"reason":',
                self._encode_stream_reasons(slots),
                b',"due":',
                _constant_or_column(figures.due),
                self._encode_surplus(figures),
                self._encode_turns(slots),
                b"}",
            ),
        )
        outputs.extend(
            self._topics.state, self._partition, MessageColumns(self._streams.names_of(figures), values)
        )

    def _encode_surplus(self, figures: StreamColumns) -> Part:
        """Encode the fields ``surplus`` (cost beyond ordinary charges); empty where it is 0."""
        surplus = figures.surplus
        if not surplus.any():
            return b""
        known, which = np.unique(surplus, return_inverse=True)
        return spans_of([b',"surplus":%d' % one if one else b"" for one in known.tolist()]), which

    def _encode_turns(self, slots: npt.NDArray[np.intp]) -> Part:
        """Encode the fields ``turn`` (of the last answer's window and group) of standing streams."""
        if not (turns := self._streams.life.turns):
            return b""
        said = [b',"turn":%d' % turns[slot] if slot in turns else b"" for slot in slots.tolist()]
        return spans_of(said), np.arange(len(slots))

    def _encode_stream_reasons(self, slots: npt.NDArray[np.intp]) -> Part:
        if not (reasons := self._streams.life.reasons):
            return b"null"
        return _encode_reasons([reasons.get(slot) for slot in slots.tolist()])

    def delete_records(self, outputs: Outputs, keys: Sequence[bytes]) -> None:
        """Delete records of retired streams: those with these keys in the changelog, and their status."""
        outputs.extend(self._topics.state, self._partition, [(key, None, ()) for key in keys])
        names = [key for key in keys if not key.startswith(UPDATE_PREFIX)]
        outputs.extend(self._topics.status, self._partition, [(name, None, ()) for name in names])

    def write_update(self, outputs: Outputs, slot: int, update: Update) -> None:
        """Write one changelog record for an update of a stream's state."""
        key = update_key(self._streams.names[slot], update.number)
        outputs.add(self._topics.state, self._partition, (key, encode_update(update), ()))

    def write_progress(self, outputs: Outputs, progress: Any, topic_ids: Mapping[str, str]) -> None:
        """Write the offset up to which this partition's queries are answered."""
        outputs.add(
            self._topics.state, self._partition, (PROGRESS_KEY, encode(progress), topic_id_headers(topic_ids))
        )

    def write_charges(self, outputs: Outputs, slots: npt.NDArray[np.intp]) -> None:
        """Write one charge per stream."""
        if not len(slots):
            return
        figures = self._streams.columns.gather(slots)
        sources, source_of = self._encode_sources(slots, figures)
        values = pack_rows(
            len(slots),
            (
                *self._encode_common_fields(slots, figures, (sources, source_of)),
                b',"spent":',
                self._encode_spent(slots, figures),
                b',"reason":',
                self._encode_stream_reasons(slots),
                self._encode_surplus(figures),
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
        figures = self._streams.columns.gather(slots)
        refused: Part = b"null"
        if figures.refused.any():
            reasons = zip(slots.tolist(), figures.refused.tolist(), strict=True)
            refused = _encode_reasons(
                [self._streams.reason(slot) if is_refused else None for slot, is_refused in reasons]
            )
        values = pack_rows(
            len(slots),
            (
                *self._encode_common_fields(slots, figures, self._encode_sources(slots, figures)),
                self._encode_tops_left(slots, figures),
                b',"spent":',
                self._encode_spent(slots, figures),
                b',"alpha":',
                self._encode_alphas(slots, figures),
                b',"position":{"topic":"' + self._topics.queries.encode(),
                b'","partition":%d,"offset":' % self._partition,
                figures.last_offset,
                b'},"refused":',
                refused,
                self._encode_surplus(figures),
                b"}",
            ),
        )
        outputs.extend(
            self._topics.status, self._partition, MessageColumns(self._streams.names_of(figures), values)
        )

    def _encode_common_fields(
        self, slots: npt.NDArray[np.intp], figures: StreamColumns, sources: Part
    ) -> tuple[Part, ...]:
        """Encode the fields with which charges and status records begin."""
        streams = self._streams
        return (
            b'{"stream":"',
            streams.names_of(figures),
            b'","source":"',
            sources,
            b'","incarnation":"',
            streams.noise.incarnations(slots),
            (_STATE_FRAGMENTS, figures.state.astype(np.int64)),
            figures.answered,
            b',"tops":',
            figures.tops,
        )

    def _encode_sources(self, slots: npt.NDArray[np.intp], figures: StreamColumns) -> tuple[Spans, Column]:
        first, group = group_equal_rows(len(slots), [figures.terms_of])
        return spans_of(
            [self._streams.terms_at(slot).source.source.encode() for slot in slots[first].tolist()]
        ), group

    def _encode_alphas(self, slots: npt.NDArray[np.intp], figures: StreamColumns) -> Part:
        first, group = group_equal_rows(len(slots), [figures.terms_of])
        return spans_of(
            [encode(self._streams.terms_at(slot).calibration.alpha) for slot in slots[first].tolist()]
        ), group

    def _encode_tops_left(self, slots: npt.NDArray[np.intp], figures: StreamColumns) -> Part:
        first, group = group_equal_rows(len(slots), [figures.cutoff, figures.tops, figures.surplus])
        shown = [encode(self._streams.shown_answers_left(slot)) for slot in slots[first].tolist()]
        return spans_of([b',"tops_left":' + left for left in shown]), group

    def _encode_spent(self, slots: npt.NDArray[np.intp], figures: StreamColumns) -> Part:
        streams = self._streams
        alike = [figures.terms_of, figures.answered > 0, figures.tops, figures.surplus]
        if streams.extensions:
            extended = np.array([slot in streams.extensions for slot in slots.tolist()], dtype=np.bool_)
            alike.append(np.where(extended, slots + 1, 0))
        first, group = group_equal_rows(len(slots), alike)
        return spans_of([encode(streams.spent(slot)) for slot in slots[first].tolist()]), group

    def write_rejection(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> Message | None:
        """Write a dead letter, and return the answer if the event has an id and a stream.

        A question refused as busy is valid and its client can send it again, so it has no dead letter.
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


CLOUD_EVENTS_VERSION: Final = b"1.0"
CONTENT_TYPE: Final = b"application/json"
ANSWER_TYPE: Final = b"io.sotto.answer.v1"
"""CloudEvents type of answers; the version rises with incompatible changes of the format."""

MAX_TRACEPARENT = 128
"""Longest ``traceparent`` that is copied, in bytes; version 00 has 55."""

MAX_TRACESTATE = 512
"""Longest ``tracestate`` that is copied, in bytes; the recommendation requires 512."""

MAX_TRACESTATE_MEMBERS = 32

_PARENT = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACEPARENT: Final = rf"^(?:00-{_PARENT}|(?!00|ff)[0-9a-f]{{2}}-{_PARENT}(?:-[\x21-\x7e]*)?)$"
"""A ``traceparent`` of version 00, or of a later version that begins with the same fields."""

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

    A query with ``ce_specversion`` 1.0 gets a CloudEvent whose id is the query's position. A
    well-formed ``traceparent`` is copied, together with a well-formed ``tracestate``; a repeated
    header counts as malformed.
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
