"""Answers: what consumers read."""

from __future__ import annotations

from typing import Literal

from schemas.base import Amount, Count, Event, Reason

Outcome = Literal["above", "below", "answer", "halted", "rejected"]


class Answer(Event):
    """The one answer to one query.

    ``index`` counts the stream's answered queries from 0; it is null for ``halted`` and ``rejected``, which use
    up nothing. ``estimate`` and ``basis`` (what the estimate rests on) are null for ⊤/⊥ mechanisms. ``spent`` is the
    stream's realised privacy loss so far, ``tops_left`` how many ⊤s remain before the cutoff; both are null for
    ``rejected``, which never reaches its stream.
    """

    id: str
    stream: str
    index: Count | None
    outcome: Outcome
    estimate: float | None = None
    basis: str | None = None
    reason: Reason | None = None
    spent: Amount | None = None
    tops_left: Count | None = None
