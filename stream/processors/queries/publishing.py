"""From a family's replies to what is written: answers, checkpoints, updates and charges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.wire import encode
from stream.processors.base import Message, Outputs
from stream.processors.queries.families.base import Asked, Family, Reply
from stream.processors.queries.hosted import HostedStreams
from stream.processors.queries.life import EXHAUSTED
from stream.processors.queries.replies import Replies, WireAnswer
from stream.processors.queries.windows import About
from stream.processors.rejections import Rejection


class Publisher:
    """Has families answer, and writes their replies."""

    def __init__(self, streams: HostedStreams, replies: Replies) -> None:
        self._streams = streams
        self._replies = replies

    def publish(
        self, family: Family, questions: Sequence[Asked], answers: list[Message | None], outputs: Outputs
    ) -> None:
        """Answer questions of one family and write what must outlive this worker; ended streams answer ``halted``."""
        streams, columns = self._streams, self._streams.columns
        answering = {slot: streams.life.answers(slot) for slot in {one.slot for one in questions}}
        replies = iter(family.answer([one for one in questions if answering[one.slot]]))
        shown: dict[int, _Shown] = {}
        charged: dict[int, None] = {}
        for one in questions:
            slot = one.slot
            reply = next(replies) if answering[slot] else None
            if reply is None:
                answers[one.place] = _halted(streams, one)
                continue
            if reply.refusal is not None:
                answers[one.place] = _refused(streams, one, reply, reply.refusal)
                continue
            if reply.charged or (slot not in shown and columns.answered[slot] == 0):
                charged[slot] = None
            answers[one.place] = _answer(streams, shown, one, reply)
            if reply.update is not None:
                self._replies.update(outputs, slot, reply.update)
        for slot, last in shown.items():
            columns.answered[slot], columns.last_offset[slot] = last.answered, last.offset
            if last.about is not None:
                streams.life.turns[slot] = last.about.turn
            if streams.parts_left(slot) == 0 and streams.terms_at(slot).ends_at_cutoff:
                columns.state[slot] = EXHAUSTED
            columns.changed[slot] = True
        self._replies.checkpoints(outputs, np.array(list(shown), dtype=np.intp))
        self._replies.charges(outputs, np.array(list(charged), dtype=np.intp))


@dataclass(slots=True)
class _Shown:
    """What a stream's answers of one batch show, up to the next that is charged; ``answered``, ``offset`` and ``about`` are the last one's."""

    name: str
    key: bytes
    spent: Any
    left: int | None
    answered: int
    offset: int
    version: int | None
    about: About | None


def _answer(streams: HostedStreams, shown: dict[int, _Shown], one: Asked, reply: Reply) -> Message:
    slot, known = one.slot, shown.get(one.slot)
    index = int(streams.columns.answered[slot]) if known is None else known.answered
    if known is None or reply.charged:
        if reply.charged:
            streams.charge(slot, reply.parts)
        streams.columns.answered[slot] = index + 1
        spent, left = streams.spent(slot), streams.shown_left(slot)
        version = streams.terms_at(slot).shown_version
        known = shown[slot] = _Shown(
            streams.names[slot], streams.key(slot), spent, left, index, one.offset, version, one.about
        )
    known.answered, known.offset, known.about = index + 1, one.offset, one.about
    answer = WireAnswer(
        one.id,
        known.name,
        reply.outcome,
        index,
        reply.estimate,
        reply.basis,
        None,
        known.spent,
        known.left,
        reply.estimates,
        reply.choice,
        reply.alpha,
        reply.price,
        known.version,
        *(one.about or ())[:2],
    )
    return (known.key, encode(answer), ())


def _refused(streams: HostedStreams, one: Asked, reply: Reply, refusal: Rejection) -> Message:
    """There is no dead letter: nothing is wrong with the question, and its asker is told."""
    window, group = (one.about or (None, None))[:2]
    answer = WireAnswer(
        one.id,
        streams.names[one.slot],
        "rejected",
        reason=refusal.reason,
        price=reply.price,
        window=window,
        group=group,
    )
    return (streams.key(one.slot), encode(answer), ())


def _halted(streams: HostedStreams, one: Asked) -> Message:
    slot = one.slot
    window, group = (one.about or (None, None))[:2]
    answer = WireAnswer(
        one.id,
        streams.names[slot],
        "halted",
        reason=streams.reason(slot),
        spent=streams.spent(slot),
        tops_left=streams.shown_left(slot),
        window=window,
        group=group,
    )
    return (streams.key(slot), encode(answer), ())
