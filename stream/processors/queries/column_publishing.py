"""From verdicts in columns to what is written: answers, checkpoints and charges."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from schemas.wire import encode
from stream.mechanisms.above_threshold import ABOVE, HALTED
from stream.processors.base import Message, Outputs
from stream.processors.queries.families.rows import Rows, Verdicts
from stream.processors.queries.hosted import HostedStreams
from stream.processors.queries.life import EXHAUSTED
from stream.processors.queries.replies import Replies, WireAnswer

_OUTCOMES = ("below", "above")


class ColumnPublisher:
    """Writes what a family has decided of whole batches."""

    def __init__(self, streams: HostedStreams, replies: Replies) -> None:
        self._streams = streams
        self._replies = replies

    def publish(self, rows: Rows, verdicts: Verdicts, answers: list[Message | None], outputs: Outputs) -> None:
        """Write answers, and what must outlive this worker; streams that do not answer say ``halted``."""
        self._write(rows, verdicts, answers)
        self._count(rows, verdicts, outputs)

    def _write(self, rows: Rows, verdicts: Verdicts, answers: list[Message | None]) -> None:
        streams, columns, decisions = self._streams, self._streams.columns, verdicts.decisions
        slots, stream_of = verdicts.slots, verdicts.stream_of
        tops = columns.tops[slots][stream_of] + decisions.tops_before + (decisions.codes == ABOVE)
        index = columns.answered[slots][stream_of] + np.where(verdicts.live[stream_of], decisions.place, 0)
        left = columns.cutoff[slots][stream_of] - tops
        told = (decisions.codes, index, tops, left, columns.terms_of[slots][stream_of])
        keys, names, terms, numbers = streams.keys, streams.names, streams.terms, verdicts.numbers
        extensions_of = streams.extensions.get
        for place, query_id, slot, about, code, number, shown, rest, terms_of in zip(
            rows.places, rows.ids, rows.slots, rows.abouts, *(column.tolist() for column in told), strict=True
        ):
            name = names[slot]
            if code == HALTED:
                spent = terms[terms_of].spent(number, shown, 0, extensions_of(slot, ()))
                answer = WireAnswer(query_id, name, "halted", None, None, None, streams.reason(slot), spent, rest)
            elif code == ABOVE and place in numbers:
                spent = terms[terms_of].spent(number + 1, shown, 0, extensions_of(slot, ()))
                estimate, basis, alpha = numbers[place]
                version = terms[terms_of].shown_version
                answer = WireAnswer(
                    query_id,
                    name,
                    "above",
                    number,
                    estimate,
                    basis,
                    None,
                    spent,
                    rest,
                    alpha=alpha,
                    version=version,
                )
            else:
                spent = terms[terms_of].spent(number + 1, shown, 0, extensions_of(slot, ()))
                answer = WireAnswer(query_id, name, _OUTCOMES[code], number, None, None, None, spent, rest)
                if (version := terms[terms_of].shown_version) is not None:
                    answer = replace(answer, version=version)
            if about is not None:
                window, group = about
                answer = replace(answer, window=window, group=group)
            answers[place] = (keys[slot], encode(answer), ())

    def _count(self, rows: Rows, verdicts: Verdicts, outputs: Outputs) -> None:
        """Move the streams' figures on, and write them."""
        columns, slots, decisions = self._streams.columns, verdicts.slots, verdicts.decisions
        given = decisions.codes != HALTED
        stream_of = verdicts.stream_of[given]
        answered = np.bincount(stream_of, minlength=len(slots))
        last = np.full(len(slots), -1, dtype=np.int64)
        np.maximum.at(last, stream_of, np.array(rows.offsets, dtype=np.int64)[given])
        shown = np.where(verdicts.live, columns.tops_left(slots) - decisions.tops_left, 0)
        some = answered > 0
        first = (columns.answered[slots] == 0) & some
        columns.answered[slots] += answered
        columns.tops[slots] += shown
        columns.last_offset[slots[some]] = last[some]
        ended = verdicts.live & (decisions.tops_left == 0)
        columns.state[slots[ended]] = EXHAUSTED
        touched = slots[some | ended]
        columns.changed[touched] = True
        self._replies.checkpoints(outputs, touched)
        # A stream's first answer costs the threshold's share, each ⊤ one more; ⊥s after the first cost nothing.
        self._replies.charges(outputs, slots[first | (shown > 0) | ended])
