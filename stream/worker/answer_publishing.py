"""Publishes replies and verdicts of families as answers; writes checkpoints, updates and charges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from schemas import Answer
from schemas.wire import encode, struct
from stream.kernel.array_operations import pack_rows
from stream.kernel.byte_columns import Column, Spans, concatenate_spans, spans_of
from stream.privacy.mechanisms.above_threshold import ABOVE, HALTED
from stream.processing.protocol import Message, Outputs
from stream.processing.record_columns import MessageColumns
from stream.worker.families.context import AdmittedQuestion
from stream.worker.families.family import Family, Reply
from stream.worker.families.sparse_vector_family import PublishedNumber, QuestionRows, Verdicts
from stream.worker.hosted_streams import EXHAUSTED, HostedStreams
from stream.worker.output_encoding import OutputEncoder, WireAnswer
from stream.worker.stream_columns import group_equal_rows
from stream.worker.stream_records import HaltedAnswer

_CostFields = tuple[str, Any, int | None, int | None]
"""Fields of a stream's answers that change only with a charge or a new version: name, spent, answers left, version."""


class ReplyPublisher:
    """Publishes the replies of families that answer questions one by one."""

    def __init__(self, streams: HostedStreams, encoder: OutputEncoder) -> None:
        self._streams = streams
        self._encoder = encoder

    def publish(
        self,
        family: Family,
        questions: Sequence[AdmittedQuestion],
        answers: list[Message | None],
        outputs: Outputs,
    ) -> None:
        """Answer questions of one family; a stream that cannot answer gives the answer ``halted``."""
        streams, columns = self._streams, self._streams.columns
        answering = {slot: streams.life.can_answer(slot) for slot in {one.slot for one in questions}}
        replies = iter(family.answer([one for one in questions if answering[one.slot]]))
        costs: dict[int, _CostFields] = {}
        charged: dict[int, None] = {}
        for one in questions:
            reply = next(replies) if answering[one.slot] else None
            if reply is None:
                totals = {"spent": streams.spent(one.slot), "tops_left": streams.shown_answers_left(one.slot)}
                answers[one.place] = self._encode_answer(one, "halted", reason=streams.reason(one.slot), **totals)
                continue
            answers[one.place] = self._encode_reply(one, reply, costs, charged)
            if reply.update is not None:
                self._encoder.write_update(outputs, one.slot, reply.update)
        for slot in costs:
            if streams.parts_left(slot) == 0 and streams.terms_at(slot).ends_at_cutoff:
                columns.state[slot] = EXHAUSTED
            columns.status_changed[slot] = True
        self._encoder.write_checkpoints(outputs, np.array(list(costs), dtype=np.intp))
        self._encoder.write_charges(outputs, np.array(list(charged), dtype=np.intp))

    def _encode_reply(
        self, one: AdmittedQuestion, reply: Reply, costs: dict[int, _CostFields], charged: dict[int, None]
    ) -> Message:
        """Count and encode a reply; ``costs`` caches fields of each stream's answers until its next charge."""
        streams, columns, slot = self._streams, self._streams.columns, one.slot
        if reply.refusal is not None:
            # The question is valid, so no dead letter is written.
            return self._encode_answer(one, "rejected", reason=reply.refusal.reason, price=reply.price)
        index = int(columns.answered[slot])
        columns.answered[slot], columns.last_offset[slot] = index + 1, one.offset
        if one.window_and_group is not None:
            streams.life.last_turns[slot] = one.window_and_group.turn
        if reply.charged:
            streams.charge(slot, reply.parts)
        if reply.charged or index == 0:
            charged[slot] = None
        if reply.charged or slot not in costs:
            version = streams.terms_at(slot).shown_version
            costs[slot] = streams.names[slot], streams.spent(slot), streams.shown_answers_left(slot), version
        name, spent, left, version = costs[slot]
        answer = WireAnswer(
            one.id,
            name,
            reply.outcome,
            index,
            reply.estimate,
            reply.basis,
            None,
            spent,
            left,
            reply.estimates,
            reply.choice,
            reply.alpha,
            reply.price,
            version,
            reply.interval,
            reply.intervals,
            *(one.window_and_group or ())[:2],
            top_groups=reply.top_groups,
            keys=reply.keys,
            choices=reply.choices,
            choice_intervals=reply.choice_intervals,
            typical_error=reply.typical_error,
        )
        return (name.encode(), encode(answer), ())

    def encode_retired(self, query: Any, answer: HaltedAnswer) -> Message:
        """Encode the answer to a question of a retired stream."""
        fields = {"window": query.window, "group": query.group, **answer._asdict()}
        return (query.stream.encode(), encode(WireAnswer(query.id, query.stream, "halted", **fields)), ())

    def _encode_answer(self, one: AdmittedQuestion, outcome: str, **fields: Any) -> Message:
        window, group = (one.window_and_group or (None, None))[:2]
        name = self._streams.names[one.slot]
        answer = WireAnswer(one.id, name, outcome, window=window, group=group, **fields)
        return (name.encode(), encode(answer), ())


