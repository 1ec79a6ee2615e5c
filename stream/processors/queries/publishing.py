"""From a family's replies to what is written: answers, checkpoints, updates and charges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.wire import encode
from stream.processors.base import Message, Outputs
from stream.processors.queries.families.base import Asked, Family, Reply
from stream.processors.queries.hosted import HostedStreams
from stream.processors.queries.life import EXHAUSTED
from stream.processors.queries.replies import Replies, WireAnswer


class Publisher:
    """Has families answer, and writes their replies."""

    def __init__(self, streams: HostedStreams, replies: Replies) -> None:
        self._streams = streams
        self._replies = replies

    def publish(
        self, family: Family, questions: Sequence[Asked], answers: list[Message | None], outputs: Outputs
    ) -> None:
        """Answer questions of one family and write what must outlive this worker; ended streams answer ``halted``."""
        streams = self._streams
        live = [one for one in questions if streams.life.answers(one.slot)]
        found = {one.place: reply for one, reply in zip(live, family.answer(live), strict=True)}
        touched: dict[int, None] = {}
        charged: dict[int, None] = {}
        for one in questions:
            slot = one.slot
            reply = found.get(one.place)
            if reply is None:
                answers[one.place] = _halted(streams, one)
                continue
            touched[slot] = None
            if reply.charged or streams.columns.answered[slot] == 0:
                charged[slot] = None
            answers[one.place] = _answer(streams, one, reply)
            if reply.update is not None:
                self._replies.update(outputs, slot, reply.update)
        for slot in touched:
            if streams.left(slot) == 0 and streams.terms_at(slot).ends_at_cutoff:
                streams.columns.state[slot] = EXHAUSTED
            streams.columns.changed[slot] = True
        self._replies.checkpoints(outputs, np.array(list(touched), dtype=np.intp))
        self._replies.charges(outputs, np.array(list(charged), dtype=np.intp))


def _answer(streams: HostedStreams, one: Asked, reply: Reply) -> Message:
    slot = one.slot
    index = int(streams.columns.answered[slot])
    if reply.charged:
        if streams.left(slot) == 0:
            raise AssertionError(f"stream '{streams.names[slot]}' has no charged answer left")
        streams.columns.tops[slot] += 1
    streams.columns.answered[slot] = index + 1
    streams.columns.last_offset[slot] = one.offset
    answer = WireAnswer(
        one.id,
        streams.names[slot],
        reply.outcome,
        index,
        reply.estimate,
        reply.basis,
        None,
        streams.spent(slot),
        streams.shown_left(slot),
        reply.estimates,
        reply.choice,
        reply.alpha,
    )
    return (streams.keys[slot], encode(answer), ())


def _halted(streams: HostedStreams, one: Asked) -> Message:
    slot = one.slot
    answer = WireAnswer(
        one.id,
        streams.names[slot],
        "halted",
        reason=streams.reason(slot),
        spent=streams.spent(slot),
        tops_left=streams.shown_left(slot),
    )
    return (streams.keys[slot], encode(answer), ())