_OUTCOMES: Final = ("below", "above")
_ANSWER_START: Final = b'{"id":"","stream":"'
_ID_END: Final = _ANSWER_START.index(b'","')
_ANSWER_END: Final = b"}"
_WindowFields: Any = struct(Answer, only=frozenset({"window", "group"}))
"""The last fields of an answer."""
_FIRST_INDEX: Final = b'"index":0'
_MAX_CACHED_TEXTS: Final = 4096


class ColumnPublisher:
    """Publishes the verdicts of the sparse vector's family on all questions of a batch at once."""

    def __init__(self, streams: HostedStreams, encoder: OutputEncoder) -> None:
        self._streams = streams
        self._encoder = encoder
        self._encoded: dict[tuple[int, ...], tuple[bytes, bytes]] = {}
        """Texts of answers before and after the index, by outcome, ⊤s, ⊤s left and terms."""

    def publish(self, rows: QuestionRows, verdicts: Verdicts, outputs: Outputs) -> MessageColumns:
        """Return the answers in order, and write the streams' new totals to ``outputs``."""
        answers = self._encode_answers(rows, verdicts)
        self._update_totals(rows, verdicts, outputs)
        return answers

    def _encode_answers(self, rows: QuestionRows, verdicts: Verdicts) -> MessageColumns:
        streams, decisions = self._streams, verdicts.decisions
        _, known, stream_of, _ = verdicts.streams
        tops = known.tops[stream_of] + decisions.tops_before + (decisions.outcomes == ABOVE)
        index = known.answered[stream_of] + np.where(verdicts.answering[stream_of], decisions.position, 0)
        left = known.cutoff[stream_of] - tops
        halted = decisions.outcomes == HALTED
        # Answers with equal totals differ only in id, stream, index, window and group, so the rest of their
        # text is encoded once. _text_ids gives different ids to answers that differ in more.
        totals = (decisions.outcomes, tops, left, known.terms_of[stream_of])
        first, group = group_equal_rows(len(rows.slots), [*totals, self._text_ids(rows, verdicts, halted)])
        distinct: Iterator[Any] = zip(
            *(column[first].tolist() for column in (*totals, rows.slots, index, rows.places)), strict=True
        )
        texts = [self._answer_text(one[:-1], verdicts.numbers.get(one[-1])) for one in distinct]
        before, after = (spans_of([text[part] for text in texts]) for part in (0, 1))
        ends = _answer_ends(rows)
        names = streams.names_of(known).gather(stream_of)
        indexed, unindexed = np.flatnonzero(~halted), np.flatnonzero(halted)
        packed = [
            pack_rows(
                len(places),
                [
                    _ANSWER_START[:_ID_END],
                    rows.ids.gather(places),
                    _ANSWER_START[_ID_END:],
                    names.gather(places),
                    (before, group[places]),
                    *more,
                    _ANSWER_END if ends is None else ends.gather(places),
                ],
            )
            for places, more in ((indexed, (index[indexed], (after, group[indexed]))), (unindexed, ()))
            if len(places)
        ]
        values = concatenate_spans(packed) if packed else rows.ids
        order = np.argsort(np.concatenate((indexed, unindexed)), kind="stable") if len(packed) > 1 else None
        return MessageColumns(names, values if order is None else values.gather(order))

    def _text_ids(self, rows: QuestionRows, verdicts: Verdicts, halted: npt.NDArray[np.bool_]) -> Column:
        """Return an id for each row; rows with equal totals and equal ids share their text.

        The id is 0 if the text depends on outcome, ⊤s and terms alone. The rows of a halted or extended stream have
        an id of this stream, and each row with a published number has an id of its own.
        """
        ids = np.where(halted, rows.slots + 1, 0)
        if extensions := self._streams.extensions:
            extended = np.array([slot in extensions for slot in verdicts.streams.slots.tolist()], dtype=np.bool_)
            ids = np.where(extended[verdicts.streams.stream_of], rows.slots + 1, ids)
        if verdicts.numbers:
            own = np.flatnonzero(np.isin(rows.places, [*verdicts.numbers]))
            ids[own] = -1 - own
        return ids

    def _answer_text(self, totals: tuple[int, ...], number: PublishedNumber | None) -> tuple[bytes, bytes]:
        """Return an answer's text before and after its index; the second text is empty if it has no index."""
        shared_key, (code, tops, left, terms_of, slot, index) = totals[:4], totals
        terms, extensions = self._streams.terms[terms_of], self._streams.extensions.get(slot, ())
        is_plain = code != HALTED and number is None and not extensions
        if is_plain and (known := self._encoded.get(shared_key)) is not None:
            return known
        if code == HALTED:
            spent = terms.spent(index, tops, 0, extensions)
            reason = self._streams.reason(slot)
            answer = WireAnswer("", "", "halted", reason=reason, spent=spent, tops_left=left)
            return encode(answer)[len(_ANSWER_START) : -len(_ANSWER_END)], b""
        answer = WireAnswer(
            "",
            "",
            _OUTCOMES[code],
            0,
            spent=terms.spent(index + 1, tops, 0, extensions),
            tops_left=left,
            version=terms.shown_version,
        )
        if number is not None:
            answer = replace(
                answer, estimate=number.estimate, basis=number.basis, alpha=number.alpha, interval=number.interval
            )
        head, sign, tail = encode(answer)[len(_ANSWER_START) : -len(_ANSWER_END)].partition(_FIRST_INDEX)
        if is_plain:
            if len(self._encoded) >= _MAX_CACHED_TEXTS:
                self._encoded.clear()
            self._encoded[shared_key] = head + sign[:-1], tail
        return head + sign[:-1], tail

    def _update_totals(self, rows: QuestionRows, verdicts: Verdicts, outputs: Outputs) -> None:
        columns, decisions = self._streams.columns, verdicts.decisions
        slots, before, stream_of, _ = verdicts.streams
        given = decisions.outcomes != HALTED
        stream_of = stream_of[given]
        answered = np.bincount(stream_of, minlength=len(slots))
        last = before.last_offset.copy()
        # Offsets ascend, so the last assignment is each stream's largest offset.
        last[stream_of] = rows.offsets[given]
        shown = np.where(verdicts.answering, before.tops_left - decisions.tops_left, 0)
        some = answered > 0
        first = (before.answered == 0) & some
        if rows.windows_and_groups:
            for slot, place in zip(rows.slots[given].tolist(), rows.places[given].tolist(), strict=True):
                if (window_and_group := rows.windows_and_groups.get(place)) is not None:
                    self._streams.life.last_turns[slot] = window_and_group.turn
        ended = verdicts.answering & (decisions.tops_left == 0)
        entries: dict[str, npt.NDArray[Any]] = {"answered": before.answered + answered, "last_offset": last}
        if shown.any():
            entries["tops"] = before.tops + shown
        if ended.any():
            entries["state"] = np.where(ended, EXHAUSTED, before.state)
        after = columns.write_entries(slots, before, entries)
        touched = some | ended
        if touched.all():
            columns.status_changed[slots] = True
            self._encoder.write_checkpoints(outputs, slots, after)
        else:
            columns.status_changed[slots[touched]] = True
            self._encoder.write_checkpoints(outputs, slots[touched])
        # The first answer is charged for the threshold's noise, and each ⊤ for itself; later ⊥s are free.
        self._encoder.write_charges(outputs, slots[first | (shown > 0) | ended])


def _answer_ends(rows: QuestionRows) -> Spans | None:
    """Encode window and group, the last fields of an answer; None if no row has a window."""
    if not rows.windows_and_groups:
        return None
    windows_and_groups = [rows.windows_and_groups.get(place) for place in rows.places.tolist()]
    return spans_of(
        [
            _ANSWER_END
            if window_and_group is None
            else b"," + encode(_WindowFields(window_and_group.window, window_and_group.group))[1:]
            for window_and_group in windows_and_groups
        ]
    )
